"""The host waits for a size that is computed on the device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.waits import SIZE_KINDS
from tuiprof.analyses.sync_events import WaitLocation
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.whatif import EditRange

#: Share of the device work of indexing and its backward that remains with fixed shapes, a pass over the same elements:
#: likely, least and most helpful. And the share of the host time.
_KEEP = (0.2, 0.6, 0.05)
_KEEP_HOST = 0.3


def find(_trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for nonzero, boolean masks, unique and repeat_interleave in the step, each with its backward."""
    calls = evidence.calls
    places: dict[frozenset[str], list[tuple[WaitLocation, Ints]]] = {}
    for row in evidence.waits(*SIZE_KINDS):
        inside = calls.inside(evidence.calls_of(row))
        inside = inside[inside >= 0]
        # A wait in the backward pass is attributed to the forward call.
        made_by = np.where(calls.forward[inside] >= 0, calls.forward[inside], inside)
        place = frozenset(calls.names[index] for index in made_by) or frozenset({row.through})
        places.setdefault(place, []).append((row, made_by))
    for found in places.values():
        row = found[0][0]
        chosen = calls.mask(*(made_by for _, made_by in found))
        whole = calls.with_backward(chosen)
        edits = (
            EditRange(*(calls.edit(whole, _KEEP_HOST, part) for part in _KEEP))
            if chosen.any()
            else EditRange.exactly(evidence.without_reading(row))
        )
        yield Finding(
            f"the host waits to learn the size of a result ({row.through}), {evidence.rhythm(row)}",
            evidence.location(row),
            "keep shapes fixed: torch.where or x * mask instead of x[mask], padding instead of unique, "
            "repeat_interleave(…, output_size=n)",
            "high" if row.at_line else "medium",
            "only the device knows how large the result is; its gradient is scattered back",
            *edits,
            event=row.event,
        )


RULE = AdviceRule("size-from-device", find, needs=("sync_events",))
