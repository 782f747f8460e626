"""Hosts and ranks of a run: their status, lost ones, clock differences, and the rank that delays the others."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tuiprof.model.units import format_ns
from tuiprof.session.live.fold import Fold, WriterState
from tuiprof.session.store.folders import Session
from tuiprof.session.store.hosts import ClockDifference, combined_status, launch_of
from tuiprof.session.store.status import COLLECTED, NOT_REACHED, Status, read_collected, status, unreached
from tuiprof.system.files import file_system

#: A host without a new record for this long counts as lost; a recorder writes at least every 5 s.
SILENT_S: Final = 12.0
#: Minimum change of the measured clock difference to read a run again.
CLOCK_MOVED_NS: Final = 100_000_000
S_NS: Final = 1_000_000_000
#: Maximum delay of a request on a shared file system, which the probe polls ten times per second.
_SHARED_DELAY_S: Final = 2.0
#: The same on a network file system: an NFS client may cache a directory listing for 60 s (``acdirmax``).
_NFS_DELAY_S: Final = 65.0
#: Maximum time to copy a host's logs over a slow network.
_COPY_S: Final = 3.0
_NETWORK_FILE_SYSTEMS: Final = frozenset(("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs"))


@dataclass(frozen=True, slots=True)
class HostState:
    """One host of a run."""

    name: str
    session: Session  # the part that it recorded
    status: Status  # of its part
    ranks: tuple[WriterState, ...]  # its processes, by rank
    clock: ClockDifference | None = None  # to the first host; None = this is the first
    silent_s: float = 0.0  # time since its last record was read; 0 = its run has ended, or it is not watched

    @property
    def lead(self) -> WriterState | None:
        """Its lowest rank that has steps."""
        return next((rank for rank in self.ranks if len(rank.steps)), None)

    @property
    def waits(self) -> str:
        """Description of a host whose ranks have run no step yet; empty = they have."""
        if self.lead is not None:
            return ""
        launch = launch_of(self.session)
        per_node = launch.per_node if launch is not None else None
        expected = f"{per_node} {'ranks' if per_node > 1 else 'rank'} expected, " if per_node else ""
        return f"{expected}no steps yet, started {self.session.started.astimezone():%H:%M:%S}"

    @property
    def lost(self) -> str:
        """Why it counts as lost: its records stopped, but its run did not end normally; empty = it is not lost."""
        if self.status.state == "interrupted":
            return self.status.detail or "interrupted"
        if self.status.detail.startswith(NOT_REACHED):
            return self.status.detail
        silent = not self.status.over and self.silent_s >= SILENT_S
        return f"no record for {format_ns(self.silent_s * 1e9)}" if silent else ""

    @property
    def left(self) -> bool:
        """Whether its session is no longer collected, so that its status is unknown."""
        return self.status.detail.startswith(COLLECTED)


def host_states(
    session: Session, fold: Fold, statuses: Mapping[str, Status] | None = None
) -> list[HostState]:
    """Return the hosts of a run by rank; empty = it has only one.

    ``statuses`` are those of :func:`read_statuses`; None = read them.
    """
    if not session.others:
        return []
    known = statuses if statuses is not None else read_statuses(session)
    by_host: dict[str, list[WriterState]] = {}
    for rank in fold.ranks:
        by_host.setdefault(rank.host, []).append(rank)
    parts = [(session.host, session, None), *((it.name, it.session, it.clock) for it in session.others)]
    return [
        HostState(name, part, known[name], tuple(by_host.get(name, ())), clock) for name, part, clock in parts
    ]


def read_statuses(session: Session) -> dict[str, Status]:
    """Return the status of each host's part of a run, by the host's name."""
    return {session.host: status(session), **{it.name: status(it.session) for it in session.others}}


def lost_hosts(hosts: Sequence[HostState]) -> list[str]:
    """Return a sentence for each host that is lost, or has failed while others have not."""
    found = []
    for host in hosts:
        after = f", after step {host.lead.steps.last_n}" if host.lead is not None else ""
        if host.lost:
            found.append(f"{host.name}{'' if host.left else f' is lost{after}'}: {host.lost}")
        elif host.status.state == "failed" and any(other.status.state != "failed" for other in hosts):
            found.append(f"{host.name} {host.status}{after}")
    return found


def host_problems(hosts: Sequence[HostState]) -> list[str]:
    """Return a sentence for each host that is lost or has failed, or whose clock differs."""
    return lost_hosts(hosts) + [
        f"the clock of {host.name} is {host.clock}, measured at the ends of {host.clock.steps} steps; corrected"
        for host in hosts
        if host.clock is not None and host.clock.is_significant
    ]


class HostWatch:
    """Watches the hosts of a running run, and notices one whose logs stop growing before its status changes."""

    def __init__(self, session: Session, now_s: Callable[[], float] = time.monotonic) -> None:
        self._session = session
        self._now_s = now_s
        self._grown: dict[str, tuple[int, float]] = {}  # time of the newest record, and when it was read
        self.statuses = read_statuses(session) if session.others else {}  # refreshed by the caller

    @property
    def status(self) -> Status:
        """Status of the run."""
        return combined_status(list(self.statuses.items()))

    def update(self, fold: Fold) -> list[HostState]:
        """Return the current state of the hosts; call it about once per second."""
        now_s = self._now_s()
        newest: dict[str, int] = {}
        for state in fold.writers.values():
            newest[state.host] = max(newest.get(state.host, 0), state.seen_ns)
        found = []
        for host in host_states(self._session, fold, self.statuses):
            seen_ns = newest.get(host.name, 0)
            before = self._grown.get(host.name)
            if before is None or before[0] != seen_ns:
                before = self._grown[host.name] = seen_ns, now_s
            found.append(replace(host, silent_s=0.0 if host.status.over else now_s - before[1]))
        return found


def common_step(session: Session, fold: Fold) -> int | None:
    """Return the number of a step that all hosts of a run can start to capture together.

    No rank will have started it when the request reaches the hosts. None = the run is on one host (a launcher may also
    start the ranks of one session on several hosts), or runs no steps.
    """
    ranks = [rank for rank in fold.ranks if rank.end is None and rank.steps.last_n is not None]
    if not ranks or not (session.others or any(rank.elsewhere for rank in ranks)):
        return None
    paces = [rank.steps.stats(slice(max(0, len(rank.steps.rows) - 50), None)).mean_ns for rank in ranks]
    pace_ns = min((pace for pace in paces if pace > 0), default=S_NS)
    ahead = math.ceil(_request_delay_s(session) * S_NS / pace_ns)
    return max(rank.steps.last_n or 0 for rank in ranks) + 2 + ahead


def _request_delay_s(session: Session) -> float:
    """Return the maximum time for a request to reach all hosts of a run."""
    collected = [found for part in session.parts if (found := read_collected(part.path)) is not None]
    if collected:
        return _SHARED_DELAY_S + 2 * max(max(copy.every_s, _COPY_S) for copy in collected)
    return _NFS_DELAY_S if file_system(session.path) in _NETWORK_FILE_SYSTEMS else _SHARED_DELAY_S


def unreached_hosts(session: Session) -> list[str]:
    """Return a sentence for each host of a run that requests do not reach."""
    names = [session.host, *(host.name for host in session.others)]
    found = zip(names, map(unreached, session.parts), strict=True)
    return [f"{name}: {why}" for name, why in found if why]


def outdated(session: Session, found: Session) -> bool:
    """Return whether a run that was found again has other hosts, or more precise clock differences."""
    if [part.path for part in session.parts] != [part.path for part in found.parts]:
        return True
    return any(
        before.ranks != now.ranks
        or (before.clock.spread_ns is None and now.clock.spread_ns is not None)
        or abs(before.shift_ns - now.shift_ns) > CLOCK_MOVED_NS
        for before, now in zip(session.others, found.others, strict=True)
    )


#: Number of last steps to compare.
_COMPARED_STEPS: Final = 100
#: A rank is a straggler if its time exceeds the median of the other ranks by this share of a step.
_STRAGGLER_SHARE: Final = 0.05
#: With an accelerator, a host delays the others only if its own time is at least this share of the step; otherwise it
#: runs ahead of its device.
_NO_SLACK: Final = 0.9
#: Phases in which ranks wait for one another.
_MEETING: Final = ("backward", "optimizer")


@dataclass(frozen=True, slots=True)
class RankTimes:
    """Step times of one rank, for comparison with the others."""

    name: str
    rank: int | None  # None = unknown
    step_ns: float  # median step time; NaN = no steps
    #: Median time of a step outside the phases in which ranks wait for one another; NaN = unknown
    own_ns: float
    recent_ns: tuple[int, ...]  # last step times, oldest first
    host: str = ""  # empty = the run has only one
    straggles: bool = False  # whether it delays the others
    why: str = ""  # the long time: ``"step time"`` or ``"time outside backward and optimizer"``; empty = no straggler


def compare_ranks(ranks: list[WriterState], now_ns: int, recent: int = 120) -> list[RankTimes]:
    """Return the step times of ranks up to a time, with the straggler marked.

    A straggler's median step time exceeds that of the other ranks. If all ranks take the same time because they wait
    for one another, the time outside the phases in which they wait is compared; with an accelerator, only if it is
    nearly all of the step, because a host that runs ahead of its device does not delay the others.
    """
    found = [_rank_times(rank, now_ns, recent) for rank in ranks]
    steps = np.array([times.step_ns for times in found])
    if np.isfinite(steps).sum() < 2:
        return found
    median_ns = float(np.nanmedian(steps))
    for compared, why in (
        (steps, "step time"),
        (np.array([times.own_ns for times in found]), f"time outside {' and '.join(_MEETING)}"),
    ):
        if np.isfinite(compared).sum() < 2:
            continue
        worst = int(np.nanargmax(compared))
        # Without the slowest rank itself: of two, the median would include it.
        others_ns = float(np.nanmedian(np.delete(compared, worst)))
        if compared[worst] - others_ns >= _STRAGGLER_SHARE * median_ns:
            times = found[worst]
            if compared is not steps and _has_slack(ranks[worst], times):
                continue
            found[worst] = replace(times, straggles=True, why=why)
            break
    return found


def _has_slack(rank: WriterState, times: RankTimes) -> bool:
    """Return whether the host of a rank runs ahead of its device, so that its time does not delay the others."""
    return bool((rank.steps.rows["device_ns"] >= 0).any()) and times.own_ns < _NO_SLACK * times.step_ns


def _rank_times(rank: WriterState, now_ns: int, recent: int) -> RankTimes:
    rows = rank.steps.rows
    last = int(np.searchsorted(rows["t_ns"], now_ns, side="right"))
    part = slice(max(0, last - _COMPARED_STEPS), last)
    plain = rank.steps.comparable(part)
    dur = rows["dur_ns"][part][plain]
    own = float("nan")
    meeting = [name for name in rank.steps.phases if name in _MEETING]
    if meeting and len(dur):
        waited = sum(np.maximum(rows[f"ph:{name}"][part][plain], 0) for name in meeting)
        own = float(np.median(dur - waited))
    return RankTimes(
        rank.name,
        rank.rank,
        float(np.median(dur)) if len(dur) else float("nan"),
        own,
        tuple(rows["dur_ns"][max(0, last - recent) : last].tolist()),
        rank.host,
    )
