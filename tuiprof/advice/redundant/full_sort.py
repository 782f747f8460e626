"""A whole tensor is sorted, and only its first elements are used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.products.shapes import Shape, arguments_of, shape_of, shapes_in
from tuiprof.analyses.shared.arguments import Arguments
from tuiprof.analyses.shared.calls import Calls
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.model.units import format_count
from tuiprof.whatif import Edit, EditRange

_SORTS: Final = r"^aten::(sort|argsort|msort)$"
_PARTS: Final = ("aten::slice", "aten::narrow", "aten::select")
_VIEWS: Final = (
    *("aten::unsqueeze", "aten::squeeze", "aten::transpose", "aten::t", "aten::view", "aten::reshape"),
    *("aten::flatten", "aten::detach", "aten::alias"),
)
#: What may read the rest of the result later: an index by it, or sorting it, which inverts a permutation.
_READS_ORDER: Final = (
    *("aten::index", "aten::index_select", "aten::gather", "aten::take_along_dim", "aten::scatter"),
    *("aten::scatter_", "aten::index_put_", "aten::sort", "aten::argsort", "aten::cumsum"),
)
#: Number of calls after the parts that are looked at.
_NEXT: Final = 8
#: An operator that reads most of what was sorted takes a larger share of the time of the sort: a mean takes a 28th to a
#: 60th on a device, and a 500th to a 2000th on a CPU, where an index takes a 32nd to a 47th (10 000 to 1 000 000
#: elements) and converting all to a list a half to a sixth.
_READS_LITTLE: Final = 1 / 150
_READS_LITTLE_ON_CPU: Final = 1 / 1500
_INDEXES: Final = ("aten::index", "aten::index_select")
_INDEXES_LITTLE: Final = 1 / 50
_TO_PYTHON: Final = ("aten::resolve_conj", "aten::resolve_neg")
_LISTS_LITTLE: Final = 1 / 12
#: In shorter sorts, the shortest operators take such a share; on a CPU, all but indexes and lists.
_MIN_NS: Final = 500_000
_MIN_HOST_NS: Final = 1_500_000
_MIN_HOST_NS_OF_OTHERS: Final = 30_000_000
#: Kernels that sort rows of up to 4096 elements, which topk does not select from faster. It does so from integers of 64
#: bits, if it reads half as much because 32 are enough.
_SHORT_ROWS: Final = "KVInPlace"
_OF_LONG: Final = r"radixSortKVInPlace<(-?\d+, )+long,"
#: Time of topk as a share of the kernels that sort: it reads the data once for each 8 bits of a value, and once more;
#: a sort of segments reads keys and indices twice for each 6 bits and writes them once, others once for each 8 bits.
#: Likely, least, most; docs/results/predictions.md has the measurements.
_KERNELS: Final = "[sS]ort"
_SEGMENTED: Final = "DeviceSegmentedRadixSort"
_OF_SEGMENTED: Final = (0.24, 0.5, 0.12)
_OF_SHORT: Final = (0.45, 0.9, 0.2)
_OF_OTHERS: Final = (0.5, 0.9, 0.25)
_ON_CPU: Final = (0.05, 0.5, 0.01)
#: What overwrites the rest of a result, and free calls before it.
_FILLS: Final = ("aten::fill_", "aten::zero_")
_FREE: Final = ("aten::lift_fresh", "aten::detach_", "aten::empty", "aten::to")
#: What takes one value of each row, after which the sorted ones are not needed; and what puts them back in place.
_CHOOSES: Final = (
    *("aten::argmax", "aten::argmin", "aten::max", "aten::min", "aten::multinomial", "aten::gather"),
    *("aten::take_along_dim", "aten::topk"),
)
_PUTS_BACK: Final = ("aten::scatter", "aten::scatter_", "aten::index_put_", "aten::sort", "aten::argsort")
#: Maximum share of a row that is kept, and calls after the fill that are looked at.
_MAX_PART: Final = 0.1
_WHOLE: Final = re.compile(r"-?[0-9]{1,9}")
_FOLLOW: Final = 64
#: No kernel is shorter, and no call on a CPU, ns: likely, least and most helpful.
_SHORTEST_NS: Final = (2_500.0, 4_000.0, 1_500.0)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for sorts whose result is only sliced, and for what reads the slices.

    With shapes, also for those of which all but the first values are overwritten, and for what follows on whole rows.
    """
    calls = evidence.calls
    sorts = np.flatnonzero(trace.named(_SORTS, calls.rows))
    works = calls.work_count[sorts] > 0
    time = np.where(works, calls.work_ns[sorts], trace.lengths(calls.rows[sorts]))
    long = time >= np.where(works, _MIN_NS, _MIN_HOST_NS)
    of_long = trace.named(_OF_LONG, trace.device_work)
    short_rows = calls.call_of_work[trace.named(_SHORT_ROWS, trace.device_work) & ~of_long]
    integers = set(calls.call_of_work[of_long].tolist())
    inspected = [
        (index, ns)
        for index, ns in zip(sorts[long].tolist(), time[long].tolist(), strict=True)
        if index not in short_rows
    ]
    cuts = [cut for index, _ in inspected if (cut := _cut(calls, index))]
    yield from _of_cuts(evidence, cuts)
    cut_ones = {cut.sort for cut in cuts}
    chosen = [index for index, ns in inspected if index not in cut_ones and _uses_part(calls, index, ns)]
    at: dict[str, list[int]] = {}
    for index, where in zip(chosen, evidence.functions_of(calls.rows[chosen]), strict=True):
        at.setdefault(where, []).append(index)
    for where, indices in at.items():
        yield Finding(
            "a whole tensor is sorted, and only a small part of the result is used, "
            f"{evidence.how_often(len(indices))}",
            where,
            ("torch.topk(x.int(), k) if 32 bits are enough" if indices[0] in integers else "torch.topk(x, k)")
            + ", with largest=False for the smallest; for one element max(), min() or kthvalue()",
            "medium",
            f"{calls.names[indices[0]].removeprefix('aten::')} is followed by a slice of its result, and by operators "
            "that are too short to read all of it",
            *_without_sort(calls, np.array(indices)),
            event=int(calls.rows[indices[0]]),
        )


