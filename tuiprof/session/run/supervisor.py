"""The process that runs a script and records its session; started by :mod:`tuiprof.session.run.launch`.

It is independent of terminals and viewers: it is a session leader and a child of init. The script leads its own process
group and reads /dev/null. Its output goes through pipes that another process reads
(:mod:`tuiprof.session.run.output_pipes`), so it continues undisturbed if this process is killed.

Signals: SIGHUP is ignored, so that a run survives a lost login. SIGINT and SIGTERM are forwarded and start the
shutdown: SIGTERM after ``grace_s[0]``, SIGKILL to every descendant after another ``grace_s[1]``. SIGQUIT, SIGUSR1 and
SIGUSR2 are only forwarded. ``control/stop.json`` starts the same shutdown with the signal it names.

The run is over when the script has ended. If the script was stopped or killed, processes that it leaves behind are
ended too; otherwise they are left running, and the supervisor waits for them as long as they record steps.
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
from tuiprof.system.files import size_of, write_atomic


class Plan(msgspec.Struct, frozen=True):
    """What to execute."""

    command: list[str]  # absolute path of the program, and arguments
    cwd: str
    env: dict[str, str]  # the complete environment
    grace_s: tuple[float, float]  # from the first signal to SIGTERM, and from there to SIGKILL
    stdin: int | None = None  # open descriptor for the script's standard input; None = /dev/null
    ignored: list[int] = []  # signals that the script ignores initially, for example under ``nohup``


class Reply(msgspec.Struct, frozen=True):
    """Whether the script was started."""

    error: str = ""  # empty = it runs
    remedy: str = ""
    of_session: bool = False  # whether the error is about the session directory, not the script


_PR_SET_CHILD_SUBREAPER: Final = 36
#: Interval at which SIGKILL is repeated, for processes that were just being created.
_KILL_AGAIN_S: Final = 0.5


def become_subreaper() -> None:
    """Make orphans of the script children of this process, so that they can be found and reaped (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class ProcessTree:
    """A script and all its descendants, seen from the process that started it.

    ``leader`` leads the script's process group. ``helper`` returns a child of this process, in its own group, that does
    not belong to the script; None = no such child now.
    """

    def __init__(self, leader: int, helper: Callable[[], int | None] = lambda: None) -> None:
        self.leader = leader
        self._helper = helper
        #: Exit status of the script (negative = signal, as in :mod:`subprocess`); None = running.
        self.exit: int | None = None

    def reap(self, *, strays: bool) -> None:
        """Reap processes that have ended: the script, and its orphans.

        ``strays`` includes those that left the process group, for which the whole process table must be read.
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
        if self.exit is None:  # until the leader is reaped, its id cannot be reused
            with contextlib.suppress(ProcessLookupError, PermissionError):  # all have ended
                os.killpg(self.leader, number)
            return
        for member in self.members():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if os.getpgid(member.pid) == self.leader:
                    member.send_signal(number)

    def send_all(self, number: int) -> None:
        """Send a signal to every descendant, including those that left the group."""
        self.send(number)
        for member in self.members():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if os.getpgid(member.pid) != self.leader:  # the others have it already
                    member.send_signal(number)

    def members(self) -> list[psutil.Process]:
        """Return the running processes of the script, without helpers of this process."""
        own_group = os.getpgid(0)
        found = []
        for member in _children(recursive=True):
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                foreign = os.getpgid(member.pid) != own_group and member.pid != self._helper()
                if foreign and member.status() != psutil.STATUS_ZOMBIE:
                    found.append(member)
        return found

    def _strayed_zombies(self) -> list[int]:
        """Return zombie children of this process that are in neither the script's group nor its own."""
        known = (self.leader, os.getpgid(0), self._helper())
        found = []
        for member in _children(recursive=False):
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if member.status() == psutil.STATUS_ZOMBIE and os.getpgid(member.pid) not in known:
                    found.append(member.pid)
        return found


def _children(*, recursive: bool) -> list[psutil.Process]:
    try:
        return psutil.Process().children(recursive=recursive)
    except psutil.Error:  # a process ended while the table was read; the next call will find the others
        return []


class Shutdown:
    """Ends a script: a signal to its group, SIGTERM after a grace period, then SIGKILL to all its processes."""

    def __init__(self, tree: ProcessTree, grace_s: tuple[float, float]) -> None:
        self._tree = tree
        self._grace_s = grace_s
        self._next: list[tuple[float, int]] | None = None  # time and signal of the next steps

    @property
    def begun(self) -> bool:
        """Whether the script is being ended."""
        return self._next is not None

    def begin(self, number: int, now_s: float) -> None:
        """Send the first signal. Further calls send a signal again, but do not move the deadlines."""
        if number == signal.SIGKILL:
            self._next = [(now_s, int(signal.SIGKILL))]
            self.advance(now_s)
            return
        self._tree.send(number)
        if self._next is None:
            term_s = now_s if number == signal.SIGTERM else now_s + self._grace_s[0]
            kill_s = term_s + self._grace_s[1]
            steps = [(term_s, int(signal.SIGTERM)), (kill_s, int(signal.SIGKILL))]
            self._next = steps if number != signal.SIGTERM else steps[1:]

    def advance(self, now_s: float) -> None:
        """Send the signals that are due."""
        while self._next and now_s >= self._next[0][0]:
            _, number = self._next.pop(0)
            self._tree.send_all(number)
            if number == signal.SIGKILL:
                self._next.append((now_s + _KILL_AGAIN_S, number))


#: Interval of checks for requests; also the maximum delay of noticing an end if SIGCHLD is lost.
_TICK_S: Final = 0.1
#: Minimum interval between searches for strayed children, which read the whole process table.
_STRAYS_S: Final = 2.0
#: Timeout for processes left behind by the script to end, or to show that they record steps.
_LEFTOVER_S: Final = 2.0
#: Timeouts after the script has ended: for the last output and readings, and for the last record on a full disk.
_LAST_READINGS_S: Final = 3.0
_LAST_WRITE_S: Final = 1.5
#: Disk space reserved during the run, so that the last record can be written on a full disk.
_RESERVE_BYTES: Final = 64 << 10
_SHUTDOWN: Final = (signal.SIGINT, signal.SIGTERM)
_FORWARDED: Final = (signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)

_NOT_FOUND: Final = (errno.ENOENT, errno.ENOTDIR)

NO_PROBE: Final = (
    "the probe recorded nothing: the script imports no framework that it knows, or does not load it (Python 3.9 and "
    "newer does, except with -I, -E or -S, or if PYTHONPATH is replaced: PYTHONPATH=mine:$PYTHONPATH keeps it)"
)


def main(argv: list[str]) -> int:
    """Fork the supervisor; returns 0 at once in the parent, and at the end of the run in the child."""
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=Plan)
    if os.fork():
        return 0  # reaped by the launcher, so that the child is adopted by init
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    try:
        _Run(Session(argv[0]), plan).run()
    except TuiprofError as error:
        _answer(Reply(error.message, error.remedy, of_session=True))
    return 0


