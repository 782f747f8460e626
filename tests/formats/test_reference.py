"""Every real trace against figures that were worked out with decimal arithmetic by another program."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests import real_traces
from tuiprof.formats import open_trace, sniff
from tuiprof.formats.kineto import categories
from tuiprof.model import Trace
from tuiprof.model.intervals import total, union

SYNC = re.compile(
    r"^(?:(?:cuda|cu|hip)(?:Stream|Device|Event|Ctx)Synchronize|ze\w*Synchronize|aclrt\w*Synchronize\w*)$"
)


FIGURES = {
    name: figures
    for name, figures in real_traces.all_figures().items()
    if str(figures.get("format", "")).startswith("chrome-json")
}


@pytest.fixture(scope="module", params=list(FIGURES))
def case(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any], Trace]:
    path = real_traces.path(request.param)
    assert sniff(path) == "kineto"
    return request.param, FIGURES[request.param], open_trace(path, workers=0)


def test_what_a_clone_carries_is_what_was_published_and_says_whose_it_is() -> None:
    files = json.loads((real_traces.HERE / "figures.json").read_bytes())["files"]
    listed = (real_traces.HERE / "README.md").read_text()
    licences = (real_traces.HERE / "LICENCES.md").read_text()
    here = {
        path.relative_to(real_traces.HERE).as_posix()
        for path in real_traces.HERE.rglob("*")
        if path.is_file() and path.suffix != ".md" and path.name != "figures.json"
    }
    assert here == set(files)
    for name, entry in files.items():
        data = (real_traces.HERE / name).read_bytes()
        whole = gzip.decompress(data) if name.endswith(".gz") else data
        assert entry["sha256"] in (hashlib.sha256(whole).hexdigest(), hashlib.sha256(data).hexdigest()), name
        [row] = [line for line in listed.splitlines() if line.startswith(f"| `{name}` |")]
        source = row.split("|")[2].strip().partition("@")[0]
        assert source == "recorded for tuiprof" or f"- {source}" in licences, name


def _named(trace: Trace, names: set[str]) -> np.ndarray:
    codes = [code for code, name in enumerate(trace.names) if name in names]
    return np.isin(trace.name_codes, codes)


def test_every_event_is_read(case: tuple[str, dict[str, Any], Trace]) -> None:
    _, figures, trace = case
    expected = {("?" if phase == "None" else phase): count for phase, count in figures["ph"].items()}
    assert trace.stats.phases == expected
    assert trace.stats.events == figures["events_total"]
    assert trace.stats.malformed == 0
    assert trace.stats.source_bytes == figures["uncompressed_bytes"]
    pairs = expected.get("B", 0)
    assert len(trace) == figures["complete_events"] + pairs


def test_categories(case: tuple[str, dict[str, Any], Trace]) -> None:
    _, figures, trace = case
    counts = Counter(trace.events["category"].to_list())
    told, untold = Counter[str](), 0
    for word, count in figures["complete_by_cat"].items():
        category = categories.category("" if word == "None" else word)
        if category is None:
            untold += count
        else:
            told[category] += count
    assert all(counts[category] >= count for category, count in told.items())
    assert (counts - told).total() == untold + figures["ph"].get("B", 0)


def test_sync_calls(case: tuple[str, dict[str, Any], Trace]) -> None:
    _, figures, trace = case
    for name, expected in figures["sync_calls"].items():
        rows = _named(trace, {name}) & ~trace.is_category("python_function")
        assert (int(rows.sum()), int(trace.ints("dur")[rows].sum())) == (
            expected["count"],
            expected["total_ns"],
        )
    of_sync = np.isin(trace.name_codes, [c for c, name in enumerate(trace.names) if SYNC.match(name)])
    of_sync &= trace.is_category("runtime", "driver")
    assert int(of_sync.sum()) == figures["sync_calls_total"]["count"]
    assert int(trace.ints("dur")[of_sync].sum()) == figures["sync_calls_total"]["total_ns"]
    device_sync = trace.is_category("sync") & (trace.ints("correlation") >= 0)
    if figures["cuda_sync_cat"]:
        assert int(device_sync.sum()) == sum(v["count"] for v in figures["cuda_sync_cat"].values())


def test_launch_calls(case: tuple[str, dict[str, Any], Trace]) -> None:
    _, figures, trace = case
    for name, expected in figures["launch_calls"].items():
        rows = _named(trace, {name}) & trace.is_category("runtime", "driver")
        assert (int(rows.sum()), int(trace.ints("dur")[rows].sum())) == (
            expected["count"],
            expected["total_ns"],
        )


def test_kernels_and_copies(case: tuple[str, dict[str, Any], Trace]) -> None:
    _, figures, trace = case
    if not figures["kernels"]["count"] and not figures["memops"]:
        pytest.skip("no Kineto device events")
    for word, expected in {"kernel": figures["kernels"], **figures["memops"]}.items():
        category = categories.category(word)
        assert category is not None
        rows = trace.is_category(category)
        assert (int(rows.sum()), int(trace.ints("dur")[rows].sum())) == (
            expected["count"],
            expected["total_ns"],
        )


def test_busy_time_of_each_device(case: tuple[str, dict[str, Any], Trace]) -> None:
    _, figures, trace = case
    for text, expected in figures["gpu"].items():
        device = 0 if text == "None" else int(text)
        rows = trace.device_work[trace.ints("device")[trace.device_work] == device]
        assert len(rows) == expected["events"]
        assert total(*trace.busy(device)) == expected["busy_union_ns"]
        kernels = rows[trace.is_category("kernel")[rows]]
        assert total(*union(trace.starts[kernels], trace.ends[kernels])) == expected["kernel_busy_union_ns"]
        assert int(trace.ends[rows].max() - trace.starts[rows].min()) == expected["span_ns"]
    assert set(map(str, trace.device_indices)) >= set(figures["gpu"]) - {"None"}
    linked = trace.links.launch_of[trace.device_work] >= 0
    if figures["gpu"]:
        assert int(linked.sum()) == figures["device_events_matched_to_runtime"]


def test_streams(case: tuple[str, dict[str, Any], Trace]) -> None:
    _, figures, trace = case
    if figures["gpu"] and "None" not in figures["gpu"]:
        device, stream = trace.ints("device"), trace.ints("stream")
        counts = Counter(f"{device[row]}/{stream[row]}" for row in trace.device_work.tolist())
        assert counts == figures["streams"]


def test_steps(case: tuple[str, dict[str, Any], Trace]) -> None:
    _, figures, trace = case
    if trace.info.framework == "JAX":
        pytest.skip("the reference counts PyTorch's marks alone")
    if trace.steps.read_from:  # it marks none; they are read from what it repeats
        assert figures["steps"]["distinct"] == 0
        return
    assert len(trace.steps) == figures["steps"]["distinct"]
    expected = {step["step"]: max(step["dur_ns"]) for step in figures["steps"]["list"]}
    steps = trace.steps
    assert dict(zip(steps.numbers.tolist(), (steps.ends - steps.starts).tolist(), strict=True)) == expected


def test_span_and_clock(case: tuple[str, dict[str, Any], Trace]) -> None:
    name, figures, trace = case
    if figures["ph"].get("B"):
        pytest.skip("the reference leaves begin and end events out of the span")
    start, end = trace.span
    assert end - start == figures["trace_span_ns"]
    base = trace.info.properties.get("baseTimeNanoseconds", 0)
    if trace.info.origin_unix_ns is not None:
        assert trace.info.origin_unix_ns - int(str(base)) + start == figures["trace_first_ns"], name


def test_lanes_of_devices_without_categories(case: tuple[str, dict[str, Any], Trace]) -> None:
    _, figures, trace = case
    for lane in figures["device_lanes"]:
        pid, _, tid = lane["pid_tid"].partition("/")
        tracks = [t.index for t in trace.tracks if str(t.pid) == pid and str(t.tid) == tid]
        rows = np.isin(trace.ints("track"), tracks)
        assert (int(rows.sum()), int(trace.ints("dur")[rows].sum())) == (lane["events"], lane["total_ns"])
        assert total(*union(trace.starts[rows], trace.ends[rows])) == lane["union_ns"]


def test_instants(case: tuple[str, dict[str, Any], Trace]) -> None:
    _, figures, trace = case
    expected = sum(count for phase, count in figures["ph"].items() if phase in "iIRP")
    assert (0 if trace.instants is None else len(trace.instants)) == expected


def test_raw_text_is_that_of_the_event(case: tuple[str, dict[str, Any], Trace]) -> None:
    _, _, trace = case
    for row in {0, len(trace) // 3, len(trace) - 1} if len(trace) else set[int]():
        event = json.loads(trace.raw_event(row))
        assert event.get("name", "") == trace.name(row)
        assert event["ph"] in "XB"
