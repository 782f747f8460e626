"""Finds short kernels that follow each other in the same order again and again."""

from __future__ import annotations

import numpy as np
import polars as pl

from tuiprof.analyses._kernel_names import classify, short_name
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
    for device, stream in np.unique(np.column_stack((devices, streams)), axis=0):
        mine = np.flatnonzero((devices == device) & (streams == stream))
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
    lengths = trace.ends[work] - trace.starts[work]
    kinds = classify(trace.names, np.unique(codes))

    def of_kind(wanted: tuple[str, ...]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        mask: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.isin(
            codes, [code for code, kind in kinds.items() if kind in wanted]
        )
        return mask

    short = (lengths < SHORT_NS) & ~of_kind(("collective",))
    whole = of_kind(("gemm", "attention", "convolution"))  # one of these alone has nothing to fuse with
    taken = np.zeros(len(work), dtype=bool)
    found: list[dict[str, object]] = []
    for period in range(1, LONGEST_PERIOD + 1):
        if len(work) < period * LEAST_REPEATS:
            break
        same = (codes[:-period] == codes[period:]) & short[:-period] & short[period:]
        same &= ~taken[:-period] & ~taken[period:]
        if period == 1:
            same &= ~whole[1:]
        starts, ends = _runs(same, period * (LEAST_REPEATS - 1))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            times = (end + period - start) // period
            stop = start + times * period
            taken[start:stop] = True
            found.append(_entry(trace, work, launch, "loop", start, stop, period, times))
    fusable = of_kind(_FUSABLE) & short & ~taken
    starts, ends = _runs(fusable, 2)
    return found + [
        _entry(trace, work, launch, "chain", start, end, end - start, 1)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]


def _runs(mask: np.ndarray[tuple[int], np.dtype[np.bool_]], least: int) -> tuple[Ints, Ints]:
    """Return begin and end of the runs of True that are at least so long."""
    edges = np.diff(mask.astype(np.int8), prepend=0, append=0)
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    keep = ends - starts >= least
    return starts[keep], ends[keep]


def _entry(
    trace: Trace, work: Ints, launch: Ints, shape: str, start: int, stop: int, period: int, times: int
) -> dict[str, object]:
    rows, calls = work[start:stop], launch[start:stop]
    calls = np.unique(calls[calls >= 0])
    host = int((trace.ends[calls] - trace.starts[calls]).sum())
    fused = times if shape == "loop" else 1
    reach = np.maximum.accumulate(trace.ends[rows])
    idle = int(np.maximum(trace.starts[rows][1:] - reach[:-1], 0).sum())
    names = [trace.names[code] for code in trace.name_codes[rows[:period]].tolist()]
    return {
        "shape": shape,
        "kernels": " → ".join(short_name(name) for name in names[:8]) + (" → …" if period > 8 else ""),
        "length": period,
        "times": times,
        "device_ns": int((trace.ends[rows] - trace.starts[rows]).sum()),
        "idle_ns": idle,
        # One launch a pass stays, or a single one where the whole loop can become one kernel.
        "host_ns": host * (len(rows) - fused) // len(rows)
        if period > 1
        else host * (len(rows) - 1) // len(rows),
        "event": int(rows[0]),
    }
