"""Finds short kernels that follow each other in the same order again and again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from tuiprof.analyses._codes import distinct, member
from tuiprof.analyses._kernel_names import classify, short_name
from tuiprof.analyses._loops import Mask, loops, runs
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints

#: A kernel shorter than this costs about as much to launch as to run.
SHORT_NS = 10_000
#: Periods looked for in a loop, and how often a sequence must come to be listed.
LONGEST_PERIOD, LEAST_REPEATS = 64, 3
#: Kinds of kernels that a compiler can join with their neighbours.
_FUSABLE = ("elementwise", "reduction", "norm", "copy")


def sequences(trace: Trace, work: Ints, launch: Ints) -> pl.DataFrame:
    """Find sequences of short kernels that could be fused.

    Two shapes are looked for on every stream. A *loop*: a sequence of up to 64 kernels that repeats at least three
    times without a break (an optimizer without ``foreach``, a loss computed sample by sample). A *chain*: two or more
    short elementwise, reduction, norm or copy kernels in a row, the same chain at least three times.
    At stake is what one fused kernel would save, at most: the device's idle time inside the sequence, and
    on the host all launch calls but one; the two overlap in time and are not added up.

    Args:
        trace: The trace.
        work: Rows of kernels in order of start, shape ``(k,)``.
        launch: Row of the launch of each; -1 = none, shape ``(k,)``.

    Returns:
        One row a sequence: ``shape``, ``kernels``, ``length``, ``times``, ``device_ns``, ``idle_ns``, ``host_ns``,
        ``event``.
    """
    found = []
    streams = trace.ints("stream")[work]
    devices = trace.ints("device")[work]
    for device in distinct(devices).tolist():
        on_device = np.flatnonzero(devices == device)
        numbers, place = np.unique(streams[on_device], return_inverse=True)
        for stream in range(len(numbers)):
            mine = on_device[place == stream]
            found += _on_stream(trace, work[mine], launch[mine])
    schema = {
        "shape": pl.String,
        "kernels": pl.String,
        "length": pl.Int64,
        "times": pl.Int64,
        "device_ns": pl.Int64,
        "idle_ns": pl.Int64,
        "host_ns": pl.Int64,
        "event": pl.Int64,
    }
    return (
        pl.DataFrame(found, schema=schema)
        .group_by("shape", "kernels", "length", maintain_order=True)
        .agg(pl.col("times", "device_ns", "idle_ns", "host_ns").sum(), pl.col("event").first())
        .filter(pl.col("times") >= LEAST_REPEATS)
        .sort("host_ns", descending=True)
    )


def _on_stream(trace: Trace, work: Ints, launch: Ints) -> list[dict[str, object]]:
    codes = trace.name_codes[work]
    starts, ends = trace.starts[work], trace.ends[work]
    kinds = classify(trace.names, codes)

    def of_kind(*wanted: str) -> Mask:
        return member(codes, [code for code, kind in kinds.items() if kind in wanted])

    short = (ends - starts < SHORT_NS) & ~of_kind("collective")
    whole = of_kind("gemm", "attention", "convolution")  # one of these alone has nothing to fuse with
    gap = np.append(0, np.maximum(starts[1:] - np.maximum.accumulate(ends)[:-1], 0))
    stream = _Stream(
        trace,
        work,
        codes,
        _before(ends - starts),
        _before(gap),
        _before(np.where(launch >= 0, trace.ends[launch] - trace.starts[launch], 0)),
    )
    taken = np.zeros(len(work), dtype=bool)
    found: list[dict[str, object]] = []
    words = np.where(short, codes, -1).astype(np.int32)
    for start, period, times in loops(words, LONGEST_PERIOD, LEAST_REPEATS, alone=~whole):
        taken[start : start + times * period] = True
        found.append(stream.entry("loop", start, period, times))
    run_starts, run_ends = runs(of_kind(*_FUSABLE) & short & ~taken, 2)
    return found + [
        stream.entry("chain", start, end - start, 1)
        for start, end in zip(run_starts.tolist(), run_ends.tolist(), strict=True)
    ]


def _before(values: Ints) -> Ints:
    """Return the sum of all values before each, and of all at the end."""
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(values)))


@dataclass(frozen=True, slots=True)
class _Stream:
    """Kernels of one stream, with sums up to each of them."""

    trace: Trace
    work: Ints
    codes: Ints
    device_before: Ints
    gap_before: Ints
    host_before: Ints

    def entry(self, shape: str, start: int, period: int, times: int) -> dict[str, object]:
        """Describe ``times`` passes of ``period`` kernels from position ``start`` on."""
        count, stop = period * times, start + period * times
        host = int(self.host_before[stop] - self.host_before[start])
        # One launch a pass stays; one in all where the same kernel repeats.
        stay = times if period > 1 else 1
        names = [
            short_name(self.trace.names[code]) for code in self.codes[start : start + min(period, 8)].tolist()
        ]
        return {
            "shape": shape,
            "kernels": " → ".join(names) + (" → …" if period > 8 else ""),
            "length": period,
            "times": times,
            "device_ns": int(self.device_before[stop] - self.device_before[start]),
            "idle_ns": int(self.gap_before[stop] - self.gap_before[start + 1]),
            "host_ns": host * (count - stay) // count,
            "event": int(self.work[start]),
        }
