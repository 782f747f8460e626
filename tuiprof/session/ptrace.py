"""Access to a running Python process from outside: whether ptrace is permitted, its stacks, and running a file in it.

Python 3.14 and newer supports running a file (``sys.remote_exec``), at a safe point. For older versions hypno injects
the code: it borrows one thread of the process with ptrace, makes it load a small library, and releases it. A thread
stopped inside an allocation could deadlock there, and one that waits for the GIL may get it at any moment. So only
threads are borrowed that have been waiting in the kernel for a while without a timeout, as threads of pools and of the
GPU driver usually do. If there is none, a thread that sleeps or waits for files with a timeout is used. It runs only
one line, which starts another thread.

Stacks are read by py-spy: it reads the memory of any CPython of the last fifteen years without running anything in it,
on Linux, macOS and Windows.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from tuiprof.errors import SessionError
from tuiprof.session.log import Thread, Whole
from tuiprof.system.files import read_small_json

_PROC: Final = Path("/proc")
_YAMA: Final = _PROC / "sys/kernel/yama/ptrace_scope"
_CAP_SYS_PTRACE: Final = 1 << 19


def forbidden(pid: int) -> tuple[str, str] | None:
    """Return why ptrace on a process is known to be forbidden, and the remedy; None = no reason is known.

    A container may forbid it with its seccomp filter, which can only be found by trying.
    """
    try:
        owner = (_PROC / str(pid)).stat().st_uid
        real = {int(word) for word in _status(str(pid), "Uid")}
    except OSError:
        return f"there is no process {pid}", "see the processes: ps aux, or tuiprof attach --pid"
    if pid == os.getpid():
        return "that is tuiprof itself", "give the training process"
    if _has_capability():
        return None
    if owner != os.geteuid() or real != {os.geteuid()}:
        return (
            f"process {pid} belongs to another user",
            f"run tuiprof as that user or with sudo (the process runs as user {owner})",
        )
    scope = _scope()
    if scope == 1:
        return (
            f"this system allows ptrace on a process's own children only, and {pid} is not one (ptrace_scope is 1)",
            "use sudo, or allow it until the next boot: echo 0 | sudo tee /proc/sys/kernel/yama/ptrace_scope",
        )
    if scope is not None and scope >= 2:
        return (
            f"this system allows ptrace to administrators only (ptrace_scope is {scope})",
            "use sudo" if scope == 2 else "only a reboot can change it; start the script with tuiprof run",
        )
    return None


def refused() -> tuple[str, str]:
    """Return the message and remedy if the system refused ptrace for an unknown reason."""
    return (
        "the system does not allow ptrace",
        "in a container, start it with --cap-add SYS_PTRACE; elsewhere use sudo",
    )


def _status(process: str, field: str) -> list[str]:
    """Return the words of a field of a process's status."""
    lines = (_PROC / process / "status").read_text().splitlines()
    return next((line.split()[1:] for line in lines if line.startswith(f"{field}:")), [])


def _scope() -> int | None:
    try:
        return int(_YAMA.read_text())
    except (OSError, ValueError):  # another system, or a kernel without Yama
        return None


def _has_capability() -> bool:
    """Whether this process has CAP_SYS_PTRACE, as root outside of containers has."""
    try:
        return any(int(word, 16) & _CAP_SYS_PTRACE for word in _status("self", "CapEff"))
    except OSError:
        return False


INSTALL_HYPNO: Final = "pip install 'tuiprof[attach]'"
#: The file that the process executes.
PAYLOAD: Final = Path(__file__).resolve().parents[1] / "probe" / "enter.py"
OLDEST: Final = (3, 9)
_REMOTE_EXEC: Final = (3, 14)
_LIBRARY: Final = re.compile(r"(?:libpython|/python)(\d)\.(\d+)")
#: System calls in which a thread waits without holding locks: the number, the timeout argument, and its value for no
#: timeout. Futexes count only without a timeout: with one, a thread waits for the GIL.
_NO_LIMIT: Final = {
    "x86_64": {
        202: (3, 0),
        7: (2, -1),
        271: (2, 0),
        23: (4, 0),
        270: (4, 0),
        232: (3, -1),
        281: (3, -1),
        0: (0, None),
    },
    "aarch64": {98: (3, 0), 73: (2, 0), 72: (4, 0), 22: (3, -1), 63: (0, None)},
}
_FUTEX: Final = {"x86_64": 202, "aarch64": 98}
_SLEEPS: Final = {"x86_64": {35, 230}, "aarch64": {101, 115}}
#: Minimum time for which a thread has not run …
_STILL_S: Final = 0.05
#: … and time without another candidate after which a thread with a timeout is borrowed.
_RATHER_S: Final = 3.0
#: A main thread that computes without a pause, in a process without any other thread, never waits.
_PATIENCE_S: Final = 20.0
_ANSWER_S: Final = 30.0
_POLL_S: Final = 0.002


