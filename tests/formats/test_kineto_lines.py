"""The same events in any layout give the same columns: libkineto's lines, other JSON, other wrappings."""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import zipfile
from collections.abc import Callable
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import real_traces
from tests.campaigns._samples import in_lines
from tuiprof.analyses import available, run
from tuiprof.formats import Cancelled, open_trace
from tuiprof.formats.kineto import layout, lines
from tuiprof.formats.kineto.columns import Books
from tuiprof.formats.kineto.decode import Chunk, ChunkDecoder
from tuiprof.formats.kineto.lines import LineReader
from tuiprof.model import Trace
from tuiprof.report import Style, render_all

HEAD = ("ph", "cat", "name", "pid", "tid")


def written(event: dict[str, Any], numbers: dict[str, str]) -> str:
    """Lay an event out as libkineto does; numbers may be given as text."""

    def pair(key: str, value: Any) -> str:
        return f"{json.dumps(key)}: {numbers.get(key, json.dumps(value))}"

    head = ", ".join(pair(key, event[key]) for key in HEAD if key in event)
    times = ", ".join(pair(key, event[key]) for key in ("ts", "dur") if key in event)
    text = f"  {{\n    {head},\n    {times}"
    if "args" in event:
        arguments = ", ".join(pair(key, value) for key, value in event["args"].items())
        text += f',\n    "args": {{\n      {arguments}\n    }}'
    return text + "\n  }"


def flow(number: int) -> str:
    return (
        f'  {{\n    "ph": "s", "id": {number}, "pid": 1, "tid": 2, "ts": {number},\n'
        '    "cat": "ac2g", "name": "ac2g"\n  }'
    )


def rows(chunk: Chunk) -> list[tuple[Any, ...]]:
    """Return the spans of a chunk in the order of the file, without codes."""
    spans = chunk.spans
    keys = ("external_id", "sequence", "correlation", "device", "stream", "bytes")
    columns = [spans.numbers.get(key, np.full(len(spans), -1)).tolist() for key in keys]
    return sorted(
        zip(
            spans.ordinal.tolist(),
            spans.ts.tolist(),
            spans.dur.tolist() if spans.dur is not None else [],
            [chunk.names[code] for code in spans.name],
            [chunk.cats[code] for code in spans.cat],
            [chunk.lanes[code] for code in spans.lane],
            *columns,
            strict=True,
        )
    )


def elsewise(texts: list[str]) -> bytes:
    """Lay the same events out without lines of their own; numbers keep their text."""
    return ",".join(text.replace("\n", " ") for text in texts).encode()


def as_chunk(texts: list[str]) -> bytes:
    return ("\n" + ",\n".join(texts)).encode()


