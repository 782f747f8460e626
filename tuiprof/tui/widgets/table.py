"""A table that draws only what is in view: a million rows open and scroll like ten."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.message import Message
from textual.worker import Worker

from tuiprof.tui.terminal.worker_errors import tell_worker_error
from tuiprof.tui.widgets.rows import GAP, Rows
from tuiprof.tui.widgets.table_canvas import LEAD, TableCanvas
from tuiprof.tui.widgets.table_keys import KEYS


class VirtualTable(TableCanvas, can_focus=True):
    """A sortable table over :class:`~tuiprof.tui.widgets.rows.Rows`.

    The cursor is a row and a column: the row is what ``enter`` opens, the column is what ``s`` sorts by.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*KEYS]

    class Highlighted(Message):
        """The cursor came to another row.

        Attributes:
            table: The table.
            source: The row, as its rows name it.
        """

        def __init__(self, table: VirtualTable, source: int) -> None:
            super().__init__()
            self.table = table
            self.source = source

        @property
        def control(self) -> VirtualTable:
            """The table."""
            return self.table

    class Selected(Highlighted):
        """A row was opened with enter or a click on the row under the cursor."""

    class Sorted(Message):
        """The order changed.

        Attributes:
            table: The table.
        """

        def __init__(self, table: VirtualTable) -> None:
            super().__init__()
            self.table = table

    class Ordered(Message):
        """The order of a column was worked out.

        Attributes:
            rows: Of which rows.
            column: Index of the column.
            descending: Whether the largest were wanted first.
        """

        def __init__(self, rows: Rows, column: int, descending: bool) -> None:
            super().__init__()
            self.rows = rows
            self.column = column
            self.descending = descending

    def _announce(self) -> None:
        source = self.current
        if source is not None:
            self.post_message(self.Highlighted(self, source))

    def sort_by(self, column: int | None, descending: bool = False) -> None:
        """Sort, keeping the cursor on its row; of many rows once a worker has found the order.

        Args:
            column: Index of the column; None = the order given at first.
            descending: Largest first.
        """
        self.sorting = None
        if column is not None and self.rows.is_slow_to_sort(column):
            self.sorting = column
            self.refresh()
            work = partial(self._find_order, self.rows, column, descending)
            self.run_worker(work, thread=True, exclusive=True, group="sort", exit_on_error=False)
            return
        source = self.current
        self.rows.sort(column, descending)
        self.sorted_by, self.descending = column, descending
        self._return_to(source)
        self.post_message(self.Sorted(self))

    def _find_order(self, rows: Rows, column: int, descending: bool) -> None:
        """In a thread: sort, while the old order still shows."""
        rows.prepare_sort(column)
        self.post_message(self.Ordered(rows, column, descending))

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Tell what went wrong while sorting."""
        tell_worker_error(self, event)

    def on_virtual_table_ordered(self, message: Ordered) -> None:
        """Show the order, unless other rows or another order are wanted meanwhile."""
        message.stop()
        if message.rows is self.rows and message.column == self.sorting:
            self.sort_by(message.column, message.descending)

    # -- moving --------------------------------------------------------------------------------------------

    def move_to(self, position: int) -> None:
        """Put the cursor on a row and bring it into view.

        Args:
            position: Position in view; beyond the ends = the end.
        """
        position = max(0, min(position, len(self.rows) - 1))
        if position != self.cursor and len(self.rows):
            self.cursor = position
            self._show_cursor()
            self.refresh()
            self._announce()

    def action_move(self, by: int) -> None:
        """Move the cursor by rows."""
        self.move_to(self.cursor + by)

    def action_page(self, by: int) -> None:
        """Move the cursor by pages."""
        self.move_to(self.cursor + by * max(self.size.height - 2, 1))

    def action_edge(self, last: bool) -> None:
        """Move the cursor to the first or the last row."""
        self.move_to(len(self.rows) - 1 if last else 0)

    def action_column(self, by: int) -> None:
        """Move the column under the cursor."""
        if self._widths:
            self.column = max(0, min(self.column + by, len(self._widths) - 1))
            self._show_cursor()
            self.refresh()

    def action_sort(self) -> None:
        """Sort by the column under the cursor: most telling way first, then the other, then as given."""
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

    def action_select(self) -> None:
        """Open the row under the cursor."""
        if (source := self.current) is not None:
            self.post_message(self.Selected(self, source))

    def action_copy(self) -> None:
        """Copy the row under the cursor, cells separated by tabs."""
        if len(self.rows):
            self.app.copy_to_clipboard("\t".join(self.rows.text(self.cursor, i) for i in self._order))
            self.notify("row copied to the clipboard", timeout=2)

    def action_copy_cell(self) -> None:
        """Copy the cell under the cursor."""
        if len(self.rows):
            self.app.copy_to_clipboard(self.rows.text(self.cursor, self.heading_index))
            heading = self.rows.headings[self.heading_index].label
            self.notify(f"copied to the clipboard: {heading}", timeout=2)

    def on_click(self, event: events.Click) -> None:
        """Sort by a clicked heading; move to a clicked row, and open it when it is under the cursor already."""
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
