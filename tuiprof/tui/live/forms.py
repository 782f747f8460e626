"""Forms of the live screen: what to capture now, when to capture automatically, and what counts as a step."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar, Final

from textual.binding import BindingType

from tuiprof.probe.steps.changed_steps import BY
from tuiprof.session.run.control import parse_slower, trigger_requests
from tuiprof.session.store.meta import TriggerRequest
from tuiprof.tui.dialogs.form import Form, Text, Tick, form_keys, optional, whole

#: Maximum number of steps for a readable trace.
_MAX_STEPS: Final = 1000


class CaptureForm(Form[dict[str, Any]], inherit_bindings=False):
    """Asks what to profile, and returns the arguments of ``RunCaptures.request``; ``steps`` is the suggested number."""

    BINDINGS: ClassVar[list[BindingType]] = form_keys("capture", "Capture", "capture", "Start the capture")

    def __init__(self, steps: int) -> None:
        many = whole(f"steps must be a whole number from 1 to {_MAX_STEPS}", 1, _MAX_STEPS)
        fields = (
            Text("steps", "steps", str(steps), parse=many),
            Tick("stack", "Python stacks: name source lines; slow the steps"),
            Tick("shapes", "operator input shapes"),
            Tick("memory", "allocations"),
        )
        super().__init__("capture", fields, dict)


class ArmForm(Form[tuple[TriggerRequest, ...]], inherit_bindings=False):
    """Asks when to capture automatically, and returns the triggers; empty = none.

    Initial values: the limit for slow steps (``35 ms``, ``1.5x``), the interval in steps, both empty = off, and the
    maximum size of the session's traces.
    """

    BINDINGS: ClassVar[list[BindingType]] = form_keys(
        "arm", "Capture", "apply", "Capture in these cases and no others"
    )

    def __init__(self, slow: str, every: str, budget_bytes: int) -> None:
        fields = (
            Text(
                "slow",
                "after a step slower than — 35 ms, or 1.5x the median; empty: off",
                slow,
                parse=optional(parse_slower),
            ),
            Text(
                "every",
                "every N steps — empty: off",
                every,
                parse=optional(whole("every: a whole number of steps above 0", 1)),
            ),
            Text(
                "budget",
                "while the session's traces take less than, MB",
                str(round(budget_bytes / 1e6)),
                parse=whole("the budget is a whole number of megabytes above 0", 1),
            ),
        )
        super().__init__("capture automatically", fields, _requests)


def _requests(
    slow: tuple[int | None, float | None] | None, every: int | None, budget: int
) -> tuple[TriggerRequest, ...]:
    above_ns, times = slow or (None, None)
    return trigger_requests(above_ns=above_ns, times=times, every=every, budget_bytes=budget * 1_000_000)


class StepsForm(Form[dict[str, str]], inherit_bindings=False):
    """Asks what counts as a step, other than now.

    ``parse`` turns a kind (``at``, ``function`` or ``by``) and its value into a request, or raises an error. ``python``
    is the version of the script's Python; empty = unknown.
    """

    BINDINGS: ClassVar[list[BindingType]] = form_keys(
        "steps", "Count", "count", "Count steps this way from now on", one_field=True
    )

    def __init__(self, now: str, parse: Callable[[str, str], dict[str, str]], python: str = "") -> None:
        version = re.match(r"3\.(\d{1,3})", python)
        lines = version is None or int(version[1]) >= 12

        def named(text: str) -> dict[str, str]:
            file, _, line = text.rpartition(":")
            kind = "by" if text in BY else "at" if file and line.isdecimal() else "function"
            if kind == "at" and not lines:
                raise ValueError(no_lines)
            return parse(kind, text)

        no_lines = f"a line requires Python 3.12, and the script runs on {python}"
        at = "at a line (FILE:LINE), with" if lines else "with"
        label = (
            f"now: {now or 'none seen'}. A step ends {at} a function (MODULE:NAME), or with: {', '.join(BY)}"
            + ("" if lines else f"; {no_lines}")
        )
        super().__init__("what a step is", (Text("steps", label, parse=named),), lambda steps: dict(steps))
