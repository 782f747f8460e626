"""How much devices worked by what a monitor reports of them, where no events tell."""

from __future__ import annotations

import polars as pl

from tuiprof.model import Column, Fact, Report, Rule, Table, Trace, Unavailable, Verdict, Window
from tuiprof.model.units import format_count, format_ns, format_share

#: Series of the counters that are a device's utilisation, and its memory in use.
_UTIL, _MEMORY = "util", "mem_used_bytes"

_RULES = (
    Rule(
        "utilisation",
        "The share of each report's period in which a device worked, as the monitor measured it; the mean is over the "
        "reports that name the device.",
    ),
)


def reported_use(trace: Trace, window: Window, name: str, title: str) -> Report | Unavailable | None:
    """Return what counters say of the devices' utilisation; None where the trace is no such recording."""
    if trace.counters is None or not any(remark.code == "telemetry-only" for remark in trace.stats.remarks):
        return None
    low, high = window.start_ns, window.end_ns
    counters = trace.counters.filter(
        pl.col("ts").is_between(0 if low is None else low, pl.Int64.max() if high is None else high)
    )
    devices = _devices(counters)
    known = len(trace.info.devices)
    if devices.is_empty():
        return Unavailable(
            name,
            f"no report names a device in use (of {known})" if known else "no report names a device",
            "record while a model runs",
        )
    reports = counters["ts"].n_unique()
    span = int(counters["ts"].max()) - int(counters["ts"].min())  # type: ignore[arg-type]
    mean = float(devices["util_mean"].mean())  # type: ignore[arg-type]
    peak = float(devices["util_max"].max())  # type: ignore[arg-type]
    count = len(devices)
    who = f"{count} device{'s' if count != 1 else ''}"
    over = f"{format_count(reports)} report{'s' if reports != 1 else ''}" + (
        f", {format_ns(span)}" if span else ""
    )
    idle = f"; the other {known - count} of {known} are not in use" if known > count else ""
    return Report(
        name,
        title,
        Verdict(
            f"{who} worked {format_share(mean)} of the time on average, at most {format_share(peak)} ({over}){idle}. "
            "Why they idle, only a profile tells"
        ),
        (
            Fact("idle_share", "idle", 1 - mean, "share", "What the mean utilisation leaves."),
            Fact("idle_ns_per_step", "idle a step", None, "ns"),
            Fact("reported_util_mean", "utilisation", mean, "share", "Mean over the devices in use."),
            Fact("reported_util_max", "highest", peak, "share", "Of one device in one report."),
            Fact("reports", "reports", reports, "count"),
            Fact("reported_span_ns", "over", span, "ns", "From the first report to the last."),
        ),
        (
            Table(
                "devices",
                "Utilisation by device",
                (
                    Column("device", "device"),
                    Column("util_mean", "mean", "share"),
                    Column("util_max", "highest", "share"),
                    Column("mem_used_bytes", "memory, highest", "bytes"),
                    Column("reports", "reports", "count"),
                ),
                devices,
            ),
        ),
        _RULES,
        window=window,
    )


def _devices(counters: pl.DataFrame) -> pl.DataFrame:
    """Return mean and highest utilisation by device; the figure over all is left out where each device has one."""
    value, series = pl.col("value"), pl.col("series")
    found = (
        counters.group_by("name", maintain_order=True)
        .agg(
            value.filter(series == _UTIL).mean().alias("util_mean"),
            value.filter(series == _UTIL).max().alias("util_max"),
            value.filter(series == _MEMORY).max().cast(pl.Int64, strict=False).alias("mem_used_bytes"),
            (series == _UTIL).sum().cast(pl.Int64).alias("reports"),
        )
        .filter(pl.col("reports") > 0)
        .rename({"name": "device"})
    )
    apart = found.filter(pl.col("device").str.contains(r"\d$"))
    return apart if len(apart) else found
