"""One or a few large tensors are converted or copied in every step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.large_copies import CONVERSIONS, copies, freed
from tuiprof.analyses.shared.calls import index_of_outer
from tuiprof.analyses.shared.frames import operator_label
from tuiprof.analyses.shared.threads import main_thread
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints, Mask
from tuiprof.model.units import format_ns
from tuiprof.whatif import Edit, HostTime

#: Minimum share of a step (of the work of a device) that each takes, and that those of one place take together.
_EACH: Final = 0.03
_MIN_SHARE: Final = 0.1
#: Minimum share of the steps that have one, and minimum number in a trace.
_IN_STEPS: Final = 0.75
_MIN_COUNT: Final = 2
_MOVED: Final = "^Memcpy (?!DtoD|Device -> Device)"


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for conversions and copies that take a large part of a step, outside of the backward pass."""
    rows = copies(trace)
    ns, step_ns = (
        _on_device(trace, evidence, rows) if trace.device_indices else _on_host(trace, evidence, rows)
    )
    rows, ns = rows[ns >= _EACH * step_ns], ns[ns >= _EACH * step_ns]
    at: dict[tuple[str, bool], list[int]] = {}
    converting = trace.named(CONVERSIONS, rows).tolist()
    for index, place in enumerate(zip(evidence.functions_of(rows), converting, strict=True)):
        at.setdefault(place, []).append(index)
    for (where, converts), indices in at.items():
        share = float(ns[indices].sum()) / (evidence.step_count * step_ns)
        if share >= _MIN_SHARE and len(indices) >= max(_MIN_COUNT, _IN_STEPS * evidence.step_count):
            yield _finding(
                trace, evidence, rows[indices], where, float(ns[indices].sum()), share, converts=converts
            )


def _on_host(trace: Trace, evidence: Evidence, rows: Ints) -> tuple[Ints, float]:
    """Return the time of each on the main thread, ns, and that of a step."""
    low, high = trace.span
    of_steps = float(trace.steps.lengths.sum()) if evidence.stepped else float(high - low)
    return trace.lengths(rows) * (
        trace.track_codes[rows] == main_thread(trace)
    ), of_steps / evidence.step_count


def _on_device(trace: Trace, evidence: Evidence, rows: Ints) -> tuple[Ints, float]:
    """Return the time of the kernels of each, ns, and that of all work in a step; 0 for copies from and to the host."""
    work, launch = trace.device_work, trace.links.launch_of[trace.device_work]
    lengths = trace.lengths(work)
    of = np.full(len(work), -1)
    of[launch >= 0] = index_of_outer(trace, rows, launch[launch >= 0])
    inside = of >= 0
    ns = np.bincount(of[inside], lengths[inside], minlength=len(rows)).astype(np.int64)
    moved: Mask = inside & trace.named(_MOVED, work)
    ns[of[moved]] = 0
    return ns, float(lengths.sum()) / evidence.step_count


def _finding(
    trace: Trace, evidence: Evidence, rows: Ints, where: str, ns: float, share: float, *, converts: bool
) -> Finding:
    calls, first = evidence.calls, int(rows[0])
    of_copies, starts, ends = freed(trace)
    mine = np.isin(of_copies, rows)
    starts, ends = starts[mine], ends[mine]
    gone = evidence.without_operators(rows) | Edit(
        host=HostTime(
            trace.track_codes[of_copies[mine]].astype(np.int64), starts, ends, np.zeros(len(starts))
        )
    )
    if not where and not trace.device_indices:
        forward = calls.within("^(forward|evaluation)$")[calls.inside(rows)].mean() > 0.5
        line = evidence.line_taking(share, "forward" if forward else "")
        where = line.where if line is not None else ""
    name = operator_label(trace.name(first))
    again, otherwise = (
        ("convert it once, before the loop", "choose the type and layout when the data is made")
        if converts
        else ("copy it once, before the loop", "use the original, if nothing changes it afterwards")
    )
    return Finding(
        f"a large tensor is {'converted to another type or layout' if converts else 'copied'} "
        f"{evidence.how_often(len(rows))}, for {format_ns(ns / evidence.step_count)}",
        where or name,
        f"if it is the same in every step (weights, an index, a mask), {again}; otherwise {otherwise}",
        "low" if calls.backward.any() else "medium",
        f"{name} outside of the backward pass; whether it is the same tensor each time, a trace does not tell"
        + ("; with the time right after its use in which its memory is given back" if mine.any() else ""),
        gone,
        Edit(),
        event=first,
    )


RULE = AdviceRule("copy-each-step", find)
