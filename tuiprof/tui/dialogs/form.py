"""Forms: dialogs of labelled fields, with error messages below."""

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

from tuiprof.errors import TuiprofError
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
#: Converts stripped text to a value, or raises a ValueError or TuiprofError with the message to show.
Parse = Callable[[str], Any]


class _Parses(Validator):
    """Accepts text that a parser accepts."""

    def __init__(self, parse: Parse) -> None:
        super().__init__()
        self._parse = parse

    def validate(self, value: str) -> ValidationResult:
        try:
            self._parse(value.strip())
        except (ValueError, TuiprofError) as error:
            return self.failure(str(error))
        return self.success()


class _Check(Checkbox):
    """A checkbox drawn as ``[x]`` or ``[ ]``, readable without colour."""

    BUTTON_LEFT = BUTTON_RIGHT = ""
    BUTTON_INNER = "   "  # a placeholder as wide as what :meth:`render` draws

    def render(self) -> Content:
        self.BUTTON_INNER = "[x]" if self.value else "[ ]"
        return super().render()


class _Option(RadioButton):
    """A radio button drawn as ``(●)`` or ``( )``."""

    BUTTON_LEFT = BUTTON_RIGHT = ""
    BUTTON_INNER = "   "  # a placeholder as wide as what :meth:`render` draws

    def render(self) -> Content:
        self.BUTTON_INNER = f"({glyphs.OUTLIER})" if self.value else "( )"
        return super().render()


@dataclass(frozen=True, slots=True)
class Text:
    """A text field; its value is the parsed text."""

    name: str
    label: str = ""  # shown above; empty = none
    value: str = ""  # initial text
    placeholder: str = ""
    parse: Parse = str
    suggester: Suggester | None = None
    replace: bool = True  # whether typing replaces the initial text instead of appending to it

    def widget(self) -> Input:
        return Input(
            sanitize(self.value),
            placeholder=self.placeholder,
            id=self.name,
            suggester=self.suggester,
            validators=[_Parses(self.parse)],
            valid_empty=True,  # it does not look wrong before anything was typed
            select_on_focus=self.replace,
            compact=True,
        )

    def read(self, form: Screen[Any]) -> Any:
        """Return the value, which must be valid."""
        return self.parse(form.query_one(f"#{self.name}", Input).value.strip())


@dataclass(frozen=True, slots=True)
class Tick:
    """A checkbox; its value is whether it is checked."""

    name: str
    text: str
    label: ClassVar[str] = ""

    def widget(self) -> _Check:
        return _Check(self.text, id=self.name, compact=True)

    def read(self, form: Screen[Any]) -> bool:
        return form.query_one(f"#{self.name}", _Check).value


@dataclass(frozen=True, slots=True)
class OneOf:
    """Radio buttons; the value is the selected option. Initially the first is selected."""

    name: str
    label: str
    options: Sequence[str]

    def widget(self) -> RadioSet:
        buttons = (_Option(sanitize(name), value=index == 0) for index, name in enumerate(self.options))
        return RadioSet(*buttons, id=self.name, compact=True)

    def read(self, form: Screen[Any]) -> str:
        return self.options[max(0, form.query_one(f"#{self.name}", RadioSet).pressed_index)]


Field = Text | Tick | OneOf
#: Label of the field for a scenario's size.
PRESET_LABEL: Final = "preset — fit: as published on an accelerator, small on a CPU"


def whole(problem: str, low: int, high: float = float("inf")) -> Callable[[str], int]:
    """Return a parser for whole numbers from ``low`` to ``high`` that fails with ``problem``."""

    def parse(text: str) -> int:
        if text.isdecimal() and low <= int(text) <= high:
            return int(text)
        raise ValueError(problem)

    return parse


def optional(parse: Callable[[str], Value]) -> Callable[[str], Value | None]:
    """Return a parser that turns empty text into None."""
    return lambda text: parse(text) if text else None


