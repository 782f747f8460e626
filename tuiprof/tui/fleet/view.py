"""Content of the ranks screen: a heat map of ranks and steps, without Textual."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from tuiprof.model.units import format_change, format_rough_share
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.widgets.spans import Row, fit, merge

if TYPE_CHECKING:
    from tuiprof.fleet.fleet import Fleet
    from tuiprof.model.intervals import Floats, Ints

#: Width of the labels on the left, and lines of the axis below.
_LABEL_WIDTH, _AXIS_LINES = 12, 1
#: Maximum width of a cell in columns.
_MAX_CELL: Final = 8
#: Roles by lateness relative to the maximum, descending.
_ROLES: Final = ((0.75, "bad"), (0.4, "warn"), (0.2, "line"))
_LEVELS: Final = len(glyphs.EIGHTHS_UP) - 1


class HeatMap:
    """Lateness of each rank in each step (ns), as cells; a cell of several ranks or steps shows the maximum."""

    def __init__(self, fleet: Fleet) -> None:
        self._late: Floats = np.nan_to_num(fleet.late_per_step, nan=-np.inf)
        self._mean = fleet.held.late
        self._ranks = fleet.number
        self._hosts = [sanitize(host) for host in fleet.ranks["host"].to_list()]
        self._paths: list[str] = fleet.ranks["path"].to_list()
        self._because = fleet.because
        self._steps: Ints = fleet.steps
        self._max = max(float(self._late.max()), 1.0)
        self._order: Ints = np.argsort(self._ranks, kind="stable")  # rows of the matrix from top to bottom
        self.by_lateness = False
        self._zoom = 0  # each level halves the ranks per line and steps per column; 0 = all are shown
        self._room = (1, 1)  # lines and columns of cells that fit
        self._cell_width = 1
        self._origin = (0, 0)  # of the view: index into the order, index of the step
        self._cursor = (0, 0)  # index into the order, index of the step
        self._cells: tuple[object, Ints] | None = None
        self.latest()

    # -- actions ---------------------------------------------------------------------------------------------

    def move(self, lines: int, columns: int) -> None:
        """Move the cursor by a number of cells."""
        by_ranks, by_steps = self._per_cell()
        line, column = self._cursor
        self._cursor = (
            min(max(line + lines * by_ranks, 0), len(self._order) - 1),
            min(max(column + columns * by_steps, 0), len(self._steps) - 1),
        )

    def page(self, pages: int) -> None:
        self.move(pages * self._room[0], 0)

    def magnify(self, steps: int) -> None:
        """Zoom in (positive) or out."""
        per_cell = max(-(-len(self._order) // self._room[0]), -(-len(self._steps) // self._room[1]))
        self._zoom = min(max(self._zoom + steps, 0), max(per_cell - 1, 0).bit_length())

    def latest(self) -> None:
        """Go to the latest rank and step."""
        line, column = np.unravel_index(int(self._late[self._order].argmax()), self._late.shape)
        self._cursor = (int(line), int(column))

    def sort(self) -> None:
        """Sort by lateness or by rank; the cursor stays on its rank."""
        row = self._order[self._cursor[0]]
        self.by_lateness = not self.by_lateness
        key = -self._mean if self.by_lateness else self._ranks
        self._order = np.argsort(key, kind="stable")
        self._cells = None
        self._cursor = (int(np.flatnonzero(self._order == row)[0]), self._cursor[1])

    @property
    def chosen(self) -> tuple[str, int]:
        """File and step of the latest rank and step in the cell under the cursor."""
        row, column = self._latest_in_cell()
        return self._paths[row], int(self._steps[column])

    # -- drawing ---------------------------------------------------------------------------------------------

    def rows(self, width: int, height: int) -> list[Row]:
        """Draw the lines of cells and the axis of steps."""
        room = max(width - _LABEL_WIDTH, 1)
        self._cell_width = max(1, min(_MAX_CELL, room // len(self._steps)))
        self._room = (max(height - _AXIS_LINES, 1), room // self._cell_width)
        by_ranks, by_steps = self._per_cell()
        self._scroll(by_ranks, by_steps)
        top, left = self._origin
        levels = self._levels(by_ranks, by_steps)
        here = ((self._cursor[0] - top) // by_ranks, (self._cursor[1] - left) // by_steps)
        drawn = [
            self._line(line, levels[line], top + line * by_ranks, here[1] if line == here[0] else None)
            for line in range(len(levels))
        ]
        shown = min(levels.shape[1] * by_steps, len(self._steps) - left)
        first, last = f"step {self._steps[left]}", f"{self._steps[left + shown - 1]}" if shown > 1 else ""
        gap = max(levels.shape[1] * self._cell_width - len(first) - len(last), 1)
        return [*drawn, [(" " * _LABEL_WIDTH + first + " " * gap + last, "dim")]]

    def legend(self, width: int) -> Row:
        row: Row = [(" late: ", "dim"), (glyphs.EIGHTHS_UP[1], "faint"), (" hardly", "dim")]
        for share, role in reversed(_ROLES):
            level = glyphs.EIGHTHS_UP[math.ceil(share * _LEVELS)]
            row += [("  ", "dim"), (level, role), (f" {format_rough_share(share)}", "dim")]
        row.append((f" or more of {format_change(self._max, 'ns')}   ", "dim"))
        return fit([*row, (glyphs.EIGHTHS_UP[-1], "cursor"), (" cursor", "dim")], width)

    def readout(self, width: int) -> Row:
        """Return a line about the cell under the cursor."""
        row, column = self._latest_in_cell()
        late = float(self._late[row, column])
        rank = int(self._ranks[row])
        by_ranks, by_steps = self._per_cell()
        cell: Row = [(f" rank {rank}", "strong")]
        if self._hosts[row]:
            cell.append((f" on {self._hosts[row]}", "text"))
        text = (
            f"{format_change(late, 'ns')} in step {self._steps[column]}" if np.isfinite(late) else "no data"
        )
        cell.append((f"  {text}", "text"))
        cell.append((f"  {format_change(float(self._mean[row]), 'ns')} per step", "dim"))
        if why := self._because.get(rank):
            cell.append((f"  {sanitize(why)}", "warn"))
        if by_ranks * by_steps > 1:
            cell.append((f"  latest of {by_ranks} × {by_steps} in this cell", "dim"))
        return fit(cell, width)

    def _line(self, line: int, levels: Ints, first: int, cursor: int | None) -> Row:
        row = int(self._order[first])
        host = self._hosts[row]
        new = first == 0 or host != self._hosts[int(self._order[first - 1])]
        name = f"{self._ranks[row]:>4} "
        label = name + (host[: _LABEL_WIDTH - len(name) - 1] if new or line == 0 else "")
        spans: Row = [(label.ljust(_LABEL_WIDTH)[:_LABEL_WIDTH], "dim")]
        for column, level in enumerate(levels.tolist()):
            role = next((role for share, role in _ROLES if level >= share * _LEVELS), "faint")
            cells = glyphs.EIGHTHS_UP[level] * self._cell_width
            spans.append((cells, "cursor" if column == cursor else role))
        return merge(spans)

    def _levels(self, by_ranks: int, by_steps: int) -> Ints:
        """Return the level of each visible cell, shape ``(lines, columns)``: 0 = no data, else 1 to 8."""
        lines, columns = self._room
        top, left = self._origin
        key = (by_ranks, by_steps, top, left, lines, columns)
        if self._cells is None or self._cells[0] != key:
            seen = self._late[self._order[top : top + lines * by_ranks], left : left + columns * by_steps]
            binned = np.maximum.reduceat(seen, np.arange(0, seen.shape[0], by_ranks), axis=0)
            binned = np.maximum.reduceat(binned, np.arange(0, seen.shape[1], by_steps), axis=1)
            share = np.clip(binned / self._max, 0.0, 1.0)
            self._cells = (
                key,
                np.where(np.isfinite(binned), np.ceil(share * (_LEVELS - 1)) + 1, 0).astype(np.int64),
            )
        return self._cells[1]

    def _per_cell(self) -> tuple[int, int]:
        """Return the number of ranks per line and of steps per column."""
        fits = (-(-len(self._order) // self._room[0]), -(-len(self._steps) // self._room[1]))
        return max(fits[0] >> self._zoom, 1), max(fits[1] >> self._zoom, 1)

    def _scroll(self, by_ranks: int, by_steps: int) -> None:
        """Scroll by whole cells until the cursor is visible."""

        def scrolled(origin: int, cursor: int, by: int, cells: int, count: int) -> int:
            cell, first, last = cursor // by, origin // by, -(-count // by)
            first = min(max(first, cell - cells + 1), cell)
            return min(first, max(last - cells, 0)) * by

        self._origin = (
            scrolled(self._origin[0], self._cursor[0], by_ranks, self._room[0], len(self._order)),
            scrolled(self._origin[1], self._cursor[1], by_steps, self._room[1], len(self._steps)),
        )

    def _latest_in_cell(self) -> tuple[int, int]:
        """Return row and column of the maximum in the cell under the cursor."""
        by_ranks, by_steps = self._per_cell()
        line, column = self._cursor[0] // by_ranks * by_ranks, self._cursor[1] // by_steps * by_steps
        rows = self._order[line : line + by_ranks]
        cell = self._late[rows, column : column + by_steps]
        inner, step = np.unravel_index(int(cell.argmax()), cell.shape)
        return int(rows[inner]), column + int(step)
