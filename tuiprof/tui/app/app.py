"""The application: opens the screen it was asked for, and keeps keys, theme and palette."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

from textual.binding import Binding, BindingType
from textual.command import Provider
from textual.dom import DOMNode
from textual.screen import Screen
from textual.widget import Widget

from tuiprof.errors import TuiprofError
from tuiprof.report.sanitize import sanitize_lines
from tuiprof.tui.start import Start
from tuiprof.tui.terminal import themes
from tuiprof.tui.terminal.guest import TERMINAL_KEYS, TerminalApp
from tuiprof.tui.terminal.keys import key, load_settings
from tuiprof.tui.widgets.scroll_line import use_scroll_lines

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
    """The dashboard.

    Args:
        start: What to show first.

    Attributes:
        start: The same.
        farewell: Printed once the terminal is the user's again, for example how to come back to a run.
    """

    TITLE = "tuiprof"
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {_commands}
    DEFAULT_MODE = "first"
    BINDINGS: ClassVar[list[BindingType]] = [
        key(
            "question_mark,f1",
            "help",
            "help",
            "Keys and words of this screen",
            id="app.help",
            group="Everywhere",
            display="?",
        ),
        key(
            "ctrl+p",
            "command_palette",
            "commands",
            "Search every command, scenario, session and trace",
            id="app.palette",
            group="Everywhere",
            show=False,
        ),
        key(
            "ctrl+o",
            "jump",
            "jump",
            "Letters on every pane: press one to go there",
            id="app.jump",
            group="Everywhere",
            show=False,
        ),
        key(
            "ctrl+t",
            "tour",
            "tour",
            "A look around in five steps, on recorded samples",
            id="app.tour",
            group="Everywhere",
            show=False,
        ),
        *TERMINAL_KEYS,
        key(
            "ctrl+q,ctrl+c",
            "leave_all",
            "quit",
            "Close tuiprof; what runs goes on",
            id="app.quit",
            group="Everywhere",
            show=False,
            priority=True,
        ),
    ]

    def __init__(self, start: Start) -> None:
        # The first screen's style sheet is read together with the application's own: reading it when the
        # screen comes would mean to work out every style twice before the first picture.
        here = Path(__file__).parent
        first = "live" if start.view == "replay" else start.view
        super().__init__(css_path=[here / "app.tcss", here / "screens" / f"{first}.tcss"])
        use_scroll_lines()
        self.start = start
        self.farewell = ""
        self.settings = load_settings()
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
        self._runs: dict[Path, str] = {}  # mode of each run that was looked at beside another
        if self.settings.keys:
            self.set_keymap(self.settings.keys)

    def get_key_display(self, binding: Binding) -> str:
        """Return a key as people call it."""
        return binding.key_display or _KEY_NAMES.get(binding.key) or super().get_key_display(binding)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Return what the style sheets need beyond what every theme has."""
        return dict(themes.DEFAULTS)

    def first_screen(self) -> Screen[Any]:
        """Return the screen that was asked for."""
        return self.start.screen()

    def on_mount(self) -> None:
        """Tell what of the configuration could not be used."""
        self._problems.extend(self._unknown_keys())
        for problem in self._problems:
            self.notify(problem, title="configuration", severity="warning", timeout=12)

        if self.start.view == "library" and not self.is_headless:
            self.set_timer(_TOUR_AFTER_S, self._tour_on_first_start)

    def _tour_on_first_start(self) -> None:
        from tuiprof.tui.app.tour import is_first_start

        if len(self.screen_stack) == 1 and is_first_start():
            self.action_tour()

    def _unknown_keys(self) -> list[str]:
        """Return a sentence for each configured id that no binding has; only asked when there are any."""
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
        """Say which keys of the configuration collide."""
        ids = ", ".join(sorted(binding.id or binding.action for binding in clashed_bindings))
        text = f"[keys] takes the key of: {ids}"
        if text not in self._problems:
            self._problems.append(text)
            self.notify(text, title="configuration", severity="warning")

    # -- where to go -------------------------------------------------------------------------------------

    def open_session(self, path: Path, *, replay_speed: float | None = None) -> None:
        """Show a session.

        Args:
            path: Its directory.
            replay_speed: Replay it at this speed; None = live, or as it ended.
        """
        from tuiprof.session.store.folders import Session
        from tuiprof.tui.live.screen import LiveScreen

        with self.telling_errors():
            self.push_screen(LiveScreen(Session(path), replay_speed=replay_speed))

    def open_path(self, path: Path) -> None:
        """Show what a path names: a session directory or a trace file.

        Args:
            path: It.
        """
        if path.is_dir():
            self.open_session(path)
        else:
            self.open_trace(path)

    def switch_session(self, path: Path, origin: Path) -> None:
        """Show another run, which keeps its own mode: coming back finds it as it was left.

        Args:
            path: Its directory.
            origin: The session of the screen in front.
        """
        from tuiprof.session.store.folders import Session
        from tuiprof.tui.live.screen import LiveScreen

        self._runs.setdefault(origin, self.current_mode)
        with self.telling_errors():
            if path not in self._runs:
                session = Session(path)
                self._runs[path] = f"run {path}"
                self.add_mode(self._runs[path], lambda: LiveScreen(session))
            self.switch_mode(self._runs[path])

    def open_ladder(self, name: str, folder: Path | None = None) -> None:
        """Show a ladder: what was measured of it, and the way to measure it.

        Args:
            name: Its name.
            folder: One that was measured; None = the newest of that name, if there is one.
        """
        from tuiprof.tui.ladder.screen import LadderScreen

        with self.telling_errors():
            self.push_screen(LadderScreen(name, folder))

    def open_compare(self, before: str, after: str) -> None:
        """Compare two sessions, traces or rungs.

        Args:
            before: What was before: a path, or what ``tuiprof compare`` accepts.
            after: What came after.
        """
        from tuiprof.tui.compare.screen import CompareScreen

        with self.telling_errors():
            self.push_screen(CompareScreen(before, after, root=self.start.sessions))

    def open_trace(self, path: Path, *, step: int | None = None) -> None:
        """Show a trace.

        Args:
            path: The file.
            step: Number of the step to look at; None = the whole trace.
        """
        from tuiprof.tui.trace.screen import TraceScreen

        with self.telling_errors():
            self.push_screen(TraceScreen(path, step=step))

    def run_scenario(self, ladder: str, variant: str) -> None:
        """Ask how to run a variant, then run and watch it.

        Args:
            ladder: Name of its ladder.
            variant: Its name.
        """
        from tuiprof.tui.library.screen import LibraryScreen

        library = self.screen_stack[0]
        if not isinstance(library, LibraryScreen):
            library = LibraryScreen()
            self.push_screen(library)
        library.run_variant(ladder, variant)

    @contextlib.contextmanager
    def telling_errors(self) -> Iterator[None]:
        """Turn an error that a user can meet into a notification."""
        try:
            yield
        except TuiprofError as error:
            self.notify(
                str(error),
                title="that did not work",
                severity="error",
                timeout=10,
            )

    def leave(self, code: int = 0) -> None:
        """Close the screen in front; the last one closes the dashboard.

        Args:
            code: Exit status when it was the last one.
        """
        if len(self.screen_stack) > 1:
            self.pop_screen()
        elif self.current_mode != self.DEFAULT_MODE:
            self.run_worker(self._leave_runs(code), exit_on_error=False)
        else:
            self.exit(code)

    async def _leave_runs(self, code: int) -> None:
        """Leave the runs that were looked at side by side, for what was in front before the first of them."""
        modes = {mode for mode in self._runs.values() if mode != self.DEFAULT_MODE}
        self._runs.clear()
        await self.switch_mode(self.DEFAULT_MODE)
        for mode in modes:
            await self.remove_mode(mode)
        self.leave(code)

    async def action_help(self) -> None:
        """Show the keys of this screen."""
        from tuiprof.tui.app.help import HelpScreen

        if not isinstance(self.screen, HelpScreen):
            with self.batch_update():  # else the page is drawn empty first: twice the bytes
                await self.push_screen(HelpScreen(self.screen))

    def action_jump(self) -> None:
        """Show a letter on every pane, and go to the one that is chosen."""
        from tuiprof.tui.app.jump import JumpScreen, panes_of

        screen = self.screen
        if screen.is_modal or not panes_of(screen):
            return

        def chosen(pane: Widget | None) -> None:
            if pane is not None:
                screen.set_focus(pane)

        self.push_screen(JumpScreen(screen), chosen)

    def action_tour(self) -> None:
        """Show the dashboard step by step."""
        from tuiprof.tui.app.tour import Tour

        Tour(self).begin()

    def action_leave_all(self) -> None:
        """Close the dashboard; of a run that is looked at and goes on it is said how to come back."""
        from tuiprof.tui.live.run_screen import RunScreen

        runs = [screen for screen in self.screen_stack if isinstance(screen, RunScreen) and screen.running]
        if runs:
            self.farewell = runs[-1].farewell()
        self.exit(0)


def run_app(start: Start) -> int:
    """Open the dashboard and return when the user leaves it.

    Args:
        start: What to show first.

    Returns:
        The exit status: that of the script where this command launched it and it is over, else 0.

    Raises:
        TuiprofError: What was asked for cannot be shown.
    """
    if start.path is not None and start.view in ("live", "replay"):
        from tuiprof.session.store.folders import Session

        Session(start.path)  # a session that cannot be read is said on a clean terminal
    app = TuiprofApp(start)
    code = app.run()
    if app.farewell:
        sys.stderr.write(sanitize_lines(app.farewell) + "\n")
    return app.return_code or code or 0
