"""Device memory is allocated or released in steady state."""

from __future__ import annotations

from collections.abc import Iterator

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.stretches import MIN_FIRST_USE, first_uses
from tuiprof.model import Trace
from tuiprof.whatif import Edit

_EMPTIED = "keep torch.cuda.empty_cache() out of the loop"
_TORCH = (
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, fixed shapes (pad to a few sizes), or a smaller "
    "batch if memory is full"
)
_JAX = (
    "let XLA preallocate memory (XLA_PYTHON_CLIENT_PREALLOCATE, no "
    "XLA_PYTHON_CLIENT_ALLOCATOR=platform), donate_argnums for inputs not needed again, or a smaller "
    "batch if memory is full"
)


def _emptied(evidence: Evidence) -> str:
    return f"{evidence.write('no-emptying', _EMPTIED)}: the next step has to allocate that memory again"


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for allocator calls in most steps, combined in one finding."""
    rows = list(evidence.waits("allocator"))
    warming_up = not evidence.stepped and first_uses(trace)[1] >= MIN_FIRST_USE
    if not rows or warming_up:
        return
    calls = sorted({call for row in rows for call in row.calls.split(" + ")})
    times = sum(row.per_step or row.count for row in rows)
    run, often = "run" if len(calls) > 1 else "runs", "once" if round(times) == 1 else f"{times:.0f} times"
    # The release is the cause; the allocation follows from it.
    released = [row for row in rows if "Free" in row.calls]
    cause = max(released or rows, key=lambda row: row.blocked_ns)
    yield Finding(
        f"{' and '.join(calls)} {run} {often} "
        + (
            "a step: the framework's allocator does not keep memory for the next step"
            if evidence.stepped
            else "in all: memory is allocated on the device and freed over and over"
        ),
        evidence.location(cause),
        _JAX if evidence.is_jax else f"{_emptied(evidence)}; otherwise {_TORCH}" if released else _TORCH,
        "high" if evidence.stepped else "low",
        "these calls wait for the device, in most steps"
        if evidence.stepped
        else "these calls wait for the device; without step markers, they may belong to a warm-up",
        Edit.all_of(map(evidence.without_waiting, rows)),
        None if evidence.stepped else Edit(),
        event=cause.event,
        environment={} if evidence.is_jax else {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    )


RULE = AdviceRule("allocator-in-steps", find, needs=("sync_events",))
