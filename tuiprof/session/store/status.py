"""State of a session, from its processes, the last lines of its logs, and the collector of a copy."""

from __future__ import annotations

import contextlib
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


#: Marks a copy. It is written here and never taken from the other host.
COLLECTED_FILE: Final = "collected.json"
NOT_REACHED: Final = "not reached"
COLLECTED: Final = "collected"


class Collected(msgspec.Struct, frozen=True):
    """``collected.json``."""

    host: str  # the host as it was named to ssh
    folder: str  # the session's folder there
    unix_ns: UnixNs = 0  # when something was last asked for and came, Unix ns by the clock here
    every_s: float = 2.0  # pause between two copies, s
    problem: str = ""  # why the last attempt failed; empty = it did not
    collector: process.ProcessId | None = None  # the process that collects; None = it has ended
    #: Where its process number is valid (:func:`tuiprof.system.process.pid_namespace`)
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


State = Literal["running", "finished", "failed", "stopped", "interrupted"]

#: Detail of a session whose directory was deleted; its script may still run.
DELETED: Final = "the session was deleted"
#: Why the recording of an attached process is over: tuiprof detached, or the process ended.
DETACHED: Final = "detached"
ENDED: Final = "ended"
#: In ``control``: ids of the recorder and of the script.
PROCESS_FILE: Final = "process.json"
#: In ``control``: a user's request to stop the run.
STOP_FILE: Final = "stop.json"
#: A session younger than this without a supervisor is still being started.
STARTING_S: Final = 15.0
#: Process ids of another machine (or process namespace) are meaningless here: such a session counts as running
#: if a log was written within this time. The recorder writes at least every 5 s.
FRESH_S: Final = 20.0


class Status(msgspec.Struct, frozen=True):
    """State of a session."""

    #: ``running``; ``finished`` (exit 0); ``failed``; ``stopped`` (by the user); ``interrupted`` (supervisor or
    #: machine died, and the script's exit status is unknown)
    state: State
    #: Exit status as a shell gives it (128 + signal); None while running, or unknown because the recorder was killed
    code: int | None = None
    signal: int | None = None  # signal that ended the script; None = none
    detail: str = ""  # further information, e.g. ``"recorder lost"``; may be empty

    def __str__(self) -> str:
        """Return one phrase: ``failed (exit 1)``, ``running (recorder lost)``."""
        said = [self.detail] if self.detail else []
        if self.signal is not None and self.state != "stopped":
            said.insert(0, signal_name(self.signal))
        elif self.code and self.state == "failed":
            said.insert(0, f"exit {self.code}")
        return f"{self.state} ({', '.join(said)})" if said else self.state

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
    """Return an exit status as a shell gives it; None = unknown."""
    return 128 + signal if signal is not None else code


def from_end(end: End) -> Status:
    """Return the status of an end record."""
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
    """Return the end record of a writer; None = it did not end in order, or still runs."""
    records = decode(read_end(session.log / f"{writer}.jsonl", 8192))
    return next((record for record in reversed(records) if isinstance(record, End)), None)


def processes(session: Session) -> process.Processes | None:
    """Return ids of recorder and script; None = not started, unreadable, or a link out of the session."""
    if session.control.is_symlink():  # another directory must not decide which process is signalled
        return None
    who = read_small_json(session.control / PROCESS_FILE, process.Processes)
    if who is not None and read_collected(session.path) is not None:
        # A copy: its process ids belong to another machine, so no local process may be signaled.
        return msgspec.structs.replace(who, pid_namespace="")
    return who


def status(session: Session) -> Status:
    """Return the current state of a session."""
    end = last_end(session, "recorder")
    if end is not None:
        return from_end(end)
    if not session.path.exists():
        return Status("interrupted", detail=DELETED)
    collected = read_collected(session.path)
    if collected is not None:
        if not collected.goes_on:
            return Status("interrupted", detail=collected.trouble)
        if collected.problem:
            return Status("running", detail=collected.trouble)
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
    # It may have ended between the two checks.
    end = last_end(session, "recorder")
    if end is not None:
        return from_end(end)
    if who.script is not None and process.alive(who.script):
        return Status("running", detail="recorder lost")
    return _from_probes(session)


def _elsewhere(session: Session) -> Status:
    """Return the state of a session of another machine or process namespace, from the age of its logs."""
    newest = 0.0
    for path in session.log_files():
        with contextlib.suppress(OSError):  # the session is being deleted
            newest = max(newest, path.stat().st_mtime)
    if abs(time.time() - newest) < FRESH_S:
        return Status("running", detail=f"on {session.meta.host}" if session.meta.host else "")
    return _from_probes(session)


def _from_probes(session: Session) -> Status:
    """Return the state of a session whose recorder died, from the last records of the script's processes.

    They record an exception that ends them, but cannot know the exit status.
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
