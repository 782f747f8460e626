"""Writes reports to a file: which, as what, where; an existing file is replaced only when that is confirmed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Literal, get_args

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input
from textual.worker import Worker

from tuiprof.analyses.shared.replay import trust
from tuiprof.errors import TuiprofError
from tuiprof.model.report import Report, Unavailable
from tuiprof.model.trace import Trace
from tuiprof.report import Style, render_all
from tuiprof.report.sanitize import as_stem, sanitize, sanitize_lines
from tuiprof.system.files import typed_path
from tuiprof.tui.dialogs.dialog import dialog
from tuiprof.tui.terminal.guest import tell_worker_error
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.widgets.bars import KeyBar
from tuiprof.tui.widgets.lines import Painted, Row
from tuiprof.tui.widgets.spans import wrap

Format = Literal["text", "json", "csv", "md", "html"]
_FORMATS: Final[tuple[Format, ...]] = get_args(Format)
_SUFFIX: Final[dict[Format, str]] = {
    "text": ".txt",
    "json": ".json",
    "csv": ".csv",
    "md": ".md",
    "html": ".html",
}


def _key(keys: str, action: str, label: str, tooltip: str, display: str, name: str = "") -> Binding:
    # The path field has the focus all along: these keys come before its own.
    name = f"export.{name or action}"
    return key(keys, action, label, tooltip, id=name, group="Export", display=display, priority=True)


@dataclass(frozen=True, slots=True)
class _Scope:
    """Something that can be written: what it is called here and in the name of the file, and what it is."""

    label: str
    name: str
    answers: list[Report | Unavailable]


class ExportError(TuiprofError):
    """A report cannot be written."""


def write(path: Path, text: str, *, replace: bool) -> None:
    """Write a file whole or not at all.

    Raises:
        FileExistsError: It exists, and may not be replaced.
        ExportError: It cannot be written.
    """
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
    except OSError as error:
        raise ExportError(
            f"cannot write {path}: {error.strerror or error}", "choose another folder"
        ) from error
    scratch = Path(file.name)
    try:
        if replace:
            scratch.replace(path)
        else:
            os.link(scratch, path)  # fails when the name is taken, with no gap between asking and doing
        path.chmod(0o666 & ~_umask())
    except FileExistsError:
        raise
    except OSError as error:
        raise ExportError(
            f"cannot write {path}: {error.strerror or error}", "choose another folder"
        ) from error
    finally:
        scratch.unlink(missing_ok=True)


def _umask() -> int:
    """Return the process's umask; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


