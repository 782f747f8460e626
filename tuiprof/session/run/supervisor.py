"""The process that runs a script and records its session; started by :mod:`tuiprof.session.run.launch`.

It is independent of terminals and viewers: it leads its own session and is a child of init. The script leads its own
process group and reads /dev/null; its output goes through pipes that another process reads
(:mod:`tuiprof.session.run.output_pipes`), so it continues undisturbed if this process is killed.

Signals: SIGHUP does nothing (a lost login does not end a run). SIGINT and SIGTERM are passed on and begin the
ending: SIGTERM after ``patience_s[0]``, SIGKILL to every descendant after another ``patience_s[1]``. SIGQUIT,
SIGUSR1, SIGUSR2 are passed on, no more. ``control/stop.json`` begins the same ending with the signal it names.

The run is over when the script has ended. What it leaves behind is ended with it if the script was stopped or
killed; else it is left in peace — and waited for as long as it still records steps.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

import msgspec
import psutil

from tuiprof.errors import TuiprofError
from tuiprof.session.log import SCHEMA_VERSION, End, Head, LogWriter, Note
from tuiprof.session.run.control import read_stop
from tuiprof.session.run.output_pipes import OutputPipes
from tuiprof.session.run.recorder import Recorder
from tuiprof.session.store.folders import RecorderLock, Session
from tuiprof.system import process
from tuiprof.system.files import write_atomic


class Plan(msgspec.Struct, frozen=True):
    """What to execute."""

    command: list[str]  # program (absolute) and arguments
    cwd: str
    env: dict[str, str]  # the whole environment
    #: When stopped: time from the first signal to SIGTERM, and from there to SIGKILL
    patience_s: tuple[float, float]
    #: File descriptor, open in the supervisor, that the script reads as its standard input; None = nothing
    stdin: int | None = None
    #: Signals that the script begins with ignoring, as it would without tuiprof, for example under ``nohup``
    ignored: list[int] = []


class Reply(msgspec.Struct, frozen=True):
    """Whether the script runs."""

    error: str = ""  # what is wrong; empty = it runs
    remedy: str = ""  # what to do about it
    of_session: bool = False  # the fault is the session directory's, not the script's


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
    """

    def __init__(self, leader: int, helper: Callable[[], int | None] = lambda: None) -> None:
        self.leader = leader
        self._helper = helper
        #: Exit status of the script (negative = signal, as in :mod:`subprocess`); None = it runs.
        self.exit: int | None = None

    def reap(self, *, strays: bool) -> None:
        """Collect what has ended: the script, and orphans of it that were handed to this process.

        Those that left the group (``strays``) are found by reading the whole process table.
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
        for member in self.members():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if os.getpgid(member.pid) == self.leader:
                    member.send_signal(number)

    def send_all(self, number: int) -> None:
        """Send a signal to every descendant, those included that left the group."""
        self.send(number)
        for member in self.members():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if os.getpgid(member.pid) != self.leader:  # the others have it already
                    member.send_signal(number)

    def members(self) -> list[psutil.Process]:
        """Return the living processes of the script; telemetry helpers of this process are not among them."""
        own_group = os.getpgid(0)
        found = []
        for member in _children(recursive=True):
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                foreign = os.getpgid(member.pid) != own_group and member.pid != self._helper()
                if foreign and member.status() != psutil.STATUS_ZOMBIE:
                    found.append(member)
        return found

    def _strayed_zombies(self) -> list[int]:
        """Return ended children of this process that are of neither the script's group nor its own."""
        known = (self.leader, os.getpgid(0), self._helper())  # the helper leads its own group
        found = []
        for member in _children(recursive=False):
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if member.status() == psutil.STATUS_ZOMBIE and os.getpgid(member.pid) not in known:
                    found.append(member.pid)
        return found


def _children(*, recursive: bool) -> list[psutil.Process]:
    try:
        return psutil.Process().children(recursive=recursive)
    except psutil.Error:  # a process vanished while the table was read; the next call will do
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


#: Interval of checks for requests, and maximum delay of noticing an end if SIGCHLD was lost.
_TICK_S: Final = 0.1
#: Strayed children are collected at most so often: finding them reads the whole process table.
_STRAYS_S: Final = 2.0
#: Timeout for processes left behind by the script to end, or to show that they still record steps.
_LEFTOVER_S: Final = 2.0
#: How long the end may take, so that this process is gone soon after the script: the last output and readings …
_LAST_READINGS_S: Final = 3.0
#: … and, on a disk that takes nothing, the last record.
_LAST_WRITE_S: Final = 1.5
#: Space kept on disk during the run, so that how it ended can be written on a full one.
_RESERVE_BYTES: Final = 64 << 10
_ENDING: Final = (signal.SIGINT, signal.SIGTERM)
_PASSED_ON: Final = (signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)

