"""The application: navigation between all screens, keys, theme and palette. Only this module imports all screens."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from textual import events
from textual.binding import Binding, BindingType
from textual.command import Provider
from textual.dom import DOMNode
from textual.screen import Screen

from tuiprof.errors import TuiprofError
from tuiprof.report.sanitize import sanitize_lines
from tuiprof.tui import Start
from tuiprof.tui.terminal import themes
from tuiprof.tui.terminal.keys import key, load_settings
from tuiprof.tui.terminal.terminal_app import TERMINAL_KEYS, TerminalApp
from tuiprof.tui.widgets.bars import use_scroll_lines

if TYPE_CHECKING:
    from tuiprof.tui.app.help import Tour

_everywhere = partial(key, group="Everywhere")


class Navigator:
    """Opens screens; implements :class:`~tuiprof.tui.terminal.terminal_app.Navigation`."""

    def __init__(self, app: TerminalApp) -> None:
        self._app = app
        self._runs: dict[Path, str] = {}  # mode of each run among which the user switches

    def session(self, path: Path, *, replay_speed: float | None = None) -> None:
        from tuiprof.session.store.folders import Session, run_of
        from tuiprof.tui.live.screen import LiveScreen

        with self._app.notify_errors():
            self._app.push_screen(LiveScreen(run_of(Session(path)), replay_speed=replay_speed))

    def switch(self, path: Path, origin: Path) -> None:
        from tuiprof.session.store.folders import Session, run_of
        from tuiprof.tui.live.screen import LiveScreen

        self._runs.setdefault(origin, self._app.current_mode)
        with self._app.notify_errors():
            if path not in self._runs:
                session = run_of(Session(path))
                self._runs[path] = f"run {path}"
                self._app.add_mode(self._runs[path], lambda: LiveScreen(session))
            self._app.switch_mode(self._runs[path])

    def trace(self, path: Path, *, step: int | None = None, directory: Path | None = None) -> None:
        from tuiprof.tui.trace.screen import TraceScreen

        with self._app.notify_errors():
            self._app.push_screen(TraceScreen(path, step=step, directory=directory))

    def path(self, path: Path) -> None:
        """Open a trace, a session, a measured ladder or the newest trace of a directory."""
        from tuiprof.ladder.state import LadderRun
        from tuiprof.session.store.folders import LADDER_FILE
        from tuiprof.session.store.meta import SESSION_FILE

        if not path.is_dir():
            self.trace(path)
        elif (path / SESSION_FILE).exists():
            self.session(path)
        elif (path / LADDER_FILE).exists():
            with self._app.notify_errors():
                self.ladder(LadderRun(path).meta.ladder, path)
        else:
            find = partial(self._open_newest, path)
            self._app.run_worker(find, thread=True, exclusive=True, exit_on_error=False, group="directory")

    def _open_newest(self, directory: Path) -> None:
        """In a thread, because it walks folders: find the newest trace of a directory, and open it."""
        from tuiprof.formats import open_set

        try:
            found = open_set(directory).file().path
        except TuiprofError as error:
            show = partial(self._app.notify, title="error", severity="error", timeout=10)
            self._app.call_from_thread(show, str(error))
        else:
            self._app.call_from_thread(self.trace, found, directory=directory)

    def ladder(self, name: str, folder: Path | None = None) -> None:
        from tuiprof.tui.ladder.screen import LadderScreen

        with self._app.notify_errors():
            self._app.push_screen(LadderScreen(name, folder))

    def compare(self, before: str, after: str) -> None:
        from tuiprof.tui.compare.screen import CompareScreen

        with self._app.notify_errors():
            self._app.push_screen(CompareScreen(before, after, root=self._app.start.sessions))

    def scenario(self, ladder: str, variant: str) -> None:
        from tuiprof.tui.library.screen import LibraryScreen

        library = self._app.screen_stack[0]
        if not isinstance(library, LibraryScreen):
            library = LibraryScreen()
            self._app.push_screen(library)
        library.run_variant(ladder, variant)

    def back(self, code: int = 0) -> None:
        app = self._app
        if len(app.screen_stack) > 1:
            app.pop_screen()
        elif app.current_mode != app.DEFAULT_MODE:
            app.run_worker(self._leave_runs(code), exit_on_error=False)
        else:
            app.exit(code)

    async def _leave_runs(self, code: int) -> None:
        """Close all runs among which the user switches, and the screen of the first one."""
        modes = {mode for mode in self._runs.values() if mode != self._app.DEFAULT_MODE}
        self._runs.clear()
        await self._app.switch_mode(self._app.DEFAULT_MODE)
        for mode in modes:
            await self._app.remove_mode(mode)
        self.back(code)


_KEY_NAMES: Final = {
    "enter": "enter",
    "escape": "esc",
    "delete": "del",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "slash": "/",
    "question_mark": "?",
}


#: Delay of the tour on the first start, so that the first frame is drawn before.
_TOUR_DELAY_S: Final = 0.4


def _commands() -> type[Provider]:
    """Return the provider of the palette, imported when it is first opened."""
    from tuiprof.tui.app.palette import TuiprofCommands

    return TuiprofCommands


class TuiprofApp(TerminalApp, inherit_bindings=False):
    """The dashboard."""

    TITLE = "tuiprof"
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {_commands}
    DEFAULT_MODE = "first"
    BINDINGS: ClassVar[list[BindingType]] = [
        _everywhere("question_mark,f1", "help", "help", "Show the keys and terms of this screen", id="app.help",
                    display="?"),
        _everywhere("ctrl+p", "command_palette", "commands", "Search commands, scenarios, sessions and traces",
                    id="app.palette", display="ctrl+p"),
        _everywhere("ctrl+o", "jump", "jump", "Jump to a pane by its letter", id="app.jump", show=False),
        _everywhere("ctrl+t", "tour", "tour", "Take a five-step tour on recorded samples", id="app.tour",
                    show=False),
        *TERMINAL_KEYS,
        _everywhere("ctrl+q,ctrl+c", "leave_all", "quit", "Quit tuiprof; runs continue", id="app.quit", show=False,
                    priority=True),
    ]  # fmt: skip

    def __init__(self, start: Start) -> None:
        # Load the first screen's style sheet with the application's: loading it later would compute all styles twice
        # before the first frame.
        here = Path(__file__).parent
        first = "live" if start.view == "replay" else start.view
        super().__init__(css_path=[here / "app.tcss", here.parent / first / "screen.tcss"])
        use_scroll_lines()
        self.start = start
        self.go = Navigator(self)
        self.settings = load_settings()
        self._tour: Tour | None = None
        for theme in themes.OURS:
            self.register_theme(theme)
        self._problems = list(self.settings.problems)
        wanted = themes.whole_name(os.environ.get("TUIPROF_THEME") or self.settings.theme)
        if wanted and wanted not in self.available_themes:
            self._problems.append(
                f"unknown theme {wanted!r}; choose one of {', '.join(sorted(self.available_themes))}"
            )
            wanted = ""
        themes.begin_with(self, wanted or themes.suited(self.terminal))
        self.add_mode(self.DEFAULT_MODE, self.first_screen)
        if self.settings.keys:
            self.set_keymap(self.settings.keys)

    def get_key_display(self, binding: Binding) -> str:
        named = binding.key_display or _KEY_NAMES.get(binding.key)
        # Textual would write ^o for ctrl+o.
        return named or (binding.key if binding.key.startswith("ctrl+") else super().get_key_display(binding))

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Return the theme variables that Textual's themes do not define."""
        return dict(themes.DEFAULTS)

    def first_screen(self) -> Screen[Any]:
        start = self.start
        if start.compared is not None:
            from tuiprof.tui.compare.screen import CompareScreen

            return CompareScreen(*start.compared, root=start.sessions)
        if start.view == "library" or start.path is None:
            from tuiprof.tui.library.screen import LibraryScreen

            return LibraryScreen()
        if start.view == "trace":
            from tuiprof.tui.trace.screen import TraceScreen

            return TraceScreen(start.path, directory=start.directory)
        if start.view == "fleet":
            from tuiprof.tui.fleet.screen import FleetScreen

            return FleetScreen(start.path)
        if start.view == "ladder":
            from tuiprof.ladder.state import LadderRun
            from tuiprof.tui.ladder.screen import LadderScreen

            return LadderScreen(LadderRun(start.path).meta.ladder, start.path)
        from tuiprof.session.store.folders import Session, run_of
        from tuiprof.tui.live.screen import LiveScreen

        return LiveScreen(
            run_of(Session(start.path)), replay_speed=start.speed if start.view == "replay" else None
        )

    def on_mount(self) -> None:
        """Report errors in the configuration, and show the tour on the first start."""
        self._problems.extend(self._unknown_keys())
        for problem in self._problems:
            self.notify(problem, title="configuration", severity="warning", timeout=12)

        if self.start.view == "library" and not self.is_headless:
            self.set_timer(_TOUR_DELAY_S, self._tour_on_first_start)

    def _tour_on_first_start(self) -> None:
        from tuiprof.tui.app.help import is_first_start

        if len(self.screen_stack) == 1 and is_first_start():
            self.action_tour()

    def _unknown_keys(self) -> list[str]:
        """Return an error message for each configured id that has no binding."""
        if not self.settings.keys:
            return []
        from tuiprof.tui.app.help import all_binding_ids

        known = all_binding_ids()
        return [
            f"[keys]: unknown binding {name!r}; the help (?) lists them"
            for name in self.settings.keys
            if name not in known
        ]

    def handle_bindings_clash(self, clashed_bindings: set[Binding], node: DOMNode) -> None:
        """Report bindings that lose their key to another one of the configuration."""
        ids = ", ".join(sorted(binding.id or binding.action for binding in clashed_bindings))
        text = f"[keys] reassigns the key of: {ids}"
        if text not in self._problems:
            self._problems.append(text)
            self.notify(text, title="configuration", severity="warning")

    async def on_event(self, event: events.Event) -> None:
        """Pass clicks to the tour before they move the focus."""
        if isinstance(event, events.MouseDown) and self._tour is not None:
            self._tour.mouse_pressed(event)
        await super().on_event(event)

    async def action_help(self) -> None:
        from tuiprof.tui.app.help import HelpScreen

        if not isinstance(self.screen, HelpScreen):
            with self.batch_update():  # or an empty page would be drawn first
                await self.push_screen(HelpScreen(self.screen))

    def action_jump(self) -> None:
        from tuiprof.tui.app.palette import JumpScreen, panes_of

        screen = self.screen
        if not screen.is_modal and panes_of(screen):
            self.ask(JumpScreen(screen), screen.set_focus)

    def action_tour(self) -> None:
        from tuiprof.tui.app.help import Tour

        self._tour = Tour(self)
        self._tour.go(0)

    def action_leave_all(self) -> None:
        """Close the dashboard; for a run that continues, print how to return to it."""
        from tuiprof.tui.live.screen import LiveScreen

        shown = [screen for screen in self.screen_stack if isinstance(screen, LiveScreen)]
        runs = [screen for screen in shown if screen.moment.running]
        if runs:
            self.farewell = runs[-1].farewell()
        self.exit(0)


def run_app(start: Start) -> int:
    """Run the dashboard until the user closes it.

    Returns:
        The exit status: the script's if this command launched it and it has ended, else 0.

    Raises:
        TuiprofError: The first screen cannot be shown.
    """
    if start.path is not None and start.view in ("live", "replay"):
        from tuiprof.session.store.folders import Session

        Session(start.path)  # raise before the terminal is taken over
    app = TuiprofApp(start)
    gc.freeze()  # or scanning the imported modules would double the pause of a full collection
    # Each drawn line is a dozen objects: by default Python would search for cycles several times per drawn screen.
    threshold = gc.get_threshold()
    gc.set_threshold(10_000, 5, 10)
    try:
        code = app.run()
    finally:
        gc.set_threshold(*threshold)
    if app.farewell:
        sys.stderr.write(sanitize_lines(app.farewell) + "\n")
    return app.return_code or code or 0
