"""One trial of a ladder: an ordinary session, and the result that its script prints.

A script may print as its last line a JSON object ``{"tuiprof_result": {…}}``; every field of it is optional::

    step_ms            median time of the measured steps, by the script's own clock
    steps, warmup      how many were measured, and how many before them were not
    batch              samples a step
    samples_per_s      throughput
    peak_memory_bytes  peak memory
    device, preset     what it ran on, and at which size
    interpreted        true: a kernel was interpreted; its numbers count, its speed does not
    check              {"ok": bool, "baseline": str, "compared": [{"what", "relative_error", "tolerance"}, …]}
    unavailable        [{"reason": str, "remedy": str}, …]
    ranges_ms          {name: median time of a named part of the step}, on the device where the script can tell
    kernel             what was measured of a single kernel, a step being one call of it:
                       moved_bytes, operations (which a call must do at least), arithmetic ("float32", "bfloat16",
                       "int8"), and of cold_ms, warm_ms, replayed_ms, host_ms those that are known, each
                       {"median", "low", "high"} in milliseconds; see :class:`KernelFigures`

Without ``step_ms`` the steps that the probe saw are taken. ``NaN`` and ``Infinity``, which JSON does not have and
Python writes all the same, count as not given.
"""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from tuiprof.errors import LaunchError
from tuiprof.ladder.state import Figures, KernelFigures, Kind, LadderRun, Rung, Trial
from tuiprof.session.live.fold import Fold
from tuiprof.session.live.replay import read_fold
from tuiprof.session.live.step_series import StepSeries
from tuiprof.session.run.launch import LaunchSpec, fit_capture, start
from tuiprof.session.store.folders import Session
from tuiprof.session.store.meta import CaptureRequest, Scenario
from tuiprof.session.store.output import last_lines
from tuiprof.session.store.status import Status
from tuiprof.system.described import described
from tuiprof.system.files import UNDECODABLE, read_end

WRONG_NUMBERS: Final = 3
CANNOT_RUN: Final = 77
#: Exit status of a script that does not understand its arguments (argparse, click).
_WRONG_USAGE: Final = 2
#: Three steps after warm-up. Captured runs are not timed, so the capture may be early.
_CAPTURE: Final = CaptureRequest("start", steps=3, at=10)
#: Steps left out at the beginning if the script does not say how many; of short runs half.
DEFAULT_WARMUP: Final = 10
#: Longer step times (a year) are not valid.
_LONGEST_STEP_MS: Final = 3.2e10
_END_BYTES: Final = 256 << 10
_RESULT: Final = re.compile(rb'\{"tuiprof_result":.*\}')


class _Compared(msgspec.Struct):
    what: str = ""
    relative_error: float | None = None
    tolerance: float | None = None


class _Check(msgspec.Struct):
    ok: bool
    baseline: str = ""
    compared: list[_Compared] = []


class _Lack(msgspec.Struct):
    reason: str
    remedy: str = ""


class _Timing(msgspec.Struct):
    median: float | None
    low: float | None = None
    high: float | None = None


class _Kernel(msgspec.Struct):
    moved_bytes: int = 0
    operations: int = 0
    arithmetic: str = ""
    cold_ms: _Timing | None = None
    warm_ms: _Timing | None = None
    replayed_ms: _Timing | None = None
    host_ms: _Timing | None = None
    not_measured: dict[str, str] = {}


class Result(msgspec.Struct):
    """The last line of a script; see the module's docstring."""

    step_ms: float | None = None
    steps: int | None = None
    warmup: int | None = None
    batch: int | None = None
    samples_per_s: float | None = None
    peak_memory_bytes: int | None = None
    device: str = ""
    preset: str = ""
    check: _Check | None = None
    unavailable: list[_Lack] = []
    interpreted: bool = False
    ranges_ms: dict[str, float | None] = {}
    kernel: _Kernel | None = None


class _Line(msgspec.Struct):
    tuiprof_result: Result


