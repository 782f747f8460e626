"""Copies of session folders that ``tuiprof collect`` makes of another host's, and their collector."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from tuiprof.session.log.records import UnixNs
from tuiprof.system import process
from tuiprof.system.files import read_small_json, write_inside

if TYPE_CHECKING:
    from tuiprof.session.store.folders import Session

#: Marks a copy. It is written here and never taken from the other host.
COLLECTED_FILE: Final = "collected.json"
NOT_REACHED: Final = "not reached"
COLLECTED: Final = "collected"


class Collected(msgspec.Struct, frozen=True):
    """``collected.json``.

    Attributes:
        host: The host as it was named to ssh.
        folder: The session's folder there.
        unix_ns: When something was last asked for and came, Unix ns by the clock here.
        every_s: Pause between two copies, s.
        problem: Why the last attempt failed; empty = it did not.
        collector: The process that collects; None = it has ended.
        pid_namespace: Where its process number is valid (:func:`tuiprof.system.process.pid_namespace`).
    """

    host: str
    folder: str
    unix_ns: UnixNs = 0
    every_s: float = 2.0
    problem: str = ""
    collector: process.ProcessId | None = None
    pid_namespace: str = msgspec.field(name="place", default="")

    @property
    def goes_on(self) -> bool:
        """Whether a collector is running; for one on another machine, whether it copied recently."""
        if self.collector is None:
            return False
        if self.pid_namespace != process.pid_namespace():
            return time.time() - self.unix_ns / 1e9 < 10 * self.every_s + 60
        return process.alive(self.collector)

    @property
    def trouble(self) -> str:
        """Why no new data comes from the host; empty = it does."""
        until = datetime.fromtimestamp(self.unix_ns / 1e9, UTC)
        if not self.goes_on:
            return f"{COLLECTED} until {until:%H:%M:%S} UTC, no collector is running: tuiprof collect {self.host}"
        return f"{NOT_REACHED} since {until:%H:%M:%S} UTC: {self.problem}" if self.problem else ""


def read_collected(folder: Path) -> Collected | None:
    """Return the collector of a session folder; None = it was recorded here."""
    return read_small_json(folder / COLLECTED_FILE, Collected)


def unreached(session: Session) -> str:
    """Return why no request reaches the host of a session's own folder; empty = it does, or it was not collected."""
    collected = read_collected(session.path)
    return collected.trouble if collected is not None else ""


def write_collected(folder: Path, collected: Collected) -> None:
    """Store the collector of a session folder.

    Raises:
        SessionError: It cannot be written.
    """
    write_inside(folder, COLLECTED_FILE, msgspec.json.encode(collected))
