"""The processes of a script: its group, and what left the group. Ended politely, then firmly; all reaped."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

import psutil

_PR_SET_CHILD_SUBREAPER: Final = 36
#: SIGKILL is sent again so often: a process that was just being born was not among those that were found.
_KILLED_AGAIN_S: Final = 0.5


def become_subreaper() -> None:
    """Make orphans of the script children of this process, so that they can be found and reaped (Linux)."""
    if sys.platform == "linux":
        # Refused by a kernel older than 3.4 only; then orphans go to init as they always did.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Family:
    """A script and all its descendants, seen from the process that started it.

    Args:
        leader: The script's process, leader of its process group.
        helper: Returns the child of this process that does not belong to the script and has its own group; None = none
            now.

    Attributes:
        exit: Exit status of the script (negative = signal, as in :mod:`subprocess`); None = it runs.
    """

    def __init__(self, leader: int, helper: Callable[[], int | None] = lambda: None) -> None:
        self.leader = leader
        self._helper = helper
        self.exit: int | None = None

    def reap(self, *, strays: bool) -> None:
        """Collect what has ended: the script, and orphans of it that were handed to this process.

        Args:
            strays: Look also for those that left the group; that reads the whole process table.
        """
        for pid in (-self.leader, *(self._strayed_zombies() if strays else ())):
            with contextlib.suppress(ChildProcessError):  # none left
                while True:
                    ended, status = os.waitpid(pid, os.WNOHANG)
                    if ended == 0:
                        break
                    if ended == self.leader:
                        self.exit = os.waitstatus_to_exitcode(status)

    def send(self, number: int) -> None:
        """Send a signal to the script's process group."""
        if self.exit is None:  # until it is reaped, no other group can have its number
            with contextlib.suppress(ProcessLookupError, PermissionError):  # all of it has ended
                os.killpg(self.leader, number)
            return
        for process in self.members():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if os.getpgid(process.pid) == self.leader:
                    process.send_signal(number)

    def send_all(self, number: int) -> None:
        """Send a signal to every descendant, those included that left the group."""
        self.send(number)
        for process in self.members():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if os.getpgid(process.pid) != self.leader:  # the others have it already
                    process.send_signal(number)

    def members(self) -> list[psutil.Process]:
        """Return the living processes of the script; telemetry helpers of this process are not among them."""
        own_group = os.getpgid(0)
        found = []
        for process in _children(recursive=True):
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                foreign = os.getpgid(process.pid) != own_group and process.pid != self._helper()
                if foreign and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _strayed_zombies(self) -> list[int]:
        """Return ended children of this process that are of neither the script's group nor its own."""
        known = (self.leader, os.getpgid(0), self._helper())  # the helper leads its own group
        found = []
        for process in _children(recursive=False):
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if process.status() == psutil.STATUS_ZOMBIE and os.getpgid(process.pid) not in known:
                    found.append(process.pid)
        return found


def _children(*, recursive: bool) -> list[psutil.Process]:
    try:
        return psutil.Process().children(recursive=recursive)
    except psutil.Error:  # a process vanished while the table was read; the next look will do
        return []


class Ending:
    """How a script is ended: a signal to its group, SIGTERM some seconds later, then SIGKILL to all of it."""

    def __init__(self, family: Family, patience_s: tuple[float, float]) -> None:
        self._family = family
        self._patience_s = patience_s
        self._next: list[tuple[float, int]] | None = None

    @property
    def begun(self) -> bool:
        """Whether the script is being ended."""
        return self._next is not None

    def begin(self, number: int, now_s: float) -> None:
        """Send the first signal; called again, send it and keep the deadlines already set."""
        if number == signal.SIGKILL:
            self._next = [(now_s, int(signal.SIGKILL))]
            self.go_on(now_s)
            return
        self._family.send(number)
        if self._next is None:
            term_s = now_s if number == signal.SIGTERM else now_s + self._patience_s[0]
            kill_s = term_s + self._patience_s[1]
            steps = [(term_s, int(signal.SIGTERM)), (kill_s, int(signal.SIGKILL))]
            self._next = steps if number != signal.SIGTERM else steps[1:]

    def go_on(self, now_s: float) -> None:
        """Send the signals that are due."""
        while self._next and now_s >= self._next[0][0]:
            _, number = self._next.pop(0)
            self._family.send_all(number)
            if number == signal.SIGKILL:
                self._next.append((now_s + _KILLED_AGAIN_S, number))
