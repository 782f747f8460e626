"""Ranks in the order of what the others waited for them."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tuiprof.analyses.shared.scope import plural
from tuiprof.fleet.fleet import LISTED_SHARE, Fleet
from tuiprof.fleet.meeting import ALWAYS, OUTLIER
from tuiprof.model import Column, Fact, Report, Rule, Table, Unavailable, Verdict
from tuiprof.model.report import Level
from tuiprof.model.units import format_ns, format_share

NAME, TITLE = "stragglers", "Stragglers"
#: From this share of the step that the job would win, stragglers are a warning; bad from the second.
WARN_SHARE: Final = 0.01
BAD_SHARE: Final = 0.10
#: Ends of a collective lie closer together than this; more is ranks of different groups, or a clock that drifts.
MOST_SCATTER_NS: Final = 1_000_000
#: Units named in the verdict.
_NAMED: Final = 3

_RULES = (
    Rule(
        "wait",
        "Time in a collective beyond that of the rank which spends the least in it, the one that came last. "
        "Collectives are matched by step and order in those steps in which most ranks run the same ones; sends and "
        "receives between two ranks are left out.",
    ),
    Rule(
        "held",
        "What the others waited in collectives to which this rank came last, mean over the others, a step.",
    ),
    Rule(
        "late",
        "What the median of the others waits less what this rank waits, added over the collectives of a step. A rank "
        f"is a straggler if in its median step that is at least {format_share(LISTED_SHARE)} of the step, and "
        f"{OUTLIER:g} standard errors of the median rank (its median absolute deviation from step to step, over the "
        f"root of the number of steps), and it is late in {format_share(ALWAYS)} of the steps.",
    ),
    Rule("slack", "What a rank waits itself, a step: it could be slower by this without anybody noticing."),
    Rule(
        "alone wins",
        "What the job wins a step if this rank alone came when the second to last rank does, but no more than down to "
        "the step of the slowest other rank by itself: replayed, with no wait for others in its collectives.",
    ),
    Rule(
        "clock",
        "Median difference between the ends of the same collectives on a rank and on the median rank. Ends lie within "
        "the time of a message of one another, so what is more than that is a difference of clocks. No other figure "
        "needs a common clock.",
    ),
)


def report(fleet: Fleet) -> Report | Unavailable:
    """Rank the ranks."""
    found = fleet.meetings
    if not len(fleet.read):
        return Unavailable(NAME, "no file could be read", "tuiprof report FOLDER files says why")
    if len(found) == 0 or len(found.files) < 2:
        return Unavailable(
            NAME,
            f"no collective of {plural(len(fleet.read), 'rank')} was matched",
            "record steps (profiler.step()) of a job whose ranks run collectives, the same steps on all",
        )
    step = fleet.step_ns or 0.0
    win = fleet.wins_ns(fleet.late) / step if step else 0.0
    first = int(np.argmax(fleet.held.waited))
    clocks = fleet.clocks.offset
    return Report(
        NAME,
        TITLE,
        _verdict(fleet, win),
        (
            Fact("ranks", "ranks", len(fleet.read), "count"),
            Fact("hosts", "hosts", len(fleet.hosts) or None, "count"),
            Fact("step_ns", "step, median of ranks", step, "ns"),
            Fact("stragglers", "stragglers", int(fleet.late.sum()), "count"),
            Fact("first_straggler", "waited for most", int(fleet.number[first]), "count"),
            Fact("held_ns_per_step", "the others wait for it a step", float(fleet.held.waited[first]), "ns"),
            Fact(
                "wait_ns_per_step", "wait a step, median of ranks", float(np.median(fleet.held.slack)), "ns"
            ),
            Fact("wins_share", "a job without stragglers wins", win, "share"),
            Fact("collectives", "collectives matched", len(found), "count"),
            Fact(
                "clock_spread_ns",
                "clocks apart",
                float(np.nanmax(clocks) - np.nanmin(clocks)) if not np.isnan(clocks).all() else None,
                "ns",
            ),
        ),
        (_ranks(fleet), _collectives(fleet)),
        _RULES,
        tuple(_notes(fleet)),
    )


def _verdict(fleet: Fleet, win: float) -> Verdict:
    found, step = fleet.meetings, fleet.step_ns or 0.0
    over = f"{plural(len(found.files), 'rank')}, {plural(len(found.steps), 'step')} of {format_ns(step)}"
    if not fleet.late.any():
        waited = float(np.median(fleet.held.slack))
        if step and waited >= BAD_SHARE * step:
            return Verdict(
                f"ranks wait {format_ns(waited)} a step for one another, but not for the same one each time ({over})",
                "warn",
            )
        return Verdict(f"the ranks keep pace: {format_ns(waited)} of waiting a step ({over})", "good")
    units = _units(fleet)
    said = ", ".join(f"{name} comes {format_ns(late)} late" for name, late in units[:_NAMED])
    if len(units) > _NAMED:
        said += f" and {len(units) - _NAMED} more"
    if win < LISTED_SHARE:
        return Verdict(
            f"{said} a step, but the other ranks would take as long by themselves ({over})", "info"
        )
    level: Level = "bad" if win >= BAD_SHARE else "warn" if win >= WARN_SHARE else "info"
    return Verdict(
        f"{said} a step; without that a step of the job takes {format_share(win)} less ({over})", level
    )


def _units(fleet: Fleet) -> list[tuple[str, float]]:
    """Return hosts and ranks that are late, the latest first; ranks of a late host are not named beside it."""
    late = fleet.held.late
    units = [
        (
            f"{fleet.hosts[host]} ({plural(int((fleet.host_of == host).sum()), 'rank')})",
            float(np.median(late[fleet.host_of == host])),
        )
        for host in fleet.late_hosts
    ]
    own = fleet.late & ~np.isin(fleet.host_of, fleet.late_hosts)
    units += [(f"rank {fleet.number[row]}", float(late[row])) for row in np.flatnonzero(own).tolist()]
    return sorted(units, key=lambda unit: -unit[1])


def _ranks(fleet: Fleet) -> Table:
    because = fleet.because
    clocked = not bool(np.isnan(fleet.clocks.offset).all())
    rows = pl.DataFrame(
        {
            "rank": fleet.number,
            "host": fleet.ranks["host"],
            "late_ns": fleet.held.late,
            "held_ns": fleet.held.waited,
            "wins_ns": fleet.alone_ns,
            "slack_ns": fleet.held.slack,
            "last": fleet.held.last,
            "step_ns": fleet.ranks["step_ns"],
            "clock_ns": fleet.clocks.offset,
            "clock_spread_ns": fleet.clocks.spread,
            "because": [because.get(rank, "") for rank in fleet.number.tolist()],
        }
    ).with_columns(pl.col("clock_ns", "clock_spread_ns").fill_nan(None))
    return Table(
        "ranks",
        "Ranks, what the others waited for most first",
        (
            Column("rank", "rank", "count"),
            Column("host", "host", hidden=not fleet.hosts),
            Column("late_ns", "late", "ns", "Later than the median of the others, a step.", signed=True),
            Column(
                "held_ns",
                "others wait",
                "ns",
                "In collectives to which it came last, a step, mean of the others.",
            ),
            Column("wins_ns", "alone wins", "ns", "What the job wins a step if this rank alone came sooner."),
            Column("slack_ns", "slack", "ns", "What it waits itself, a step."),
            Column("because", "differs by", help="What sets this rank apart from the others."),
            Column("last", "last", "count", "Collectives to which it came last."),
            Column(
                "clock_ns",
                "clock",
                "ns",
                "Its clock less the median rank's.",
                signed=True,
                hidden=not clocked,
            ),
            Column("clock_spread_ns", "±", "ns", "Median absolute deviation of that.", hidden=True),
            Column("step_ns", "step", "ns", "Its median step.", hidden=True),
        ),
        rows.sort(["held_ns", "late_ns", "rank"], descending=[True, True, False]),
        ""
        if clocked
        else "clocks are not compared: the traces do not say when they were recorded, or hosts ran the collectives",
    )


def _collectives(fleet: Fleet) -> Table:
    """Show where the waiting is: by place in the step and name."""
    found = fleet.meetings
    wait = found.wait
    filled = np.where(np.isnan(wait), np.inf, wait)
    place = np.concatenate([np.arange(n) for n in np.unique(found.step, return_counts=True)[1]])
    rows = (
        pl.DataFrame(
            {
                "place": place + 1,
                "name": found.name,
                "last": fleet.number[filled.argmin(axis=0)],
                "wait": np.nanmean(wait, axis=0),
                "most": np.nanmax(wait, axis=0),
            }
        )
        .group_by("place", "name")
        .agg(
            pl.len().alias("steps"),
            pl.col("wait").mean().alias("wait_ns"),
            pl.col("most").max().alias("most_ns"),
            pl.col("last").mode().sort().first().alias("rank"),
            (pl.col("last") == pl.col("last").mode().sort().first()).mean().alias("share"),
        )
        .sort(["wait_ns", "place"], descending=[True, False])
    )
    rows = rows.with_columns(pl.col("name").map_elements(fleet.name, pl.String))
    return Table(
        "collectives",
        "Where ranks wait for one another",
        (
            Column("place", "in step", "count", "Its position among the collectives of a step."),
            Column("name", "collective"),
            Column("wait_ns", "wait", "ns", "Mean over ranks and steps."),
            Column("most_ns", "longest", "ns"),
            Column("rank", "last", "count", "The rank that came last most often."),
            Column("share", "of steps", "share", "In how many of the steps it did."),
            Column("steps", "steps", "count"),
        ),
        rows,
    )


def _notes(fleet: Fleet) -> list[str]:
    found, notes = fleet.meetings, []
    if len(fleet.unread):
        notes.append(f"{plural(len(fleet.unread), 'file')} cannot be read; the reasons are under Files.")
    apart = len(fleet.read) - len(found.files)
    if apart:
        notes.append(f"{plural(apart, 'rank')} share no collective with the others and are left out here.")
    if found.left_out:
        notes.append(
            f"{plural(found.left_out, 'step')} of ranks are left out: their collectives are not those of most ranks."
        )
    spread = fleet.clocks.spread
    if not np.isnan(spread).all() and np.nanmax(spread) > MOST_SCATTER_NS:
        notes.append(
            f"The ends of matched collectives scatter by {format_ns(float(np.nanmax(spread)))}: ranks of different "
            "process groups may have been matched, and waits are then too long."
        )
    if (thinned := fleet.read["thinned"].max()) and isinstance(thinned, int) and thinned > 1:
        notes.append(
            f"Of the collectives of a step every {thinned}th was kept; waits are those in them alone."
        )
    return notes
