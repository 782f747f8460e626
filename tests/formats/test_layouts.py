"""One trace laid out in every way that JSON allows says the same, down to the reports."""

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

import pytest

from tests import real_traces
from tests.campaigns._samples import in_lines
from tuiprof.analyses import available, run
from tuiprof.formats import open_trace
from tuiprof.formats.kineto import layout
from tuiprof.model import Trace
from tuiprof.report import Style, render_all

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
