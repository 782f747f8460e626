"""Ranks, sorted by how long others waited for them."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tuiprof.fleet.fleet import LISTED_SHARE, Fleet
from tuiprof.fleet.meeting import ALWAYS, OUTLIER
from tuiprof.model import Column, Fact, Report, Rule, Table, Unavailable, Verdict
from tuiprof.model.report import Level
from tuiprof.model.units import format_ns, format_share, plural

NAME, TITLE = "stragglers", "Stragglers"
#: Possible savings of the job, as a share of the step, from which stragglers are a warning, and bad.
WARN_SHARE: Final = 0.01
BAD_SHARE: Final = 0.10
#: Maximum spread of the ends of a collective; beyond it, ranks are in different groups, or a clock drifts.
MAX_SCATTER_NS: Final = 1_000_000
#: Units named in the verdict.
_NAMED: Final = 3
#: Rows of the table of collectives.
_MAX_ROWS: Final = 1_000

_RULES = (
    Rule(
        "wait",
        "Time in a collective beyond that of the rank which spends the least in it, the one that came last. "
        "Collectives are matched by process group, step and order in those steps in which most ranks of the group run "
        "the same ones; where the traces do not say the group, among all ranks. Sends and receives between two ranks "
        "are left out.",
    ),
    Rule(
        "held",
        "Wait of the others in collectives at which this rank arrived last, mean over the others, a step.",
    ),
    Rule(
        "late",
        "Median wait of the others in its process group minus the wait of this rank, summed over the collectives of a "
        "step; limited to the same difference over all their groups, as a rank that waited in one group comes late to "
        "the next. Of several groups the one in which it is latest counts. A rank "
        f"is a straggler if in its median step that is at least {format_share(LISTED_SHARE)} of the step, and "
        f"{OUTLIER:g} standard errors of the median rank (its median absolute deviation from step to step, over the "
        f"root of the number of steps), and it is late in {format_share(ALWAYS)} of the steps.",
    ),
    Rule("slack", "Wait of a rank itself, a step: it could be slower by this without delaying the others."),
    Rule(
        "alone saves",
        "What the job saves a step if only this rank arrived with the second to last rank, at most down to the step of "
        "the slowest other rank by itself: replayed without waits for others in its collectives. With several process "
        "groups the job is rebuilt from its collectives instead, for stragglers only.",
    ),
    Rule(
        "clock",
        "Median difference between the ends of the same collectives on a rank and on the median rank. Ends lie within "
        "one message time of each other, so anything more is a clock difference. No other figure needs a common clock.",
    ),
)


def report(fleet: Fleet) -> Report | Unavailable:
    """Rank the ranks."""
    if not len(fleet.read):
        return Unavailable(NAME, "no file could be read", "tuiprof report FOLDER files says why")
    if not fleet.groups:
        return Unavailable(
            NAME,
            f"no collective of {plural(len(fleet.read), 'rank')} was matched",
            "record steps (profiler.step()) of a job whose ranks run collectives, the same steps on all",
        )
    step = fleet.step_ns or 0.0
    wins_ns = fleet.wins_ns(fleet.late)
    win = None if wins_ns is None else wins_ns / step if step else 0.0
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
            Fact("first_straggler", "rank waited for most", int(fleet.number[first]), "count"),
            Fact("first_straggler_group", "in its", _label(fleet, first) or None, "text"),
            Fact("groups", "process groups", len(fleet.groups) if fleet.grouped else None, "count"),
            Fact("held_ns_per_step", "the others wait for it a step", float(fleet.held.waited[first]), "ns"),
            Fact(
                "wait_ns_per_step", "wait a step, median of ranks", float(np.median(fleet.held.slack)), "ns"
            ),
            Fact("wins_share", "saved without stragglers", win, "share"),
            Fact("collectives", "collectives matched", sum(map(len, fleet.groups)), "count"),
            Fact(
                "clock_spread_ns",
                "clock difference",
                float(np.nanmax(clocks) - np.nanmin(clocks)) if not np.isnan(clocks).all() else None,
                "ns",
            ),
        ),
        (_ranks(fleet), _collectives(fleet)),
        _RULES,
        tuple(_notes(fleet)),
    )


def _verdict(fleet: Fleet, win: float | None) -> Verdict:
    step = fleet.step_ns or 0.0
    over = f"{plural(len(fleet.files), 'rank')}, {plural(len(fleet.steps), 'step')} of {format_ns(step)}"
    if not fleet.late.any():
        waited = float(np.median(fleet.held.slack))
        if step and waited >= BAD_SHARE * step:
            last = fleet.held.last
            whom = "but not for the same one each time"
            if last.max() >= ALWAYS * last.sum():
                whom = (
                    f"mostly for rank {fleet.number[last.argmax()]}, but by times that differ too much from step to "
                    "step to be certain"
                )
            return Verdict(f"ranks wait {format_ns(waited)} a step for one another, {whom} ({over})", "warn")
        return Verdict(f"the ranks keep pace: {format_ns(waited)} of waiting a step ({over})", "good")
    units = _units(fleet)
    said = ", ".join(words for words, _ in units[:_NAMED])
    if len(units) > _NAMED:
        said += f" and {len(units) - _NAMED} more"
    if win is None:
        return Verdict(
            f"{said} a step; what fixing that would save is unknown, because collectives overlap ({over})",
            "warn",
        )
    if win < LISTED_SHARE:
        return Verdict(
            f"{said} a step, but fixing that saves nothing: other ranks take as long by themselves ({over})",
            "info",
        )
    level: Level = "bad" if win >= BAD_SHARE else "warn" if win >= WARN_SHARE else "info"
    return Verdict(
        f"{said} a step; without that, each step of the job would be {format_share(win)} shorter ({over})",
        level,
    )


def _label(fleet: Fleet, row: int) -> str:
    """Return the name of the group that a rank delays; empty = the group of all ranks, or unknown."""
    return fleet.label(fleet.groups[fleet.home[row]])


def _short(label: str) -> str:
    """Return a label of a group for a cell: ``data-parallel (1, 3, 5, 7)``."""
    return label.replace(" group (ranks ", " (")


def _units(fleet: Fleet) -> list[tuple[str, float]]:
    """Return hosts and ranks that are late, the latest first; ranks of a late host are not named separately."""
    late = fleet.held.late
    units = []
    for host in fleet.late_hosts:
        own = fleet.host_of == host
        late_ns = float(np.median(late[own]))
        name = f"{fleet.hosts[host]} ({plural(int(own.sum()), 'rank')})"
        units.append((f"{name} arrives {format_ns(late_ns)} late", late_ns))
    for row in np.flatnonzero(fleet.late & ~np.isin(fleet.host_of, fleet.late_hosts)).tolist():
        late_ns, label = float(late[row]), _label(fleet, row)
        name = f"rank {fleet.number[row]}"
        said = (
            f"makes its {label} wait {format_ns(late_ns)}" if label else f"arrives {format_ns(late_ns)} late"
        )
        units.append((f"{name} {said}", late_ns))
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
            "group": [_short(_label(fleet, row)) for row in range(len(fleet.files))],
        }
    ).with_columns(pl.col("clock_ns", "clock_spread_ns", "wins_ns").fill_nan(None))
    columns = (
        Column("rank", "rank", "count"),
        Column("host", "host", hidden=not fleet.hosts),
        Column("late_ns", "late", "ns", "Later than the median of the others, a step.", signed=True),
        Column(
            "held_ns",
            "others wait",
            "ns",
            "In collectives at which it arrived last, a step, mean of the others.",
        ),
        Column(
            "wins_ns", "alone saves", "ns", "What the job saves a step if only this rank arrived earlier."
        ),
        Column("slack_ns", "slack", "ns", "Its own wait, a step."),
        Column(
            "group", "in its", hidden=len(fleet.groups) < 2, help="The process group in which it is latest."
        ),
        Column("because", "differs by", help="How this rank differs from the others."),
        Column("last", "last", "count", "Collectives at which it arrived last."),
        Column(
            "clock_ns", "clock", "ns", "Its clock minus the median rank's.", signed=True, hidden=not clocked
        ),
        Column("clock_spread_ns", "±", "ns", "Median absolute deviation of that.", hidden=True),
        Column("step_ns", "step", "ns", "Its median step.", hidden=True),
    )
    return Table(
        "ranks",
        "Ranks, longest wait of the others first",
        columns,
        rows.sort(["held_ns", "late_ns", "rank"], descending=[True, True, False]),
        ""
        if clocked
        else "clocks are not compared: the traces do not say when they were recorded, or hosts ran the collectives",
    )


def _collectives(fleet: Fleet) -> Table:
    """Show where the waiting occurs: by position in the step and name."""
    parts = []
    for one in fleet.groups:
        wait = one.wait
        filled = np.where(np.isnan(wait), np.inf, wait)
        parts.append(
            pl.DataFrame(
                {
                    "group": [_short(fleet.label(one))] * len(one),
                    "place": np.arange(len(one)) - np.searchsorted(one.step, one.step) + 1,
                    "name": one.name,
                    "last": fleet.number[fleet.members(one)[filled.argmin(axis=0)]],
                    "wait": np.nanmean(wait, axis=0),
                    "most": np.nanmax(wait, axis=0),
                }
            )
        )
    rows = (
        pl.concat(parts)
        .group_by("group", "place", "name")
        .agg(
            pl.len().alias("steps"),
            pl.col("wait").mean().alias("wait_ns"),
            pl.col("most").max().alias("most_ns"),
            pl.col("last").mode().sort().first().alias("rank"),
            (pl.col("last") == pl.col("last").mode().sort().first()).mean().alias("share"),
        )
        .sort(["wait_ns", "group", "place"], descending=[True, False, False])
        .head(_MAX_ROWS)
    )
    rows = rows.with_columns(pl.col("name").map_elements(fleet.name, pl.String))
    columns = (
        Column("place", "in step", "count", "Its position among the collectives of its group in a step."),
        Column("name", "collective"),
        Column("group", "of", hidden=len(fleet.groups) < 2),
        Column("wait_ns", "wait", "ns", "Mean over ranks and steps."),
        Column("most_ns", "longest", "ns"),
        Column("rank", "last", "count", "The rank that came last most often."),
        Column("share", "of steps", "share", "Share of the steps in which it did."),
        Column("steps", "steps", "count"),
    )
    return Table("collectives", "Where ranks wait for one another", columns, rows)


def _notes(fleet: Fleet) -> list[str]:
    notes = []
    if len(fleet.unread):
        notes.append(f"{plural(len(fleet.unread), 'file')} cannot be read; the reasons are under Files.")
    apart = len(fleet.read) - len(fleet.files)
    if apart:
        notes.append(f"{plural(apart, 'rank')} share no collective with the others and are left out here.")
    if left_out := sum(one.left_out for one in fleet.groups):
        notes.append(
            f"{plural(left_out, 'step')} of ranks are left out: their collectives differ from those of most ranks."
        )
    spread = fleet.clocks.spread
    if not np.isnan(spread).all() and np.nanmax(spread) > MAX_SCATTER_NS:
        scatter = f"The ends of matched collectives scatter by {format_ns(float(np.nanmax(spread)))}"
        if fleet.grouped:
            notes.append(f"{scatter}, more than a message takes: waits may be too long.")
        else:
            notes.append(
                f"{scatter}: the traces do not say which process groups collectives belong to, so ranks that never met "
                "may have been matched, and waits are then too long."
            )
    if (thinned := fleet.read["thinned"].max()) and isinstance(thinned, int) and thinned > 1:
        notes.append(f"Only every {thinned}th collective of a step was kept; waits cover only those.")
    return notes
