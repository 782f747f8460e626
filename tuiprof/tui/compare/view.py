"""Content of a comparison. Pure: two sides and their report in, rows and tabs out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from tuiprof.advice.proof import KEY as PROOF
from tuiprof.analyses.shared.changes import STEP_PAIR
from tuiprof.comparison.sides import CHANGED, Side
from tuiprof.model.intervals import Ints
from tuiprof.model.report import Report
from tuiprof.model.trace import Trace
from tuiprof.model.units import format_ns, format_speed
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.timeline.lanes import Lanes
from tuiprof.tui.timeline.view import short_name
from tuiprof.tui.widgets.bars import Tab
from tuiprof.tui.widgets.lines import Row, fit
from tuiprof.tui.widgets.spans import wrap

_TITLES: Final = {
    PROOF: "Predictions",
    "recorded": "Runs",
    "metrics": "Figures",
    "kernels": "Kernels",
    "operators": "Operators",
    "launches": "Launches",
    "syncs": "Syncs",
    "script": "Script",
    "setup": "Setup",
}


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Everything that the screen shows."""

    before: Side  # the baseline
    after: Side  # what is judged
    report: Report  # what changed
    lanes: tuple[Lanes, Lanes] | None  # lanes of both traces; None = not both have one


def tabs_of(report: Report) -> list[Tab]:
    """Return a tab for each table that is listed; step times are drawn instead."""
    return [
        Tab(
            table.key,
            _TITLES.get(table.key, sanitize(table.title)),
            "" if len(table.rows) else "–",
            key=str(number) if number < 10 else "",
        )
        for number, table in enumerate((table for table in report.tables if table.key != STEP_PAIR), 1)
    ]


def why_rows(report: Report, width: int, lines: int) -> list[Row]:
    """Return the differences between the traces in the given number of lines; no rows if there are none."""
    text = next((fact.value for fact in report.facts if fact.key == CHANGED), None)
    if not text:
        return []
    return [
        [(" in the traces " if index == 0 else " " * 15, "dim"), (line, "text")]
        for index, line in enumerate(wrap(sanitize(str(text)), max(width - 16, 8), lines))
    ]


def head_row(before: str, after: str, width: int) -> Row:
    """Return which two are compared; of a long name the end is kept. Both names are untrusted."""
    room = max((width - 22) // 2, 8)
    names = [sanitize(name) for name in (before, after)]
    old, new = (name if len(name) <= room else "…" + name[-room + 1 :] for name in names)
    return fit([(" before ", "dim"), (old, "title"), ("   after ", "dim"), (new, "title")], width)


def matched_row(traces: tuple[Trace, Trace], events: tuple[int | None, int | None]) -> Row:
    """Return how one event changed: its row in both traces, of which one may be None = it is not there."""
    times = [
        None if event is None else int(trace.ends[event] - trace.starts[event])
        for trace, event in zip(traces, events, strict=True)
    ]
    name = next(
        short_name(trace.name(event))
        for trace, event in zip(traces, events, strict=True)
        if event is not None
    )
    old, new = times
    if old is None or new is None:
        side = "before" if old is None else "after"
        return [(f" {name}", "strong"), (f"  has no counterpart {side} in this step", "warn")]
    change = format_speed(new / old) if old else ""
    role = "good" if new < old else "bad" if new > old else "dim"
    return [
        (f" {name}", "strong"),
        (f"  {format_ns(old)} before → {format_ns(new)} after  ", "text"),
        (change, role),
        ("  aligned on this event; esc aligns the first steps again", "dim"),
    ]


def counterpart(trace: Trace, row: int, other: Trace) -> int | None:
    """Return the row of the event in another trace that does the same work.

    Steps are counted from the first that each trace holds. Where an event is in no step, or a trace has none, the
    whole trace is taken for one step.

    Returns:
        Its row there; None = there is none so far into that step.
    """
    name = trace.name(row)
    try:
        code = other.names.index(name)
    except ValueError:
        return None
    category = int(trace.category_codes[row])
    step = int(trace.steps.step_of[row])
    stepped = step >= 0 and len(other.steps) > 0
    if stepped and step >= len(other.steps):
        return None
    mine = _alike(trace, int(trace.name_codes[row]), category, step if stepped else None)
    theirs = _alike(other, code, category, step if stepped else None)
    position = int(np.searchsorted(mine, row))
    return int(theirs[position]) if position < len(theirs) else None


def _alike(trace: Trace, name: int, category: int, step: int | None) -> Ints:
    """Return the rows of events of one name and category, in order of start."""
    alike = (trace.name_codes == name) & (trace.category_codes == category)
    if step is not None:
        alike &= trace.steps.step_of == step
    return np.flatnonzero(alike).astype(np.int64)


def shift_between(before: Trace, after: Trace) -> int:
    """Return by how many ns an instant of the second trace is later than the same moment of the first.

    The begins of their first steps are the same moment; without steps the begins of the traces are.
    """

    def begin(trace: Trace) -> int:
        return int(trace.steps.starts[0]) if len(trace.steps) else trace.span[0]

    return begin(after) - begin(before)
