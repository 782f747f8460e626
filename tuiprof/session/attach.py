"""Recording processes that were started without tuiprof, and detaching from them.

Another process records (:func:`main`): it samples the devices until the processes end, or until it is asked to detach.
It never sends them a signal.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import psutil

from tuiprof.errors import LaunchError, SessionError, TuiprofError
from tuiprof.model.units import plural
from tuiprof.session import ptrace
from tuiprof.session.log import End, LogWriter, Note
from tuiprof.session.run.control import put_black_box, read_stop, request_stop
from tuiprof.session.run.launch import new_meta, process_died, recorder_environment, wait
from tuiprof.session.run.recorder import Recorder
from tuiprof.session.run.supervisor import head
from tuiprof.session.store.folders import RecorderLock, Session, create, sessions_root
from tuiprof.session.store.meta import SessionMeta
from tuiprof.session.store.status import DETACHED, ENDED, last_end
from tuiprof.system import process
from tuiprof.system.files import text_of, write_atomic
from tuiprof.system.own_process import module_command

#: Libraries that identify a process as a training process.
_FRAMEWORKS: Final = {
    "libtorch": "torch",
    "_jax": "jax",
    "libjax": "jax",
    "xla_extension": "jax",
    "libtpu": "TPU",
}
_DEVICES: Final = ("/dev/nvidia", "/dev/kfd", "/dev/neuron", "/dev/accel", "/dev/vfio")
_DETACH_S: Final = 90.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A Python process that could be attached to."""

    pid: int
    command: str  # its command line
    python: tuple[int, int]  # version of its Python
    frameworks: tuple[str, ...]  # what it has loaded: ``torch``, ``jax``
    on_device: bool  # it has an accelerator open
    user: str  # its owner
    age_s: float  # seconds since its start
    rss_bytes: int  # its resident memory


def candidates() -> list[Candidate]:
    """Return the Python processes here that have loaded a framework; those that have a device open first."""
    found = []
    for one in psutil.process_iter(["pid", "username", "create_time", "memory_info", "cmdline"]):
        pid = one.info["pid"]
        frameworks = _frameworks(pid) if pid != os.getpid() else ()
        python = ptrace.python_of(pid) if frameworks else None
        if python is None:
            continue
        memory = one.info["memory_info"]
        found.append(
            Candidate(
                pid,
                " ".join(one.info["cmdline"] or ()),
                python,
                frameworks,
                _on_device(pid),
                one.info["username"] or "",
                time.time() - (one.info["create_time"] or time.time()),
                memory.rss if memory is not None else 0,
            )
        )
    return sorted(found, key=lambda one: (not one.on_device, -one.rss_bytes))


def _frameworks(pid: int) -> tuple[str, ...]:
    text = text_of(Path(f"/proc/{pid}/maps"))
    return tuple(sorted({name for library, name in _FRAMEWORKS.items() if library in text}))


def _on_device(pid: int) -> bool:
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):  # closed meanwhile
                if os.readlink(f"{folder}/{name}").startswith(_DEVICES):
                    return True
    return False


def attach(
    pids: Sequence[int], *, name: str = "", root: Path | None = None, watch_nan: bool = False
) -> tuple[Session, list[ptrace.Answer]]:
    """Attach to running processes, one or the ranks of one run, and record them in one session.

    Without a name, the session has that of the first one's script. Also return what was found in each process.

    Raises:
        SessionError: One cannot be attached to, or is already recorded. The others are detached again.
        LaunchError: The recorder cannot be started.
    """
    for pid in pids:
        ptrace.check(pid)
    session = create(sessions_root(root), _meta(pids, name))
    put_black_box(session, nan=watch_nan)
    answers: list[ptrace.Answer] = []
    try:
        for pid in pids:
            answers.append(_enter(session, pid))  # noqa: PERF401 - those before one that fails are needed
        _record(session, pids)
    except (SessionError, LaunchError):
        for answer in answers:
            with contextlib.suppress(SessionError):  # it has ended
                ptrace.send(answer.pid, session.control, "leave")
        shutil.rmtree(session.path, ignore_errors=True)
        raise
    return session, answers


