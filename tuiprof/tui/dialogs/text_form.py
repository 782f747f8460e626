"""Ask for one line of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.binding import BindingType
from textual.widget import Widget
from textual.widgets import Input

from tuiprof.report.sanitize import sanitize
from tuiprof.tui.dialogs.form import Form, answer_keys


class TextForm(Form[str], inherit_bindings=False):
    """Answers what was typed, or None.

    Args:
        title: What is asked.
        value: What stands there at first.
        placeholder: Said while nothing is typed.
        hint: Said below the field.
        problem: Says what is wrong with a text; empty = nothing.
    """

    BINDINGS: ClassVar[list[BindingType]] = answer_keys(
        "text", "Text", "take it", "Take what was typed", "Change nothing"
    )

    def __init__(
        self,
        title: str,
        *,
        value: str = "",
        placeholder: str = "",
        hint: str = "",
        problem: Callable[[str], str] = lambda text: "",
    ) -> None:
        super().__init__(title)
        self._value = value
        self._placeholder = placeholder
        self._hint = hint
        self._wrong = problem

    def fields(self) -> Sequence[Widget]:
        """Return the text's."""
        return [Input(sanitize(self._value), placeholder=self._placeholder, id="text", compact=True)]

    def hint(self) -> tuple[str, str]:
        """Say what the field is for."""
        return self._hint, "dim"

    def problem(self) -> str:
        """Return what is wrong with the text."""
        return self._wrong(self.typed("text"))

    def answer(self) -> str:
        """Return the text."""
        return self.typed("text")
