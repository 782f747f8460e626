"""Ranks that sync, launch or allocate more or less than the others."""

from __future__ import annotations

import polars as pl

from tuiprof.analyses.shared.scope import plural
from tuiprof.fleet.differences import differing
from tuiprof.fleet.fleet import Fleet
from tuiprof.model import Column, Fact, Report, Rule, Table, Unavailable, Verdict

NAME, TITLE = "differences", "Differences"

_RULES = (
    Rule(
        "differs",
        "By half a sync a step, by a launch and 0.5 % of the launches a step, by 64 MiB and 5 % of the peak memory, "
        "from the median rank. Where more than half the ranks differ (stages of a pipeline), none is listed.",
    ),
)


def report(fleet: Fleet) -> Report | Unavailable:
    """Compare the activity of ranks."""
    if len(fleet.read) < 3:
        return Unavailable(
            NAME,
            f"{plural(len(fleet.read), 'rank')}: no other ranks to compare with",
            "open three ranks or more",
        )
    found = list(differing(fleet.read))
    late = (
        dict(zip(fleet.number.tolist(), fleet.held.late.tolist(), strict=True)) if len(fleet.groups) else {}
    )
    rows = pl.DataFrame(
        {
            "rank": [one.rank for one in found],
            "what": [one.words for one in found],
            "own": [one.own for one in found],
            "others": [one.others for one in found],
            "late_ns": [late.get(one.rank) for one in found],
        },
        schema={
            "rank": pl.Int64,
            "what": pl.String,
            "own": pl.Float64,
            "others": pl.Float64,
            "late_ns": pl.Float64,
        },
    )
    if found:
        first = found[0]
        rest = len({one.rank for one in found}) - 1
        more = f"; {plural(rest, 'other rank')} also differ" if rest else ""
        verdict = Verdict(f"rank {first.rank} has {first.words}{more}", "warn")
    else:
        verdict = Verdict("all ranks have the same syncs, launches and memory", "good")
    return Report(
        NAME,
        TITLE,
        verdict,
        (Fact("differing_ranks", "ranks that differ", len({one.rank for one in found}), "count"),),
        (
            Table(
                "ranks",
                "Ranks that differ",
                (
                    Column("rank", "rank", "count"),
                    Column("what", "differs by"),
                    Column("own", "this rank", "number"),
                    Column("others", "median rank", "number"),
                    Column("late_ns", "late", "ns", "Later than the median rank, a step.", signed=True),
                ),
                rows,
                empty="all ranks do the same",
            ),
        ),
        _RULES,
    )
