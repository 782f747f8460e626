"""What a ladder measures beyond whole steps: the distance of a kernel to the chip's limits, and the parts of a step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import polars as pl

from tuiprof.ladder.state import Figures, KernelFigures
from tuiprof.ladder.statistics import Judged, median_known
from tuiprof.model import Column, Table
from tuiprof.model.report import Kind
from tuiprof.model.units import format_ns, format_share
from tuiprof.whatif.chips import Chip, find_chip

KERNEL_RULE: Final = (
    "cold: a call with its inputs in memory, not in a cache; warm: a call right after another one; replayed: one of "
    "many calls that the host launched together (a CUDA graph, a compiled loop); host: host time to launch a call. "
    "Medians. GB/s and T op/s are the least bytes and operations that a call needs, divided by the cold time if it is "
    "known, else by the replayed or the warm time. Shares are of the chip's published peaks without sparsity; "
    "bandwidth has no share without a cold time, as the data may come from a cache."
)
#: Rates are worked out from the first of these times that is known.
_RATED: Final = ("cold", "replayed", "warm")


def kernel_table(judged: Sequence[Judged], out: Iterable[str]) -> Table:
    """Return what was measured of single kernels; without rows if there are none."""
    rows = []
    for one in judged:
        trials = [figures for figures in one.trials.values() if figures.kernel] if one.word not in out else []
        if trials:
            rows.append(_row(one.name, trials))
    columns = (
        Column("variant", "variant", whole=True),
        Column("cold_ns", "cold", "ns", KERNEL_RULE),
        Column("warm_ns", "warm", "ns"),
        Column("replayed_ns", "replayed", "ns"),
        Column("host_ns", "host", "ns"),
        Column("bandwidth", "GB/s", help="10⁹ bytes a second.", figure=True),
        Column("bandwidth_share", "% of peak", "share", "Of the chip's memory bandwidth."),
        Column("arithmetic_rate", "T op/s", help="10¹² operations a second.", figure=True),
        Column("arithmetic_share", "% of peak", "share", "Of the chip's arithmetic in the kernel's type."),
        Column("least_ns", "least", "ns", "Lowest time that the chip's limits allow, with inputs in memory."),
        Column("device", "on"),
        *(Column(key, key, kind, hidden=True) for key, kind in _HIDDEN),
    )
    frame = _frame(rows, columns)
    shown = tuple(column for column in columns if column.hidden or not rows or not _empty(frame[column.key]))
    return Table("kernels", "Kernels and the chip's limits", shown, frame, _chips(frame))


def kernel_words(row: Mapping[str, Any]) -> str:
    """Return a row of the table of kernels in words."""
    times = [
        f"{name} {format_ns(row[f'{name}_ns'])}"
        for name in ("cold", "warm", "replayed", "host")
        if row[f"{name}_ns"]
    ]
    said = [", ".join(times)]
    for rate, unit, share in (
        ("bandwidth", "GB/s", "bandwidth_share"),
        ("arithmetic_rate", "T op/s", "arithmetic_share"),
    ):
        if row[rate]:
            of = f" ({format_share(row[share])} of {row['chip']})" if row[share] is not None else ""
            said.append(f"{row[rate]} {unit}{of}")
    if row["least_ns"]:
        said.append(f"the chip's limits allow {format_ns(row['least_ns'])}")
    return "; ".join(filter(None, said))


def range_words(row: Mapping[str, Any]) -> str:
    """Return a row of the table of parts in words."""
    times = [
        (key.removesuffix("_ns").replace("_", " "), ns) for key, ns in row.items() if key.endswith("_ns")
    ]
    return ", ".join(f"{name} {format_ns(ns)}" for name, ns in times if ns is not None)


def range_table(judged: Sequence[Judged], out: Iterable[str]) -> Table:
    """Return the times of named parts of the step; without rows if no script reported any."""
    timed = {
        one.name: trials
        for one in judged
        if one.word not in out and (trials := [f for f in one.trials.values() if f.ranges_ns])
    }
    names = list(dict.fromkeys(name for trials in timed.values() for f in trials for name in f.ranges_ns))
    rows = [
        {
            "variant": variant,
            **{_key(name): median_known(f.ranges_ns.get(name) for f in trials) for name in names},
        }
        for variant, trials in timed.items()
    ]
    columns = (Column("variant", "variant", whole=True), *(Column(_key(name), name, "ns") for name in names))
    note = "Median time of each named range of a step, device time if the script measures it."
    return Table("ranges", "Parts of the step", columns, _frame(rows, columns), note)


_HIDDEN: Final[tuple[tuple[str, Kind], ...]] = (
    ("bytes_per_s", "number"),
    ("operations_per_s", "number"),
    ("moved_bytes", "bytes"),
    ("operations", "count"),
    ("arithmetic", "text"),
    ("chip", "text"),
    ("not_measured", "text"),
)


def _row(variant: str, trials: Sequence[Figures]) -> dict[str, Any]:
    device = trials[-1].device
    kernels = [figures.kernel for figures in trials if figures.kernel is not None]
    last, chip = kernels[-1], find_chip(device)
    times = {
        name: median_known(kernel.times_ns.get(name) for kernel in kernels)
        for name in ("cold", "warm", "replayed", "host")
    }
    rated = next((times[name] for name in _RATED if times[name]), None)
    peak = chip.operations_per_s.get(last.arithmetic) if chip is not None else None
    per_s = (
        {"bytes": last.moved_bytes * 1e9 / rated, "operations": last.operations * 1e9 / rated}
        if rated
        else {}
    )
    bandwidth = per_s["bytes"] / chip.bytes_per_s if chip is not None and times["cold"] else None
    return {
        "variant": variant,
        **{f"{name}_ns": time for name, time in times.items()},
        "bandwidth": _figure(per_s["bytes"] / 1e9) if rated and last.moved_bytes else "",
        "bandwidth_share": bandwidth if last.moved_bytes else None,
        "arithmetic_rate": _figure(per_s["operations"] / 1e12) if rated and last.operations else "",
        "arithmetic_share": per_s["operations"] / peak if rated and peak and last.operations else None,
        "least_ns": _least(last, chip),
        "device": device,
        "bytes_per_s": per_s.get("bytes") or None,
        "operations_per_s": per_s.get("operations") or None,
        "moved_bytes": last.moved_bytes or None,
        "operations": last.operations or None,
        "arithmetic": last.arithmetic,
        "chip": chip.name if chip is not None else "",
        "not_measured": "; ".join(f"{name}: {reason}" for name, reason in last.not_measured.items()),
    }


def _least(kernel: KernelFigures, chip: Chip | None) -> float | None:
    """Return the nanoseconds that a chip needs at least; None = it is unknown."""
    if chip is None:
        return None
    peak = chip.operations_per_s.get(kernel.arithmetic)
    compute_s = kernel.operations / peak if peak else 0.0
    return max(kernel.moved_bytes / chip.bytes_per_s, compute_s) * 1e9 or None


def _chips(frame: pl.DataFrame) -> str:
    """Return the limits of the chips in words."""
    limits: dict[str, str] = {}
    unknown: dict[str, None] = {}
    for device, arithmetic in frame.select("device", "arithmetic").unique(maintain_order=True).iter_rows():
        chip = find_chip(device)
        if chip is None:
            unknown[device] = None
            continue
        peak = chip.operations_per_s.get(arithmetic)
        limits.setdefault(chip.name, f"{chip.name}: {chip.bytes_per_s / 1e9:.0f} GB/s")
        limits[chip.name] += f", {peak / 1e12:.4g} T {arithmetic} op/s" if peak else ""
    if unknown:
        limits[""] = f"not in the table of chips, so no shares: {', '.join(unknown)}"
    return "; ".join(limits.values())


def _figure(value: float) -> str:
    """Return a number in three figures, however small it is, and never with an exponent."""
    if value >= 999.5 or not value:
        return f"{value:.0f}"
    return f"{value:.3g}" if value >= 1e-4 else f"{value:.{2 - math.floor(math.log10(value))}f}"


def _frame(rows: Sequence[dict[str, Any]], columns: Sequence[Column]) -> pl.DataFrame:
    """Return rows as a table that has its columns also when it is empty."""
    schema = None if rows else dict.fromkeys((column.key for column in columns), pl.String)
    return pl.DataFrame(rows, schema, infer_schema_length=None)


def _empty(column: pl.Series) -> bool:
    return column.is_null().all() or set(column.to_list()) <= {None, ""}


def _key(name: str) -> str:
    return f"{name.replace(' ', '_')}_ns"
