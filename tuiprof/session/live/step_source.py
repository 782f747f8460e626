"""The steps of a run: what one is, what the script does before the first, and whether a capture is representative."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from tuiprof.model.units import format_count, format_ns, format_share
from tuiprof.session.live.fold import CaptureState, Fold
from tuiprof.session.live.writer_state import WriterState
from tuiprof.session.store.status import processes
from tuiprof.system import process

if TYPE_CHECKING:
    import psutil

    from tuiprof.session.store.folders import Session


#: A capture is not representative if its steps are shorter than this share of the session's median, or longer by this
#: factor and by so many ns. The upper limits allow for the overhead of a profiler.
SHORTEST, LONGEST, LONGER_NS = 0.5, 4.0, 50_000_000
#: With fewer steps outside the capture there is nothing to compare it with.
_FEWEST: Final = 5
#: Long steps are rare if their share of the capture is this many times their share of the session, which needs this
#: many steps …
_RARE: Final = 3.0
_FEWEST_TO_BE_RARE: Final = 20
#: … and this many captured ones.
_FEWEST_CAPTURED: Final = 3
#: Steps vary: those between these quantiles are representative.
_EDGE: Final = 0.05
RULE: Final = (
    f"the median of the captured steps is below {SHORTEST:g} times the median step of the session, or above "
    f"{LONGEST:g} times and by more than {LONGER_NS / 1e6:g} ms (more than the overhead of a profiler), and outside "
    f"the range of {1 - 2 * _EDGE:.0%} of the steps; or what was captured was withdrawn because it was not training "
    f"steps; at least {_FEWEST} other steps are needed"
)


def described(rank: WriterState | None) -> str:
    """Return what ends a step of a process: ``optimizer steps at train.py:88``; empty = unknown."""
    source = rank.step_source if rank is not None else None
    if source is None:
        return ""
    file, _, line = source.where.rpartition(":")
    where = f"{os.path.basename(file)}:{line}" if file else ""
    if where and source.what.startswith("iterations"):
        return f"iterations of the loop at {where}"
    return f"{source.what} at {where}" if where else source.what


def likely(fold: Fold, cwd: str) -> str:
    """Return the line whose executions are probably the undetected steps, relative to ``cwd``; empty = unknown."""
    where = next((rank.likely_step for rank in fold.ranks if rank.likely_step), "")
    file, _, line = where.rpartition(":")
    if not file:
        return ""
    return f"{os.path.relpath(file, cwd) if file.startswith(os.path.join(cwd, '')) else file}:{line}"


def counted(rank: WriterState | None) -> str:
    """Return the same with the number of steps so far: ``optimizer steps at train.py:88, 312 so far``."""
    what = described(rank)
    if not what or rank is None:
        return ""
    return f"{what}, {format_count(len(rank.steps))} so far" + (
        f", without {few}" if (few := _missed(rank)) else ""
    )


def missing(rank: WriterState) -> str:
    """Return which steps were not counted because they had not been identified yet; empty = none are known."""
    few = _missed(rank)
    return (
        f"{few} not counted, as the end of a step had not been identified yet; --step-at FILE:LINE counts all"
        if few
        else ""
    )


def _missed(rank: WriterState) -> str:
    source = rank.step_source
    if source is None or not (source.missed or source.missed_ns):
        return ""
    if source.missed_ns:
        return f"those of the loop's first {format_ns(source.missed_ns)}"
    return f"the first {format_count(source.missed)}" if source.missed > 1 else "the first one"


def refusal(capture: CaptureState, fold: Fold) -> str:
    """Return why a capture is not representative of the session's steps; empty = it is."""
    if not capture.paths:
        return ""
    if capture.withdrawn:
        return (
            f"capture {capture.id} is not representative: what it recorded turned out not to be training steps and "
            "was withdrawn; capture again"
        )
    for name, record in sorted(capture.by_writer.items()):
        rank = fold.writers.get(name)
        if rank is None or record.first is None or record.last is None:
            continue
        rows = rank.steps.rows
        numbers = rows["n"]
        inside = rows["captured"] & (numbers >= record.first) & (numbers <= record.last)
        stats = rank.steps.whole_run()
        if not inside.any() or stats.count < _FEWEST:
            continue
        captured_ns = float(np.median(rows["dur_ns"][inside]))
        low_ns, high_ns = np.quantile(rows["dur_ns"][rank.steps.comparable()], (_EDGE, 1 - _EDGE))
        shortest_ns = min(SHORTEST * stats.median_ns, float(low_ns))
        longest_ns = max(LONGEST * stats.median_ns, stats.median_ns + LONGER_NS, float(high_ns))
        if not shortest_ns <= captured_ns <= longest_ns:
            return (
                f"capture {capture.id} is not representative: its median step took {format_ns(captured_ns)}, that of "
                f"the session {format_ns(stats.median_ns)}; capture other steps: tuiprof record --capture N@STEP"
            )
    return ""


def rare_steps(capture: CaptureState, fold: Fold) -> str:
    """Return which steps of a capture are long steps that are rare in the session; empty = none."""
    for name, record in sorted(capture.by_writer.items()):
        rank = fold.writers.get(name)
        if rank is None or record.first is None or record.last is None:
            continue
        rows = rank.steps.rows
        inside = rows["captured"] & (rows["n"] >= record.first) & (rows["n"] <= record.last)
        others_ns = rows["dur_ns"][rank.steps.comparable()]
        if inside.sum() < _FEWEST_CAPTURED or len(others_ns) < _FEWEST_TO_BE_RARE:
            continue
        captured_ns = rows["dur_ns"][inside]
        longest = captured_ns > LONGEST * np.median(captured_ns)
        share = float((others_ns > LONGEST * np.median(others_ns)).mean())
        if longest.any() and longest.mean() >= _RARE * share:
            numbers = ", ".join(map(str, rows["n"][inside][longest]))
            took = format_ns(float(captured_ns[longest].max()))
            return (
                f"step {numbers} took {took} while captured; {format_share(share)} of the session's steps are that "
                f"long, but {format_share(float(longest.mean()))} of this capture's, so its findings overstate them; "
                "capture other steps: tuiprof record --capture N@STEP"
            )
    return ""


def refusals(fold: Fold) -> dict[str, str]:
    """Return why captures are not representative, by the path of their traces relative to the session."""
    return _by_path(fold, refusal)


def remarks(fold: Fold) -> dict[str, str]:
    """Return which long steps captures overstate, by the path of their traces relative to the session."""
    return _by_path(fold, rare_steps)


def _by_path(fold: Fold, said_of: Callable[[CaptureState, Fold], str]) -> dict[str, str]:
    return {
        path: said
        for capture in fold.captures.values()
        if (said := said_of(capture, fold))
        for path in capture.paths
    }


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
