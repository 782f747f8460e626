"""A trace on one page: findings by saving, one line per analysis, and a picture of its first steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from tuiprof.advice import advise, priorities, proof_command
from tuiprof.advice.fusing import left_to_compile
from tuiprof.advice.pricing import Priced
from tuiprof.analyses import run_all
from tuiprof.analyses.shared import waits as _waits
from tuiprof.analyses.shared.replay import opening, replayed_steps, which_step
from tuiprof.analyses.shared.scope import Scope
from tuiprof.model import Report, Trace, Window
from tuiprof.model.intervals import Coverage, Ints, clip, complement
from tuiprof.model.report import Answer, Change, Lane, LaneKind, Line, Picture, Range

#: The analyses with a line on the page, in this order.
ANALYSES: Final = ("sync_events", "kernel_launches", "device_idle", "kernels", "data_loading", "steps")


def answer(trace: Trace, title: str, window: Window | None = None) -> Answer:
    """Return a trace on one page."""
    begun, found, steps = opening(trace, title), priorities(trace, window), replayed_steps(trace)
    reports = [item for item in run_all(ANALYSES, trace, window) if isinstance(item, Report)]
    step_ns = found.step_ns if begun.step_ns is not None and found.step_ns is not None else begun.step_ns
    return replace(
        begun,
        step_ns=step_ns,
        step_is=begun.step_is
        if step_ns == begun.step_ns or isinstance(steps, str)
        else which_step(steps, with_rare=True),
        together_ns=found.together.ns if found.together is not None and begun.step_ns is not None else None,
        changes=tuple(_change(item) for item in found.findings),
        lines=tuple(
            Line(report.analysis, report.title, report.verdict.level, report.verdict.sentence)
            for report in reports
        ),
        notes=advise(trace, window).notes,
        left_to_try=left_to_compile(trace),
    )


def _change(item: Priced) -> Change:
    finding, win = item.finding, item.win
    return Change(
        item.rule,
        finding.what,
        finding.where,
        finding.instead,
        finding.because,
        finding.sure,
        win.ns if win else None,
        win.low_ns if win else None,
        win.high_ns if win else None,
        item.share,
        item.overlaps,
        item.on_top,
        proof_command(finding.proof),
    )


# -- the picture -----------------------------------------------------------------------------------------

#: Columns of a picture, and its maximum number of steps and devices.
_COLUMNS: Final = 800
_STEPS, _DEVICES = 4, 8
#: Minimum share of the picture for a range; smaller ones would only be a line.
_MIN_WIDTH: Final = 0.002
_MARKER: Final = r"^ProfilerStep#\d+$"


def picture(trace: Trace, window: Window | None = None) -> Picture | None:
    """Return the first steps of a trace, at most four, or all of it if it marks none; None if there is nothing to
    show.
    """
    scope = Scope.of(trace, window or Window())
    steps = scope.steps[:_STEPS]
    low, high = scope.low, scope.high
    title = "The whole trace"
    if len(steps):
        low, high = int(trace.steps.starts[steps[0]]), int(trace.steps.ends[steps[-1]])
        first, last = (trace.steps.numbers[steps[end]] for end in (0, -1))
        title = f"Steps {first} to {last}" if first != last else f"Step {first}"
    if high <= low:
        return None
    edges = np.linspace(low, high, _COLUMNS + 1).astype(np.int64)
    waits = _waits.find(trace, Window())
    counted = waits.last[waits.apart != _waits.BY_PROFILER]
    lanes = [
        Lane("steps", "steps", _ranges(trace, low, high, steps)),
        Lane("host", "ranges", _phases(trace, low, high)),
        _lane("launches", "calls", trace.union(trace.links.launches), edges),
        _lane("host waits", "waits", trace.union(counted), edges),
    ]
    several = len(trace.device_indices) > 1
    for index in trace.device_indices[:_DEVICES]:
        name = f"device {index}" if several else "device"
        busy = trace.busy(index)
        lanes.append(_lane(name, "busy", busy, edges))
        lanes.append(_lane("idle", "idle", complement(*busy, low, high), edges))
    lanes = [lane for lane in lanes if lane.ranges or any(lane.shares)]
    return Picture(title, high - low, tuple(lanes)) if lanes else None


def _lane(label: str, kind: LaneKind, spans: tuple[Ints, Ints], edges: Ints) -> Lane:
    covered = Coverage(*clip(*spans, int(edges[0]), int(edges[-1]))).between(edges[:-1], edges[1:])
    shares = covered / np.maximum(np.diff(edges), 1)
    return Lane(label, kind, shares=tuple(shares.tolist()))


def _ranges(trace: Trace, low: int, high: int, steps: Ints) -> tuple[Range, ...]:
    numbers, starts, ends = (
        column[steps].tolist() for column in (trace.steps.numbers, trace.steps.starts, trace.steps.ends)
    )
    return tuple(
        Range((start - low) / (high - low), (end - low) / (high - low), f"step {number}", end - start)
        for number, start, end in zip(numbers, starts, ends, strict=True)
    )


def _phases(trace: Trace, low: int, high: int) -> tuple[Range, ...]:
    """Return the outermost named ranges of the thread that has most of them."""
    rows: Ints = np.flatnonzero(trace.is_category("annotation", "dataloader") & ~trace.named(_MARKER))
    rows = rows[(trace.starts[rows] < high) & (trace.ends[rows] > low)]
    if not len(rows):
        return ()
    rows = rows[trace.track_codes[rows] == np.bincount(trace.track_codes[rows]).argmax()]
    rows = _waits.outermost(trace, rows)
    found = []
    for row in rows.tolist():
        start, end = max(int(trace.starts[row]), low), min(int(trace.ends[row]), high)
        if (end - start) / (high - low) >= _MIN_WIDTH:
            found.append(
                Range((start - low) / (high - low), (end - low) / (high - low), trace.name(row), end - start)
            )
    return tuple(found)
