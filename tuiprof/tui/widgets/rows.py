"""Content of a table: the protocol of its rows, rows of a short list, and the layout of columns.

Imports neither Polars nor NumPy, so that a screen with a short list starts fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from rich.cells import cell_len, set_cell_size

from tuiprof.report.sanitize import clip, sanitize

#: Cells between two columns of a table.
GAP: Final = 2
_MAX_TEXT: Final = 72
_SHORT_TEXT: Final = 12
_SORT_MARK: Final = 2
#: Minimum width of a location (``file:line``) in cells.
_MIN_LOCATION: Final = 30


@dataclass(frozen=True, slots=True)
class Heading:
    """The heading of a column."""

    label: str
    right: bool = False  # whether values are right-aligned, as numbers are
    help: str = ""  # definition, one sentence
    elide: Literal["end", "start", "middle"] = "end"  # where long text is cut; ``start`` for locations


class Rows(Protocol):
    """Sorted and filtered rows.

    A *position* is the index of a row after sorting and filtering; a *source* is its index before, which never changes.
    """

    @property
    def headings(self) -> Sequence[Heading]:
        """The columns, in order."""

    @property
    def total(self) -> int:
        """Number of rows without a filter."""

    def __len__(self) -> int:
        """Return the number of rows that pass the filter."""

    def text(self, position: int, column: int) -> str:
        """Return the text of a cell: one line, sanitized."""

    def faint(self, position: int) -> bool:
        """Return whether a row is less important, and drawn in grey."""

    @property
    def ranked(self) -> tuple[int, bool] | None:
        """The numeric column that the source rows are sorted by, and whether it is descending; None = unknown."""

    def heat(self, position: int, column: int) -> float:
        """Return a value relative to the maximum of its column, 0 to 1; 0 for text."""

    def source(self, position: int) -> int:
        """Return the source of the row at a position."""

    def position(self, source: int) -> int | None:
        """Return the position of a source row; None = the filter hides it."""

    def sort(self, column: int | None, descending: bool = False) -> None:
        """Sort by a column, unknown values last; None = the order of the source."""

    def is_slow_to_sort(self, column: int) -> bool:
        """Return whether sorting by a column may take noticeably long."""

    def prepare_sort(self, column: int) -> None:
        """Sort a column ahead of :meth:`sort`; safe in any thread."""

    def filter(self, text: str) -> None:
        """Keep the rows that match a filter; empty = all rows."""

    def find(self, other: Rows, position: int) -> int | None:
        """Return the position of the row that has the text of a row of other rows; None = there is none."""


@dataclass(frozen=True, slots=True)
class TableState:
    """State of a table to restore: rows (with order and filter), cursor and sort mark."""

    rows: Rows
    empty: str
    cursor: int
    column: int
    sorted_by: int | None
    descending: bool


SortKey = int | float | str | None


class ListRows:
    """Rows of a short list.

    Args:
        texts: Text of the cells of each row; may be untrusted.
        keys: Sort keys of the cells of each row; None = sort by the text.
    """

    def __init__(
        self,
        headings: Sequence[Heading],
        texts: Sequence[Sequence[str]],
        keys: Sequence[Sequence[SortKey]] | None = None,
    ) -> None:
        self.headings = tuple(headings)
        self._texts = [[sanitize(cell) for cell in row] for row in texts]
        self._keys: Sequence[Sequence[SortKey]] = self._texts if keys is None else keys
        self._order = list(range(len(texts)))
        self._view = self._order
        self._needle = ""

    @property
    def total(self) -> int:
        """Number of rows without a filter."""
        return len(self._texts)

    def __len__(self) -> int:
        return len(self._view)

    def text(self, position: int, column: int) -> str:
        """Return the text of a cell."""
        return self._texts[self._view[position]][column]

    def faint(self, position: int) -> bool:
        """Return False: all rows are equally important."""
        return False

    @property
    def ranked(self) -> tuple[int, bool] | None:
        """None: the order of the list is unknown."""
        return None

    def heat(self, position: int, column: int) -> float:
        """Return 0: all cells are text."""
        return 0.0

    def source(self, position: int) -> int:
        """Return the index in the list of the row at a position."""
        return self._view[position]

    def position(self, source: int) -> int | None:
        """Return the position of a row of the list; None = the filter hides it."""
        return self._view.index(source) if source in self._view else None

    def is_slow_to_sort(self, column: int) -> bool:
        """Return False: the list is short."""
        return False

    def prepare_sort(self, column: int) -> None:
        """Do nothing: the list is short."""

    def sort(self, column: int | None, descending: bool = False) -> None:
        """Sort by a column, unknown values last."""
        self._order = list(range(len(self._texts)))
        if column is not None:
            known = [i for i in self._order if self._keys[i][column] is not None]
            unknown = [i for i in self._order if self._keys[i][column] is None]
            known.sort(key=lambda i: _comparable(self._keys[i][column]), reverse=descending)
            self._order = known + unknown
        self.filter(self._needle)

    def filter(self, text: str) -> None:
        """Keep the rows in which any cell contains the text, ignoring case; empty = all rows."""
        self._needle = text
        needle = text.casefold()
        self._view = [
            i for i in self._order if not needle or any(needle in cell.casefold() for cell in self._texts[i])
        ]

    def find(self, other: Rows, position: int) -> int | None:
        """Return the position of the row that has the text of a row of other rows; None = there is none."""
        texts = [other.text(position, column) for column in range(len(other.headings))]
        return next((at for at, i in enumerate(self._view) if self._texts[i] == texts), None)


def _comparable(key: SortKey) -> tuple[bool, float, str]:
    """Order numbers before text, so that a mixed column can be sorted."""
    return (True, 0.0, key.casefold()) if isinstance(key, str) else (False, float(key or 0), "")


def fit_text(
    text: str, width: int, right: bool = False, elide: Literal["end", "start", "middle"] = "end"
) -> str:
    """Pad or cut text to a number of cells; an ellipsis marks the cut."""
    length = cell_len(text)
    if length > width and elide != "end":
        text = clip(text, width, elide)
        length = cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + "…" if width > 0 else ""
    pad = " " * (width - length)
    return pad + text if right else text + pad


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


def lay_out(rows: Rows, sample: Sequence[int], room: int, *, in_order: bool = False) -> Layout:
    """Lay out the columns for the values at the sampled positions, in a room given in cells (0 = unlimited).

    ``in_order`` keeps the order of the headings, even if that hides the first location.
    """
    headings = rows.headings
    contents = [
        max((cell_len(rows.text(position, index)) for position in sample), default=0)
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
