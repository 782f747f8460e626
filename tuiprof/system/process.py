"""Who a process is, in a way that a reused process number cannot fool."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import msgspec


class ProcessId(msgspec.Struct, frozen=True):
    """One process, for good: process numbers are reused, number and start time together are not."""

    pid: int
    #: When it started, in the kernel's own words (clock ticks since boot on Linux, so that a wall clock that jumps
    #: changes nothing)
    start: str


class Processes(msgspec.Struct):
    """``control/process.json``: who records a session and who is recorded."""

    supervisor: ProcessId  # the supervisor and recorder
    script: ProcessId | None = None  # the script, leader of its process group; None = not yet started
    #: Where these process numbers are valid (:func:`pid_namespace`)
    pid_namespace: str = msgspec.field(name="place", default="")


def identify(pid: int) -> ProcessId | None:
    """Return the identity of a running process; None if there is no such process, or only a zombie of it."""
    start = _start(pid)
    return None if start is None else ProcessId(pid, start)


def alive(process: ProcessId) -> bool:
    """Return whether exactly this process still runs (a zombie does not)."""
    return _start(process.pid) == process.start


def _start(pid: int) -> str | None:
    if os.path.exists("/proc/self/stat"):
        try:
            # No ``Path``: screens ask every second, and each new part of one goes through Python's table of strings.
            with open(f"/proc/{pid}/stat", "rb") as file:
                text = file.read()
        except OSError:
            return None
        # The name (field 2) is in parentheses and may itself hold spaces and parentheses.
        fields = text[text.rfind(b")") + 2 :].split()
        return None if fields[0] in (b"Z", b"X") else fields[19].decode()
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else repr(process.create_time())
    except psutil.Error:
        return None


@cache
def boot_id() -> str:
    """Return the kernel's identity of this boot, for which CLOCK_MONOTONIC counts; not on Linux, host and boot time."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        import psutil

        return f"{os.uname().nodename}:{psutil.boot_time():.0f}"


@cache
def pid_namespace() -> str:
    """Return where the process numbers seen by this process are valid: boot and, on Linux, PID namespace."""
    try:
        return f"{boot_id()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return boot_id()
