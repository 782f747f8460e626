"""How much memory the framework's allocator holds, when it peaks, and which operators hold it then."""

from __future__ import annotations

import numpy as np
import polars as pl

from tuiprof.analyses import Analysis
from tuiprof.analyses.shared.frames import operator_label
from tuiprof.analyses.shared.scope import Scope
from tuiprof.model import Column, Fact, Report, Rule, Table, Trace, Unavailable, Verdict, Window
from tuiprof.model.intervals import Ints, distinct
from tuiprof.model.report import Chart, Level, Series, listed
from tuiprof.model.units import format_bytes, format_ns

NAME, TITLE = "memory", "Memory"

_RULES = (
    Rule(
        "allocated",
        "Memory used by tensors, as counted by the framework's allocator; memory of libraries is not "
        "included.",
    ),
    Rule(
        "reserved",
        "Memory that the allocator took from the device. Reserved but not allocated = free or fragmented.",
    ),
    Rule(
        "held at the peak",
        "Blocks allocated in the trace and not yet freed at the peak, by the operator that allocated "
        "them. Earlier allocations are `before the recording`.",
    ),
)
_WORST_SHARE = 0.2
_ALLOCATES = r"^aten::((new_)?empty(_strided)?|empty_like|resize_|_to_copy|to|clone|contiguous)$"
#: Held memory cannot exceed the peak by more than rounding; otherwise frees are missing from the trace.
_TOLERANCE = 1.02
#: Number of slices of the window for memory over time.
_SLICES = 100


def run(trace: Trace, window: Window) -> Report | Unavailable:
    """Track the allocator."""
    scope = Scope.of(trace, window)
    events = _events(trace, scope)
    if events is None or events.is_empty():
        return Unavailable(
            NAME,
            "no memory events in this part of the trace",
            "record with `--memory`, or with torch.profiler.profile(profile_memory=True)",
        )
    allocators = [
        _Allocator(trace, label, frame)
        for (label,), frame in events.group_by("place", maintain_order=True)
        if isinstance(label, str)
    ]
    allocators.sort(key=lambda one: (one.label == "CPU", -one.peak, one.label))
    main = allocators[0]
    held = main.held()
    spare = main.reserved_at_peak - main.peak if main.reserved_at_peak else None
    level: Level = "warn" if spare is not None and spare > _WORST_SHARE * main.reserved_at_peak else "info"
    said = f"{main.label} peaks at {format_bytes(main.peak)} allocated"
    if main.reserved_at_peak:
        said += f" of {format_bytes(main.reserved_at_peak)} reserved"
    said += f", {format_ns(max(main.peak_at - scope.low, 0))} into the window"
    if not held.is_empty():
        top = held.row(0, named=True)
        said += f"; {top['operator']} holds {format_bytes(top['bytes'])} of it"
    facts = (
        Fact("peak_bytes", "peak allocated", main.peak, "bytes"),
        Fact("reserved_at_peak_bytes", "reserved then", main.reserved_at_peak or None, "bytes"),
        Fact(
            "unused_share",
            "reserved but free then",
            spare / main.reserved_at_peak if spare is not None else None,
            "share",
        ),
        Fact(
            "growth_bytes",
            "last minus first",
            main.growth,
            "bytes",
            "Growth of allocated memory over the window.",
        ),
        Fact("allocations", "allocations", main.allocations, "count"),
        Fact(
            "allocations_per_step",
            "a step",
            main.allocations / scope.step_count if scope.step_count else None,
            "count",
        ),
    )
    return Report(
        NAME,
        TITLE,
        Verdict(said, level),
        facts,
        (_held_table(held, main.peak), _device_table(allocators), _timeline(main, scope)),
        _RULES,
        window=window,
    )


def _events(trace: Trace, scope: Scope) -> pl.DataFrame | None:
    instants = trace.instants
    if instants is None or not {"bytes", "total_allocated", "address"} <= set(instants.columns):
        return None
    device = pl.col("device") if "device" in instants.columns else pl.lit(-1)
    return (
        instants.filter(
            pl.col("total_allocated").is_not_null()
            & pl.col("bytes").is_not_null()
            # The whole trace has those before its first and after its last event as well.
            & (pl.lit(scope.window.whole) | pl.col("ts").is_between(scope.low, scope.high))
        )
        .with_columns(
            pl.when(device.fill_null(-1) < 0)
            .then(pl.lit("CPU"))
            .otherwise(pl.lit("device ") + device.cast(pl.String))
            .alias("place")
        )
        .sort("ts", maintain_order=True)
    )


