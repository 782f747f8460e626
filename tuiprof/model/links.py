"""Which host call launched which device work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tuiprof.model.intervals import Ints

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

    Args:
        trace: The trace.
    """
    correlation = trace.ints("correlation")
    launch_of = np.full(len(trace), -1, dtype=np.int64)
    work = trace.device_work
    calls = trace.host_calls
    # 0 is what CUPTI writes for "no correlation".
    calls = calls[correlation[calls] > 0]
    if len(calls) and len(work):
        # Stable by correlation, so that of equal ones the earliest call comes first and is the one found.
        calls = calls[np.argsort(correlation[calls], kind="stable")]
        keys = correlation[calls]
        position = np.minimum(np.searchsorted(keys, correlation[work], side="left"), len(keys) - 1)
        found = keys[position] == correlation[work]
        launch_of[work[found]] = calls[position[found]]
    matched = launch_of[work]
    # Counting by row needs no sort.
    counts = np.bincount(matched[matched >= 0], minlength=1)
    launches = np.flatnonzero(counts)
    return Links(launch_of, launches, counts[launches], int((matched < 0).sum()))
