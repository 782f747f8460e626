"""The one place that knows every screen: what the dashboard shows first, and the way from each to the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from textual.screen import Screen

    from tuiprof.tui.start import Start
    from tuiprof.tui.terminal.guest import TerminalApp


def first_screen(start: Start) -> Screen[Any]:
    """Return a new screen for the request."""
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


class Navigator:
    """Implements :class:`~tuiprof.tui.terminal.guest.Navigation`."""

    def __init__(self, app: TerminalApp) -> None:
        self._app = app
        self._runs: dict[Path, str] = {}  # mode of each run that was shown beside another

    def session(self, path: Path, *, replay_speed: float | None = None) -> None:
        """Show a session."""
        from tuiprof.session.store.folders import Session, run_of
        from tuiprof.tui.live.screen import LiveScreen

        with self._app.telling_errors():
            self._app.push_screen(LiveScreen(run_of(Session(path)), replay_speed=replay_speed))

    def switch(self, path: Path, origin: Path) -> None:
        """Show another run, which keeps its own mode: coming back finds it as it was left."""
        from tuiprof.session.store.folders import Session, run_of
        from tuiprof.tui.live.screen import LiveScreen

        self._runs.setdefault(origin, self._app.current_mode)
        with self._app.telling_errors():
            if path not in self._runs:
                session = run_of(Session(path))
                self._runs[path] = f"run {path}"
                self._app.add_mode(self._runs[path], lambda: LiveScreen(session))
            self._app.switch_mode(self._runs[path])

    def trace(self, path: Path, *, step: int | None = None) -> None:
        """Show a trace."""
        from tuiprof.tui.trace.screen import TraceScreen

        with self._app.telling_errors():
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

        with self._app.telling_errors():
            self._app.push_screen(LadderScreen(name, folder))

    def compare(self, before: str, after: str) -> None:
        """Compare two sessions, traces or rungs."""
        from tuiprof.tui.compare.screen import CompareScreen

        with self._app.telling_errors():
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
