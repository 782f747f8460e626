"""Collectives run while no computation does."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.collectives import peer_waits
from tuiprof.analyses.shared.kernel_names import short_name
from tuiprof.model import Trace
from tuiprof.model.intervals import Coverage, Floats, Ints, union
from tuiprof.whatif import Edit

_COLLECTIVE = r"(?i)nccl|rccl|hccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"
#: Share of the exposed time that can be hidden: the first bucket cannot start before the backward pass, and the
#: last cannot end with it.
_HIDDEN, _LEAST, _MOST = 0.7, 0.0, 1.0
_TORCH = "overlap it: larger DDP buckets, FSDP prefetch, gradient accumulation with no_sync()"
_JAX = (
    "overlap it: XLA's latency-hiding scheduler (on GPUs "
    "XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true), or gradient accumulation over several "
    "batches"
)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for communication that no computation hides, device by device."""
    collective = trace.named(_COLLECTIVE) | trace.is_category("collective")
    waits = peer_waits(trace)
    rows: list[Ints] = []
    exposed: list[Floats] = []
    for device in trace.device_indices:
        work = trace.work_of(device)
        mine, others = work[collective[work]], work[~collective[work]]
        # The transfer begins when the last rank has arrived.
        begins, ends = trace.starts[mine] + waits.of(mine), trace.ends[mine]
        hidden = Coverage(*union(trace.starts[others], trace.ends[others])).between(begins, ends)
        rows.append(mine)
        exposed.append(1 - hidden / np.maximum(ends - begins, 1))
    every = np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)
    if not len(every):
        return
    shares = np.concatenate(exposed)
    likely, least, most = (Edit(work=every, keep=1 - part * shares) for part in (_HIDDEN, _LEAST, _MOST))
    longest = int(every[np.argmax((trace.lengths(every) - waits.of(every)) * shares)])
    yield Finding(
        "communication runs while the device computes nothing",
        evidence.function_of(longest) or short_name(trace.name(longest)),
        _JAX if evidence.is_jax else _TORCH,
        "medium",
        "time in collectives that no other work overlaps, without waits for other ranks",
        likely,
        least,
        most,
        event=longest,
    )


RULE = AdviceRule("exposed-collectives", find)