def _enter(session: Session, pid: int) -> ptrace.Answer:
    answer = ptrace.send(pid, session.control, "enter")
    if answer.error:
        remedy = f"watch it: tuiprof attach {Path(answer.session).name}" if answer.session else ""
        raise SessionError(f"process {pid} could not be attached: {answer.error}", remedy)
    return answer


def detach(session: Session) -> None:
    """Detach from the process of a session, which continues as before, and wait until that is done.

    Raises:
        SessionError: It was not attached, or has ended.
    """
    if not session.meta.attached:
        raise SessionError(
            f"{session.id} was started by tuiprof and cannot be detached", "stop it: tuiprof attach, Q"
        )
    request_stop(session)
    if not wait(session, _DETACH_S).over:
        raise SessionError(f"{session.id} is not detached yet", "see tuiprof attach")


def _meta(pids: Sequence[int], name: str) -> SessionMeta:
    pid = pids[0]
    try:
        running = psutil.Process(pid)
        argv, cwd = running.cmdline(), running.cwd()
    except psutil.Error as error:
        raise SessionError(f"process {pid} cannot be read: {error}") from error
    script = next((Path(part).stem for part in argv[1:] if part.endswith(".py")), f"pid-{pid}")
    return new_meta(name or script, argv, cwd, attached=list(pids))


def _record(session: Session, pids: Sequence[int]) -> None:
    """Start the recorder, which outlives this process."""
    log = session.control / "supervisor.log"
    try:
        with open(log, "wb") as errors:
            done = subprocess.run(
                module_command("tuiprof.session.attach", str(session.path), *map(str, pids)),
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env=recorder_environment(),
                start_new_session=True,
            )
    except OSError as error:
        raise LaunchError(f"the recorder could not be started: {error}") from error
    if done.returncode != 0:
        raise process_died("recorder", log)


def describe(answer: ptrace.Answer) -> str:
    """Return what was found in a process, in one sentence."""
    if not answer.frameworks:
        return "it has not imported PyTorch or JAX yet; steps are recorded once it does"
    words = f"it uses {' and '.join(answer.frameworks)}"
    if "torch" in answer.frameworks:
        words += f", with {plural(answer.optimizers, 'optimizer')}"
    return words


_TICK_S: Final = 0.2
_LAST_READINGS_S: Final = 3.0
#: The probe writes its last line if the process ends normally.
_LAST_LINE_S: Final = 1.0


def main(argv: list[str]) -> int:
    """Record processes until all have ended or are left; devices are matched with the first one's descendants.

    The arguments are the session directory and the processes. Returns in the process that was started; the one it
    leaves behind records.
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
        _follow(session, who, log)
    finally:
        log.close()
        lock.release()
    return 0


def _follow(session: Session, who: Sequence[process.ProcessId], log: LogWriter) -> None:
    asked: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: asked.append(number))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    recorder = Recorder(session.path, session.meta, log, who[0].pid, _environment(who[0].pid))
    recorder.start()
    why = ENDED
    log.write(
        Note(time.monotonic_ns(), "info", "the process was already running; its output is not recorded")
    )
    while any(map(process.alive, who)):
        if asked or read_stop(session) is not None:
            for one in filter(process.alive, who):
                _leave(session, one, log)
            why = DETACHED
            break
        select.select([], [], [], _TICK_S)
    recorder.stop(_LAST_READINGS_S)
    code = _code(session) if why == ENDED else None
    log.write(End(time.monotonic_ns(), code, None, why if code is None else "exit"))
    log.flush()


def _leave(session: Session, who: process.ProcessId, log: LogWriter) -> None:
    try:
        answer = ptrace.send(who.pid, session.control, "leave")
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
