"""What ends a step of a run, what the script does before the first one, and whether captures are representative."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from tuiprof.model.characters import shell_word
from tuiprof.model.intervals import Mask
from tuiprof.model.units import format_count, format_ns, format_share
from tuiprof.session.live.fold import CaptureState, Fold, WriterState
from tuiprof.session.store.status import processes
from tuiprof.system import process
from tuiprof.system.files import text_of

if TYPE_CHECKING:
    import psutil

    from tuiprof.session.store.folders import Session


Found = TypeVar("Found")

#: A capture is not representative if its steps are shorter than this multiple of the session's median, or longer than
#: this multiple and by this many ns. The upper limits allow for the overhead of a profiler.
SHORTEST, LONGEST, LONGER_NS = 0.5, 4.0, 50_000_000
#: Longer commands are abbreviated.
_MAX_COMMAND: Final = 200
#: A step of the usual length is one around which the median of so many is.
_IN_A_ROW: Final = 21
#: Minimum number of steps outside the capture to compare it with.
_MIN_OTHERS: Final = 5
#: Long steps are overrepresented if their share of the capture is this multiple of their share of the session; minimum
#: number of steps outside and inside the capture.
_RARE: Final = 3.0
_MIN_OTHERS_FOR_RARE: Final = 20
_MIN_CAPTURED: Final = 3
#: Long steps are missed if there are so many in the second half of the session, and they take this share of its time.
_MIN_MISSED: Final = 2
_MOST: Final = 0.5
#: Steps between this quantile and the opposite one are representative.
_EDGE: Final = 0.05
RULE: Final = (
    "the median of the captured steps (on the host or the device, whichever takes longer) is below "
    f"{SHORTEST:g} times the median step of the session, or above {LONGEST:g} times and by more than "
    f"{LONGER_NS / 1e6:g} ms (more than the overhead of a profiler), and outside the range of {1 - 2 * _EDGE:.0%} of "
    "the steps; or what was captured was withdrawn because it was not training steps; at least "
    f"{_MIN_OTHERS} other steps are needed"
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
    """Return the line that probably runs once per step, if no steps were detected; ``cwd`` shortens its path."""
    where = next((rank.likely_step for rank in fold.ranks if rank.likely_step), "")
    file, _, line = where.rpartition(":")
    if not file:
        return ""
    return f"{os.path.relpath(file, cwd) if file.startswith(os.path.join(cwd, '')) else file}:{line}"


def again(session: Session, line: str, verb: str = "record") -> str:
    """Return the command that runs the script again and counts the executions of a line as steps."""
    words = session.meta.argv if not session.meta.attached else []
    command = " ".join(map(shell_word, words))
    return f"tuiprof {verb} --step-at {shell_word(line)} -- {command if 0 < len(command) <= _MAX_COMMAND else '…'}"


def counted(rank: WriterState | None) -> str:
    """Return :func:`described` with the number of steps: ``optimizer steps at train.py:88, 312 counted``."""
    what = described(rank)
    if not what or rank is None:
        return ""
    return f"{what}, {format_count(len(rank.steps))} counted" + (
        f", without {few}" if (few := _missed(rank)) else ""
    )


def missing(rank: WriterState) -> str:
    """Return which steps were not counted because the end of a step was not identified yet; empty = none."""
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
        again = f"{capture.id}-again"
        repeated = fold.captures.get(again)
        failed = repeated is None or repeated.state == "failed"
        remedy = "capture again" if failed else f"it was repeated as {again!r}"
        return (
            f"capture {capture.id!r} is not representative: what it recorded turned out not to be training steps and "
            f"was withdrawn; {remedy}"
        )
    for rank, inside in _captured(capture, fold):
        rows = rank.steps.rows
        stats = rank.steps.whole_run()
        if not inside.any() or stats.count < _MIN_OTHERS:
            continue
        # Starting a profiler waits for the device: in the steps after that the host runs ahead, and only the device
        # takes as long as in the others.
        captured_ns = float(np.median(np.maximum(rows["dur_ns"], rows["device_ns"])[inside]))
        low_ns, high_ns = np.quantile(rows["dur_ns"][rank.steps.comparable()], (_EDGE, 1 - _EDGE))
        shortest_ns = min(SHORTEST * stats.median_ns, float(low_ns))
        longest_ns = max(LONGEST * stats.median_ns, stats.median_ns + LONGER_NS, float(high_ns))
        if not shortest_ns <= captured_ns <= longest_ns:
            numbers = rows["n"][inside]
            others = _usual_from(rank, int(numbers.max()), stats.median_ns)
            return (
                f"capture {capture.id!r} is not representative: its median step took {format_ns(captured_ns)}, that of "
                f"the session {format_ns(stats.median_ns)}; capture other steps: tuiprof record --capture "
                + (f"{len(numbers)}@{others}" if others is not None else "N@STEP")
            )
    return ""


def _usual_from(rank: WriterState, captured: int, median_ns: float) -> int | None:
    """Return a step after the captured ones from which on steps take about the median; None = none is known."""
    rows = rank.steps.rows
    numbers, times_ns = (rows[name][rows["n"] > captured] for name in ("n", "dur_ns"))
    if len(times_ns) < _IN_A_ROW:
        return None
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(times_ns, _IN_A_ROW), axis=1)
    usual = np.flatnonzero((smooth >= SHORTEST * median_ns) & (smooth <= median_ns / SHORTEST))
    return int(numbers[usual[0] + _IN_A_ROW // 2]) if len(usual) else None


def rare_steps(capture: CaptureState, fold: Fold) -> str:
    """Return a warning if long steps are overrepresented in a capture; empty = they are not."""
    for rank, inside in _captured(capture, fold):
        rows = rank.steps.rows
        others_ns = rows["dur_ns"][rank.steps.comparable()]
        if inside.sum() < _MIN_CAPTURED or len(others_ns) < _MIN_OTHERS_FOR_RARE:
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


@dataclass(frozen=True, slots=True)
class MissedSteps:
    """Long steps that take most of a session's time, and of which a capture has none."""

    share: float  # of the steps
    of_time: float  # of the time of all steps
    median_ns: float  # of these steps
    longer_ns: float  # what they take longer than the others, averaged over all steps
    may_wait: bool  # the host may wait in them for what it launched in the others

    def __str__(self) -> str:
        waits = "; in the long ones the host may only wait for these" if self.may_wait else ""
        return (
            f"{format_share(self.share)} of the steps take about {format_ns(self.median_ns)}, "
            f"{format_share(self.of_time)} of the time, and none of them was captured: tuiprof record "
            f"--capture N@STEP, or --capture-slower 3x (the findings are about the others{waits})"
        )


