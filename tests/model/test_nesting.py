"""The tree of events against the definition, event by event."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tuiprof.model.intervals import nest

EVENTS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 8), st.integers(0, 1)), max_size=14)


@given(EVENTS)
@settings(max_examples=300, deadline=None)
def test_every_enclosing_event_is_found_innermost_first(events: list[tuple[int, int, int]]) -> None:
    events = sorted(events, key=lambda e: (e[0], -e[1]))
    starts = np.array([e[0] for e in events], dtype=np.int64)
    ends = starts + np.array([e[1] for e in events], dtype=np.int64)
    tracks = np.array([e[2] for e in events], dtype=np.int64)
    nesting = nest(starts, ends, tracks)
    enclosing = [
        [j for j in range(i - 1, -1, -1) if tracks[j] == tracks[i] and ends[j] >= ends[i]]
        for i in range(len(events))
    ]
    assert nesting.parent.tolist() == [chain[0] if chain else -1 for chain in enclosing]
    walked: list[list[int]] = [[] for _ in events]
    for level in nesting.outward(np.arange(len(events))):
        for row, above in enumerate(level.tolist()):
            if above >= 0:
                walked[row].append(above)
    assert walked == enclosing


def test_a_frame_outside_an_overlapping_step_is_still_found() -> None:
    """main() returns before the profiler ends the step; the call inside both names main."""
    starts = np.array([0, 10, 20], dtype=np.int64)  # main, step, call
    ends = np.array([50, 60, 30], dtype=np.int64)
    nesting = nest(starts, ends, np.zeros(3, dtype=np.int64))
    assert nesting.parent.tolist() == [-1, -1, 1]
    assert [int(level[0]) for level in nesting.outward(np.array([2]))] == [1, 0]
