"""Loops that compute what is read from the device value by value, and that handle these values.

Where many reads follow each other, as of the norms of all gradients, each value has an iteration of the loop before
them, of that after them, or of both: as many iterations as reads. Of values from a loop, some may have one after it, as
a logger takes those that it is given.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tuiprof.analyses.shared.calls import Calls, loops
from tuiprof.model.intervals import Ints
from tuiprof.whatif import Edit, EditRange, HostTime

#: From this many reads per step on, they are a loop over parameters or samples.
LOOP: Final = 8
#: Share of the reads that the iterations of a loop may be off, and that other work between the reads may have.
_OFF: Final = 0.1
#: Maximum calls of an iteration, and between such a loop and the reads.
_LONGEST, _APART = 16, 16
#: Work on a single value takes at most this many times as long as its copy to the host.
_VALUE: Final = 4.0
#: Steps of which at least this share has such loops.
_MOST: Final = 0.5
#: A loop of these computes layers of a model, not values that are read.
_LAYERS: Final = ("gemm", "convolution", "attention")


def stretches(calls: Calls, reads: Ints) -> list[Ints]:
    """Return the calls of the reads of each step, given as indices, with the loops around them; empty = none."""
    steps = np.unique(calls.steps[reads])
    found = [around for step in steps if len(around := _around(calls, reads[calls.steps[reads] == step]))]
    return found if len(found) >= _MOST * len(steps) else []


def _around(calls: Calls, reads: Ints) -> Ints:
    """Return the calls from the first of the loops around the reads of a step to the last; empty = there are none."""
    nothing = np.empty(0, dtype=np.int64)
    reads = np.unique(reads)
    if len(reads) < LOOP or len(np.unique(calls.tracks[reads])) > 1:
        return nothing
    same = np.flatnonzero((calls.tracks == calls.tracks[reads[0]]) & (calls.steps == calls.steps[reads[0]]))
    first, last = np.searchsorted(same, reads[[0, -1]])
    among = (calls.work_count[same[first : last + 1]] > 0).sum() - (calls.work_count[reads] > 0).sum()
    if among > _OFF * len(reads):
        return nothing  # each is computed or used right before or after it
    fewest = int(np.ceil((1 - _OFF) * len(reads)))
    before = _loop(calls, same[:first][::-1], fewest, len(reads))
    after = _loop(calls, same[last + 1 :], LOOP if len(before) else fewest, len(reads))
    # Those that use the values for larger tensors are needed, however seldom they are read.
    works = calls.work_ns[after[calls.work_count[after] > 0]]
    if len(works) and np.quantile(works, 1 - _OFF) > _VALUE * np.median(calls.work_ns[reads]):
        after = nothing
    if not len(before) and not len(after):
        return nothing
    ends = np.concatenate((before, reads, after))
    return calls.between(int(ends.min()), int(ends.max()))


def _loop(calls: Calls, near: Ints, fewest: int, count: int) -> Ints:
    """Return the calls of a loop of ``fewest`` to about ``count`` iterations that only computes; empty = none."""
    near = near[: _APART + _LONGEST * (count + 1)]
    most = (1 + _OFF) * count + 1
    for start, period, times in loops(calls.codes[near], _LONGEST, fewest):
        body = near[start : start + period * times]
        if start <= _APART and times <= most and _only_computes(calls, body):
            return body
    return np.empty(0, dtype=np.int64)


def _only_computes(calls: Calls, body: Ints) -> bool:
    """Return whether calls make new tensors that no backward pass needs, and are no layers of a model."""
    layers = calls.work_count_of(calls.works_of(*_LAYERS))[body]
    return bool(
        calls.work_count[body].any()
        and not layers.any()
        and not calls.backward[body].any()
        and not calls.differentiated[body].any()
        and not any(name.endswith("_") for name in calls.names_of(body))
    )


def run_rarely(calls: Calls, around: list[Ints], reads: Edit) -> EditRange:
    """Return the change in which these stretches run once in a while, or as one call; at least the reads go."""
    trace, edges = calls.trace, np.array([[stretch[0], stretch[-1]] for stretch in around])
    first, last = calls.rows[edges].T

    def shrunk(keep: float) -> Edit:
        # Python between two calls, such as of a logger, goes with them.
        whole = HostTime(
            trace.track_codes[first].astype(np.int64),
            trace.starts[first],
            trace.ends[last],
            np.full(len(first), keep),
        )
        return calls.edit(calls.mask(*around), keep, keep) | Edit(host=whole)

    return EditRange(shrunk(1 / LOOP), reads, shrunk(0.0))