class ExportScreen(ModalScreen[Path | None], inherit_bindings=False):
    """Asks which reports, which format and which file, then writes.

    Args:
        trace: The trace, whose name makes the suggested path; None = there is none.
        current: The answer that is open; None = it can only be left out.
        answers: All answers there are.
        shown: The table that shows, with the rows, the order and the columns it shows; None = there is none.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        _key("enter", "write", "write", "Write the file", "enter"),
        _key(
            "down",
            "scope(1)",
            "what",
            "Write the open analysis, the table as shown, or everything",
            "↑ ↓",
            "scope",
        ),
        _key("up", "scope(-1)", "what", "Previous choice of what to write", "↑ ↓", "scope_back"),
        _key("tab,shift+tab", "format", "format", "Next format", "tab"),
        _key("escape", "close", "cancel", "Close without writing", "esc"),
    ]

    @dataclass
    class Done(Message):
        """The file is written, or could not be."""

        path: Path  # where
        problem: str  # why it could not be written; empty = it is
        exists: bool  # whether that is because there is a file of this name

    def __init__(
        self,
        trace: Trace | None,
        current: Report | Unavailable | None,
        answers: Sequence[Report | Unavailable],
        shown: Report | None = None,
    ) -> None:
        super().__init__()
        self._scopes: list[_Scope] = []
        if current is not None:
            said = current.analysis.replace("_", " ")
            self._scopes.append(_Scope(f"this analysis: {said}", current.analysis, [current]))
        if shown is not None:
            rows = len(shown.tables[0].rows)
            name = f"{shown.analysis}.{shown.tables[0].key}"
            self._scopes.append(
                _Scope(f"the table as shown, {rows} row{'s' if rows != 1 else ''}", name, [shown])
            )
        if answers:
            self._scopes.append(_Scope(f"all {len(answers)} analyses", "report", list(answers)))
        self._chosen = 0
        self._format: Format = "text"
        self._trace = trace
        path = trace.info.path if trace is not None else None
        self._stem = as_stem(path.name.split(".")[0] if path else "", "trace")
        self._problem = ""
        self._confirmed: Path | None = None

    def compose(self) -> ComposeResult:
        """One box: the choices, the path, the keys."""
        with dialog("export"):
            yield Painted(id="export-choices")
            yield Input(id="export-path", compact=True, select_on_focus=False)
            yield Painted(id="export-problem")
            yield KeyBar()

    def on_mount(self) -> None:
        """Suggest a path."""
        self._suggest()
        self.query_one(Input).focus()

    def _suggest(self) -> None:
        what = self._scopes[self._chosen].name
        field = self.query_one(Input)
        typed = Path(field.value).parent if field.value else Path.cwd()
        field.value = str(typed / f"{self._stem}.{what}{_SUFFIX[self._format]}")
        field.cursor_position = len(field.value)
        self._draw()

    def _draw(self) -> None:
        def choice(on: bool, text: str) -> Row:
            return [("(●) " if on else "( ) ", "accent" if on else "dim"), (text, "text" if on else "dim")]

        formats: Row = []
        for name in _FORMATS:
            formats += [*choice(name == self._format, name), ("   ", "text")]
        rows: list[Row] = [
            *(
                choice(index == self._chosen, sanitize(scope.label))
                for index, scope in enumerate(self._scopes)
            ),
            [],
            formats,
            [],
            [("to", "dim")],
        ]
        self.query_one("#export-choices", Painted).paint(lambda _w, _h: rows)
        problem = sanitize_lines(self._problem)
        self.query_one("#export-problem", Painted).paint(
            lambda width, _h: [[(line, "warn")] for line in wrap(problem, width)]
        )

    def action_scope(self, by: int) -> None:
        """Choose what is written: the next of what there is, or the one before."""
        self._chosen = (self._chosen + by) % len(self._scopes)
        self._suggest()

    def action_format(self) -> None:
        """The next format."""
        self._format = _FORMATS[(_FORMATS.index(self._format) + 1) % len(_FORMATS)]
        self._suggest()

    def on_input_changed(self) -> None:
        """A confirmation holds for the path it was given for only."""
        if self._problem:
            self._problem, self._confirmed = "", None
            self._draw()

    def action_write(self) -> None:
        """Write the file."""
        path = typed_path(self.query_one(Input).value)
        self._write(path, self._scopes[self._chosen].answers, self._format, replace=path == self._confirmed)

    @work(thread=True, exclusive=True, exit_on_error=False)
    def _write(
        self, path: Path, answers: list[Report | Unavailable], format_: Format, *, replace: bool
    ) -> None:
        """Write in a thread, since a network folder may take its time."""
        problem, exists = "", False
        try:
            style = Style(width=None if format_ != "text" else 120, rows=None, details=True)
            said = trust(self._trace).text if self._trace is not None else ""
            write(path, render_all(answers, format_, trust=said, style=style), replace=replace)
        except FileExistsError:
            problem, exists = f"{path.name} exists; enter again replaces it", True
        except TuiprofError as error:
            problem = str(error)
        self.post_message(self.Done(path, problem, exists))

    def on_export_screen_done(self, message: Done) -> None:
        """Show why nothing was written, or close and show where the file is."""
        if message.problem:
            self._problem = message.problem
            self._confirmed = message.path if message.exists else None
            self._draw()
        else:
            self.app.notify(f"written to {message.path}", timeout=5)
            self.dismiss(message.path)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Report what went wrong in a worker."""
        tell_worker_error(self, event)

    def action_close(self) -> None:
        """Close without writing."""
        self.dismiss(None)
