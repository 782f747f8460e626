"""Calls that append with `torch.cat` to tensors of earlier steps, and copy all of these: keys and values."""

from __future__ import annotations

from typing import Final

import numpy as np

from tuiprof.analyses.shared.arguments import arguments
from tuiprof.analyses.shared.calls import Calls
from tuiprof.analyses.shared.calls import calls as calls_of
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.model.trace import cached_on_trace

_APPENDS: Final = r"^aten::(cat|concat|concatenate)$"
#: What reads keys and values, within so many calls after them.
_ATTENTION: Final = r"^aten::(scaled_dot_product_attention|_?\w*attention\w*|matmul|bmm|baddbmm|einsum)$"
_SOON: Final = 8
#: A call copies what its step has not made if its work takes this many times as long as that of any call before it in
#: the step, and this long, ns: what makes a tensor takes about as long as copying it.
LONGER, _LONG_NS = 4.0, 10_000
#: Others are like it if they take as long, within this share, and these many tensors are appended to in a step.
_ALIKE: Final = 0.3
MIN_TENSORS: Final = 4
#: In this share of the captured steps.
_IN_MOST: Final = 0.75


@cached_on_trace
def carried(trace: Trace) -> Ints:
    """Return the calls that append to tensors of earlier steps, as indices; none if only few steps have them.

    They are long copies, in steps without gradients, of what the step has not made, and attention reads their results.
    """
    calls = calls_of(trace)
    if not len(trace.steps) or not trace.device_indices or calls.backward.any():
        return np.empty(0, dtype=np.int64)
    appends = calls.trace.named(_APPENDS, calls.rows) & (calls.work_count > 0) & ~calls.differentiated
    appends &= calls.steps >= 0
    proven, steps = list[int](), list[int]()
    busy = np.flatnonzero((calls.work_count > 0) & np.isin(calls.steps, calls.steps[appends]))
    busy = busy[np.argsort(calls.steps[busy], kind="stable")]
    for mine in np.split(busy, np.flatnonzero(np.diff(calls.steps[busy])) + 1) if len(busy) else ():
        others_ns = np.where(appends[mine], 0, calls.work_ns[mine])
        longest_ns = np.append(0, np.maximum.accumulate(others_ns)[:-1])
        long = appends[mine] & (calls.work_ns[mine] >= np.maximum(LONGER * longest_ns, _LONG_NS))
        long[0] = False  # nothing is known of what comes before
        if long.any():
            proven += mine[long].tolist()
            steps.append(int(calls.steps[mine[0]]))
    if len(steps) < _IN_MOST * len(calls.trace.steps):
        return np.empty(0, dtype=np.int64)
    times = np.array(sorted({int(calls.work_ns[index]) for index in proven}), dtype=np.float64)
    every = np.flatnonzero(appends & np.isin(calls.codes, calls.codes[proven]))
    took = calls.work_ns[every]
    # From the first time that is not too short to the last that is not too long there is one.
    first: Ints = np.searchsorted(times, took / (1 + _ALIKE), side="left")
    last: Ints = np.searchsorted(times, took / (1 - _ALIKE), side="right")
    every = every[first < last]
    every = every[readers(calls, every) >= 0]
    return every if len(every) >= MIN_TENSORS * len(steps) and _grow(calls, every) else every[:0]


def readers(calls: Calls, found: Ints) -> Ints:
    """Return the attention soon after each of some calls, as an index; -1 = none."""
    attention = calls.trace.named(_ATTENTION, calls.rows)
    readers = np.full(len(found), -1, dtype=np.int64)
    for at, index in enumerate(found.tolist()):
        after = calls.after(index, _SOON)
        after = after[attention[after]]
        if len(after):
            readers[at] = after[0]
    return readers


def _grow(calls: Calls, found: Ints) -> bool:
    """Return whether the sizes change from step to step, or are not recorded."""
    steps = calls.steps[found]
    firsts = [int(calls.rows[found[steps == step][0]]) for step in np.unique(steps).tolist()]
    shapes = [
        str(given.dims) for _, given in arguments(calls.trace, np.array(firsts, dtype=np.int64)) if given.dims
    ]
    return len(set(shapes)) == len(shapes)
