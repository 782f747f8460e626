"""The application: the one module that knows all screens; the way between them, keys, theme and palette."""

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
from textual.widget import Widget

from tuiprof.report.sanitize import sanitize_lines
from tuiprof.tui.start import Start
from tuiprof.tui.terminal import themes
from tuiprof.tui.terminal.keys import key, load_settings
from tuiprof.tui.terminal.terminal_app import TERMINAL_KEYS, TerminalApp
from tuiprof.tui.widgets.bars import use_scroll_lines

if TYPE_CHECKING:
    from tuiprof.tui.app.help import Tour

_everywhere = partial(key, group="Everywhere")


class Navigator:
    """The way from each screen to the others: a :class:`~tuiprof.tui.terminal.terminal_app.Navigation`."""

    def __init__(self, app: TerminalApp) -> None:
        self._app = app
        self._runs: dict[Path, str] = {}  # mode of each run that was shown beside another

    def session(self, path: Path, *, replay_speed: float | None = None) -> None:
        """Show a session."""
        from tuiprof.session.store.folders import Session, run_of
        from tuiprof.tui.live.screen import LiveScreen

        with self._app.notify_errors():
            self._app.push_screen(LiveScreen(run_of(Session(path)), replay_speed=replay_speed))

    def switch(self, path: Path, origin: Path) -> None:
        """Show another run, which keeps its own mode: coming back finds it as it was left."""
        from tuiprof.session.store.folders import Session, run_of
        from tuiprof.tui.live.screen import LiveScreen

        self._runs.setdefault(origin, self._app.current_mode)
        with self._app.notify_errors():
            if path not in self._runs:
                session = run_of(Session(path))
                self._runs[path] = f"run {path}"
                self._app.add_mode(self._runs[path], lambda: LiveScreen(session))
            self._app.switch_mode(self._runs[path])

    def trace(self, path: Path, *, step: int | None = None) -> None:
        """Show a trace."""
        from tuiprof.tui.trace.screen import TraceScreen

        with self._app.notify_errors():
            self._app.push_screen(TraceScreen(path, step=step))

    def path(self, path: Path) -> None:
        """Show a session directory or a trace file."""
        if path.is_dir():
            self.session(path)
        else:
            self.trace(path)

    def ladder(self, name: str, folder: Path | None = None) -> None:
        """Show a ladder."""
        from tuiprof.tui.ladder.screen import LadderScreen

        with self._app.notify_errors():
            self._app.push_screen(LadderScreen(name, folder))

    def compare(self, before: str, after: str) -> None:
        """Compare two sessions, traces or rungs."""
        from tuiprof.tui.compare.screen import CompareScreen

        with self._app.notify_errors():
            self._app.push_screen(CompareScreen(before, after, root=self._app.start.sessions))

    def scenario(self, ladder: str, variant: str) -> None:
        """Ask how to run a variant, over the library."""
        from tuiprof.tui.library.screen import LibraryScreen

        library = self._app.screen_stack[0]
        if not isinstance(library, LibraryScreen):
            library = LibraryScreen()
            self._app.push_screen(library)
        library.run_variant(ladder, variant)

    def back(self, code: int = 0) -> None:
        """Close the screen in front."""
        app = self._app
        if len(app.screen_stack) > 1:
            app.pop_screen()
        elif app.current_mode != app.DEFAULT_MODE:
            app.run_worker(self._leave_runs(code), exit_on_error=False)
        else:
            app.exit(code)

    async def _leave_runs(self, code: int) -> None:
        """Leave the runs shown side by side, and return to the screen before the first of them."""
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


#: The first picture comes first.
_TOUR_AFTER_S: Final = 0.4


def _commands() -> type[Provider]:
    """Return what fills the palette; imported when it is first opened."""
    from tuiprof.tui.app.palette import TuiprofCommands

    return TuiprofCommands


