"""The filter input: the text, and below it suggestions or the error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import Input

from tuiprof.model.report import Column
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.widgets.filter_expression import FilterError
from tuiprof.tui.widgets.lines import Row, fit
from tuiprof.tui.widgets.painted import Painted

_MARGIN = 1
#: What a figure of each kind may be compared with.
_FIGURES: Final = {"ns": "1ms", "bytes": "1MiB", "share": "5%", "count": "10", "number": "10", "rate": "10"}


class FilterLine(Input):
    """The text; escape gives it up, enter keeps it."""

    DEFAULT_CSS = """
    FilterLine { height: 1; border: none; background: $surface; }
    FilterLine, FilterLine.-textual-compact { padding: 0 1; }
    FilterLine:focus { border: none; background-tint: transparent 0%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        key("escape", "give_up", "clear filter", "Show all rows again", id="filter.clear", group="Filter"),
        key(
            "down",
            "submit",
            "to the rows",
            "Keep the filter and go to the rows",
            id="filter.keep",
            group="Filter",
            show=False,
        ),
    ]

    def action_give_up(self) -> None:
        """Clear the text; the pane then closes the line."""
        self.value = ""
        self.post_message(self.Submitted(self, ""))


class FilterBar(Vertical):
    """The text and the line below it; hidden until it is opened."""

    DEFAULT_CSS = """
    FilterBar { height: auto; display: none; }
    FilterBar.-open { display: block; }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._columns: tuple[str, ...] = ()

    def compose(self) -> ComposeResult:
        """The text, the hint."""
        yield FilterLine(compact=True)
        yield Painted()

    @property
    def is_open(self) -> bool:
        """Whether a filter is being typed."""
        return self.has_class("-open")

    def open(self, text: str, columns: Sequence[Column]) -> None:
        """Ask for a filter of rows with these columns."""
        self._columns = tuple(sanitize(column.label) for column in columns)
        self.add_class("-open")
        line = self.query_one(FilterLine)
        line.placeholder = f"text to search for, or a condition such as: {example(columns)}"
        line.value = text
        line.focus()
        self.explain(None)

    def close(self) -> None:
        """Ask no more."""
        self.remove_class("-open")

    def explain(self, error: FilterError | None) -> None:
        """Show the error below its character; without an error, suggestions.

        Args:
            error: What is wrong; None = nothing.
        """
        if error is None:
            names = " · ".join(self._columns)
            row: Row = [(f" > < = != ~ and or not ( )   columns: {names}", "dim")]
        else:
            row = [(" " * (_MARGIN + error.at) + "^ ", "bad"), (sanitize(error.message), "bad")]
        self.query_one(Painted).paint(lambda width, _h: [_placed(row, width)])


def example(columns: Sequence[Column]) -> str:
    """Return a filter of a table's own columns: of its first figure and its first text."""
    parts = []
    if (figure := next((column for column in columns if column.kind in _FIGURES), None)) is not None:
        parts.append(f"{sanitize(figure.label)} > {_FIGURES[figure.kind]}")
    if (words := next((column for column in columns if column.kind == "text"), None)) is not None:
        parts.append(f"{sanitize(words.label)} ~ copy")
    return " and ".join(parts)


def _placed(row: Row, width: int) -> Row:
    """Return a row cut to the width; an explanation that would lose more than half goes before its mark."""
    if len(row) == 2 and len(row[0][0]) + len(row[1][0]) > width:
        mark, text = row[0][0], row[1][0]
        room = len(mark) - 3
        if room > width - len(mark):
            before = f" {text}"[: room - 1]
            ending = "…" if len(text) + 1 > room - 1 else ""
            return [((before + ending).ljust(len(mark) - 2) + "^", row[1][1])]
    return fit(row, width)
