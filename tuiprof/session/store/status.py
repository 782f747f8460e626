"""Status of a session, from its processes, the last records of its logs and, for a copy, its collector."""

from __future__ import annotations

import contextlib
import os
import re
import signal as signals
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from tuiprof.session.log import End, UnixNs, decode
from tuiprof.system import process
from tuiprof.system.files import read_end, read_small_json, write_inside

if TYPE_CHECKING:
    from tuiprof.session.store.folders import Session


#: Marks a copy of another host's session; written locally, never copied.
COLLECTED_FILE: Final = "collected.json"
NOT_REACHED: Final = "not reached"
COLLECTED: Final = "collected"


class Collected(msgspec.Struct, frozen=True):
    """``collected.json``: the origin of a copied session, and the process that copies it."""

    host: str  # as given to ssh
    folder: str  # path of the session on the host
    unix_ns: UnixNs = 0  # time of the last successful copy by the local clock
    every_s: float = 2.0  # interval between copies
    problem: str = ""  # why the last attempt failed; empty = it succeeded
    collector: process.ProcessId | None = None  # None = it has ended
    #: Namespace of the collector's process id (:func:`tuiprof.system.process.pid_namespace`)
    pid_namespace: str = msgspec.field(name="place", default="")

    @property
    def is_collecting(self) -> bool:
        """Whether the collector is running; for one on another machine, whether it copied recently."""
        if self.collector is None:
            return False
        if self.pid_namespace != process.pid_namespace():
            return time.time() - self.unix_ns / 1e9 < 10 * self.every_s + 60
        return process.alive(self.collector)

    @property
    def why_stale(self) -> str:
        """Why no new data arrives from the host; empty = it does."""
        until = datetime.fromtimestamp(self.unix_ns / 1e9, UTC)
        if not self.is_collecting:
            return f"{COLLECTED} until {until:%H:%M:%S} UTC, no collector is running: tuiprof collect {self.host}"
        return f"{NOT_REACHED} since {until:%H:%M:%S} UTC: {self.problem}" if self.problem else ""


def read_collected(folder: Path) -> Collected | None:
    """Return the origin of a copied session; None = it was recorded here."""
    return read_small_json(folder / COLLECTED_FILE, Collected)


def unreached(session: Session) -> str:
    """Return why requests do not reach the host of a session's folder; empty = they do."""
    collected = read_collected(session.path)
    return collected.why_stale if collected is not None else ""


def write_collected(folder: Path, collected: Collected) -> None:
    """Store the origin of a copied session; raises SessionError if the file cannot be written."""
    write_inside(folder, COLLECTED_FILE, msgspec.json.encode(collected))


State = Literal["running", "finished", "failed", "stopped", "interrupted"]

#: Detail of a session whose directory was deleted; the script may be running.
DELETED: Final = "the session was deleted"
#: Why the recording of an attached process ended: tuiprof detached, or the process ended.
DETACHED: Final = "detached"
ENDED: Final = "ended"
#: In ``control``: ids of the recorder's and the script's process.
PROCESS_FILE: Final = "process.json"
#: In ``control``: a user's request to stop the run.
STOP_FILE: Final = "stop.json"
#: A session without a supervisor counts as starting for this long.
STARTING_S: Final = 15.0
#: A session whose process ids belong to another machine or namespace counts as running if a log was written within this
#: time. The recorder writes at least every 5 s.
FRESH_S: Final = 20.0


