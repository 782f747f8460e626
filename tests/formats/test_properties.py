"""Properties that hold for every trace."""

from __future__ import annotations

import json
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tuiprof.formats import open_trace
from tuiprof.formats.kineto import columns
from tuiprof.formats.kineto.decode import ChunkDecoder, split_events, strict_events


def ns(text: str) -> int:
    return int((Decimal(text) * 1000).to_integral_value(ROUND_HALF_EVEN))


decimals = st.builds(
    lambda whole, fraction: f"{whole}.{fraction}" if fraction else str(whole),
    st.one_of(
        st.integers(0, 10**6),
        st.integers(10**12, 10**13),
        st.integers(1_600_000_000 * 10**6, 1_800_000_000 * 10**6),
    ),
    st.text("0123456789", max_size=7),
)


@given(st.lists(decimals, min_size=1, max_size=30))
def test_times_are_rounded_as_decimals(texts: list[str]) -> None:
    expected = [ns(text) for text in texts]
    assert columns.ns_from_text([text.encode() for text in texts]).tolist() == expected
    quick = columns.ns_from_numbers([json.loads(text) for text in texts])
    assert quick is None or quick.tolist() == expected


@given(st.lists(st.integers(10**15, 10**16 - 1), min_size=1, max_size=9), st.integers(0, 3))
def test_stamps_written_alike(values: list[int], decimals: int) -> None:
    texts = [f"{value}{'.' if decimals else ''}{'7' * decimals}" for value in values]
    expected = [ns(text) if ns(text) < columns.LIMIT_NS else -(1 << 63) for text in texts]
    assert columns.ns_from_text([text.encode() for text in texts]).tolist() == expected


names = st.text(max_size=12)
events = st.fixed_dictionaries(
    {
        "name": names,
        "ts": decimals,
        "dur": decimals,
        "pid": st.integers(0, 3),
        "tid": st.sampled_from([1, "2", "main"]),
    },
    optional={
        "cat": st.sampled_from(["cpu_op", "kernel", "python_function"]),
        "correlation": st.integers(0, 99),
    },
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(written=st.lists(events, max_size=12), as_object=st.booleans(), indent=st.sampled_from([None, 1]))
def test_what_is_written_is_read(
    written: list[dict[str, object]], as_object: bool, indent: int | None, tmp_path: Path
) -> None:
    texts = []
    for event in written:
        fields = {key: value for key, value in event.items() if key not in ("ts", "dur", "correlation")}
        text = json.dumps(
            {"ph": "X", "args": {"correlation": event.get("correlation", 5)}, **fields}, indent=indent
        )
        texts.append(f'{text[:-1]}, "ts": {event["ts"]}, "dur": {event["dur"]}}}')
    body = "[" + ",\n".join(texts) + "]"
    path = tmp_path / "t.json"
    path.write_text(f'{{"traceEvents": {body}, "rank": 1}}' if as_object else body)
    trace = open_trace(path, workers=0)
    origin = min((ns(str(event["ts"])) for event in written), default=0)
    rows = sorted(
        range(len(written)), key=lambda i: (ns(str(written[i]["ts"])), -ns(str(written[i]["dur"])), i)
    )
    assert trace.events["ordinal"].to_list() == rows
    assert trace.starts.tolist() == [ns(str(written[i]["ts"])) - origin for i in rows]
    assert trace.ints("dur").tolist() == [ns(str(written[i]["dur"])) for i in rows]
    assert trace.events["name"].cast(str).to_list() == [written[i]["name"] for i in rows]
    assert trace.ints("correlation").tolist() == [written[i].get("correlation", 5) for i in rows]
    lanes = {str(i): (written[i]["pid"], str(written[i]["tid"])) for i in rows}
    assert [(t.pid, str(t.tid)) for t in (trace.tracks[i] for i in trace.ints("track"))] == [
        lanes[str(i)] for i in rows
    ]
    assert not trace.stats.malformed
    assert not trace.stats.repaired


values = st.recursive(
    st.one_of(st.integers(), names),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
)


@settings(max_examples=40)
@given(st.lists(values, max_size=5))
def test_the_patient_splitter_agrees_with_json(values: list[object]) -> None:
    objects = [{"v": value} for value in values]
    data = ", ".join(map(json.dumps, objects)).encode() + b"]"
    pieces = split_events(data)
    assert [json.loads(data[start:stop]) for start, stop in pieces.slices] == objects
    assert pieces.closed_at == len(data) - 1
    assert not pieces.damaged


@settings(max_examples=40)
@given(st.lists(values, max_size=5), st.sampled_from(["", ",", "\n", " ,\n"]))
def test_the_fast_splitter_agrees_with_the_patient_one(values: list[object], end: str) -> None:
    data = (",\n".join(json.dumps({"v": value}) for value in values) + end).encode()
    assert [bytes(text) for text in strict_events(data)] == [
        data[start:stop] for start, stop in split_events(data).slices
    ]


@pytest.mark.parametrize(
    "damaged", [b'{"v": 1}, {"v"', b'{"v": NaN}', b'{"v": 1} {"v": 2}', b'{"v": 1}, 5', b'{"v": 1}]']
)
def test_the_fast_splitter_takes_strict_json_alone(damaged: bytes) -> None:
    assert not strict_events(damaged)


@given(st.binary(max_size=200))
def test_any_bytes_decode_to_a_chunk(data: bytes) -> None:
    chunk = ChunkDecoder().decode(data)
    assert chunk.events >= len(chunk.spans)
    assert 0 <= chunk.rest <= len(data)


def test_time_order_is_stable() -> None:
    from tuiprof.formats.event_table import order_of

    ts, dur = np.array([5, 1, 5, 5, 1]), np.array([1, 2, 3, 3, 2])
    assert order_of(ts, dur, np.arange(5, dtype=np.uint32)).tolist() == [1, 4, 2, 3, 0]
