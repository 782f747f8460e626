"""Activity of a script before its first step: the compiler it runs, the framework it has loaded."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tuiprof.session.store.status import processes
from tuiprof.system import process

if TYPE_CHECKING:
    import psutil

    from tuiprof.session.store.folders import Session

_COMPILERS: Final = (
    "cc1plus", "cc1", "g++", "gcc", "c++", "clang", "clang++", "nvcc", "cicc", "ptxas", "ld", "neuronx-cc", "ninja",
)  # fmt: skip
_SOURCES: Final = (".cpp", ".cc", ".c", ".cu", ".cuh", ".ptx", ".hlo", ".pb")
#: Shared libraries by which a framework is known, the frameworks that build on others first.
_LIBRARIES: Final = (
    ("torch", "libtorch_python.so"),
    ("jax", "xla_extension.so"),
    ("jax", "libjax_common.so"),
    ("numpy", "_multiarray_umath."),
)


def activity(session: Session) -> str:
    """Return what the script of a session is doing, as a sentence; empty = unknown."""
    who = processes(session)
    if who is None or who.pid_namespace != process.pid_namespace():
        return ""
    if who.script is None or not process.alive(who.script):
        return "the script has not been started yet"
    import psutil

    with contextlib.suppress(psutil.Error):
        script = psutil.Process(who.script.pid)
        if compiling := _compiling(script):
            return compiling
    loaded = _loaded(who.script.pid)
    if loaded is None:
        return ""
    return f"{loaded} is loaded, the first step has not ended" if loaded else "no framework is loaded yet"


def _compiling(script: psutil.Process) -> str:
    """Return which compiler runs below the script, and on which file; empty = none."""
    import psutil

    for child in script.children(recursive=True):
        with contextlib.suppress(psutil.Error):  # compilers come and go
            name = child.name()
            if name in _COMPILERS:
                sources = [Path(part).name for part in child.cmdline() if part.endswith(_SOURCES)]
                return f"compiling {sources[-1]} ({name})" if sources else f"compiling ({name})"
    return ""


def _loaded(pid: int) -> str | None:
    """Return the framework whose library a process has mapped, empty = none; None = unreadable."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return next((name for name, library in _LIBRARIES if library in maps), "")
