"""DistributedDataParallel sends the buffers of rank 0, such as running statistics, before each forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.collectives import BROADCAST, buffer_broadcasts
from tuiprof.model import Trace

_OFF: Final = "DistributedDataParallel(model, broadcast_buffers=False)"


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for broadcasts at the start of DDP's forward passes, with the copies into the buffers after them."""
    calls = evidence.calls
    chosen = buffer_broadcasts(calls)
    if not chosen.any():
        return
    copies = int((chosen & trace.named(r"^aten::copy_$", calls.rows)).sum())
    first = int(calls.rows[np.flatnonzero(chosen & trace.named(BROADCAST, calls.rows))[0]])
    yield Finding(
        "DistributedDataParallel sends the model's buffers before each forward pass"
        + (f", and copies {copies / evidence.step_count:.0f} of them a step" if copies else ""),
        evidence.function_of(first),
        f"{evidence.write('broadcast-buffers', _OFF)}: each rank then keeps its own running statistics, and those of "
        "rank 0 are saved",
        "medium",
        "a broadcast opens the forward pass, before any layer",
        calls.edit(chosen),
        event=first,
    )


RULE = AdviceRule("broadcast-buffers", find)