plain = st.integers(0, 10**12).map(str)
odd = st.sampled_from(
    ["-1", "1e3", "1.5", '"7"', "null", str(2**63), str(2**64), "0", "99999999", "100000000"]
)
whole = st.one_of(st.integers(0, 10**16 - 1), st.integers(2**62 // 1000 - 5, 2**63 // 1000 + 5))
us = st.tuples(whole, st.sampled_from(["", ".001", ".500", ".5", ".0004", "e1"])).map(
    lambda parts: f"{parts[0]}{parts[1]}"
)
names = st.one_of(
    st.sampled_from(
        ["aten::to", "a", "", "void f::{lambda()#1}()", 'q"uote', "back\\slash", 'k": 1', "ü", "x" * 300]
    ),
    st.text(max_size=30),
)
kinds = st.sampled_from(["cpu_op", "kernel", "cuda_runtime", "python_function"])


@st.composite
def events(draw: st.DrawFn) -> str:
    if draw(st.integers(0, 9)) == 0:
        return flow(draw(st.integers(0, 10**9)))
    event: dict[str, Any] = {
        "ph": draw(st.sampled_from(["X"] * 8 + ["i", "B"])),
        "cat": draw(kinds),
        "name": draw(names),
        "pid": draw(st.sampled_from([0, 7, 4162022, "Spans", -1])),
        "tid": draw(st.sampled_from([7, 4162022, 140311, "thread"])),
        "ts": 0,
        "dur": 0,
    }
    numbers = {"ts": draw(us), "dur": draw(us)}
    arguments: dict[str, Any] = {}
    keys = ["External id", "external id", "correlation", "stack"]
    if event["cat"] not in ("cpu_op", "python_function"):  # those have no device, whatever they say
        keys += ["device", "stream", "bytes"]
    for key in draw(st.lists(st.sampled_from(keys), unique=True)):
        if key == "stack":
            arguments[key] = draw(
                st.sampled_from(['a "stream": 5', "x", [1, [2]], {"stream": 3}, "a\\", ["{", "}"], None])
            )
        else:
            arguments[key] = 0
            numbers[key] = draw(st.one_of(plain, plain, plain, odd))
    if draw(st.integers(0, 9)):
        event["args"] = arguments
    if draw(st.integers(0, 19)) == 0:
        del event["dur"]
    return written(event, numbers)


@settings(max_examples=150, deadline=None)
@given(st.lists(events(), min_size=1, max_size=30))
def test_the_layout_makes_no_difference(texts: list[str]) -> None:
    ours, other = ChunkDecoder().decode(as_chunk(texts)), ChunkDecoder().decode(elsewise(texts))
    assert ours.events == other.events == len(texts)
    assert ours.phases == other.phases
    assert rows(ours) == rows(other)
    assert (ours.malformed, ours.repaired) == (other.malformed, other.repaired)
    assert ours.instants.ordinal.tolist() == other.instants.ordinal.tolist()
    assert [ours.names[code] for code in ours.pairs.name] == [other.names[code] for code in other.pairs.name]


def usual(number: int) -> str:
    event = {"ph": "X", "cat": "cpu_op", "name": f"op{number % 7}", "pid": 1, "tid": 2, "ts": 0, "dur": 0}
    return written(
        {**event, "args": {"External id": number}}, {"ts": f"{10**15 + number}.125", "dur": "3.000"}
    )


def test_usual_events_are_read_from_their_lines() -> None:
    texts = [usual(number) for number in range(50)] + [flow(number) for number in range(10)]
    found = LineReader().read(as_chunk(texts), Books())
    assert found is not None
    assert not found.texts
    assert found.phases == {"X": 50, "s": 10}
    assert found.spans.ts.tolist() == [(10**15 + number) * 1000 + 125 for number in range(50)]


@pytest.mark.parametrize(
    "hidden",
    [
        '  {\n    "name": "process_name", "ph": "M", "pid": 1, "args": {\n      "name": "python"\n    }\n  }',
        '  {"ph": "i", "name": "mark", "pid": 1, "tid": 1, "ts": 5, "args": {\n    }\n  }',
        '{"ph": "X", "name": "other", "pid": 1, "tid": 1, "ts": 5, "dur": 1}',
    ],
)
def test_an_event_of_another_layout_is_not_taken_for_part_of_its_neighbour(hidden: str) -> None:
    texts = [usual(number) for number in range(20)] + [hidden] + [usual(number) for number in range(20, 40)]
    chunk = ChunkDecoder().decode(as_chunk(texts))
    assert chunk.events == 41
    assert chunk.phases["X"] >= 40


def test_a_phase_that_is_said_twice_counts_as_said_last() -> None:
    texts = [usual(number) for number in range(20)] + [flow(1), flow(2).replace('"id"', '"ph": "X", "id"')]
    ours, other = ChunkDecoder().decode(as_chunk(texts)), ChunkDecoder().decode(elsewise(texts))
    assert ours.phases == other.phases == {"X": 21, "s": 1}
    assert rows(ours) == rows(other)


def test_names_are_told_apart_however_many_there_are() -> None:
    event = {"ph": "X", "cat": "c", "name": "NAME", "pid": 1, "tid": 2, "ts": 0, "dur": 0, "args": {}}
    decoder = ChunkDecoder()
    for first in (0, 70_000):  # more than are remembered
        every = [f"{'long ' * (number % 50)}{number}" for number in range(first, first + 70_000)]
        texts = [written({**event, "name": name}, {}) for name in every]
        chunk = decoder.decode(as_chunk(texts))
        assert [chunk.names[code] for code in chunk.spans.name] == every


def test_digits_of_any_length() -> None:
    generator = random.Random(1)
    numbers = [generator.randrange(10 ** generator.randrange(1, 19)) for _ in range(500)]
    text, places = b" " * 16, []
    for number in numbers:
        places.append(len(text))
        text += b"%d" % number + generator.choice([b",", b"\n", b"/", b":", b"\xff", b"}"])
    words = lines.Text(text + bytes(128)).words
    values, count = lines.integers(words, np.array(places))
    assert values.tolist() == numbers
    assert count.tolist() == [len(str(number)) for number in numbers]


@given(st.lists(st.integers(0, 90), max_size=12), st.integers(0, 100))
def test_places_of_a_mask(gaps: list[int], behind: int) -> None:
    at = (
        np.cumsum(np.array(gaps, dtype=np.int64) + 1) - 1
    )  # some in one word of eight, most in words of their own
    mask = np.zeros(sum(gaps) + len(gaps) + behind, dtype=bool)
    mask[at] = True
    assert lines.true_at(mask).tolist() == at.tolist()


def file_of(texts: list[str]) -> bytes:
    return b'{"schemaVersion": 1, "traceEvents": [' + as_chunk(texts) + b"\n  ]\n}\n"


def test_workers_read_lines_the_same(tmp_path: Path) -> None:
    texts = [usual(number) for number in range(40_000)]
    texts[35_000] = flow(1)
    texts[30_000] = texts[30_000].replace("1000000000030000.125", "NaN")  # its neighbours are kept
    path = tmp_path / "t.json"
    path.write_bytes(file_of(texts))
    alone, together = open_trace(path, workers=0), open_trace(path, workers=3)
    assert alone.stats.events == 40_000
    assert together.stats == alone.stats
    assert together.events.equals(alone.events)
    assert len(alone) == 39_998  # neither the flow nor what has no time
    assert json.loads(together.raw_event(39_000))["args"] == {"External id": 39_002}


def test_a_trace_that_is_not_wanted_any_more_leaves_no_process(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(file_of([usual(number) for number in range(60_000)]))
    before = set(psutil.Process().children())
    working: list[bool] = []

    def cancelled() -> bool:
        working.append(bool(set(psutil.Process().children()) - before))
        return len(working) == 3

    with pytest.raises(Cancelled):
        open_trace(path, cancelled=cancelled, workers=2)
    assert all(working)
    assert set(psutil.Process().children()) == before


Json = Any


def changed(value: Json, change: Callable[[str, Json], Json], key: str = "") -> Json:
    """Return a document with its values and the order of its keys changed."""
    if isinstance(value, dict):
        return change("{}", {k: changed(v, change, k) for k, v in value.items()})
    if isinstance(value, list):
        return [changed(v, change) for v in value]
    return change(key, value)


def times(how: Callable[[str], Json]) -> Callable[[str, Json], Json]:
    return lambda key, value: how(repr(value)) if key in ("ts", "dur") else value


def reordered(order: Callable[[list[tuple[str, Json]]], Json]) -> Callable[[str, Json], Json]:
    return lambda key, value: dict(order(list(value.items()))) if key == "{}" else value


def kineto(document: Json) -> str:
    head = "".join(
        f"  {json.dumps(k)}: {json.dumps(v)},\n" for k, v in document.items() if k != "traceEvents"
    )
    whole = {"ph", "cat", "name", "pid", "tid", "args"}
    events = (in_lines(e) if e.keys() >= whole else json.dumps(e, indent=1) for e in document["traceEvents"])
    return "{\n" + head + '  "traceEvents": [\n' + ",\n".join(events) + "\n  ]\n}\n"


def with_exponents(document: Json) -> str:
    marked = changed(document, times(lambda text: f"@{Decimal(text):E}@"))
    return re.sub(r'"@([^"]*)@"', r"\1", json.dumps(marked))


def escaped(document: Json) -> str:
    """Write every character of the names as a number."""
    marked = changed(
        document, lambda key, value: f"\0{value}" if key == "name" and type(value) is str else value
    )
    parts = json.dumps(marked).split('"\\u0000')
    for i, part in enumerate(parts[1:], 1):
        name, _, rest = part.partition('"')
        parts[i] = '"' + "".join(f"\\u{ord(c):04x}" for c in json.loads(f'"{name}"')) + '"' + rest
    return "".join(parts)


LAYOUTS: dict[str, Callable[[Json], str]] = {
    "compact": lambda d: json.dumps(d, separators=(",", ":")),
    "pretty": lambda d: json.dumps(d, indent=4),
    "lines end in CRLF": lambda d: json.dumps(d, indent=1, separators=(" ,", "\t: ")).replace("\n", "\r\n"),
    "libkineto": kineto,
    "libkineto, CRLF": lambda d: kineto(d).replace("\n", "\r\n"),
    "escaped names": escaped,
    "keys sorted": lambda d: json.dumps(changed(d, reordered(sorted))),
    "keys reversed": lambda d: json.dumps(changed(d, reordered(lambda items: items[::-1])), indent=2),
    "times as texts": lambda d: json.dumps(changed(d, times(str))),
    "times with exponents": with_exponents,
}
WRAPPINGS = ("plain", "gzip", "members", "zip")


def wrapped(data: bytes, how: str) -> bytes:
    if how == "zip":
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("trace.json", data)
        return out.getvalue()
    chance = random.Random(1)
    cuts = [0, *sorted(chance.sample(range(len(data)), 5 if how == "members" else 0)), len(data)]
    parts = [data[low:high] for low, high in pairwise(cuts)]
    return data if how == "plain" else b"".join(map(gzip.compress, parts))


def said(trace: Trace) -> dict[str, Json]:
    """Return all that a trace says."""
    lanes = [(track.kind, str(track.pid), str(track.tid), track.name, track.device) for track in trace.tracks]
    tables = {"events": trace.events, "instants": trace.instants, "counters": trace.counters}
    rows = {name: table.drop("track").rows() for name, table in tables.items() if table is not None}
    reports = [run(name, trace) for name in available()]
    return {
        **rows,
        "lanes": [lanes[track] for track in trace.events["track"].to_list()],
        "about": (trace.info.devices, trace.info.rank, trace.info.framework, trace.info.origin_unix_ns),
        "trust": trace.trust.line,
        "reports": render_all(reports, "json", style=Style()),
    }


@pytest.fixture(scope="module", params=["hta-event-sync-a100.json.gz", "tracelens-b300-moe.json.gz"])
def document(request: pytest.FixtureRequest) -> Json:
    text = gzip.decompress(real_traces.path(request.param).read_bytes())
    return json.loads(text)


@pytest.fixture(scope="module")
def expected(document: Json, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Json]:
    path = tmp_path_factory.mktemp("whole") / "t.json"
    path.write_text(json.dumps(document))
    return said(open_trace(path, workers=0, cache=False))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(document: Json, expected: dict[str, Json], layout: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(LAYOUTS[layout](document).encode())
    found = said(open_trace(path, workers=0, cache=False))
    for part, value in expected.items():
        assert found[part] == value, part


@pytest.mark.parametrize("how", WRAPPINGS)
def test_wrappings_and_cuts_at_any_place(
    document: Json, expected: dict[str, Json], how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.json"
    for size in range(300, 6000, 811):
        path.write_bytes(wrapped(LAYOUTS["libkineto" if size % 2 else "compact"](document).encode(), how))
        monkeypatch.setattr(layout, "SIZE", size)
        monkeypatch.setattr(layout, "_BLOCK", size // 3)
        monkeypatch.setattr(layout.plan, "__defaults__", (size,))
        trace = open_trace(path, workers=0, cache=False)
        assert trace.events.drop("track").rows() == expected["events"], size
        assert trace.trust.line == expected["trust"]


def test_a_bare_list_has_the_same_events(document: Json, expected: dict[str, Json], tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document["traceEvents"]))
    trace = open_trace(path, workers=0, cache=False)
    assert trace.events.drop("track").rows() == expected["events"]
