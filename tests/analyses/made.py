"""A small builder of traces with known answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl

from tuiprof.analyses import run
from tuiprof.model import Report, Trace, TraceInfo, Track, Window
from tuiprof.model.steps import Uncaptured
from tuiprof.model.trace import CATEGORY_TYPE

MAIN, BACKWARD, STREAM, OTHER_STREAM = 0, 1, 2, 3
TRACKS = (
    Track(MAIN, "thread", 1, 100, "thread 100 (python)"),
    Track(BACKWARD, "thread", 1, 101, "thread 101 (autograd)"),
    Track(STREAM, "stream", 0, 7, "stream 7", 0),
    Track(OTHER_STREAM, "stream", 0, 8, "stream 8", 0),
)
ORIGIN_UNIX_NS = 1_700_000_000_000_000_000


class Made:
    """Collects events; times in µs for the reader's sake."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.sites: list[dict[str, Any]] = []

    def add(self, category: str, name: str, start: float, end: float, **columns: Any) -> Made:
        """Add one event."""
        self.rows.append(
            {
                "ts": round(start * 1000),
                "dur": round((end - start) * 1000),
                "name": name,
                "category": category,
                "track": MAIN,
                "device": None,
                "stream": None,
                "correlation": None,
                "external_id": None,
                "sequence": None,
                "bytes": None,
                "ordinal": len(self.rows),
                **columns,
            }
        )
        return self

    def op(self, name: str, start: float, end: float, **columns: Any) -> Made:
        """Add an operator."""
        return self.add("cpu_op", name, start, end, **columns)

    def call(self, name: str, start: float, end: float, **columns: Any) -> Made:
        """Add a runtime call."""
        return self.add("runtime", name, start, end, **columns)

    def kernel(
        self, name: str, start: float, end: float, correlation: int | None = None, **columns: Any
    ) -> Made:
        """Add a kernel on stream 7 of device 0."""
        return self.add(
            columns.pop("category", "kernel"),
            name,
            start,
            end,
            correlation=correlation,
            **{"track": STREAM, "device": 0, "stream": 7, **columns},
        )

    def launch(
        self,
        name: str,
        call: tuple[float, float],
        work: tuple[float, float],
        correlation: int | None = None,
        thread: int = MAIN,
        **columns: Any,
    ) -> Made:
        """Add a launch call and the kernel it launches; without a correlation, with one of their own."""
        correlation = self._correlation(correlation)
        self.call("cudaLaunchKernel", *call, correlation=correlation, track=thread)
        return self.kernel(name, *work, correlation, **columns)

    def copy(self, what: str, call: tuple[float, float], work: tuple[float, float], size: int) -> Made:
        """Add a call that copies memory, and the copy, such as ``HtoD (Pageable -> Device)``."""
        correlation = self._correlation()
        self.call("cudaMemcpyAsync", *call, correlation=correlation)
        return self.kernel(f"Memcpy {what}", *work, correlation, category="memcpy", bytes=size)

    def _correlation(self, given: int | None = None) -> int:
        return 1_000_000 + len(self.rows) if given is None else given

    def step(self, number: int, start: float, end: float) -> Made:
        """Add a step marker."""
        return self.add("annotation", f"ProfilerStep#{number}", start, end)

    def steps(self, length: float, count: int = 4) -> Iterator[tuple[int, float]]:
        """Add steps of one length, one after the other, each before what is in it; yield number and begin of each."""
        for number in range(count):
            self.step(number, number * length, (number + 1) * length)
            yield number, number * length

    def site(self, at_us: float, *frames: str) -> Made:
        """Add a sync site as the probe writes it."""
        self.sites.append(site(at_us, *frames))
        return self

    def trace(self, sync_sites: Sequence[dict[str, Any]] = (), **info: Any) -> Trace:
        """Return the trace; fields of its info may be given, and more sync sites."""
        names = sorted({row["name"] for row in self.rows})
        schema = {
            "ts": pl.Int64,
            "dur": pl.Int64,
            "name": pl.Enum(names),
            "category": CATEGORY_TYPE,
            "track": pl.UInt32,
            "device": pl.Int16,
            "stream": pl.Int64,
            "correlation": pl.Int64,
            "external_id": pl.Int64,
            "sequence": pl.Int64,
            "bytes": pl.Int64,
            "ordinal": pl.UInt32,
        }
        ordered = sorted(self.rows, key=lambda row: (row["ts"], -row["dur"]))
        events = pl.DataFrame(ordered, schema=schema)
        sites = None
        if found := [*self.sites, *sync_sites]:
            whole = [{"dur_ns": None} | one for one in found]
            sites = pl.DataFrame(whole, schema_overrides={"dur_ns": pl.Int64})
        known = {"format": "made", "origin_unix_ns": ORIGIN_UNIX_NS, **info}
        return Trace(events, TRACKS, TraceInfo(None, **known), sync_sites=sites)


class _Texts:
    """The raw text of events: their arguments, by ordinal."""

    def __init__(self, arguments: Callable[[int], dict[str, Any]]) -> None:
        self._arguments = arguments

    def text(self, ordinal: int) -> str:
        """Return an event as it stands in the file."""
        return json.dumps({"args": self._arguments(ordinal)})


def with_arguments(trace: Trace, arguments: Callable[[int], dict[str, Any]]) -> Trace:
    """Give the events of a trace these arguments, by ordinal, as if they were read from its file."""
    trace._raw = _Texts(arguments)
    return trace


def in_session(trace: Trace, step_ns: float | None = None, **known: Any) -> Trace:
    """Give a trace a session of 40 steps, each of which took this long; None = as long as those of the trace."""
    took_ns = float(np.median(trace.steps.lengths)) if step_ns is None else step_ns
    trace.uncaptured = Uncaptured(40, took_ns, took_ns, took_ns, **known)
    return trace


def site(at_us: float, *frames: str, tid: int = 100) -> dict[str, Any]:
    """Return a sync site as the probe writes it."""
    return {
        "unix_ns": ORIGIN_UNIX_NS + round(at_us * 1000),
        "tid": tid,
        "what": "called a synchronizing CUDA operation",
        "frames": list(frames),
    }


def report(name: str, trace: Trace, window: Window | None = None) -> Report:
    """Return the report of an analysis that has one."""
    found = run(name, trace, window)
    assert isinstance(found, Report), found
    return found