class Answer(msgspec.Struct):
    """``control/enter-<pid>.json``, ``control/leave-<pid>.json``."""

    pid: int
    python: list[int] = []  # its version
    error: str = ""  # why it failed; empty = it succeeded
    session: str = ""  # the session that already records it
    frameworks: list[str] = []  # frameworks that it has imported
    optimizers: int = 0  # number of its PyTorch optimizers
    left: list[str] = []  # what could not be restored


def python_of(pid: int) -> tuple[int, int] | None:
    """Return the Python version of a process; None = not Python, or not CPython."""
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
    """Whether the system permits reading another process, by the same rules as ptrace."""
    try:
        os.readlink(_PROC / str(pid) / "exe")
    except PermissionError:
        return False
    except OSError:  # the process has just ended
        pass
    return True


def check(pid: int) -> tuple[int, int]:
    """Return the Python version of a process if attaching seems possible.

    Raises:
        SessionError: It cannot; the message says why.
    """
    if sys.platform != "linux":
        raise SessionError("attaching to a running process requires Linux", "start it with tuiprof run")
    refusal = forbidden(pid)
    if refusal is not None:
        raise SessionError(*refusal)
    if not _readable(pid):
        raise SessionError(*refused())
    version = python_of(pid)
    if version is None:
        raise SessionError(
            f"process {pid} does not run a CPython that tuiprof supports: {_command(pid)}",
            "give the Python process itself, not its shell or launcher: tuiprof attach --pid",
        )
    if version < OLDEST:
        raise SessionError(
            f"process {pid} runs Python {version[0]}.{version[1]}; the probe needs 3.9 or newer"
        )
    if not os.path.exists(_PROC / str(pid) / "root" / str(PAYLOAD).lstrip("/")):
        raise SessionError(
            f"process {pid} runs in another container, without tuiprof's files",
            "run tuiprof in that container",
        )
    if version < _REMOTE_EXEC:
        if importlib.util.find_spec("hypno") is None:
            raise SessionError(
                f"attaching to a process of Python {version[0]}.{version[1]} requires hypno", INSTALL_HYPNO
            )
        if platform.machine() not in _NO_LIMIT:
            raise SessionError(
                f"attaching to a process of this Python is not supported on {platform.machine()}"
            )
    return version


def send(pid: int, control: Path, what: str) -> Answer:
    """Have a process load the probe (``enter``) or remove it (``leave``), and wait for its answer in the session's
    ``control``.

    Raises:
        SessionError: The process cannot be entered, or did not answer.
    """
    version = check(pid)
    answer = control / f"{what}-{pid}.json"
    answer.unlink(missing_ok=True)
    names = {"__name__": "_tuiprof_enter", "session": str(control.parent), "what": what, "here": str(PAYLOAD)}
    # As text, because opening the file there could cause a warning; in a separate namespace, not __main__.
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
            raise SessionError(f"process {pid} has ended")
        time.sleep(_POLL_S * 10)
    raise SessionError(
        f"process {pid} did not answer within {_ANSWER_S:.0f} s: native code holds its interpreter lock",
        "see its stacks: tuiprof stacks --pid; the process was not changed",
    )


def _remote_exec(pid: int, control: Path, code: str) -> None:
    """Use ``sys.remote_exec`` of Python 3.14 and newer, from an interpreter of the same version."""
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
            raise SessionError(*refused())
        raise SessionError(
            f"sys.remote_exec failed for process {pid}: {said[-1] if said else 'no reason given'}"
        )


def _inject(pid: int, code: str) -> None:
    from hypno import api
    from pyinjector import PyInjectorError

    inject = api.inject

    def inject_into_waiting_thread(_: int, *args: object, **kwargs: object) -> object:
        return inject(_waiting_thread(pid), *args, **kwargs)

    # hypno prepares a file first, during which a previously chosen thread could continue.
    api.inject = inject_into_waiting_thread
    try:
        api.inject_py(pid, code)
    except PyInjectorError as error:
        if "ermission" in str(error) or "not permitted" in str(error):
            raise SessionError(*refused()) from error
        raise SessionError(f"cannot attach to process {pid}: {str(error).splitlines()[0]}") from error
    finally:
        api.inject = inject