class _Allocator:
    """The allocator of one device, or of the host."""

    def __init__(self, trace: Trace, label: str, frame: pl.DataFrame) -> None:
        self.trace = trace
        self.label = label
        self.frame = frame
        allocated = frame["total_allocated"].to_numpy()
        self._peak_row = int(allocated.argmax())
        self.peak = int(allocated[self._peak_row])
        self.peak_at = int(frame["ts"][self._peak_row])
        reserved = frame["total_reserved"] if "total_reserved" in frame.columns else None
        then = int(reserved[self._peak_row] or 0) if reserved is not None else 0
        # Formats that do not record it write anything.
        self.reserved_at_peak = then if then >= self.peak else 0
        self.growth = int(allocated[-1] - allocated[0])
        self.allocations = int((frame["bytes"] > 0).sum())

    def held(self) -> pl.DataFrame:
        """Return what holds memory at the peak, by operator."""
        alive = (
            self.frame.head(self._peak_row + 1)
            .group_by("address", maintain_order=True)
            .agg(pl.col("ts", "bytes", "track").last())
            .filter(pl.col("bytes") > 0)
        )
        operators = _operators(self.trace, alive["ts"].to_numpy(), alive["track"].cast(pl.Int64).to_numpy())
        found = (
            alive.with_columns(pl.Series("operator", operators, dtype=pl.String))
            .group_by("operator", maintain_order=True)
            .agg(
                pl.len().cast(pl.Int64).alias("blocks"),
                pl.col("bytes").sum(),
                pl.col("bytes").max().alias("largest"),
            )
        )
        before = self.peak - int(found["bytes"].sum())
        if -before > (_TOLERANCE - 1) * self.peak:
            return found.clear()
        if before > 0:
            earlier = {
                "operator": ["before the recording"],
                "blocks": [None],
                "bytes": [before],
                "largest": [None],
            }
            found = pl.concat([found, pl.DataFrame(earlier, schema=found.schema)])
        return found.sort("bytes", descending=True)


def _operators(trace: Trace, at: Ints, tracks: Ints) -> list[str]:
    """Return the operator that runs on a track at each instant; a dash if none does."""
    is_operator = trace.is_category("cpu_op")
    allocates = trace.named(_ALLOCATES)
    result = np.full(len(at), -1, dtype=np.int64)
    track_of = trace.track_codes
    for track in distinct(tracks):
        rows = np.flatnonzero((track_of == track) & is_operator)
        mine = np.flatnonzero(tracks == track)
        if not len(rows):
            continue
        position = np.searchsorted(trace.starts[rows], at[mine], side="right") - 1
        row = np.where(position >= 0, rows[np.maximum(position, 0)], -1)
        parent = trace.nesting.parent
        while True:
            climb = (row >= 0) & (
                (trace.ends[np.maximum(row, 0)] < at[mine]) | ~is_operator[np.maximum(row, 0)]
            )
            if not climb.any():
                break
            row = np.where(climb, parent[np.maximum(row, 0)], row)
        # "empty" does not identify the owner of the memory: use the operator that called it.
        while True:
            above = np.where(row >= 0, parent[np.maximum(row, 0)], -1)
            climb = (
                (row >= 0) & allocates[np.maximum(row, 0)] & (above >= 0) & is_operator[np.maximum(above, 0)]
            )
            if not climb.any():
                break
            row = np.where(climb, above, row)
        result[mine] = row
    return [
        operator_label(trace.name(row)) if row >= 0 else "outside any operator" for row in result.tolist()
    ]


def _held_table(held: pl.DataFrame, peak: int) -> Table:
    columns = (
        Column("operator", "allocated by", "text"),
        Column("bytes", "bytes", "bytes"),
        Column("share", "of the peak", "share"),
        Column("blocks", "blocks", "count"),
        Column("largest", "largest", "bytes"),
    )
    return Table(
        "held",
        "What holds memory at the peak",
        columns,
        held.with_columns((pl.col("bytes") / max(peak, 1)).alias("share")),
        empty="unknown: allocations and frees in the trace do not match",
    )


def _device_table(allocators: list[_Allocator]) -> Table:
    rows = [
        (one.label, one.peak, one.reserved_at_peak or None, one.growth, one.allocations) for one in allocators
    ]
    columns = (
        Column("place", "where", "text"),
        Column("peak", "peak", "bytes"),
        Column("reserved", "reserved then", "bytes"),
        Column("growth", "growth", "bytes"),
        Column("n", "allocations", "count"),
    )
    return Table("places", "By device", columns, listed(columns, rows))


def _timeline(allocator: _Allocator, scope: Scope) -> Table:
    """Return the highest allocated and reserved memory in equal slices of the window."""
    span = max(scope.high - scope.low, 1)
    events = allocator.frame
    if "total_reserved" not in events.columns:
        events = events.with_columns(pl.lit(None, dtype=pl.Int64).alias("total_reserved"))
    index = ((pl.col("ts") - scope.low) * _SLICES // span).clip(0, _SLICES - 1)
    frame = (
        events.with_columns(index.alias("slice"))
        .group_by("slice", maintain_order=True)
        .agg(pl.col("total_allocated", "total_reserved").max())
        .with_columns((scope.low + pl.col("slice") * span // _SLICES).alias("start_ns"))
    )
    columns = (
        Column("start_ns", "from", "ns"),
        Column("total_allocated", "allocated", "bytes", "Peak in the slice."),
        Column("total_reserved", "reserved", "bytes", "Peak in the slice."),
    )
    return Table(
        "timeline",
        f"Over time, {allocator.label}",
        columns,
        frame,
        chart=Chart("Memory allocated over time", (Series("total_allocated"),), at="start_ns"),
    )


ANALYSIS = Analysis(NAME, TITLE, "When does memory peak, and what holds it?", run, order=70)
