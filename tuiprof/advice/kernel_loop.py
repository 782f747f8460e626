"""The same few short kernels are launched again and again."""

from __future__ import annotations

from collections.abc import Iterator

from tuiprof.advice import AdviceRule, Evidence, Finding, is_jax
from tuiprof.model import Trace

_TORCH = (
    "do it for all items at once (batch or pad, then mask), with foreach or fused optimizers, or compile it; "
    "a loop that must stay can be captured in a CUDA graph"
)
_JAX = (
    "do it for all items at once (jax.vmap; pad, then mask); a loop that must stay can be one kernel (Pallas)"
)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for loops of short kernels."""
    for row in evidence.rows("kernel_launches", "sequences").iter_rows(named=True):
        if row["shape"] != "loop" or row["times"] < 10 or row["length"] == 1:
            continue
        times = row["times_per_step"] or row["times"]
        yield Finding(
            f"a loop of {row['length']} short kernels runs {times:.0f} times: {row['kernels']}",
            "",
            _JAX if is_jax(trace) else _TORCH,
            evidence.cost(row, "host_ns"),
            "medium",
            "kernels below 10 µs follow each other in the same order",
            "nms:jax,pallas-triton" if is_jax(trace) else "",
            row["event"],
        )


RULE = AdviceRule("kernel-loop", find)
