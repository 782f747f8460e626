"""The script itself waits for the device in every step."""

from __future__ import annotations

from collections.abc import Iterator

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.waits import AWAIT
from tuiprof.analyses.sync_events import WaitLocation
from tuiprof.model import Trace

#: Waits for a point in the device's work that transfer no data to the host.
_KINDS = {
    "device sync": "torch.cuda.synchronize()",
    "stream sync": "a stream's synchronize()",
    "event sync": "an event's synchronize()",
    AWAIT: "block_until_ready()",
}


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for waits requested by the script, not by an operator."""
    with_operators = bool(trace.named("^aten::").any())
    for row in evidence.waits(*_KINDS):
        if not _asked_for(row, with_operators):
            continue
        at_line = row.at_line or row.kind == AWAIT
        yield Finding(
            f"{_KINDS[row.kind] if at_line else row.calls} blocks the host {evidence.rhythm(row)}",
            evidence.location(row),
            "remove it: device work stays in order without it. To time steps, synchronise once after "
            "many, or use device events",
            "high" if row.at_line else "medium",
            f"{'the line asks for the wait itself' if at_line else 'no operator makes the call'}, "
            "and no value comes of it",
            evidence.without_waiting(row),
            event=row.event,
        )


def _asked_for(row: WaitLocation, with_operators: bool) -> bool:
    """Return whether the script itself makes the call, not an operator, nor for XLA waits another call."""
    if row.kind == AWAIT:
        return "block_until_ready" in row.calls
    # Outside operators, PyTorch waits for streams and events, but never for a whole device.
    return not row.through and (row.at_line or (row.kind == "device sync" and with_operators))


RULE = AdviceRule("explicit-wait", find, needs=("sync_events",))