def begin(ladder: LadderRun, kind: Kind, number: int, rung: Rung) -> Trial:
    """Start a trial.

    Returns:
        The trial, running; or failed when the script could not be started.

    Raises:
        SessionError: The session cannot be written.
    """
    meta = ladder.meta
    flags = rung.check or () if kind == "check" else rung.check_and_run if kind == "once" else ()
    spec = LaunchSpec(
        (*rung.command, *flags),
        name=f"{meta.ladder}-{rung.name}-{kind}{number or ''}",
        cwd=Path(meta.cwd),
        python=meta.python or None,
        scenario=Scenario(meta.ladder, rung.name, meta.preset),
        capture=fit_capture(_CAPTURE, meta.steps) if kind in ("trace", "once") else None,
        root=ladder.root,
    )
    try:
        session = start(spec)
    except LaunchError as error:
        return Trial(kind, number, rung.name, "", "failed", error.message, error.remedy)
    return Trial(kind, number, rung.name, session.id)


def conclude(trial: Trial, session: Session, status: Status) -> Trial:
    """Return a trial with its outcome."""
    fold = read_fold(session)
    ended = msgspec.structs.replace(trial, wall_ns=fold.now_ns)
    if status.state == "stopped":
        return msgspec.structs.replace(ended, state="stopped", why=status.detail)
    result = last_result(session)
    if isinstance(result, str):
        remedy = 'print one line of JSON, such as {"tuiprof_result": {"step_ms": 1.5}}'
        return msgspec.structs.replace(ended, state="failed", why=result, remedy=remedy)
    lacks = result.unavailable if result else []
    if status.code == CANNOT_RUN and lacks:
        reasons = "; ".join(lack.reason for lack in lacks)
        remedies = "; ".join(dict.fromkeys(lack.remedy for lack in lacks if lack.remedy))
        return msgspec.structs.replace(ended, state="unavailable", why=reasons, remedy=remedies)
    check = result.check if result else None
    if (check and not check.ok) or (trial.kind == "check" and status.code == WRONG_NUMBERS):
        return msgspec.structs.replace(ended, state="wrong", why=_difference(check), equal=False)
    equal = True if check else None
    if trial.kind == "check" and status.code == _WRONG_USAGE and result is None:
        why = f"its script does not support the check: {_last_words(session)}"
        return msgspec.structs.replace(ended, state="done", why=why)
    if status.state != "finished":
        said = _last_words(session)
        how = str(status).removeprefix("failed (").removesuffix(")")
        why = f"{how}: {said}" if said else how
        remedy = f"see {session.stderr}"
        if status.signal == signal.SIGKILL:
            remedy = f"the kernel does this if memory runs out (see dmesg): use a smaller size; {remedy}"
        return msgspec.structs.replace(ended, state="failed", why=why, remedy=remedy)
    if trial.kind == "check":
        return msgspec.structs.replace(ended, state="done", equal=equal)
    figures = _figures(result or Result(), fold)
    if figures is None and trial.kind in ("timing", "once"):
        why = "nothing to time: no tuiprof_result line with a step_ms above 0, and no marked step"
        remedy = "mark steps with tuiprof.step(), or print a result line"
        return msgspec.structs.replace(ended, state="failed", why=why, remedy=remedy)
    lost = _no_trace(session, fold) if trial.kind in ("trace", "once") else ""
    return msgspec.structs.replace(ended, state="done", equal=equal, figures=figures, why=lost)


def last_result(session: Session) -> Result | str | None:
    """Return a script's result line; what is wrong with it; or None if there is none."""
    lines = _RESULT.findall(read_end(session.stdout, _END_BYTES))
    if not lines:
        return None
    try:
        said = json.loads(lines[-1], parse_constant=lambda _: None)
        return msgspec.convert(said, described(_Line)).tuiprof_result
    except (*UNDECODABLE, ValueError) as error:
        return f"its tuiprof_result line cannot be read: {error}"


