"""Content of a table: headings and rows in an order, behind one small protocol.

Free of polars and numpy, so that a screen with a short list of things pays for neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from rich.cells import cell_len, set_cell_size

from tuiprof.report.sanitize import clip, sanitize

#: Cells between two columns of a table.
GAP: Final = 2
_WIDEST_TEXT: Final = 72
_SHORT_TEXT: Final = 12
_SORT_MARK: Final = 2
#: Minimum cells of the end of a location (``file:line``).
_PLACE: Final = 30


@dataclass(frozen=True, slots=True)
class Heading:
    """The head of one column."""

    label: str
    right: bool = False  # whether its values are right-aligned, as numbers are
    help: str = ""  # its definition in one sentence
    elide: Literal["end", "start", "middle"] = "end"  # where a text that is too long is cut


class Rows(Protocol):
    """Rows in an order and under a filter.

    A *position* counts the rows in view, from 0; a *source* names the same row whatever the order and the
    filter.
    """

    @property
    def headings(self) -> Sequence[Heading]:
        """The columns, in order."""

    @property
    def total(self) -> int:
        """Number of rows without a filter."""

    def __len__(self) -> int:
        """Return the number of rows in view."""

    def text(self, position: int, column: int) -> str:
        """Return what a cell shows: one line, safe for a terminal."""

    def faint(self, position: int) -> bool:
        """Return whether a row matters little, and is grey."""

    @property
    def ranked(self) -> tuple[int, bool] | None:
        """The column that the rows came sorted by, and whether the largest is first; None = by none."""

    def heat(self, position: int, column: int) -> float:
        """Return a figure as a share of the largest of its column, 0 to 1; 0 for non-sizes."""

    def source(self, position: int) -> int:
        """Return the source of the row at a position."""

    def position(self, source: int) -> int | None:
        """Return the current position of a source row; None when the filter hides it."""

    def sort(self, column: int | None, descending: bool = False) -> None:
        """Sort by a column, unknown values last; None = back to the order given at first."""

    def is_slow_to_sort(self, column: int) -> bool:
        """Return whether sorting by a column takes longer than a person should wait for a key."""

    def prepare_sort(self, column: int) -> None:
        """Compute the order of a column, in any thread, without changing the view."""

    def filter(self, text: str) -> None:
        """Keep the rows in which any text contains this, ignoring case; empty = all."""

    def alike(self, other: Rows, position: int) -> int | None:
        """Return the position of the row whose texts equal those of a row of other rows; None = there is none."""


@dataclass(frozen=True, slots=True)
class TableState:
    """A table as it was left: rows (with order and filter), cursor and sort mark."""

    rows: Rows
    empty: str
    cursor: int
    column: int
    sorted_by: int | None
    descending: bool


SortKey = int | float | str | None


class ListRows:
    """Rows of a short list: texts, and what to sort them by.

    Args:
        texts: One sequence of cell texts a row; untrusted, they are made safe here.
        keys: One sequence of sort keys a row (numbers sort as numbers); None = sort by the texts.
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
        """Return the number of rows in view."""
        return len(self._view)

    def text(self, position: int, column: int) -> str:
        """Return what a cell shows."""
        return self._texts[self._view[position]][column]

    def faint(self, position: int) -> bool:
        """Return False: of plain texts none matters less than the others."""
        return False

    @property
    def ranked(self) -> tuple[int, bool] | None:
        """None: what plain texts are sorted by is not known."""
        return None

    def heat(self, position: int, column: int) -> float:
        """Return 0: plain texts are not sizes."""
        return 0.0

    def source(self, position: int) -> int:
        """Return the index of the row in the list given at first."""
        return self._view[position]

    def position(self, source: int) -> int | None:
        """Return the current position of a row; None when the filter hides it."""
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
        """Keep the rows in which any cell contains a text, ignoring case; empty = all rows."""
        self._needle = text
        needle = text.casefold()
        self._view = [
            i for i in self._order if not needle or any(needle in cell.casefold() for cell in self._texts[i])
        ]

    def alike(self, other: Rows, position: int) -> int | None:
        """Return the position of the row with the same texts; None = there is none."""
        texts = [other.text(position, column) for column in range(len(other.headings))]
        return next((place for place, i in enumerate(self._view) if self._texts[i] == texts), None)


def _comparable(key: SortKey) -> tuple[bool, float, str]:
    """Order numbers before texts, so that a mixed column sorts without an error."""
    return (True, 0.0, key.casefold()) if isinstance(key, str) else (False, float(key or 0), "")


def fit_text(
    text: str, width: int, right: bool = False, elide: Literal["end", "start", "middle"] = "end"
) -> str:
    """Pad or cut a text to a number of cells; a cut is marked by an ellipsis."""
    length = cell_len(text)
    if length > width and elide != "end":
        text = clip(text, width, elide)
        length = cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + "…" if width > 0 else ""
    pad = " " * (width - length)
    return pad + text if right else text + pad


def column_order(headings: Sequence[Heading], least: list[int], contents: list[int], room: int) -> list[int]:
    """Return the order of the columns in which the first place can be seen, if need be before some figures."""
    order = list(range(len(headings)))
    place = next((i for i in order if headings[i].elide == "start"), None)
    if place is None or not room:
        return order

    def wanted(index: int) -> int:
        short = min(contents[index], _SHORT_TEXT)
        return GAP + max(least[index], contents[index] if headings[index].right else short)

    before = order[:place]
    while len(before) > 1 and sum(map(wanted, before)) + GAP + least[place] > room:
        before.pop()
    return [*before, place, *(i for i in order if i != place and i not in before)]


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of the columns of a table."""

    order: list[int]  # indices of the columns, from left to right
    widths: list[int]  # cells of each, in that order
    contents: list[int]  # cells of the widest value of each, in the order of the headings


def lay_out(rows: Rows, sample: Sequence[int], room: int, *, in_order: bool = False) -> Layout:
    """Give each column the width its content asks for; long texts give way until the table fits."""
    headings = rows.headings
    contents = [
        max((cell_len(rows.text(position, index)) for position in sample), default=0)
        for index in range(len(headings))
    ]
    least = [
        # What is cut at its start is a place: its file and line stay readable.
        max(cell_len(heading.label), min(content, _PLACE) if heading.elide == "start" else 0)
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
    """Share the width of a table among its columns.

    Numbers keep what they need. Texts give way, the widest first, and the room for the sort mark goes before
    texts become too short to tell apart.

    Returns:
        The width of each; together they may still be more than there is room for.
    """
    columns = range(len(labels))
    widths = [
        max(labels[i] + _SORT_MARK, contents[i] if right[i] else min(contents[i], _WIDEST_TEXT))
        for i in columns
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
