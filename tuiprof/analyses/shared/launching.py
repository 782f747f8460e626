"""The step as it would be if the host took less time to launch its work."""

from __future__ import annotations

import numpy as np

from tuiprof.analyses.data_loading import fetches
from tuiprof.analyses.shared.replay import main_thread
from tuiprof.model import Trace
from tuiprof.model.intervals import complement, union
from tuiprof.whatif.edit import Edit, HostTime


def launched_faster(trace: Trace, keep: float) -> Edit:
    """Return the change in which the threads that launch take a part of their time: operators, Python and calls.

    Waits and data loading stay as they are.

    Args:
        trace: The trace.
        keep: The part of the host time that stays.
    """
    loading = fetches(trace)
    starts, ends = complement(*union(trace.starts[loading], trace.ends[loading]), *trace.span)
    main = main_thread(trace)
    tracks = np.unique(trace.track_codes[trace.links.launches]).tolist()
    tracks = sorted({*tracks, *([] if main is None else [main])})
    return Edit(
        host=HostTime(
            np.repeat(np.array(tracks, dtype=np.int64), len(starts)),
            np.tile(starts, len(tracks)),
            np.tile(ends, len(tracks)),
            np.full(len(tracks) * len(starts), keep),
        )
    )
