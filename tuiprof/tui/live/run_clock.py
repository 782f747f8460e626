"""Which moment and which step of a run is shown: now, a moment gone by, or a replay by a clock."""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import ClassVar, Final

import numpy as np
from textual.binding import BindingType
from textual.getters import app as getters_app
from textual.screen import Screen

from tuiprof.session.live.replay import Feed, Live, Replay
from tuiprof.session.live.writer_state import WriterState
from tuiprof.session.store.folders import Session
from tuiprof.system import process
from tuiprof.tui.app.app import TuiprofApp
from tuiprof.tui.live.keys import live_keys
from tuiprof.tui.live.view import WINDOWS_S, View

#: Steps of a capture asked for with one key.
CAPTURE_STEPS: Final = 5
_SPEEDS: Final = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
#: A key moves the moment by this part of the time axis.
_SEEK_PARTS: Final = 12
#: A huge log is shown from its end first; the rest is read behind the picture.
TAIL_BYTES: Final = 2 << 20


class RunClock(Screen[None], inherit_bindings=False):
    """One session at a moment. Going back in time is a paused replay beside the run, which goes on being read.

    Args:
        session: It.
        replay_speed: Replay it from the beginning at this speed; None = follow it as it is written.

    Attributes:
        status: How the session stands.
        window: Which of the widths of the time axis is shown.
        rank_name: Writer that is shown; empty = the first with steps.
        selected: Number of the step that is looked at; None = none.
        frozen_ns: Session time at which the view was paused; None = it is not.
        past: The moment gone by that is shown; None = the run as it is now, or the replay.
        watched: The run went on when it was opened here.
    """

    app = getters_app(TuiprofApp)
    BINDINGS: ClassVar[list[BindingType]] = live_keys(CAPTURE_STEPS)

    def __init__(self, session: Session, *, replay_speed: float | None = None) -> None:
        super().__init__()
        self.session = session
        self.base: Live | Replay = (
            Live(session, TAIL_BYTES) if replay_speed is None else Replay(session, replay_speed)
        )
        self.status = session.status()
        self.window = WINDOWS_S.index(None if self.status.over and replay_speed is None else 60.0)
        self.rank_name = ""
        self.selected: int | None = None
        self.frozen_ns: int | None = None
        self.past: Replay | None = None
        self.watched = self.running

    @abstractmethod
    def redraw_now(self) -> None:
        """Draw everything at once instead of at the next tick."""

    @abstractmethod
    def draw_head(self, now_ns: int) -> None:
        """Draw the first line.

        Args:
            now_ns: Session time shown.
        """

    @property
    def feed(self) -> Feed:
        """Fills the fold that is shown: as it is written, or up to a moment."""
        return self.past or self.base

    @property
    def replay(self) -> Replay | None:
        """The clock of the moment shown; None = it is the present."""
        return self.feed if isinstance(self.feed, Replay) else None

    @property
    def rank(self) -> WriterState | None:
        """The rank shown."""
        fold = self.feed.fold
        return fold.writers.get(self.rank_name) or fold.lead

    @property
    def charted(self) -> WriterState | None:
        """The rank shown, as far as the chart needs it: the whole run is known to the run's own fold only."""
        if self.past is not None and WINDOWS_S[self.window] is None and self.rank is not None:
            return self.base.fold.writers.get(self.rank.name) or self.rank
        return self.rank

    @property
    def running(self) -> bool:
        """The script runs, and this is not a replay of it."""
        return not self.status.over and isinstance(self.base, Live)

    @property
    def following(self) -> bool:
        """What is shown is the present of a run."""
        return self.running and self.past is None

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

    def view(self) -> View:
        """Return the part of the run that is in view."""
        return View(self.now_ns(), WINDOWS_S[self.window], self.following)

    # -- time --------------------------------------------------------------------------------------------

    def action_pause(self) -> None:
        """Hold the picture, or the clock of what is replayed."""
        if self.replay is not None:
            if not self.replay.over:
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
        """Show an earlier or a later moment.

        Args:
            by: Twelfths of the time axis.
        """
        if by > 0 and self.replay is None:
            return  # later than now
        view = self.view()
        step_ns = round((view.window_s or view.span_s) * 1e9 / _SEEK_PARTS)
        replay = self.go_back()
        self.go_to(replay.position_ns + by * step_ns)

    def go_back(self) -> Replay:
        """Leave the present; return the clock of the moment that is shown from now on."""
        if self.replay is not None:
            return self.replay
        now = self.now_ns()
        self.frozen_ns = None
        self.past = Replay(self.session)
        self.past.paused = True
        self.past.seek(now)
        return self.past

    def go_to(self, t_ns: int) -> None:
        """Show a moment; beyond the newest record of a run that goes on the present is shown again.

        Args:
            t_ns: It, session time.
        """
        replay = self.go_back()
        if self.past is not None and t_ns > replay.duration_ns:
            replay.extend()
            if t_ns > replay.duration_ns:
                self.action_now()
                return
        replay.seek(t_ns)
        self.redraw_now()

    def action_now(self) -> None:
        """Return to the present, or to the end of a replay."""
        self.frozen_ns = None
        self.selected = None
        if self.past is not None:
            self.past.close()
            self.past = None
        elif isinstance(self.base, Replay):
            self.base.seek(self.base.duration_ns)
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

    # -- steps -------------------------------------------------------------------------------------------

    def selected_row(self) -> int | None:
        """Return the place of the selected step among the kept ones; None = none, or it is kept no more."""
        rank = self.rank
        if rank is None or self.selected is None:
            return None
        found = np.flatnonzero(rank.steps.rows["n"] == self.selected)
        return int(found[-1]) if len(found) else None

    def action_step(self, by: int) -> None:
        """Select the next or the previous step.

        Args:
            by: 1 or -1.
        """
        self._select(by)

    def action_outlier(self, by: int) -> None:
        """Select the next or the previous outlier of the steps that are kept.

        Args:
            by: 1 or -1.
        """
        self._select(by, outliers=True)

    def _select(self, by: int, *, outliers: bool = False) -> None:
        """Select the next step or outlier after or before the one selected, else before the edge."""
        rank = self.rank
        if rank is None or not len(rank.steps.rows):
            return
        if self.frozen_ns is None and self.following:
            # A picture that runs away cannot be pointed into.
            self.go_back()
            self.feed.advance()
            rank = self.rank or rank
        elif self.replay is not None:
            self.replay.paused = True
        rows = rank.steps.rows
        here = self.selected_row()
        if here is None:
            edge = int(np.searchsorted(rows["t_ns"], self.now_ns(), side="right"))
            here = edge if by < 0 else edge - 1
        # Of the moment that is shown now: it may hold fewer steps than the run.
        places = rank.steps.outliers() if outliers else np.arange(len(rows))
        found = places[places < here][-1:] if by < 0 else places[places > here][:1]
        if not len(found):
            word = "before" if by < 0 else "after"
            self.notify(f"no such step {word} this one among those in memory", timeout=2)
            self.redraw_now()
            return
        place = int(found[0])
        self.selected = int(rows["n"][place])
        t_ns, view = int(rows["t_ns"][place]), self.view()
        if view.window_s is not None and not view.now_ns - view.window_s * 1e9 <= t_ns <= view.now_ns:
            self.go_to(min(t_ns + round(view.window_s * 1e9 / 2), self._latest_ns()))
            return
        self.redraw_now()

    def _latest_ns(self) -> int:
        replay = self.replay
        return replay.duration_ns if replay is not None else self.base.fold.now_ns
