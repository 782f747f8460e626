"""State of the live screen: the shown moment of a run (present, past or replayed), with its rank, step and figures.

Also tuiprof's own overhead, the other active runs, the baseline and the stacks of the processes.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Set
from pathlib import Path
from typing import Final

import numpy as np

from tuiprof.errors import SessionError, TuiprofError
from tuiprof.report.sanitize import sanitize
from tuiprof.session.live.alerts import Alert, alerts
from tuiprof.session.live.fold import Fold, WriterState
from tuiprof.session.live.hosts import HostState, HostWatch
from tuiprof.session.live.listing import Summary, list_sessions, summary_of
from tuiprof.session.live.replay import Live, Replay
from tuiprof.session.live.series import NO_STATS, StepStats
from tuiprof.session.live.sharing import foreign_devices
from tuiprof.session.store.folders import Session, session_dirs
from tuiprof.session.store.meta import store_viewing
from tuiprof.session.store.output import recording_problem
from tuiprof.system import process
from tuiprof.tui.live.view import (
    WINDOWS_S,
    View,
    first_step_ns,
    overhead_row,
    phases,
    stack_paragraphs,
    stats_in_view,
)
from tuiprof.tui.widgets.spans import Row

_SPEEDS: Final = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
#: A key moves the moment by this part of the time axis.
_SEEK_PARTS: Final = 12
#: A huge log is shown from its end first; the rest is read in the background.
TAIL_BYTES: Final = 2 << 20


class Moment:
    """One session at a moment. Going back in time opens a paused replay; the run itself is still read.

    The caller redraws after a change of the moment.
    """

    def __init__(self, session: Session, *, replay_speed: float | None = None) -> None:
        self.session = session
        #: Reads the whole run: live as it is written, or at the pace of a replay.
        self.run: Live | Replay = (
            Live(session, TAIL_BYTES) if replay_speed is None else Replay(session, replay_speed)
        )
        #: Replay at the earlier moment that is shown; None = ``run`` itself is shown.
        self.past: Replay | None = None
        self.status = session.status()
        self.watch = HostWatch(session)
        self.hosts: list[HostState] = []  # the hosts of the run, by rank; empty = a single host
        #: Width of the time axis, as an index into :data:`WINDOWS_S`.
        self.window = WINDOWS_S.index(None if self.status.over and replay_speed is None else 60.0)
        self.rank_name = ""  # writer of the shown rank; empty = the first with steps
        self.selected: int | None = None  # number of the selected step
        self.frozen_ns: int | None = None  # session time at which the view was paused; None = not paused
        self.closed = False  # the files are closed; reading would open them again

    def replace_session(self, session: Session, *, keep_rank: bool = False) -> None:
        """Continue with a newer view of the same run, which has more hosts or newly compared clocks.

        ``keep_rank`` keeps the shown rank even if another host now comes first. A rank that the user chose is
        always kept.
        """
        shown = self.rank.name if self.rank is not None and (keep_rank or self.rank_name) else ""
        path = next((log.path for log in self.session.logs() if log.writer == shown), None)
        self.run.close()
        self.session, self.run, self.watch = session, Live(session, TAIL_BYTES), HostWatch(session)
        self.status = self.watch.status if session.others else self.run.status()
        self.rank_name = next((log.writer for log in session.logs() if log.path == path), "")

    def close(self) -> None:
        self.closed = True
        self.run.close()
        if self.past is not None:
            self.past.close()

    def update(self) -> None:
        """Read the status of the session and, while an earlier moment is shown, the run's new records."""
        if self.past is not None:
            self.run.advance()
            # The run goes on while an earlier moment is shown: its end is not that of the replay.
            self.past.duration_ns = max(self.past.duration_ns, self.run.fold.now_ns)
        if isinstance(self.run, Live) and self.running:
            self.status = self.watch.status if self.session.others else self.run.status()
            if not all(part.meta.devices for part in self.session.parts):
                with contextlib.suppress(SessionError):  # the session was deleted
                    self.session.reload()
        if self.session.others:
            self.hosts = self.watch.update(self.run.fold)

    @property
    def feed(self) -> Live | Replay:
        """The source of the shown fold: the run itself, or a replay of it up to a moment."""
        return self.past or self.run

    @property
    def replay(self) -> Replay | None:
        """The replay that is shown; None = the present of a run is shown."""
        return self.feed if isinstance(self.feed, Replay) else None

    @property
    def rank(self) -> WriterState | None:
        fold = self.feed.fold
        return fold.writers.get(self.rank_name) or fold.lead

    @property
    def charted(self) -> WriterState | None:
        """The shown rank for the chart; from the run's own fold if the whole run is in view."""
        if self.past is not None and WINDOWS_S[self.window] is None and self.rank is not None:
            return self.run.fold.writers.get(self.rank.name) or self.rank
        return self.rank

    @property
    def running(self) -> bool:
        """Whether the script is running and this is not a replay of a session."""
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
        return self.frozen_ns is not None or (self.replay is not None and self.replay.paused)

    @property
    def can_pause(self) -> bool:
        """Whether there is a clock to pause or to resume: not at the end of a replay."""
        return self.running if self.replay is None else not self.replay.over

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
        return self.view_at(self.now_ns())

    def view_at(self, now_ns: int) -> View:
        """Return the part of the run that is in view with the right edge at a session time."""
        return View(now_ns, WINDOWS_S[self.window], self.following, first_step_ns(self.charted))

    # -- time --------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Pause or resume the view, or the clock of a replay."""
        if self.replay is None:
            self.frozen_ns = self.now_ns() if self.frozen_ns is None else None
        elif self.can_pause:
            self.replay.paused = not self.replay.paused

    def change_speed(self, by: int) -> None:
        """Change the replay speed by ``by`` positions in the list of speeds."""
        if (replay := self.replay) is not None:
            nearest = min(range(len(_SPEEDS)), key=lambda i: abs(_SPEEDS[i] - replay.speed))
            replay.speed = _SPEEDS[min(max(nearest + by, 0), len(_SPEEDS) - 1)]

    def seek(self, by: int) -> None:
        """Show an earlier or a later moment, ``by`` twelfths of the time axis away."""
        if by > 0 and self.replay is None:
            return
        view = self.view()
        step_ns = round((view.window_s or view.span_s) * 1e9 / _SEEK_PARTS)
        self.go_to(self.go_back().position_ns + by * step_ns)

    def go_back(self) -> Replay:
        """Return the replay that is shown; from the present, open a paused one at the current time."""
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
        self.window = (self.window + 1) % len(WINDOWS_S)

    def next_rank(self, by: int) -> None:
        """Show the rank ``by`` positions further, wrapping around."""
        names = [rank.name for rank in self.feed.fold.ranks]
        if names:
            shown = self.rank.name if self.rank is not None else names[0]
            self.rank_name = names[(names.index(shown) + by) % len(names)]

    # -- steps -------------------------------------------------------------------------------------------

    def selected_row(self) -> int | None:
        """Return the row of the selected step; None = no step is selected, or it is no longer in memory."""
        rank = self.rank
        if rank is None or self.selected is None:
            return None
        found = np.flatnonzero(rank.steps.rows["n"] == self.selected)
        return int(found[-1]) if len(found) else None

    def select(self, by: int, *, outliers: bool = False) -> bool:
        """Select the next or previous step (or outlier), from the selected step or else the right edge.

        Returns False if there is no such step in that direction.
        """
        rank = self.rank
        if rank is None or not len(rank.steps.rows):
            return True
        if self.frozen_ns is None and self.following:
            # Stop the view, or the selected step would scroll away.
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
        candidates = rank.steps.outliers() if outliers else np.arange(len(rows))
        found = candidates[candidates < here][-1:] if by < 0 else candidates[candidates > here][:1]
        if not len(found):
            return False
        self.selected = int(rows["n"][found[0]])
        t_ns, view = int(rows["t_ns"][found[0]]), self.view()
        if view.window_s is not None and not view.now_ns - view.window_s * 1e9 <= t_ns <= view.now_ns:
            newest_ns = self.replay.duration_ns if self.replay is not None else self.run.fold.now_ns
            self.go_to(min(t_ns + round(view.window_s * 1e9 / 2), newest_ns))
        return True


