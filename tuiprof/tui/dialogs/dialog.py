"""The box of a dialog, and the dialogs without fields: a question to answer with a key, and a list to choose from."""

from __future__ import annotations

import textwrap
from typing import ClassVar

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen

from tuiprof.report.sanitize import sanitize
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.widgets.bars import KeyBar
from tuiprof.tui.widgets.choices import Choice, Choices
from tuiprof.tui.widgets.lines import Painted, Row

#: Width of a dialog, and of the border, padding and cursor of a choice.
_WIDTH, _AROUND = 76, 8


def dialog(title: str, classes: str = "dialog") -> Vertical:
    """Return the box; its title is text, never markup, as it may name a session or file."""
    box = Vertical(classes=classes)
    box.border_title = Content(sanitize(title))
    return box


class ConfirmScreen(ModalScreen[bool], inherit_bindings=False):
    """Asks, and answers True only to ``y``.

    Args:
        title: The question.
        lines: What will happen, plain text.
        yes: What ``y`` does, two or three words.
        no: What ``n`` and escape do.
    """

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
    """Answers the index of what was chosen, or None.

    Args:
        title: Title.
        names: The choices; untrusted text.
        start: Index under the cursor at first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        key(
            "escape,q",
            "cancel",
            "cancel",
            "Close without choosing",
            id="pick.cancel",
            group="Choice",
            display="esc",
        ),
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