def _waiting_thread(pid: int) -> int:
    """Return a thread that waits in the kernel and has not run for a while.

    Raises:
        SessionError: There was none before the timeout.
    """
    began = time.monotonic()
    seen: dict[int, tuple[str, float]] = {}
    while (now := time.monotonic()) < began + _PATIENCE_S:
        still = []
        for thread in _threads(pid):
            state = _state(pid, thread)
            if state is None:
                seen.pop(thread, None)
                continue
            if seen.get(thread, ("", 0.0))[0] != state:
                seen[thread] = state, now
            if now - seen[thread][1] >= _STILL_S:
                still.append(thread)
        rather = [thread for thread in still if _waits(seen[thread][0], limited=False)]
        if not rather and now - began >= _RATHER_S:
            rather = [thread for thread in still if _waits(seen[thread][0], limited=True)]
        for thread in rather:
            if _state(pid, thread) == seen[thread][0]:
                return thread
        time.sleep(_POLL_S)
    raise SessionError(
        f"process {pid} has no waiting thread: its threads compute without a pause, and stopping one at an arbitrary "
        "point could corrupt the process",
        "try again later, or start the script with tuiprof run",
    )


def _threads(pid: int) -> list[int]:
    """Return the threads of a process, the main one last."""
    try:
        return sorted((int(name) for name in os.listdir(_PROC / str(pid) / "task")), reverse=True)
    except OSError as error:
        raise SessionError(f"process {pid} has ended") from error


def _state(pid: int, thread: int) -> str | None:
    """Return a thread's current system call and its context switches; None = not in a system call, or ended."""
    folder = _PROC / str(pid) / "task" / str(thread)
    try:
        call = (folder / "syscall").read_text().strip()
        switches = [line for line in (folder / "status").read_text().splitlines() if "ctxt_switches" in line]
    except PermissionError as error:
        raise SessionError(*refused()) from error
    except OSError:
        return None
    return " ".join([call, *switches]) if call[:1].isdigit() else None


def _waits(state: str, *, limited: bool) -> bool:
    """Whether the system call of a thread is a wait that holds nothing."""
    machine = platform.machine()
    number, *arguments = state.split()[:7]
    known = _NO_LIMIT[machine].get(int(number))
    if known is None:
        return limited and int(number) in _SLEEPS[machine]
    index, none = known
    if none is None:
        return True
    value = int(arguments[index], 16) & 0xFFFFFFFF if none < 0 else int(arguments[index], 16)
    return value == none & 0xFFFFFFFF or (limited and int(number) != _FUTEX[machine])


def _command(pid: int) -> str:
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return "it has ended"
    return words.decode(errors="replace")[:80].strip()


INSTALL_PY_SPY: Final = "pip install 'tuiprof[stacks]'"
_TIMEOUT_S: Final = 30.0
_REFUSED: Final = ("permission denied", "operation not permitted", "eperm")


class _Frame(msgspec.Struct):
    name: str
    filename: str
    line: Whole = 0


class _Thread(msgspec.Struct):
    pid: Whole
    thread_id: Whole
    frames: list[_Frame]
    thread_name: str | None = None
    os_thread_id: Whole | None = None


def py_spy() -> str | None:
    """Return the path of py-spy; None = it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def stacks_of(pid: int, *, children: bool = False) -> dict[int, list[Thread]]:
    """Return the threads of a process, by process number.

    Raises:
        SessionError: py-spy is not installed, ptrace is not allowed, or it is no Python process.
    """
    refusal = forbidden(pid)
    if refusal is not None:
        raise SessionError(*refusal)
    spy = py_spy()
    if spy is None:
        raise SessionError(
            f"reading the stacks of process {pid}, which has no probe, requires py-spy", INSTALL_PY_SPY
        )
    command = [spy, "dump", "--json", "--full-filenames", "--pid", str(pid)]
    try:
        done = subprocess.run(
            [*command, *(["--subprocesses"] if children else [])],
            capture_output=True,
            timeout=_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise SessionError(f"py-spy did not answer for process {pid}", "try again") from error
    except OSError as error:
        raise SessionError(f"{spy} could not be started: {error}", INSTALL_PY_SPY) from error
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode != 0:
        if any(words in said.lower() for words in _REFUSED):
            raise SessionError(*refused())
        last = next((line.strip() for line in said.splitlines() if line.strip()), "no output")
        raise SessionError(
            f"py-spy cannot read process {pid}: {last.removeprefix('Error: ')}",
            "check that it is a Python process",
        )
    try:
        found = msgspec.json.decode(done.stdout, type=list[_Thread])
    except msgspec.DecodeError as error:
        raise SessionError(
            f"py-spy's answer cannot be read: {error}", f"update it: {INSTALL_PY_SPY} --upgrade"
        ) from error
    out: dict[int, list[Thread]] = {}
    for thread in found:
        frames = [(frame.filename, frame.line, frame.name) for frame in thread.frames]
        number = thread.os_thread_id or 0
        main = thread.thread_name == "MainThread" or number == thread.pid
        out.setdefault(thread.pid, []).append(Thread(frames, number, thread.thread_name or "", main))
    for threads in out.values():
        threads.sort(key=lambda thread: not thread.main)
    return out
