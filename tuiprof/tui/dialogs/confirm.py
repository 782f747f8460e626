"""A question that must be answered before something cannot be undone."""

from __future__ import annotations

import textwrap
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import ModalScreen

from tuiprof.report.sanitize import sanitize
from tuiprof.tui.dialogs.dialog import dialog
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.widgets.key_bar import KeyBar
from tuiprof.tui.widgets.lines import Row
from tuiprof.tui.widgets.painted import Painted


class ConfirmScreen(ModalScreen[bool], inherit_bindings=False):
    """Asks, and answers True only to ``y``.

    Args:
        title: The question.
        lines: What will happen, plain text.
        yes: What ``y`` does, two or three words.
        no: What ``n`` and escape do.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        key("y", "answer(True)", "yes", "Do it", id="confirm.yes", group="Question"),
        key(
            "n,escape,q", "answer(False)", "no", "Do nothing", id="confirm.no", group="Question", display="n"
        ),
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
        """Answer.

        Args:
            yes: The answer.
        """
        self.dismiss(yes)
