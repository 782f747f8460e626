"""The shown state of a run: the present, an earlier moment or the position of a replay; rank and step."""

from __future__ import annotations

import contextlib
import time
from typing import Final

import numpy as np

from tuiprof.errors import SessionError
from tuiprof.session.live.hosts import HostState, HostWatch
from tuiprof.session.live.replay import Feed, Live, Replay
from tuiprof.session.live.writer_state import WriterState
from tuiprof.session.store.folders import Session
from tuiprof.system import process
from tuiprof.tui.live.view import WINDOWS_S, View, first_step_ns

_SPEEDS: Final = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
#: A key moves the moment by this part of the time axis.
_SEEK_PARTS: Final = 12
#: A huge log is shown from its end first; the rest is read in the background.
TAIL_BYTES: Final = 2 << 20


class Moment:
    """One session at a moment. Going back in time is a paused replay beside the run, which is still read.

    Nothing is drawn here: the caller redraws after a change of the moment.

    Attributes:
        run: Reads the whole run: as it is written, or by the clock of a replay.
        past: Replay at the earlier moment that is shown; None = the run as it is now, or its replay.
        status: State of the session.
        window: Index of the width of the time axis in :data:`WINDOWS_S`.
        rank_name: Writer that is shown; empty = the first with steps.
        selected: Number of the selected step; None = none.
        hosts: The hosts of the run, by rank; empty = it has one.
        watch: Watches them.
        frozen_ns: Session time at which the view was paused; None = it is not.
    """

    def __init__(self, session: Session, *, replay_speed: float | None = None) -> None:
        self.session = session
        self.run: Live | Replay = (
            Live(session, TAIL_BYTES) if replay_speed is None else Replay(session, replay_speed)
        )
        self.past: Replay | None = None
        self.status = session.status()
        self.watch = HostWatch(session)
        self.hosts: list[HostState] = []
        self.window = WINDOWS_S.index(None if self.status.over and replay_speed is None else 60.0)
        self.rank_name = ""
        self.selected: int | None = None
        self.frozen_ns: int | None = None

    def take_up(self, session: Session, *, keep_rank: bool = False) -> None:
        """Go on with the run as it is known by now: with more hosts, or with clocks that were compared.

        Args:
            session: The run with all hosts known so far.
            keep_rank: Show the same rank as before, though another host may come first now. A rank that was chosen is
                kept anyway.
        """
        shown = self.rank.name if self.rank is not None and (keep_rank or self.rank_name) else ""
        path = next((log.path for log in self.session.logs() if log.writer == shown), None)
        self.run.close()
        self.session, self.run, self.watch = session, Live(session, TAIL_BYTES), HostWatch(session)
        self.status = self.watch.status if session.others else self.run.status()
        self.rank_name = next((log.writer for log in session.logs() if log.path == path), "")

    def close(self) -> None:
        """Close the logs."""
        self.run.close()
        if self.past is not None:
            self.past.close()

    def update(self) -> None:
        """Read the status of the session, and what was recorded since the moment that is shown."""
        if self.past is not None:
            self.run.advance()  # so that the present is up to date when needed
        if isinstance(self.run, Live) and self.running:
            self.status = self.watch.status if self.session.others else self.run.status()
            if not all(part.meta.devices for part in self.session.parts):
                with contextlib.suppress(SessionError):  # it was deleted
                    self.session.reload()
        if self.session.others:
            self.hosts = self.watch.look(self.run.fold)

    @property
    def feed(self) -> Feed:
        """Fills the fold that is shown: as it is written, or up to a moment."""
        return self.past or self.run

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
        """The rank shown, as far as the chart needs it: only the run's own fold knows the whole run."""
        if self.past is not None and WINDOWS_S[self.window] is None and self.rank is not None:
            return self.run.fold.writers.get(self.rank.name) or self.rank
        return self.rank

    @property
    def running(self) -> bool:
        """The script runs, and this is not a replay of it."""
        return not self.status.over and isinstance(self.run, Live)

    @property
    def following(self) -> bool:
        """Whether the present of a run is shown."""
        return self.running and self.past is None

    @property
    def advances(self) -> bool:
        """Whether the moment advances automatically."""
        return self.following or (self.replay is not None and not (self.replay.paused or self.replay.over))

    @property
    def paused(self) -> bool:
        """Whether the view is paused."""
        return self.frozen_ns is not None or (self.replay is not None and self.replay.paused)

    @property
    def read_share(self) -> float:
        """Share of the logs that has been read."""
        return self.run.read_share if isinstance(self.run, Live) else 1.0

    def now_ns(self) -> int:
        """Return the session time at the right edge of the chart."""
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
        return self.view_at(self.now_ns())

    def view_at(self, now_ns: int) -> View:
        """Return the part of the run that is in view when the right edge is at a session time."""
        return View(now_ns, WINDOWS_S[self.window], self.following, first_step_ns(self.charted))

    # -- time --------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Pause or resume the view, or the clock of a replay."""
        if self.replay is None:
            self.frozen_ns = self.now_ns() if self.frozen_ns is None else None
        elif not self.replay.over:
            self.replay.paused = not self.replay.paused

    def change_speed(self, by: int) -> None:
        """Replay at a speed that lies ``by`` places further in the row of speeds."""
        if (replay := self.replay) is not None:
            nearest = min(range(len(_SPEEDS)), key=lambda i: abs(_SPEEDS[i] - replay.speed))
            replay.speed = _SPEEDS[min(max(nearest + by, 0), len(_SPEEDS) - 1)]

    def seek(self, by: int) -> None:
        """Show an earlier or a later moment, ``by`` twelfths of the time axis away."""
        if by > 0 and self.replay is None:
            return  # later than now
        view = self.view()
        step_ns = round((view.window_s or view.span_s) * 1e9 / _SEEK_PARTS)
        self.go_to(self.go_back().position_ns + by * step_ns)

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
        """Show a moment; beyond the newest record of a running run, return to the present."""
        replay = self.go_back()
        if self.past is not None and t_ns > replay.duration_ns:
            replay.extend()
            if t_ns > replay.duration_ns:
                self.go_to_end()
                return
        replay.seek(t_ns)

    def go_to_end(self) -> None:
        """Return to the present, or to the end of a replay."""
        self.frozen_ns = None
        self.selected = None
        if self.past is not None:
            self.past.close()
            self.past = None
        elif isinstance(self.run, Replay):
            self.run.seek(self.run.duration_ns)

    def next_window(self) -> None:
        """Take the next width of the time axis."""
        self.window = (self.window + 1) % len(WINDOWS_S)

    def next_rank(self, by: int) -> None:
        """Show the rank that lies ``by`` places further."""
        names = [rank.name for rank in self.feed.fold.ranks]
        if names:
            shown = self.rank.name if self.rank is not None else names[0]
            self.rank_name = names[(names.index(shown) + by) % len(names)]

    # -- steps -------------------------------------------------------------------------------------------

    def selected_row(self) -> int | None:
        """Return the index of the selected step among the kept ones; None = none, or it is kept no more."""
        rank = self.rank
        if rank is None or self.selected is None:
            return None
        found = np.flatnonzero(rank.steps.rows["n"] == self.selected)
        return int(found[-1]) if len(found) else None

    def select(self, by: int, *, outliers: bool = False) -> bool:
        """Select the step (or outlier) after or before the one selected, else before the right edge.

        Returns:
            False where steps are kept, but none (or no outlier) in that direction.
        """
        rank = self.rank
        if rank is None or not len(rank.steps.rows):
            return True
        if self.frozen_ns is None and self.following:
            # Steps that move on cannot be pointed at.
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
        rows_to_go_to = rank.steps.outliers() if outliers else np.arange(len(rows))
        found = (
            rows_to_go_to[rows_to_go_to < here][-1:] if by < 0 else rows_to_go_to[rows_to_go_to > here][:1]
        )
        if not len(found):
            return False
        self.selected = int(rows["n"][found[0]])
        t_ns, view = int(rows["t_ns"][found[0]]), self.view()
        if view.window_s is not None and not view.now_ns - view.window_s * 1e9 <= t_ns <= view.now_ns:
            newest_ns = self.replay.duration_ns if self.replay is not None else self.run.fold.now_ns
            self.go_to(min(t_ns + round(view.window_s * 1e9 / 2), newest_ns))
        return True
