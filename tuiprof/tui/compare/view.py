"""Content of the compare screen: rows and tabs as pure functions of two runs and their report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from tuiprof.advice.proof import KEY as PROOF
from tuiprof.analyses.compare import IN_NEITHER, UNCAPTURED
from tuiprof.analyses.shared.changes import STEP_PAIR
from tuiprof.comparison.sides import CHANGED, Side
from tuiprof.model.intervals import Ints
from tuiprof.model.report import Report
from tuiprof.model.trace import Trace
from tuiprof.model.units import format_ns, format_speed
from tuiprof.report.sanitize import clip, sanitize
from tuiprof.tui.timeline.lanes import Lanes
from tuiprof.tui.timeline.view import short_name
from tuiprof.tui.widgets.bars import Tab
from tuiprof.tui.widgets.lines import Row, fit
from tuiprof.tui.widgets.spans import labelled, wrap

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
    """Two runs and what changed between them."""

    before: Side  # the baseline
    after: Side
    report: Report  # of the changes
    lanes: tuple[Lanes, Lanes] | None  # of both traces; None = not both runs have a trace


def tabs_of(report: Report) -> list[Tab]:
    """Return a tab for each table, except the step times, which are a chart, and those of what is in neither trace."""
    tables = [
        table
        for table in report.tables
        if table.key != STEP_PAIR and (len(table.rows) or table.empty != IN_NEITHER)
    ]
    return [
        Tab(
            table.key,
            _TITLES.get(table.key, sanitize(table.title)),
            "" if len(table.rows) else "–",
            key=str(number) if number < 10 else "",
        )
        for number, table in enumerate(tables, 1)
    ]


def why_rows(report: Report, width: int, lines: int) -> list[Row]:
    """Return a summary of the differences between the traces in at most ``lines`` rows; empty = there are none."""
    said = (
        (f"{fact.label} " if fact.key == UNCAPTURED else "") + str(fact.value)
        for fact in report.facts
        if fact.key in (UNCAPTURED, CHANGED) and fact.value
    )
    text = sanitize(" · ".join(said))
    return labelled(" in the traces ", wrap(text, max(width - 16, 8), lines)) if text else []


def head_row(before: str, after: str, width: int) -> Row:
    """Return the names of both runs, which are untrusted; long ones are cut at the start."""
    room = max((width - 22) // 2, 8)
    old, new = (clip(sanitize(name), room, "start") for name in (before, after))
    return fit([(" before ", "dim"), (old, "title"), ("   after ", "dim"), (new, "title")], width)


def matched_row(traces: tuple[Trace, Trace], events: tuple[int | None, int | None]) -> Row:
    """Return how the duration of one event changed; in one of the traces it may be missing (None)."""
    times = [
        None if event is None else trace.length(event) for trace, event in zip(traces, events, strict=True)
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
    """Return the row in another trace of the event that does the same work as ``row``; None = there is none.

    This is the event of the same name and category at the same position in the same step, counting from the first
    step of each trace. If the event is in no step or the other trace has no steps, each trace counts as one step.
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
    mine = _same_kind(trace, int(trace.name_codes[row]), category, step if stepped else None)
    theirs = _same_kind(other, code, category, step if stepped else None)
    position = int(np.searchsorted(mine, row))
    return int(theirs[position]) if position < len(theirs) else None


def _same_kind(trace: Trace, name: int, category: int, step: int | None) -> Ints:
    """Return the rows of all events with these codes of name and category, in order of start; None = of any step."""
    found = (trace.name_codes == name) & (trace.category_codes == category)
    if step is not None:
        found &= trace.steps.step_of == step
    return np.flatnonzero(found).astype(np.int64)


def shift_between(before: Trace, after: Trace) -> int:
    """Return the ns to add to a time in ``before`` to get the corresponding time in ``after``.

    This aligns the starts of the first steps; a trace without steps is aligned at its own start.
    """

    def start(trace: Trace) -> int:
        return int(trace.steps.starts[0]) if len(trace.steps) else trace.span[0]

    return start(after) - start(before)
