"""Kernels that take longer on some ranks than on others: clocks, throttling, or other inputs."""

from __future__ import annotations

from typing import Final

import polars as pl

from tuiprof.analyses.shared.scope import plural
from tuiprof.fleet.fleet import SLOWER, Fleet
from tuiprof.model import Column, Fact, Report, Rule, Table, Unavailable, Verdict
from tuiprof.model.units import format_share

NAME, TITLE = "slow_kernels", "Slow kernels"
#: Share of slower kernel time from which the device is the cause rather than single kernels.
_DEVICE_SHARE: Final = 0.8

_RULES = (
    Rule(
        "factor",
        "Median length of a kernel's calls on a rank, by that of the median rank with the same model of device; of a "
        "rank the median over its kernels, weighted by time. Collectives are left out.",
    ),
    Rule("slower", f"A factor of {SLOWER:g} or more."),
    Rule(
        "device",
        f"{format_share(_DEVICE_SHARE)} of the kernels' time or more is slower: a lower clock, or throttling by heat "
        "or power. Less: some kernels have other inputs on this rank.",
    ),
)


def report(fleet: Fleet) -> Report | Unavailable:
    """Find the ranks whose kernels are slower."""
    speed = fleet.speed.join(fleet.read.select("file", "rank", "host", "device"), on="file")
    if speed.is_empty():
        return Unavailable(
            NAME, "no kernel runs on three ranks or more", "open traces of devices of one model"
        )
    slower = speed.filter((pl.col("factor") >= SLOWER) | (pl.col("slower") >= 1 - _DEVICE_SHARE)).sort(
        ["factor", "rank"], descending=[True, False]
    )
    slower = slower.with_columns(
        pl.when(pl.col("slower") >= _DEVICE_SHARE)
        .then(pl.lit("all kernels: clock or throttling"))
        .otherwise(pl.lit("some kernels: other inputs"))
        .alias("cause")
    )
    kernels = (
        fleet.kernel_factor.filter(pl.col("factor") >= SLOWER)
        .join(fleet.read.select("file", "rank"), on="file")
        .group_by("name")
        .agg(
            pl.len().alias("ranks"),
            pl.col("factor").max(),
            pl.col("rank").sort_by("factor").last(),
            pl.col("typical_ns").first(),
            (pl.col("total_ns") * (1 - 1 / pl.col("factor"))).sum().alias("more_ns"),
        )
        .sort("more_ns", "name", descending=[True, False])
        .with_columns(pl.col("name").map_elements(fleet.name, pl.String))
    )
    return Report(
        NAME,
        TITLE,
        _verdict(slower, speed),
        (
            Fact("slow_ranks", "ranks with slower kernels", len(slower), "count"),
            Fact(
                "worst_factor",
                "slowest rank, times the median",
                float(speed["factor"].to_numpy().max()),
                "number",
            ),
        ),
        (
            Table(
                "ranks",
                "Ranks whose kernels take longer",
                (
                    Column("rank", "rank", "count"),
                    Column("host", "host", hidden=not fleet.hosts),
                    Column("factor", "factor", "number"),
                    Column(
                        "slower", "slower", "share", "Share of the kernels' time in kernels that are slower."
                    ),
                    Column("cause", "likely"),
                    Column("device", "device"),
                ),
                slower,
                empty="the kernels take the same time on all ranks",
            ),
            Table(
                "kernels",
                "Kernels, largest excess on the slower ranks first",
                (
                    Column("name", "kernel"),
                    Column(
                        "more_ns",
                        "more",
                        "ns",
                        "Excess time in it on all slower ranks, in all steps.",
                    ),
                    Column("ranks", "ranks", "count", "On which it is slower."),
                    Column("factor", "at most", "number"),
                    Column("rank", "on rank", "count"),
                    Column("typical_ns", "median rank", "ns"),
                ),
                kernels,
                empty="no kernel is slower on some rank",
            ),
        ),
        _RULES,
    )


def _verdict(slower: pl.DataFrame, speed: pl.DataFrame) -> Verdict:
    if slower.is_empty():
        return Verdict(f"kernels take the same time on {plural(len(speed), 'rank')}", "good")
    whole = slower.filter(pl.col("slower") >= _DEVICE_SHARE)
    hosts = [host for host in whole["host"].unique().sort().to_list() if host]
    ranks = ", ".join(str(rank) for rank in slower["rank"].head(6).to_list()) + (
        " …" if len(slower) > 6 else ""
    )
    worst = float(slower["factor"].to_numpy().max())
    where = f" on {hosts[0]}" if len(hosts) == 1 and len(whole) == len(slower) else ""
    said = f"kernels take up to {worst:.2f}× as long on {plural(len(slower), 'rank')}{where} ({ranks})"
    why = (
        "all kernels of a device: its clock, or throttling"
        if len(whole)
        else "some kernels: their inputs differ"
    )
    return Verdict(f"{said}; {why}", "warn")
