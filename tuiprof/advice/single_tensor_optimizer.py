"""The optimizer updates one parameter at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tuiprof.advice import AdviceRule, Evidence, Finding
from tuiprof.model import Trace

#: From so many launches in one optimizer step on.
LEAST_LAUNCHES = 50


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for optimizer steps of many launches, none of them a multi-tensor kernel."""
    steps = np.flatnonzero(trace.named(r"^Optimizer\.step#") & trace.on_host)
    if not len(steps):
        return
    launches, starts = trace.links.launches, trace.starts[trace.links.launches]
    low, high = np.searchsorted(starts, trace.starts[steps]), np.searchsorted(starts, trace.ends[steps])
    inside = np.concatenate([launches[a:b] for a, b in zip(low, high, strict=True)])
    if len(inside) < LEAST_LAUNCHES * len(steps):
        return
    work = trace.device_work[np.isin(trace.links.launch_of[trace.device_work], inside)]
    if (trace.named("multi_tensor_apply|fused|Fused")[work]).any():
        return
    lengths = (trace.ends - trace.starts)[steps]
    yield Finding(
        f"the optimizer launches {len(inside) / len(steps):.0f} kernels a step, one parameter at a time",
        trace.name(int(steps[0])),
        "fused=True (or foreach=True) when making the optimizer",
        float(np.median(lengths)) if evidence.step_ns else float(lengths.sum()),
        "high",
        "no multi-tensor kernel among what Optimizer.step launches",
        "",
        int(steps[0]),
    )


RULE = AdviceRule("single-tensor-optimizer", find)
