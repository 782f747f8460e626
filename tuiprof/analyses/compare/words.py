"""What changed between two traces of a few steps, as text: syncs and launches, kinds of kernel, operators."""

from __future__ import annotations

import re
from typing import Final

import polars as pl

from tuiprof.analyses import run
from tuiprof.analyses.compare.figures import figure_of
from tuiprof.model import Report, Trace
from tuiprof.model.units import format_count, format_ns, format_share

#: Differences of time below this share of a step are not mentioned on a device …
DEVICE_SHARE: Final = 0.01
#: … and below this share of the operators' self time on a CPU, where times depend on the load.
HOST_SHARE: Final = 0.10
#: Maximum number of names per kind.
_MOST: Final = 3
_LINE: Final = re.compile(r"\.py:\d+$")


def change_clauses(report: Report, before: Trace, after: Trace) -> tuple[str, ...]:
    """Return what changed between two traces with step marks, one clause each, most important first."""
    if before.device_indices and after.device_indices:
        return (
            *_syncs(report),
            *_launches(report),
            *_kinds(before, after, _median_step(before) * DEVICE_SHARE),
        )
    return tuple(_operators(report))


def changed_in_words(report: Report, before: Trace | None, after: Trace | None) -> str | None:
    """Return what changed between two traces in one line; None = nothing, or unknown."""
    if before is None or after is None or not (before.steps.numbers.size and after.steps.numbers.size):
        return None
    return " · ".join(change_clauses(report, before, after)) or None


def _median_step(trace: Trace) -> float:
    return figure_of(run("steps", trace), "step_period_ns") or 0.0


def _metric(report: Report, key: str) -> tuple[str, str, float | None]:
    rows = report.table("metrics").rows.filter(pl.col("key") == key)
    return str(rows["before"][0]), str(rows["after"][0]), rows["ratio"][0]


def _syncs(report: Report) -> list[str]:
    old, new, _ = _metric(report, "syncs_per_step")
    if old == new:
        return []
    rows = report.table("syncs").rows
    return [
        f"syncs {old} → {new} a step",
        *(
            f"{word}: {', '.join(_location(name) for name, _ in items)}{more}"
            for word, items, more in _gone_and_new(rows)
        ),
    ]


def _location(name: str) -> str:
    """Return the location of a sync: its line if known, else with the operators around it."""
    where, _, through = name.partition(" ← ")
    return where if through in ("", where) or _LINE.search(where) else name


def _launches(report: Report) -> list[str]:
    old, new, ratio = _metric(report, "launches_per_step")
    if old == new or (ratio is not None and abs(ratio - 1) < DEVICE_SHARE):
        return []
    return [f"launches {old} → {new} a step"]


def _kinds(before: Trace, after: Trace, least_ns: float) -> list[str]:
    frames = []
    for trace, name in ((before, "before"), (after, "after")):
        kernels = run("kernels", trace)
        if not isinstance(kernels, Report):
            return []
        rows = kernels.table("kinds").rows
        if "per_step_ns" not in rows.columns:
            return []
        frames.append(rows.select("kind", pl.col("per_step_ns").cast(pl.Float64).alias(name)))
    rows = frames[0].join(frames[1], on="kind", how="full", coalesce=True).fill_null(0.0)
    rows = rows.with_columns((pl.col("after") - pl.col("before")).abs().alias("change"))
    largest = rows.filter(pl.col("change") >= max(least_ns, 1.0))
    largest = largest.sort("change", "kind", descending=[True, False]).head(_MOST)
    return [
        f"device time of {row['kind']} {format_ns(row['before'])} → {format_ns(row['after'])} a step"
        for row in largest.iter_rows(named=True)
    ]


def _operators(report: Report) -> list[str]:
    """Return what changed in the operators of a CPU: added and removed ones, then shares of their time."""
    rows = report.table("operators").rows
    found = [
        f"{word}: {', '.join(f'{name} ({format_count(round(count, 2))} a step)' for name, count in items)}{more}"
        for word, items, more in _gone_and_new(rows)
    ]
    # Shares, not times: a trace of a busy machine is longer in all parts.
    shares = rows.select(
        "name", *(pl.col(f"{side}_ns") / pl.col(f"{side}_ns").sum() for side in ("before", "after"))
    )
    shares = shares.fill_nan(0.0).with_columns(
        (pl.col("after_ns") - pl.col("before_ns")).abs().alias("change")
    )
    both = (pl.col("before_ns") > 0) & (pl.col("after_ns") > 0)
    largest = shares.filter(both & (pl.col("change") >= HOST_SHARE))
    largest = largest.sort("change", "name", descending=[True, False]).head(_MOST)
    found += [
        f"{name} {format_share(before)} → {format_share(after)} of the operators' time"
        for name, before, after in largest.select("name", "before_ns", "after_ns").iter_rows()
    ]
    return found


def _gone_and_new(rows: pl.DataFrame) -> list[tuple[str, list[tuple[str, float]], str]]:
    """Return what only one side has: names and counts per step of the most expensive, and the number of others."""
    found = []
    for word, here, there in (("gone", "before", "after"), ("new", "after", "before")):
        only = rows.filter((pl.col(f"{there}_count") == 0) & (pl.col(f"{here}_count") > 0))
        first = only.sort(f"{here}_ns", "name", descending=[True, False]).head(_MOST)
        if len(only):
            more = f" and {len(only) - _MOST} more" if len(only) > _MOST else ""
            found.append((word, first.select("name", f"{here}_count").rows(), more))
    return found
