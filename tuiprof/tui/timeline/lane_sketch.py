"""A sketch of a trace with many millions of events, from a sample, until the exact picture is computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from tuiprof.model.intervals import Ints
from tuiprof.model.trace import Trace
from tuiprof.tui.timeline import lanes as lane_builder
from tuiprof.tui.timeline.lanes import Bars, Lanes

#: From this many events on the exact lanes take long enough for a sketch to pay.
WORTH_IT: Final = 1_000_000
_EVENTS = 50_000


class SampledBars(Bars):
    """A sample of every n-th event of a lane; the covered part of a column is estimated."""

    def __init__(self, trace: Trace, rows: Ints, stride: int) -> None:
        super().__init__(trace, rows)
        self._stride = stride

    def shares(self, edges: Ints) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return the estimated share of each column that is covered, 0 to 1."""
        middle = (self.starts + self.ends) // 2
        column = np.searchsorted(edges, middle, side="right") - 1
        inside = (column >= 0) & (column < len(edges) - 1)
        lengths = (self.ends - self.starts)[inside] * float(self._stride)
        covered = np.bincount(column[inside], lengths, minlength=len(edges) - 1)
        return np.minimum(covered / np.maximum(np.diff(edges), 1), 1.0)


def sketch(trace: Trace) -> Lanes:
    """Return lanes of a sample of the events; ``stride`` is how many events each of them represents."""
    stride = max(1, len(trace) // _EVENTS)
    # One out of each stretch, and not always the same one: launches and kernels often take turns.
    stretches = np.arange(0, len(trace) - stride + 1, stride)
    rows = stretches + np.random.default_rng(0).integers(0, stride, len(stretches))
    sample = Trace(trace.events[rows], trace.tracks, trace.info)
    lanes = lane_builder.build(sample)
    drawn = tuple(replace(lane, bars=SampledBars(sample, lane.bars.rows, stride)) for lane in lanes.lanes)
    return replace(lanes, lanes=drawn, stride=stride, sketch_of=trace)
