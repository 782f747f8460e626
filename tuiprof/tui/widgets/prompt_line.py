"""A line in which a text is typed; escape gives it up, enter takes it."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType
from textual.message import Message
from textual.widgets import Input

from tuiprof.tui.terminal.keys import key


class PromptLine(Input):
    """Asks for a text; hidden until it is opened."""

    DEFAULT_CSS = """
    PromptLine { height: 1; border: none; background: $surface; display: none; }
    PromptLine, PromptLine.-textual-compact { padding: 0 1; }
    PromptLine:focus { border: none; background-tint: transparent 0%; }
    PromptLine.-open { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        key("escape", "give_up", "give up", "Ask no more, find nothing", id="prompt.give_up", group="Search"),
    ]

    class Done(Message):
        """The text was taken or given up.

        Attributes:
            text: The text; empty when it was given up.
        """

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def open(self, text: str) -> None:
        """Ask."""
        self.value = text
        self.add_class("-open")
        self.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take the text."""
        event.stop()
        self._close(event.value)

    def on_input_changed(self, event: Input.Changed) -> None:
        """What is being typed concerns nobody else."""
        event.stop()

    def action_give_up(self) -> None:
        """Give it up."""
        self._close("")

    def _close(self, text: str) -> None:
        self.remove_class("-open")
        self.post_message(self.Done(text))
