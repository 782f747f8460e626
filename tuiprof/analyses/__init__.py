"""Analyses: pure functions from a trace to a report, one file each. CLI and screens both call ``run``.

A module here defines ``ANALYSIS = Analysis(name=..., title=..., question=..., run=...)`` and is discovered
automatically. It does no I/O and reads no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec

from polars.exceptions import PanicException

from tuiprof.errors import REPORT_IT, TuiprofError, UsageProblem, describe
from tuiprof.model import Report, Trace, Unavailable, Window
from tuiprof.model.trace import cached_on_trace
from tuiprof.model.trust import EVENTLESS
from tuiprof.plugins import discover

#: Minimum number of events for which threads are faster than sequential analyses; maximum number of useful threads.
_WORTH_THREADS, _THREADS = 200_000, 2


@dataclass(frozen=True, slots=True)
class Analysis:
    """One analysis."""

    name: str  # its name on the command line and in JSON, for example ``"sync_events"``
    title: str  # heading and tab title
    question: str  # the question it answers, one sentence
    run: Callable[[Trace, Window], Report | Unavailable]  # the pure function
    order: int = 100  # position among the tabs; lower comes first
    #: Whether it supports files without events, such as a recording of utilization.
    without_events: bool = False


@cache
def available() -> dict[str, Analysis]:
    """Return every analysis by name, in tab order; one that fails to load is replaced by one that reports the error."""
    found = discover("analyses")
    every: dict[str, Analysis] = {
        **found.items,
        **{name: _broken(name, why) for name, why in found.failed.items() if name not in found.items},
    }
    return dict(sorted(every.items(), key=lambda item: (item[1].order, item[0])))


def _broken(name: str, why: str) -> Analysis:
    answer = Unavailable(name, why, REPORT_IT, failed=True)
    return Analysis(name, name, "", lambda _trace, _window: answer, without_events=True)


def run(name: str, trace: Trace, window: Window | None = None) -> Report | Unavailable:
    """Run one analysis; if it fails, only it is unavailable, with the reason.

    The result is cached with the trace, because other analyses and advice use it. Without a window the whole trace is
    analyzed.

    Raises:
        UsageProblem: There is no such analysis.
    """
    analysis = find(name)
    window = window or Window()
    return _answer(trace, analysis, window)


@cached_on_trace
def _answer(trace: Trace, analysis: Analysis, window: Window) -> Report | Unavailable:
    if not analysis.without_events:
        nature = next((remark for remark in trace.stats.remarks if remark.code in EVENTLESS), None)
        if nature is not None:
            return Unavailable(analysis.name, nature.text, nature.remedy)
    return attempt(analysis.name, lambda: analysis.run(trace, window))


def attempt(name: str, make: Callable[[], Report | Unavailable]) -> Report | Unavailable:
    """Return a report, or why it failed."""
    try:
        made = make()
        if not isinstance(made, Report | Unavailable):
            raise TypeError(f"it returned {type(made).__name__}, not Report or Unavailable")
        return made
    except TuiprofError as error:
        return Unavailable(name, error.message, error.remedy)
    except (Exception, PanicException) as error:  # noqa: BLE001 - a defect is caught here only
        return Unavailable(name, f"it failed: {describe(error)}", REPORT_IT, failed=True)


def run_all(names: Sequence[str], trace: Trace, window: Window | None = None) -> list[Report | Unavailable]:
    """Run several analyses, for a large trace in parallel: arithmetic on long columns releases the GIL.

    The reports are in the order of the names. Without a window the whole trace is analyzed.

    Raises:
        UsageProblem: There is no such analysis.
    """
    if len(names) < 2 or len(trace) < _WORTH_THREADS:
        return [run(name, trace, window) for name in names]
    with ThreadPoolExecutor(_THREADS) as pool:
        pool.submit(getattr, trace, "nesting")  # slow, and needed by most others, which wait for it
        for name in names:
            find(name)  # loads its module in the meantime
        answers = [pool.submit(run, name, trace, window) for name in names]
        return [answer.result() for answer in answers]


@cache
def find(name: str) -> Analysis:
    """Return an analysis, preferably from the module with its name, to avoid loading the others.

    Raises:
        UsageProblem: There is no such analysis.
    """
    own = f"{__name__}.{name}"
    if name.isidentifier() and not name.startswith("_") and find_spec(own) is not None:
        with suppress(Exception):  # the reason is determined below
            found: Analysis | None = getattr(import_module(own), "ANALYSIS", None)
            if found is not None and found.name == name:
                return found
    try:
        return available()[name]
    except KeyError:
        raise UsageProblem(f"no analysis {name!r}", f"there are {', '.join(available())}") from None
