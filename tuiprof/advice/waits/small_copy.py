"""A Python number is copied to the device in every step."""

from __future__ import annotations

from collections.abc import Iterator

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.waits import PAGEABLE_TO_DEVICE, TO_DEVICE
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.model.units import format_bytes

#: A copy of at most this many bytes is a scalar or a few scalars.
SMALL_BYTES = 64
#: Copies are of one size if the largest is at most this many times the smallest.
_ALIKE = 1.1


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for blocking copies of a few bytes to the device."""
    calls = evidence.calls
    for row in evidence.waits(TO_DEVICE, PAGEABLE_TO_DEVICE):
        size = (row.bytes or 0) / max(row.count, 1)
        if not 0 < size <= SMALL_BYTES:
            continue
        metric = "torchmetrics/" in f"{row.where} {row.stack}"
        chosen = calls.mask(calls.inside(evidence.calls_of(row)))
        yield Finding(
            f"{sizes(trace, evidence.work_in(evidence.operators_of(row))[0], size)} are copied to the device "
            f"{evidence.rhythm(row)}, and the host waits",
            evidence.location(row),
            "pass a tensor already on the device (for example weight=torch.ones_like(loss)), or create "
            "it there: torch.full((), x, device=…) needs no copy; pack many numbers into one tensor",
            "high" if row.at_line else "medium",
            "a scalar-sized copy from pageable memory",
            calls.edit(chosen) if chosen.any() else evidence.without_reading(row),
            proof="metrics:naive,explicit-weight"
            if metric
            else "metrics:step-time-on-device-float,step-time-on-device-tensor",
            event=row.event,
        )


def sizes(trace: Trace, copies: Ints, mean: float) -> str:
    """Return the size of copies for a sentence: ``1.00 MiB``, or ``up to 18.4 MiB`` for a batch and its labels."""
    found = trace.ints("bytes", copies)
    found = found[found > 0]
    if len(found) and found.max() > _ALIKE * found.min():
        return f"up to {_in_bytes(int(found.max()))}"
    return _in_bytes(mean)


def _in_bytes(size: float) -> str:
    return f"{size:.0f} bytes" if size <= SMALL_BYTES else format_bytes(size)


RULE = AdviceRule("small-copy", find, needs=("sync_events",))
