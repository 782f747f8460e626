"""The host waits for a size that is computed on the device."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.frames import operator_label
from tuiprof.analyses.shared.waits import READ_KINDS, SIZE_KINDS
from tuiprof.analyses.sync_events import WaitLocation
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.whatif import EditRange

#: Share of the device work of indexing and its backward that remains with fixed shapes, a pass over the same elements:
#: likely, least and most helpful. And the share of the host time.
_KEEP = (0.2, 0.6, 0.05)
_KEEP_HOST = 0.3
#: What finds the places of values. In a loop over experts or classes, the calls that take or add rows at these places
#: come with it, each of an iteration.
_FINDS = r"^aten::(where|nonzero|argwhere)$"
_AT_PLACES = (
    r"^aten::(index|index_select|gather|index_put_?|index_add_?|index_copy_?|scatter_?|scatter_add_?)$"
)
#: Times a step at least that it does so, and calls of an iteration at most.
_MANY, _MAX_CALLS = 8, 60
#: Share of their host time that remains if one call for all iterations takes or adds the rows, whose slices are views.
_KEEP_OF_LOOP = (0.1, 0.4, 0.03)
_FIX_ONE = (
    "keep shapes fixed: torch.where or x * mask instead of x[mask], padding instead of unique, "
    "repeat_interleave(…, output_size=n)"
)
_FIX_LOOP = (
    "before the loop, sort once (order = chosen.argsort()), read all sizes at once "
    "(sizes = chosen.bincount(minlength=n).tolist()), and take x[order].split(sizes); after it, add all rows at once "
    "(torch.cat, one index_add_)"
)
#: Operators that compute a size from a tensor, and operators that make a tensor of a given size.
_SIZES = r"^aten::(max|amax|sum|count_nonzero)$"
_MAKES = r"^aten::((new_)?(zeros|ones|full|empty)|arange)$"
#: Bytes of a size, which is an int64.
_SIZE_BYTES = 8
#: Minimum share of the reads at a location that are sizes.
_MOST = 0.9


def find(_trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for nonzero, boolean masks, unique and repeat_interleave in the step, each with its backward."""
    calls = evidence.calls
    places: dict[frozenset[str], list[tuple[bool, WaitLocation, Ints]]] = {}
    for row in evidence.waits(*SIZE_KINDS):
        inside = calls.inside(evidence.calls_of(row))
        inside = inside[inside >= 0]
        # A wait in the backward pass is attributed to the forward call.
        backward = calls.forward[inside] >= 0
        made_by = np.where(backward, calls.forward[inside], inside)
        place = frozenset(calls.names[index] for index in made_by) or frozenset({row.through})
        places.setdefault(place, []).append((bool(backward.any()), row, made_by))
    for found in places.values():
        # The line to change is the one of the forward call, even if its backward pass waits for longer.
        row = min(found, key=lambda place: place[0])[1]
        chosen = calls.mask(*(made_by for _, _, made_by in found))
        whole = calls.with_backward(chosen)
        at_places = _at_places(evidence, np.flatnonzero(chosen))
        if len(at_places):
            whole = calls.with_backward(chosen | calls.mask(at_places))
            edits = EditRange.over(partial(calls.edit, whole), _KEEP_OF_LOOP, _KEEP)
        elif chosen.any():
            edits = EditRange.over(partial(calls.edit, whole, _KEEP_HOST), _KEEP)
        else:
            edits = EditRange.exactly(evidence.without_reading(row))
        yield Finding(
            f"the host waits to learn the size of a result ({row.through}), "
            f"{evidence.rhythm(*(row for _, row, _ in found))}",
            evidence.location(row),
            _FIX_LOOP if len(at_places) else _FIX_ONE,
            "high" if row.at_line else "medium",
            "only the device knows how large the result is; its gradient is scattered back",
            *edits,
            event=row.event,
        )
    for row in evidence.waits(*READ_KINDS):
        computed = sizes_read(evidence, row)
        if not len(computed):
            continue
        name = operator_label(calls.names[computed[0]])
        yield Finding(
            f"sizes are computed on the device and read ({name}, then .item()), {evidence.rhythm(row)}",
            evidence.location(row),
            "give the size, which the host usually knows: dim_size=, num_classes=, the length of the batch",
            "high" if row.at_line else "medium",
            "a tensor is made right after the value was read, and no gradient goes through it",
            calls.edit(calls.mask(computed, calls.inside(evidence.calls_of(row)))),
            event=row.event,
        )


def _at_places(evidence: Evidence, finding: Ints) -> Ints:
    """Return the calls of a loop that take or add rows at the places which each iteration finds; none if it is none."""
    calls, trace = evidence.calls, evidence.trace
    if len(finding) < _MANY * evidence.step_count or not trace.named(_FINDS, calls.rows[finding]).all():
        return finding[:0]
    at = np.flatnonzero(trace.named(_AT_PLACES, calls.rows) & ~calls.backward)
    before = np.searchsorted(finding, at) - 1
    found = finding[np.maximum(before, 0)]
    same = (before >= 0) & (at - found <= _MAX_CALLS)
    same &= (calls.tracks[at] == calls.tracks[found]) & (calls.steps[at] == calls.steps[found])
    return at[same]


def sizes_read(evidence: Evidence, row: WaitLocation) -> Ints:
    """Return the calls that compute what is read at a location to make tensors of that size; none if it is not."""
    calls, trace = evidence.calls, evidence.trace
    reads = calls.inside(evidence.calls_of(row))
    reads = np.unique(reads[reads >= 0])
    if row.kind != "item" or (row.bytes or 0) not in (0, _SIZE_BYTES * row.count):
        return reads[:0]
    found = []
    for track in np.unique(calls.tracks[reads]):
        mine = np.flatnonzero(calls.tracks == track)
        at = np.searchsorted(mine, reads[calls.tracks[reads] == track])
        at = at[(at > 0) & (at + 1 < len(mine))]
        before, after = mine[at - 1], mine[at + 1]
        sizes = trace.named(_SIZES, calls.rows[before]) & ~calls.differentiated[before]
        makes = trace.named(_MAKES, calls.rows[after]) & (calls.steps[after] == calls.steps[before])
        found.append(before[sizes & makes])
    computed = np.concatenate(found) if found else reads
    return computed if len(computed) >= _MOST * len(reads) else computed[:0]


RULE = AdviceRule("size-from-device", find, needs=("sync_events",))
