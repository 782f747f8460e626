"""Batches are copied from memory that is not pinned."""

from __future__ import annotations

from collections.abc import Iterator

from tuiprof.advice import AdviceRule, Evidence, Finding, is_jax
from tuiprof.analyses._wait_kinds import COPY_KINDS
from tuiprof.model import Trace
from tuiprof.model.units import format_bytes

SMALL_BYTES = 64
#: To the device, and from it.
_TORCH = (
    "DataLoader(pin_memory=True) and .to(device, non_blocking=True)",
    "copy into a pinned tensor with non_blocking=True and read it after an event, a step later",
)
_JAX = (
    "jax.device_put the next batch while a step runs, or keep the array on the device",
    "start the copy with .copy_to_host_async() and read it a step later",
)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for blocking copies of more than a few bytes between device and pageable memory."""
    for row in evidence.rows("sync_events", "groups").iter_rows(named=True):
        if row["kind"] not in COPY_KINDS or not evidence.often(row) or not row["count"]:
            continue
        size = (row["bytes"] or 0) / row["count"]
        if size <= SMALL_BYTES:
            continue
        to_device = row["kind"].endswith("to device")
        yield Finding(
            f"{format_bytes(size)} {'are copied to' if to_device else 'come from'} the device {evidence.rhythm(row)}, "
            f"{'from' if to_device else 'into'} pageable memory",
            evidence.place(row),
            (_JAX if is_jax(trace) else _TORCH)[0 if to_device else 1],
            evidence.cost(row, "waited_ns"),
            "high",
            "the profiler names the memory pageable, and the call held the host",
            "",
            row["event"],
        )


RULE = AdviceRule("pageable-memory", find)
