"""What the forms share: a box of labelled fields, what is wrong with them below, and their keys."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, TypeVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, RadioSet

from tuiprof.report.sanitize import sanitize
from tuiprof.tui.dialogs.dialog import dialog
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.widgets.key_bar import KeyBar
from tuiprof.tui.widgets.painted import Painted
from tuiprof.tui.widgets.toggles import Option

Answer = TypeVar("Answer")


def answer_keys(name: str, group: str, label: str, submits: str, cancels: str) -> list[BindingType]:
    """Return the keys of a form of one field.

    Args:
        name: Begins their ids.
        group: Their heading in the help.
        label: One word for what enter does.
        submits: What enter does, in a sentence.
        cancels: What escape does.
    """
    return [
        key("enter", "submit", label, submits, id=f"{name}.submit", group=group, priority=True),
        key("escape", "cancel", "cancel", cancels, id=f"{name}.cancel", group=group, display="esc"),
    ]


def form_keys(name: str, group: str, label: str, submits: str, cancels: str) -> list[BindingType]:
    """Return the keys of a form of several fields; the arguments are those of :func:`answer_keys`."""
    return [
        *answer_keys(name, group, label, submits, cancels),
        key("tab", "app.focus_next", "next field", "To the next field", id=f"{name}.next", group=group),
        key(
            "shift+tab",
            "app.focus_previous",
            "field before",
            "To the field before",
            id=f"{name}.before",
            group=group,
            show=False,
        ),
    ]


class Form(ModalScreen[Answer | None], inherit_bindings=False):
    """Answers what its fields say, or None.

    A form says its fields in ``fields``, their labels in ``LABELS`` (by the field's id), what is wrong with them in
    ``problem``, and what they mean in ``answer``.
    """

    CSS_PATH = "forms.tcss"
    LABELS: ClassVar[Mapping[str, str]] = {}

    def __init__(self, title: str) -> None:
        super().__init__()
        self._heading = title

    @abstractmethod
    def fields(self) -> Sequence[Widget]:
        """Return the fields, from top to bottom."""

    @abstractmethod
    def problem(self) -> str:
        """Return what is wrong with the fields; empty = nothing."""

    @abstractmethod
    def answer(self) -> Answer:
        """Return what the fields say; called only when nothing is wrong with them."""

    def hint(self) -> tuple[str, str]:
        """Return what is said below the fields while they are filled in, and its role."""
        return self.problem(), "warn"

    def compose(self) -> ComposeResult:
        """One box with the fields, each below its label."""
        with dialog(self._heading, "dialog form"):
            for field in self.fields():
                if field.id in self.LABELS:
                    yield Painted(id=f"{field.id}-label")
                yield field
            yield Painted(id="problem")
            yield KeyBar()

    def on_mount(self) -> None:
        """Fill in the labels."""
        for name, text in self.LABELS.items():
            self._paint(f"{name}-label", text, "dim")
        text, role = self.hint()
        if role != "warn":
            self._paint("problem", text, role)
        for first in self.query(RadioSet):
            first.focus()

    def _paint(self, name: str, text: str, role: str) -> None:
        self.query_one(f"#{name}", Painted).paint(
            lambda _width, _height: [[(sanitize(text), role)]] if text else []
        )

    def typed(self, name: str) -> str:
        """Return what stands in a text field, without blanks around it.

        Args:
            name: Its id.
        """
        return self.query_one(f"#{name}", Input).value.strip()

    @on(Input.Changed)
    def _changed(self) -> None:
        self._paint("problem", *self.hint())

    def action_submit(self) -> None:
        """Answer, when the fields make sense."""
        if problem := self.problem():
            self._paint("problem", problem, "warn")
        else:
            self.dismiss(self.answer())

    def action_cancel(self) -> None:
        """Answer nothing."""
        self.dismiss(None)


def preset_field(names: Sequence[str]) -> RadioSet:
    """Return the choice of a preset; the first is chosen.

    Args:
        names: Names of presets.
    """
    buttons = (Option(sanitize(name), value=index == 0) for index, name in enumerate(names))
    return RadioSet(*buttons, id="preset", compact=True)


def preset_chosen(form: Form[Answer], names: Sequence[str]) -> str:
    """Return the preset that is chosen.

    Args:
        form: The form with the choice.
        names: What the choice was made of.
    """
    return names[max(0, form.query_one("#preset", RadioSet).pressed_index)]