_NOT_THERE: Final = (errno.ENOENT, errno.ENOTDIR)

NO_PROBE: Final = (
    "the probe recorded nothing: the script imports no framework that it knows, or does not load it (Python 3.9 and "
    "newer does, except with -I, -E or -S, or if PYTHONPATH is replaced: PYTHONPATH=mine:$PYTHONPATH keeps it)"
)


def main(argv: list[str]) -> int:
    """Run the supervisor; return 0 in the process that was started (the one it leaves behind never returns)."""
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=Plan)
    if os.fork():
        return 0  # reaped by the launcher; the child belongs to init from now on
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    try:
        _Run(Session(argv[0]), plan).run()
    except TuiprofError as error:
        _answer(Reply(error.message, error.remedy, of_session=True))
    return 0


def _answer(reply: Reply) -> None:
    """Answer the launcher, once: its pipe is then replaced by the supervisor's own log."""
    with contextlib.suppress(BrokenPipeError):  # the launcher was killed; the run continues
        os.write(1, msgspec.json.encode(reply))
    os.dup2(2, 1)


class _Run:
    def __init__(self, session: Session, plan: Plan) -> None:
        self._session = session
        self._plan = plan
        self._lock = RecorderLock(session.control)
        self._log = LogWriter(session.log / "recorder.jsonl")
        self._reserve = session.control / "reserve"
        with contextlib.suppress(OSError):  # a disk that is full already: telemetry waits in memory then
            self._reserve.write_bytes(bytes(_RESERVE_BYTES))
        self._pending: list[int] = []  # signals not yet handled
        self._child_ended = False
        self._stopped = False
        self._stop_seen = 0

    def run(self) -> None:
        """Start the script, record until it has ended, and write how."""
        wake = self._listen()
        become_subreaper()
        self._identify(None)
        self._log.write(head(self._session))
        output = OutputPipes(self._session)
        family = self._start(output)
        if family is None:
            return
        recorder = Recorder(
            self._session.path, self._session.meta, self._log, family.leader, self._plan.env, output=output
        )
        recorder.start()
        self._attend(family, Ending(family, self._plan.patience_s), output, wake)
        # What has ended since then: nothing would collect it after this process.
        family.reap(strays=True)
        deadline_s = time.monotonic() + _LAST_READINGS_S
        # Processes left behind by the script may still print, so the output writer outlives this process.
        output.finish(deadline_s if not family.members() else 0.0)
        recorder.stop(max(0.5, deadline_s - time.monotonic()))
        self._conclude(family)

    def _listen(self) -> int:
        """Take signals through a pipe, so that waiting ends at once; returns its reading end."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        os.set_blocking(reading, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

        def keep(number: int, _: FrameType | None) -> None:
            if number == signal.SIGCHLD:
                self._child_ended = True
            else:
                self._pending.append(number)

        # Handlers, never SIG_IGN: what is ignored here would be ignored in the script.
        for number in (*_ENDING, *_PASSED_ON, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, keep)
        return reading

    def _identify(self, script: int | None) -> None:
        own = process.identify(os.getpid())
        assert own is not None  # this very process runs
        # A script that has already ended has no identity, and needs none.
        who = process.Processes(own, process.identify(script) if script else None, process.pid_namespace())
        write_atomic(self._session.control / "process.json", msgspec.json.encode(who))

    def _start(self, output: OutputPipes) -> Family | None:
        plan = self._plan
        try:
            child = subprocess.Popen(
                plan.command,
                cwd=plan.cwd,
                env=plan.env,
                stdin=subprocess.DEVNULL if plan.stdin is None else plan.stdin,
                stdout=output.out,
                stderr=output.err,
                process_group=0,
                preexec_fn=self._in_child,  # there are no threads yet that could hold a lock
            )
        except OSError as error:
            message, remedy = _why_not(plan, error)
            code = 127 if error.errno in _NOT_THERE else 126  # as a shell tells the two apart
            self._last_write(End(time.monotonic_ns(), code, None, message))
            _answer(Reply(message, remedy))
            return None
        finally:
            # Otherwise readers and writers of the script's pipes would not notice its end.
            output.handed_over()
            if plan.stdin is not None:
                os.close(plan.stdin)
        child.returncode = 0  # reaped by Family, which sees the whole group
        try:
            self._identify(child.pid)
        except TuiprofError as error:  # the script runs all the same
            self._note("warn", f"{error.message}: the session is listed as interrupted until the run ends")
        if output.problem:
            self._note(
                "warn",
                f"the script prints directly to its files, and fails if the disk is full: {output.problem}",
            )
        _answer(Reply())
        return Family(child.pid, lambda: output.pid)

    def _in_child(self) -> None:
        """Let the script ignore what it would ignore without tuiprof: handlers here have undone that."""
        for number in self._plan.ignored:
            signal.signal(number, signal.SIG_IGN)

    def _attend(self, family: Family, ending: Ending, output: OutputPipes, wake: int) -> None:
        """Deal with signals and requests until the run is over."""
        over_s: float | None = None  # deadline for processes left behind to end, or to record something
        recorded = 0
        noted = False
        strays_s = 0.0  # not before then is the process table read for strays
        while True:
            readable, _, _ = select.select([wake], [], [], _TICK_S)
            if readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
            now_s = time.monotonic()
            strays = self._child_ended and now_s >= strays_s
            if strays:
                self._child_ended, strays_s = False, now_s + _STRAYS_S
            family.reap(strays=strays)
            output.tend(now_s)
            self._deal(family, ending, now_s)
            ending.go_on(now_s)
            if family.exit is None:
                continue
            left = family.members()
            if not left:
                return
            if over_s is None:
                over_s, recorded = now_s + _LEFTOVER_S, self._recorded_bytes()
                if family.exit < 0 and not ending.begun:
                    ending.begin(signal.SIGTERM, now_s)
            if now_s < over_s or ending.begun:
                continue
            names = ", ".join(f"{_name(item)} ({item.pid})" for item in left[:4])
            before, recorded = recorded, self._recorded_bytes()
            if recorded == before:
                self._note("info", f"the script left processes running: {names}")
                return
            if not noted:
                self._note(
                    "info", f"the script has ended, but processes it left running record steps: {names}"
                )
                noted = True
            over_s = now_s + _LEFTOVER_S

    def _deal(self, family: Family, ending: Ending, now_s: float) -> None:
        """Deal with the signals and requests that have come."""
        pending, self._pending = self._pending, []
        for number in pending:
            if number in _PASSED_ON:
                family.send(number)
            elif number in _ENDING:
                self._stopped = True
                ending.begin(number, now_s)
        request = read_stop(self._session)
        if request is not None and request.unix_ns != self._stop_seen:
            self._stop_seen = request.unix_ns
            self._stopped = True
            ending.begin(signal.SIGKILL if request.firm else request.signal, now_s)

    def _recorded_bytes(self) -> int:
        """Size of what the script's processes have recorded; sizes, because file times follow the wall clock."""
        size = 0
        for path in self._session.log_files():
            with contextlib.suppress(OSError):  # the session is being deleted
                size += path.stat().st_size if path.stem != "recorder" else 0
        return size

    def _conclude(self, family: Family) -> None:
        if all(path.stem == "recorder" for path in self._session.log_files()):
            self._note("warn", NO_PROBE)
        code = family.exit
        assert code is not None  # it has ended: that is why we are here
        why = "stopped" if self._stopped else "exit"
        signal_number = -code if code < 0 else None
        self._last_write(End(time.monotonic_ns(), None if code < 0 else code, signal_number, why))

    def _last_write(self, end: End) -> None:
        """Write the last record; on a full disk into the space kept for it, and try for a while."""
        done = self._log.write(end)
        if not done:
            self._log.give_up_readings()
        with contextlib.suppress(OSError):  # it could not be made on a disk that was full at the start
            self._reserve.unlink()
        deadline_s = time.monotonic() + _LAST_WRITE_S
        while not done and time.monotonic() < deadline_s:
            time.sleep(_TICK_S)
            done = self._log.flush()
        self._log.close()
        self._lock.release()

    def _note(self, level: str, text: str) -> None:
        self._log.write(Note(time.monotonic_ns(), level, text))


def head(session: Session) -> Head:
    """Return the first line of a recorder's log."""
    return Head(
        v=SCHEMA_VERSION,
        writer="recorder",
        pid=os.getpid(),
        unix_ns=time.time_ns(),
        mono_ns=time.monotonic_ns(),
        python=platform.python_version(),
        versions=session.meta.versions,
        boot=process.boot_id(),
    )


def _name(item: object) -> str:
    assert isinstance(item, psutil.Process)
    try:
        return str(item.name())
    except psutil.Error:
        return "ended"


def _why_not(plan: Plan, error: OSError) -> tuple[str, str]:
    program = plan.command[0]
    if error.errno == errno.ENOEXEC:
        return (
            f"{program} is not an executable",
            "start the script with a #! line, or give its interpreter",
        )
    if error.errno in _NOT_THERE:
        return f"{program} or the interpreter named in its first line does not exist", "check its #! line"
    if error.errno == errno.EACCES:
        return f"no permission to execute {program}", f"chmod +x {program}"
    return f"{program} could not be started: {error.strerror or error}", ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
