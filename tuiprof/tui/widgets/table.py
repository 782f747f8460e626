"""A table that draws only its visible rows, so that a million rows open and scroll like ten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import polars as pl
from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events, work
from textual.binding import Binding, BindingType
from textual.cache import LRUCache
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tuiprof.tui.terminal.keys import key
from tuiprof.tui.terminal.terminal_app import notify_worker_error
from tuiprof.tui.widgets.frame_rows import GAP, FrameRows, lay_out
from tuiprof.tui.widgets.spans import fit_text

#: Rows from the start, and rows sampled from the rest, that determine the widths of the columns.
_SAMPLE: Final = 200
#: Blank cells before the first column.
LEAD: Final = 1
#: Text at the right edge is left out if fewer cells of it would be visible.
_MIN_VISIBLE: Final = 4
#: In the column the table is sorted by, the background has three levels, from these fractions of the maximum.
_HEAT: Final = (0.1, 0.4, 0.75)


def _key(keys: str, action: str, label: str, tooltip: str, show: bool = False) -> Binding:
    return key(
        keys,
        action,
        label,
        tooltip.capitalize(),
        id=f"table.{label.replace(' ', '_')}",
        group="Table",
        show=show,
    )


_KEYS: Final[tuple[Binding, ...]] = (
    _key("up,k", "move(-1)", "up", "one row up"),
    _key("down,j", "move(1)", "down", "one row down"),
    _key("pageup", "page(-1)", "page up", "one page up"),
    _key("pagedown", "page(1)", "page down", "one page down"),
    _key("home,g", "edge(False)", "first", "go to the first row"),
    _key("end,G", "edge(True)", "last", "go to the last row"),
    _key("left", "column(-1)", "column left", "one column left"),
    _key("right", "column(1)", "column right", "one column right"),
    _key("s", "sort", "sort", "sort by the column under the cursor", show=True),
    _key("enter", "select", "open", "open the row under the cursor", show=True),
    _key("y", "copy", "copy", "copy the row to the clipboard"),
    _key("Y", "copy_cell", "copy cell", "copy the cell to the clipboard"),
)


@dataclass(frozen=True, slots=True)
class TableState:
    """State of a table to restore: rows (with order and filter), cursor and sort mark."""

    rows: FrameRows
    empty: str
    cursor: int
    column: int
    sorted_by: int | None
    descending: bool


class VirtualTable(ScrollView, can_focus=True):
    """A sortable table of a data frame.

    The cursor is on a row, which ``enter`` opens, and a column, which ``s`` sorts by. If not all columns fit, the first
    location (``file:line``) is moved to the left until it is visible.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*_KEYS]

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "table--header",
        "table--header-cursor",
        "table--row",
        "table--faint",
        "table--heat-1",
        "table--heat-2",
        "table--heat-3",
        "table--cursor",
        "table--cursor-cell",
        "table--cursor-blurred",
        "table--empty",
    }

    DEFAULT_CSS = """
    VirtualTable {
        background: $background;
        color: $foreground;
        scrollbar-size: 1 1;
        scrollbar-background: $background;
        scrollbar-background-hover: $background;
        scrollbar-background-active: $background;
        scrollbar-corner-color: $background;
        & > .table--header { color: $text-muted; background: $background; text-style: bold; }
        & > .table--header-cursor { color: $text-accent; background: $background; text-style: bold underline; }
        & > .table--row { color: $foreground; background: $background; }
        & > .table--faint { color: $text-muted; background: $background; }
        & > .table--cursor { color: $block-cursor-foreground; background: $block-cursor-background; }
        & > .table--cursor-cell {
            color: $block-cursor-foreground; background: $block-cursor-background; text-style: bold underline;
        }
        & > .table--cursor-blurred { color: $foreground; background: $surface-active; }
        & > .table--empty { color: $text-muted; background: $background; }
    }
    """

    @dataclass(eq=False)
    class Highlighted(Message):
        """The cursor moved to another row."""

        table: VirtualTable
        source: int  # of the row

        @property
        def control(self) -> VirtualTable:
            return self.table

    class Selected(Highlighted):
        """A row was opened with enter or a double click."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self.rows = FrameRows(pl.DataFrame(), ())
        self.empty = ""
        self.opens = True  # whether enter opens rows; else its key is hidden
        self.cursor = 0
        self.column = 0
        self.sorted_by: int | None = None
        self.descending = False
        self.sorting: int | None = None  # column that a worker is sorting
        self._widths: list[int] = []
        self._order: list[int] = []
        self._contents: list[int] = []
        self._in_order = False
        self._strips: LRUCache[tuple[int, int, int, bool], Strip] = LRUCache(512)

    # -- content -------------------------------------------------------------------------------------------

    def load(self, rows: FrameRows, *, empty: str = "", in_order: bool = False) -> None:
        self.rows, self.empty, self._in_order = rows, empty, in_order
        self.sorted_by, self.descending, self.sorting = None, False, None
        self.column = min(self.column, max(len(rows.headings) - 1, 0))
        self.cursor = 0
        self._measure()
        self._changed()

    def clear(self) -> None:
        self.load(FrameRows(pl.DataFrame(), ()))

    def state(self) -> TableState:
        return TableState(self.rows, self.empty, self.cursor, self.column, self.sorted_by, self.descending)

    def restore(self, state: TableState) -> None:
        """Show rows in the state in which they were left."""
        self.rows, self.empty = state.rows, state.empty
        self.cursor, self.column = state.cursor, state.column
        self.sorted_by, self.descending, self.sorting = state.sorted_by, state.descending, None
        self._measure()
        self._changed()

    def resume(self, state: TableState, needle: str) -> None:
        """Apply the order, cursor and filter of similar rows to the rows just loaded."""
        label = state.rows.headings[state.sorted_by].label if state.sorted_by is not None else None
        labels = [heading.label for heading in self.rows.headings]
        column = labels.index(label) if label in labels else None
        self.rows.sort(column, state.descending)
        self.rows.filter(needle)
        self.sorted_by, self.descending = column, state.descending and column is not None
        self.column = min(state.column, max(len(labels) - 1, 0))
        row = self.rows.find(state.rows, state.cursor) if state.cursor < len(state.rows) else None
        self.cursor = max(0, min(state.cursor if row is None else row, len(self.rows) - 1))
        self._changed()

    def refilter(self, text: str) -> None:
        """Set the filter; the cursor stays on its row if that matches."""
        source = self.current
        self.rows.filter(text)
        self._return_to(source)

    @property
    def current(self) -> int | None:
        """The source of the row under the cursor; None = the table is empty."""
        return self.rows.source(self.cursor) if len(self.rows) else None

    def go_to(self, source: int) -> None:
        """Move the cursor to a row, unless the filter hides it."""
        if self.rows.position(source) is not None and source != self.current:
            self._return_to(source)

    def _return_to(self, source: int | None) -> None:
        position = self.rows.position(source) if source is not None else None
        self.cursor = position if position is not None else 0
        self._changed()

    def _changed(self) -> None:
        self._strips.clear()
        self.virtual_size = Size(self._total_width, len(self.rows) + 1)
        self._show_cursor()
        self.refresh()
        self._announce()

    def _announce(self) -> None:
        source = self.current
        if source is not None:
            self.post_message(self.Highlighted(self, source))

    # -- widths --------------------------------------------------------------------------------------------

    def _measure(self) -> None:
        """Lay out the columns."""
        count = len(self.rows)
        sample = (
            range(count)
            if count <= 2 * _SAMPLE
            else [*range(_SAMPLE), *range(_SAMPLE, count, count // _SAMPLE)]
        )
        room = max(self.size.width - 1 - LEAD, 0)
        layout = lay_out(self.rows.headings, self.rows.text, sample, room, in_order=self._in_order)
        self._order, self._widths, self._contents = layout.order, layout.widths, layout.contents

    def whole_columns(self) -> set[int]:
        """Return the heading indices of the columns that are fully visible without scrolling."""
        found, start = set(), LEAD
        for index, width in zip(self._order, self._widths, strict=True):
            start += width
            if start <= self.size.width and width >= self._contents[index]:
                found.add(index)
            start += GAP
        return found

    @property
    def heading_index(self) -> int:
        """Index into the headings of the column under the cursor."""
        return self._order[self.column] if self.column < len(self._order) else 0

    @property
    def _total_width(self) -> int:
        return LEAD + sum(self._widths) + GAP * len(self._widths)

    def on_resize(self) -> None:
        self._measure()
        self._strips.clear()
        self.virtual_size = Size(self._total_width, len(self.rows) + 1)
        self._show_cursor()

    def notify_style_update(self) -> None:
        """Invalidate the lines drawn in the old colours."""
        super().notify_style_update()
        self._strips.clear()

    # -- drawing -------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        left, top = self.scroll_offset
        headed = self.rows.total > 0
        if y == 0 and headed:
            return self._in_view(self._header(), left, self._style("table--header"))
        position = top + y - 1
        if not 0 <= position < len(self.rows):
            text = ""
            if y == int(headed) and not len(self.rows):
                text = f" {'no rows match the filter; escape clears it' if headed else self.empty}"
            return Strip([Segment(set_cell_size(text, width), self._style("table--empty"))], width)
        at_cursor = position == self.cursor
        key = (position, left, self.column if at_cursor else -1, at_cursor and self.has_focus)
        strip = self._strips.get(key)
        if strip is None:
            strip = self._row(position, at_cursor)
            rest = self._row_style(at_cursor)
            strip = self._strips[key] = self._in_view(strip, left, rest)
        return strip

    def _in_view(self, strip: Strip, left: int, style: Style) -> Strip:
        """Return the visible part of a line, without numbers that an edge would cut."""
        first, right = left, left + self.size.width
        last, start = right, LEAD
        for index, width in zip(self._order, self._widths, strict=True):
            end, number = start + width, self.rows.headings[index].right
            if left < start < right < end and (number or right - start < _MIN_VISIBLE):
                last = start
            if number and start < left < end < right:
                first = end
            start = end + GAP
        blank = [Strip.blank(first - left, style)] if first > left else []
        return Strip.join([*blank, strip.crop(first, last)]).extend_cell_length(right - left, style)

    def _style(self, *names: str) -> Style:
        return self.get_component_rich_style(*names)

    def _row_style(self, at_cursor: bool) -> Style:
        if not at_cursor:
            return self._style("table--row")
        return self._style("table--cursor" if self.has_focus else "table--cursor-blurred")

    def _header(self) -> Strip:
        plain, under = self._style("table--header"), self._style("table--header-cursor")
        segments, order = [Segment(" " * LEAD, plain)], self.order
        for column, (index, width) in enumerate(zip(self._order, self._widths, strict=True)):
            heading = self.rows.headings[index]
            mark = ("▼" if order[1] else "▲") if order is not None and index == order[0] else ""
            mark = "…" if index == self.sorting else mark
            label = f"{heading.label} {mark}" if mark else heading.label
            if cell_len(label) > width and self.sorted_by is None and index != self.sorting:
                label = heading.label  # the mark of the initial order is optional
            if cell_len(label) > width:  # the mark replaces the ellipsis
                label = fit_text(heading.label, width - 1).rstrip("… ") + (mark or "…")
            style = under if column == self.column and self.has_focus else plain
            pad = " " * max(width - cell_len(label), 0)
            before, after = (pad, "") if heading.right else ("", pad)
            segments += [Segment(before, plain), Segment(label, style), Segment(after + " " * GAP, plain)]
        return Strip([segment for segment in segments if segment.text])

    @property
    def order(self) -> tuple[int, bool] | None:
        """The column that the rows are sorted by, and whether it is descending; None = unknown."""
        return (self.sorted_by, self.descending) if self.sorted_by is not None else self.rows.ranked

    def _row(self, position: int, at_cursor: bool) -> Strip:
        faint = not at_cursor and self.rows.faint(position)
        style = self._style("table--faint") if faint else self._row_style(at_cursor)
        cell_style = self._style("table--cursor-cell") if at_cursor and self.has_focus else style
        segments, order = [Segment(" " * LEAD, style)], self.order
        for column, (index, width) in enumerate(zip(self._order, self._widths, strict=True)):
            heading = self.rows.headings[index]
            text = fit_text(self.rows.text(position, index), width, heading.right, heading.elide)
            here = cell_style if column == self.column else style
            if order is not None and order[0] == index and heading.right and not (at_cursor or faint):
                blank = len(text) - len(text.lstrip())
                segments.append(Segment(text[:blank], here))
                level = sum(self.rows.heat(position, index) >= least for least in _HEAT)
                text, here = text[blank:], self._style(f"table--heat-{level}") if level else here
            segments.append(Segment(text, here))
            segments.append(Segment(" " * GAP, style))
        return Strip([segment for segment in segments if segment.text])

    def _show_cursor(self) -> None:
        page = max(self.size.height - 1 - self.show_horizontal_scrollbar, 1)
        top = self.scroll_offset.y
        if self.cursor < top:
            top = self.cursor
        elif self.cursor >= top + page:
            top = self.cursor - page + 1
        left = self.scroll_offset.x
        start = LEAD * bool(self.column) + sum(self._widths[: self.column]) + GAP * self.column
        end = start + LEAD + (self._widths[self.column] if self._widths else 0)
        if self.size.width and end > left + self.size.width:
            left = end - self.size.width
        left = min(left, start)
        self.scroll_to(left, top, animate=False)

    # -- sorting -------------------------------------------------------------------------------------------

    def sort_by(self, column: int | None, descending: bool = False) -> None:
        """Sort, keeping the cursor on its row; many rows are sorted by a worker first."""
        self.sorting = None
        if column is not None and self.rows.is_slow_to_sort(column):
            self.sorting = column
            self.refresh()
            self._prepare_sort(self.rows, column, descending)
            return
        source = self.current
        self.rows.sort(column, descending)
        self.sorted_by, self.descending = column, descending
        self._return_to(source)

    @work(thread=True, exclusive=True, group="sort", exit_on_error=False)
    def _prepare_sort(self, rows: FrameRows, column: int, descending: bool) -> None:
        rows.prepare_sort(column)
        self.call_later(self._show_order, rows, column, descending)

    on_worker_state_changed = notify_worker_error

    def _show_order(self, rows: FrameRows, column: int, descending: bool) -> None:
        """Show the new order, unless other rows or another order were requested in the meantime."""
        if rows is self.rows and column == self.sorting:
            self.sort_by(column, descending)

    # -- moving --------------------------------------------------------------------------------------------

    def move_to(self, position: int) -> None:
        """Move the cursor to a position, limited to the existing rows, and scroll to it."""
        position = max(0, min(position, len(self.rows) - 1))
        if position != self.cursor and len(self.rows):
            self.cursor = position
            self._show_cursor()
            self.refresh()
            self._announce()

    def action_move(self, by: int) -> None:
        self.move_to(self.cursor + by)

    def action_page(self, by: int) -> None:
        self.move_to(self.cursor + by * max(self.size.height - 2, 1))

    def action_edge(self, last: bool) -> None:
        self.move_to(len(self.rows) - 1 if last else 0)

    def action_column(self, by: int) -> None:
        if self._widths:
            self.column = max(0, min(self.column + by, len(self._widths) - 1))
            self._show_cursor()
            self.refresh()

    def action_sort(self) -> None:
        """Sort by the column under the cursor: numbers descending, text ascending, then the other way, then not."""
        if not self.rows.headings:
            return
        index = self.heading_index
        first = self.rows.headings[index].right
        if self.sorted_by != index:
            self.sort_by(index, first)
        elif self.descending == first:
            self.sort_by(index, not first)
        else:
            self.sort_by(None)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "select" or self.opens

    def action_select(self) -> None:
        if (source := self.current) is not None:
            self.post_message(self.Selected(self, source))

    def action_copy(self) -> None:
        """Copy the row under the cursor, cells separated by tabs."""
        if len(self.rows):
            self.app.copy_to_clipboard("\t".join(self.rows.text(self.cursor, i) for i in self._order))
            self.notify("row copied to the clipboard", timeout=2)

    def action_copy_cell(self) -> None:
        if len(self.rows):
            self.app.copy_to_clipboard(self.rows.text(self.cursor, self.heading_index))
            heading = self.rows.headings[self.heading_index].label
            self.notify(f"copied to the clipboard: {heading}", timeout=2)

    def on_click(self, event: events.Click) -> None:
        """Sort by a clicked heading, move to a clicked row, open a double-clicked row."""
        offset = event.get_content_offset(self)
        if offset is None or not self._widths:
            return
        x, column = offset.x + self.scroll_offset.x - LEAD, 0
        while column < len(self._widths) - 1 and x >= self._widths[column] + GAP:
            x -= self._widths[column] + GAP
            column += 1
        self.column = column
        if offset.y == 0:
            self.action_sort()
            return
        position = self.scroll_offset.y + offset.y - 1
        if position >= len(self.rows):
            return
        if position == self.cursor and event.chain == 2:
            self.action_select()
        self.move_to(position)
        self.refresh()