class Figures:
    """Statistics, phases and alerts of the shown moment."""

    def __init__(self, moment: Moment) -> None:
        self._moment = moment
        self.stats: StepStats = NO_STATS  # statistics of the steps in view
        #: Mean host time of each phase of the steps in view, or of the selected step, ns.
        self.phases: dict[str, float] = {}
        self.alerts: list[Alert] = []  # the worst first
        self.others: Set[str] = frozenset()  # keys of devices that the run does not use

    def update(self, view: View) -> None:
        """Compute the figures of the visible range."""
        moment = self._moment
        rank, fold, session = moment.rank, moment.feed.fold, moment.session
        if rank is None or not len(rank.steps):
            self.stats, self.phases = NO_STATS, {}
        else:
            self.stats = stats_in_view(rank.steps, view)
            self.phases = phases(rank.steps, view, moment.selected_row())
        self.others = foreign_devices(fold, session)
        if moment.status.over and moment.replay is None:
            self.alerts = []
        else:
            unrecorded = recording_problem(session) if moment.running else ""
            self.alerts = alerts(fold, rank, view.now_ns, self.others, unrecorded, moment.hosts)

    def slow_ns(self) -> float | None:
        """Return the step time above which a step is slow, ns; None = too few steps to tell.

        Halfway between the median and the selected step if that is slow, else the limit for outliers.
        """
        moment, stats = self._moment, self.stats
        row = moment.selected_row()
        if row is not None and moment.rank is not None and stats.count:
            dur_ns = float(moment.rank.steps.rows["dur_ns"][row])
            if dur_ns > 1.05 * stats.median_ns:
                return (stats.median_ns + dur_ns) / 2
        above_ns = stats.outlier_above_ns
        if moment.rank is not None and moment.rank.steps.slowdown is not None:
            above_ns = moment.rank.steps.outliers_above_ns()
        return above_ns if math.isfinite(above_ns) else None


