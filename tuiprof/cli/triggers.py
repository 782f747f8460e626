"""The options for captures that are triggered: after slow steps, and at every so many steps."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import click

from tuiprof.cli.common import Function

if TYPE_CHECKING:
    from tuiprof.session.store.meta import TriggerRequest

_TIMES_NS: Final = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_SIZES: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_NUMBER: Final = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([^\W\d]*|×)\s*")


def trigger_options(function: Function) -> Function:
    """Add the options for triggered captures."""
    options = (
        click.option(
            "--capture-slower",
            metavar="1.5x|40ms",
            help="When a step takes longer than this (1.5x: 1.5 times the median), profile the steps after it. At "
            "most every 30 s; not in the first 10 steps.",
        ),
        click.option(
            "--capture-every",
            type=click.IntRange(min=1),
            metavar="STEPS",
            help="Profile every STEPS steps, at most every 10 s.",
        ),
        click.option(
            "--capture-budget",
            metavar="SIZE",
            help="Skip triggered captures that would take the session's traces above SIZE (default: 500MB).",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def triggers(
    slower: str | None,
    every: int | None,
    budget: str | None,
    *,
    steps: int,
    stack: bool,
    shapes: bool,
    memory: bool,
) -> tuple[TriggerRequest, ...]:
    """Return what ``--capture-slower``, ``--capture-every`` and ``--capture-budget`` arm at launch.

    Raises:
        UsageError: One of them cannot be read, or there is a budget for nothing.
    """
    from tuiprof.session.run.control import trigger_requests
    from tuiprof.session.store.meta import DEFAULT_BUDGET

    if budget is not None and slower is None and every is None:
        raise click.UsageError("--capture-budget requires --capture-slower or --capture-every")
    size = DEFAULT_BUDGET if budget is None else parse_size(budget)
    above_ns, times = parse_slower(slower) if slower is not None else (None, None)
    return trigger_requests(
        above_ns=above_ns,
        times=times,
        every=every,
        steps=steps,
        budget_bytes=size,
        stack=stack,
        shapes=shapes,
        memory=memory,
    )


def parse_slower(text: str) -> tuple[int | None, float | None]:
    """Read ``40ms`` as a time in ns, ``1.5x`` as a multiple of the median; one of the two is None.

    Raises:
        UsageError: It is neither.
    """
    match = _NUMBER.fullmatch(text)
    number, unit = (float(match[1]), match[2].lower()) if match else (0.0, "")
    if unit in ("x", "×") and number > 1:
        return None, number
    if unit in _TIMES_NS and number * _TIMES_NS[unit] >= 1:
        return round(number * _TIMES_NS[unit]), None
    raise click.UsageError(
        f"--capture-slower {text!r} is not a time (40ms, 2s) or a multiple of the median above 1 (1.5x)"
    )


def parse_size(text: str) -> int:
    """Read ``500MB`` or ``2GiB`` as bytes.

    Raises:
        UsageError: It is no size.
    """
    match = _NUMBER.fullmatch(text)
    if match is None or match[2].lower() not in _SIZES or float(match[1]) <= 0:
        raise click.UsageError(f"--capture-budget {text!r} is not a size; for example 500MB or 2GB")
    return round(float(match[1]) * _SIZES[match[2].lower()])
