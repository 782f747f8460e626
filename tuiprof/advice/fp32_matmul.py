"""Matrix products run in full fp32."""

from __future__ import annotations

from collections.abc import Iterator

from tuiprof.advice import AdviceRule, Evidence, Finding, is_jax
from tuiprof.model import Trace

#: From this share of the device's work on.
LEAST_SHARE = 0.1


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for fp32 matrix products that tensor cores do not take part in."""
    rows = evidence.rows("kernels", "kernels")
    if rows.is_empty() or "tensor_cores" not in rows.columns:
        return
    slow = rows.filter((rows["tensor_cores"] == "no") & rows["kind"].is_in(["gemm", "convolution"]))
    if slow.is_empty() or float(slow["share"].sum()) < LEAST_SHARE:
        return
    per_step = slow["per_step_ns"].sum() if slow["per_step_ns"].null_count() == 0 else None
    yield Finding(
        f"{float(slow['share'].sum()):.0%} of the device's work is fp32 matrix products without tensor cores",
        str(slow["short"][0]),
        'jax.config.update("jax_default_matmul_precision", "tensorfloat32") (NVIDIA from Ampere on), or bfloat16'
        if is_jax(trace)
        else 'torch.set_float32_matmul_precision("high") for TF32 (NVIDIA from Ampere on), or bf16 autocast',
        float(per_step if per_step is not None else slow["total_ns"].sum()) / 2,
        "medium",
        "by the kernels' names; the cost assumes that they become twice as fast",
        "cpu-training:baseline,bf16",
        int(slow["event"][0]),
    )


RULE = AdviceRule("fp32-matmul", find)
