"""The box of a dialog, and the dialogs without fields: a question, a list to choose from, the columns of a table."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen

from tuiprof.report.sanitize import sanitize
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.widgets.bars import KeyBar
from tuiprof.tui.widgets.choices import Choice, Choices
from tuiprof.tui.widgets.lines import Painted, Row
from tuiprof.tui.widgets.rows import fit_text

if TYPE_CHECKING:
    from tuiprof.model.report import Column

#: Width of a dialog, and of the border, padding and cursor of a choice.
_WIDTH, _AROUND = 76, 8


def dialog(title: str, classes: str = "dialog") -> Vertical:
    """Return the box; its title is text, never markup, as it may name a session or file."""
    box = Vertical(classes=classes)
    box.border_title = Content(sanitize(title))
    return box


class ConfirmScreen(ModalScreen[bool], inherit_bindings=False):
    """Asks a question with its consequences (``lines``), and answers True only to ``y``."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("y", "answer(True)", "yes", "Yes", id="confirm.yes", group="Question"),
        key("n,escape,q", "answer(False)", "no", "No", id="confirm.no", group="Question", display="n"),
    ]

    def __init__(self, title: str, lines: list[str], *, yes: str = "yes", no: str = "no") -> None:
        super().__init__()
        self._question = title
        self._lines = lines
        self._words = (yes, no)

    def compose(self) -> ComposeResult:
        """One box: the question, what it means, the two keys."""
        with dialog(self._question):
            yield Painted(id="words")
            yield KeyBar({"confirm.yes": self._words[0], "confirm.no": self._words[1]})

    def on_mount(self) -> None:
        """Fill in the words."""

        def words(width: int, _height: int) -> list[Row]:
            wrapped = [part for line in self._lines for part in textwrap.wrap(sanitize(line), max(20, width))]
            return [*([(part, "text")] for part in wrapped), []]

        self.query_one("#words", Painted).paint(words)

    def action_answer(self, yes: bool) -> None:
        """Answer."""
        self.dismiss(yes)


class PickScreen(ModalScreen[int | None], inherit_bindings=False):
    """Answers the index of the chosen name, or None; ``start`` is under the cursor at first."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key(
            "escape,q",
            "cancel",
            "cancel",
            "Close without choosing",
            id="pick.cancel",
            group="Choice",
            display="esc",
        )
    ]

    def __init__(self, title: str, names: list[str], start: int = 0) -> None:
        super().__init__()
        self._question = title
        self._names = names
        self._start = start

    def compose(self) -> ComposeResult:
        """One box with the list."""
        with dialog(self._question) as box:
            longest = max((cell_len(sanitize(name)) for name in self._names), default=0)
            box.styles.width = max(_WIDTH, longest + _AROUND)
            choices = Choices(id="names")
            choices.styles.height = min(len(self._names), 16)
            yield choices
            yield KeyBar()

    def on_mount(self) -> None:
        """Fill the list."""
        choices = self.query_one(Choices)
        choices.show(
            [Choice(str(index), [(sanitize(name), "text")]) for index, name in enumerate(self._names)]
        )
        choices.move_to(str(self._start))
        choices.focus()

    def on_choices_chosen(self, event: Choices.Chosen) -> None:
        """Answer with the choice."""
        self.dismiss(int(event.key))

    def action_cancel(self) -> None:
        """Answer nothing."""
        self.dismiss(None)


def _key(keys: str, action: str, label: str, tooltip: str, display: str | None = None) -> Binding:
    name = label.replace(" ", "_")
    return key(
        keys,
        action,
        label,
        tooltip,
        id=f"columns.{name.replace('_/_', '_or_')}",
        group="Columns",
        display=display,
    )


class ColumnsScreen(ModalScreen[list[str] | None], inherit_bindings=False):
    """Answers the keys of the columns to show, in order; empty = as by default; None = as it was."""

    BINDINGS: ClassVar[list[BindingType]] = [
        _key("enter", "take", "show these", "Show these columns, and remember them"),
        _key("space,x", "toggle_column", "show / hide", "Show or hide the column under the cursor", "space"),
        _key("K,shift+up", "shift(-1)", "earlier", "Move the column to the left", "K"),
        _key("J,shift+down", "shift(1)", "later", "Move the column to the right", "J"),
        _key("r", "reset", "default", "Restore the default columns"),
        _key("escape,q", "cancel", "cancel", "Close without changing the columns", "esc"),
    ]

    def __init__(self, columns: Sequence[Column], shown: Sequence[str]) -> None:
        super().__init__()
        by_key = {column.key: column for column in columns}
        first = [by_key[name] for name in shown if name in by_key]
        self._columns = [*first, *(column for column in columns if column.key not in shown)]
        self._shown = set(shown)

    def compose(self) -> ComposeResult:
        """One box with the list."""
        with dialog("columns"):
            choices = Choices(id="columns")
            choices.styles.height = min(len(self._columns), 18)
            yield choices
            yield KeyBar()

    def on_mount(self) -> None:
        """Fill the list."""
        self._draw()
        self.query_one(Choices).focus()

    def _draw(self) -> None:
        self.query_one(Choices).show([Choice(column.key, self._line(column)) for column in self._columns])

    def _line(self, column: Column) -> Row:
        on = column.key in self._shown
        label = fit_text(sanitize(column.label), 18)
        return [
            ("[x] " if on else "[ ] ", "accent" if on else "dim"),
            (label, "text" if on else "dim"),
            ("  " + sanitize(column.help), "dim"),
        ]

    @property
    def _here(self) -> int:
        current = self.query_one(Choices).current
        return next(i for i, column in enumerate(self._columns) if column.key == current)

    def action_toggle_column(self) -> None:
        """Show or hide the column under the cursor."""
        self._shown ^= {self._columns[self._here].key}
        self._draw()

    def action_shift(self, by: int) -> None:
        """Move the column under the cursor."""
        here = self._here
        there = here + by
        if 0 <= there < len(self._columns):
            self._columns[here], self._columns[there] = self._columns[there], self._columns[here]
            self._draw()

    def on_choices_chosen(self) -> None:
        """Take the choice: enter in the list."""
        self.action_take()

    def action_take(self) -> None:
        """Answer with the choice."""
        chosen = [column.key for column in self._columns if column.key in self._shown]
        if chosen:
            self.dismiss(chosen)
        else:
            self.notify("a table needs a column", severity="warning", timeout=3)

    def action_reset(self) -> None:
        """Return that the choice was cancelled."""
        self.dismiss([])

    def action_cancel(self) -> None:
        """Answer nothing."""
        self.dismiss(None)
