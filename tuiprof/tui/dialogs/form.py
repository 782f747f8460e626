"""A form: a box of labeled fields, their errors below, and their keys."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.screen import ModalScreen, Screen
from textual.suggester import Suggester
from textual.validation import ValidationResult, Validator
from textual.widgets import Checkbox, Input, RadioButton, RadioSet

from tuiprof.report.sanitize import sanitize
from tuiprof.system.files import typed_path
from tuiprof.tui.dialogs.dialog import dialog
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.widgets.bars import KeyBar
from tuiprof.tui.widgets.lines import Painted
from tuiprof.tui.widgets.spans import wrap

Answer = TypeVar("Answer")
Value = TypeVar("Value")
#: Converts a stripped text to a value, or raises ValueError with the error message.
Parse = Callable[[str], Any]


class _Parses(Validator):
    """Accepts what a function can parse."""

    def __init__(self, parse: Parse) -> None:
        super().__init__()
        self._parse = parse

    def validate(self, value: str) -> ValidationResult:
        """Accept the text, or show the error."""
        try:
            self._parse(value.strip())
        except ValueError as error:
            return self.failure(str(error))
        return self.success()


class _Check(Checkbox):
    """A box to tick: ``[x]`` or ``[ ]``, readable without colour."""

    BUTTON_LEFT = BUTTON_RIGHT = ""
    BUTTON_INNER = "   "  # as wide as the sign that is drawn

    def render(self) -> Content:
        """Draw the sign of what it is now."""
        self.BUTTON_INNER = "[x]" if self.value else "[ ]"
        return super().render()


class _Option(RadioButton):
    """One of several, of which one is taken: ``(●)`` or ``( )``."""

    BUTTON_LEFT = BUTTON_RIGHT = ""
    BUTTON_INNER = "   "  # as wide as the sign that is drawn

    def render(self) -> Content:
        """Draw the sign of what it is now."""
        self.BUTTON_INNER = f"({glyphs.OUTLIER})" if self.value else "( )"
        return super().render()


@dataclass(frozen=True, slots=True)
class Text:
    """A line to type."""

    name: str
    label: str = ""  # text above it; empty = none
    value: str = ""  # what it holds at first
    placeholder: str = ""  # shown while it is empty
    parse: Parse = str  # makes its value of the text
    suggester: Suggester | None = None  # completes the input
    replace: bool = True  # the first key typed replaces what it holds, instead of adding to its end

    def widget(self) -> Input:
        """Return the field."""
        return Input(
            sanitize(self.value),
            placeholder=self.placeholder,
            id=self.name,
            suggester=self.suggester,
            validators=[_Parses(self.parse)],
            select_on_focus=self.replace,
            compact=True,
        )

    def read(self, form: Screen[Any]) -> Any:
        """Return the value; only when nothing is wrong with it."""
        return self.parse(form.query_one(f"#{self.name}", Input).value.strip())


@dataclass(frozen=True, slots=True)
class Tick:
    """A box to tick; its value is whether it is ticked."""

    name: str
    text: str
    label: ClassVar[str] = ""

    def widget(self) -> _Check:
        """Return the field."""
        return _Check(self.text, id=self.name, compact=True)

    def read(self, form: Screen[Any]) -> bool:
        """Return the value."""
        return form.query_one(f"#{self.name}", _Check).value


@dataclass(frozen=True, slots=True)
class OneOf:
    """A choice of one of several names, the first at first; its value is the name."""

    name: str
    label: str
    options: Sequence[str]

    def widget(self) -> RadioSet:
        """Return the field."""
        buttons = (_Option(sanitize(name), value=index == 0) for index, name in enumerate(self.options))
        return RadioSet(*buttons, id=self.name, compact=True)

    def read(self, form: Screen[Any]) -> str:
        """Return the value."""
        return self.options[max(0, form.query_one(f"#{self.name}", RadioSet).pressed_index)]


Field = Text | Tick | OneOf
#: How to run a scenario at which size, wherever that is asked.
PRESET_LABEL: Final = "preset — fit: as published on an accelerator, small on a CPU"


def whole(problem: str, low: int, high: float = float("inf")) -> Callable[[str], int]:
    """Return a parser of whole numbers from ``low`` to ``high`` that fails with ``problem``."""

    def parse(text: str) -> int:
        if text.isdecimal() and low <= int(text) <= high:
            return int(text)
        raise ValueError(problem)

    return parse


def optional(parse: Callable[[str], Value]) -> Callable[[str], Value | None]:
    """Return a parser that makes None of an empty text."""
    return lambda text: parse(text) if text else None


def form_keys(
    name: str, group: str, label: str, submits: str, cancels: str, *, one_field: bool = False
) -> list[BindingType]:
    """Return the keys of a form."""
    keys: list[BindingType] = [
        key("enter", "submit", label, submits, id=f"{name}.submit", group=group, priority=True),
        key("escape", "cancel", "cancel", cancels, id=f"{name}.cancel", group=group, display="esc"),
    ]
    if one_field:
        return keys
    following, before = ("next field", "Go to the next field"), ("previous field", "Go to the previous field")
    return [
        *keys,
        key("tab", "app.focus_next", *following, id=f"{name}.next", group=group),
        key("shift+tab", "app.focus_previous", *before, id=f"{name}.before", group=group, show=False),
    ]


class Form(ModalScreen[Answer | None], inherit_bindings=False):
    """Returns the values of its fields, or None. A form consists of its keys, a list of fields and their result.

    Args:
        fields: From top to bottom.
        answer: Makes the answer of the fields' values, given by name; called only when nothing is wrong with them.
        hint: Shown below the fields while they are filled in; None = what is wrong with them. On enter that is
            shown in any case.
    """

    CSS_PATH = Path(__file__).with_name("form.tcss")  # a bare name would be resolved next to the subclass

    def __init__(
        self, title: str, fields: Sequence[Field], answer: Callable[..., Answer], *, hint: str | None = None
    ) -> None:
        super().__init__()
        self._heading = title
        self._fields = fields
        self._answer = answer
        self._hint = hint

    def compose(self) -> ComposeResult:
        """One box with the fields, each below its label."""
        with dialog(self._heading, "dialog form"):
            for field in self._fields:
                if field.label:
                    yield Painted(id=f"{field.name}-label")
                yield field.widget()
            yield Painted(id="problem")
            yield KeyBar()

    def on_mount(self) -> None:
        """Fill in the labels."""
        for field in self._fields:
            if field.label:
                self._paint(f"{field.name}-label", field.label, "dim")
        if self._hint is not None:
            self._paint("problem", self._hint, "dim")
        for first in self.query(RadioSet):
            first.focus()

    def _paint(self, name: str, text: str, role: str) -> None:
        self.query_one(f"#{name}", Painted).paint(
            lambda width, _height: [[(line, role)] for line in wrap(sanitize(text), width)] if text else []
        )

    def _problem(self) -> str:
        for field in self.query(Input):
            found = field.validate(field.value)
            if found is not None and found.failure_descriptions:
                return found.failure_descriptions[0]
        return ""

    @on(Input.Changed)
    def _changed(self) -> None:
        if self._hint is None:
            self._paint("problem", self._problem(), "warn")
        else:
            self._paint("problem", self._hint, "dim")

    def action_submit(self) -> None:
        """Answer, when the fields make sense."""
        if problem := self._problem():
            self._paint("problem", problem, "warn")
        else:
            self.dismiss(self._answer(**{field.name: field.read(self) for field in self._fields}))

    def action_cancel(self) -> None:
        """Answer nothing."""
        self.dismiss(None)


class TextForm(Form[str], inherit_bindings=False):
    """Answers what was typed in its one field, or None.

    ``hint`` stands below the field; ``problem`` returns the error in a text, empty = none.
    """

    BINDINGS: ClassVar[list[BindingType]] = form_keys(
        "text", "Text", "save", "Save the text", "Cancel", one_field=True
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
        def parse(text: str) -> str:
            if wrong := problem(text):
                raise ValueError(wrong)
            return text

        field = Text("text", value=value, placeholder=placeholder, parse=parse)
        super().__init__(title, [field], lambda text: text, hint=hint)


class PathForm(Form[Path], inherit_bindings=False):
    """Answers the path of a trace or session, completed as it is typed, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *form_keys("path", "Open", "open", "Open the path", "Cancel", one_field=True),
        key(
            "tab",
            "complete",
            "complete",
            "Accept the suggestion",
            id="path.complete",
            group="Open",
            priority=True,
        ),
    ]

    def __init__(self, text: str = "") -> None:
        field = Text("path", value=text, placeholder="path", parse=_existing, suggester=_PathSuggester())
        super().__init__("open a trace or a session", [field], lambda path: path, hint="")

    def action_complete(self) -> None:
        """Take the suggestion."""
        self.query_one(Input).action_cursor_right()


def _existing(text: str) -> Path:
    """Return the path of a file or session, or raise ValueError with the reason."""
    path = typed_path(text)
    if not text:
        raise ValueError("type a path; tab completes it")
    if not os.path.exists(path):
        raise ValueError(f"there is no {path}")
    if os.path.isdir(path) and not os.path.exists(path / "session.json"):
        raise ValueError("this folder is not a session")
    return path.absolute()


class _PathSuggester(Suggester):
    """Suggests the first file or folder that begins with what was typed."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        """Return the completed path; None = nothing begins so."""
        folder, _, begun = value.rpartition("/")
        where = typed_path(folder + "/" if folder or value.startswith("/") else ".")
        try:
            names = sorted(entry.name + ("/" if entry.is_dir() else "") for entry in os.scandir(where))
        except OSError:  # a folder that does not exist or may not be read suggests nothing
            return None
        found = next((name for name in names if name.startswith(begun) and (begun or name[0] != ".")), None)
        return None if found is None else value[: len(value) - len(begun)] + found
