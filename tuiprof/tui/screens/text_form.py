"""Ask for one line of text."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input

from tuiprof.report.sanitize import sanitize
from tuiprof.tui.keys import key
from tuiprof.tui.widgets.key_bar import KeyBar
from tuiprof.tui.widgets.painted import Painted


class TextForm(ModalScreen[str | None], inherit_bindings=False):
    """Answers what was typed, or None.

    Args:
        title: What is asked.
        value: What stands there at first.
        placeholder: Said while nothing is typed.
        hint: Said below the field.
        problem: Says what is wrong with a text; empty = nothing.
    """

    CSS_PATH = "forms.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        key(
            "enter", "submit", "take it", "Take what was typed", id="text.submit", group="Text", priority=True
        ),
        key("escape", "cancel", "cancel", "Change nothing", id="text.cancel", group="Text", display="esc"),
    ]

    def __init__(
        self,
        title: str,
        *,
        value: str = "",
        placeholder: str = "",
        hint: str = "",
        problem: Callable[[str], str] = lambda text: "",
    ) -> None:
        super().__init__()
        self._question = title
        self._value = value
        self._placeholder = placeholder
        self._hint = hint
        self._wrong = problem

    def compose(self) -> ComposeResult:
        """One box with one field."""
        with Vertical(classes="dialog form") as box:
            box.border_title = sanitize(self._question)
            yield Input(self._value, placeholder=self._placeholder, id="text", compact=True)
            yield Painted(id="problem")
            yield KeyBar()

    def on_mount(self) -> None:
        """Say what the field is for."""
        self._say(self._hint, "dim")

    def _say(self, text: str, role: str) -> None:
        self.query_one("#problem", Painted).paint(
            lambda _width, _height: [[(sanitize(text), role)]] if text else []
        )

    @on(Input.Changed)
    def _changed(self) -> None:
        self._say(self._hint, "dim")

    def action_submit(self) -> None:
        """Answer, when the text makes sense."""
        text = self.query_one(Input).value.strip()
        if problem := self._wrong(text):
            self._say(problem, "warn")
        else:
            self.dismiss(text)

    def action_cancel(self) -> None:
        """Answer nothing."""
        self.dismiss(None)
