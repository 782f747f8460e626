"""Choose one of a few things by name."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import ModalScreen

from tuiprof.report.sanitize import sanitize
from tuiprof.tui.dialogs.dialog import dialog
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.widgets.choices import Choice, Choices
from tuiprof.tui.widgets.key_bar import KeyBar


class PickScreen(ModalScreen[int | None], inherit_bindings=False):
    """Answers the index of what was chosen, or None.

    Args:
        title: What is asked.
        names: The choices; untrusted text.
        start: Index under the cursor at first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        key(
            "escape,q", "cancel", "cancel", "Choose nothing", id="pick.cancel", group="Choice", display="esc"
        ),
    ]

    def __init__(self, title: str, names: list[str], start: int = 0) -> None:
        super().__init__()
        self._question = title
        self._names = names
        self._start = start

    def compose(self) -> ComposeResult:
        """One box with the list."""
        with dialog(self._question):
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