def _answer(reply: Reply) -> None:
    """Answer the launcher, then replace its pipe by the supervisor's log."""
    with contextlib.suppress(BrokenPipeError):  # the launcher was killed
        os.write(1, msgspec.json.encode(reply))
    os.dup2(2, 1)


class _Run:
    def __init__(self, session: Session, plan: Plan) -> None:
        self._session = session
        self._plan = plan
        self._lock = RecorderLock(session.control)
        self._log = LogWriter(session.log / "recorder.jsonl")
        self._reserve = session.control / "reserve"
        with contextlib.suppress(OSError):  # the disk is full already
            self._reserve.write_bytes(bytes(_RESERVE_BYTES))
        self._pending: list[int] = []  # signals not yet handled
        self._child_ended = False
        self._stopped = False
        self._stop_seen = 0

    def run(self) -> None:
        """Start the script, record until it has ended, and write the last record."""
        wake = self._handle_signals()
        become_subreaper()
        self._identify(None)
        self._log.write(head(self._session))
        output = OutputPipes(self._session)
        tree = self._start(output)
        if tree is None:
            return
        recorder = Recorder(
            self._session.path, self._session.meta, self._log, tree.leader, self._plan.env, output=output
        )
        recorder.start()
        self._supervise(tree, Shutdown(tree, self._plan.grace_s), output, wake)
        tree.reap(strays=True)
        deadline_s = time.monotonic() + _LAST_READINGS_S
        # If processes left behind by the script may still print, the output writer outlives this process.
        output.finish(deadline_s if not tree.members() else 0.0)
        recorder.stop(max(0.5, deadline_s - time.monotonic()))
        self._conclude(tree)

    def _handle_signals(self) -> int:
        """Collect signals, and make them wake the supervisor through a pipe, whose read end is returned."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        os.set_blocking(reading, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

        def handle(number: int, _: FrameType | None) -> None:
            if number == signal.SIGCHLD:
                self._child_ended = True
            else:
                self._pending.append(number)

        # Not SIG_IGN, which the script would inherit.
        for number in (*_SHUTDOWN, *_FORWARDED, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, handle)
        return reading

    def _identify(self, script: int | None) -> None:
        """Write the ids of the supervisor and the script, so that others can find them."""
        own = process.identify(os.getpid())
        assert own is not None
        who = process.Processes(own, process.identify(script) if script else None, process.pid_namespace())
        write_atomic(self._session.control / "process.json", msgspec.json.encode(who))

    def _start(self, output: OutputPipes) -> ProcessTree | None:
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
                preexec_fn=self._ignore_signals,  # safe, because there are no threads yet
            )
        except OSError as error:
            message, remedy = _explain(plan, error)
            code = 127 if error.errno in _NOT_FOUND else 126  # as in a shell
            self._last_write(End(time.monotonic_ns(), code, None, message))
            _answer(Reply(message, remedy))
            return None
        finally:
            # While these are open here, the other ends of the pipes would not notice that the script has ended.
            output.close_script_ends()
            if plan.stdin is not None:
                os.close(plan.stdin)
        child.returncode = 0  # reaped by ProcessTree
        try:
            self._identify(child.pid)
        except TuiprofError as error:
            self._note("warn", f"{error.message}: the session is listed as interrupted until the run ends")
        if output.problem:
            self._note(
                "warn",
                f"the script prints directly to its files, and fails if the disk is full: {output.problem}",
            )
        _answer(Reply())
        return ProcessTree(child.pid, lambda: output.pid)

    def _ignore_signals(self) -> None:
        """In the child: ignore the signals that the script would ignore without tuiprof."""
        for number in self._plan.ignored:
            signal.signal(number, signal.SIG_IGN)

    def _supervise(self, tree: ProcessTree, shutdown: Shutdown, output: OutputPipes, wake: int) -> None:
        """Handle signals and requests until the run is over."""
        over_s: float | None = None  # deadline for processes left behind to end or to record something
        recorded = 0
        noted = False
        strays_s = 0.0  # earliest time of the next search for strays
        while True:
            readable, _, _ = select.select([wake], [], [], _TICK_S)
            if readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
            now_s = time.monotonic()
            strays = self._child_ended and now_s >= strays_s
            if strays:
                self._child_ended, strays_s = False, now_s + _STRAYS_S
            tree.reap(strays=strays)
            output.check(now_s)
            self._handle_requests(tree, shutdown, now_s)
            shutdown.advance(now_s)
            if tree.exit is None:
                continue
            left = tree.members()
            if not left:
                return
            if over_s is None:
                over_s, recorded = now_s + _LEFTOVER_S, self._recorded_bytes()
                if tree.exit < 0 and not shutdown.begun:
                    shutdown.begin(signal.SIGTERM, now_s)
            if now_s < over_s or shutdown.begun:
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

    def _handle_requests(self, tree: ProcessTree, shutdown: Shutdown, now_s: float) -> None:
        """Handle new signals and a new stop request."""
        pending, self._pending = self._pending, []
        for number in pending:
            if number in _FORWARDED:
                tree.send(number)
            elif number in _SHUTDOWN:
                self._stopped = True
                shutdown.begin(number, now_s)
        request = read_stop(self._session)
        if request is not None and request.unix_ns != self._stop_seen:
            self._stop_seen = request.unix_ns
            self._stopped = True
            shutdown.begin(signal.SIGKILL if request.firm else request.signal, now_s)

    def _recorded_bytes(self) -> int:
        """Return the size of all logs of the script's processes; unlike file times, it is independent of the clock."""
        return sum(size_of(path) for path in self._session.log_files() if path.stem != "recorder")

    def _conclude(self, tree: ProcessTree) -> None:
        if all(path.stem == "recorder" for path in self._session.log_files()):
            self._note("warn", NO_PROBE)
        code = tree.exit
        assert code is not None
        why = "stopped" if self._stopped else "exit"
        signal_number = -code if code < 0 else None
        self._last_write(End(time.monotonic_ns(), None if code < 0 else code, signal_number, why))

    def _last_write(self, end: End) -> None:
        """Write the last record; on a full disk into the reserved space, with retries."""
        done = self._log.write(end)
        if not done:
            self._log.give_up_readings()
        with contextlib.suppress(OSError):  # it was not created because the disk was full at the start
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
    """Return the first record of a recorder's log."""
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


def _explain(plan: Plan, error: OSError) -> tuple[str, str]:
    """Return error message and remedy for a script that cannot be started."""
    program = plan.command[0]
    if error.errno == errno.ENOEXEC:
        return (f"{program} is not an executable", "start the script with a #! line, or give its interpreter")
    if error.errno in _NOT_FOUND:
        return f"{program} or the interpreter named in its first line does not exist", "check its #! line"
    if error.errno == errno.EACCES:
        return f"no permission to execute {program}", f"chmod +x {program}"
    return f"{program} could not be started: {error.strerror or error}", ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
