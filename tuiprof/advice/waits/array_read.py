"""An array is read from the device in every step: XLA's reads, and PyTorch's copies of a value or two."""

from __future__ import annotations

from collections.abc import Iterator

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.waits.small_copy import SMALL_BYTES
from tuiprof.analyses.shared.waits import PAGEABLE_TO_HOST, READ, TO_HOST
from tuiprof.model import Trace

#: Finding and fix, by the framework of the trace.
_JAX = (
    "float(), .item(), np.asarray or jax.device_get",
    "start the copy with .copy_to_host_async() and read it a step later",
)
_XLA = (".item(), .cpu() or print", "read it a step later, once it is computed")
_TORCH = (
    ".cpu(), .numpy() or .tolist()",
    "copy it with non_blocking=True to pinned memory and read it a step later",
)


def find(_trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for array reads; PyTorch copies of more than a few bytes have their own rule."""
    for row in evidence.waits(READ, TO_HOST, PAGEABLE_TO_HOST):
        if row.kind != READ and (not row.count or (row.bytes or 0) / row.count > SMALL_BYTES):
            continue
        how, later = (_JAX if evidence.is_jax else _XLA) if row.kind == READ else _TORCH
        yield Finding(
            f"{how} copies an array to the host {evidence.rhythm(row)}",
            evidence.location(row),
            f"keep it on the device and read it every N steps, or {later}",
            "high" if row.at_line else "medium",
            f"{row.through or row.kind} waits until it is computed",
            evidence.without_reading(row),
            event=row.event,
        )


RULE = AdviceRule("array-read", find, needs=("sync_events",))
