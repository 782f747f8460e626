"""What host time would have been without the profiler.

A profiler takes host time where it records something: at the beginning and at the end of every operator and of every
call into the device's API. Between them the host runs as it always does: a Python loop without operators takes no
longer while it is captured. So captured host time is corrected event by event, never by one factor for all of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tuiprof.model import Trace
from tuiprof.model.intervals import Coverage, Ints

Floats = npt.NDArray[np.float64]

#: What recording one event costs the host, ns, where no session says better: docs/predictions.md has what was fitted.
OPERATOR_NS, CALL_NS, FRAME_NS = 10_000.0, 10_000.0, 2_500.0
#: A stretch of host time is a hiccup (a thread that lost its core, a buffer of the profiler that was handed over) where
#: it takes at least so long, ns, and so many times what it takes elsewhere, and that in no more than half of the steps.
HICCUP_NS, HICCUP_TIMES = 200_000, 6.0
_NUMBER = re.compile(r"#\d+$")
#: With fewer steps it is not known what an ordinary one is.
LEAST_STEPS = 3


@dataclass(frozen=True)
class HostClock:
    """Host time of one thread, with and without what the profiler added to it."""

    at: Ints  # instants at which an event of the thread begins or ends, ns, ascending, shape ``(n,)``
    #: Host time between neighbours, shape ``(n - 1,)``; 0 where the profiler held the host.
    captured_ns: Floats
    recording_ns: Floats  # what recording costs in each at the table's costs, same shape
    hiccup_ns: Floats  # the part of ``captured_ns`` that an ordinary step does not have, same shape

    @classmethod
    def of(cls, trace: Trace, track: int, low: int, high: int, profiler: Coverage) -> HostClock:
        """Read the events of a thread."""
        rows = trace.between(low, high)
        rows = rows[trace.track_codes[rows] == track]
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
        order = np.flatnonzero(inside)[np.argsort(at[inside], kind="stable")]
        at, half = at[order], half[order]
        captured = (np.diff(at) - profiler.between(at[:-1], at[1:])).astype(np.float64)
        names = _numberless(trace)[trace.name_codes[rows]]
        # Which event begins (even) or ends (odd) at each instant.
        events = np.concatenate(([-2], 2 * names, 2 * names + 1, [-1]))[order]
        # Recording the beginning of an event takes time after it, recording its end before it; on either side of the
        # instant is near enough.
        return cls(at, captured, (half[:-1] + half[1:]) / 2, _hiccups(trace, at, captured, events))

    def as_captured(self) -> HostClock:
        """Return the clock for which every stretch is ordinary."""
        return replace(self, hiccup_ns=np.zeros_like(self.hiccup_ns))

    def passed(self, scale: float, keep: Floats | None = None) -> Floats:
        """Return the host time that had passed at each instant of :attr:`at` without the profiler, ns.

        ``scale`` is a factor on the table's costs (0 = as captured, hiccups included), ``keep`` the part of each
        stretch that stays, shape ``(n - 1,)``.
        """
        # Of a stretch that is long beside its recording, the recording is taken away; of a short one less, as it cannot
        # have taken all of it.
        ordinary = self.captured_ns - self.hiccup_ns if scale else self.captured_ns
        left = ordinary / (1 + scale * self.recording_ns / np.maximum(ordinary, 1.0))
        return np.concatenate(([0.0], np.cumsum(left if keep is None else left * keep)))


def _numberless(trace: Trace) -> Ints:
    """Return a code for each name that is the same for ``ProfilerStep#50`` and ``ProfilerStep#51``."""
    first: dict[str, int] = {}
    bare = (_NUMBER.sub("", name) for name in trace.names)
    return np.array([first.setdefault(name, code) for code, name in enumerate(bare)], dtype=np.int64)


def _hiccups(trace: Trace, at: Ints, captured_ns: Floats, events: Ints) -> Floats:
    """Return by how much each stretch exceeds what the same stretch takes elsewhere, where that is a hiccup, ns.

    Two stretches are the same where the same events bound them.
    """
    excess = np.zeros(len(captured_ns))
    steps = np.sort(trace.steps.starts[(trace.steps.starts >= at[0]) & (trace.steps.starts < at[-1])])
    long = captured_ns >= HICCUP_NS
    if len(steps) < LEAST_STEPS or not long.any():
        return excess
    _, kind = np.unique(events[:-1] * (2 * len(trace.names) + 3) + events[1:], return_inverse=True)
    step = np.searchsorted(steps, at[:-1], side="right")
    for one in np.unique(kind[long]):
        same = np.flatnonzero(kind == one)
        # The lower one of two in the middle: a session's step is a median as well.
        usual = float(np.percentile(captured_ns[same], 50, method="lower"))
        longer = same[captured_ns[same] >= max(HICCUP_NS, HICCUP_TIMES * usual)]
        if len(np.unique(step[longer])) <= len(steps) / 2:
            excess[longer] = captured_ns[longer] - usual
    return excess
