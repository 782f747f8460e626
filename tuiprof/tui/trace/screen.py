"""The trace screen: opens a trace in a worker, shows its first part while the rest is read, or shows the error."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.getters import app as getters_app
from textual.screen import Screen

from tuiprof.errors import TuiprofError
from tuiprof.report.sanitize import sanitize
from tuiprof.session.store.folders import trace_title
from tuiprof.tui.opening.loading import LoadingPanel, Opening, Progress, open_in_thread
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.terminal.terminal_app import TerminalApp
from tuiprof.tui.widgets.bars import KeyBar
from tuiprof.tui.widgets.spans import when

if TYPE_CHECKING:
    from tuiprof.model.trace import Trace
    from tuiprof.tui.opening.captures import Captures, TraceSummary
    from tuiprof.tui.trace.widget import TraceView
    from tuiprof.tui.trace.work import Survey

#: Maximum number of files and of sessions offered for a comparison.
_MAX_FILES, _MAX_SESSIONS = 12, 12


class TraceScreen(Screen[None]):
    """Shows one trace. Heavy modules are imported by workers, after the screen is shown.

    ``step`` is the number of the step to analyse; ``directory`` that of traces the file was chosen from, if any.
    """

    app = getters_app(TerminalApp)
    CSS_PATH = "screen.tcss"
    HELP = (
        "At the top is what to change first or, if there is nothing to change, the most urgent verdict. Below are the\n"
        "timeline and one tab for each analysis; the tab with the evidence opens first. In the list of advice the top\n"
        "follows the cursor. While a large file is being read, the first line shows how much of it the results\n"
        "cover.\n\n"
        "Tables: enter opens the details of a row: times, launch, operators, Python stack, source, raw event. If\n"
        "there is room, the selected row is shown in full below the table, followed by the next tables; t switches\n"
        "to the next one.\n\n"
        "Timeline: the lost lane shows where a step loses the time that the finding would save, without the\n"
        "profiler. p simulates the step without the fix (now) and with it (fix). U switches all results between\n"
        "steps without the profiler and steps as captured. d shows operators and Python functions. M lists the\n"
        "analyses that are unavailable, and why.\n\n"
        "Symbols: L is a launch, S a wait for the device, · another call. On a stream the height of a cell is the\n"
        "share of time it was busy; c is a copy, f a fill, C a collective. ░▒▓ are shares of idle time. The line\n"
        "named all is a map of the whole trace with the visible part in brackets; S there means more waiting than\n"
        "idle time.\n\n"
        "Links: a selected event is highlighted together with the events it is linked to: a call and the work it\n"
        "launched, a sync and the work it waited for (f) or delayed (F).\n\n"
        "Mouse: the wheel zooms, shift+wheel pans, dragging moves the view. Dragging on the axis or with ctrl\n"
        "selects a range. A click on the map goes there, a click on an event selects it, a double click opens it.\n\n"
        "Filters: text to search for, or a condition such as empty > 1ms and name ~ gemm. Operators are > >= < <= =\n"
        "!= ~ (contains) and !~, joined by and, or, not and brackets. Write a regular expression as /…/; put text\n"
        "that contains operators in double quotes."
    )

    BINDINGS: ClassVar[list[BindingType]] = [
        key("escape", "give_up", "cancel", "Stop opening the trace", id="trace.cancel", group="Trace"),
        key("R", "captures", "others", "Other ranks and captures: list them, show another", id="trace.captures",
            group="Trace"),
        key("q", "leave", "close", "Close the trace", id="trace.close", group="Trace"),
    ]  # fmt: skip

    def __init__(self, path: Path, *, step: int | None = None, directory: Path | None = None) -> None:
        super().__init__()
        self.path = path
        self._opening: Opening | None = None
        self._shown = False
        self._step = step
        self._directory = directory
        self._captures: Captures | None = None
        self._summaries: dict[Path, TraceSummary | None] = {}
        self._tab = ""

    def compose(self) -> ComposeResult:
        """The loading panel, which the trace will replace."""
        yield self._panel()
        yield KeyBar()

    def _panel(self) -> LoadingPanel:
        return LoadingPanel(sanitize(self.path.name))

    def _start(self) -> None:
        path = self.path
        opening = self._opening = Opening(
            path,
            lambda progress: self.post_message(LoadingPanel.Moved(progress)),
            lambda trace, part: self.call_later(self._show, path, (trace, self._first_frame(trace)), part),
        )
        # Import the analyses while the first part of the file is read.
        self.run_worker(_import_analyses, thread=True, group="import", exit_on_error=False)
        open_in_thread(
            self,
            partial(self._open, opening),
            partial(self._show, path),
            partial(self._fail, path),
            problem=f"{path} could not be read",
            cancelled=opening.stop.is_set,
        )

    on_mount = _start

    def on_unmount(self) -> None:
        if self._opening is not None:
            self._opening.stop.set()

    def _open(self, opening: Opening) -> tuple[Trace, Survey | None]:
        """In a thread: find the other ranks and captures, and read the file."""
        from tuiprof.tui.opening.captures import captures_of

        captures = captures_of(opening.path, self._directory)
        self.call_later(self._list_captures, captures)
        trace = opening.run()
        trace.siblings = trace.siblings or captures.shown
        return trace, self._first_frame(trace)

    def _first_frame(self, trace: Trace) -> Survey | None:
        """In a thread: import the view and compute what it shows first; None = the trace is large, or shown already."""
        import tuiprof.tui.trace.widget  # noqa: F401
        from tuiprof.tui.trace.work import survey_if_small

        return None if self._shown else survey_if_small(trace)

    @property
    def _view(self) -> TraceView | None:
        """The view of the trace; None = nothing was read yet."""
        from tuiprof.tui.trace.widget import TraceView

        return next(iter(self.query(TraceView)), None)

    def on_loading_panel_moved(self, message: LoadingPanel.Moved) -> None:
        for panel in self.query(LoadingPanel):
            panel.advance(message.progress)
        if self._shown and (view := self._view) is not None:
            view.head.advance(message.progress)

    async def _show(
        self, path: Path, read: tuple[Trace, Survey | None], part: Progress | None = None
    ) -> None:
        """Show the trace, or a part of it that is larger than the one shown."""
        from tuiprof.tui.trace.widget import TraceView

        if path != self.path:  # the user has switched to another trace
            return
        if part is None:
            self._opening = None
        trace, found = read
        if self._shown:
            if (view := self._view) is not None:
                view.replace_trace(trace, part)
        else:
            self._shown = True
            with self.app.batch_update():
                await self.query(LoadingPanel).remove()
                view = TraceView(trace, part, self._step, found)
                await self.mount(view, before=0)
                if view.is_whole:  # else the application is exiting
                    view.open_tab(self._tab)
                    if self._captures is not None:
                        view.head.list_captures(self._captures)
        self.refresh_bindings()

    def _fail(self, path: Path, error: TuiprofError) -> None:
        if path != self.path:
            return
        self._opening = None
        if self._shown and (view := self._view) is not None:
            view.head.fail(error)
        else:
            self.query_one(LoadingPanel).fail(error)
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Enable ``cancel`` until the trace is shown, and the list of captures if there are several."""
        if action == "give_up":
            return self._opening is not None and not self._shown
        if action == "captures":
            return self._captures is not None and len(self._captures) > 1
        return True

    def action_give_up(self) -> None:
        if self._opening is not None:
            self._opening.stop.set()
        self.action_leave()

    def on_trace_view_compare_wanted(self) -> None:
        from tuiprof.tui.dialogs.dialog import PickScreen
        from tuiprof.tui.dialogs.form import TextForm

        view = self._view
        path = view.trace.info.path if view is not None else None
        if path is None:
            return
        files = beside(path)
        sessions = _sessions_with_traces(self.app.start.sessions)
        targets = [*files, *(session for _, session in sessions)]
        names = [*(file.name for file in files), *(name for name, _ in sessions), "type another …"]

        def compare(other: str) -> None:
            if other:
                self.app.go.compare(other, str(path))

        def picked(index: int) -> None:
            if index < len(targets):
                compare(str(targets[index]))
            else:
                hint = "a trace file, a session (path, name or last) or LADDER:VARIANT"
                self.app.ask(TextForm("compare with", placeholder=hint), compare)

        self.app.ask(PickScreen(f"baseline for {sanitize(trace_title(path))}", names), picked)

    def _list_captures(self, captures: Captures) -> None:
        if captures.path == self.path:
            self._captures = captures
            if self._shown and (view := self._view) is not None:
                view.head.list_captures(captures)
            self.refresh_bindings()

    def action_captures(self) -> None:
        from tuiprof.tui.opening.captures import CapturesScreen

        if self._captures is not None:
            view = self._view
            straggler = view.work.results.straggler(view.window) if view is not None else None
            self.app.push_screen(CapturesScreen(self._captures, self._summaries, straggler), self._switch)

    on_trace_head_others_wanted = action_captures

    async def _switch(self, path: Path | None) -> None:
        """Switch to another trace, on the same tab."""
        if path is None or path == self.path:
            return
        if self._opening is not None:
            self._opening.stop.set()
        view = self._view
        self._tab = view.current if view is not None else self._tab
        self.path, self._shown, self._step = path, False, None
        with self.app.batch_update():
            await self.query("TraceView, LoadingPanel").remove()
            await self.mount(self._panel(), before=0)
        self._start()
        self.refresh_bindings()

    def action_leave(self) -> None:
        """Close the trace; the last screen closes the dashboard."""
        self.app.go.back()

    on_trace_view_left = action_leave


