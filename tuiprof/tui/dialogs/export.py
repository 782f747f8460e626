"""The export dialog: which reports, which format, which file. It asks before it replaces a file."""

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
from textual.screen import ModalScreen
from textual.widgets import Input

from tuiprof.analyses.shared.replay import trust
from tuiprof.errors import TuiprofError
from tuiprof.model.report import Report, Unavailable
from tuiprof.model.trace import Trace
from tuiprof.model.units import plural
from tuiprof.report import Style, render_all
from tuiprof.report.sanitize import as_stem, sanitize, sanitize_lines
from tuiprof.session.store.folders import trace_title
from tuiprof.system.files import typed_path
from tuiprof.tui.dialogs.dialog import dialog
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.terminal.terminal_app import notify_worker_error
from tuiprof.tui.widgets.bars import KeyBar
from tuiprof.tui.widgets.lines import Painted, Row
from tuiprof.tui.widgets.spans import wrap

Format = Literal["text", "json", "csv", "md", "html"]
_FORMATS: Final[tuple[Format, ...]] = get_args(Format)
#: File name extension of each format.
SUFFIXES: Final[dict[Format, str]] = {
    "text": ".txt",
    "json": ".json",
    "csv": ".csv",
    "md": ".md",
    "html": ".html",
}


def _key(keys: str, action: str, label: str, tooltip: str, display: str, name: str = "") -> Binding:
    # The path field always has the focus; priority puts these keys before its own.
    name = f"export.{name or action}"
    return key(keys, action, label, tooltip, id=name, group="Export", display=display, priority=True)


@dataclass(frozen=True, slots=True)
class _Scope:
    """A choice of what to export."""

    label: str
    name: str  # part of the suggested file name
    answers: list[Report | Unavailable]


class ExportError(TuiprofError):
    """A report cannot be written."""


def write(path: Path, text: str, *, replace: bool) -> None:
    """Write a file atomically.

    Raises:
        FileExistsError: The file exists, and ``replace`` is False.
        ExportError: The file cannot be written.
    """
    scratch: Path | None = None
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8"
        ) as file:
            scratch = Path(file.name)
            file.write(text)
        if replace:
            scratch.replace(path)
        else:
            os.link(scratch, path)  # fails if the file exists, without a race between check and creation
        path.chmod(0o666 & ~_umask())
    except FileExistsError:
        raise
    except OSError as error:
        raise ExportError(
            f"cannot write {path}: {error.strerror or error}", "choose another folder"
        ) from error
    finally:
        if scratch is not None:
            scratch.unlink(missing_ok=True)


def _umask() -> int:
    """Return the process's umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


class ExportScreen(ModalScreen[Path | None], inherit_bindings=False):
    """Asks what to export, in which format and to which file, then writes it. Returns the path; None = cancelled.

    The suggested file is named after the trace. Offered are, if given, the open analysis, all finished ones, and
    ``shown``: a report of the table with the rows, order and columns on screen.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        _key("enter", "write", "write", "Write the file", "enter"),
        _key("down", "scope(1)", "what", "Write the open analysis, the table as shown, or everything", "↑ ↓",
             "scope"),
        _key("up", "scope(-1)", "what", "The previous choice of what to write", "↑ ↓", "scope_back"),
        _key("tab,shift+tab", "format", "format", "Next format", "tab"),
        _key("escape", "dismiss", "cancel", "Close without writing", "esc", "close"),
    ]  # fmt: skip

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
            label = f"this analysis: {current.analysis.replace('_', ' ')}"
            self._scopes.append(_Scope(label, current.analysis, [current]))
        if shown is not None:
            rows = plural(len(shown.tables[0].rows), "row")
            name = ".".join(dict.fromkeys((shown.analysis, shown.tables[0].key)))
            self._scopes.append(_Scope(f"the table as shown, {rows}", name, [shown]))
        if len(answers) > 1 or (answers and current is None):
            self._scopes.append(_Scope(f"all {len(answers)} analyses", "report", list(answers)))
        self._chosen = 0
        self._format: Format = "text"
        self._trace = trace
        path = trace.info.path if trace is not None else None
        title = trace_title(path) if path is not None else ""
        self._stem = as_stem(title if path is None or title != path.name else title.split(".")[0], "trace")
        self._problem = ""
        self._confirmed: Path | None = None  # existing file that the next enter replaces

    def compose(self) -> ComposeResult:
        with dialog("export"):
            yield Painted(id="export-choices")
            yield Input(id="export-path", compact=True, select_on_focus=False)
            yield Painted(id="export-problem")
            yield KeyBar()

    def on_mount(self) -> None:
        self._suggest()
        self.query_one(Input).focus()

    def _suggest(self) -> None:
        name = f"{self._stem}.{self._scopes[self._chosen].name}{SUFFIXES[self._format]}"
        field = self.query_one(Input)
        folder = Path(field.value).parent if field.value else Path.cwd()
        field.value = str(folder / name)
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
        """Select the next (1) or previous (-1) choice of what to write."""
        self._chosen = (self._chosen + by) % len(self._scopes)
        self._suggest()

    def action_format(self) -> None:
        self._format = _FORMATS[(_FORMATS.index(self._format) + 1) % len(_FORMATS)]
        self._suggest()

    def on_input_changed(self) -> None:
        """Forget the confirmation, which was for the previous path only."""
        if self._problem:
            self._problem, self._confirmed = "", None
            self._draw()

    def action_write(self) -> None:
        path = typed_path(self.query_one(Input).value)
        self._write(path, self._scopes[self._chosen].answers, self._format, replace=path == self._confirmed)

    @work(thread=True, exclusive=True, exit_on_error=False)
    def _write(
        self, path: Path, answers: list[Report | Unavailable], format_: Format, *, replace: bool
    ) -> None:
        """Write in a thread, because a network folder may be slow."""
        try:
            style = Style(width=None if format_ != "text" else 120, rows=None, details=True)
            trust_line = trust(self._trace).text if self._trace is not None else ""
            write(path, render_all(answers, format_, trust=trust_line, style=style), replace=replace)
        except FileExistsError:
            self.call_later(self._ask, f"{path.name} exists; press enter again to replace it", path)
        except TuiprofError as error:
            self.call_later(self._ask, str(error), None)
        else:
            self.call_later(self._leave, path)

    def _ask(self, problem: str, confirmed: Path | None) -> None:
        """Show why nothing was written; ``confirmed`` is the file that the next enter replaces."""
        self._problem, self._confirmed = problem, confirmed
        self._draw()

    def _leave(self, path: Path) -> None:
        self.app.notify(f"written to {path}", timeout=5)
        self.dismiss(path)

    on_worker_state_changed = notify_worker_error
