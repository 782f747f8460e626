"""Having a running Python process execute a file of ours, once.

Python 3.14 and newer does that itself (``sys.remote_exec``), at a moment when it is safe. Into older ones hypno brings
the code: it borrows one thread of the process by ptrace, lets it load a small library, and gives it back. A thread that
is stopped in the middle of an allocation could wait for itself there for ever, so only a thread that waits in the
kernel (for a lock, a file, a time) is borrowed: those of thread pools and of the GPU's driver do nothing else, and the
main thread now and then. All that runs on it is a line that starts a thread of the probe's own.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from tuiprof.errors import SessionError
from tuiprof.session import ptrace
from tuiprof.session.files import read_small_json

INSTALL: Final = "pip install 'tuiprof[attach]'"
#: The file that the process executes.
PAYLOAD: Final = Path(__file__).resolve().parents[1] / "probe" / "inject" / "enter.py"
OLDEST: Final = (3, 9)
_REMOTE_EXEC: Final = (3, 14)
_PROC: Final = Path("/proc")
_LIBRARY: Final = re.compile(r"(?:libpython|/python)(\d)\.(\d+)")
#: Numbers of system calls in which a thread waits and holds nothing: futex, (p)poll, (p)select, epoll, sleeps, read.
_WAITS: Final = {
    "x86_64": {202, 7, 271, 23, 270, 232, 281, 35, 230, 449},
    "aarch64": {98, 73, 72, 22, 101, 115, 449},
}
#: A main thread that computes without a pause, in a process without any other thread, never waits.
_PATIENCE_S: Final = 20.0
_ANSWER_S: Final = 30.0
_LOOK_S: Final = 0.002


class Answer(msgspec.Struct):
    """``control/enter-<pid>.json``, ``control/leave-<pid>.json``.

    Attributes:
        pid: The process.
        python: Its version.
        error: Why it came to nothing; empty = it did not.
        session: The session that records it already.
        frameworks: Frameworks that it has imported.
        optimizers: PyTorch optimizers that it has.
        left: What could not be put back.
    """

    pid: int
    python: list[int] = []
    error: str = ""
    session: str = ""
    frameworks: list[str] = []
    optimizers: int = 0
    left: list[str] = []


def python_of(pid: int) -> tuple[int, int] | None:
    """Return the version of the Python that a process runs; None = it runs none, or another than CPython.

    Args:
        pid: The process.
    """
    try:
        names = [os.readlink(_PROC / str(pid) / "exe")]
        with open(_PROC / str(pid) / "maps", encoding="utf-8", errors="replace") as maps:
            names += {line.split(None, 5)[5].strip() for line in maps if "python" in line and line.count("/")}
    except OSError:
        return None
    for name in names:
        match = _LIBRARY.search(name.replace("lib/python", "lib-"))
        if match is not None and "pypy" not in name:
            return int(match[1]), int(match[2])
    return None


def _readable(pid: int) -> bool:
    """Whether the system lets this process look into another one, which it decides as for ptrace."""
    try:
        os.readlink(_PROC / str(pid) / "exe")
    except PermissionError:
        return False
    except OSError:  # it has just ended
        return True
    return True


def check(pid: int) -> tuple[int, int]:
    """Return the version of a process's Python if it can be entered, as far as that can be seen beforehand.

    Args:
        pid: The process.

    Raises:
        SessionError: It cannot; the message says why.
    """
    if sys.platform != "linux":
        raise SessionError("a running process can be entered on Linux alone", "start it with tuiprof run")
    told = ptrace.forbidden(pid)
    if told is not None:
        raise SessionError(*told)
    if not _readable(pid):
        raise SessionError(*ptrace.refused())
    version = python_of(pid)
    if version is None:
        raise SessionError(
            f"process {pid} runs no CPython that tuiprof knows: {_command(pid)}",
            "name the Python process itself, not its shell or launcher: tuiprof attach --pid",
        )
    if version < OLDEST:
        raise SessionError(
            f"process {pid} runs Python {version[0]}.{version[1]}; the probe needs 3.9 or newer"
        )
    if not os.path.exists(_PROC / str(pid) / "root" / str(PAYLOAD).lstrip("/")):
        raise SessionError(
            f"process {pid} runs in another container, where tuiprof's files are not", "run tuiprof in there"
        )
    if version < _REMOTE_EXEC:
        if importlib.util.find_spec("hypno") is None:
            raise SessionError(
                f"hypno is needed to enter a process of Python {version[0]}.{version[1]}", INSTALL
            )
        if platform.machine() not in _WAITS:
            raise SessionError(f"a running process cannot be entered on {platform.machine()}")
    return version


def send(pid: int, control: Path, what: str) -> Answer:
    """Have a process load the probe (``enter``) or let it go (``leave``), and wait for its answer.

    Args:
        pid: The process.
        control: The session's ``control`` folder.
        what: ``enter`` or ``leave``.

    Raises:
        SessionError: The process cannot be entered, or did not answer.
    """
    version = check(pid)
    answer = control / f"{what}-{pid}.json"
    answer.unlink(missing_ok=True)
    names = {"__name__": "_tuiprof_enter", "session": str(control.parent), "what": what, "here": str(PAYLOAD)}
    # By its text, as to open the file in there could leave a warning; in a namespace of its own, not __main__.
    code = f"exec(compile({PAYLOAD.read_text()!r}, {str(PAYLOAD)!r}, 'exec'), {names!r})"
    if version >= _REMOTE_EXEC:
        _remote_exec(pid, control, code)
    else:
        _inject(pid, code)
    deadline = time.monotonic() + _ANSWER_S
    while time.monotonic() < deadline:
        found = read_small_json(answer, Answer)
        if found is not None:
            return found
        if not os.path.exists(_PROC / str(pid)):
            raise SessionError(f"process {pid} ended meanwhile")
        time.sleep(_LOOK_S * 10)
    raise SessionError(
        f"process {pid} gave no answer within {_ANSWER_S:.0f} s: code outside of Python holds its interpreter",
        "its stacks: tuiprof stacks --pid; it was left as it is",
    )


def _remote_exec(pid: int, control: Path, code: str) -> None:
    """Let Python 3.14 and newer do it; only an interpreter of the same version may ask."""
    script = control / "enter.py"
    script.write_text(code + "\n")
    ask = f"import sys; sys.remote_exec({pid}, {str(script)!r})"
    try:
        done = subprocess.run(
            [os.path.realpath(_PROC / str(pid) / "exe"), "-I", "-c", ask],
            capture_output=True,
            timeout=_ANSWER_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SessionError(f"the interpreter of process {pid} cannot be started: {error}") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        if "Permission" in (said[-1] if said else ""):
            raise SessionError(*ptrace.refused())
        raise SessionError(
            f"Python did not let process {pid} be entered: {said[-1] if said else 'no reason given'}"
        )


def _inject(pid: int, code: str) -> None:
    from hypno import inject_py
    from pyinjector import PyInjectorError

    thread = _waiting_thread(pid)
    try:
        inject_py(thread, code)
    except PyInjectorError as error:
        if "ermission" in str(error) or "not permitted" in str(error):
            raise SessionError(*ptrace.refused()) from error
        raise SessionError(f"process {pid} cannot be entered: {str(error).splitlines()[0]}") from error


def _waiting_thread(pid: int) -> int:
    """Return a thread that waits in the kernel, rather one that Python knows nothing of than the main one.

    Raises:
        SessionError: There was none for long.
    """
    waits = _WAITS[platform.machine()]
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        try:
            threads = sorted((int(name) for name in os.listdir(_PROC / str(pid) / "task")), reverse=True)
        except OSError as error:
            raise SessionError(f"process {pid} ended meanwhile") from error
        for thread in threads:  # the main thread, which has the process's own number, comes last
            if _waits(pid, thread, waits):
                return thread
        time.sleep(_LOOK_S)
    raise SessionError(
        f"process {pid} has no thread that waits, and its only ones compute without a pause: to stop one anywhere "
        "could harm it",
        "try again later, or start the script with tuiprof run",
    )


def _waits(pid: int, thread: int, waits: set[int]) -> bool:
    """Whether a thread is in one of these system calls, now and a moment later."""
    path = _PROC / str(pid) / "task" / str(thread) / "syscall"
    try:
        first = path.read_text().split()
        if not first or not first[0].isdigit() or int(first[0]) not in waits:
            return False
        time.sleep(_LOOK_S)
        return path.read_text().split() == first
    except PermissionError as error:
        raise SessionError(*ptrace.refused()) from error
    except OSError:  # it has just ended
        return False


def _command(pid: int) -> str:
    try:
        return (
            (_PROC / str(pid) / "cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")[:80]
            .strip()
        )
    except OSError:
        return "it has ended"