def _import_analyses() -> None:
    from tuiprof import analyses

    analyses.available()


def beside(path: Path) -> list[Path]:
    """Return other traces in the same folder, newest first; those whose names start with the same word come first."""
    from tuiprof.formats.directory import is_trace_name

    try:
        entries = [
            entry
            for entry in os.scandir(path.parent)
            if is_trace_name(entry.name) and entry.is_file() and entry.name != path.name
        ]
        word = _first_word(path.name)
        entries.sort(key=lambda entry: (_first_word(entry.name) != word, -entry.stat().st_mtime))
    except OSError:
        return []
    return [Path(entry.path) for entry in entries[:_MAX_FILES]]


def _first_word(name: str) -> str:
    return re.split(r"[-_.]", name, maxsplit=1)[0]


def _sessions_with_traces(root: Path | None) -> list[tuple[str, Path]]:
    """Return title and directory of the newest sessions that have traces."""
    from tuiprof.session.store.folders import Session, session_dirs, sessions_root

    found: list[tuple[str, Path]] = []
    for path in session_dirs(sessions_root(root)):
        try:
            session = Session(path)
            if session.traces():
                found.append((f"{session.title} of {when(session.meta.unix_ns)}", path))
        except TuiprofError:  # not readable
            continue
        if len(found) == _MAX_SESSIONS:
            break
    return found
