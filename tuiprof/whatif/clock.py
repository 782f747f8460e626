"""Estimates host time without the profiler.

A profiler takes host time when it records: at the begin and the end of every operator and device API call. Between
events the host runs at its normal speed: a Python loop without operators takes no longer while captured. So captured
host time is corrected per event, never by one factor.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tuiprof.model import Trace
from tuiprof.model.intervals import Coverage, Ints

Floats = npt.NDArray[np.float64]

#: Default host cost of recording one event, ns, without a session to fit to; docs/predictions.md has fitted values.
OPERATOR_NS, CALL_NS, FRAME_NS = 10_000.0, 10_000.0, 2_500.0
#: A stretch of host time is a hiccup (a preempted thread, a buffer flush of the profiler) if it takes at least this
#: long, ns, and this many times as long as elsewhere, in at most half of the steps.
HICCUP_NS, HICCUP_TIMES = 200_000, 6.0
_NUMBER = re.compile(r"#\d+$")
#: Minimum number of steps to know an ordinary one.
LEAST_STEPS = 3


@dataclass(frozen=True)
class HostClock:
    """Host time of one thread, with and without profiler overhead."""

    at: Ints  # instants at which an event of the thread begins or ends, ns, ascending, shape ``(n,)``
    #: Host time between neighbors, shape ``(n - 1,)``; 0 where the profiler blocked the host.
    captured_ns: Floats
    recording_ns: Floats  # recording cost in each at the default costs, same shape
    hiccup_ns: Floats  # the part of ``captured_ns`` that is a hiccup, same shape

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
        # Recording the begin of an event takes time after it, recording its end before it; splitting it around the
        # instant is close enough.
        return cls(at, captured, (half[:-1] + half[1:]) / 2, _hiccups(trace, at, captured, events))

    def as_captured(self) -> HostClock:
        """Return the clock without hiccups."""
        return replace(self, hiccup_ns=np.zeros_like(self.hiccup_ns))

    def passed(self, scale: float, keep: Floats | None = None) -> Floats:
        """Return the host time that had passed at each instant of :attr:`at` without the profiler, ns.

        ``scale`` is a factor on the default costs (0 = as captured, hiccups included), ``keep`` the share of each
        stretch that remains, shape ``(n - 1,)``.
        """
        # From a stretch much longer than its recording, the recording is subtracted; from a short one less, as it
        # cannot have taken all of it.
        ordinary = self.captured_ns - self.hiccup_ns if scale else self.captured_ns
        left = ordinary / (1 + scale * self.recording_ns / np.maximum(ordinary, 1.0))
        return np.concatenate(([0.0], np.cumsum(left if keep is None else left * keep)))


def _numberless(trace: Trace) -> Ints:
    """Return a code per name, equal for ``ProfilerStep#50`` and ``ProfilerStep#51``."""
    first: dict[str, int] = {}
    bare = (_NUMBER.sub("", name) for name in trace.names)
    return np.array([first.setdefault(name, code) for code, name in enumerate(bare)], dtype=np.int64)


def _hiccups(trace: Trace, at: Ints, captured_ns: Floats, events: Ints) -> Floats:
    """Return the excess of each hiccup over the same stretch elsewhere, ns; 0 for other stretches.

    Stretches between the same events are the same.
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
        # The lower median, as the step of a session is a median too.
        usual = float(np.percentile(captured_ns[same], 50, method="lower"))
        longer = same[captured_ns[same] >= max(HICCUP_NS, HICCUP_TIMES * usual)]
        if len(np.unique(step[longer])) <= len(steps) / 2:
            excess[longer] = captured_ns[longer] - usual
    return excess