class Status(msgspec.Struct, frozen=True):
    """Status of a session."""

    #: ``running``; ``finished`` (exit status 0); ``failed``; ``stopped`` (by the user); ``interrupted`` (supervisor or
    #: machine died, and the script's exit status is unknown)
    state: State
    code: int | None = None  # exit status as in a shell (128 + signal); None = running, or unknown
    signal: int | None = None  # that ended the script
    detail: str = ""  # further information, for example ``"recorder lost"``

    def __str__(self) -> str:
        """Return a phrase such as ``failed (exit 1)`` or ``running (recorder lost)``."""
        details = [self.detail] if self.detail else []
        if self.signal is not None and self.state != "stopped":
            details.insert(0, signal_name(self.signal))
        elif self.code and self.state == "failed":
            details.insert(0, f"exit {self.code}")
        return f"{self.state} ({', '.join(details)})" if details else self.state

    @property
    def over(self) -> bool:
        """Whether nothing more will be recorded."""
        return self.state != "running"


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` for 9."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def shell_code(code: int | None, signal: int | None) -> int | None:
    """Return the exit status as in a shell; None = unknown."""
    return 128 + signal if signal is not None else code


def from_end(end: End) -> Status:
    """Return the status given by an end record."""
    code = shell_code(end.code, end.signal)
    if end.why == "stopped":
        return Status("stopped", code, end.signal)
    if end.why == DETACHED:
        return Status("finished", detail="detached, the process keeps running")
    if end.why == ENDED:
        return Status("finished", detail="exit status unknown")
    if code is None:
        return Status("interrupted", detail="exit status unknown")
    detail = "" if end.why == "exit" else end.why
    return Status("finished" if code == 0 else "failed", code, end.signal, detail)


def last_end(session: Session, writer: str) -> End | None:
    """Return the end record of a writer; None = it is running, or did not exit normally."""
    records = decode(read_end(session.log / f"{writer}.jsonl", 8192))
    return next((record for record in reversed(records) if isinstance(record, End)), None)


def processes(session: Session) -> process.Processes | None:
    """Return the process ids of recorder and script; None = not started, or not readable."""
    if os.path.islink(session.control):  # must not decide which process gets a signal
        return None
    who = read_small_json(session.control / PROCESS_FILE, process.Processes)
    if who is not None and read_collected(session.path) is not None:
        # The process ids of a copy belong to another machine: local processes must not get signals.
        return msgspec.structs.replace(who, pid_namespace="")
    return who


def status(session: Session) -> Status:
    """Return the current status of a session."""
    end = last_end(session, "recorder")
    if end is not None:
        return from_end(end)
    if not os.path.exists(session.path):
        return Status("interrupted", detail=DELETED)
    collected = read_collected(session.path)
    if collected is not None:
        if not collected.is_collecting:
            return Status("interrupted", detail=collected.why_stale)
        if collected.problem:
            return Status("running", detail=collected.why_stale)
    who = processes(session)
    if who is None:
        age_s = time.time() - session.meta.unix_ns / 1e9
        if 0 <= age_s < STARTING_S:
            return Status("running", detail="starting")
        return Status("interrupted", detail="never started")
    if who.pid_namespace != process.pid_namespace():
        return _elsewhere(session)
    if process.alive(who.supervisor):
        return Status("running")
    # The supervisor may have ended between the two checks.
    end = last_end(session, "recorder")
    if end is not None:
        return from_end(end)
    if who.script is not None and process.alive(who.script):
        return Status("running", detail="recorder lost")
    return _from_probes(session)


def _elsewhere(session: Session) -> Status:
    """Return the status of a session on another machine or in another process namespace, from the age of its logs."""
    newest = 0.0
    for path in session.log_files():
        with contextlib.suppress(OSError):  # the session is being deleted
            newest = max(newest, path.stat().st_mtime)
    if abs(time.time() - newest) < FRESH_S:
        return Status("running", detail=f"on {session.meta.host}" if session.meta.host else "")
    return _from_probes(session)


def _from_probes(session: Session) -> Status:
    """Return the status of a session whose recorder died, from the end records of the script's processes.

    These know about an exception that ends the script, but not the exit status.
    """
    ranks = [path.stem for path in session.log_files() if re.fullmatch(r"rank\d+", path.stem)]
    ends = [last_end(session, rank) for rank in ranks]
    known = [end for end in ends if end is not None]
    if (session.control / STOP_FILE).exists():
        return Status("stopped", detail="recorder lost")
    if not known or len(known) < len(ends):
        return Status("interrupted", detail="recorder lost")
    failed = next((end for end in known if shell_code(end.code, end.signal)), None)
    if failed is None:
        return Status("finished", known[0].code, detail="recorder lost")
    ended = from_end(failed)
    return Status(
        "failed", ended.code, ended.signal, ", ".join(filter(None, (ended.detail, "recorder lost")))
    )