def _uses_part(calls: Calls, index: int, ns: int) -> bool:
    """Return whether the calls after a sort take a part of its result, and none of them may read all of it."""
    on_device = calls.work_count[index] > 0
    mine = calls.after(index, len(_PARTS) + 2 * _NEXT)
    mine = mine[calls.steps[mine] == calls.steps[index]]
    names, skipped = calls.names_of(mine), _PARTS + _VIEWS + (() if on_device else _TO_PYTHON)
    views = next((i for i, name in enumerate(names) if name not in skipped), len(names))
    if not any(name in _PARTS for name in names[:views]):
        return False
    rest, lists = mine[views : views + _NEXT], mine[:views][np.isin(names[:views], _TO_PYTHON)]
    time = calls.work_ns[rest] if on_device else calls.trace.lengths(calls.rows[rest])
    first = next((i for i, ns in enumerate(time.tolist()) if ns), -1) if not len(lists) else -1
    names = calls.names_of(rest)
    reads = np.array([i == first or name in _READS_ORDER for i, name in enumerate(names)], bool)
    if on_device:
        return bool((time[reads] <= ns * _READS_LITTLE).all())
    if ns < _MIN_HOST_NS_OF_OTHERS and not len(lists) and (first < 0 or names[first] not in _INDEXES):
        return False
    limits = ns * np.where(np.isin(names, _INDEXES), _INDEXES_LITTLE, _READS_LITTLE_ON_CPU)
    return bool((time[reads] <= limits[reads]).all()) and _lists_little(calls, lists, ns)


def _lists_little(calls: Calls, lists: Ints, ns: int) -> bool:
    """Return whether Python takes little time for what some calls have prepared for it."""
    trace = calls.trace
    for index in lists.tolist():
        following = calls.after(index, _NEXT)
        until = int(trace.starts[calls.rows[following[0]]]) if len(following) else trace.span[1]
        if until - int(trace.ends[calls.rows[index]]) > ns * _LISTS_LITTLE:
            return False
    return True


def _without_sort(calls: Calls, sorts: Ints) -> EditRange:
    """Return the edit in which topk replaces some sorts."""
    trace, which = calls.trace, calls.mask(sorts)
    work = trace.device_work[calls.launched_by(which)]
    kinds = [trace.named(pattern, work) for pattern in (_SEGMENTED, _SHORT_ROWS, _KERNELS)]
    ns = trace.lengths(work)
    edits = []
    for *shares, on_cpu in zip(_OF_SEGMENTED, _OF_SHORT, _OF_OTHERS, _ON_CPU, strict=True):
        left = (ns * np.select(kinds, shares)).sum() / max(ns.sum(), 1)
        edits.append(calls.edit(which, np.where(calls.work_count > 0, 1.0, on_cpu), left))
    return EditRange(*edits)


