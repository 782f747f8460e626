"""Headings and cells of a table, and the layout of its columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rich.cells import cell_len, set_cell_size

from tuiprof.report.sanitize import clip

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
