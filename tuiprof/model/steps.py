"""Training steps, and the step that every event belongs to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tuiprof.model.intervals import Ints
from tuiprof.model.repeats import repeated

if TYPE_CHECKING:
    from tuiprof.model.trace import Trace
    from tuiprof.model.window import Window

#: A number that 64 bits hold.
_MARKER = re.compile(r"^ProfilerStep#([0-9]{1,18})$")


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of a trace.

    Attributes:
        numbers: Step numbers in order of start, shape ``(k,)``; empty when the trace has no steps.
        starts: Start of each on the host, ns.
        ends: End of each on the host, ns.
        step_of: For every event the index into ``numbers`` of its step; -1 = none. The step of a device event
            is the step of the host call that launched it, not the marker it happens to fall under; so is that of an
            operator that the CPU runs behind the call that handed it over.
        read_from: The trace marks no steps, and this is what they were read from; empty = it marks them.
    """

    numbers: Ints
    starts: Ints
    ends: Ints
    step_of: Ints
    read_from: str = ""

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.numbers)

    def inside(self, low: int, high: int) -> Ints:
        """Return indices of the steps that lie wholly in ``[low, high]``, ns."""
        return np.flatnonzero((self.starts >= low) & (self.ends <= high)).astype(np.int64)

    def window(self, index: int) -> Window:
        """Return the window of one step.

        Args:
            index: Index into ``numbers``.
        """
        from tuiprof.model.window import Window

        return Window(int(self.starts[index]), int(self.ends[index]), f"step {self.numbers[index]}")


def assign(trace: Trace, markers: pl.DataFrame | None = None) -> Steps:
    """Find the steps and assign every event to one.

    Args:
        trace: The trace.
        markers: ``step``, ``start``, ``end`` where the format knows them; None = look for ``ProfilerStep#N``
            outside the device tracks. Where there are none, steps are read from what repeats (see :mod:`.repeats`).
    """
    if markers is None:
        markers = _markers_by_name(trace)
    read_from = ""
    if not len(markers) and len(trace):
        markers, read_from = repeated(trace)
    # Of several that begin together the longest first, so that one inside another comes after it.
    markers = markers.sort("start", "end", descending=[False, True])
    numbers = markers["step"].cast(pl.Int64).to_numpy()
    starts = markers["start"].cast(pl.Int64).to_numpy()
    ends = markers["end"].cast(pl.Int64).to_numpy()
    if not len(numbers) or not len(trace):
        # One value stands for all events, of which such a trace may have millions.
        none = np.broadcast_to(np.int32(-1), len(trace))
        return Steps(numbers, starts, ends, none, read_from)
    step_of = np.full(len(trace), -1, dtype=np.int32)
    # Events are sorted by start, so those that start within a step are a slice; where steps overlap, the one that
    # began last has them.
    first = np.searchsorted(trace.starts, starts, side="left")
    after = np.searchsorted(trace.starts, ends, side="left")
    for index, (low, high) in enumerate(zip(first.tolist(), after.tolist(), strict=True)):
        step_of[low:high] = index
    on_device = np.flatnonzero(~trace.on_host)
    launch = trace.links.launch_of[on_device]
    step_of[on_device] = np.where(launch >= 0, step_of[np.maximum(launch, 0)], -1)
    if (dispatched := trace.dispatched) is not None:
        step_of[dispatched["work"].to_numpy()] = step_of[dispatched["call"].to_numpy()]
    return Steps(numbers, starts, ends, step_of, read_from)


def _markers_by_name(trace: Trace) -> pl.DataFrame:
    """Find ``ProfilerStep#N`` ranges; of several with one number (one a thread) the longest counts."""
    found = {code: int(match[1]) for code, name in enumerate(trace.names) if (match := _MARKER.match(name))}
    rows = np.flatnonzero(trace.named(_MARKER.pattern))
    rows = rows[~trace.is_category("device_annotation", "kernel", rows=rows)]
    return (
        pl.DataFrame(
            {
                "step": np.array([found[int(code)] for code in trace.name_codes[rows]], dtype=np.int64),
                "start": trace.starts[rows],
                "end": trace.ends[rows],
            }
        )
        .sort((pl.col("end") - pl.col("start")), descending=True)
        .unique("step", keep="first", maintain_order=True)
    )
