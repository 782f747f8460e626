"""Elementwise operations in a row, each a kernel of its own."""

from __future__ import annotations

from collections.abc import Iterator

from tuiprof.advice import AdviceRule, Evidence, Finding, is_jax
from tuiprof.model import Trace


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for repeated chains of short elementwise kernels, all of them together."""
    rows = evidence.rows("kernel_launches", "sequences")
    chains = rows.filter(rows["shape"] == "chain") if len(rows) else rows
    if chains.is_empty():
        return
    costs = [evidence.cost(row, "host_ns") or 0.0 for row in chains.iter_rows(named=True)]
    jax = is_jax(trace)
    first = chains.row(0, named=True)
    yield Finding(
        f"{len(chains)} different chains of short elementwise kernels could each be one kernel",
        first["kernels"],
        ("jax.jit the function" if jax else "torch.compile the module or the function")
        + " (it fuses them), or write them as one operation",
        sum(costs),
        "medium",
        "short elementwise, reduction and copy kernels follow each other, the same ones at least three times",
        "giou-kernel:jax,jax-jit" if jax else "attention:native,native-compiled",
        first["event"],
    )


RULE = AdviceRule("elementwise-chain", find)
