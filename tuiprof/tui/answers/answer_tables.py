"""The table of an answer, and in the room it leaves: its row spelled out, and the tables that come next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical

from tuiprof.model.report import Report, Table
from tuiprof.tui.answers.view import Field, NextTable, field_rows, fields_of, next_tables
from tuiprof.tui.widgets.frame_rows import FrameRows
from tuiprof.tui.widgets.lines import Lines, Row
from tuiprof.tui.widgets.table import VirtualTable

#: Fewer lines than this below a table stay empty.
_FEWEST: Final = 4
#: Minimum number of lines for a blank line below the table.
_AIRY: Final = 8


class Below(Lines):
    """Shown below a table: the row under its cursor, then the following tables."""

    DEFAULT_CSS = "Below { height: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._table: Table | None = None
        self._source: int | None = None
        self._whole: set[str] = set()
        self._advice: Report | None = None
        self._next: Sequence[NextTable] = ()
        self._tallest = 0
        self._next_drawn: tuple[tuple[int, int], list[Row]] = ((0, 0), [])

    def begin(self, table: Table | None, following: Sequence[NextTable]) -> None:
        """Follow another table."""
        self._table, self._source, self._next = table, None, following
        self._tallest, self._next_drawn = 0, ((0, 0), [])

    def spell_out(self, source: int | None, whole: set[str], advice: Report | None) -> None:
        """Spell out a row.

        Args:
            source: Row of the table; None = none.
            whole: Keys of the columns that the table shows whole.
            advice: The answer that may hold advice on it.
        """
        self._source, self._whole, self._advice = source, whole, advice
        if source is None:
            self._tallest = 0
        self.redraw()

    def draw(self, width: int, height: int) -> list[Row]:
        """Draw the row, and the tables below it, which do not move with the cursor."""
        lead: list[Row] = [[]] if height >= _AIRY else []
        fields = self._fields()
        rows = [*lead, *field_rows(fields, width, height - len(lead))] if fields else []
        self._tallest = min(max(self._tallest, len(rows)), height)
        rows += [[]] * (self._tallest - len(rows))
        key = (width, height - self._tallest)
        if self._next_drawn[0] != key:
            self._next_drawn = (key, next_tables(self._next, *key))
        return rows + self._next_drawn[1]

    def _fields(self) -> list[Field]:
        table, source = self._table, self._source
        if table is None or source is None or source >= len(table.rows):
            return []
        fields = fields_of(table, source, self._whole, self._advice)
        return fields if any(not field.whole for field in fields) else []


class AnswerTables(Vertical):
    """Couples a table with the widget below it, and divides the lines between them.

    Attributes:
        advice: The answer that may hold advice on a row.
    """

    DEFAULT_CSS = """
    AnswerTables {
        height: 1fr;
        & > VirtualTable { height: 1fr; }
        & > Below { display: none; }
        &.-roomy > Below { display: block; }
    }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self.advice: Report | None = None
        self._prose = False
        self._in_detail = False

    def compose(self) -> ComposeResult:
        """The table above."""
        yield VirtualTable(id="answer-table")
        yield Below(id="answer-prose")

    @property
    def table(self) -> VirtualTable:
        """The table."""
        return self.query_one(VirtualTable)

    @property
    def below(self) -> Below:
        """The widget below it."""
        return self.query_one(Below)

    def begin(self, table: Table, following: Sequence[NextTable]) -> None:
        """Show what belongs to the table that was just loaded."""
        self._prose = table.prose
        self.below.begin(table, following)
        self._share()
        self.spell_out()

    def leave_to_detail(self, in_detail: bool) -> None:
        """Do not spell out the row that the detail pane shows anyway."""
        if in_detail != self._in_detail:
            self._in_detail = in_detail
            self.spell_out()

    def spell_out(self) -> None:
        """Show the row under the cursor in full, if there is room."""
        table, rows = self.table, self.table.rows
        if self.has_class("-roomy") and isinstance(rows, FrameRows):
            whole = {rows.columns[index].key for index in table.whole_columns()}
            self.below.spell_out(None if self._in_detail else table.current, whole, self.advice)

    def on_resize(self, event: events.Resize) -> None:
        """Divide the lines again, as it is only known after layout whether the table's columns fit."""
        self._share()
        self.call_after_refresh(self._share)
        self.call_after_refresh(self.spell_out)

    def on_virtual_table_highlighted(self) -> None:
        """Follow the cursor."""
        self.spell_out()

    def _share(self) -> None:
        """Give the table the lines it needs, and the widget below the rest; if there are few, the table gets all."""
        table, height = self.table, self.size.height
        needs = max(table.rows.total, 1) + 1 + (table.virtual_size.width > table.size.width)
        if self._prose:
            needs = min(needs, height // 2)
        roomy = height - needs >= _FEWEST
        self.set_class(roomy, "-roomy")
        table.styles.height = needs if roomy else "1fr"
