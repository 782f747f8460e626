"""Traces made in memory for tests of the trace screen: small, with known figures, and as large as asked for."""

from __future__ import annotations

import numpy as np
import polars as pl

from tuiprof.model import DeviceInfo, Trace, TraceInfo, Track
from tuiprof.model.trace import CATEGORY_TYPE

MS = 1_000_000
HOSTILE = "[red]evil[/red] \x1b[31mcolour\x1b[0m \x1b]0;title\x07 $(reboot)"

TRACKS = (
    Track(0, "thread", 1, 1, "thread 1 (python)"),
    Track(1, "stream", 0, 7, "stream 7", 0),
)


class MadeRaw:
    """Raw text of made events: JSON-like, with an escape code in it."""

    def text(self, ordinal: int) -> str:
        return f'{{"ordinal": {ordinal}, "note": "\x1b[2Jgone"}}'


def trace_of(rows: list[tuple[str, str, int, int, int, int | None]], **info: object) -> Trace:
    """A trace of (category, name, start ms, end ms, track, correlation)."""
    ordered = sorted(enumerate(rows), key=lambda item: (item[1][2], -item[1][3]))
    names = list(dict.fromkeys(row[1] for _, row in ordered))
    on_device = [row[4] == 1 for _, row in ordered]
    events = pl.DataFrame(
        {
            "ts": [row[2] * MS for _, row in ordered],
            "dur": [(row[3] - row[2]) * MS for _, row in ordered],
            "name": pl.Series([row[1] for _, row in ordered], dtype=pl.Enum(names)),
            "category": pl.Series([row[0] for _, row in ordered], dtype=CATEGORY_TYPE),
            "track": pl.Series([row[4] for _, row in ordered], dtype=pl.UInt32),
            "device": pl.Series([0 if yes else None for yes in on_device], dtype=pl.Int16),
            "stream": pl.Series([7 if yes else None for yes in on_device], dtype=pl.Int64),
            "correlation": pl.Series([row[5] for _, row in ordered], dtype=pl.Int64),
            "external_id": pl.Series([None] * len(rows), dtype=pl.Int64),
            "sequence": pl.Series([None] * len(rows), dtype=pl.Int64),
            "bytes": pl.Series([None] * len(rows), dtype=pl.Int64),
            "ordinal": pl.Series([place for place, _ in ordered], dtype=pl.UInt32),
        }
    )
    about = TraceInfo(None, "made", devices=(DeviceInfo(0, "NVIDIA H200"),), **info)  # type: ignore[arg-type]
    return Trace(events, TRACKS, about, raw=MadeRaw())


def small_trace() -> Trace:
    """Two steps of 10 ms; each launches one kernel and then waits for it; one hostile name."""
    rows: list[tuple[str, str, int, int, int, int | None]] = []
    for step in (0, 1):
        at = step * 12
        rows += [
            ("annotation", f"ProfilerStep#{step}", at, at + 10, 0, None),
            ("annotation", "forward", at, at + 4, 0, None),
            ("annotation", "metrics", at + 5, at + 10, 0, None),
            ("cpu_op", "aten::mm", at + 1, at + 3, 0, None),
            ("runtime", "cudaLaunchKernel", at + 1, at + 2, 0, 10 + step),
            ("cpu_op", HOSTILE, at + 5, at + 9, 0, None),
            ("runtime", "cudaStreamSynchronize", at + 6, at + 9, 0, 20 + step),
            ("kernel", "void at::native::sum_kernel<float>(int)", at + 3, at + 8, 1, 10 + step),
        ]
    return trace_of(rows)


def large_trace(count: int) -> Trace:
    """``count`` events in order: launches on a thread, each with a kernel on a stream."""
    half = count // 2
    start = np.arange(half, dtype=np.int64) * 1000
    names = pl.Enum(["cudaLaunchKernel", *(f"void kernel_{i}<float>(int)" for i in range(200))])
    codes = np.concatenate((np.zeros(half, dtype=np.int64), 1 + np.arange(half) % 200))
    host = np.arange(count) < half
    ts = np.concatenate((start, start + 300))
    order = np.argsort(ts, kind="stable")
    on_device = ~host[order]
    words = pl.Series(names.categories)
    events = pl.DataFrame(
        {
            "ts": ts[order],
            "dur": np.where(host, 200, 100 + codes)[order],
            "name": words.gather(codes[order]).cast(names),
            "category": pl.Series(["runtime", "kernel"])
            .gather(on_device.astype(np.int64))
            .cast(CATEGORY_TYPE),
            "track": on_device.astype(np.uint32),
            "device": pl.Series(np.where(on_device, 0, -1).astype(np.int16)).replace(-1, None),
            "stream": pl.Series(np.where(on_device, 7, -1)).replace(-1, None),
            "correlation": np.concatenate((np.arange(half), np.arange(half)))[order] + 1,
            "external_id": pl.Series([None], dtype=pl.Int64).extend_constant(None, count - 1),
            "sequence": pl.Series([None], dtype=pl.Int64).extend_constant(None, count - 1),
            "bytes": pl.Series([None], dtype=pl.Int64).extend_constant(None, count - 1),
            "ordinal": np.arange(count, dtype=np.uint32),
        }
    )
    return Trace(events, TRACKS, TraceInfo(None, "made"))
