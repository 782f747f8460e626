"""Charts of a comparison: step times of both runs on one scale, and a digest of the largest changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from tuiprof.model.intervals import Ints
from tuiprof.model.report import Report, Table
from tuiprof.model.units import format_change, format_count, format_ns
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.widgets.lines import Lines, Row
from tuiprof.tui.widgets.spans import fit_text

#: Cells for the label on the left and the median on the right.
_LABEL_WIDTH, _MEDIAN_WIDTH = 9, 22
#: Maximum width of a bar in cells, including its edge.
_MAX_BAR: Final = 6
#: Minimum width of the screen for charts side by side.
_SIDE_BY_SIDE: Final = 180
#: The scale ends at this percentile of all step times; longer steps are drawn at full height.
_SCALE_PERCENTILE: Final = 98.0
#: Cells for a change, and for a value before or after.
_CHANGE_WIDTH, _VALUE_WIDTH = 10, 9
#: Minimum width in cells to draw bars of phases.
_MIN_BARS: Final = 10
#: Smaller relative changes count as noise.
_NOISE: Final = 0.01


class StepPair(Lines):
    """Bar charts of the step times of both runs, side by side if there is room, else one above the other.

    Bars of both charts cover the same number of steps; their height is the median.
    """

    DEFAULT_CSS = "StepPair { height: 2; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._series: tuple[Ints, ...] = ()
        self._source = ""

    def show(self, before: Ints, after: Ints, source: str) -> None:
        """Show step times in ns, and where they were measured (``source``)."""
        self._series, self._source = (before, after), source
        self.redraw()

    def draw(self, width: int, height: int) -> list[Row]:
        if not self._series:
            return []
        times = [series for series in self._series if len(series)]
        if not times:
            return [[(" step times: neither run marks steps", "dim")]]
        high = max(float(np.percentile(np.concatenate(times), _SCALE_PERCENTILE)), 1.0)
        beside = width >= _SIDE_BY_SIDE
        columns = max((width // 2 if beside else width) - _LABEL_WIDTH - _MEDIAN_WIDTH, 1)
        longest = max(map(len, self._series))
        lines = max(min(height - 1 if beside else height // 2, 6 if beside else 4), 1)
        drawn = [
            _step_bars(label, series, columns, longest, high, lines)
            for label, series in zip(("before", "after"), self._series, strict=True)
        ]
        text = f"scale 0 to {format_ns(high)} · steps 1 to {format_count(longest)} · {self._source}"
        scale: Row = [(" " * _LABEL_WIDTH, "text"), (text, "dim")]
        if beside:
            rows = [[*left, *right] for left, right in zip(*drawn, strict=True)]
            return [*rows, scale] if height > len(rows) else rows
        # The scale separates the bars of the two charts.
        first, second = drawn
        return [*first, scale, *second] if height > 2 * lines else [*first, *second]


def _step_bars(label: str, times: Ints, columns: int, longest: int, high: float, lines: int) -> list[Row]:
    role = "history" if label == "before" else "line"
    head = f" {label}".ljust(_LABEL_WIDTH)
    if not len(times):
        blank = " " * (columns + _MEDIAN_WIDTH - len("no step times"))
        empty: Row = [(" " * (_LABEL_WIDTH + columns + _MEDIAN_WIDTH), "text")]
        return [*([empty] * (lines - 1)), [(head, "dim"), ("no step times" + blank, "dim")]]
    median = f"  {format_ns(float(np.median(times)))} median"
    heights = column_heights(times, columns, longest, high, lines * 8)
    cells = _bar_of_cell(len(heights), columns)
    drawn: list[Row] = []
    for line in range(lines):
        floor = (lines - 1 - line) * 8
        signs = [glyphs.EIGHTHS_UP[max(0, min(8, h - floor))] for h in heights.tolist()]
        bars = "".join(" " if at is None else signs[at] for at in cells).ljust(columns)
        last = line == lines - 1
        drawn.append(
            [
                (head if last else " " * _LABEL_WIDTH, "dim"),
                (bars, role),
                ((median if last else "").ljust(_MEDIAN_WIDTH), "strong"),
            ]
        )
    return drawn


def _bar_of_cell(bars: int, columns: int) -> list[int | None]:
    """Return the index of the bar in each cell; None = a gap, which only wide bars have between them."""
    room = min(columns, bars * _MAX_BAR)
    at = [cell * bars // room for cell in range(room)]
    if room < 3 * bars:
        return list(at)
    return [bar if cell + 1 < room and at[cell + 1] == bar else None for cell, bar in enumerate(at)]


def column_heights(times: Ints, columns: int, longest: int, high: float, levels: int) -> Ints:
    """Return the height of each bar, 1 to ``levels`` for medians up to ``high``; 0 for a bar without steps."""
    columns = min(columns, longest)
    edges = np.linspace(0, longest, columns + 1).round().astype(np.int64)
    out = np.zeros(columns, dtype=np.int64)
    for column, (start, end) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        some = times[start:end]
        if len(some):
            out[column] = max(round(min(float(np.median(some)) / high, 1.0) * levels), 1)
    return out


@dataclass(frozen=True, slots=True)
class _PhaseChange:
    """Mean host time per step in one phase, ns."""

    name: str  # as in the script; sanitized
    before: float
    after: float

    @property
    def change(self) -> float:
        return self.after - self.before

    @property
    def within_noise(self) -> bool:
        return abs(self.change) <= _NOISE * max(self.before, self.after)


class ChangeDigest(Lines):
    """Shows the first rows of every table of a comparison except the one shown beside it."""

    DEFAULT_CSS = "ChangeDigest { height: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._phases: list[_PhaseChange] = []
        self._sections: list[tuple[str, list[Row]]] = []

    def show(self, report: Report, titles: Sequence[tuple[str, str]], current: str) -> None:
        """Show the tables of ``titles`` (key and title of each) except ``current``."""
        self._phases = _phase_changes(report)
        self._sections = [
            (f"{number} {title}", rows)
            for number, (key, title) in enumerate(titles, 1)
            if key != current and (rows := _first_rows(report.table(key)))
        ]
        self.redraw()

    def draw(self, width: int, height: int) -> list[Row]:
        out: list[Row] = []
        if self._phases and len(self._phases) < height:
            out = [[(" by phase, mean host time per step", "title")], *self._bars(width)]
        room = height - len(out)
        sections = self._sections[: max(room // 3, 0)]
        shown = _share(
            [len(rows) for _, rows in sections], room - len(sections) - max(len(sections) - 1, 0) - bool(out)
        )
        for (title, rows), number in zip(sections, shown, strict=True):
            if out:
                out.append([])
            out += [[(f" {title}", "title")], *rows[:number]]
        return out

    def _bars(self, width: int) -> list[Row]:
        names = max(min(max(len(phase.name) for phase in self._phases), 20), 9)
        room = width - names - _CHANGE_WIDTH - 2 * _VALUE_WIDTH - 8
        up = max(0.0, *(phase.change for phase in self._phases))
        down = max(0.0, *(-phase.change for phase in self._phases))
        left = round(room * down / (up + down)) if up + down else 0
        rows: list[Row] = []
        for phase in self._phases:
            role = "dim" if phase.within_noise else _role(phase.change)
            row: Row = [
                (f" {fit_text(phase.name, names)} ", "text"),
                (format_change(phase.change, "ns").rjust(_CHANGE_WIDTH), role),
                (
                    f"{format_ns(phase.before):>{_VALUE_WIDTH}} → {format_ns(phase.after):<{_VALUE_WIDTH}}",
                    "dim",
                ),
            ]
            if room >= _MIN_BARS and up + down:
                cells = round(abs(phase.change) / (up + down) * room)
                bar = glyphs.BAR * cells
                row += (
                    [(bar.rjust(left), role), (glyphs.AXIS, "rule")]
                    if phase.change < 0
                    else [(" " * left, "text"), (glyphs.AXIS, "rule"), (bar, role)]
                )
            rows.append(row)
        return rows


def _phase_changes(report: Report) -> list[_PhaseChange]:
    """Return the phases of both runs, in execution order, unchanged ones last."""
    table = next((table for table in report.tables if table.key == "recorded"), None)
    if table is None:
        return []
    found = [
        _PhaseChange(sanitize(row["metric"].partition(",")[0]), row["before_value"], row["after_value"])
        for row in table.rows.iter_rows(named=True)
        if row["key"].startswith("phase_") and None not in (row["before_value"], row["after_value"])
    ]
    return sorted(found, key=lambda phase: phase.within_noise)


def _first_rows(table: Table) -> list[Row]:
    """Return change, values before and after, and name of a table's first rows; empty = it is not ranked by change."""
    if table.key == "script":
        lines = table.rows.filter(pl.col("change").is_in(["-", "+"])).head(40)
        return [
            [(f" {sign} ".rjust(_CHANGE_WIDTH + 1), "title"), (sanitize(text), "text")]
            for sign, text in lines.select("change", "text").iter_rows()
        ]
    if table.key != "metrics" and "change_ns" not in table.rows.columns:
        return []
    rows: list[Row] = []
    for row in table.rows.head(40).iter_rows(named=True):
        if table.key == "metrics":
            before, after = row["before_value"], row["after_value"]
            if None in (before, after) or abs(after - before) <= _NOISE * max(abs(before), abs(after)):
                continue
            values, change, name = (row["before"], row["after"]), row["change"], row["metric"]
        else:
            values = (format_ns(row["before_ns"]), format_ns(row["after_ns"]))
            change = format_change(row["change_ns"], "ns")
            name = row.get("where") or row.get("short") or row["name"]
        role = "text" if table.key == "metrics" else "dim" if row["within_noise"] else _role(row["change_ns"])
        rows.append(
            [
                (change.rjust(_CHANGE_WIDTH + 1), role),
                (f"{values[0]:>{_VALUE_WIDTH}} → {values[1]:<{_VALUE_WIDTH}}", "dim"),
                (f"  {sanitize(str(name))}", "text"),
            ]
        )
    return rows


def _share(wanted: list[int], room: int) -> list[int]:
    """Distribute lines in turn until there are none left or no section wants more."""
    given = [0] * len(wanted)
    while room > 0 and given != wanted:
        for index, most in enumerate(wanted):
            if room > 0 and given[index] < most:
                given[index] += 1
                room -= 1
    return given


def _role(change: float) -> str:
    return "bad" if change > 0 else "good" if change < 0 else "dim"