class TuiprofApp(TerminalApp, inherit_bindings=False):
    """The dashboard."""

    TITLE = "tuiprof"
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {_commands}
    DEFAULT_MODE = "first"
    BINDINGS: ClassVar[list[BindingType]] = [
        _everywhere(
            "question_mark,f1",
            "help",
            "help",
            "Show the keys and terms of this screen",
            id="app.help",
            display="?",
        ),
        _everywhere(
            "ctrl+p",
            "command_palette",
            "commands",
            "Search commands, scenarios, sessions and traces",
            id="app.palette",
            display="ctrl+p",
        ),
        _everywhere("ctrl+o", "jump", "jump", "Jump to a pane by its letter", id="app.jump", show=False),
        _everywhere(
            "ctrl+t", "tour", "tour", "Take a five-step tour on recorded samples", id="app.tour", show=False
        ),
        *TERMINAL_KEYS,
        _everywhere(
            "ctrl+q,ctrl+c",
            "leave_all",
            "quit",
            "Quit tuiprof; runs continue",
            id="app.quit",
            show=False,
            priority=True,
        ),
    ]

    def __init__(self, start: Start) -> None:
        # The first screen's style sheet is read together with the application's own: reading it when the
        # screen comes would mean to work out every style twice before the first picture.
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
                f"no theme {wanted!r}; there are {', '.join(sorted(self.available_themes))}"
            )
            wanted = ""
        themes.begin_with(self, wanted or themes.suited(self.terminal))
        self.add_mode(self.DEFAULT_MODE, self.first_screen)
        if self.settings.keys:
            self.set_keymap(self.settings.keys)

    def get_key_display(self, binding: Binding) -> str:
        """Return a key as people call it."""
        named = binding.key_display or _KEY_NAMES.get(binding.key)
        # One notation: Textual's own would be ^o beside the ctrl+p of every footer.
        return named or (binding.key if binding.key.startswith("ctrl+") else super().get_key_display(binding))

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Return what the style sheets need beyond what every theme has."""
        return dict(themes.DEFAULTS)

    def first_screen(self) -> Screen[Any]:
        """Return a new screen for the request."""
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
        """Report what of the configuration could not be used."""
        self._problems.extend(self._unknown_keys())
        for problem in self._problems:
            self.notify(problem, title="configuration", severity="warning", timeout=12)

        if self.start.view == "library" and not self.is_headless:
            self.set_timer(_TOUR_AFTER_S, self._tour_on_first_start)

    def _tour_on_first_start(self) -> None:
        from tuiprof.tui.app.help import is_first_start

        if len(self.screen_stack) == 1 and is_first_start():
            self.action_tour()

    def _unknown_keys(self) -> list[str]:
        """Return a sentence for each configured id without a binding."""
        if not self.settings.keys:
            return []
        from tuiprof.tui.app.help import all_binding_ids

        known = all_binding_ids()
        return [
            f"[keys]: no binding {name!r}; the help (?) names them"
            for name in self.settings.keys
            if name not in known
        ]

    def handle_bindings_clash(self, clashed_bindings: set[Binding], node: DOMNode) -> None:
        """Report which keys of the configuration collide."""
        ids = ", ".join(sorted(binding.id or binding.action for binding in clashed_bindings))
        text = f"[keys] takes the key of: {ids}"
        if text not in self._problems:
            self._problems.append(text)
            self.notify(text, title="configuration", severity="warning")

    async def on_event(self, event: events.Event) -> None:
        """Tell the tour of a click outside its card before the click moves the focus."""
        if isinstance(event, events.MouseDown) and self._tour is not None:
            self._tour.mouse_pressed(event)
        await super().on_event(event)

    async def action_help(self) -> None:
        """Show the keys of this screen."""
        from tuiprof.tui.app.help import HelpScreen

        if not isinstance(self.screen, HelpScreen):
            with self.batch_update():  # else the page is drawn empty first: twice the bytes
                await self.push_screen(HelpScreen(self.screen))

    def action_jump(self) -> None:
        """Show a letter on every pane, and go to the one that is chosen."""
        from tuiprof.tui.app.palette import JumpScreen, panes_of

        screen = self.screen
        if screen.is_modal or not panes_of(screen):
            return

        def chosen(pane: Widget | None) -> None:
            if pane is not None:
                screen.set_focus(pane)

        self.push_screen(JumpScreen(screen), chosen)

    def action_tour(self) -> None:
        """Show the dashboard step by step."""
        from tuiprof.tui.app.help import Tour

        self._tour = Tour(self)
        self._tour.begin()

    def action_leave_all(self) -> None:
        """Close the dashboard; for a run that continues, print how to return to it."""
        from tuiprof.tui.live.screen import LiveScreen

        shown = [screen for screen in self.screen_stack if isinstance(screen, LiveScreen)]
        runs = [screen for screen in shown if screen.moment.running]
        if runs:
            self.farewell = runs[-1].farewell()
        self.exit(0)


def run_app(start: Start) -> int:
    """Open the dashboard and return when the user leaves it.

    Returns:
        The exit status: that of the script where this command launched it and it is over, else 0.

    Raises:
        TuiprofError: The request cannot be shown.
    """
    if start.path is not None and start.view in ("live", "replay"):
        from tuiprof.session.store.folders import Session

        Session(start.path)  # a session that cannot be read is reported on a clean terminal
    app = TuiprofApp(start)
    gc.freeze()  # scanning what was imported is half of every full collection, in which no key is answered
    code = app.run()
    if app.farewell:
        sys.stderr.write(sanitize_lines(app.farewell) + "\n")
    return app.return_code or code or 0
