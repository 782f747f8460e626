"""Saving of a change for the job: a faster rank that waits for others saves nothing."""

from __future__ import annotations

import numpy as np
import polars as pl

from tuiprof.analyses.shared.scope import plural
from tuiprof.fleet.fleet import Fleet
from tuiprof.fleet.meeting import TOLERANCE
from tuiprof.model import Column, Fact, Report, Rule, Table, Unavailable, Verdict
from tuiprof.model.units import format_ns, format_share

NAME, TITLE = "job", "What a change saves the job"

_RULES = (
    Rule(
        "job",
        "Between the end of a collective and the start of its next one each rank has work of its own. A collective "
        "begins when the last rank of its process group has done that, and takes what it took that rank. A change "
        "takes from the own work of the ranks on which the advice finds it, in proportion.",
    ),
    Rule(
        "abstain",
        f"Rebuilt unchanged, the job must take what was captured, within {format_share(TOLERANCE)}.",
    ),
    Rule(
        "on a rank",
        "What the replayed step of a rank saves by itself (tuiprof report FILE advice), median of the ranks.",
    ),
)


def report(fleet: Fleet) -> Report | Unavailable:
    """Return the savings of the advice findings for the job."""
    if sum(map(len, fleet.groups)) < 2:
        return Unavailable(NAME, "no collectives were matched, so it is unknown what the ranks wait for")
    job = fleet.job
    if not job.fits:
        return Unavailable(
            NAME,
            f"the job rebuilt from its collectives takes {format_ns(job.takes_ns())} instead of the "
            f"captured {format_ns(job.captured_ns)}: collectives overlap"
            + ("" if fleet.grouped else ", or belong to process groups that the traces do not name"),
            "for advice on single ranks: tuiprof report FOLDER --rank N",
        )
    index = {file: row for row, file in enumerate(fleet.files.tolist())}
    priced = fleet.summary.findings.filter(pl.col("wins_ns").is_not_null())
    found = []
    for (rule, where), group in priced.group_by("rule", "where", maintain_order=True):
        less = np.zeros(len(index))
        for file, wins in group.select("file", "wins_ns").iter_rows():
            if file in index:
                less[index[file]] = max(less[index[file]], wins)
        on_rank = float(np.median(group["wins_ns"].to_numpy()))
        found.append(
            {
                "what": group["what"][0],
                "where": where,
                "instead": group["instead"][0],
                "ranks": int((less > 0).sum()),
                "rank_ns": on_rank,
                "wins_ns": min(job.wins_ns(less), on_rank),
                "rule": rule,
            }
        )
    step = fleet.step_ns or 0.0
    rows = (
        pl.DataFrame(
            found,
            schema={
                **dict.fromkeys(("what", "where", "instead"), pl.String),
                "ranks": pl.Int64,
                **dict.fromkeys(("rank_ns", "wins_ns"), pl.Float64),
                "rule": pl.String,
            },
        )
        .with_columns((pl.col("wins_ns") / step if step else pl.lit(None, pl.Float64)).alias("share"))
        .sort(["wins_ns", "rank_ns", "rule"], descending=[True, True, False])
    )
    if len(rows):
        first = rows.row(0, named=True)
        where = f", {first['where']}" if first["where"] else ""
        on = f"on {first['ranks']} of {plural(len(index), 'rank')}"
        verdict = Verdict(
            f"saves about {format_ns(float(first['wins_ns']))} a step of the job: {first['what']}{where} ({on})",
            "warn",
        )
    else:
        verdict = Verdict("no advice with a known saving on any rank", "good")
    return Report(
        NAME,
        TITLE,
        verdict,
        (
            Fact("job_ns", "a step of the job, rebuilt", job.takes_ns() / job.steps, "ns"),
            Fact("findings", "findings", len(rows), "count"),
        ),
        (
            Table(
                "findings",
                "What to change, by what it saves the job",
                (
                    Column("wins_ns", "saves/step", "ns"),
                    Column("share", "of step", "share"),
                    Column(
                        "rank_ns",
                        "on a rank",
                        "ns",
                        "What the same change saves on a rank by itself, median.",
                    ),
                    Column("ranks", "ranks", "count", "Ranks on which it is found."),
                    Column("what", "what"),
                    Column("where", "where", elide="start"),
                    Column("instead", "instead"),
                    Column("rule", "rule", hidden=True),
                ),
                rows,
                empty="no rule applies",
                prose=True,
            ),
        ),
        _RULES,
        (
            "Savings are estimates for a step without the profiler; the collectives are those that were captured.",
        ),
    )
