"""Device memory is allocated or released in steady state."""

from __future__ import annotations

from collections.abc import Iterator

from tuiprof.advice import AdviceRule, Evidence, Finding, is_jax
from tuiprof.model import Trace

_TORCH = (
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, fixed shapes, no empty_cache() in the step, or a smaller batch "
    "where memory is full"
)
_JAX = (
    "let XLA hold the memory from the start (XLA_PYTHON_CLIENT_PREALLOCATE, no XLA_PYTHON_CLIENT_ALLOCATOR=platform), "
    "donate_argnums where inputs are not needed again, or a smaller batch where memory is full"
)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for allocator calls that happen in most steps."""
    for row in evidence.rows("sync_events", "groups").iter_rows(named=True):
        if row["kind"] == "allocator" and evidence.often(row):
            yield Finding(
                f"{row['calls']} runs in steady state: the framework's allocator does not hold what it needs",
                evidence.place(row),
                _JAX if is_jax(trace) else _TORCH,
                evidence.cost(row, "can_win_ns"),
                "high",
                "the call waits for the device, in most steps",
                "",
                row["event"],
            )


RULE = AdviceRule("allocator-in-steps", find)
