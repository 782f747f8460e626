"""Estimates the profiler overhead in a captured step, and the step time without it.

If the session saw the same step uncaptured, the cost of recording an event is fitted so that the replayed step takes
as long. A device-bound step says nothing about the host, and without a session there is nothing to fit to: then the
default costs in :mod:`tuiprof.whatif.clock` are used, with a wide range.
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

#: How host time was corrected: fitted to the steps of the session, with the default costs, or not at all.
Basis = Literal["session", "table", "none"]

#: Relative tolerance of the unchanged replay against the captured time.
TOLERANCE: Final = 0.02
#: Variation between two runs of the same script: of steps (clocks, kernel selection in libraries), and of savings,
#: each as a share of itself.
NOISE, NOISE_OF_WIN = 0.01, 0.1
#: The idle time of the device varies more, as hosts are shared: by this share of itself, or as much as the steps of
#: the session. And the host may be faster or slower in total, by these factors on its time.
HOST_NOISE: Final = 0.06
HOSTS: Final = (0.8, 1.25)
#: Range of factors on the default costs on other machines.
RANGE: Final = (0.25, 2.0)
#: Maximum factor on the default costs.
_MOST_SCALE: Final = 16.0
#: A host that keeps up with its device is probably faster than required: this factor applies to the recording costs.
_KEEPS_UP: Final = 1.4
#: Range of factors around a fit to the session's median, as the split of recording costs among events is unknown.
_FIT_RANGE: Final = (0.75, 1.33)
#: A step within this share of its time with the fastest host is device-bound.
_PACED_BY_DEVICE: Final = 0.01
_BISECTIONS: Final = 14


@dataclass(frozen=True, slots=True)
class Win:
    """Saving of a change per step (in total if the trace marks no steps), ns."""

    ns: float  # the likely figure
    low_ns: float  # at least
    high_ns: float  # at most


@dataclass(frozen=True)
class Calibrated:
    """A captured step, calibrated to run without the profiler."""

    graph: Graph  # the captured step
    scale: float  # factor on the default recording costs
    #: The lowest and the highest plausible factor, for the range of a prediction.
    scales: tuple[float, ...]
    basis: Basis  # the source of the factor
    uncaptured: Uncaptured | None = None  # steps of the session; None = none

    @cached_property
    def error(self) -> float:
        """Relative error of the unchanged replay, maximum over all threads and streams."""
        captured = self.graph.last_captured_ns
        return float(np.abs(Replay(self.graph).once() - captured).max() / max(captured.max(), 1.0))

    @property
    def trusted(self) -> bool:
        """Whether the replay reproduces the capture, within :data:`TOLERANCE`."""
        return self.error <= TOLERANCE

    @cached_property
    def captured_ns(self) -> float:
        """Time of a step while it is captured, ns."""
        return Replay(self.graph).step_ns()

    @cached_property
    def replayed_ns(self) -> float:
        """Time of the replayed step without the profiler, ns."""
        return self.likely.unchanged_ns

    @property
    def step_ns(self) -> float:
        """Time of a step without the profiler, ns: as measured by the session, else as replayed."""
        return self.uncaptured.step_ns if self.basis == "session" and self.uncaptured else self.replayed_ns

    @cached_property
    def host_part(self) -> float:
        """Share of the captured host time that remains without the profiler, 0 to 1."""
        captured = sum(float(clock.captured_ns.sum()) for clock in self.graph.clocks)
        without = sum(float(clock.passed(self.scale)[-1]) for clock in self.graph.clocks)
        return without / captured if captured else 1.0

    @property
    def unplaced_ns(self) -> float:
        """Excess of a replayed step over the steps of the session even with the fastest host, ns.

        The replay cannot tell which part of the captured step disappears without the profiler.
        """
        return max(self.replayed_ns - self.step_ns, 0.0)

    def likely_ns(self, edit: Edit, *, on: Edit | None = None) -> float:
        """Return the likely saving of a change per step, ns."""
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
        """Return the saving of a change, with its range.

        Args:
            edit: The likely change.
            least: The change where it helps least; None = as likely.
            most: The change where it helps most; None = as likely.
            on: A change that is made first.
            likely_ns: The result of :meth:`likely_ns` if known.
        """
        likely = self.likely_ns(edit, on=on) if likely_ns is None else likely_ns
        limit = self._limit_ns((edit, least or edit, most or edit), on or Edit())
        wins = [
            self._wins(replay, one or edit, on)
            for replay in self._others
            for one in {least or edit, most or edit}
        ]
        # The uncertainty of the change and the variation of steps are independent.
        below = hypot(likely - (1 - NOISE_OF_WIN) * min(likely, *wins), self.noise_ns)
        above = hypot((1 + NOISE_OF_WIN) * max(likely, *wins) - likely, self.noise_ns)
        # The unplaced time may be what the change removes.
        low = max(likely - below - self.unplaced_ns, 0.0)
        return Win(likely, low, max(min(likely + above, limit), likely))

    def _limit_ns(self, edits: Sequence[Edit], on: Edit) -> float:
        """Return the maximum saving of any of several changes, ns, after another change.

        The device work that they do not touch remains. The step of a session is measured, and may be longer in another
        process; for an estimated step, the range of the default costs may exceed the host time itself.
        """
        if self.basis == "session":
            return self.step_ns
        touched = np.concatenate([edit.work for edit in edits])
        left_ns = self.likely.least_ns(on | Edit(work=touched, keep=np.zeros(len(touched))))
        return max(self.step_ns - left_ns, 0.0)

    @property
    def noise_ns(self) -> float:
        """Variation of the step time between two runs of the same script, ns."""
        idle = max(1 - self.graph.device_busy_ns / max(self.step_ns, 1.0), 0.0)
        scatter = HOST_NOISE * self.step_ns
        if self.basis == "session" and self.uncaptured is not None:
            scatter = max(scatter, (self.uncaptured.high_ns - self.uncaptured.low_ns) / 2)
        return NOISE * self.step_ns + idle * scatter

    @cached_property
    def likely(self) -> Replay:
        """The likely step without the profiler."""
        return Replay(self.graph, self.scale)

    @cached_property
    def _others(self) -> tuple[Replay, ...]:
        """Other plausible steps: with a slower or faster host, and with higher or lower recording costs."""
        if self.basis == "none":
            return (Replay(self.graph, 0.0),)
        slower, faster = min(self.scales), max(self.scales)
        return Replay(self.graph, slower, max(HOSTS)), Replay(self.graph, faster, min(HOSTS))

    def _wins(self, replay: Replay, edit: Edit, on: Edit | None) -> float:
        if on is not None:
            return self._taken_away(replay, on | edit) - self._taken_away(replay, on)
        return self._taken_away(replay, edit)

    def _taken_away(self, replay: Replay, edit: Edit) -> float:
        """Return the reduction of the step time by a change; the rest is never less than the device work."""
        placed = self.step_ns / max(self.replayed_ns, self.step_ns, 1.0)
        before, after = placed * replay.unchanged_ns, placed * replay.step_ns(edit)
        return before - max(after, min(before, replay.least_ns(edit)))


def calibrate(graph: Graph, uncaptured: Uncaptured | None, *, recorded_events: bool) -> Calibrated:
    """Find the factor on the recording costs."""
    if uncaptured is None or not graph.step_count:
        # Without an ordinary step to compare with, hiccups may be occasional work of the script.
        graph = replace(graph, clocks=tuple(clock.as_captured() for clock in graph.clocks))
        if not recorded_events:
            return Calibrated(graph, 0.0, (0.0,), "none")
        return Calibrated(graph, 1.0, RANGE, "table")
    fitted = fit(graph, uncaptured.step_ns)
    if fitted.paced and uncaptured.host_ns is not None:
        # The host alone: its calls, without device work to wait for.
        alone = Edit(work=graph.row[graph.kind == WORK], keep=np.zeros(int((graph.kind == WORK).sum())))
        scale = max(fitted.scale, fit(graph, uncaptured.host_ns, alone).scale)
        scales = tuple(max(scale * part, fitted.scale) for part in _FIT_RANGE)
        return Calibrated(graph, scale, scales, "session", uncaptured)
    if fitted.paced:
        # The overhead is at least what would keep the host from keeping up, and probably somewhat more.
        scale = max(_KEEPS_UP * fitted.scale, 1.0)
        return Calibrated(
            graph, scale, (max(fitted.scale, RANGE[0]), RANGE[1] * scale), "session", uncaptured
        )
    scales = tuple(fitted.scale * part for part in _FIT_RANGE)
    return Calibrated(graph, fitted.scale, scales, "session", uncaptured)


@dataclass(frozen=True, slots=True)
class Fit:
    """A factor on the recording costs that reproduces a step time."""

    scale: float  # the smallest such factor
    paced: bool  # device-bound: every larger factor gives the same time


def fit(graph: Graph, step_ns: float, edit: Edit | None = None) -> Fit:
    """Find the factor at which the replayed step, with an edit, takes a given time."""
    low, high = 0.0, _MOST_SCALE
    floor = (1 + _PACED_BY_DEVICE) * Replay(graph, high).step_ns(edit)
    paced, wanted = floor >= step_ns, max(floor, step_ns)
    if Replay(graph, low).step_ns(edit) <= wanted:
        return Fit(low, paced)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if Replay(graph, middle).step_ns(edit) > wanted else (low, middle)
    return Fit(high, paced)