def missed_steps(capture: CaptureState, fold: Fold) -> MissedSteps | None:
    """Return the steps that take most of the time, if a capture has none of them; None = it has, or there are none."""
    for rank, inside in _captured(capture, fold):
        rows = rank.steps.rows
        others_ns = rows["dur_ns"][rank.steps.comparable()]
        if not inside.any() or len(others_ns) < _MIN_OTHERS_FOR_RARE or rank.steps.stats().on_device:
            continue
        others_ns = others_ns[len(others_ns) // 2 :]  # what a run does at its beginning is over
        long_ns = others_ns[others_ns > LONGEST * np.median(others_ns)]
        of_time = float(long_ns.sum() / max(others_ns.sum(), 1))
        if len(long_ns) < _MIN_MISSED or of_time < _MOST:
            continue
        median_ns = float(np.median(long_ns))
        if rows["dur_ns"][inside].max() < median_ns / 2:
            longer_ns = float((long_ns - np.median(others_ns)).sum() / len(others_ns))
            share = len(long_ns) / len(others_ns)
            return MissedSteps(share, of_time, median_ns, longer_ns, rank.can_run_ahead)
    return None


def _captured(capture: CaptureState, fold: Fold) -> Iterator[tuple[WriterState, Mask]]:
    """Yield each captured rank, and which of its kept steps were captured."""
    for name, record in sorted(capture.by_writer.items()):
        rank = fold.writers.get(name)
        if rank is not None and record.first is not None and record.last is not None:
            rows = rank.steps.rows
            yield rank, rows["captured"] & (rows["n"] >= record.first) & (rows["n"] <= record.last)


def by_path(fold: Fold, check: Callable[[CaptureState, Fold], Found]) -> dict[str, Found]:
    """Return what a check finds (not empty, not None) by the captures' paths in the session."""
    return {
        path: found
        for capture in fold.captures.values()
        if (found := check(capture, fold))
        for path in capture.paths
    }


_COMPILERS: Final = (
    "cc1plus", "cc1", "g++", "gcc", "c++", "clang", "clang++", "nvcc", "cicc", "ptxas", "ld", "neuronx-cc", "ninja",
)  # fmt: skip
_SOURCES: Final = (".cpp", ".cc", ".c", ".cu", ".cuh", ".ptx", ".hlo", ".pb")
#: Shared libraries of frameworks; frameworks that use others come first.
_LIBRARIES: Final = (
    ("torch", "libtorch_python.so"),
    ("jax", "xla_extension.so"),
    ("jax", "libjax_common.so"),
    ("numpy", "_multiarray_umath."),
)


def activity(session: Session) -> str:
    """Return what a script that has run no step yet is doing; empty = unknown."""
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
    """Return the compiler that is running below the script, and its file; empty = none."""
    import psutil

    for child in script.children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended
            name = child.name()
            if name in _COMPILERS:
                sources = [Path(part).name for part in child.cmdline() if part.endswith(_SOURCES)]
                return f"compiling {sources[-1]} ({name})" if sources else f"compiling ({name})"
    return ""


def _loaded(pid: int) -> str | None:
    """Return the framework whose library a process has loaded, empty = none; None = unknown."""
    maps = text_of(Path(f"/proc/{pid}/maps"))
    return next((name for name, library in _LIBRARIES if library in maps), "") if maps else None
