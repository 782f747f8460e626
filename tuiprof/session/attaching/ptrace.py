"""Whether ptrace is permitted on a process, and if not, the reason and the remedy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_YAMA: Final = _PROC / "sys/kernel/yama/ptrace_scope"
_CAP_SYS_PTRACE: Final = 1 << 19


def forbidden(pid: int) -> tuple[str, str] | None:
    """Return why ptrace on a process is known to be forbidden, and the remedy; None = no reason is known.

    A container may forbid it with its seccomp filter, which can only be found by trying.
    """
    try:
        owner = (_PROC / str(pid)).stat().st_uid
        real = _uids(pid)
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


def _uids(pid: int) -> set[int]:
    for line in (_PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith("Uid:"):
            return {int(word) for word in line.split()[1:]}
    return set()


def _scope() -> int | None:
    try:
        return int(_YAMA.read_text())
    except (OSError, ValueError):  # another system, or a kernel without Yama
        return None


def _has_capability() -> bool:
    """Whether this process has CAP_SYS_PTRACE, as root outside of containers has."""
    try:
        lines = (_PROC / "self/status").read_text().splitlines()
    except OSError:
        return False
    return any(line.startswith("CapEff:") and int(line.split()[1], 16) & _CAP_SYS_PTRACE for line in lines)
