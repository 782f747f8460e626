"""One answer: its verdict, its figures, its tables one at a time, its rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import Input

from tuiprof.model.report import Report, Table, Unavailable
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.keys import key
from tuiprof.tui.results import Answer
from tuiprof.tui.widgets.detail import Finding
from tuiprof.tui.widgets.frame_rows import FrameRows
from tuiprof.tui.widgets.lines import Row
from tuiprof.tui.widgets.painted import Painted
from tuiprof.tui.widgets.rows import TableState
from tuiprof.tui.widgets.table import VirtualTable
from tuiprof.tui.widgets.verdict import Facts, VerdictLine
from tuiprof.tui.widgets.wrap import wrap


class FilterLine(Input):
    """Where the filter is typed; escape gives it up, enter keeps it."""

    DEFAULT_CSS = """
    FilterLine { height: 1; border: none; padding: 0 1; background: $surface; display: none; }
    FilterLine:focus { border: none; background-tint: transparent 0%; }
    FilterLine.-open { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        key("escape", "give_up", "clear filter", "Show all rows again", id="filter.clear", group="Filter"),
        key(
            "down",
            "submit",
            "to the rows",
            "Keep the filter, go to the rows",
            id="filter.keep",
            group="Filter",
            show=False,
        ),
    ]

    def action_give_up(self) -> None:
        """Clear the text; the pane then closes the line."""
        self.value = ""
        self.post_message(self.Submitted(self, ""))


class Message(Painted, can_focus=True):
    """Stands where the table would; takes the focus, so that the keys of the trace go on working."""


@dataclass(slots=True)
class _Kept:
    """How a tab was left: its answer, which of its tables, and how that showed."""

    answer: Answer
    table: str
    state: TableState
    needle: str


