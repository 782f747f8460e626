"""Steps that take longer than the others: on all ranks, or because of one."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
import polars as pl

from tuiprof.analyses.shared.scope import plural
from tuiprof.fleet.fleet import Fleet
from tuiprof.model import Column, Fact, Report, Rule, Table, Unavailable, Verdict
from tuiprof.model.units import format_ns, format_share

NAME, TITLE = "slow_steps", "Slow steps"
#: A step is slow if it takes this many times as long as the median step.
SLOW: Final = 1.2
#: A rank is the cause if its delay is at least this share of the excess of the step.
_REASON: Final = 0.5

_RULES = (
    Rule("slow", f"A step that takes {SLOW:g} times the median step or more, by the median of the ranks."),
    Rule(
        "because of",
        "The rank that comes later than the median rank by "
        f"{format_share(_REASON)} or more of what the step takes beyond the median step; none = it is slow on all.",
    ),
)


def report(fleet: Fleet) -> Report | Unavailable:
    """Find slow steps and the ranks that cause them."""
    steps = (
        fleet.summary.steps.group_by("step")
        .agg(
            pl.col("period_ns").median().alias("step_ns"),
            pl.len().alias("ranks"),
            pl.col("period_ns").max().alias("most_ns"),
        )
        .sort("step")
    )
    steps = steps.filter(pl.col("ranks") * 2 > pl.col("ranks").max())
    if len(steps) < 3:
        return Unavailable(
            NAME,
            f"the ranks share {plural(len(steps), 'step')}: too few to call one slow",
            "record more steps",
        )
    median = float(np.median(steps["step_ns"].to_numpy()))
    slow = steps.filter(pl.col("step_ns") >= SLOW * median)
    late, at = fleet.late_per_step, fleet.steps
    reasons: list[int | None] = []
    lates: list[float | None] = []
    for step, took in slow.select("step", "step_ns").iter_rows():
        column = np.flatnonzero(at == step)
        each = late[:, column[0]] if len(column) else np.empty(0)
        if not len(each) or np.isnan(each).all():
            reasons.append(None)
            lates.append(None)
            continue
        row = int(np.nanargmax(each))
        its = float(each[row])
        lates.append(its)
        reasons.append(int(fleet.number[row]) if its >= _REASON * (took - median) else None)
    counts = Counter(rank for rank in reasons if rank is not None)
    rows = slow.with_columns(
        (pl.col("step_ns") - median).alias("over_ns"),
        pl.Series("because", reasons, dtype=pl.Int64),
        pl.Series("late_ns", lates, dtype=pl.Float64),
    ).sort(["over_ns", "step"], descending=[True, False])
    return Report(
        NAME,
        TITLE,
        _verdict(len(slow), len(steps), median, counts),
        (
            Fact("steps", "steps", len(steps), "count"),
            Fact("slow_steps", "slow steps", len(slow), "count"),
            Fact("slow_ns", "excess time of slow steps", float(rows["over_ns"].sum()), "ns"),
        ),
        (
            Table(
                "steps",
                "Slow steps, the slowest first",
                (
                    Column("step", "step", "count"),
                    Column("step_ns", "takes", "ns", "Median of the ranks."),
                    Column("over_ns", "beyond the median", "ns"),
                    Column("because", "because of rank", "count", "Empty: the step is slow on all ranks."),
                    Column(
                        "late_ns",
                        "latest rank by",
                        "ns",
                        "How much later than the median rank.",
                        signed=True,
                    ),
                    Column("most_ns", "longest", "ns", "On any rank."),
                ),
                rows,
                empty=f"no step takes {SLOW:g} times the median step",
            ),
        ),
        _RULES,
    )


def _verdict(slow: int, steps: int, median: float, counts: Counter[int]) -> Verdict:
    if not slow:
        return Verdict(f"no slow steps among {steps} of {format_ns(median)}", "good")
    said = f"{slow} of {plural(steps, 'step')} are slow"
    if not counts:
        return Verdict(f"{said}, on all ranks alike", "warn")
    rank, times = counts.most_common(1)[0]
    if times * 2 > slow and times > 1:
        return Verdict(f"{said}, {times} of them because of rank {rank}", "warn")
    whose = f"because of {plural(len(counts), 'rank')}" if len(counts) > 1 else f"one because of rank {rank}"
    return Verdict(f"{said}, {whose}; no rank is behind most of them", "warn")
