"""All events of a window as a table like any other: what every figure rests on."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tuiprof.model.intervals import Window
from tuiprof.model.report import Column, Report, Table, Verdict
from tuiprof.model.trace import Trace

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
