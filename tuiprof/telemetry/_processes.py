"""The processes of a run: the script, its ranks, its data-loader workers, whatever it starts; and rates of counters."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import psutil

#: A worker that used less of a core than this in the last interval waits for work.
IDLE_SHARE = 0.05

#: What PyTorch names the main thread of a DataLoader worker (since 2.6).
_LOADER_NAME = "pt_data_worker"

#: Python helper processes of frameworks that are forked from a process like themselves but load no data.
_NOT_LOADERS = ("compile_worker", "resource_tracker", "forkserver")


#: psutil asks the kernel for more than is needed here: on Linux one file a process has it all, at a third of
#: the price, and the price counts because the recorder shares the machine with the training script.
_PROC: Final = os.path.exists("/proc/self/stat")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_TICK: Final = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of one process."""

    name: str  # name of its main thread, as the process set it
    cpu_s: float  # CPU seconds used so far
    threads: int
    rss_bytes: int  # resident memory
    zombie: bool  # it has ended and waits for its parent to notice


@dataclass(slots=True)
class Member:
    """One process of the tree."""

    process: psutil.Process  # its handle (which guards against a reused pid)
    parent: int  # pid of its parent when it was first seen
    cmdline: tuple[str, ...]  # its command line when it was first seen
    cpu_s: float | None = None  # CPU seconds used at the last reading; None = not read yet


@dataclass(frozen=True, slots=True)
class Usage:
    """What the tree uses."""

    processes: int
    threads: int
    rss_bytes: int  # resident memory, summed (pages shared by forked workers count in each)
    cpu: float | None  # CPU seconds used per second since the last reading, summed; None at the first
    loaders: int  # number of data-loader workers
    #: How many of them used under :data:`IDLE_SHARE` of a core; None at the first reading
    loaders_idle: int | None


class ProcessTree:
    """Follows a process and its descendants.

    Only pids that were not there at the last update are asked for their parent, so an update costs one directory
    listing and the readings of the members. A member stays one when its parent dies.
    """

    def __init__(self, root: int) -> None:
        self.root = root
        self._members: dict[int, Member] = {}
        self._known: set[int] = set()
        self._at: float | None = None

    @property
    def pids(self) -> frozenset[int]:
        """Pids of the tree as of the last update."""
        return frozenset(self._members)

    def update(self) -> None:
        """Find processes that came and went."""
        now = set(psutil.pids())
        for pid in self._members.keys() - now:
            del self._members[pid]
        fresh = {pid: member for pid in now - self._known if (member := _meet(pid)) is not None}
        self._known = now
        grown = True
        while grown:  # a child can have a lower pid than its parent once pids have wrapped around
            grown = False
            for pid, member in list(fresh.items()):
                if pid == self.root or member.parent in self._members:
                    member.cmdline = _cmdline(member.process)
                    self._members[pid] = member
                    del fresh[pid]
                    grown = True

    def usage(self, now: float) -> Usage:
        """Look again and read every member; ``now`` is monotonic, in seconds."""
        self.update()
        elapsed = now - self._at if self._at is not None else 0.0
        self._at = now
        threads = rss = loaders = idle = 0
        cpu = 0.0
        for pid, member in list(self._members.items()):
            reading = _read(member.process)
            if reading is None or reading.zombie:
                del self._members[pid]
                continue
            # A process born since the last reading has used all of its time since then.
            share = (reading.cpu_s - (member.cpu_s or 0.0)) / elapsed if elapsed > 0 else 0.0
            member.cpu_s = reading.cpu_s
            cpu += share
            rss += reading.rss_bytes
            threads += reading.threads
            if self._loads_data(member, reading.name):
                loaders += 1
                idle += share < IDLE_SHARE
        measured = elapsed > 0
        return Usage(
            len(self._members), threads, rss, cpu if measured else None, loaders, idle if measured else None
        )

    def _loads_data(self, member: Member, name: str) -> bool:
        """Return whether a process is a data-loader worker.

        PyTorch names its workers. Other loaders (and PyTorch before 2.6) are seen by how multiprocessing makes
        them: a fork has its parent's command line, a spawned one says so in its own.
        """
        if name == _LOADER_NAME:
            return True
        parent = self._members.get(member.parent)
        if parent is None or any(word in part for part in member.cmdline for word in _NOT_LOADERS):
            return False
        if "--multiprocessing-fork" in member.cmdline:
            return True
        return bool(member.cmdline) and member.cmdline == parent.cmdline and "python" in member.cmdline[0]


def _read(process: psutil.Process) -> Reading | None:
    """Read one process; None = it ended meanwhile, or is not ours to read."""
    try:
        if _PROC:
            with open(f"/proc/{process.pid}/stat", "rb") as file:
                text = file.read()
            # proc_pid_stat(5); the name is in parentheses and may itself hold spaces and parentheses.
            name = text[text.index(b"(") + 1 : text.rindex(b")")].decode("utf-8", "replace")
            rest = text[text.rindex(b")") + 2 :].split()
            cpu_s = (int(rest[11]) + int(rest[12])) * _TICK
            return Reading(name, cpu_s, int(rest[17]), int(rest[21]) * _PAGE, rest[0] == b"Z")
        with process.oneshot():
            times = process.cpu_times()
            return Reading(
                process.name(),
                times.user + times.system,
                process.num_threads(),
                process.memory_info().rss,
                process.status() == psutil.STATUS_ZOMBIE,
            )
    except (psutil.Error, OSError, ValueError):
        return None


def _meet(pid: int) -> Member | None:
    try:
        process = psutil.Process(pid)
        return Member(process, process.ppid(), ())
    except psutil.Error:  # gone between the listing and now
        return None


def _cmdline(process: psutil.Process) -> tuple[str, ...]:
    try:
        return tuple(process.cmdline())
    except psutil.Error:  # gone, or of another user: then it is not a worker of the run
        return ()


class Rates:
    """Differences of counters between two readings, per second.

    A counter that went backwards (a driver reload, an interface that vanished) gives no rate that time.
    """

    def __init__(self) -> None:
        self._before: dict[str, float] = {}
        self._at: float | None = None

    def update(self, now: float, counters: Mapping[str, float]) -> dict[str, float]:
        """Take a reading; return rates per second since the one before by key, none if there is no time between."""
        elapsed = now - self._at if self._at is not None else 0.0
        rates = {}
        if elapsed > 0:
            for key, value in counters.items():
                before = self._before.get(key)
                if before is not None and value >= before:
                    rates[key] = (value - before) / elapsed
        self._before = dict(counters)
        self._at = now
        return rates
