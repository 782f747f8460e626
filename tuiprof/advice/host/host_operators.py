"""On a GPU: operators compute on tensors in the host's memory, in the thread that launches."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.on_cpu import THREADS, operators_on_cpu, without_threads
from tuiprof.advice.waits.pageable_memory import follow, pinned
from tuiprof.advice.waits.small_copy import SMALL_BYTES
from tuiprof.analyses.shared.waits import PAGEABLE_TO_DEVICE, TO_DEVICE
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.model.units import format_ns
from tuiprof.whatif import EditRange

#: Minimum share of the step, and of the steps that have such operators.
MIN_SHARE: Final = 0.02
MIN_STEPS: Final = 0.5
#: Share of the host time that remains if the device computes instead, which has to be launched: likely, least, most.
_KEEP: Final = (0.1, 0.5, 0.0)
_NAMED: Final = 3
#: Operators that make a tensor from nothing.
_MAKING: Final = re.compile(
    r"(new_)?(zeros|ones|full|rand|randn|randint|randperm|arange|linspace|eye)(_like)?$"
)
_MAKE_THERE: Final = (
    "create it on the device (device=...), which needs no copy; if it is constant, once before the loop"
)
#: Share of the time by which a few steps are longer than the others: likely, least and most helpful. If threads keep
#: other cores busy, one of them may have to wait for a core, and an operator ends when its last thread does.
_OF_OUTLIERS: Final = (0.5, 0.0, 1.0)
#: A thread does not wait longer for a core: the period of a container's CPU quota. A step that takes longer by more
#: than that also does something else, such as an evaluation or a checkpoint.
_LONGEST_WAIT_NS: Final = 100_000_000
_IN_MEAN: Final = (
    "; of the time by which a few steps are much longer, half is counted, averaged over all steps"
)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for long operators of the main thread that neither launch nor call the device."""
    if not trace.device_indices or not evidence.stepped:
        return
    calls, chosen = evidence.calls, operators_on_cpu(trace)
    lengths = trace.lengths(calls.rows)
    steps = len(np.unique(calls.steps[chosen]))
    if steps < MIN_STEPS * evidence.step_count:
        return
    a_step = float(lengths[chosen].sum()) / evidence.step_count
    if a_step < MIN_SHARE * float(trace.steps.lengths.mean()):
        return
    total = Counter[str]()
    for index in np.flatnonzero(chosen).tolist():
        total[calls.names[index].removeprefix("aten::")] += int(lengths[index])
    names = [name for name, _ in total.most_common(_NAMED)]
    longest = int(calls.rows[chosen][np.argmax(lengths[chosen])])
    copied_at, copied = _copied(trace, evidence, calls.rows[chosen])
    is_copied = len(copied.likely.work) > 0
    edits = EditRange(*(calls.edit(chosen, keep) for keep in _KEEP)) | copied
    faster = without_threads(trace, chosen)
    longer_ns = 0.0
    if faster is not None:
        edits |= faster
        longer_ns = trace.uncaptured.outliers_ns(_LONGEST_WAIT_NS) if trace.uncaptured else 0.0
    likely_ns, least_ns, most_ns = (longer_ns * part for part in _OF_OUTLIERS)
    yield Finding(
        f"operators compute on the CPU for {format_ns(a_step)} a step: {', '.join(names)}"
        + ("; then the result is copied to the device" if is_copied else ""),
        evidence.function_of(longest) or copied_at,
        _instead(names[0], is_copied=is_copied),
        "medium",
        "operators of the main thread without device work or runtime calls"
        + (THREADS if faster is not None else "")
        + (_IN_MEAN if longer_ns else ""),
        *edits,
        rare_ns=(likely_ns, least_ns, most_ns),
        event=longest,
    )


def _instead(longest: str, *, is_copied: bool) -> str:
    if is_copied and _MAKING.match(longest):
        return _MAKE_THERE
    if is_copied:
        return (
            "copy the batch as it was loaded, from pinned memory with non_blocking=True, and compute on the device, "
            "or compute it in loader workers; create constants on the device (device=...), once"
        )
    return (
        "create and keep these tensors on the device (device=...), compute constants once before the loop, or "
        "compute the batch in loader workers"
    )


def _copied(trace: Trace, evidence: Evidence, operators: Ints) -> tuple[str, EditRange]:
    """Return where pageable memory that the operators computed is copied, and the edits in which it is pinned."""
    location, edits = "", []
    for row in evidence.waits(TO_DEVICE, PAGEABLE_TO_DEVICE):
        copies, inside = evidence.work_in(evidence.operators_of(row))
        if (row.bytes or 0) <= SMALL_BYTES * row.count or trace.named("Pinned", copies).any():
            continue
        if follow(trace, copies, operators):
            location = location or evidence.location(row)
            edits.append(pinned(trace, copies, inside))
    return location, EditRange.all_of(edits)


RULE = AdviceRule("host-operators", find, needs=("sync_events",), shown_by="device_idle")
