"""Finds how much of a captured step was the profiler's, and says what a step takes without it.

Where the session saw the same step uncaptured, the cost of recording an event is fitted so that the replayed step takes
as long. Where the device sets the pace the step says nothing about the host, and where there is no session there is
nothing to fit to: then the table of costs in :mod:`tuiprof.whatif.clock` stands in, with a wide range.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import numpy as np

from tuiprof.model.uncaptured import Uncaptured
from tuiprof.whatif.edit import Edit
from tuiprof.whatif.graph import Graph
from tuiprof.whatif.replay import Replay

#: How the host's time was corrected: fitted to the session's own steps, by the table of costs, or not at all.
Basis = Literal["session", "table", "none"]

#: Replayed unchanged a step must take what was captured, to this share.
TOLERANCE: Final = 0.02
#: Two runs of the same script differ: steps by this share (clocks, and which kernels libraries choose), and what a
#: change wins by this share of itself (how fast the host happens to be).
NOISE, NOISE_OF_WIN = 0.01, 0.1
#: The table's costs may be off by these factors on another machine.
RANGE: Final = (0.25, 2.0)
#: Nothing records at more than this factor of the table's costs.
_MOST_SCALE: Final = 16.0
#: A fit to the session's median still leaves open how recording costs divide among events.
_FIT_RANGE: Final = (0.75, 1.33)
#: A step that is no longer than this share above what it takes with the host as fast as can be is paced by its device.
_PACED_BY_DEVICE: Final = 0.01
_BISECTIONS: Final = 14


@dataclass(frozen=True, slots=True)
class Win:
    """What a change wins a step (in all where the trace marks no steps), ns.

    Attributes:
        ns: The likely figure.
        low_ns: At least.
        high_ns: At most.
    """

    ns: float
    low_ns: float
    high_ns: float


@dataclass(frozen=True)
class Calibrated:
    """A captured step as it is without the profiler.

    Attributes:
        graph: The captured step.
        scale: Factor on the table's costs of recording.
        scales: The lowest and the highest factor that may be right as well, for the range of a prediction.
        basis: What the factor comes from.
        uncaptured: The session's own steps; None = there are none.
    """

    graph: Graph
    scale: float
    scales: tuple[float, ...]
    basis: Basis
    uncaptured: Uncaptured | None = None

    @cached_property
    def error(self) -> float:
        """By which share the unchanged replay misses the capture, at worst of all threads and streams."""
        captured = self.graph.last_captured_ns
        return float(np.abs(Replay(self.graph).once() - captured).max() / max(captured.max(), 1.0))

    @property
    def trusted(self) -> bool:
        """Whether the replay gives back what was captured, within :data:`TOLERANCE`."""
        return self.error <= TOLERANCE

    @cached_property
    def captured_ns(self) -> float:
        """What a step takes while it is captured, ns."""
        return Replay(self.graph).step_ns()

    @cached_property
    def replayed_ns(self) -> float:
        """What the replayed step takes without the profiler, ns."""
        return Replay(self.graph, self.scale).step_ns()

    @property
    def step_ns(self) -> float:
        """What a step takes without the profiler, ns: as the session measured it, else as replayed."""
        return self.uncaptured.step_ns if self.basis == "session" and self.uncaptured else self.replayed_ns

    def after_ns(self, edit: Edit) -> float:
        """Return what a step takes without the profiler after a change, ns."""
        return Replay(self.graph, self.scale).step_ns(edit)

    def likely_ns(self, edit: Edit, *, on: Edit | None = None) -> float:
        """Return what a change likely wins a step, ns.

        Args:
            edit: The change.
            on: A change that is made before; None = none.
        """
        return min(max(self._wins(self.scale, edit, on), 0.0), self.step_ns)

    def win(
        self, edit: Edit, least: Edit | None = None, most: Edit | None = None, *, on: Edit | None = None
    ) -> Win:
        """Return what a change wins, with its range.

        Args:
            edit: The likely change.
            least: The same where it helps least; None = as likely.
            most: The same where it helps most; None = as likely.
            on: A change that is made before; None = none.
        """
        likely, limit = self.likely_ns(edit, on=on), self.step_ns
        wins = [
            self._wins(scale, one or edit, on)
            for scale in self.scales
            for one in {least or edit, most or edit}
        ]
        low = (1 - NOISE_OF_WIN) * min(likely, *wins) - NOISE * limit
        high = (1 + NOISE_OF_WIN) * max(likely, *wins) + NOISE * limit
        return Win(likely, max(low, 0.0), min(high, limit))

    def _wins(self, scale: float, edit: Edit, on: Edit | None) -> float:
        replay = Replay(self.graph, scale)
        if on is not None:
            return replay.step_ns(on) - replay.step_ns(on | edit)
        if scale not in self._unchanged:
            self._unchanged[scale] = replay.step_ns()
        return self._unchanged[scale] - replay.step_ns(edit)

    @cached_property
    def _unchanged(self) -> dict[float, float]:
        """What a step takes without a change, by the factor."""
        return {}


def calibrate(graph: Graph, uncaptured: Uncaptured | None, *, recorded_events: bool) -> Calibrated:
    """Find the factor on the costs of recording.

    Args:
        graph: The captured step.
        uncaptured: The session's own steps; None = there are none.
        recorded_events: Whether the table of costs is that of the profiler that recorded the trace.
    """
    if uncaptured is None or not graph.step_count:
        if not recorded_events:
            return Calibrated(graph, 0.0, (0.0,), "none")
        return Calibrated(graph, 1.0, RANGE, "table")
    fitted = fit(graph, uncaptured.step_ns)
    if fitted.paced:
        # No more is known to be the profiler's than what the host needs to keep up; the rest is the table's.
        scale = max(fitted.scale, 1.0)
        return Calibrated(
            graph, scale, (max(fitted.scale, RANGE[0]), RANGE[1] * scale), "session", uncaptured
        )
    others = [fit(graph, ns).scale for ns in (uncaptured.low_ns, uncaptured.high_ns)]
    others += [fitted.scale * part for part in _FIT_RANGE]
    return Calibrated(graph, fitted.scale, (min(others), max(others)), "session", uncaptured)


@dataclass(frozen=True, slots=True)
class Fit:
    """A factor on the costs of recording that gives a step its time.

    Attributes:
        scale: The least such factor.
        paced: The device sets the pace, so that every larger factor gives the same time.
    """

    scale: float
    paced: bool


def fit(graph: Graph, step_ns: float) -> Fit:
    """Find the factor at which the replayed step takes a given time.

    Args:
        graph: The captured step.
        step_ns: The time, ns.
    """
    low, high = 0.0, _MOST_SCALE
    floor = (1 + _PACED_BY_DEVICE) * Replay(graph, high).step_ns()
    paced, wanted = floor >= step_ns, max(floor, step_ns)
    if Replay(graph, low).step_ns() <= wanted:
        return Fit(low, paced)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if Replay(graph, middle).step_ns() > wanted else (low, middle)
    return Fit(high, paced)
