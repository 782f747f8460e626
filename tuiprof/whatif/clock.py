"""What host time would have been without the profiler.

A profiler takes host time where it records something: at the beginning and at the end of every operator and of every
call into the device's API. Between them the host runs as it always does: a Python loop without operators takes no
longer while it is captured. So captured host time is corrected event by event, never by one factor for all of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tuiprof.model import Trace
from tuiprof.model.intervals import Coverage, Ints

Floats = npt.NDArray[np.float64]

#: What recording one event costs the host, ns, before it is fitted to a session.
OPERATOR_NS, CALL_NS, FRAME_NS = 10_000.0, 10_000.0, 2_500.0


@dataclass(frozen=True)
class HostClock:
    """Host time of one thread, with and without what the profiler added to it.

    Attributes:
        at: Instants at which an event of the thread begins or ends, ns, ascending, shape ``(n,)``.
        captured_ns: Host time between neighbours, shape ``(n - 1,)``; 0 where the profiler held the host.
        recording_ns: What recording costs in each at the table's costs, same shape.
    """

    at: Ints
    captured_ns: Floats
    recording_ns: Floats

    @classmethod
    def of(cls, trace: Trace, track: int, low: int, high: int, profiler: Coverage) -> HostClock:
        """Read the events of a thread.

        Args:
            trace: The trace.
            track: The thread.
            low: First instant, ns.
            high: Last instant, ns.
            profiler: When the profiler held the host.
        """
        rows = np.flatnonzero(trace.track_codes == track)
        rows = rows[(trace.starts[rows] < high) & (trace.ends[rows] > low)]
        cost = np.zeros(len(rows))
        for categories, cost_ns in (
            (("runtime", "driver"), CALL_NS),
            (("cpu_op", "annotation"), OPERATOR_NS),
            (("python_function",), FRAME_NS),
        ):
            cost[trace.is_category(*categories, rows=rows)] = cost_ns
        at = np.concatenate(([low], trace.starts[rows], trace.ends[rows], [high]))
        half = np.concatenate(([0.0], cost / 2, cost / 2, [0.0]))
        inside = (at >= low) & (at <= high)
        at, half = at[inside], half[inside]
        order = np.argsort(at, kind="stable")
        at, half = at[order], half[order]
        captured = np.diff(at) - profiler.between(at[:-1], at[1:])
        # Recording the beginning of an event takes time after it, recording its end before it; on either side of the
        # instant is near enough.
        return cls(at, captured.astype(np.float64), (half[:-1] + half[1:]) / 2)

    def passed(self, scale: float, keep: Floats | None = None) -> Floats:
        """Return the host time that had passed at each instant of :attr:`at` without the profiler, ns.

        Args:
            scale: Factor on the table's costs; 0 = as captured.
            keep: The part of each stretch that stays, shape ``(n - 1,)``; None = all of each.
        """
        # Of a stretch that is long beside its recording, the recording is taken away; of a short one less, as it cannot
        # have taken all of it.
        overhead = scale * self.recording_ns / np.maximum(self.captured_ns, 1.0)
        left = self.captured_ns / (1 + overhead)
        return np.concatenate(([0.0], np.cumsum(left if keep is None else left * keep)))
