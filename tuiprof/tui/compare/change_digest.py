"""The largest changes, beside the table: their origin by phase, and the first rows of the other tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from tuiprof.model.report import Report, Table
from tuiprof.model.units import format_change, format_ns
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.widgets.lines import Lines, Row
from tuiprof.tui.widgets.rows import fit_text

#: Cells of a change and of a value before or after.
_CHANGE, _VALUE = 10, 9
#: Minimum number of cells for bars.
_LEAST_BAR: Final = 10
#: A figure that changed by less than this share is left out.
_SAME: Final = 0.01


@dataclass(frozen=True, slots=True)
class PhaseChange:
    """Mean host time a step of one phase.

    Attributes:
        name: What the script calls it; safe for a terminal.
        before: In the baseline, ns.
        after: In the other, ns.
    """

    name: str
    before: float
    after: float

    @property
    def change(self) -> float:
        """After minus before, ns."""
        return self.after - self.before

    @property
    def within_noise(self) -> bool:
        """Whether it changed by too little to be shown."""
        return abs(self.change) <= _SAME * max(self.before, self.after)


class ChangeDigest(Lines):
    """Draws as much of a comparison as fits; the table shown beside it is left out."""

    DEFAULT_CSS = "ChangeDigest { height: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._phases: list[PhaseChange] = []
        self._sections: list[tuple[str, list[Row]]] = []

    def show(self, report: Report, titles: Sequence[tuple[str, str]], current: str) -> None:
        """Show a comparison."""
        self._phases = phase_changes(report)
        self._sections = [
            (f"{number} {title}", rows)
            for number, (key, title) in enumerate(titles, 1)
            if key != current and (rows := _first_rows(report.table(key)))
        ]
        self.redraw()

    def draw(self, width: int, height: int) -> list[Row]:
        """Draw the phases, then of each other table as many rows as there is room for."""
        out: list[Row] = []
        if self._phases and len(self._phases) < height:
            out = [[(" by phase, mean host time a step", "title")], *self._bars(width)]
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
        room = width - names - _CHANGE - 2 * _VALUE - 8
        up = max(0.0, *(phase.change for phase in self._phases))
        down = max(0.0, *(-phase.change for phase in self._phases))
        left = round(room * down / (up + down)) if up + down else 0
        rows: list[Row] = []
        for phase in self._phases:
            role = "dim" if phase.within_noise else _role(phase.change)
            row: Row = [
                (f" {fit_text(phase.name, names)} ", "text"),
                (format_change(phase.change, "ns").rjust(_CHANGE), role),
                (
                    f"{format_ns(phase.before).rjust(_VALUE)} → {format_ns(phase.after).ljust(_VALUE)}",
                    "dim",
                ),
            ]
            if room >= _LEAST_BAR and up + down:
                cells = round(abs(phase.change) / (up + down) * room)
                bar = glyphs.BAR * cells
                row += (
                    [(bar.rjust(left), role), (glyphs.AXIS, "rule")]
                    if phase.change < 0
                    else [(" " * left, "text"), (glyphs.AXIS, "rule"), (bar, role)]
                )
            rows.append(row)
        return rows


def phase_changes(report: Report) -> list[PhaseChange]:
    """Return the phases of both runs, in execution order, unchanged ones last."""
    table = next((table for table in report.tables if table.key == "recorded"), None)
    if table is None:
        return []
    found = [
        PhaseChange(sanitize(row["metric"].partition(",")[0]), row["before_value"], row["after_value"])
        for row in table.rows.iter_rows(named=True)
        if row["key"].startswith("phase_") and None not in (row["before_value"], row["after_value"])
    ]
    return sorted(found, key=lambda phase: phase.within_noise)


def _first_rows(table: Table) -> list[Row]:
    """Return rows of a table: change, before and after, and what it is of; none of a table that ranks no changes."""
    if table.key == "script":
        lines = table.rows.filter(pl.col("change").is_in(["-", "+"])).head(40)
        return [
            [(f" {sign} ".rjust(_CHANGE + 1), "title"), (sanitize(text), "text")]
            for sign, text in lines.select("change", "text").iter_rows()
        ]
    if table.key != "metrics" and "change_ns" not in table.rows.columns:
        return []
    rows: list[Row] = []
    for row in table.rows.head(40).iter_rows(named=True):
        if table.key == "metrics":
            before, after = row["before_value"], row["after_value"]
            if before is None or after is None or abs(after - before) <= _SAME * max(abs(before), abs(after)):
                continue
            values, change, name = (row["before"], row["after"]), row["change"], row["metric"]
        else:
            values = (format_ns(row["before_ns"]), format_ns(row["after_ns"]))
            change = format_change(row["change_ns"], "ns")
            name = row.get("where") or row.get("short") or row["name"]
        role = "text" if table.key == "metrics" else "dim" if row["within_noise"] else _role(row["change_ns"])
        rows.append(
            [
                (change.rjust(_CHANGE + 1), role),
                (f"{values[0].rjust(_VALUE)} → {values[1].ljust(_VALUE)}", "dim"),
                (f"  {sanitize(str(name))}", "text"),
            ]
        )
    return rows


def _share(wanted: list[int], room: int) -> list[int]:
    """Distribute lines in turn until none are left or none are needed."""
    given = [0] * len(wanted)
    while room > 0 and given != wanted:
        for index, most in enumerate(wanted):
            if room > 0 and given[index] < most:
                given[index] += 1
                room -= 1
    return given


def _role(change: float) -> str:
    return "bad" if change > 0 else "good" if change < 0 else "dim"
