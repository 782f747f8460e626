"""The step if the host took less time to launch its work."""

from __future__ import annotations

import numpy as np

from tuiprof.analyses.data_loading import fetches
from tuiprof.analyses.shared.replay import main_thread, stretch
from tuiprof.model import Trace
from tuiprof.model.intervals import complement, union
from tuiprof.whatif.edit import Edit, HostTime

#: A thread without events for this long does not launch work: it computes, or initializes a library; ns.
SILENT_NS = 1_000_000


def host_faster(trace: Trace, keep: float, *, silences: bool = True) -> Edit:
    """Return the edit in which the launching threads keep a share of their time: operators, Python and calls.

    Waits and data loading stay as they are.
    """
    main = main_thread(trace)
    if main is None:
        return Edit()
    low, high, _ = stretch(trace, main)
    inside = trace.between(low, high)
    loading = fetches(trace)
    tracks = np.unique(trace.track_codes[trace.links.launches]).tolist()
    parts = []
    for track in sorted({*tracks, main}):
        apart = [(trace.starts[loading], trace.ends[loading])]
        if not silences:
            rows = inside[trace.track_codes[inside] == track]
            at = np.sort(np.concatenate(([low, high], trace.starts[rows], trace.ends[rows])))
            long = np.flatnonzero(np.diff(at) >= SILENT_NS)
            apart.append((at[long], at[long + 1]))
        left, right = (np.concatenate(ends) for ends in zip(*apart, strict=True))
        starts, ends = complement(*union(left, right), low, high)
        parts.append((np.full(len(starts), track, dtype=np.int64), starts, ends, np.full(len(starts), keep)))
    return Edit(host=HostTime(*(np.concatenate(columns) for columns in zip(*parts, strict=True))))


def launched_faster(trace: Trace, keep: float) -> Edit:
    """Return the edit in which launching work keeps a share of its time."""
    return host_faster(trace, keep, silences=False)
