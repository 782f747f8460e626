"""A trace view whose file is still being read: what was read shows, and is replaced once there is more."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from textual.message import Message
from textual.worker import get_current_worker

from tuiprof import analyses
from tuiprof.analyses.shared.replay import trust
from tuiprof.analyses.shared.step_times import step_period_ns
from tuiprof.errors import TuiprofError
from tuiprof.model.report import Report
from tuiprof.model.trace import Trace
from tuiprof.model.trust import Trust
from tuiprof.model.window import Window
from tuiprof.tui.opening.captures import Captures
from tuiprof.tui.opening.loading import Progress
from tuiprof.tui.timeline import lane_sketch
from tuiprof.tui.timeline import lanes as lane_builder
from tuiprof.tui.timeline.lanes import Lanes
from tuiprof.tui.timeline.marks import Search
from tuiprof.tui.timeline.navigation import TraceTime
from tuiprof.tui.timeline.results import Results, later_by, moved
from tuiprof.tui.trace.trust import Reading, TraceHead

#: Up to so many events everything the first picture needs is worked out before it; of larger traces, part by part.
_AT_ONCE = 300_000


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """What the screen needs of a trace before it can show it.

    Attributes:
        results: Answers on it, the first of them worked out.
        lanes: Its lanes.
        trust: Its trust line.
    """

    results: Results
    lanes: Lanes
    trust: Trust


def survey(trace: Trace, first: str | None = None, window: Window | None = None) -> Survey:
    """Work out what the first picture of a trace shows; takes a worker.

    Args:
        trace: The trace.
        first: Name of the tab that is open; None = the first.
        window: The part that the analyses look at; None = all of it.
    """
    results = Results(trace, list(analyses.available()))
    lanes = lane_builder.build(trace)
    step_period_ns(trace)  # remembered, for the head
    results.work_out(first or results.names[0], window or Window())
    return Survey(results, lanes, trust(trace))


def survey_if_small(trace: Trace) -> Survey | None:
    """Work out the first picture where that takes no longer than to show it bit by bit; None = it does, or it fails.

    Args:
        trace: The trace.
    """
    if len(trace) > min(_AT_ONCE, lane_sketch.WORTH_IT - 1):
        return None
    try:
        return survey(trace)
    except Exception:  # noqa: BLE001 - bit by bit, what can be shown is shown and what is wrong is told
        return None


class TracePart(TraceTime):
    """The part of a trace view that takes more of the file as it is read.

    Args:
        trace: The trace.
        part: How far in its file the trace reaches; None = it is whole.
        step: Number of the step to look at first; None = the whole trace.

    Attributes:
        results: The answers on the trace.
        current: Name of the tab that is open.
        captures: The traces it belongs with; None while they are looked for.
    """

    results: Results
    current: str

    class Sketched(Message):
        """The timeline of a large trace can be sketched.

        Attributes:
            lanes: Lanes of a sample of its events.
        """

        def __init__(self, lanes: Lanes) -> None:
            super().__init__()
            self.lanes = lanes

    class Surveyed(Message):
        """A trace can be shown.

        Attributes:
            survey: What there is to show of it.
            part: How far in its file it reaches; None = it is whole.
            search: What was searched for in the trace before, looked up in this one.
        """

        def __init__(self, survey: Survey, part: Progress | None, search: Search | None = None) -> None:
            super().__init__()
            self.survey = survey
            self.part = part
            self.search = search

    def __init__(self, trace: Trace, part: Progress | None = None, step: int | None = None) -> None:
        super().__init__()
        self.trace = trace
        self.part = part
        self._step = step
        self.window = Window()
        self.captures: Captures | None = None
        self._trust: Trust | None = None
        self._reached = part
        self._failed = False

    def _run(self, work: Callable[[], None], group: str) -> None:
        self.run_worker(work, thread=True, exclusive=True, group=group, exit_on_error=False)

    def take(self, trace: Trace, part: Progress | None) -> None:
        """Show more of the file, or all of it, once what is on the screen is worked out for it.

        Args:
            trace: What was read.
            part: How far in the file that is; None = all of it.
        """
        search = self.timeline.search
        needle = search.needle if search is not None else ""
        self._run(partial(self._replace, trace, part, self.window, needle), "replace")

    def stand_among(self, captures: Captures) -> None:
        """Say which other traces there are.

        Args:
            captures: They and this one.
        """
        self.captures = captures
        self._show_head()

    def straggler(self) -> int | None:
        """Return the rank that holds up the others; None = none does, or it is not worked out."""
        answer = self.results.get("ranks", self.window) or self.results.get("ranks", Window())
        rank = answer.fact("straggler") if isinstance(answer, Report) else None
        return rank if isinstance(rank, int) else None

    def advance(self, progress: Progress) -> None:
        """Say how far the reading is.

        Args:
            progress: How far.
        """
        if self.part is not None:
            self._reached = progress
            self._show_head()

    def fail(self, error: TuiprofError) -> None:
        """Say that the rest cannot be read; what was read stays.

        Args:
            error: Why.
        """
        self._failed = True
        self._show_head()
        self.notify(
            str(error),
            title="the rest cannot be read",
            severity="error",
            timeout=15,
        )

    def _replace(self, trace: Trace, part: Progress | None, window: Window, needle: str) -> None:
        """In a thread: work out for another trace what is on the screen."""
        worker = get_current_worker()
        found = survey(trace, self.current, moved(window, later_by(self.trace, trace)))
        search = Search.of(found.lanes, needle) if needle else None
        if not worker.is_cancelled:
            self.post_message(self.Surveyed(found, part, search))

    def show_lanes(self, lanes: Lanes, by: int = 0, search: Search | None = None) -> None:
        """Show the timeline of more of the trace; what was searched for before stays searched for.

        Args:
            lanes: Its lanes.
            by: ns by which what shows stands later in it.
            search: The search, where it was looked up in these lanes already.
        """
        before = self.timeline.search
        self.timeline.replace(lanes, by)
        if before is None:
            return
        if search is not None and search.needle == before.needle:
            self.timeline.search = search
        else:
            self.search_for(lanes, before.needle, go=False)

    def _show_head(self) -> None:
        reading = None
        if self.part is not None:
            reached = self.part if self._failed or self._reached is None else self._reached
            reading = Reading(self.part.share, reached.share, self._failed)
        place = self.captures.place(self.trace.info.world_size) if self.captures is not None else ""
        self.query_one(TraceHead).show(self.trace, self._trust, reading, place)

    @abstractmethod
    def set_window(self, window: Window) -> None:
        """Look at a part of the trace in all analyses.

        Args:
            window: The part.
        """

    def action_window(self) -> None:
        """Make the selection the window of all analyses; without one the step at the cursor, or all again."""
        if (chosen := self.timeline.chosen_range) is not None:
            low, high = chosen
            self.timeline.select(None)
            self.timeline.mark = None
            self.set_window(Window(low, high))
        elif not self.window.whole:
            self.set_window(Window())
        elif (index := self._step_at_cursor()) is not None:
            self.set_window(self.trace.steps.window(index))
        else:
            self.notify("select with shift+← → or by dragging, or put the cursor into a step", timeout=4)

    def _look_at_step(self) -> None:
        """Look at the step that was asked for, once it is known."""
        if self._step is None or self.timeline.lanes is None:
            return
        steps = self.trace.steps
        found = [index for index, number in enumerate(steps.numbers) if int(number) == self._step]
        if found:
            window = steps.window(found[0])
            self.set_window(window)
            low, high = self.trace.bounds(window)
            self.timeline.go_to(low)
            self.timeline.fit(low, high)
        elif self.part is None:
            self.notify(f"this trace does not hold step {self._step}", severity="warning", timeout=6)
        else:
            return  # it may stand in what is still to be read
        self._step = None
