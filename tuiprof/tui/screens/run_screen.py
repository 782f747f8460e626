"""A run and what its keys do to it: capture, open, pause, replay, choose a rank, leave, stop."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import ClassVar, Final

from textual.binding import BindingType
from textual.getters import app as getters_app
from textual.screen import Screen

from tuiprof.report.sanitize import sanitize
from tuiprof.session import control, process
from tuiprof.session.replay import Live, Replay
from tuiprof.session.store import Session, sessions_root
from tuiprof.session.writer_state import WriterState
from tuiprof.tui.app import TuiprofApp
from tuiprof.tui.live_view import WINDOWS_S
from tuiprof.tui.screens.confirm import ConfirmScreen
from tuiprof.tui.screens.live_keys import live_keys
from tuiprof.tui.widgets.output_pane import OutputPane

#: Steps of a capture asked for with one key.
CAPTURE_STEPS: Final = 5
_SPEEDS: Final = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_SEEK_NS: Final = 5_000_000_000


class RunScreen(Screen[None], inherit_bindings=False):
    """One session, without its picture: the live screen draws it.

    Args:
        session: It.
        replay_speed: Replay it from the beginning at this speed; None = follow it as it is written.

    Attributes:
        feed: Fills the fold: as it is written, or by a clock.
        status: How the session stands.
        window: Which of the widths of the time axis is shown.
        rank_name: Writer that is shown; empty = the first with steps.
        frozen_ns: Session time at which the view was paused; None = it is not.
        traces: Traces captured so far.
        seen_captures: Captures whose trace was opened, so that it is not offered again.
        asked: A capture asked for and when (monotonic s), until the script answers.
    """

    app = getters_app(TuiprofApp)
    BINDINGS: ClassVar[list[BindingType]] = live_keys(CAPTURE_STEPS)

    def __init__(self, session: Session, *, replay_speed: float | None = None) -> None:
        super().__init__()
        self.session = session
        self.feed: Live | Replay = Live(session) if replay_speed is None else Replay(session, replay_speed)
        self.status = session.status()
        self.window = WINDOWS_S.index(None if self.status.over and replay_speed is None else 60.0)
        self.rank_name = ""
        self.frozen_ns: int | None = None
        self.traces: list[Path] = []
        self.seen_captures: set[str] = set()
        self.asked: tuple[str, float] | None = None

    def redraw_now(self) -> None:
        """Draw everything at once instead of at the next tick."""
        raise NotImplementedError

    def draw_head(self, now_ns: int) -> None:
        """Draw the first line.

        Args:
            now_ns: Session time shown.
        """
        raise NotImplementedError

    @property
    def replay(self) -> Replay | None:
        """The clock of a replay; None = not one."""
        return self.feed if isinstance(self.feed, Replay) else None

    @property
    def rank(self) -> WriterState | None:
        """The rank shown."""
        fold = self.feed.fold
        return fold.writers.get(self.rank_name) or fold.lead

    @property
    def running(self) -> bool:
        """The script runs and this is not a replay."""
        return not self.status.over and self.replay is None

    def now_ns(self) -> int:
        """Return the session time at the right edge of the picture."""
        if self.frozen_ns is not None:
            return self.frozen_ns
        if self.replay is not None:
            return self.replay.position_ns
        if self.status.over:
            return self.feed.fold.now_ns
        meta = self.session.meta
        if meta.boot and meta.boot != process.boot_id():
            return time.time_ns() - meta.unix_ns
        return time.monotonic_ns() - meta.mono_ns

    def ready(self) -> bool:
        """Whether a trace was captured that nobody has opened yet."""
        return any(
            capture.state == "written" and capture.id not in self.seen_captures
            for capture in self.feed.fold.captures.values()
        )

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Say which keys work now; the others are not shown."""
        if action == "stop":
            return self.running
        if action in ("capture", "capture_form"):
            return self.running and bool(self.feed.fold.ranks)
        if action == "open_trace":
            return bool(self.traces)
        if action == "open_ready":
            return self.ready()
        if action in ("speed", "seek"):
            return self.replay is not None
        if action == "pause":
            return self.running or self.replay is not None
        if action == "rank":
            return len(self.feed.fold.ranks) > 1
        return True

    def action_capture(self) -> None:
        """Profile the next steps."""
        self.request_capture(CAPTURE_STEPS)

    def request_capture(
        self, steps: int, *, stack: bool = False, shapes: bool = False, memory: bool = False
    ) -> None:
        """Ask the script for a capture.

        Args:
            steps: How many steps.
            stack: With Python stacks.
            shapes: With operator input shapes.
            memory: With allocations.
        """
        with self.app.telling_errors():
            name = control.request_capture(self.session, steps, stack=stack, shapes=shapes, memory=memory)
            self.asked = (name, time.monotonic())
            self.redraw_now()

    def action_capture_form(self) -> None:
        """Ask what to profile, then profile it."""
        from tuiprof.tui.screens.capture_form import CaptureForm, CaptureWish

        def answered(wish: CaptureWish | None) -> None:
            if wish is not None:
                self.request_capture(wish.steps, stack=wish.stack, shapes=wish.shapes, memory=wish.memory)

        self.app.push_screen(CaptureForm(CAPTURE_STEPS), answered)

    def action_open_ready(self) -> None:
        """Open the trace that was captured last."""
        newest = max(
            (c for c in self.feed.fold.captures.values() if c.paths), key=lambda c: c.t_ns, default=None
        )
        if newest is not None:
            self._open(self.session.path / newest.paths[0])

    def action_open_trace(self) -> None:
        """Open the only trace, or choose one."""
        self.traces = self.session.traces()
        if len(self.traces) == 1:
            self._open(self.traces[0])
            return
        from tuiprof.tui.screens.pick import PickScreen

        names = [str(path.relative_to(self.session.path / "traces")) for path in self.traces]

        def picked(index: int | None) -> None:
            if index is not None:
                self._open(self.traces[index])

        self.app.push_screen(PickScreen("which trace", names, start=len(names) - 1), picked)

    def _open(self, path: Path) -> None:
        self.seen_captures.update(self.feed.fold.captures)
        self.refresh_bindings()
        self.app.open_trace(path)

    def action_pause(self) -> None:
        """Hold the picture, or the clock of the replay."""
        if self.replay is not None:
            self.replay.paused = not self.replay.paused
        elif self.frozen_ns is None:
            now = self.now_ns()
            self.frozen_ns = now
            self.draw_head(now)
            return
        else:
            self.frozen_ns = None
        self.redraw_now()

    def action_speed(self, by: int) -> None:
        """Replay faster or slower.

        Args:
            by: Places in the row of speeds.
        """
        if (replay := self.replay) is not None:
            nearest = min(range(len(_SPEEDS)), key=lambda i: abs(_SPEEDS[i] - replay.speed))
            replay.speed = _SPEEDS[min(max(nearest + by, 0), len(_SPEEDS) - 1)]
            self.redraw_now()

    def action_seek(self, by: int) -> None:
        """Move the clock of the replay.

        Args:
            by: Times five seconds.
        """
        if self.replay is not None:
            self.replay.seek(self.replay.position_ns + by * _SEEK_NS)
            self.redraw_now()

    def action_window(self) -> None:
        """Take the next width of the time axis."""
        self.window = (self.window + 1) % len(WINDOWS_S)
        self.redraw_now()

    def action_rank(self, by: int) -> None:
        """Show another rank.

        Args:
            by: 1 or -1.
        """
        names = [rank.name for rank in self.feed.fold.ranks]
        if names:
            shown = self.rank.name if self.rank is not None else names[0]
            self.rank_name = names[(names.index(shown) + by) % len(names)]
            self.redraw_now()

    def action_log(self) -> None:
        """Give the output the whole screen, or take it back."""
        self.toggle_class("-log")
        self.query_one(OutputPane).focus()
        self.redraw_now()

    def action_leave(self) -> None:
        """Leave the screen; what runs goes on, and how to come back is said."""
        if self.has_class("-log"):
            self.action_log()
            return
        code = self.status.code or 0 if self.app.start.launched and self.status.over else 0
        if self.running:
            known = self.session.path.parent == sessions_root()
            how = f"tuiprof attach {self.session.id if known else shlex.quote(str(self.session.path))}"
            title = sanitize(self.session.title)
            if len(self.app.screen_stack) > 1:
                self.app.notify(f"{title} goes on. Come back here, or: {how}", markup=False)
            else:
                self.app.farewell = f"{title} goes on.\n  watch it again:  {how}"
        self.app.leave(code)

    def action_stop(self) -> None:
        """Stop the script, once confirmed."""
        lines = [
            "The script gets an interrupt (as Ctrl+C), then SIGTERM, then SIGKILL if it does not end.",
            "What was recorded stays.",
        ]

        def answered(yes: bool | None) -> None:
            if yes:
                with self.app.telling_errors():
                    control.request_stop(self.session)
                    self.app.notify("asked the script to stop", markup=False)

        self.app.push_screen(
            ConfirmScreen(f"Stop {sanitize(self.session.title)}?", lines, yes="stop it", no="let it run"),
            answered,
        )
