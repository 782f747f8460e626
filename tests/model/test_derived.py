"""Unions, links and steps against their definitions, event by event."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from tuiprof.model import EVENT_SCHEMA, Trace, TraceInfo, Track
from tuiprof.model.intervals import Coverage, clip, complement, intersection, total, union
from tuiprof.model.trace import CATEGORY_TYPE

INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=14)


def arrays(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    starts = np.array([start for start, _ in pairs], dtype=np.int64)
    return starts, starts + np.array([length for _, length in pairs], dtype=np.int64)


def points(starts: np.ndarray, ends: np.ndarray) -> set[int]:
    return {
        point
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        for point in range(start, end)
    }


@given(INTERVALS)
def test_union_covers_the_same_points_and_touches_nowhere(pairs: list[tuple[int, int]]) -> None:
    starts, ends = union(*arrays(pairs))
    assert points(starts, ends) == points(*arrays(pairs))
    assert (starts[1:] > ends[:-1]).all()
    assert total(starts, ends) == len(points(starts, ends))


@given(INTERVALS, INTERVALS, st.integers(0, 50), st.integers(0, 50))
def test_gaps_cuts_and_overlaps(
    a: list[tuple[int, int]], b: list[tuple[int, int]], low: int, high: int
) -> None:
    first, second = union(*arrays(a)), union(*arrays(b))
    inside = set(range(low, high))
    if high >= low:
        assert points(*complement(*first, low, high)) == inside - points(*first)
    assert points(*clip(*first, low, high)) == points(*first) & inside
    assert points(*intersection(*first, *second)) == points(*first) & points(*second)
    assert int(Coverage(*first).between(low, high)) == len(points(*first) & inside)


EVENTS = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.integers(0, 12),
        st.sampled_from(["runtime", "driver", "kernel", "memcpy", "cpu_op", "annotation"]),
        st.sampled_from([None, 0, 1, 2, 3]),
        st.sampled_from(["op", "ProfilerStep#1", "ProfilerStep#2", "ProfilerStep#7"]),
    ),
    max_size=16,
)


def make(events: list[tuple[int, int, str, int | None, str]]) -> Trace:
    events = sorted(events, key=lambda e: (e[0], -e[1]))
    names = sorted({e[4] for e in events})
    device = [0 if e[2] in ("kernel", "memcpy") else None for e in events]
    table = pl.DataFrame(
        {
            "ts": [e[0] for e in events],
            "dur": [e[1] for e in events],
            "name": pl.Series([e[4] for e in events], dtype=pl.Enum(names)),
            "category": pl.Series([e[2] for e in events], dtype=CATEGORY_TYPE),
            "track": [0] * len(events),
            "device": device,
            "stream": device,
            "correlation": [e[3] for e in events],
            "external_id": [None] * len(events),
            "sequence": [None] * len(events),
            "bytes": [None] * len(events),
            "ordinal": list(range(len(events))),
        },
        schema_overrides={k: v for k, v in EVENT_SCHEMA.items() if k not in ("name", "category")},
    )
    return Trace(table, (Track(0, "thread", 1, 1, "main"),), TraceInfo(None, "test"))


@settings(deadline=None)
@given(EVENTS)
def test_links_join_work_with_the_earliest_call_of_its_correlation(
    events: list[tuple[int, int, str, int | None, str]],
) -> None:
    trace = make(events)
    rows = trace.events.to_dicts()
    launches: dict[int, int] = {}
    for i, row in enumerate(rows):
        expected = -1
        if row["category"] in ("kernel", "memcpy") and row["correlation"]:
            calls = [
                j
                for j, call in enumerate(rows)
                if call["category"] in ("runtime", "driver") and call["correlation"] == row["correlation"]
            ]
            expected = calls[0] if calls else -1
        assert trace.links.launch_of[i] == expected
        if expected >= 0:
            launches[expected] = launches.get(expected, 0) + 1
    assert dict(zip(trace.links.launches.tolist(), trace.links.work_count.tolist(), strict=True)) == launches
    assert trace.links.launches.tolist() == sorted(launches)
    assert trace.links.unmatched_work == len(trace.device_work) - sum(launches.values())


@settings(deadline=None)
@given(EVENTS)
def test_an_event_belongs_to_the_step_it_starts_in_and_work_to_that_of_its_launch(
    events: list[tuple[int, int, str, int | None, str]],
) -> None:
    trace = make(events)
    steps = trace.steps
    markers = dict(
        zip(steps.numbers.tolist(), zip(steps.starts.tolist(), steps.ends.tolist(), strict=True), strict=True)
    )
    named = {
        int(row["name"].partition("#")[2])
        for row in trace.events.to_dicts()
        if "#" in row["name"] and row["category"] != "kernel"
    }
    assert set(markers) == named
    assert (np.diff(steps.starts) >= 0).all()
    for i in range(len(trace)):
        if trace.ints("device")[i] >= 0:
            launch = int(trace.links.launch_of[i])
            assert steps.step_of[i] == (steps.step_of[launch] if launch >= 0 else -1)
            continue
        around = [k for k in range(len(steps)) if steps.starts[k] <= trace.starts[i] < steps.ends[k]]
        expected = around[-1] if around else -1  # of steps inside each other the one that began last
        assert steps.step_of[i] == expected
