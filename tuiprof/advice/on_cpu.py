"""Operators that compute on the CPU in the thread that launches, although there is a device."""

from __future__ import annotations

from typing import Final

import numpy as np

from tuiprof.analyses.data_loading import fetches
from tuiprof.analyses.shared.calls import Calls
from tuiprof.analyses.shared.calls import calls as calls_of
from tuiprof.analyses.shared.optimizers import updates
from tuiprof.analyses.shared.replay import host_faster
from tuiprof.analyses.shared.stretches import VIEWS
from tuiprof.analyses.shared.threads import main_thread
from tuiprof.model import Trace
from tuiprof.model.intervals import Mask, member, union
from tuiprof.model.trace import cached_on_trace
from tuiprof.whatif import EditRange

#: Shorter operators without device work are views and bookkeeping.
MIN_NS: Final = 30_000
#: The threads of such an operator spin after it, also on the other half of the core that launches, which then gives
#: less of its speed. libgomp spins 300 000 times (GOMP_SPINCOUNT), which at 40 to 140 cycles each takes 4 to 14 ms.
_SPIN_NS: Final = 10_000_000
#: Share of the other host time in that period that remains without the operators and their threads: likely, least and
#: most helpful. With all other cores spinning, 97 % (stories-sampler) and 88 % (esrgan-tiles) fit what was measured
#: (docs/results/predictions.md).
_KEEP_REST: Final = (0.95, 1.0, 0.5)
#: It counts if the process keeps this many cores busy, has no loader, and nearly all of these operators are gone.
MIN_BUSY: Final = 3.0
_NEARLY_ALL: Final = 0.9
#: Minimum share of the time of a call that its views take, nested ones included, if it consists of them. Measured with
#: PyTorch 2.13 on a CPU: from 0.8 (unbind) to 2.3 (chunk), but 0.15 and less in an index.
_OF_VIEWS: Final = 0.3
#: Added to the evidence.
THREADS: Final = "; their threads keep other cores busy between them, which slows the launching thread"


@cached_on_trace
def operators_on_cpu(trace: Trace) -> Mask:
    """Return which framework calls of the main thread compute in a step and neither launch nor call the device."""
    calls, main = calls_of(trace), main_thread(trace)
    used = calls.mask(calls.call_of_host_call)
    computing: Mask = (calls.steps >= 0) & (trace.lengths(calls.rows) >= MIN_NS) & (calls.work_count == 0)
    computing &= trace.named(r"^aten::", calls.rows) & ~trace.named(VIEWS, calls.rows)
    computing &= ~(calls.backward | used | calls.begin_in(fetches(trace)) | _only_views(calls))
    computing &= calls.tracks == (-1 if main is None else main)
    # An optimizer of parameters on the device counts its steps on the CPU.
    updating = updates(trace).hold(calls.rows)
    if calls.work_count[updating].any():
        computing &= ~updating
    return computing


def _only_views(calls: Calls) -> Mask:
    """Return which calls consist of views, as unflatten_dense_tensors does: they compute nothing themselves.

    An index on the CPU makes views as well, in a small part of its time.
    """
    trace = calls.trace
    parts = trace.operators()
    parts = parts[~member(parts, calls.rows)]
    call = calls.inside(parts)
    parts, call = parts[call >= 0], call[call >= 0]
    views = trace.named(VIEWS, parts)
    others = np.bincount(call[~views], minlength=len(calls.rows))
    took = np.bincount(call[views], trace.lengths(parts[views]), minlength=len(calls.rows))
    result: Mask = (others == 0) & (took >= _OF_VIEWS * trace.lengths(calls.rows)) & (took > 0)
    return result


def without_threads(trace: Trace, gone: Mask) -> EditRange | None:
    """Return the edits in which the rest of the host is faster without some of these operators; None = it is not."""
    seen, calls = trace.uncaptured, calls_of(trace)
    if seen is None or (seen.busy_cores or 0) < MIN_BUSY or len(fetches(trace)):
        return None
    lengths = np.where(operators_on_cpu(trace), trace.lengths(calls.rows), 0)
    if lengths[gone].sum() < _NEARLY_ALL * lengths.sum() or not lengths.any():
        return None
    ends = trace.ends[calls.rows[lengths > 0]]
    spinning = union(ends, ends + _SPIN_NS)
    return EditRange(*(host_faster(trace, keep, within=spinning) for keep in _KEEP_REST))
