"""Which Python scripts run in: those found, each with what it says it has."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.getters import app as getters_app
from textual.message import Message
from textual.screen import ModalScreen
from textual.worker import get_current_worker

from tuiprof.errors import LaunchError, TuiprofError
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.dialogs.dialog import dialog
from tuiprof.tui.library.view import python_line
from tuiprof.tui.terminal.guest import TerminalApp
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.widgets.bars import KeyBar
from tuiprof.tui.widgets.choices import Choice, Choices
from tuiprof.tui.widgets.lines import Painted

if TYPE_CHECKING:
    from tuiprof.session.run.interpreter import Facts, Interpreter

#: The oldest Python that the probe runs in.
_OLDEST: Final = "3.9"
#: Number of interpreters queried at a time.
_AT_ONCE: Final = 2


class PythonScreen(ModalScreen[Path | None], inherit_bindings=False):
    """Answers the interpreter that was chosen, or None."""

    class Answered(Message):
        """An interpreter has said what it has, or why it cannot be used."""

        def __init__(self, path: Path, answer: Facts | str) -> None:
            super().__init__()
            self.path, self.answer = path, answer

    app = getters_app(TerminalApp)
    BINDINGS: ClassVar[list[BindingType]] = [
        key("o", "other", "another", "Type the path of another Python", id="python.other", group="Python"),
        key(
            "escape,q",
            "cancel",
            "cancel",
            "Close without changing anything",
            id="python.cancel",
            group="Python",
            display="esc",
        ),
    ]

    def __init__(self, chosen: Path) -> None:
        super().__init__()
        self._chosen = chosen
        self._found: list[Interpreter] = []
        self._answers: dict[Path, Facts | str] = {}

    def compose(self) -> ComposeResult:
        """One box with the list."""
        with dialog("Python that scripts run in", "dialog python"):
            yield Choices(id="pythons", empty="looking …")
            yield Painted(id="python-path")
            yield KeyBar({"list.open": "use it"})

    def on_mount(self) -> None:
        """List the interpreters found, then query each."""
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
        from tuiprof.ladder.availability import satisfies
        from tuiprof.session.run.interpreter import facts

        worker = get_current_worker()

        def ask(one: Interpreter) -> None:
            answer: Facts | str = ""
            if not worker.is_cancelled:
                try:
                    answer = facts(one.path)
                    if not satisfies(answer.version, f">={_OLDEST}"):
                        answer = f"{answer.version} is too old: scripts are recorded in {_OLDEST} and later"
                except TuiprofError as error:
                    answer = error.message.removeprefix(f"{one.path} ")  # the path is said below the list
            if not worker.is_cancelled:
                self.post_message(self.Answered(one.path, answer))

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(ask, self._found))

    def on_python_screen_answered(self, message: Answered) -> None:
        """Show what one of them has."""
        self._answers[message.path] = message.answer
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
        """Show the path of the one under the cursor."""
        path = event.key
        self.query_one("#python-path", Painted).paint(lambda _w, _h: [[], [(sanitize(path), "dim")]])

    def on_choices_chosen(self, event: Choices.Chosen) -> None:
        """Answer with it, unless it has said that it cannot be used."""
        answer = self._answers.get(Path(event.key))
        if isinstance(answer, str):
            self.app.notify(answer, title="it cannot be used", severity="warning")
        else:
            self.dismiss(Path(event.key))

    def action_other(self) -> None:
        """Type the path of another interpreter, or the directory of an environment."""
        from tuiprof.tui.dialogs.form import TextForm

        def answered(text: str | None) -> None:
            if text:
                from tuiprof.session.run.interpreter import choose_python

                self.dismiss(choose_python(text))

        hint = "an interpreter, or the directory of a virtual environment"
        self.app.push_screen(TextForm("another Python", hint=hint, problem=_wrong_python), answered)

    def action_cancel(self) -> None:
        """Change nothing."""
        self.dismiss(None)


def _wrong_python(text: str) -> str:
    """Return the error in a typed interpreter; empty = none."""
    from tuiprof.session.run.interpreter import choose_python

    if not text:
        return "type a path"
    try:
        choose_python(os.path.expanduser(text))
    except LaunchError as error:
        return error.message
    return ""