def _figures(result: Result, fold: Fold) -> Figures | None:
    """Return what a trial measured; None = there is nothing to time."""
    steps = fold.lead.steps if fold.lead is not None else StepSeries()
    rows = steps.rows
    dur_ns = rows["dur_ns"]
    count = len(dur_ns)
    warmup = min(DEFAULT_WARMUP, count // 2) if result.warmup is None else min(result.warmup, count)
    timed = slice(warmup, count)
    measured = dur_ns[timed][steps.comparable(timed)]
    if result.step_ms is not None and 0 < result.step_ms < _LONGEST_STEP_MS:
        median_ns, timed_steps = result.step_ms * 1e6, result.steps or len(measured)
    elif len(measured) and result.step_ms is None:
        median_ns, timed_steps = float(np.median(measured)), len(measured)
    else:
        return None
    rate = result.samples_per_s
    if rate is None and result.batch and result.step_ms is None:
        rate = result.batch * len(measured) / (float(measured.sum()) / 1e9)
    peak = result.peak_memory_bytes
    if peak is None and fold.lead is not None:
        peaks = [series.last.peak for series in fold.lead.memory.values() if series.last]
        peak = max(peaks, default=None)
    return Figures(
        median_ns=median_ns,
        steps=timed_steps,
        warmup=warmup if result.warmup is None else result.warmup,
        clock="probe" if result.step_ms is None else "script",
        batch=result.batch,
        samples_per_s=rate,
        peak_bytes=peak,
        start_ns=int(rows["t_ns"][0]) if count else None,
        warmup_ns=int(dur_ns[1:warmup].sum()) if count else None,
        device=result.device,
        preset=result.preset,
        interpreted=result.interpreted,
        ranges_ns=_known_ns(result.ranges_ms),
        kernel=_kernel(result.kernel),
    )


def _known_ns(times_ms: dict[str, float | None]) -> dict[str, float]:
    """Return times in ns, without missing and invalid ones: an infinite one could not be stored."""
    return {name: ms * 1e6 for name, ms in times_ms.items() if ms is not None and 0 <= ms < _LONGEST_STEP_MS}


def _kernel(kernel: _Kernel | None) -> KernelFigures | None:
    if kernel is None:
        return None
    timings = {name: getattr(kernel, f"{name}_ms") for name in ("cold", "warm", "replayed", "host")}
    return KernelFigures(
        kernel.moved_bytes,
        kernel.operations,
        kernel.arithmetic,
        _known_ns({name: timing.median for name, timing in timings.items() if timing}),
        kernel.not_measured,
    )


def _difference(check: _Check | None) -> str:
    """Return the worst comparison of a check in words."""
    if check is None or not check.compared:
        return "its results differ from the reference"
    worst = [line for line in check.compared if not _within(line)] or check.compared
    line = worst[0]
    more = f" (and {len(worst) - 1} more)" if len(worst) > 1 else ""
    if line.relative_error is None or line.tolerance is None:
        why = " (the difference is not a number)" if line.relative_error is None and line.tolerance else ""
        return f"{line.what} differs from {check.baseline or 'the reference'}{why}{more}"
    of = f" to {check.baseline}" if check.baseline else ""
    return f"{line.what}: relative error {line.relative_error:.2g}{of}, tolerance {line.tolerance:.0e}{more}"


def _within(line: _Compared) -> bool:
    if line.relative_error is None or line.tolerance is None:
        return False
    return line.relative_error <= line.tolerance


def _last_words(session: Session) -> str:
    """Return the last line of stderr that is not empty."""
    return "".join(last_lines(session.stderr)).strip()[:300]


def _no_trace(session: Session, fold: Fold) -> str:
    """Return why no trace was captured; empty = one was."""
    if session.traces():
        return ""
    for capture in fold.captures.values():
        if capture.why:
            return f"no trace: {capture.why}"
    return "no trace: the run ended before the capture, or loaded no supported framework"