# -- a sort of which the rest is overwritten ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Cut:
    """A sort of rows of which all but the first values are overwritten; calls as indices."""

    sort: int
    first: int  # values of a row that are kept
    row: int  # values of a row
    follow: tuple[int, ...]  # the fill, and what is computed of whole rows after it


def _of_cuts(evidence: Evidence, cuts: list[_Cut]) -> Iterator[Finding]:
    """Yield a finding for each function that cuts what it has sorted."""
    calls = evidence.calls
    at: dict[str, list[_Cut]] = {}
    for cut, where in zip(cuts, evidence.functions_of(calls.rows[[cut.sort for cut in cuts]]), strict=True):
        at.setdefault(where, []).append(cut)
    for where, of_one in at.items():
        one = of_one[0]
        event = int(calls.rows[one.sort])
        without = _without_sort(calls, np.array([cut.sort for cut in of_one]))
        first = EditRange(*(_on_first(calls, of_one, shortest_ns) for shortest_ns in _SHORTEST_NS))
        busy = np.count_nonzero(calls.took_ns[list(one.follow[1:])])
        yield Finding(
            f"rows of {format_count(one.row)} values are sorted, and all but the first {format_count(one.first)} are "
            f"overwritten, {evidence.how_often(len(of_one))}",
            where,
            f"torch.topk(x, {one.first}), with largest=False for the smallest, and all that follows on its values, "
            "instead of on whole rows",
            "high",
            f"{calls.names[one.sort].removeprefix('aten::')} is followed by a fill of all but the first values, and by "
            f"{busy} operators on whole rows, by their shapes",
            *(without | first),
            event=event,
        )


def _cut(calls: Calls, index: int) -> _Cut | None:
    """Return how a sort of rows is cut; None = it is not."""
    sort = arguments_of(calls, np.array([index])).get(index)
    rows = shape_of(sort.dims[0]) if sort is not None else ()
    if sort is None or not rows or _dim(sort) % len(rows) != len(rows) - 1:
        return None
    after = calls.after(index, _NEXT)
    first = 0
    for call, given in arguments_of(calls, after[calls.steps[after] == calls.steps[index]]).items():
        name = calls.names[call]
        if name in _FILLS and first and shape_of(given.dims[0]) == (*rows[:-1], rows[-1] - first):
            return _Cut(index, first, rows[-1], (call, *_on_rows(calls, call, rows)))
        if name == "aten::slice" and shape_of(given.dims[0]) == rows:
            first = _first(given, rows)
        elif name not in _PARTS + _VIEWS + _FREE or (calls.work_count[call] and name != "aten::slice"):
            return None
    return None


def _dim(sort: Arguments) -> int:
    """Return the dimension along which is sorted."""
    return next((int(value) for value in sort.values[1:] if _WHOLE.fullmatch(value)), -1)


def _first(given: Arguments, rows: Shape) -> int:
    """Return how many values of each row come before a slice to its end; 0 = it is none, or they are many."""
    try:
        dim, first, end, step = (int(value) for value in given.values[1:5])
    except (TypeError, ValueError):
        return 0
    last = dim % len(rows) == len(rows) - 1 and end >= rows[-1] and step == 1
    return first if last and 0 < first <= _MAX_PART * rows[-1] else 0


def _on_rows(calls: Calls, fill: int, rows: Shape) -> Iterator[int]:
    """Yield the calls after a fill that compute something of whole rows, until one value of each is taken."""
    after, size = calls.after(fill, _FOLLOW), prod(rows)
    for call, given in arguments_of(calls, after[calls.steps[after] == calls.steps[fill]]).items():
        name, sizes = calls.names[call], [prod(shape) for shape in shapes_in(given.dims)]
        if name in _PUTS_BACK or calls.backward[call]:
            return
        if size in sizes:
            yield call
            if name in _CHOOSES:
                return
        elif max(sizes, default=0) > size // rows[-1]:  # not even one value of each row
            return


def _on_first(calls: Calls, cuts: list[_Cut], shortest_ns: float) -> Edit:
    """Return the edit in which what follows is computed of the first values of each row."""
    keep = np.ones(len(calls.rows))
    for cut in cuts:
        mine = calls.with_backward(calls.mask(list(cut.follow)))
        least = np.maximum(calls.work_count[mine], 1) * shortest_ns / np.maximum(calls.took_ns[mine], 1)
        keep[mine] = np.clip(least, cut.first / cut.row, 1.0)
    return calls.shortened(keep)


RULE = AdviceRule("full-sort", find)
