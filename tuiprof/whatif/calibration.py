"""Finds how much of a captured step was the profiler's, and says what a step takes without it.

Where the session saw the same step uncaptured, the cost of recording an event is fitted so that the replayed step takes
as long. Where the device sets the pace the step says nothing about the host, and where there is no session there is
nothing to fit to: then the table of costs in :mod:`tuiprof.whatif.clock` stands in, with a wide range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import hypot
from typing import Final, Literal

import numpy as np

from tuiprof.model.steps import Uncaptured
from tuiprof.whatif.edit import Edit
from tuiprof.whatif.graph import WORK, Graph
from tuiprof.whatif.replay import Replay

#: How the host's time was corrected: fitted to the session's own steps, by the table of costs, or not at all.
Basis = Literal["session", "table", "none"]

#: Replayed unchanged a step must take what was captured, to this share.
TOLERANCE: Final = 0.02
#: Two runs of the same script differ: steps by this share (clocks, and which kernels libraries choose), and what a
#: change wins by this share of itself.
NOISE, NOISE_OF_WIN = 0.01, 0.1
#: The part of a step in which the device idles differs more, as hosts are shared: by this share of itself, or by what
#: the session's own steps differ by. And all of the host may be faster or slower, by these factors on its time.
HOST_NOISE: Final = 0.06
HOSTS: Final = (0.8, 1.25)
#: The table's costs may be off by these factors on another machine.
RANGE: Final = (0.25, 2.0)
#: Nothing records at more than this factor of the table's costs.
_MOST_SCALE: Final = 16.0
#: A host that is known to keep up with its device is likely faster than it would have to be, by so much less recording.
_KEEPS_UP: Final = 1.4
#: A fit to the session's median still leaves open how recording costs divide among events.
_FIT_RANGE: Final = (0.75, 1.33)
#: A step that is no longer than this share above what it takes with the host as fast as can be is paced by its device.
_PACED_BY_DEVICE: Final = 0.01
_BISECTIONS: Final = 14


@dataclass(frozen=True, slots=True)
class Win:
    """What a change wins a step (in all where the trace marks no steps), ns."""

    ns: float  # the likely figure
    low_ns: float  # at least
    high_ns: float  # at most


@dataclass(frozen=True)
class Calibrated:
    """A captured step as it is without the profiler."""

    graph: Graph  # the captured step
    scale: float  # factor on the table's costs of recording
    #: The lowest and the highest factor that may be right as well, for the range of a prediction.
    scales: tuple[float, ...]
    basis: Basis  # what the factor comes from
    uncaptured: Uncaptured | None = None  # the session's own steps; None = there are none

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
        return self.likely.unchanged_ns

    @property
    def step_ns(self) -> float:
        """What a step takes without the profiler, ns: as the session measured it, else as replayed."""
        return self.uncaptured.step_ns if self.basis == "session" and self.uncaptured else self.replayed_ns

    @cached_property
    def host_part(self) -> float:
        """Which part of the captured host time is there without the profiler, 0 to 1."""
        captured = sum(float(clock.captured_ns.sum()) for clock in self.graph.clocks)
        without = sum(float(clock.passed(self.scale)[-1]) for clock in self.graph.clocks)
        return without / captured if captured else 1.0

    @property
    def unplaced_ns(self) -> float:
        """By how much a replayed step takes longer than the session's steps, however little the host takes, ns.

        The replay cannot say which part of the captured step it is that is not there without the profiler.
        """
        return max(self.replayed_ns - self.step_ns, 0.0)

    def likely_ns(self, edit: Edit, *, on: Edit | None = None) -> float:
        """Return what a change likely wins a step, ns."""
        return min(max(self._wins(self.likely, edit, on), 0.0), self.step_ns)

    def win(
        self,
        edit: Edit,
        least: Edit | None = None,
        most: Edit | None = None,
        *,
        on: Edit | None = None,
        likely_ns: float | None = None,
    ) -> Win:
        """Return what a change wins, with its range.

        Args:
            edit: The likely change.
            least: The same where it helps least; None = as likely.
            most: The same where it helps most; None = as likely.
            on: A change that is made before.
            likely_ns: What :meth:`likely_ns` said already.
        """
        likely = self.likely_ns(edit, on=on) if likely_ns is None else likely_ns
        limit = self._limit_ns((edit, least or edit, most or edit), on or Edit())
        wins = [
            self._wins(replay, one or edit, on)
            for replay in self._others
            for one in {least or edit, most or edit}
        ]
        # How well the change is known and how steps differ have nothing to do with each other.
        below = hypot(likely - (1 - NOISE_OF_WIN) * min(likely, *wins), self.noise_ns)
        above = hypot((1 + NOISE_OF_WIN) * max(likely, *wins) - likely, self.noise_ns)
        # What is not placed may be what the change takes away.
        low = max(likely - below - self.unplaced_ns, 0.0)
        return Win(likely, low, max(min(likely + above, limit), likely))

    def _limit_ns(self, edits: Sequence[Edit], on: Edit) -> float:
        """Return what any of some changes wins at most, ns, where another is made before.

        The device still has to do what they do not touch. A session's step is measured, and may be longer in another
        process; where it is estimated, the table's range may be wider than what the host takes at all.
        """
        if self.basis == "session":
            return self.step_ns
        touched = np.concatenate([edit.work for edit in edits])
        left_ns = self.likely.least_ns(on | Edit(work=touched, keep=np.zeros(len(touched))))
        return max(self.step_ns - left_ns, 0.0)

    @property
    def noise_ns(self) -> float:
        """By how much two runs of the same script differ a step, ns."""
        idle = max(1 - self.graph.device_busy_ns / max(self.step_ns, 1.0), 0.0)
        scatter = HOST_NOISE * self.step_ns
        if self.basis == "session" and self.uncaptured is not None:
            scatter = max(scatter, (self.uncaptured.high_ns - self.uncaptured.low_ns) / 2)
        return NOISE * self.step_ns + idle * scatter

    @cached_property
    def likely(self) -> Replay:
        """The step as it likely is without the profiler."""
        return Replay(self.graph, self.scale)

    @cached_property
    def _others(self) -> tuple[Replay, ...]:
        """Other steps that it may be: with a host that is slower or faster, in all and in what recording costs."""
        if self.basis == "none":
            return (Replay(self.graph, 0.0),)
        slower, faster = min(self.scales), max(self.scales)
        return Replay(self.graph, slower, max(HOSTS)), Replay(self.graph, faster, min(HOSTS))

    def _wins(self, replay: Replay, edit: Edit, on: Edit | None) -> float:
        if on is not None:
            return self._taken_away(replay, on | edit) - self._taken_away(replay, on)
        return self._taken_away(replay, edit)

    def _taken_away(self, replay: Replay, edit: Edit) -> float:
        """Return how much less a step takes with a change: what is left is never less than the device needs."""
        placed = self.step_ns / max(self.replayed_ns, self.step_ns, 1.0)
        before, after = placed * replay.unchanged_ns, placed * replay.step_ns(edit)
        return before - max(after, min(before, replay.least_ns(edit)))


def calibrate(graph: Graph, uncaptured: Uncaptured | None, *, recorded_events: bool) -> Calibrated:
    """Find the factor on the costs of recording."""
    if uncaptured is None or not graph.step_count:
        # Without an ordinary step to hold it against, what is rare may as well be what the script does now and then.
        graph = replace(graph, clocks=tuple(clock.as_captured() for clock in graph.clocks))
        if not recorded_events:
            return Calibrated(graph, 0.0, (0.0,), "none")
        return Calibrated(graph, 1.0, RANGE, "table")
    fitted = fit(graph, uncaptured.step_ns)
    if fitted.paced and uncaptured.host_ns is not None:
        # The host alone: its calls, and no work on a device for it to wait for.
        alone = Edit(work=graph.row[graph.kind == WORK], keep=np.zeros(int((graph.kind == WORK).sum())))
        scale = max(fitted.scale, fit(graph, uncaptured.host_ns, alone).scale)
        scales = tuple(max(scale * part, fitted.scale) for part in _FIT_RANGE)
        return Calibrated(graph, scale, scales, "session", uncaptured)
    if fitted.paced:
        # No more is known to be the profiler's than what the host needs to keep up; likely it is somewhat more.
        scale = max(_KEEPS_UP * fitted.scale, 1.0)
        return Calibrated(
            graph, scale, (max(fitted.scale, RANGE[0]), RANGE[1] * scale), "session", uncaptured
        )
    scales = tuple(fitted.scale * part for part in _FIT_RANGE)
    return Calibrated(graph, fitted.scale, scales, "session", uncaptured)


@dataclass(frozen=True, slots=True)
class Fit:
    """A factor on the costs of recording that gives a step its time."""

    scale: float  # the least such factor
    paced: bool  # the device sets the pace, so that every larger factor gives the same time


def fit(graph: Graph, step_ns: float, edit: Edit | None = None) -> Fit:
    """Find the factor at which the replayed step, with a change, takes a given time."""
    low, high = 0.0, _MOST_SCALE
    floor = (1 + _PACED_BY_DEVICE) * Replay(graph, high).step_ns(edit)
    paced, wanted = floor >= step_ns, max(floor, step_ns)
    if Replay(graph, low).step_ns(edit) <= wanted:
        return Fit(low, paced)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if Replay(graph, middle).step_ns(edit) > wanted else (low, middle)
    return Fit(high, paced)