class AnswerPane(Vertical):
    """Shows the answer of one analysis."""

    DEFAULT_CSS = """
    AnswerPane {
        & > #answer-verdict { height: auto; max-height: 2; }
        & > #answer-facts { height: auto; max-height: 2; }
        & > #answer-title { height: 1; }
        & > #answer-message { height: 1fr; padding: 1 2; display: none; }
        & > VirtualTable { height: 1fr; }
        & > #answer-note { height: auto; max-height: 2; }
        &.-quiet > #answer-verdict, &.-wordless > #answer-verdict { display: none; }
        &.-message > #answer-message { display: block; }
        &.-message > VirtualTable, &.-message > #answer-title, &.-message > #answer-note { display: none; }
    }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self.tab = ""
        self.answer: Answer | None = None
        self.needle = ""
        self._table = 0
        self._kept: dict[str, _Kept] = {}

    def compose(self) -> ComposeResult:
        """Verdict, figures, table, note, filter."""
        yield VerdictLine(id="answer-verdict")
        yield Facts(id="answer-facts")
        yield Painted(id="answer-title")
        yield VirtualTable(id="answer-table")
        yield Message(id="answer-message")
        yield Painted(id="answer-note")
        yield FilterLine(placeholder="show rows that contain …", compact=True, id="answer-filter")

    @property
    def table(self) -> VirtualTable:
        """The table widget."""
        return self.query_one(VirtualTable)

    @property
    def current_table(self) -> Table | None:
        """The table of the report that shows."""
        if isinstance(self.answer, Report) and self.answer.tables:
            return self.answer.tables[self._table]
        return None

    # -- content -------------------------------------------------------------------------------------------

    def show(self, tab: str, answer: Answer | None, *, question: str = "", verdict: bool = True) -> None:
        """Show an answer, as it was left when it was shown before.

        Args:
            tab: Name of its tab.
            answer: The answer; None while it is worked out.
            question: The question of the analysis, shown meanwhile.
            verdict: Whether to show its verdict (it may stand above already).
        """
        if (tab, answer) == (self.tab, self.answer) and answer is not None:
            self.set_class(not verdict, "-quiet")
            return
        self._keep()
        self.tab, self.answer, self._table, self.needle = tab, answer, 0, ""
        self._close_filter()
        line = self.query_one("#answer-verdict", VerdictLine)
        self.set_class(not verdict, "-quiet")
        self.set_class(not isinstance(answer, Report) or not answer.verdict.sentence, "-wordless")
        self.query_one(Facts).show(answer if isinstance(answer, Report) else None)
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

    def take_focus(self) -> None:
        """Focus what shows: the table, or the message in its place."""
        self.query_one("#answer-message" if self.has_class("-message") else "#answer-table").focus()

    def _keep(self) -> None:
        if isinstance(self.answer, Report) and self.answer.tables:
            key = self.answer.tables[self._table].key
            self._kept[self.tab] = _Kept(self.answer, key, self.table.state(), self.needle)

    def _resume(self, kept: _Kept | None, answer: Report) -> None:
        """Show a tab as it was left: also a newer answer, with the same order, filter and row where it has them."""
        keys = [table.key for table in answer.tables]
        if kept is None or kept.table not in keys:
            self._load_table()
            return
        self._table, self.needle = keys.index(kept.table), kept.needle
        if kept.answer is answer:
            self.table.restore(kept.state)
            return
        self._load_table()
        self.table.resume(kept.state, self.needle)

    def _load_table(self) -> None:
        table = self.current_table
        if table is not None:
            self.table.load(FrameRows(table.rows, table.columns), empty=sanitize(table.empty))

    def next_table(self, by: int = 1) -> None:
        """Show another table of the report.

        Args:
            by: How many further, around.
        """
        if isinstance(self.answer, Report) and len(self.answer.tables) > 1:
            self._table = (self._table + by) % len(self.answer.tables)
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
            row.append((f"  table {self._table + 1} of {len(answer.tables)}", "faint"))
        title.paint(lambda _w, _h: [row])
        notes = [sanitize(text) for text in (table.note, *answer.notes) if text]
        rule = sanitize(f"rule {answer.rules[0].name}: {answer.rules[0].text}") if answer.rules else ""
        more = len(answer.rules) - 1
        if rule and more > 0:
            rule = f"{rule}  (+{more} more)"
        note.paint(lambda width, height: _note_rows(" · ".join(notes), rule, width, height))

    # -- one row -------------------------------------------------------------------------------------------

    def event_row(self, source: int) -> int | None:
        """Return the typical event behind a row of the table; None = the row names none.

        Args:
            source: Row of the table.
        """
        table = self.current_table
        if table is None or "event" not in table.rows.columns:
            return None
        row = table.rows["event"][source]
        return int(row) if row is not None and row >= 0 else None

    def finding(self, source: int) -> Finding | None:
        """Return a row of the table, whole.

        Args:
            source: Row of the table.
        """
        rows, table = self.table.rows, self.current_table
        position = rows.position(source)
        if table is None or position is None or not isinstance(rows, FrameRows):
            return None
        cells = tuple(
            (heading.label, rows.text(position, index)) for index, heading in enumerate(rows.headings)
        )
        return Finding(table.title, cells)

    # -- filter --------------------------------------------------------------------------------------------

    def open_filter(self) -> None:
        """Ask for a text to filter by."""
        if self.current_table is None:
            return
        line = self.query_one(FilterLine)
        line.add_class("-open")
        line.value = self.needle
        line.focus()

    def clear_filter(self) -> bool:
        """Show all rows again; return whether there was a filter."""
        if not self.needle:
            return False
        self._apply_filter("")
        return True

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while typing."""
        event.stop()
        if event.input.has_class("-open"):
            self._apply_filter(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Back to the rows."""
        event.stop()
        self._apply_filter(event.value)
        self._close_filter()
        self.table.focus()

    def _apply_filter(self, text: str) -> None:
        if text != self.needle:
            self.needle = text
            self.table.refilter(text)
            self._write_lines()

    def _close_filter(self) -> None:
        self.query_one(FilterLine).remove_class("-open")


def _message(answer: Answer | None, question: str) -> list[tuple[str, str]]:
    """Say why there is no table: being worked out, unavailable, or a verdict without evidence."""
    if answer is None:
        return [("working it out …", "dim"), (sanitize(question), "faint")]
    if isinstance(answer, Unavailable):
        rows = [(f"Not available: {sanitize(answer.reason)}", "strong")]
        return [*rows, ("", "text"), (f"→ {sanitize(answer.remedy)}", "text")] if answer.remedy else rows
    return [(sanitize(note), "dim") for note in answer.notes] or [
        ("no tables: the verdict says it all", "dim")
    ]


def _note_rows(notes: str, rule: str, width: int, height: int) -> list[Row]:
    """One line of notes and one of the rule; where there is one line only, where the rest is."""
    more: Row = [("  r", "key"), (" rules", "dim")] if height == 1 and notes and rule else []
    rows: list[Row] = []
    for text, role in ((notes, "dim"), (rule, "faint")):
        if text and not (more and rows):
            cut = wrap(text, max(width - 2 - 9 * bool(more), 8), most=1)[0]
            rows.append([(f" {cut}", role), *more])
    return rows
