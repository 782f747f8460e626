"""Which host call launched which device work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tuiprof.model.intervals import Ints, row_type

if TYPE_CHECKING:
    from tuiprof.model.trace import Trace


@dataclass(frozen=True, slots=True)
class Links:
    """Links between host calls and device work, by correlation.

    A *launch* is any runtime or driver call whose correlation meets device work; no list of names. One CUDA
    graph launch meets many kernels.

    Attributes:
        launch_of: For every event, the row of the host call that launched it; -1 for host events and for
            device work whose launch is not in the trace. Shape ``(len(trace),)``.
        launches: Rows of the host calls that launched anything, in order of start.
        work_count: Number of device events each of ``launches`` launched, same shape.
        unmatched_work: Number of device work events without a launch in the trace.
    """

    launch_of: Ints
    launches: Ints
    work_count: Ints
    unmatched_work: int


def link(trace: Trace) -> Links:
    """Join device work with the host calls of the same correlation.

    Where a runtime call and the driver call inside it carry the same correlation, the outer one (which starts
    first) is the launch.
    """
    launch_of: Ints = np.full(len(trace), -1, dtype=row_type(len(trace)))
    work, calls = trace.device_work, trace.host_calls
    keys, wanted = trace.ints("correlation", calls), trace.ints("correlation", work)
    # Stable by correlation, so that of equal ones the earliest call comes first and is the one found.
    order = np.argsort(keys, kind="stable")
    order = order[
        np.searchsorted(keys, 0, side="right", sorter=order) :
    ]  # CUPTI writes 0 for "no correlation"
    calls, keys = calls[order], keys[order]
    if not len(calls):
        return Links(launch_of, calls, calls, len(work))
    position = np.minimum(np.searchsorted(keys, wanted, side="left"), len(keys) - 1)
    found = keys[position] == wanted
    launch_of[work[found]] = calls[position[found]]
    counts = np.bincount(position[found], minlength=len(calls))
    launching = np.flatnonzero(counts)
    launching = launching[np.argsort(calls[launching], kind="stable")]
    return Links(launch_of, calls[launching], counts[launching], int((~found).sum()))
