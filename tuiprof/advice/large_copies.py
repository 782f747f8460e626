"""Conversions and copies of large tensors, and the time in which their memory is given back."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tuiprof.analyses.data_loading import fetches
from tuiprof.analyses.shared.calls import calls as calls_of
from tuiprof.analyses.shared.optimizers import updates
from tuiprof.analyses.shared.stretches import VIEWS
from tuiprof.analyses.shared.threads import main_thread
from tuiprof.analyses.shared.waits import outermost
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.model.trace import cached_on_trace

#: Conversions, alone or inside of another operator, as under autocast, and copies that the script calls.
CONVERSIONS: Final = r"^aten::_to_copy$"
_COPIES: Final = r"^aten::(_to_copy|contiguous|clone|copy_)$"
_CALLED: Final = r"^aten::(_to_copy|to|type_as|contiguous|clone|copy_|reshape|flatten)$"
#: glibc returns memory of more than 32 MB to the system as soon as it is free, and each page of the next allocation is
#: cleared when it is first written. On one thread, copies of 64 to 800 MB took 0.35 to 0.54 ms/MB, and giving the
#: memory back 13 to 21 % of that; copies of up to 40 MB 0.02 to 0.23 ms/MB, and giving it back nothing.
_MIN_NS: Final = 3_000_000
_MIN_SHARE: Final = 0.05
_MAX_SHARE: Final = 0.3


@cached_on_trace
def copies(trace: Trace) -> Ints:
    """Return conversions and copies in steps, without those that gradients pass, load batches or update parameters."""
    calls = calls_of(trace)
    rows = outermost(trace, trace.operators(_COPIES))
    call = calls.inside(rows)
    rows, call = rows[call >= 0], call[call >= 0]
    chosen = trace.named(_CALLED, calls.rows[call]) | trace.named(CONVERSIONS, rows)
    chosen &= ~(calls.backward | calls.differentiated | calls.begin_in(fetches(trace)))[call]
    chosen &= ~updates(trace).hold(rows)
    if len(trace.steps):
        chosen &= calls.steps[call] >= 0
    return rows[chosen]


class Freed(NamedTuple):
    """When memory is given back right after it was used; arrays of shape ``(k,)``."""

    copies: Ints  # what was copied to that memory, as rows
    starts: Ints
    ends: Ints


@cached_on_trace
def freed(trace: Trace) -> Freed:
    """Return when the main thread gives back the memory of large copies: right after the operator that reads one."""
    calls, main = calls_of(trace), main_thread(trace)
    rows = copies(trace)
    rows = rows[(trace.track_codes[rows] == main) & (trace.lengths(rows) >= _MIN_NS)]
    rows = rows[calls.work_count[calls.inside(rows)] == 0]
    if not len(rows):
        return Freed(rows, rows, rows)
    mine = np.flatnonzero(calls.tracks == main)
    computing = mine[~trace.named(VIEWS, calls.rows[mine])]
    reader = np.append(computing, -1)[np.searchsorted(computing, calls.inside(rows), side="right")]
    following = np.append(mine, -1)[np.searchsorted(mine, reader, side="right")]
    starts, ends = trace.ends[calls.rows[reader]], trace.starts[calls.rows[following]]
    share = (ends - starts) / trace.lengths(rows)
    known = (reader >= 0) & (following >= 0) & (share >= _MIN_SHARE) & (share <= _MAX_SHARE)
    frames = np.flatnonzero((trace.track_codes == main) & trace.is_category("python_function"))
    begun = np.searchsorted(trace.starts[frames], np.stack((starts, ends)))
    known &= begun[0] == begun[1]  # Python calls nothing meanwhile
    return Freed(rows[known], starts[known], ends[known])
