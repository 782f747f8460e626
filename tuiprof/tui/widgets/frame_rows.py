"""Rows of a Polars data frame (sorted by argsort, filtered, formatted only when visible), and their layout."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
from rich.cells import cell_len

from tuiprof.model.intervals import Ints, Mask
from tuiprof.model.report import Column
from tuiprof.model.units import NONE
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.widgets.filter import Contains, Joined, Node, Not, parse

#: From this many rows on, sorting by a column for the first time takes longer than a frame.
_SLOW_ROWS: Final = 100_000
_COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
}


@dataclass(frozen=True, slots=True)
class Heading:
    """The heading of a column."""

    label: str
    right: bool = False  # whether values are right-aligned, as numbers are
    help: str = ""  # definition, one sentence
    elide: Literal["end", "start", "middle"] = "end"  # where long text is cut; ``start`` for locations


class FrameRows:
    """Sorted and filtered rows of a data frame.

    The *position* of a row is its index after sorting and filtering; its *source* is its index in the frame. ``chosen``
    are the keys of the columns to show, in order; None = those that are not hidden. ``faint`` is that of a boolean
    column that selects the rows drawn in grey; empty = no rows.
    """

    def __init__(
        self,
        frame: pl.DataFrame,
        columns: Sequence[Column],
        chosen: Sequence[str] | None = None,
        faint: str = "",
    ) -> None:
        self._faint = frame[faint] if faint else None
        self.frame = frame
        self.all_columns = tuple(columns)
        by_key = {column.key: column for column in columns}
        self.columns = (
            tuple(column for column in columns if not column.hidden)
            if chosen is None
            else tuple(by_key[key] for key in chosen if key in by_key)
        )
        self.headings = tuple(
            Heading(sanitize(c.label), c.right_aligned, c.help, c.elide or "end") for c in self.columns
        )
        self._series = [frame[column.key] for column in self.columns]
        self._ascending: dict[int, tuple[Ints, int]] = {}
        self._order: Ints | None = None  # None = the frame's order
        self._mask: Mask | None = None
        self._view: Ints | None = None
        self._max: dict[int, float] = {}

    @property
    def total(self) -> int:
        """Number of rows without a filter."""
        return len(self.frame)

    def __len__(self) -> int:
        return len(self.frame) if self._view is None else len(self._view)

    def text(self, position: int, column: int) -> str:
        """Return the text of a cell, with its unit."""
        value = self._series[column][self.source(position)]
        if value is None or value == "":
            return NONE
        if isinstance(value, pl.Series):
            value = ", ".join(str(item) for item in value)
        return sanitize(self.columns[column].text(value))

    def faint(self, position: int) -> bool:
        return self._faint is not None and bool(self._faint[self.source(position)])

    @cached_property
    def ranked(self) -> tuple[int, bool] | None:
        """The numeric column that the frame is sorted by, and whether it is descending; None = no such column."""
        for index, (column, series) in enumerate(zip(self.columns, self._series, strict=True)):
            if not (column.right_aligned and series.dtype.is_numeric()):
                continue
            known = series.drop_nulls()
            if not len(known) or known[0] == known[-1]:
                continue
            for descending in (True, False):
                if series.is_sorted(descending=descending, nulls_last=True):
                    return index, descending
        return None

    def heat(self, position: int, column: int) -> float:
        """Return a value relative to the maximum of its column, 0 to 1."""
        series = self._series[column]
        if column not in self._max:
            largest = series.max() if series.dtype.is_numeric() and len(series) > 1 else None
            self._max[column] = float(largest) if isinstance(largest, (int, float)) else 0.0
        value, most = series[self.source(position)], self._max[column]
        return max(float(value), 0.0) / most if isinstance(value, (int, float)) and most > 0 else 0.0

    def source(self, position: int) -> int:
        """Return the index in the frame of the row at a position."""
        return position if self._view is None else int(self._view[position])

    def position(self, source: int) -> int | None:
        """Return the position of a row of the frame; None = the filter hides it."""
        if self._view is None:
            return source if 0 <= source < len(self.frame) else None
        found = np.flatnonzero(self._view == source)
        return int(found[0]) if len(found) else None

    def sort(self, column: int | None, descending: bool = False) -> None:
        """Sort by a column, nulls last."""
        if column is None:
            self._order = None
        else:
            order, known = self._sorted(column)
            self._order = np.concatenate((order[:known][::-1], order[known:])) if descending else order
        self._refresh()

    def is_slow_to_sort(self, column: int) -> bool:
        """Return whether a long column would be sorted for the first time."""
        return len(self.frame) >= _SLOW_ROWS and column not in self._ascending

    def prepare_sort(self, column: int) -> None:
        """Sort a column ahead of :meth:`sort`; safe in any thread."""
        self._sorted(column)

    def filter(self, text: str) -> None:
        """Keep the rows that match a filter (see :mod:`tuiprof.tui.widgets.filter`); empty = all rows.

        Raises:
            FilterError: The filter is not valid; the rows are unchanged.
        """
        node = parse(text, self.all_columns)
        self._mask = None if node is None else self._matches(node)
        self._refresh()

    def _matches(self, node: Node) -> Mask:
        if isinstance(node, Contains):
            mask = np.zeros(len(self.frame), dtype=bool)
            pattern = "(?i)" + re.escape(node.text)
            for series, column in zip(self._series, self.columns, strict=True):
                if column.kind == "text":
                    mask |= _contains(series, pattern)
            return mask
        if isinstance(node, Not):
            return ~self._matches(node.part)
        if isinstance(node, Joined):
            parts = [self._matches(part) for part in node.parts]
            joined: Mask = np.logical_and.reduce(parts) if node.all else np.logical_or.reduce(parts)
            return joined
        series = self.frame[node.column.key]
        if isinstance(node.value, str):
            text = node.value if node.regex else re.escape(node.value)
            return _contains(series, f"(?i)^(?:{text})$" if node.operator == "=" else f"(?i){text}")
        found: Mask = _COMPARE[node.operator](series, node.value).fill_null(False).to_numpy()
        return found

    def shown(self) -> pl.DataFrame:
        """Return the rows and columns on screen, in their order."""
        keys = [column.key for column in self.columns]
        frame = self.frame.select(keys)
        return frame if self._view is None else frame[self._view]

    def find(self, other: FrameRows, position: int) -> int | None:
        """Return the position of the row with the same text columns as a row of another frame; numbers may differ."""
        source = other.source(position)
        same: list[pl.Expr] = []
        for column in self.columns:
            if column.right_aligned or column.key not in other.frame.columns:
                continue
            value, dtype = other.frame[column.key][source], self.frame[column.key].dtype
            if isinstance(dtype, pl.Enum) and value is not None and value not in dtype.categories:
                return None
            if dtype == pl.String or isinstance(dtype, pl.Enum):
                same.append(pl.col(column.key).eq_missing(pl.lit(value, dtype)))
        found = self.frame.select(pl.all_horizontal(same).arg_true()).to_series() if same else ()
        return next((at for row in found if (at := self.position(row)) is not None), None)

    def _refresh(self) -> None:
        if self._mask is None:
            self._view = self._order
        elif self._order is None:
            self._view = np.flatnonzero(self._mask).astype(np.int64)
        else:
            self._view = self._order[self._mask[self._order]]

    def _sorted(self, column: int) -> tuple[Ints, int]:
        """Return the rows in ascending order of a column, nulls last, and the number of non-null rows."""
        if column not in self._ascending:
            series = self._series[column]
            if not series.dtype.is_numeric() and series.dtype != pl.Boolean:
                series = _ranks(series)
            values = series.fill_nan(None) if series.dtype.is_float() else series
            known = len(values) - values.null_count()
            self._ascending[column] = (_argsort(values), known)
        return self._ascending[column]


def _argsort(values: pl.Series) -> Ints:
    """Return the rows in ascending order of numbers, nulls last; stable."""
    if values.null_count():
        null = values.is_null().to_numpy()
        known = np.flatnonzero(~null)
        return np.concatenate((known[_argsort(values.drop_nulls())], np.flatnonzero(null)))
    if not len(values):
        return np.empty(0, dtype=np.int64)
    keys = _unsigned(values)
    low, high = int(keys.min()), int(keys.max())
    bits = max(len(keys) - 1, 1).bit_length()
    # Pack the high bits of the value and the row into one integer: sorting these is several times faster than an
    # argsort, and stable. Values that differ only in the bits cut off may come out in the wrong order.
    cut = max(0, (high - low).bit_length() - (64 - bits))
    packed = (((keys - np.uint64(low)) >> np.uint64(cut)) << np.uint64(bits)) | np.arange(
        len(keys), dtype=np.uint64
    )
    packed.sort()
    order = (packed & np.uint64((1 << bits) - 1)).astype(np.int64)
    if cut:
        ordered = keys[order]
        if (ordered[1:] < ordered[:-1]).any():
            return order[np.argsort(ordered, kind="stable")]
    return order


def _unsigned(values: pl.Series) -> npt.NDArray[np.uint64]:
    """Map numbers to unsigned integers of the same order."""
    sign = np.uint64(1 << 63)
    if values.dtype.is_float():
        bits = values.cast(pl.Float64).to_numpy().view(np.uint64)
        return np.where(bits & sign, ~bits, bits | sign)
    if values.dtype == pl.UInt64:
        return values.to_numpy()
    return values.cast(pl.Int64).to_numpy().view(np.uint64) ^ sign


def _contains(series: pl.Series, pattern: str) -> Mask:
    """Return which values match a pattern; in an enum column only the categories are searched."""
    if isinstance(series.dtype, pl.Enum):
        hits = series.dtype.categories.str.contains(pattern).to_numpy()
        codes = series.to_physical().cast(pl.Int64).fill_null(-1).to_numpy()
        chosen: Mask = np.append(hits, False)[codes]
        return chosen
    text = series if series.dtype == pl.String else series.cast(pl.String, strict=False)
    found: Mask = text.str.contains(pattern).fill_null(False).to_numpy()
    return found


def _ranks(series: pl.Series) -> pl.Series:
    """Return integers that sort in the order of the values' text; nulls stay null."""
    if isinstance(series.dtype, pl.Enum):
        words = series.dtype.categories
        rank = np.empty(len(words) + 1, dtype=np.int64)
        rank[words.arg_sort().to_numpy()] = np.arange(len(words))
        codes = series.to_physical().cast(pl.Int64)
        ranks = pl.Series(rank[codes.fill_null(-1).to_numpy()])
        return ranks.set(series.is_null(), None) if series.null_count() else ranks
    text = series.cast(pl.String, strict=False)
    words = text.drop_nulls().unique().sort()
    return text.cast(pl.Enum(words)).to_physical().cast(pl.Int64)


