"""Forms to run a variant or a script (command, preset, steps, capture), and the list of Python interpreters."""

from __future__ import annotations

import os
import shlex
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.getters import app as getters_app
from textual.screen import ModalScreen
from textual.worker import get_current_worker

from tuiprof.errors import TuiprofError, UsageProblem
from tuiprof.report.sanitize import sanitize
from tuiprof.system.files import typed_path
from tuiprof.tui.dialogs.dialog import dialog
from tuiprof.tui.dialogs.form import PRESET_LABEL, Form, OneOf, Text, Tick, form_keys, optional, whole
from tuiprof.tui.library.view import LadderItem, PastCommand, VariantItem, python_line
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.terminal.terminal_app import TerminalApp
from tuiprof.tui.widgets.bars import KeyBar
from tuiprof.tui.widgets.choices import Choice, Choices
from tuiprof.tui.widgets.lines import Painted

if TYPE_CHECKING:
    from tuiprof.session.run.interpreter import Facts, Interpreter

FIT = "fit"


class LaunchForm(Form[dict[str, Any]], inherit_bindings=False):
    """Asks how to run a variant of a ladder, and returns the arguments of ``Library.launch``."""

    BINDINGS: ClassVar[list[BindingType]] = form_keys("launch", "Launch", "run", "Start the run")

    def __init__(self, ladder: LadderItem, variant: VariantItem) -> None:
        steps = optional(whole("steps must be a whole number above 0", 1))
        fields = (
            OneOf("preset", PRESET_LABEL, [FIT, *(name for name in ladder.presets if name != FIT)]),
            Text("steps", "steps", placeholder="from the preset", parse=steps),
            *_capture_fields(),
        )
        super().__init__(f"run {ladder.name}:{variant.name}", fields, dict)


class RunForm(Form[dict[str, Any]], inherit_bindings=False):
    """Asks for the command of a script, with a recent one as initial values; returns the arguments of ``Library.run``.

    ``python`` is the interpreter that runs the script; empty = not known yet.
    """

    BINDINGS: ClassVar[list[BindingType]] = form_keys("script", "Run", "run", "Start the run")

    def __init__(self, command: PastCommand | None, python: str) -> None:
        where = f" — python is {python}" if python else ""
        typed = shlex.join(command.argv) if command is not None else ""
        fields = (
            Text("argv", f"command{where}", typed, "python train.py --epochs 1", _argv, replace=False),
            Text(
                "cwd", "directory", command.cwd if command is not None else str(Path.cwd()), parse=_directory
            ),
            *_capture_fields(),
        )
        super().__init__("run my script", fields, self._checked)
        self._python = python

    def _checked(self, **chosen: Any) -> dict[str, Any]:
        """Return the values, or raise an error if there is no such program or script."""
        from tuiprof.session.run.interpreter import resolve

        if self._python:
            resolve(chosen["argv"], chosen["cwd"], Path(self._python), os.environ)
        return chosen


def _capture_fields() -> tuple[Text, Tick]:
    label = "capture — 3: three steps after warm-up, 3@20: from step 20 on, empty: none"
    stack = "with Python stacks (names source lines; slows the captured steps)"
    return Text("capture", label, "3", parse=_capture), Tick("stack", stack)


def _argv(text: str) -> tuple[str, ...]:
    """Split a command line as a shell does, or raise ValueError."""
    try:
        argv = tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"the command cannot be parsed: {error}") from None
    if not argv:
        raise ValueError("type a command, for example python train.py")
    return argv


def _directory(text: str) -> Path:
    """Return an existing directory, or raise ValueError."""
    path = typed_path(text or ".")
    if not path.is_dir():
        raise ValueError(f"there is no directory {path}")
    return path.absolute()


def _capture(text: str) -> str:
    """Return the text if it is ``N``, ``N@STEP`` or empty, else raise ValueError."""
    from tuiprof.session.run.launch import parse_capture

    try:
        if text:
            parse_capture(text)
    except UsageProblem:
        raise ValueError("capture must be N or N@STEP, for example 5@20") from None
    return text


#: Number of interpreters queried in parallel.
_AT_ONCE: Final = 2


class PythonScreen(ModalScreen[Path], inherit_bindings=False):
    """Lists the Python interpreters; returns the chosen one, or None."""

    app = getters_app(TerminalApp)
    BINDINGS: ClassVar[list[BindingType]] = [
        key("o", "other", "another", "Type the path of another Python", id="python.other", group="Python"),
        key("escape,q", "dismiss", "cancel", "Close without changing anything", id="python.cancel", group="Python",
            display="esc"),
    ]  # fmt: skip

    def __init__(self, chosen: Path) -> None:
        super().__init__()
        self._chosen = chosen
        self._found: list[Interpreter] = []
        self._answers: dict[Path, Facts | str] = {}

    def compose(self) -> ComposeResult:
        with dialog("Python that scripts run in", "dialog python"):
            yield Choices(id="pythons", empty="looking …")
            yield Painted(id="python-path")
            yield KeyBar({"list.open": "use it"})

    def on_mount(self) -> None:
        from tuiprof.session.run.interpreter import Interpreter, find_interpreters

        self._found = find_interpreters()
        if self._chosen not in [one.path for one in self._found]:
            self._found.insert(0, Interpreter(self._chosen, "chosen"))
        choices = self.query_one(Choices)
        choices.styles.height = min(len(self._found), max(self.app.size.height - 10, 3))
        self._draw()
        choices.move_to(str(self._chosen))
        choices.focus()
        self._ask()

    @work(thread=True, exclusive=True, exit_on_error=False)
    def _ask(self) -> None:
        from tuiprof.session.run.interpreter import facts, must_be_python

        worker = get_current_worker()

        def ask(one: Interpreter) -> None:
            answer: Facts | str = ""
            if not worker.is_cancelled:
                try:
                    must_be_python(one.path)
                    answer = facts(one.path)
                except TuiprofError as error:
                    answer = error.message.removeprefix(f"{one.path} ")  # the path is shown below the list
            if not worker.is_cancelled:
                self.call_later(self._add, one.path, answer)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(ask, self._found))

    def _add(self, path: Path, answer: Facts | str) -> None:
        """Show an interpreter's version and packages, or why it cannot be used."""
        self._answers[path] = answer
        self._draw()

    def _draw(self) -> None:
        self.query_one(Choices).show(
            [
                Choice(
                    str(one.path),
                    python_line(one.origin, self._answers.get(one.path), chosen=one.path == self._chosen),
                )
                for one in self._found
            ]
        )

    def on_choices_moved(self, event: Choices.Moved) -> None:
        path = event.key
        self.query_one("#python-path", Painted).paint(lambda _w, _h: [[], [(sanitize(path), "dim")]])

    def on_choices_chosen(self, event: Choices.Chosen) -> None:
        """Return the interpreter, unless it cannot be used."""
        answer = self._answers.get(Path(event.key))
        if isinstance(answer, str):
            self.app.notify(answer, title="cannot be used", severity="warning")
        else:
            self.dismiss(Path(event.key))

    def action_other(self) -> None:
        from tuiprof.session.run.interpreter import choose_python
        from tuiprof.tui.dialogs.form import TextForm

        hint = "an interpreter, or the directory of a virtual environment"
        form = TextForm("another Python", hint=hint, check=_python)
        self.app.ask(form, lambda text: self.dismiss(choose_python(text)))


def _python(text: str) -> Path:
    """Return a typed interpreter, or raise an error."""
    from tuiprof.session.run.interpreter import choose_python

    if not text:
        raise ValueError("type a path")
    return choose_python(text)
