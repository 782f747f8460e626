"""Recording processes that were started without tuiprof, and detaching from them."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

import psutil

from tuiprof.errors import LaunchError, SessionError
from tuiprof.session.attaching import enter
from tuiprof.session.log import SCHEMA_VERSION
from tuiprof.session.run.control import put_black_box, request_stop
from tuiprof.session.run.launch import wait
from tuiprof.session.store.folders import Session, create, sessions_root
from tuiprof.session.store.meta import SessionMeta
from tuiprof.system.process import boot_id

_PACKAGE: Final = Path(__file__).resolve().parents[2]
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
    """A Python process that could be attached to.

    Attributes:
        pid: Its number.
        command: Its command line.
        python: Version of its Python.
        frameworks: What it has loaded: ``torch``, ``jax``.
        on_device: It has an accelerator open.
        user: Its owner.
        age_s: Seconds since its start.
        rss_bytes: Its resident memory.
    """

    pid: int
    command: str
    python: tuple[int, int]
    frameworks: tuple[str, ...]
    on_device: bool
    user: str
    age_s: float
    rss_bytes: int


def candidates() -> list[Candidate]:
    """Return the Python processes here that have loaded a framework; those that have a device open first."""
    found = []
    for process in psutil.process_iter(["pid", "username", "create_time", "memory_info", "cmdline"]):
        pid = process.info["pid"]
        frameworks = _frameworks(pid) if pid != os.getpid() else ()
        python = enter.python_of(pid) if frameworks else None
        if python is None:
            continue
        memory = process.info["memory_info"]
        found.append(
            Candidate(
                pid,
                " ".join(process.info["cmdline"] or ()),
                python,
                frameworks,
                _on_device(pid),
                process.info["username"] or "",
                time.time() - (process.info["create_time"] or time.time()),
                memory.rss if memory is not None else 0,
            )
        )
    return sorted(found, key=lambda one: (not one.on_device, -one.rss_bytes))


def _frameworks(pid: int) -> tuple[str, ...]:
    try:
        text = Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return ()
    return tuple(sorted({name for library, name in _FRAMEWORKS.items() if library in text}))


def _on_device(pid: int) -> bool:
    folder = f"/proc/{pid}/fd"
    try:
        for name in os.listdir(folder):
            try:
                if os.readlink(f"{folder}/{name}").startswith(_DEVICES):
                    return True
            except OSError:  # closed meanwhile
                continue
    except OSError:
        return False
    return False


def attach(
    pids: Sequence[int],
    *,
    name: str = "",
    root: Path | None = None,
    watch_nan: bool = False,
) -> tuple[Session, list[enter.Answer]]:
    """Attach to running processes and record them in one session.

    Args:
        pids: The processes: one, or the ranks of one run.
        name: Name of the session; empty = that of the first one's script.
        root: Where to keep the session; None = the default.
        watch_nan: Check loss and gradients for NaN and infinite values.

    Returns:
        The session, and what was found in each process.

    Raises:
        SessionError: One cannot be attached to, or is already recorded. The others are detached again.
        LaunchError: The recorder cannot be started.
    """
    for pid in pids:
        enter.check(pid)
    session = create(sessions_root(root), _meta(pids, name))
    put_black_box(session, nan=watch_nan)
    answers: list[enter.Answer] = []
    try:
        for pid in pids:
            answers.append(_enter(session, pid))  # noqa: PERF401 - those before one that fails are needed
        _record(session, pids)
    except (SessionError, LaunchError):
        for answer in answers:
            with contextlib.suppress(SessionError):  # it has ended
                enter.send(answer.pid, session.control, "leave")
        shutil.rmtree(session.path, ignore_errors=True)
        raise
    return session, answers


def _enter(session: Session, pid: int) -> enter.Answer:
    answer = enter.send(pid, session.control, "enter")
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
        process = psutil.Process(pid)
        argv, cwd = process.cmdline(), process.cwd()
    except psutil.Error as error:
        raise SessionError(f"process {pid} cannot be read: {error}") from error
    script = next((Path(part).stem for part in argv[1:] if part.endswith(".py")), f"pid-{pid}")
    return SessionMeta(
        v=SCHEMA_VERSION,
        name=name or script,
        argv=argv,
        cwd=cwd,
        unix_ns=time.time_ns(),
        mono_ns=time.monotonic_ns(),
        boot=boot_id(),
        host=platform.node(),
        attached=list(pids),
        versions={
            "tuiprof": import_module("tuiprof").__version__,
            "tuiprof's python": platform.python_version(),
        },
    )


def _record(session: Session, pids: Sequence[int]) -> None:
    """Start the recorder, which outlives this process."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "TUIPROF_SESSION")}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_PACKAGE.parent), env.get("PYTHONPATH"))))
    log = session.control / "supervisor.log"
    try:
        with open(log, "wb") as errors:
            done = subprocess.run(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "tuiprof.session.attaching.attached",
                    str(session.path),
                    *map(str, pids),
                ],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env=env,
                start_new_session=True,
            )
    except OSError as error:
        raise LaunchError(f"the recorder could not be started: {error}") from error
    if done.returncode != 0:
        said = log.read_text(errors="replace").strip().splitlines()
        raise LaunchError(f"the recorder died: {said[-1] if said else 'no output'}", f"see {log}")


def describe(answer: enter.Answer) -> str:
    """Return what was found in a process, in one sentence."""
    if not answer.frameworks:
        return "it has not imported PyTorch or JAX yet; steps are recorded once it does"
    words = f"it uses {' and '.join(answer.frameworks)}"
    if "torch" in answer.frameworks:
        words += f", with {answer.optimizers} optimizer{'' if answer.optimizers == 1 else 's'}"
    return words


__all__ = ["Candidate", "attach", "candidates", "describe", "detach"]
