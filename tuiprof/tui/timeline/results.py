"""Reports of the analyses, by window, computed in the order in which they are viewed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tuiprof import analyses
from tuiprof.model.intervals import Window
from tuiprof.model.report import Report, Unavailable
from tuiprof.model.trace import Trace
from tuiprof.tui.timeline.events_table import EVENTS, events_report

Answer = Report | Unavailable


class Results:
    """Reports of all analyses of one trace, kept for every requested window.

    Written by one worker thread and read by the screen: a report is either complete or absent.

    Args:
        trace: The trace.
        names: The analyses, in tab order; the table of events comes after them.
    """

    def __init__(self, trace: Trace, names: Sequence[str]) -> None:
        self.trace = trace
        self.names = (*names, EVENTS)
        self._answers: dict[tuple[str, Window], Answer] = {}

    def get(self, name: str, window: Window) -> Answer | None:
        """Return a report; None while it is not computed."""
        return self._answers.get((name, window))

    def reports(self, window: Window) -> list[Report]:
        """Return the reports there are, in tab order."""
        return [answer for answer in self.answers(window) if isinstance(answer, Report)]

    def answers(self, window: Window) -> list[Answer]:
        """Return every answer there is, in tab order; the table of events is none."""
        found = (self.get(name, window) for name in self.names if name != EVENTS)
        return [answer for answer in found if answer is not None]

    def pending(self, window: Window) -> bool:
        """Return whether an analysis has still to answer; the table of events is none."""
        return len(self.answers(window)) < len(self.names) - 1

    def straggler(self, window: Window) -> int | None:
        """Return the rank that delays the others; None = none, or not computed yet."""
        answer = self.get("ranks", window) or self.get("ranks", Window())
        rank = answer.fact("straggler") if isinstance(answer, Report) else None
        return rank if isinstance(rank, int) else None

    def next_wanted(self, first: str, window: Window) -> str | None:
        """Return which analysis to run next: the one looked at, the advice, then in order; None = all done."""
        missing = [name for name in self.names if (name, window) not in self._answers]
        return next((name for name in (first, "advice") if name in missing), next(iter(missing), None))

    def work_out(self, name: str, window: Window) -> Answer:
        """Run an analysis and keep its answer.

        Returns:
            Its answer.
        """
        answer: Answer
        if name == EVENTS:
            # As large as the trace itself: kept for one window only.
            self._answers = {key: kept for key, kept in self._answers.items() if key[0] != EVENTS}
            answer = analyses.attempt(name, lambda: events_report(self.trace, window))
        else:
            answer = analyses.run(name, self.trace, window)
        self._answers[name, window] = answer
        return answer


def later_by(part: Trace, trace: Trace) -> int:
    """Return by how many ns the events of a part of a file lie later in a longer part of the same file.

    A trace counts time from its first event, which need not be in the part of the file that was read first.
    """
    row = row_in(part, trace, 0) if len(part) else None
    return int(trace.starts[row] - part.starts[0]) if row is not None else 0


def row_in(part: Trace, trace: Trace, row: int) -> int | None:
    """Return which row an event of a part of a file is in more of the same file.

    Returns:
        Its row there; None = it is not there.
    """
    found = np.flatnonzero(trace.events["ordinal"].to_numpy() == part.events["ordinal"][row])
    return int(found[0]) if len(found) else None


def moved(window: Window, by: int) -> Window:
    """Return a window moved in time."""
    return replace(
        window,
        start_ns=None if window.start_ns is None else window.start_ns + by,
        end_ns=None if window.end_ns is None else window.end_ns + by,
    )
