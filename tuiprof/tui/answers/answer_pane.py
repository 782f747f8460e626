"""The answer of one analysis: its verdict, its tables with the columns the user chose, and the rows below a table."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.getters import query_one
from textual.widgets import Input

from tuiprof.config import config_path
from tuiprof.model.report import Report, Table, Unavailable
from tuiprof.report.sanitize import sanitize, sanitize_lines
from tuiprof.tui.answers.view import (
    MORE_IN,
    Answer,
    Field,
    NextTable,
    RowDetail,
    default_columns,
    field_rows,
    fields_of,
    next_tables,
)
from tuiprof.tui.widgets.filter import FilterBar, FilterError
from tuiprof.tui.widgets.frame_rows import FrameRows
from tuiprof.tui.widgets.lines import Lines, Painted, Row, VerdictLine, row_width
from tuiprof.tui.widgets.rows import TableState
from tuiprof.tui.widgets.spans import wrap
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
    """Couples a table with the widget below it, and divides the lines between them."""

    DEFAULT_CSS = """
    AnswerTables {
        height: 1fr;
        & > VirtualTable { height: 1fr; }
        & > Below { display: none; }
        &.-roomy > Below { display: block; }
    }
    """

    table = query_one(VirtualTable)
    below = query_one(Below)

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self.advice: Report | None = None  # the answer that may hold advice on a row
        self._prose = False
        self._in_detail = False

    def compose(self) -> ComposeResult:
        """The table above."""
        yield VirtualTable(id="answer-table")
        yield Below(id="answer-prose")

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


class Message(Painted, can_focus=True):
    """Shown instead of a table; takes the focus, so that the keys of the trace keep working."""


@dataclass(slots=True)
class _Kept:
    """Saved state of a tab: its report, the selected table, and its view."""

    answer: Answer
    table: str
    state: TableState
    needle: str


class AnswerPane(Vertical):
    """Shows the answer of one analysis."""

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
        self.answer: Answer | None = None
        self.needle = ""
        self._table = 0
        self._kept: dict[str, _Kept] = {}

    def compose(self) -> ComposeResult:
        """Verdict, table, note, filter; figures and rules are a key away."""
        yield VerdictLine(id="answer-verdict")
        yield Painted(id="answer-title")
        yield AnswerTables(id="answer-tables")
        yield Message(id="answer-message")
        yield Painted(id="answer-note")
        yield FilterBar(id="answer-filter")

    @property
    def table(self) -> VirtualTable:
        """The table widget."""
        return self.tables.table

    @property
    def current_table(self) -> Table | None:
        """The table of the report that shows."""
        if isinstance(self.answer, Report) and self.answer.tables:
            return self.answer.tables[self._table]
        return None

    # -- content -------------------------------------------------------------------------------------------

    def show(
        self,
        tab: str,
        answer: Answer | None,
        *,
        question: str = "",
        verdict: bool = True,
        advice: Answer | None = None,
    ) -> None:
        """Show an answer, as it was left when it was shown before.

        Args:
            tab: Name of its tab.
            answer: The report; None while it is computed.
            question: The question of the analysis, shown while it runs.
            verdict: Whether to show its verdict (it may be shown above already).
            advice: The answer that may hold advice on a row of this one.
        """
        self._take_advice(advice if isinstance(advice, Report) else None)
        if (tab, answer) == (self.tab, self.answer) and answer is not None:
            self.set_class(not verdict, "-quiet")
            return
        self._keep()
        self.tab, self.answer, self._table, self.needle = tab, answer, _first_table(answer), ""
        self._close_filter()
        line = self.query_one("#answer-verdict", VerdictLine)
        self.set_class(not verdict, "-quiet")
        self.set_class(not isinstance(answer, Report) or not answer.verdict.sentence, "-wordless")
        if isinstance(answer, Report):
            line.show(answer.verdict.sentence, answer.verdict.level)
        had_focus = self.has_focus_within
        self.set_class(not isinstance(answer, Report) or not answer.tables, "-message")
        if isinstance(answer, Report) and answer.tables:
            self._resume(self._kept.get(tab), answer)
        else:
            self.table.clear()
            rows = _message(answer, question)
            self.query_one("#answer-message", Painted).paint(
                lambda width, _h: [[(line, role)] for text, role in rows for line in wrap(text, width)]
            )
        self._write_lines()
        if had_focus:
            self.take_focus()

    def _take_advice(self, advice: Report | None) -> None:
        if advice is not self.tables.advice:
            self.tables.advice = advice
            self.tables.spell_out()

    def take_focus(self) -> None:
        """Focus the table, or the message shown instead."""
        self.query_one("#answer-message" if self.has_class("-message") else "#answer-table").focus()

    def _keep(self) -> None:
        if isinstance(self.answer, Report) and self.answer.tables:
            key = self.answer.tables[self._table].key
            self._kept[self.tab] = _Kept(self.answer, key, self.table.state(), self.needle)

    def _resume(self, kept: _Kept | None, answer: Report) -> None:
        """Restore a tab, also with a newer report, keeping order, filter and row if possible."""
        keys = [table.key for table in answer.tables]
        if kept is None or kept.table not in keys:
            self._load_table()
            return
        self._table, self.needle = keys.index(kept.table), kept.needle
        if kept.answer is answer:
            self.table.restore(kept.state)
            self._begin_below()
            return
        self._load_table()
        self.table.resume(kept.state, self.needle)

    def _load_table(self) -> None:
        table = self.current_table
        if table is not None:
            self.table.load(
                FrameRows(table.rows, table.columns, self.shown_columns(table), table.faint),
                empty=sanitize(table.empty),
                in_order=self._chosen(table) is not None,
            )
            self._begin_below()

    def _begin_below(self) -> None:
        """Put the tables that come next below the one that shows."""
        answer, index = self.answer, self._table
        if isinstance(answer, Report) and answer.tables:
            following = (*answer.tables[index + 1 :], *answer.tables[:index])
            self.tables.begin(answer.tables[index], [self._next_table(table) for table in following])

    def _next_table(self, table: Table) -> NextTable:
        rows = FrameRows(table.rows, table.columns, self.shown_columns(table), table.faint)
        return NextTable(sanitize(table.title), rows, sanitize(table.empty))

    # -- columns -------------------------------------------------------------------------------------------

    def _chosen(self, table: Table) -> list[str] | None:
        found = _read_choices().get(f"{self.tab}.{table.key}")
        there = [column.key for column in table.columns]
        return [key for key in found if key in there] or None if isinstance(found, list) else None

    def shown_columns(self, table: Table) -> list[str]:
        """Return the keys of the columns that show, in order."""
        return self._chosen(table) or default_columns(table)

    def show_columns(self, table: Table, keys: list[str] | None) -> None:
        """Show other columns from now on.

        Raises:
            OSError: The choice cannot be kept.
        """
        _keep_choice(f"{self.tab}.{table.key}", keys)
        state = self.table.state()
        self._load_table()
        self.table.resume(state, self.needle)

    def next_table(self) -> None:
        """Show the next table of the report."""
        if isinstance(self.answer, Report) and len(self.answer.tables) > 1:
            self._table = (self._table + 1) % len(self.answer.tables)
            self.needle = ""
            self._close_filter()
            self._load_table()
            self._write_lines()

    def _write_lines(self) -> None:
        """Write the title above the table and the note below it."""
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
        """Return a report of the table that shows, with the rows, the order and the columns it shows."""
        table, answer, rows = self.current_table, self.answer, self.table.rows
        if table is None or not isinstance(answer, Report) or not isinstance(rows, FrameRows):
            return None
        parts = [f"filter: {self.needle}"] if self.needle else []
        if (sorted_by := self.table.sorted_by) is not None:
            way = "descending" if self.table.descending else "ascending"
            parts.append(f"sorted by {rows.columns[sorted_by].label}, {way}")
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
        """Return the typical event behind a row of the table; None = the row names none."""
        table = self.current_table
        if table is None or "event" not in table.rows.columns:
            return None
        row = table.rows["event"][source]
        return int(row) if row is not None and row >= 0 else None

    def elsewhere(self, source: int) -> str:
        """Return the title of the analysis that explains a row of the table; empty = this one does."""
        table = self.current_table
        if table is None or MORE_IN not in table.rows.columns:
            return ""
        return str(table.rows[MORE_IN][source] or "")

    def row_detail(self, source: int) -> RowDetail | None:
        """Return a row of the table, whole."""
        table = self.current_table
        if table is None or not 0 <= source < len(table.rows):
            return None
        columns = [column for column in table.columns if not column.hidden]
        rows = FrameRows(table.rows, columns)
        cells = tuple((column.label, rows.text(source, index)) for index, column in enumerate(columns))
        return RowDetail(table.title, cells)

    # -- filter --------------------------------------------------------------------------------------------

    def open_filter(self) -> None:
        """Ask for a filter."""
        table = self.current_table
        if table is not None:
            self._bar.open(self.needle, [column for column in table.columns if not column.hidden])

    def clear_filter(self) -> bool:
        """Show all rows again; return whether there was a filter."""
        if not self.needle:
            return False
        self._apply_filter("")
        return True

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while typing."""
        event.stop()
        if self._bar.is_open:
            self._apply_filter(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Return to the rows; an invalid filter stays open for correction."""
        event.stop()
        if self._apply_filter(event.value):
            self._close_filter()
            self.table.focus()

    def _apply_filter(self, text: str) -> bool:
        """Filter; return whether the text is a filter."""
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

    def _close_filter(self) -> None:
        self._bar.close()


def _first_table(answer: Answer | None) -> int:
    """Return the first table of an answer that has rows; without any, the first."""
    tables = answer.tables if isinstance(answer, Report) else ()
    return next((index for index, table in enumerate(tables) if len(table.rows)), 0)


def _message(answer: Answer | None, question: str) -> list[tuple[str, str]]:
    """Show why there is no table: in progress, unavailable, or a verdict without evidence."""
    if answer is None:
        return [("analysing …", "dim"), (sanitize(question), "dim")]
    if isinstance(answer, Unavailable):
        rows = [(f"Not available: {sanitize_lines(answer.reason)}", "strong")]
        return (
            [*rows, ("", "text"), (f"→ {sanitize_lines(answer.remedy)}", "text")] if answer.remedy else rows
        )
    return [(sanitize(note), "dim") for note in answer.notes] or [("no tables", "dim")]


def _note_rows(notes: list[str], width: int, lines: int) -> list[Row]:
    """Return as many notes as there is room for, each whole, and where the rest is."""
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
    """Return the file of chosen columns: by analysis and table, such as ``sync_events.places``, the keys to show."""
    return config_path().with_name("columns.json")


def _read_choices() -> dict[str, object]:
    try:
        content = json.loads(_choices_path().read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _keep_choice(name: str, keys: list[str] | None) -> None:
    """Keep the columns chosen for a table; None = forget them."""
    choices = _read_choices()
    choices.pop(name, None)
    if keys is not None:
        choices[name] = keys
    path = _choices_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".columns", delete=False) as file:
        json.dump(choices, file, indent=1)
    try:
        os.replace(file.name, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(file.name)
        raise