# -- layout of the columns ---------------------------------------------------------------------------------

#: Cells between two columns of a table.
GAP: Final = 2
_MAX_TEXT: Final = 72
_SHORT_TEXT: Final = 12
_SORT_MARK: Final = 2
#: Minimum width of a location (``file:line``) in cells.
_MIN_LOCATION: Final = 30


def column_order(headings: Sequence[Heading], least: list[int], contents: list[int], room: int) -> list[int]:
    """Return the order of the columns: the first location is moved left until it fits in the room."""
    order = list(range(len(headings)))
    location = next((i for i in order if headings[i].elide == "start"), None)
    if location is None or not room:
        return order

    def wanted(index: int) -> int:
        short = min(contents[index], _SHORT_TEXT)
        return GAP + max(least[index], contents[index] if headings[index].right else short)

    before = order[:location]
    while len(before) > 1 and sum(map(wanted, before)) + GAP + least[location] > room:
        before.pop()
    return [*before, location, *(i for i in order if i != location and i not in before)]


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of the columns of a table."""

    order: list[int]  # indices into the headings, from left to right
    widths: list[int]  # in cells, in that order
    contents: list[int]  # width of the widest value, in the order of the headings


def lay_out(
    headings: Sequence[Heading],
    text: Callable[[int, int], str],
    sample: Sequence[int],
    room: int,
    *,
    in_order: bool = False,
) -> Layout:
    """Lay out the columns for the values at the sampled positions, in a room given in cells (0 = unlimited).

    ``text`` returns the text of a cell by position and column. ``in_order`` keeps the order of the headings, even if
    that hides the first location.
    """
    contents = [
        max((cell_len(text(position, index)) for position in sample), default=0)
        for index in range(len(headings))
    ]
    least = [
        max(cell_len(heading.label), min(content, _MIN_LOCATION) if heading.elide == "start" else 0)
        for heading, content in zip(headings, contents, strict=True)
    ]
    order = list(range(len(headings))) if in_order else column_order(headings, least, contents, room)
    widths = column_widths(
        [least[index] for index in order],
        [contents[index] for index in order],
        [headings[index].right for index in order],
        room,
    )
    return Layout(order, widths, contents)


def column_widths(labels: list[int], contents: list[int], right: list[bool], room: int) -> list[int]:
    """Return the width of each column; together they may still exceed the room.

    Numbers get the width they need. Text columns shrink, the widest first; numbers give up the cells of their sort
    mark before text becomes too short.
    """
    columns = range(len(labels))
    widths = [
        max(labels[i] + _SORT_MARK, contents[i] if right[i] else min(contents[i], _MAX_TEXT)) for i in columns
    ]
    if not room:
        return widths

    def shrink(floors: list[int]) -> None:
        over = sum(widths) + GAP * len(widths) - room
        while over > 0 and widths:
            slack, widest = max((widths[i] - floors[i], i) for i in columns)
            if slack <= 0:
                return
            widths[widest] -= 1
            over -= 1

    shrink([widths[i] if right[i] else max(24, labels[i] + _SORT_MARK) for i in columns])
    shrink([max(labels[i], contents[i]) if right[i] else max(24, labels[i]) for i in columns])
    shrink([max(labels[i], contents[i]) if right[i] else max(12, labels[i]) for i in columns])
    spare = room - sum(widths) - GAP * len(widths)
    if spare > 0 and right and not right[-1]:
        widths[-1] += spare
    return widths
