"""The process that records processes which tuiprof did not start (see :mod:`tuiprof.session.attaching.attach`).

It samples the devices until the processes end, or until it is asked to detach. It never sends them a signal.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final

import msgspec

from tuiprof.errors import TuiprofError
from tuiprof.session.attaching import enter
from tuiprof.session.log import End, LogWriter, Note
from tuiprof.session.run.control import read_stop
from tuiprof.session.run.recorder import Recorder
from tuiprof.session.run.supervisor import head
from tuiprof.session.store.folders import RecorderLock, Session
from tuiprof.session.store.status import DETACHED, ENDED, last_end
from tuiprof.system import process
from tuiprof.system.files import write_atomic

_TICK_S: Final = 0.2
_LAST_READINGS_S: Final = 3.0
#: The probe writes its last line if the process ends normally.
_LAST_LINE_S: Final = 1.0


def main(argv: list[str]) -> int:
    """Record processes until all have ended or are left.

    Args:
        argv: The session directory, and the processes; devices are matched with the first one's descendants.

    Returns:
        0 in the process that was started; the one it leaves behind records.
    """
    session = Session(argv[0])
    found = {pid: process.identify(pid) for pid in map(int, argv[1:])}
    who = [one for one in found.values() if one is not None]
    if len(who) < len(found):
        sys.stderr.write("a process ended in the meantime\n")
        return 1
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        return 0 if os.read(reading, 1) else 1  # init adopts the child
    os.close(reading)
    own = process.identify(os.getpid())
    assert own is not None  # this very process runs
    # Not named like the script, so that it is not mistaken for it and stopped.
    write_atomic(
        session.control / "process.json",
        msgspec.json.encode(process.Processes(own, None, process.pid_namespace())),
    )
    lock = RecorderLock(session.control)
    for stream in (session.stdout, session.stderr):
        stream.touch()
    log = LogWriter(session.log / "recorder.jsonl")
    log.write(head(session))
    os.write(writing, b"1")
    os.close(writing)
    try:
        _record(session, who, log)
    finally:
        log.close()
        lock.release()
    return 0


def _record(session: Session, who: Sequence[process.ProcessId], log: LogWriter) -> None:
    leaving = _Signals()
    recorder = Recorder(session.path, session.meta, log, who[0].pid, _environment(who[0].pid))
    recorder.start()
    why = ENDED
    log.write(
        Note(time.monotonic_ns(), "info", "the process was already running; its output is not recorded")
    )
    while any(map(process.alive, who)):
        if leaving.asked or read_stop(session) is not None:
            for one in filter(process.alive, who):
                _leave(session, one, log)
            why = DETACHED
            break
        select.select([], [], [], _TICK_S)
    recorder.stop(_LAST_READINGS_S)
    code = _code(session) if why == ENDED else None
    log.write(End(time.monotonic_ns(), code, None, why if code is None else "exit"))
    log.flush()


class _Signals:
    """Handles the signals that request a detach."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._take)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


def _leave(session: Session, who: process.ProcessId, log: LogWriter) -> None:
    """Have the probe remove itself."""
    try:
        answer = enter.send(who.pid, session.control, "leave")
    except TuiprofError as error:
        if process.alive(who):
            text = f"the probe is still in process {who.pid}: {error}"
            log.write(Note(time.monotonic_ns(), "warn", text))
        return
    if answer.error or answer.left:
        said = answer.error or f"not restored, but inactive: {', '.join(answer.left[:5])}"
        log.write(Note(time.monotonic_ns(), "warn", f"process {who.pid}: {said}"))


def _code(session: Session) -> int | None:
    """Return the exit status that the probe saw; None = unknown, as only a parent gets it."""
    deadline = time.monotonic() + _LAST_LINE_S
    while time.monotonic() < deadline:
        ends = [last_end(session, path.stem) for path in session.log_files() if path.stem != "recorder"]
        if ends and all(ends):
            failed = [end.code for end in ends if end is not None and end.code]
            return failed[0] if failed else None
        select.select([], [], [], _TICK_S)
    return None


def _environment(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with: which devices it may use."""
    found = {}
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            name, _, value = entry.decode(errors="replace").partition("=")
            found[name] = value
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
