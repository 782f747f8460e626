"""The result of one analysis: its verdict, its tables with the columns the user chose, and details below a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.getters import query_one
from textual.widgets import Input

from tuiprof.config import config_path
from tuiprof.model.report import Report, Table, Unavailable
from tuiprof.report.sanitize import sanitize, sanitize_lines
from tuiprof.system.files import explain, read_small_json, write_atomic
from tuiprof.tui.answers import view
from tuiprof.tui.widgets.filter import FilterBar, FilterError
from tuiprof.tui.widgets.frame_rows import FrameRows
from tuiprof.tui.widgets.lines import Lines, Painted, Row, VerdictLine, row_width
from tuiprof.tui.widgets.spans import wrap
from tuiprof.tui.widgets.table import TableState, VirtualTable

#: Minimum number of lines left below a table to show something there, and to separate it by a blank line.
_MIN_LINES, _MIN_LINES_WITH_GAP = 4, 8
#: Lines of a table of prose, if it needs them, before its rows are shown in full below it.
_MIN_PROSE_LINES = 6


class BelowTable(Lines):
    """The row under the cursor in full, and the following tables; shown below a table."""

    DEFAULT_CSS = "BelowTable { height: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._table: Table | None = None
        self._source: int | None = None
        self._complete_columns: set[str] = set()
        self._advice: Report | None = None
        self._next: Sequence[view.NextTable] = ()
        self._row_height = 0  # maximum so far, so that the tables below do not move with the cursor
        self._next_drawn: tuple[tuple[int, int], list[Row]] = ((0, 0), [])

    def set_table(self, table: Table | None, following: Sequence[view.NextTable]) -> None:
        """Set the table above, and the tables that follow it."""
        self._table, self._source, self._next = table, None, following
        self._row_height, self._next_drawn = 0, ((0, 0), [])

    def show_row(self, source: int | None, complete: set[str], advice: Report | None) -> None:
        """Show the columns of a row that are not ``complete`` in the table, and the advice on it; None = no row."""
        self._source, self._complete_columns, self._advice = source, complete, advice
        if source is None:
            self._row_height = 0
        self.redraw()

    def draw(self, width: int, height: int) -> list[Row]:
        lead: list[Row] = [[]] if height >= _MIN_LINES_WITH_GAP else []
        fields = self._fields()
        rows = [*lead, *view.field_rows(fields, width, height - len(lead))] if fields else []
        self._row_height = min(max(self._row_height, len(rows)), height)
        rows += [[]] * (self._row_height - len(rows))
        key = (width, height - self._row_height)
        if self._next_drawn[0] != key:
            self._next_drawn = (key, view.next_tables(self._next, *key))
        return rows + self._next_drawn[1]

    def _fields(self) -> list[view.Field]:
        table, source = self._table, self._source
        if table is None or source is None or source >= len(table.rows):
            return []
        fields = view.fields_of(table, source, self._complete_columns, self._advice)
        return fields if any(not field.complete for field in fields) else []


class AnswerTables(Vertical):
    """A table and the widget below it; divides the lines between them."""

    DEFAULT_CSS = """
    AnswerTables {
        height: 1fr;
        & > VirtualTable { height: 1fr; }
        & > BelowTable { display: none; }
        &.-roomy > BelowTable { display: block; }
    }
    """

    table = query_one(VirtualTable)
    below = query_one(BelowTable)

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self.advice: Report | None = None  # the report that may have advice on a row
        self._prose = False
        self._row_in_detail = False

    def compose(self) -> ComposeResult:
        yield VirtualTable(id="answer-table")
        yield BelowTable(id="answer-prose")

    def set_table(self, table: Table, following: Sequence[view.NextTable]) -> None:
        """Adapt to the table that was just loaded."""
        self._prose = table.prose
        self.below.set_table(table, following)
        self._divide()
        self.show_row()

    def set_row_in_detail(self, row_in_detail: bool) -> None:
        """Set whether the detail pane shows the row, which is then not repeated below."""
        if row_in_detail != self._row_in_detail:
            self._row_in_detail = row_in_detail
            self.show_row()

    def show_row(self) -> None:
        """Show the row under the cursor in full, if there is room."""
        table = self.table
        if self.has_class("-roomy"):
            complete = {table.rows.columns[index].key for index in table.whole_columns()}
            self.below.show_row(None if self._row_in_detail else table.current, complete, self.advice)

    def on_resize(self, event: events.Resize) -> None:
        """Divide the lines, and again after the layout, when it is known whether the table's columns fit."""
        self._divide()
        self.call_after_refresh(self._divide)
        self.call_after_refresh(self.show_row)

    def on_virtual_table_highlighted(self) -> None:
        self.show_row()

    def _divide(self) -> None:
        """Give the table the lines it needs and the widget below the rest, or the table all if few would be left."""
        table, height = self.table, self.size.height
        needs = max(table.rows.total, 1) + 1 + (table.virtual_size.width > table.size.width)
        if self._prose:
            needs = min(needs, max(height // 2, _MIN_PROSE_LINES))
        roomy = height - needs >= _MIN_LINES
        self.set_class(roomy, "-roomy")
        table.styles.height = needs if roomy else "1fr"


class Message(Painted, can_focus=True):
    """Text instead of a table; it can have the focus, so that the keys of the trace work."""


@dataclass(slots=True)
class _SavedTab:
    """State of a tab to restore."""

    answer: view.Answer
    table: str  # key of the selected table
    state: TableState
    needle: str  # filter


class AnswerPane(Vertical):
    """Shows the result of one analysis; for each tab it remembers table, order, filter and row."""

    DEFAULT_CSS = """
    AnswerPane {
        & > #answer-verdict { height: auto; max-height: 2; }
        & > #answer-title { height: 1; }
        & > #answer-message { height: 1fr; padding: 1 2; display: none; }
        & > #answer-note { height: auto; max-height: 2; }
        &.-quiet > #answer-verdict, &.-wordless > #answer-verdict { display: none; }
        &.-message > #answer-message { display: block; }
        &.-message > AnswerTables, &.-message > #answer-title, &.-message > #answer-note { display: none; }
    }
    """

    tables = query_one(AnswerTables)
    _bar = query_one(FilterBar)

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self.tab = ""
        self.answer: view.Answer | None = None
        self.needle = ""  # filter
        self._table = 0  # index of the table shown
        self._saved: dict[str, _SavedTab] = {}

    def compose(self) -> ComposeResult:
        yield VerdictLine(id="answer-verdict")
        yield Painted(id="answer-title")
        yield AnswerTables(id="answer-tables")
        yield Message(id="answer-message")
        yield Painted(id="answer-note")
        yield FilterBar(id="answer-filter")

    @property
    def table(self) -> VirtualTable:
        return self.tables.table

    @property
    def current_table(self) -> Table | None:
        """The table of the report that is shown; None = the report has none."""
        if isinstance(self.answer, Report) and self.answer.tables:
            return self.answer.tables[self._table]
        return None

    # -- content -------------------------------------------------------------------------------------------

    def show(
        self,
        tab: str,
        answer: view.Answer | None,
        *,
        question: str = "",
        verdict: bool = True,
        advice: view.Answer | None = None,
    ) -> None:
        """Show a tab, in the state in which it was left.

        Without an answer its analysis is still running, and the question is shown. The verdict may be shown elsewhere
        already. ``advice`` is the report that may have advice on a row of this one.
        """
        advice = advice if isinstance(advice, Report) else None
        if advice is not self.tables.advice:
            self.tables.advice = advice
            self.tables.show_row()
        if (tab, answer) == (self.tab, self.answer) and answer is not None:
            self.set_class(not verdict, "-quiet")
            return
        if isinstance(self.answer, Report) and self.answer.tables:
            key = self.answer.tables[self._table].key
            self._saved[self.tab] = _SavedTab(self.answer, key, self.table.state(), self.needle)
        tables = answer.tables if isinstance(answer, Report) else ()
        first = next((index for index, table in enumerate(tables) if len(table.rows)), 0)
        self.tab, self.answer, self._table, self.needle = tab, answer, first, ""
        self._bar.close()
        line = self.query_one("#answer-verdict", VerdictLine)
        had_focus = self.has_focus_within
        # At once, as each change styles all that is inside anew.
        self.update_classes(
            {
                "-quiet": not verdict,
                "-wordless": not isinstance(answer, Report) or not answer.verdict.sentence,
                "-message": not tables,
            }
        )
        if isinstance(answer, Report):
            line.show(answer.verdict.sentence, answer.verdict.level)
        if isinstance(answer, Report) and answer.tables:
            self._restore(self._saved.get(tab), answer)
        else:
            self.table.clear()
            rows = _message(answer, question)
            self.query_one("#answer-message", Painted).paint(
                lambda width, _h: [[(line, role)] for text, role in rows for line in wrap(text, width)]
            )
        self._write_lines()
        if had_focus:
            self.take_focus()

    def take_focus(self) -> None:
        """Focus the table, or the message shown instead."""
        self.query_one("#answer-message" if self.has_class("-message") else "#answer-table").focus()

    def _restore(self, saved: _SavedTab | None, answer: Report) -> None:
        """Restore the state of a tab; for a newer report, as far as possible."""
        keys = [table.key for table in answer.tables]
        if saved is None or saved.table not in keys:
            self._load_table()
            return
        self._table, self.needle = keys.index(saved.table), saved.needle
        if saved.answer is answer:
            self.table.restore(saved.state)
            self._set_table()
            return
        self._load_table()
        self.table.resume(saved.state, self.needle)

    def _load_table(self) -> None:
        table = self.current_table
        if table is not None:
            self.table.load(
                self._rows(table), empty=sanitize(table.empty), in_order=self._chosen(table) is not None
            )
            self._set_table()

    def _set_table(self) -> None:
        """Show the following tables below the current one."""
        answer, index = self.answer, self._table
        if isinstance(answer, Report) and answer.tables:
            following = [
                view.NextTable(sanitize(table.title), self._rows(table), sanitize(table.empty))
                for table in (*answer.tables[index + 1 :], *answer.tables[:index])
            ]
            self.tables.set_table(answer.tables[index], following)

    # -- columns -------------------------------------------------------------------------------------------

    def _chosen(self, table: Table) -> list[str] | None:
        """Return the keys of the columns the user chose; None = the default columns."""
        found = _read_choices().get(f"{self.tab}.{table.key}")
        known = [column.key for column in table.columns]
        return [key for key in found if key in known] or None if isinstance(found, list) else None

    def _rows(self, table: Table) -> FrameRows:
        return FrameRows(table.rows, table.columns, self.shown_columns(table), table.faint)

    def shown_columns(self, table: Table) -> list[str]:
        """Return the keys of the columns to show, in order."""
        return self._chosen(table) or view.default_columns(table)

    def show_columns(self, table: Table, keys: list[str] | None) -> None:
        """Show these columns and remember them; None = the default columns.

        Raises:
            SessionError: The choice cannot be saved.
        """
        _save_choice(f"{self.tab}.{table.key}", keys)
        state = self.table.state()
        self._load_table()
        self.table.resume(state, self.needle)

    def next_table(self) -> None:
        if isinstance(self.answer, Report) and len(self.answer.tables) > 1:
            self._table = (self._table + 1) % len(self.answer.tables)
            self.needle = ""
            self._bar.close()
            self._load_table()
            self._write_lines()

    def _write_lines(self) -> None:
        """Update the title above the table and the note below it."""
        table, answer = self.current_table, self.answer
        title = self.query_one("#answer-title", Painted)
        note = self.query_one("#answer-note", Painted)
        if table is None or not isinstance(answer, Report):
            return
        row: Row = [(f" {sanitize(table.title)}", "title")]
        shown, total = len(self.table.rows), self.table.rows.total
        count = (
            f"{shown:,} of {total:,} rows" if shown != total else f"{total:,} rows" if total != 1 else "1 row"
        )
        row.append((f"  {count.replace(',', ' ')}", "dim"))
        if self.needle:
            row.append((f"  filter: {sanitize(self.needle)}", "accent"))
        if len(answer.tables) > 1:
            row.append((f"  table {self._table + 1} of {len(answer.tables)}", "dim"))
        title.paint(lambda _w, _h: [row])
        notes = [sanitize(text) for text in (table.note, *answer.notes) if text]
        note.paint(lambda width, height: _note_rows(notes, width, height or 2))

    def as_shown(self) -> Report | None:
        """Return a report of the current table, with the rows, order and columns on screen; None = no table."""
        table, answer, rows = self.current_table, self.answer, self.table.rows
        if table is None or not isinstance(answer, Report):
            return None
        parts = [f"filter: {self.needle}"] if self.needle else []
        if (sorted_by := self.table.sorted_by) is not None:
            direction = "descending" if self.table.descending else "ascending"
            parts.append(f"sorted by {rows.columns[sorted_by].label}, {direction}")
        columns = tuple(replace(column, hidden=False) for column in rows.columns)
        chart = table.chart
        if chart is not None and not chart.column_keys <= {column.key for column in columns}:
            chart = None
        part = rows.shown()
        faint = table.faint if table.faint in part.columns else ""
        note = " · ".join(parts) or table.note
        shown = replace(table, columns=columns, rows=part, note=note, chart=chart, faint=faint)
        return replace(answer, facts=(), tables=(shown,))

    # -- one row -------------------------------------------------------------------------------------------

    def event_row(self, source: int) -> int | None:
        """Return the row in the trace of the event that represents a row of the table; None = it has none."""
        table = self.current_table
        if table is None or "event" not in table.rows.columns:
            return None
        row = table.rows["event"][source]
        return int(row) if row is not None and row >= 0 else None

    def more_in(self, source: int) -> str:
        """Return the title of the analysis that explains a row of the table; empty = this one."""
        table = self.current_table
        if table is None or view.MORE_IN not in table.rows.columns:
            return ""
        return str(table.rows[view.MORE_IN][source] or "")

    def row_detail(self, source: int) -> view.RowDetail | None:
        """Return all cells of a row of the table."""
        table = self.current_table
        if table is None or not 0 <= source < len(table.rows):
            return None
        columns = [column for column in table.columns if not column.hidden]
        rows = FrameRows(table.rows, columns)
        cells = tuple((column.label, rows.text(source, index)) for index, column in enumerate(columns))
        return view.RowDetail(table.title, cells)

    # -- filter --------------------------------------------------------------------------------------------

    def open_filter(self) -> None:
        table = self.current_table
        if table is not None:
            self._bar.open(self.needle, [column for column in table.columns if not column.hidden])

    def clear_filter(self) -> bool:
        """Clear the filter; return whether there was one."""
        if not self.needle:
            return False
        self._apply_filter("")
        return True

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        if self._bar.is_open:
            self._apply_filter(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Go to the rows; an invalid filter stays open for correction."""
        event.stop()
        if self._apply_filter(event.value):
            self._bar.close()
            self.table.focus()

    def _apply_filter(self, text: str) -> bool:
        """Filter the rows; return whether the filter is valid."""
        error: FilterError | None = None
        if text != self.needle:
            try:
                self.table.refilter(text)
                self.needle = text
            except FilterError as problem:
                error = problem
            self._write_lines()
        if self._bar.is_open:
            self._bar.explain(error)
        return error is None


def _message(answer: view.Answer | None, question: str) -> list[tuple[str, str]]:
    """Return text and role of the lines to show without a table: running, unavailable, or only notes."""
    if answer is None:
        return [("analysing …", "dim"), (sanitize(question), "dim")]
    if isinstance(answer, Unavailable):
        rows = [(f"Not available: {sanitize_lines(answer.reason)}", "strong")]
        return (
            [*rows, ("", "text"), (f"→ {sanitize_lines(answer.remedy)}", "text")] if answer.remedy else rows
        )
    return [(sanitize(note), "dim") for note in answer.notes] or [("no tables", "dim")]


def _note_rows(notes: list[str], width: int, lines: int) -> list[Row]:
    """Return the notes that fit completely, and the key that shows the others."""
    room = max(width - 2, 8)
    rows: list[Row] = []
    left_out = False
    for text in notes:
        parts = wrap(text, room)
        if len(rows) + len(parts) > lines:
            left_out = True
            break
        rows += [[(f" {part}", "dim")] for part in parts]
    if left_out and not rows:
        return [[("  r", "key"), (" notes, figures and rules", "dim")]]
    if left_out and row_width(rows[-1]) + 12 <= width:
        rows[-1] = [*rows[-1], ("  r", "key"), (" more", "dim")]
    return rows


def _choices_path() -> Path:
    """Return the file of chosen columns, which maps analysis and table (``sync_events.places``) to keys."""
    return config_path().with_name("columns.json")


def _read_choices() -> dict[str, object]:
    return read_small_json(_choices_path(), dict) or {}


def _save_choice(name: str, keys: list[str] | None) -> None:
    """Save the columns chosen for a table; None = the default columns."""
    choices = _read_choices()
    choices.pop(name, None)
    if keys is not None:
        choices[name] = keys
    path = _choices_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explain(error, path.parent, "create") from error
    write_atomic(path, json.dumps(choices, indent=1).encode())
