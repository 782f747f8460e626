"""Computes the content of a trace view in threads, visible parts first, and caches it for each window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import polars as pl
from textual.message import Message
from textual.widget import Widget
from textual.worker import get_current_worker

from tuiprof import advice, analyses
from tuiprof.analyses.shared.replay import replayed, trust
from tuiprof.analyses.shared.scope import step_period_ns
from tuiprof.model.intervals import Window
from tuiprof.model.report import Column, Report, Table, Unavailable, Verdict
from tuiprof.model.trace import Trace
from tuiprof.model.trust import Trust
from tuiprof.tui.answers.view import EVENTS, Answer
from tuiprof.tui.opening.loading import Progress
from tuiprof.tui.timeline import lanes as lane_builder
from tuiprof.tui.timeline.lanes import Lanes
from tuiprof.tui.timeline.state import Search, later_by, moved
from tuiprof.whatif.replay import Losses

#: Up to this many events, the content of the first frame is computed before it is shown; else, it appears in parts.
_MAX_EVENTS_AT_ONCE = 300_000
_EVENT_COLUMNS: Final = (
    Column("start_ns", "start", "ns", "Time since the start of the trace"),
    Column("dur_ns", "duration", "ns", "Length of the event"),
    Column("category", "category"),
    Column("name", "name"),
    Column("step", "step", "count", "Step of the event or, for device work, of its launch"),
    Column("track", "track"),
    Column("bytes", "bytes", "bytes", "Bytes moved or filled"),
    Column("event", "event", "count", "Row of the trace", hidden=True),
)


class Results:
    """Results of all analyses of a trace, by window. One worker thread writes them, the screen reads them.

    Names are those of the analyses in tab order, before the table of events; None = all.
    """

    def __init__(self, trace: Trace, names: Sequence[str] | None = None) -> None:
        self.trace = trace
        self.names: tuple[str, ...] = (*(analyses.available() if names is None else names), EVENTS)
        self._answers: dict[tuple[str, Window], Answer] = {}

    def get(self, name: str, window: Window) -> Answer | None:
        """Return the result of an analysis; None = not computed yet."""
        return self._answers.get((name, window))

    def reports(self, window: Window) -> list[Report]:
        """Return the reports computed so far, in tab order."""
        return [answer for answer in self.answers(window) if isinstance(answer, Report)]

    def answers(self, window: Window) -> list[Answer]:
        """Return the results computed so far, in tab order, without the table of events."""
        found = (self.get(name, window) for name in self.names if name != EVENTS)
        return [answer for answer in found if answer is not None]

    def pending(self, window: Window) -> bool:
        """Return whether the result of an analysis is missing."""
        return len(self.answers(window)) < len(self.names) - 1

    def straggler(self, window: Window) -> int | None:
        """Return the rank that delays the others; None = no such rank, or not computed yet."""
        answer = self.get("ranks", window) or self.get("ranks", Window())
        rank = answer.fact("straggler") if isinstance(answer, Report) else None
        return rank if isinstance(rank, int) else None

    def next_wanted(self, first: str, window: Window) -> str | None:
        """Return the analysis to run next: ``first``, the advice, then in tab order; None = all are done."""
        missing = [name for name in self.names if (name, window) not in self._answers]
        return next((name for name in (first, "advice") if name in missing), next(iter(missing), None))

    def compute(self, name: str, window: Window) -> Answer:
        """Run an analysis, store its result and return it."""
        answer: Answer
        if name == EVENTS:
            # It is as large as the trace itself, so keep it for one window only.
            self._answers = {key: kept for key, kept in self._answers.items() if key[0] != EVENTS}
            answer = analyses.attempt(name, lambda: events_report(self.trace, window))
        else:
            answer = analyses.run(name, self.trace, window)
        self._answers[name, window] = answer
        return answer


def events_report(trace: Trace, window: Window) -> Report:
    """Return all events of a window as a table."""
    rows = np.flatnonzero(trace.in_window(window))
    whole = len(rows) == len(trace)
    events = trace.events if whole else trace.events[rows]
    step_of = trace.steps.step_of[rows]
    numbers = np.append(trace.steps.numbers, -1)[step_of]
    names = pl.Series([track.name.strip() for track in trace.tracks], dtype=pl.String)
    track = names.gather(events["track"]).cast(pl.Enum(names.unique(maintain_order=True)))
    frame = pl.DataFrame(
        {
            "start_ns": trace.starts[rows] - trace.span[0],
            "dur_ns": events["dur"],
            "category": events["category"],
            "name": events["name"],
            "step": pl.Series(numbers).set(pl.Series(step_of < 0), None),
            "track": track,
            "bytes": events["bytes"],
            "event": rows,
        }
    )
    present = tuple(
        c for c in _EVENT_COLUMNS if frame[c.key].null_count() < len(frame) or c.key in ("start_ns", "event")
    )
    return Report(
        EVENTS,
        "Events",
        Verdict("", "info"),
        tables=(Table("events", "Events", present, frame, empty="no event overlaps this window"),),
        window=window,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """Content of the first frame of a trace."""

    results: Results
    lanes: Lanes
    trust: Trust


def survey(trace: Trace, first: str | None = None, window: Window | None = None) -> Survey:
    """Compute the content of the first frame, with the tab ``first`` if it is given; call it in a worker."""
    results = Results(trace)
    lanes = lane_builder.build(trace)
    step_period_ns(trace)  # fills the cache, for the head
    window = window or Window()
    for name in [first] if first else results.names:
        if not isinstance(results.compute(name, window), Unavailable):
            break
    return Survey(results, lanes, trust(trace))


def survey_if_small(trace: Trace) -> Survey | None:
    """Compute the content of the first frame of a small trace; None = the trace is large, or an error."""
    if len(trace) > min(_MAX_EVENTS_AT_ONCE, lane_builder.SKETCH_FROM - 1):
        return None
    try:
        return survey(trace)
    except Exception:  # noqa: BLE001 - the view computes the parts separately, and shows the error
        return None


class TraceWork:
    """The results of a trace view and the workers that compute them; posts messages to the view."""

    @dataclass(eq=False)
    class Sketched(Message):
        """The sketch of a large trace is ready."""

        lanes: Lanes

    @dataclass(eq=False)
    class Surveyed(Message):
        """The content of the first frame is ready, of a trace or of a larger part of the file."""

        survey: Survey
        part: Progress | None  # the part of the file it covers; None = the whole file
        search: Search | None = None  # the search in the previous trace, repeated in this one

    @dataclass(eq=False)
    class Answered(Message):
        """The result of an analysis is ready."""

        window: Window

    @dataclass(eq=False)
    class Trusted(Message):
        """The trust line of a large trace is complete."""

        trust: Trust

    @dataclass(eq=False)
    class Located(Message):
        """The time lost to a finding is known."""

        window: Window  # of the finding
        finding: int  # index
        losses: Losses | str  # a text = why the time is unknown

    @dataclass(eq=False)
    class Replayed(Message):
        """A step was simulated with the fix of a finding."""

        window: Window  # of the finding
        finding: int  # index
        lanes: Lanes | str  # the step as it is and with the fix; a text = why it cannot be simulated

    def __init__(self, view: Widget, trace: Trace, part: Progress | None, found: Survey | None) -> None:
        self._view = view
        self.results = found.results if found is not None else Results(trace)
        self.current = self.results.names[0]  # the open tab, whose analysis runs first
        #: The part of the file that the trace covers; None = the whole file. For a part, only ``current`` is computed.
        self.part = part
        self.trust = found.trust if found is not None else None  # None = not computed yet
        #: Whether the trust line includes the simulation of the steps, which runs later for a large trace.
        self.trust_is_complete = found is not None
        self._other: Results | None = None  # results that :meth:`switch` returns to

    def _run(self, work: Callable[[], None], group: str) -> None:
        self._view.run_worker(work, thread=True, exclusive=True, group=group, exit_on_error=False)

    def _post_result(self, of: Callable[[], Message], group: str) -> None:
        """Post a message made in a thread, unless another of its group was requested in the meantime."""

        def work() -> None:
            worker, message = get_current_worker(), of()
            if not worker.is_cancelled:
                self._view.post_message(message)

        self._run(work, group)

    def start(self, window: Window) -> None:
        """Compute what is missing: the first frame, then the analyses of a window."""
        self._run(partial(self._work, window), "analyses")

    def replace(self, trace: Trace, part: Progress | None, window: Window, needle: str) -> None:
        """Compute the first frame of a larger part of the file, then post :class:`Surveyed`."""

        def surveyed() -> Message:
            found = survey(trace, self.current, moved(window, later_by(self.results.trace, trace)))
            return self.Surveyed(found, part, Search.of(found.lanes, needle) if needle else None)

        self._post_result(surveyed, "replace")

    def replay(self, window: Window, finding: int) -> None:
        """Simulate the step with the fix of a finding, then post :class:`Replayed`."""
        trace = self.results.trace

        def simulated() -> Message:
            step, edits = replayed(trace), advice.edits_of(trace, window, finding)
            if isinstance(step, str) or isinstance(edits, str):
                return self.Replayed(window, finding, str(edits))
            return self.Replayed(window, finding, lane_builder.build_replayed(trace, step, *edits))

        self._post_result(simulated, "replay")

    def locate(self, window: Window, finding: int) -> None:
        """Compute where the time of a finding is lost, then post :class:`Located`."""
        trace = self.results.trace
        self._post_result(
            lambda: self.Located(window, finding, advice.losses_of(trace, window, finding)), "losses"
        )

    def use(self, survey: Survey, part: Progress | None) -> None:
        """Replace the results by those of a new first frame."""
        self.results, self.trust, self.part = survey.results, survey.trust, part
        self._other = None

    @property
    def as_captured(self) -> bool:
        """Whether results are for steps as captured, not without the profiler."""
        return self.results.trace.as_captured

    def switch(self) -> None:
        """Switch between steps without the profiler and steps as captured."""
        other = self._other or Results(self.results.trace.captured())
        self.results, self._other = other, self.results

    def _work(self, window: Window) -> None:
        worker, results = get_current_worker(), self.results
        if self.trust is None:
            if len(results.trace) >= lane_builder.SKETCH_FROM:
                self._view.post_message(self.Sketched(lane_builder.sketch(results.trace)))
            found_trust = results.trace.trust
            step_period_ns(results.trace)  # fills the cache, for the head
            found = Survey(results, lane_builder.build(results.trace), found_trust)
            self._view.post_message(self.Surveyed(found, self.part))
        while not worker.is_cancelled:
            name = results.next_wanted(self.current, window)
            if name is None or (self.part is not None and name != self.current):
                return
            results.compute(name, window)
            self._view.post_message(self.Answered(window))
            if not self.trust_is_complete:
                self.trust_is_complete = True
                self._view.post_message(self.Trusted(trust(results.trace)))