#: Interval over which the CPU time of the screen is measured, s.
_MEASURE_S: Final = 5.0


class Overhead:
    """The overhead of tuiprof on the run that is shown."""

    def __init__(self, moment: Moment) -> None:
        self._moment = moment
        self._watched = moment.running  # whether the script ran when the screen opened
        self._began = self._measured = (time.monotonic(), time.process_time())
        self.row: Row = []

    def update(self) -> None:
        """Measure the screen's CPU time every few seconds, and update the row."""
        rank, fold = self._moment.rank, self._moment.feed.fold
        then_s, spent_s = self._measured
        now_s, cpu_s = time.monotonic(), time.process_time()
        if now_s - then_s >= _MEASURE_S and self._moment.running:
            self._measured = now_s, cpu_s
            self.row = overhead_row(rank, fold, (cpu_s - spent_s) / (now_s - then_s))
        elif not self.row or not self._moment.running:  # in a replay the probe's cost changes
            self.row = overhead_row(rank, fold, None)

    def store(self) -> None:
        """Record the cost of watching in the session, if the running script was watched for a few seconds."""
        began_s, spent_s = self._began
        wall_s, cpu_s = time.monotonic() - began_s, time.process_time() - spent_s
        if self._watched and wall_s >= _MEASURE_S:
            store_viewing(self._moment.session.path, wall_s, cpu_s)


#: Number of newest sessions to search for runs.
_NEWEST: Final = 40


class OtherRuns:
    """The active runs in the folder of a session."""

    def __init__(self, session: Session) -> None:
        self.shown: list[Summary] = []  # with the session itself, the oldest first
        self._session = session
        self._known: dict[str, Summary] = {}

    def find(self) -> list[Summary]:
        """Return the active runs and the session itself. Reads the folder: call it in a thread."""
        try:
            found = list_sessions(self._session.path.parent, limit=_NEWEST, known=self._known)
        except SessionError:  # the folder was removed
            return self.shown
        self._known = {summary.id: summary for summary in found}
        return [one for one in reversed(found) if one.state == "running" or one.id == self._session.id]

    def neighbour(self, by: int) -> Path | None:
        """Return the folder of the run ``by`` positions further; None = there is no other run."""
        positions = [index for index, one in enumerate(self.shown) if one.id == self._session.id]
        if not positions or len(self.shown) < 2:
            return None
        return Path(self.shown[(positions[0] + by) % len(self.shown)].path)


def baseline_of(session: Session) -> tuple[str, float] | None:
    """Return name and median step time (ns) of the baseline variant of a run's ladder.

    Taken from the newest finished run with the same preset and host. None = there is none, or this is the baseline.
    """
    from tuiprof.ladder.scenarios import ladders

    scenario = session.meta.scenario
    if scenario is None:
        return None
    ladder = next((found for found in ladders(()) if found.name == scenario.name), None)
    if ladder is None or not ladder.baseline or ladder.baseline == scenario.variant:
        return None
    for other in newest_first(session.path.parent):
        meta = other.meta
        if (
            meta.scenario is not None
            and (meta.scenario.name, meta.scenario.variant, meta.scenario.preset)
            == (scenario.name, ladder.baseline, scenario.preset)
            and meta.host == session.meta.host
            and other.status().state == "finished"
        ):
            median_ns = summary_of(other).median_ns
            if median_ns:
                return ladder.baseline, median_ns
    return None


def newest_first(root: Path) -> list[Session]:
    """Return the readable sessions of a folder, the newest first."""
    found = []
    for path in session_dirs(root):
        try:
            found.append(Session(path))
        except SessionError:  # unreadable; the library reports it
            continue
    return sorted(found, key=lambda session: -session.meta.unix_ns)


def read_stacks(session: Session, fold: Fold, *, running: bool) -> tuple[str, list[tuple[str, str]]]:
    """Return title and text of the stacks window; a running session's processes are asked, which may take seconds."""
    from tuiprof.blackbox.session import asked, kept

    try:
        report = asked(session) if running else kept(session, fold)
    except TuiprofError as error:
        return "stacks", [(sanitize(f"{error.message}: {error.remedy}"), "bad")]
    if report is None:
        return "stacks", [("no stacks were recorded for this run", "text")]
    return sanitize(report.title), stack_paragraphs(report)
