"""The device waits for launches."""

from __future__ import annotations

from collections.abc import Iterator

from tuiprof.advice import AdviceRule, Evidence, Finding, is_jax
from tuiprof.model import Trace


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for a launch-bound step."""
    report = evidence.report("kernel_launches")
    if report is None or not report.verdict.sentence.startswith("launch-bound"):
        return
    jax = is_jax(trace)
    rows = report.table("by_operator").rows
    yield Finding(
        "the device waits for the host to launch work",
        f"most before {rows['operator'][0]}",
        "larger batches, one jax.jit around the whole step, jax.lax.scan over several steps"
        if jax
        else 'larger batches, torch.compile(mode="reduce-overhead") or CUDA graphs, fewer and larger kernels',
        evidence.cost({fact.key: fact.value for fact in report.facts}, "launch_bound_ns"),
        "medium" if report.notes else "high",
        "device idle while the host runs operators and Python on its way to the next launch",
        "giou-kernel:jax,jax-jit" if jax else "attention:native,native-compiled",
        int(rows["event"][0]),
    )


RULE = AdviceRule("launch-bound", find)
