"""Damaged XSpace files: what can be read is, and nothing but a clear error comes of the rest."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import xspace
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import real_traces
from tuiprof.errors import TraceError
from tuiprof.formats import open_trace
from tuiprof.formats.xplane.protobuf import PADDING, Buffer


def test_a_file_that_went_through_a_text_tool() -> None:
    with pytest.raises(TraceError, match="processed as text") as caught:
        open_trace(real_traces.path("odd/odd-xplane-mangled-utf8-replaced.xplane.pb"))
    assert caught.value.remedy


def test_a_damaged_event_costs_only_itself(tmp_path: Path) -> None:
    host = xspace.Plane("/host:CPU")
    line = host.line("python").event("a", 0, 1000).event("b", 1000, 1000).event("c", 2000, 1000)
    line.events[1] = line.events[1][:-1] + b"\xff"  # a number without an end
    path = tmp_path / "one.xplane.pb"
    path.write_bytes(xspace.encode(host))
    trace = open_trace(path)
    assert trace.events["name"].to_list() == ["a", "c"]
    assert trace.stats.malformed == 1
    assert "malformed" in {remark.code for remark in trace.trust.remarks}


def test_cut_off_and_garbled_files_fail_cleanly(tmp_path: Path) -> None:
    whole = real_traces.path("selfgen-jax0102-cpu.xplane.pb").read_bytes()
    path = tmp_path / "x.xplane.pb"
    chance = random.Random(7)
    failures = 0
    for attempt in range(150):
        data = bytearray(whole)
        if attempt % 3 == 0:
            del data[chance.randrange(1, len(data)) :]
        else:
            for _ in range(chance.choice((1, 5, 50))):
                data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data)
        try:
            trace = open_trace(path)
        except TraceError:
            failures += 1
        else:
            for row in range(0, len(trace), 97):
                trace.raw_event(row)
            assert trace.trust.line
    assert 30 < failures < 150


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.integers(0, 2**64 - 1) | st.sampled_from([0, 127, 128, 2**56 - 1, 2**56, 2**63, 2**64 - 1]),
        min_size=1,
    )
)
def test_varints_in_columns_are_those_read_one_by_one(values: list[int]) -> None:
    encoded = [xspace.varint(value) for value in values]
    at = np.cumsum([0, *(len(part) for part in encoded[:-1])])
    found, length = Buffer(b"".join(encoded) + PADDING).varints(at.astype(np.int64))
    assert found.tolist() == values
    assert length.tolist() == [len(part) for part in encoded]


def test_a_varint_without_end_has_an_impossible_length() -> None:
    _, length = Buffer(b"\xff" * 12 + PADDING).varints(np.array([0]))
    assert length.tolist() == [11]