def form_keys(
    name: str, group: str, label: str, submits: str, *, one_field: bool = False
) -> list[BindingType]:
    """Return the bindings of a form; ``submits`` is a tooltip."""
    keys: list[BindingType] = [
        key("enter", "submit", label, submits, id=f"{name}.submit", group=group, priority=True),
        key("escape", "dismiss", "cancel", "Cancel", id=f"{name}.cancel", group=group, display="esc"),
    ]
    if one_field:
        return keys
    next_, previous = ("next field", "Go to the next field"), ("previous field", "Go to the previous field")
    return [
        *keys,
        key("tab", "app.focus_next", *next_, id=f"{name}.next", group=group),
        key("shift+tab", "app.focus_previous", *previous, id=f"{name}.before", group=group, show=False),
    ]


class Form(ModalScreen[Answer], inherit_bindings=False):
    """Asks for the values of its fields, and returns the ``answer`` made from valid values by name; None = cancelled.

    ``answer`` raises an error for values that do not go together.
    The hint is shown below the fields until enter is pressed; None = the first error, updated while typing.
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
        with dialog(self._heading, "dialog form"):
            for field in self._fields:
                if field.label:
                    yield Painted(id=f"{field.name}-label")
                yield field.widget()
            yield Painted(id="problem")
            yield KeyBar()

    def on_mount(self) -> None:
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

    def _problem(self) -> tuple[str, str]:
        """Return what is wrong with the first field that cannot be read, empty = nothing, and the role of that text."""
        for field in self._fields:
            try:
                field.read(self)
            except (ValueError, TuiprofError) as error:
                typed = self.query_one(f"#{field.name}", Input).value.strip()
                return str(error), "warn" if typed else "dim"  # an empty field was not filled in yet
        return "", ""

    @on(Input.Changed)
    def _changed(self) -> None:
        if self._hint is None:
            self._paint("problem", *self._problem())
        else:
            self._paint("problem", self._hint, "dim")

    def action_submit(self) -> None:
        problem, _ = self._problem()
        if not problem:
            try:
                answer = self._answer(**{field.name: field.read(self) for field in self._fields})
            except (ValueError, TuiprofError) as error:
                problem = str(error)
            else:
                self.dismiss(answer)
                return
        self._paint("problem", problem, "warn")


class TextForm(Form[str], inherit_bindings=False):
    """Asks for one text; ``check`` raises an error for one that is not valid."""

    BINDINGS: ClassVar[list[BindingType]] = form_keys("text", "Text", "save", "Save the text", one_field=True)

    def __init__(
        self,
        title: str,
        *,
        value: str = "",
        placeholder: str = "",
        hint: str = "",
        check: Callable[[str], object] = str,
    ) -> None:
        def parse(text: str) -> str:
            check(text)
            return text

        field = Text("text", value=value, placeholder=placeholder, parse=parse)
        super().__init__(title, [field], lambda text: text, hint=hint)


class PathForm(Form[Path], inherit_bindings=False):
    """Asks for the path of a trace or session, with completion."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *form_keys("path", "Open", "open", "Open the path", one_field=True),
        key("tab", "complete", "complete", "Accept the suggestion", id="path.complete", group="Open",
            priority=True),
    ]  # fmt: skip

    def __init__(self, text: str = "") -> None:
        field = Text("path", value=text, placeholder="path", parse=_existing, suggester=_PathSuggester())
        super().__init__("open a trace or a session", [field], lambda path: path, hint="")

    def action_complete(self) -> None:
        self.query_one(Input).action_cursor_right()


def _existing(text: str) -> Path:
    """Return the absolute path of a file or directory; raises ValueError if there is none."""
    path = typed_path(text)
    if not text:
        raise ValueError("type a path; tab completes it")
    if not os.path.exists(path):
        raise ValueError(f"{path} does not exist")
    return path.absolute()


class _PathSuggester(Suggester):
    """Suggests the first path that starts with the typed text; folders and traces come before other files."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        """Return the completed path; None = no match."""
        from tuiprof.formats.directory import is_trace_name

        folder, _, prefix = value.rpartition("/")
        directory = typed_path(folder + "/" if folder or value.startswith("/") else ".")
        try:
            found = [entry.name + ("/" if entry.is_dir() else "") for entry in os.scandir(directory)]
        except OSError:
            return None
        names = sorted(found, key=lambda name: (not (name.endswith("/") or is_trace_name(name)), name))
        match = next((name for name in names if name.startswith(prefix) and (prefix or name[0] != ".")), None)
        return None if match is None else value[: len(value) - len(prefix)] + match
