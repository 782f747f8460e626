"""Collectives run while no computation does."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.collectives import peer_waits
from tuiprof.analyses.shared.kernel_names import short_name
from tuiprof.model import Trace
from tuiprof.model.intervals import Coverage, Floats, Ints
from tuiprof.whatif import Edit, EditRange

_COLLECTIVE = r"(?i)nccl|rccl|hccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"
#: Share of the exposed time that can be hidden: the first bucket cannot start before the backward pass, and the
#: last cannot end with it. Likely, least and most.
_HIDDEN = (0.7, 0.0, 1.0)
_NO_SYNC = "gradient accumulation with no_sync()"
#: What runs in the forward pass is between layers, not about gradients.
_BETWEEN_LAYERS = (
    "tensor parallelism: overlap it with the products (async tensor parallelism), sequence parallelism, or fewer ranks "
    "for each layer"
)
_EXCHANGE = (
    "overlap it with work that does not need it: the exchange of the next batch or micro-batch during the computation "
    "of this one, on a stream of its own"
)
_REDUCES, _EXCHANGES = r"(?i)all_?reduce|reduce_?scatter", r"(?i)send_?recv|all_?to_?all"
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
        starts, ends = trace.starts[mine] + waits.of(mine), trace.ends[mine]
        hidden = Coverage(*trace.union(others)).between(starts, ends)
        rows.append(mine)
        exposed.append(1 - hidden / np.maximum(ends - starts, 1))
    every = np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)
    if not len(every):
        return
    shares = np.concatenate(exposed)
    edits = EditRange(*(Edit.of_work(every, 1 - part * shares) for part in _HIDDEN))
    exposed_ns = (trace.lengths(every) - waits.of(every)) * shares
    longest = int(every[np.argmax(exposed_ns)])
    yield Finding(
        "communication runs while the device computes nothing",
        evidence.function_of(longest) or short_name(trace.name(longest)),
        _JAX if evidence.is_jax else _instead(evidence, every, exposed_ns),
        "medium",
        "time in collectives that no other work overlaps, without waits for other ranks",
        *edits,
        event=longest,
    )


def _instead(evidence: Evidence, rows: Ints, exposed_ns: Floats) -> str:
    """Return what overlaps most of the exposed collectives."""
    trace, calls = evidence.trace, evidence.calls
    call = calls.call_of_work[np.searchsorted(trace.device_work, rows)]
    forward = (call >= 0) & ~np.append(calls.backward, False)[call]
    between_layers = forward & trace.named(_REDUCES, rows)
    for some, instead in ((between_layers, _BETWEEN_LAYERS), (trace.named(_EXCHANGES, rows), _EXCHANGE)):
        if exposed_ns[some].sum() > exposed_ns.sum() / 2:
            return instead
    return f"overlap it: larger DDP buckets, FSDP prefetch, {evidence.write('accumulation', _NO_SYNC)}"


RULE = AdviceRule("exposed-collectives", find)
