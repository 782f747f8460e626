"""Reports of the analyses, by window, computed in the order in which they are viewed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl

from tuiprof import analyses
from tuiprof.model.intervals import Window
from tuiprof.model.report import Column, Report, Table, Unavailable, Verdict
from tuiprof.model.trace import Trace

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
        """Return which analysis to run next: the open one, the advice, then in order; None = all done."""
        missing = [name for name in self.names if (name, window) not in self._answers]
        return next((name for name in (first, "advice") if name in missing), next(iter(missing), None))

    def work_out(self, name: str, window: Window) -> Answer:
        """Run an analysis, keep its answer and return it."""
        answer: Answer
        if name == EVENTS:
            # As large as the trace itself: kept for one window only.
            self._answers = {key: kept for key, kept in self._answers.items() if key[0] != EVENTS}
            answer = analyses.attempt(name, lambda: events_report(self.trace, window))
        else:
            answer = analyses.run(name, self.trace, window)
        self._answers[name, window] = answer
        return answer


#: Name of the tab that shows them.
EVENTS: Final = "events"

_COLUMNS: Final = (
    Column("start_ns", "start", "ns", "Time since the start of the trace"),
    Column("dur_ns", "duration", "ns", "Length of the event"),
    Column("category", "category"),
    Column("name", "name"),
    Column("step", "step", "count", "Step of the host call that made it"),
    Column("track", "track"),
    Column("bytes", "bytes", "bytes", "Bytes moved or filled"),
    Column("event", "event", "count", "Row in the table of events", hidden=True),
)


def events_report(trace: Trace, window: Window) -> Report:
    """Return a report with only the events."""
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
        c for c in _COLUMNS if frame[c.key].null_count() < len(frame) or c.key in ("start_ns", "event")
    )
    return Report(
        EVENTS,
        "Events",
        Verdict("", "info"),
        tables=(Table("events", "Events", present, frame, empty="no event overlaps this window"),),
        window=window,
    )
