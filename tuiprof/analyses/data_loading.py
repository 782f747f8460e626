"""How long a step waits for its batch, and how the batch gets to the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from tuiprof.analyses import Analysis
from tuiprof.analyses.kernels import self_times
from tuiprof.analyses.shared import frames as _frames
from tuiprof.analyses.shared import idle as _idle
from tuiprof.analyses.shared import waits as _waits
from tuiprof.analyses.shared.scope import Scope, device_word, host_time_by_step
from tuiprof.model import Column, Fact, Report, RowsOf, Rule, Table, Trace, Unavailable, Verdict, Window
from tuiprof.model.intervals import Ints, distinct, total, union
from tuiprof.model.report import Level
from tuiprof.model.units import format_ns, format_share

NAME, TITLE = "data_loading", "Data"

BAD_SHARE, WARN_SHARE = 0.10, 0.03
#: The kind of loader, as the fact ``worker_processes`` gives it; None = not in the trace.
IN_PROCESS, WORKERS = "in this process (num_workers=0)", "worker processes"


@dataclass(frozen=True, slots=True)
class Fetch:
    """A range in which batches are fetched: a row of the table of batch sources."""

    range: str  # its name
    event: int  # row of the longest fetch


@dataclass(frozen=True, slots=True)
class FetchFunction:
    """A user function that runs while a batch is fetched."""

    function: str  # its name and location


#: Batch sources, and functions that run during the fetch (only with Python frames), longest first.
FETCHES: Final = RowsOf(NAME, "fetches", Fetch)
FETCH_FUNCTIONS: Final = RowsOf(NAME, "functions", FetchFunction)
#: Common names of user-defined ranges.
_OWN_RANGE = r"(?i)^\W*(data.?load\w*|load_?(batch|data)|(get|next|fetch)_?batch|fetch_?data|load|data)\W*$"
_RULES = (
    Rule(
        "waiting for data",
        "Host time in the DataLoader's `__next__` (its own range), in other loaders' ranges, and in "
        "ranges with names like load, data, load_batch, get_batch; nested ranges count once.",
    ),
    Rule(
        "verdict",
        f"bad from {format_share(BAD_SHARE)} of the step, a warning from {format_share(WARN_SHARE)}.",
    ),
    Rule(
        "pageable",
        "Copies from pageable memory: each goes through a staging buffer and blocks the host meanwhile.",
    ),
)


def run(trace: Trace, window: Window) -> Report | Unavailable:
    """Measure the wait for batches."""
    scope = Scope.of(trace, window)
    rows = fetches(trace)
    rows = rows[trace.in_window(window)[rows]]
    if not len(rows):
        return Unavailable(
            NAME,
            "no data loading in this part of the trace: no ranges of a DataLoader or with such a name",
            "iterate over a torch DataLoader, or wrap loading in torch.profiler.record_function('load')",
        )
    starts = np.maximum(trace.starts[rows], scope.low)
    ends = np.minimum(trace.ends[rows], scope.high)
    lengths = trace.lengths(rows)
    waited = total(*union(starts, ends))
    if scope.step_count:
        each = host_time_by_step(scope, starts, ends)
        share = float(each.sum() / scope.step_time_ns) if scope.step_time_ns else 0.0
        per_step: float | None = float(each.mean())
    else:
        share = waited / max(scope.high - scope.low, 1)
        per_step = None
    idle = None
    if trace.device_indices:
        gaps = [_idle.gaps(trace, device, scope.low, scope.high) for device in trace.device_indices]
        idle = 0.0  # in steps, if there are any
        for one in gaps:
            ns = one.of("data loading")
            idle += float((ns[one.in_steps(scope)] if scope.step_count else ns).sum())
        idle /= scope.step_count or 1
    kind = _kind(trace, scope)
    facts = (
        Fact("data_wait_share", "waiting for data", share, "share", "Of the steps' time, or of the window."),
        Fact("data_wait_ns_per_step", "a step", per_step, "ns"),
        Fact("data_wait_ns", "in all", waited, "ns", "Time in which at least one thread waits."),
        Fact(
            "device_idle_ns_per_step",
            "device idle meanwhile, a step",
            idle if scope.step_count else None,
            "ns",
        ),
        Fact("fetches", "batches", len(rows), "count"),
        Fact("fetch_median_ns", "median", float(np.median(lengths)), "ns"),
        Fact("fetch_longest_ns", "longest", int(lengths.max()), "ns"),
        Fact("worker_processes", "loader", kind, "text", "By the name of the DataLoader's iterator."),
    )
    run_inside = _functions(trace, scope, rows)
    return Report(
        NAME,
        TITLE,
        _verdict(trace, scope, share, per_step, idle, kind, waited),
        facts,
        (_fetch_table(trace, scope, rows), *run_inside, _copies(trace, scope)),
        _RULES,
        window=window,
    )


def fetches(trace: Trace) -> Ints:
    """Return the rows of the outermost loading ranges on the host, in order of start."""
    host = trace.on_host
    mask = trace.named(_idle.DATA_LOADING) | (trace.named(_OWN_RANGE) & trace.is_category("annotation"))
    rows = np.flatnonzero((mask & host) | trace.is_category("dataloader")).astype(np.int64)
    return _waits.outermost(trace, rows)


def _kind(trace: Trace, scope: Scope) -> str | None:
    """Return the kind of loader; None if no PyTorch iterator is in the trace."""
    inside = trace.in_window(scope.window)
    if (trace.named("_MultiProcessingDataLoaderIter") & inside).any():
        return WORKERS
    return IN_PROCESS if (trace.named("_SingleProcessDataLoaderIter") & inside).any() else None


def _functions(trace: Trace, scope: Scope, fetches: Ints) -> tuple[Table, ...]:
    """Return the user functions that run while a batch is fetched; no table if no frames were recorded."""
    python = np.flatnonzero(trace.is_category("python_function"))
    users = [
        code for code in distinct(trace.name_codes[python]).tolist() if _frames.is_user(trace.names[code])
    ]
    is_user = np.zeros(len(trace), dtype=bool)
    is_user[python] = np.isin(trace.name_codes[python], users)
    rows = np.flatnonzero(is_user)
    last = np.searchsorted(trace.starts[fetches], trace.starts[rows], side="right") - 1
    # Outermost fetches of one thread do not overlap; those of several threads differ by track.
    track, fetch = trace.track_codes, fetches[np.maximum(last, 0)]
    rows = rows[(last >= 0) & (trace.ends[rows] <= trace.ends[fetch]) & (track[rows] == track[fetch])]
    if not len(rows):
        return ()
    labels = [_frames.function_label(trace.name(row)) for row in rows.tolist()]
    per_step = (pl.col("in_step").sum() / (scope.step_count or None)).alias("per_step")
    frame = _grouped(scope, rows, "function", labels, per_step, own_ns=self_times(trace, rows, is_user))
    stepped = bool(scope.step_count)
    own = "Time in the function and its callees, except those listed in this table."
    columns = (
        Column("per_step_ns", "self/step", "ns", own, hidden=not stepped),
        Column("total_ns", "self", "ns", own, hidden=stepped),
        Column("per_step", "n/step", "count", hidden=not stepped),
        Column("count", "n", "count", hidden=stepped),
        Column("function", "function", "text", elide="start"),
        Column("event", "event", "count", hidden=True),
    )
    return (Table(FETCH_FUNCTIONS.key, "What runs while a batch is fetched", columns, frame),)


def _grouped(
    scope: Scope, rows: Ints, by: str, words: list[str], *more: pl.Expr, own_ns: Ints | None = None
) -> pl.DataFrame:
    """Group events by a word each: their number, (own) time in total and per step, ``more``, and the longest event."""
    lengths = scope.trace.lengths(rows)
    columns = {
        "event": rows,
        by: pl.Series(words, dtype=pl.String),
        "ns": lengths,
        "own_ns": lengths if own_ns is None else own_ns,
        "bytes": scope.trace.events["bytes"].gather(rows),
        "in_step": scope.in_steps(rows),
    }
    return (
        pl.DataFrame(columns)
        .group_by(by, maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            pl.col("own_ns").sum().alias("total_ns"),
            (pl.col("own_ns").filter("in_step").sum() / (scope.step_count or None)).alias("per_step_ns"),
            *more,
            pl.col("event").get(pl.col("ns").arg_max()),
        )
        .sort("total_ns", descending=True)
    )


def _verdict(
    trace: Trace,
    scope: Scope,
    share: float,
    per_step: float | None,
    idle: float | None,
    kind: str | None,
    summed: int,
) -> Verdict:
    amount = f"{format_ns(per_step)} a step" if per_step is not None else format_ns(summed)
    seen = trace.uncaptured if scope.window.whole and not trace.as_captured else None
    if seen is not None and seen.fetch_ns is not None and per_step is not None:
        usual = seen.fetch_ns / seen.step_ns
        said = f"the host waits {format_ns(seen.fetch_ns)} a step ({format_share(usual)}) for data"
        if (
            abs(usual - share) >= WARN_SHARE
        ):  # workers get ahead while a profiler starts, which slows a loader in Python
            said += f", {amount} ({format_share(share)}) while captured"
        share = usual
    else:
        said = f"the host waits {amount} ({format_share(share)}) for data"
    level: Level = "bad" if share >= BAD_SHARE else "warn" if share >= WARN_SHARE else "good"
    if kind == IN_PROCESS:
        said += ", loaded in the training process (num_workers=0)"
    if idle is not None:
        a_step = " a step" if scope.step_count else ""
        said += f"; meanwhile the {device_word(trace)} is idle {format_ns(idle)}{a_step}"
    return Verdict(said, level)


def _fetch_table(trace: Trace, scope: Scope, rows: Ints) -> Table:
    median, longest = pl.col("ns").median().alias("median_ns"), pl.col("ns").max().alias("longest_ns")
    frame = _grouped(scope, rows, "range", [trace.name(row) for row in rows.tolist()], median, longest)
    stepped = bool(scope.step_count)
    columns = (
        Column("range", "range", "text"),
        Column("per_step_ns", "a step", "ns", hidden=not stepped),
        Column("total_ns", "total", "ns", hidden=stepped),
        Column("count", "n", "count"),
        Column("median_ns", "median", "ns"),
        Column("longest_ns", "longest", "ns"),
        Column("event", "event", "count", hidden=True),
    )
    return Table(FETCHES.key, "Where batches come from", columns, frame)


def _copies(trace: Trace, scope: Scope) -> Table:
    """Return copies from the host to the device by kind of memory."""
    known = pl.col("bytes").is_not_null()
    to_device = trace.is_category("memcpy") & trace.named(r"HtoD|HostToDevice|Host -> Device")
    rows = np.flatnonzero(to_device & trace.in_window(scope.window)).astype(np.int64)
    frame = _grouped(
        scope,
        rows,
        "kind",
        [trace.name(row) for row in rows.tolist()],
        pl.when(known.any()).then(pl.col("bytes").sum()).alias("bytes"),
        (pl.col("bytes").sum() / pl.col("ns").filter(known).sum().replace(0, None)).alias("gb_per_s"),
    )
    stepped = bool(scope.step_count)
    columns = (
        Column("kind", "kind", "text"),
        Column("per_step_ns", "a step", "ns", hidden=not stepped),
        Column("total_ns", "total", "ns", hidden=stepped),
        Column("count", "n", "count"),
        Column("bytes", "bytes", "bytes"),
        Column("gb_per_s", "GB/s", "number", "Bytes over time on the device."),
        Column("event", "event", "count", hidden=True),
    )
    return Table(
        "copies",
        "Copies to the device",
        columns,
        frame,
        empty="no copies from the host to a device",
    )


ANALYSIS = Analysis(NAME, TITLE, "Does the step wait for data?", run, order=60)
