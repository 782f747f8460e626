"""Python stacks of a process without a probe, read by py-spy.

py-spy reads the memory of any CPython of the last fifteen years without running anything in it, on Linux, macOS and
Windows. It comes with ``pip install 'tuiprof[stacks]'``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from tuiprof.errors import SessionError
from tuiprof.session.attaching import ptrace
from tuiprof.session.log import Thread, Whole

INSTALL: Final = "pip install 'tuiprof[stacks]'"
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


def program() -> str | None:
    """Return the path of py-spy; None = it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def stacks_of(pid: int, *, children: bool = False) -> dict[int, list[Thread]]:
    """Return the threads of a process, by process number.

    Raises:
        SessionError: py-spy is not installed, ptrace is not allowed, or it is no Python process.
    """
    refusal = ptrace.forbidden(pid)
    if refusal is not None:
        raise SessionError(*refusal)
    spy = program()
    if spy is None:
        raise SessionError(
            f"reading the stacks of process {pid}, which has no probe, requires py-spy", INSTALL
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
        raise SessionError(f"{spy} could not be started: {error}", INSTALL) from error
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode != 0:
        if any(words in said.lower() for words in _REFUSED):
            raise SessionError(*ptrace.refused())
        last = next((line.strip() for line in said.splitlines() if line.strip()), "no output")
        raise SessionError(
            f"py-spy cannot read process {pid}: {last.removeprefix('Error: ')}",
            "check that it is a Python process",
        )
    try:
        found = msgspec.json.decode(done.stdout, type=list[_Thread])
    except msgspec.DecodeError as error:
        raise SessionError(
            f"py-spy's answer cannot be read: {error}", f"update it: {INSTALL} --upgrade"
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
