"""Finds short kernels that repeat in the same order."""

from __future__ import annotations

import numpy as np
import polars as pl

from tuiprof.analyses.shared.codes import distinct, member
from tuiprof.analyses.shared.kernel_names import classify, short_name
from tuiprof.analyses.shared.loops import Mask, loops, runs
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints

#: A kernel shorter than this costs about as much to launch as to run.
SHORT_NS = 10_000
#: Maximum period of a loop, and minimum number of repetitions to list a sequence.
LONGEST_PERIOD, LEAST_REPEATS = 64, 3
#: Kernels of a sequence whose names are shown.
_SPELLED = 8
_SCHEMA = {
    "shape": pl.String,
    "kernels": pl.String,
    **dict.fromkeys(("length", "times", "device_ns", "idle_ns", "host_ns", "event"), pl.Int64),
}
#: Kinds of kernels that a compiler can fuse with their neighbors.
_FUSABLE = ("elementwise", "reduction", "norm", "copy")


def sequences(trace: Trace, work: Ints, launch: Ints) -> pl.DataFrame:
    """Find sequences of short kernels that could be fused among kernels in order of start, by the rows of their
    launches.

    Two patterns are searched on every stream. A *loop*: a sequence of up to 64 kernels that repeats at least three
    times without a break (an optimizer without ``foreach``, a loss computed sample by sample). A *chain*: two or more
    short elementwise, reduction, norm or copy kernels in a row, the same chain at least three times. The potential
    saving of one fused kernel is at most the device's idle time inside the sequence, and on the host all launch calls
    but one; the two overlap in time and are not added.
    """
    found = []
    streams, devices = trace.ints("stream", work), trace.ints("device", work)
    for device in distinct(devices).tolist():
        on_device = np.flatnonzero(devices == device)
        numbers, index = np.unique(streams[on_device], return_inverse=True)
        for stream in range(len(numbers)):
            mine = on_device[index == stream]
            found.append(_on_stream(trace, work[mine], launch[mine]))
    return (
        pl.concat(found or [pl.DataFrame(schema=_SCHEMA)])
        .group_by("shape", "kernels", "length", maintain_order=True)
        .agg(pl.col("times", "device_ns", "idle_ns", "host_ns").sum(), pl.col("event").first())
        .filter(pl.col("times") >= LEAST_REPEATS)
        .sort("host_ns", descending=True)
    )


def _on_stream(trace: Trace, work: Ints, launch: Ints) -> pl.DataFrame:
    codes = trace.name_codes[work]
    starts, ends = trace.starts[work], trace.ends[work]
    kinds = classify(trace.names, codes)

    def of_kind(*wanted: str) -> Mask:
        return member(codes, [code for code, kind in kinds.items() if kind in wanted])

    short = (ends - starts < SHORT_NS) & ~of_kind("collective")
    whole = of_kind("gemm", "attention", "convolution")  # one of these alone cannot be fused
    gap = np.append(0, np.maximum(starts[1:] - np.maximum.accumulate(ends)[:-1], 0))
    taken = np.zeros(len(work), dtype=bool)
    words = np.where(short, codes, -1).astype(np.int32)
    repeated = list(loops(words, LONGEST_PERIOD, LEAST_REPEATS, alone=~whole))
    for start, period, passes in repeated:
        taken[start : start + passes * period] = True
    chain_starts, chain_ends = runs(of_kind(*_FUSABLE) & short & ~taken, 2)
    chains = np.column_stack((chain_starts, chain_ends - chain_starts, np.ones_like(chain_starts)))
    first, length, times = np.concatenate((np.array(repeated, dtype=np.int64).reshape(-1, 3), chains)).T
    stop = first + length * times
    host_before = _before(np.where(launch >= 0, trace.ends[launch] - trace.starts[launch], 0))
    device_before, gap_before = _before(ends - starts), _before(gap)
    # One launch per iteration stays; one in total if the same kernel repeats.
    stay = np.where(length > 1, times, 1)
    return pl.DataFrame(
        {
            "shape": pl.Series(["loop"] * len(repeated) + ["chain"] * len(chains), dtype=pl.String),
            "kernels": _spell(trace, codes, first, length),
            "length": length,
            "times": times,
            "device_ns": device_before[stop] - device_before[first],
            "idle_ns": gap_before[stop] - gap_before[first + 1],
            "host_ns": (host_before[stop] - host_before[first]) * (length * times - stay) // (length * times),
            "event": work[first],
        },
        schema=_SCHEMA,
    )


def _spell(trace: Trace, codes: Ints, first: Ints, length: Ints) -> pl.Series:
    """Return the names of the kernels of each sequence, at most eight."""
    spelled: dict[tuple[int, ...], str] = {}
    texts = []
    for start, count in zip(first.tolist(), length.tolist(), strict=True):
        shown = (*codes[start : start + min(count, _SPELLED)].tolist(), *([-1] if count > _SPELLED else []))
        if shown not in spelled:
            spelled[shown] = " → ".join(short_name(trace.names[c]) if c >= 0 else "…" for c in shown)
        texts.append(spelled[shown])
    return pl.Series(texts, dtype=pl.String)


def _before(values: Ints) -> Ints:
    """Return the exclusive prefix sums, with the total at the end."""
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(values)))
