"""Pure functions from a trace to a report. One file an analysis; ``run`` is where CLI and screens meet.

A module here defines ``ANALYSIS = Analysis(name=..., title=..., question=..., run=...)`` and is found by
itself. It does no input, no output and reads no clock.
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
from tuiprof.model.derived import cached_on_trace
from tuiprof.model.trust import EVENTLESS
from tuiprof.plugins import discover

#: From this many events on threads are quicker than one analysis after the other; more than these gain nothing.
_WORTH_THREADS, _THREADS = 200_000, 2


@dataclass(frozen=True, slots=True)
class Analysis:
    """One analysis.

    Attributes:
        name: Its name on the command line and in JSON, for example ``"sync_events"``.
        title: Heading and tab title.
        question: The question it answers, one sentence.
        run: The pure function.
        order: Position among the tabs; lower comes first.
        without_events: Whether it also answers on a file that holds no events by its nature, such as a recording of
            utilisation.
    """

    name: str
    title: str
    question: str
    run: Callable[[Trace, Window], Report | Unavailable]
    order: int = 100
    without_events: bool = False


@cache
def available() -> dict[str, Analysis]:
    """Return every analysis by name, in tab order; one that cannot be loaded is replaced by one that says so."""
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
    """Run one analysis; one that fails is unavailable, with the reason, and takes no other with it.

    An answer is kept for as long as the trace lives, because others build on it: advice on most. Without a window the
    whole trace is analysed.

    Raises:
        UsageProblem: There is no such analysis.
    """
    analysis = _find(name)
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
    """Return an answer, or why making it failed."""
    try:
        return make()
    except TuiprofError as error:
        return Unavailable(name, error.message, error.remedy)
    except (Exception, PanicException) as error:  # noqa: BLE001 - a defect is caught here only
        return Unavailable(name, f"it failed: {describe(error)}", REPORT_IT, failed=True)


def run_all(names: Sequence[str], trace: Trace, window: Window | None = None) -> list[Report | Unavailable]:
    """Run several analyses, of a large trace at the same time: arithmetic on long columns does not hold Python's lock.

    The answers come in the order of the names. Without a window the whole trace is analysed.

    Raises:
        UsageProblem: There is no such analysis.
    """
    if len(names) < 2 or len(trace) < _WORTH_THREADS:
        return [run(name, trace, window) for name in names]
    with ThreadPoolExecutor(_THREADS) as pool:
        pool.submit(
            getattr, trace, "nesting"
        )  # takes longest of what most need; who comes to need it waits for it
        for name in names:
            _find(name)  # loads its module meanwhile
        answers = [pool.submit(run, name, trace, window) for name in names]
        return [answer.result() for answer in answers]


@cache
def _find(name: str) -> Analysis:
    """Return an analysis: from the module of its name, so that the others need not be loaded, or from any."""
    own = f"{__name__}.{name}"
    if name.isidentifier() and not name.startswith("_") and find_spec(own) is not None:
        with suppress(Exception):  # why it cannot be loaded is found out below
            found: Analysis | None = getattr(import_module(own), "ANALYSIS", None)
            if found is not None and found.name == name:
                return found
    try:
        return available()[name]
    except KeyError:
        raise UsageProblem(f"no analysis {name!r}", f"there are {', '.join(available())}") from None
