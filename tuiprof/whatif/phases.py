"""What recording an event costs in each phase of a step.

A profiler slows operators that Python calls by another amount than nodes of the backward pass: in 71 sessions whose
host limits the step, 13 % of what it adds is in another phase than the number of events tells (mean; up to 43 %).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from tuiprof.model.intervals import Coverage, Ints
from tuiprof.whatif.graph import Graph, HostClock

#: Maximum factor between the costs in a phase and those in the whole step, either way.
_APART: Final = 4.0
_MAX_SCALE: Final = 64.0
#: A stretch between two events is interrupted if it takes this many times as long as its whole phase does uncaptured.
_INTERRUPTED: Final = 2.0
_BISECTIONS: Final = 20


def weigh(
    graph: Graph, phases: Mapping[str, Coverage], slowed_ns: Mapping[str, float], scale: float
) -> Graph:
    """Return a graph whose recording costs slow each phase as much as the session says.

    Args:
        graph: A captured step.
        phases: When each phase runs, ns.
        slowed_ns: What the profiler added to each of them in a step, and to the rest of it, ``""``.
        scale: The factor on the costs that fits the whole step.
    """
    names = ["", *phases]
    phase_of = [_phase_of(clock, list(phases.values())) for clock in graph.clocks]
    factors = np.ones(len(names))
    for index, name in enumerate(names):
        inside = [phase == index for phase in phase_of]
        low, high = 0.0, _MAX_SCALE
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            added_ns = sum(
                float(clock.added_ns(middle)[mine].sum())
                for clock, mine in zip(graph.clocks, inside, strict=True)
            )
            too_much = added_ns > slowed_ns.get(name, 0.0) * graph.step_count
            low, high = (low, middle) if too_much else (middle, high)
        factors[index] = np.clip(high / scale, 1 / _APART, _APART)
    clocks = tuple(
        replace(clock, recording_ns=clock.recording_ns * factors[phase])
        for clock, phase in zip(graph.clocks, phase_of, strict=True)
    )
    return replace(graph, clocks=clocks)


def without_interruptions(
    graph: Graph, phases: Mapping[str, Coverage], phases_ns: Mapping[str, float]
) -> Graph:
    """Return a graph in which what takes longer than its whole phase does in the session is a hiccup.

    Args:
        graph: A captured step.
        phases: When each phase runs, ns.
        phases_ns: What each of them takes at most in most steps of the session.
    """
    clock = graph.clocks[0]  # of the main thread
    hiccups_ns = clock.hiccup_ns.copy()
    low, high = clock.at[:-1], clock.at[1:]
    for name, coverage in phases.items():
        if (whole_ns := phases_ns.get(name, 0.0)) > 0:
            inside = coverage.between(low, high) == high - low
            long = inside & (clock.captured_ns > _INTERRUPTED * whole_ns)
            hiccups_ns[long] = np.maximum(hiccups_ns, clock.captured_ns - whole_ns)[long]
    return replace(graph, clocks=(replace(clock, hiccup_ns=hiccups_ns), *graph.clocks[1:]))


def _phase_of(clock: HostClock, phases: list[Coverage]) -> Ints:
    """Return the number of the phase of each stretch of a clock; 0 = the rest of the step."""
    low, high = clock.at[:-1], clock.at[1:]
    found = np.zeros(len(low), dtype=np.int64)
    for number, coverage in enumerate(phases, 1):
        found[2 * coverage.between(low, high) > high - low] = number
    return found
