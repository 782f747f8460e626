"""What the dashboard is asked to show first. Light on purpose: the command line imports it before Textual."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from textual.screen import Screen


@dataclass(frozen=True, slots=True)
class Start:
    """What to show first.

    Attributes:
        view: Which screen.
        path: The session directory or trace file it shows; None for the library.
        sessions: Folder of recorded sessions; None = the default one.
        scenarios: More folders of scenarios.
        python: Interpreter that scenarios are to run in; None = the active environment's.
        speed: Session seconds a second of a replay.
        launched: The session was started by this very command: its exit status becomes ours.
        compared: What to compare, before and after; None unless that is the view.
        place: The directory that the trace was chosen from; None = the trace itself was named.
    """

    view: Literal["library", "live", "replay", "trace", "compare", "ladder"] = "library"
    path: Path | None = None
    sessions: Path | None = None
    scenarios: tuple[Path, ...] = ()
    python: Path | None = None
    speed: float = 1.0
    launched: bool = False
    compared: tuple[str, str] | None = None
    place: Path | None = None

    @classmethod
    def library(
        cls, *, sessions: Path | None = None, scenarios: tuple[Path, ...] = (), python: Path | None = None
    ) -> Start:
        """Show scenarios, sessions and traces.

        Args:
            sessions: Folder of recorded sessions; None = the default one.
            scenarios: More folders of scenarios.
            python: Interpreter to run them in.
        """
        return cls("library", sessions=sessions, scenarios=scenarios, python=python)

    @classmethod
    def live(cls, path: Path, *, launched: bool = False) -> Start:
        """Show a session: live while it runs, else as it ended.

        Args:
            path: The session directory.
            launched: This command started it, so that its exit status becomes ours.
        """
        return cls("live", path, launched=launched)

    @classmethod
    def replay(cls, path: Path, *, speed: float = 1.0) -> Start:
        """Show a session from its beginning, by a clock.

        Args:
            path: The session directory.
            speed: Session seconds a second.
        """
        return cls("replay", path, speed=speed)

    @classmethod
    def trace(cls, path: Path, *, place: Path | None = None) -> Start:
        """Show a trace.

        Args:
            path: The trace file.
            place: The directory it was chosen from, of several; None = it was named itself.
        """
        return cls("trace", path, place=place)

    @classmethod
    def compare(cls, before: str, after: str, *, sessions: Path | None = None) -> Start:
        """Show two runs side by side.

        Args:
            before: The baseline: a trace file, a session or ``LADDER:VARIANT``.
            after: What to judge; the same.
            sessions: Folder of recorded sessions; None = the default one.
        """
        return cls("compare", sessions=sessions, compared=(before, after))

    @classmethod
    def ladder(cls, path: Path, *, sessions: Path | None = None, scenarios: tuple[Path, ...] = ()) -> Start:
        """Show a ladder that was measured, or that is measured now.

        Args:
            path: Its folder.
            sessions: Folder of recorded sessions; None = the default one.
            scenarios: More folders of scenarios.
        """
        return cls("ladder", path, sessions=sessions, scenarios=scenarios)

    def screen(self) -> Screen[Any]:
        """Return a new screen that shows it."""
        if self.compared is not None:
            from tuiprof.tui.compare.screen import CompareScreen

            return CompareScreen(*self.compared, root=self.sessions)
        if self.view == "library" or self.path is None:
            from tuiprof.tui.library.screen import LibraryScreen

            return LibraryScreen()
        if self.view == "trace":
            from tuiprof.tui.trace.screen import TraceScreen

            return TraceScreen(self.path, place=self.place)
        if self.view == "ladder":
            from tuiprof.ladder.state import LadderRun
            from tuiprof.tui.ladder.screen import LadderScreen

            return LadderScreen(LadderRun(self.path).meta.ladder, self.path)
        from tuiprof.session.store.folders import Session
        from tuiprof.tui.live.screen import LiveScreen

        return LiveScreen(Session(self.path), replay_speed=self.speed if self.view == "replay" else None)
