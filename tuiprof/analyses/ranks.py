"""Which rank delays the others, and by how much."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import polars as pl

from tuiprof.analyses import Analysis
from tuiprof.analyses.shared.collectives import (
    MAX_SCATTER_NS,
    GroupWaiting,
    RankSteps,
    Waiting,
    of_rank,
    ranks_of,
    waiting,
)
from tuiprof.model import Column, Fact, Report, Rule, Table, Trace, Unavailable, Verdict, Window
from tuiprof.model.intervals import Ints
from tuiprof.model.report import Level, listed
from tuiprof.model.units import format_ns, format_share, plural

NAME, TITLE = "ranks", "Ranks"

#: Share of the step that the others wait for a rank: from the first on it is a straggler, from the second a bad one.
STRAGGLER_SHARE: Final = 0.02
BAD_SHARE: Final = 0.10

_RULES = (
    Rule(
        "wait",
        "Time in a collective beyond that of the rank that spends least in it, the one that arrived "
        "last. Collectives are matched by process group, step, order and name; if the traces do not "
        "name the group, by step, order and name across all ranks. Sends and receives between two "
        "ranks are left out.",
    ),
    Rule(
        "straggler",
        "The rank that waits least, if the other members of its process group wait longer by "
        f"{format_share(STRAGGLER_SHARE)} of the step or more in the median; bad from "
        f"{format_share(BAD_SHARE)}. A rank that is late because it waited in another of its groups "
        "does not count.",
    ),
    Rule(
        "clock",
        "Median difference between the ends of the same collective on a rank and on the first one. "
        "Ends lie within one message time of each other, so anything more is a clock difference. "
        "Unknown if ends scatter (median absolute deviation) by more than "
        f"{format_ns(MAX_SCATTER_NS)}.",
    ),
)


def run(trace: Trace, window: Window) -> Report | Unavailable:
    """Compare the ranks that a trace belongs to, known if it was opened from a directory, all in the same steps."""
    together = trace.siblings
    if together is None or len(together) < 2:
        return _alone(trace)
    read, problems = _read(trace, window)
    if len(read) < 2:
        return Unavailable(
            NAME, f"the other ranks cannot be read: {problems[0]}" if problems else "no other rank"
        )
    if any(not len(rank.numbers) for rank in read):
        lacking = ", ".join(str(rank.rank) for rank in read if not len(rank.numbers))
        return Unavailable(
            NAME, f"rank {lacking} has no complete step in this window", "call profiler.step() on every rank"
        )
    waits = waiting(read)
    notes = list(problems)
    if len(together) > len(read) + len(problems):
        notes.append(f"{len(read)} of {len(together)} ranks were read, evenly spread.")
    if waits.unmatched:
        notes.append(
            f"{plural(waits.unmatched, 'collective')} could not be matched: ranks differ in those steps."
        )
    if waits.skew_spread is not None and waits.skew_spread.max() > MAX_SCATTER_NS:
        scatter = f"The ends of matched collectives scatter by {format_ns(float(waits.skew_spread.max()))}"
        if _grouped(waits):
            notes.append(f"{scatter}, more than a message takes: waits may be overstated.")
        else:
            notes.append(
                f"{scatter}: the traces do not name process groups, so ranks that never met may have "
                "been matched, which overstates waits."
            )
    frame = _frame(read, waits)
    held = _straggler(read, waits)
    return Report(
        NAME,
        TITLE,
        _verdict(read, waits, held),
        (
            Fact("ranks", "ranks", len(read), "count"),
            Fact("straggler", "straggler", read[held.rank].rank if held and held.counts else None, "count"),
            Fact("straggler_share", "the others wait for it", held.share if held else None, "share"),
            Fact(
                "straggler_group",
                "in its",
                held.group.group.label or None if held and held.counts else None,
                "text",
            ),
            Fact("wait_ns_per_step", "wait a step, median of ranks", _median(waits), "ns"),
            Fact(
                "step_spread_ns",
                "slowest minus fastest step",
                float(max(_step(rank) for rank in read) - min(_step(rank) for rank in read)),
                "ns",
                "Between the ranks' median steps.",
            ),
            Fact("clock_spread_ns", "clock difference", _apart(_clocks(waits)), "ns"),
            Fact("collectives", "collectives matched", waits.matched, "count"),
        ),
        (_table(frame, waits), _step_table(read, waits)),
        _RULES,
        tuple(notes),
        window,
    )


def _alone(trace: Trace) -> Unavailable:
    size = trace.info.world_size
    said = f" (rank {trace.info.rank} of {size})" if size and size > 1 and trace.info.rank is not None else ""
    return Unavailable(
        NAME,
        f"this is the trace of one rank{said}: nothing to compare with",
        "put the traces of all ranks into one directory and open that: tuiprof report DIRECTORY ranks",
    )


def _read(trace: Trace, window: Window) -> tuple[list[RankSteps], list[str]]:
    """Return the steps of a window of each rank, and why ranks cannot be read."""
    read, problems = ranks_of(trace)
    if window.start_ns is None and window.end_ns is None:
        return read, problems
    wanted = of_rank(trace, 0, window).numbers
    return [_only(rank, wanted) for rank in read], problems


def _only(rank: RankSteps, numbers: Ints) -> RankSteps:
    """Return a rank with only these steps."""
    keep = np.flatnonzero(np.isin(rank.numbers, numbers))
    inside = np.flatnonzero(np.isin(rank.step, keep))
    return replace(
        rank,
        numbers=rank.numbers[keep],
        period=rank.period[keep],
        collective=rank.collective[keep],
        step=np.searchsorted(keep, rank.step[inside]),
        row=rank.row[inside],
        name=tuple(rank.name[i] for i in inside.tolist()),
        group=rank.group[inside],
        starts=rank.starts[inside],
        ends=rank.ends[inside],
    )


def _step(rank: RankSteps) -> float:
    return float(np.median(rank.period))


@dataclass(frozen=True, slots=True)
class _Held:
    """A rank that delays others."""

    rank: int  # its index
    share: float  # how much longer than it the other members of the group wait, as a share of a step, median
    group: GroupWaiting  # the process group
    others_ns: float  # their waiting time per step

    @property
    def counts(self) -> bool:
        """Whether the share is large enough to call it a straggler."""
        return self.share >= STRAGGLER_SHARE


def _grouped(waits: Waiting) -> bool:
    """Return whether the traces have the process groups of collectives."""
    return any(one.group.name for one in waits.groups)


def _clocks(waits: Waiting) -> list[int | None]:
    """Return the clock offset of each rank, ns; None if the ends of its collectives vary too much."""
    if waits.skew is None or waits.skew_spread is None:
        return []
    return [
        round(skew) if spread <= MAX_SCATTER_NS and not math.isnan(skew) else None
        for skew, spread in zip(waits.skew.tolist(), waits.skew_spread.tolist(), strict=True)
    ]


def _apart(clocks: list[int | None]) -> int | None:
    known = [clock for clock in clocks if clock is not None]
    return max(known) - min(known) if len(known) > 1 else None


def _median(waits: Waiting) -> float | None:
    return float(np.median(waits.waits.mean(axis=1))) if waits.matched else None


def _straggler(read: list[RankSteps], waits: Waiting) -> _Held | None:
    """Return the rank that the others wait for most; None = no collective was matched."""
    found = waits.straggler()
    if found is None:
        return None
    group, row, late = found
    base = float(np.median([_step(rank) for rank in read]))
    others = float(np.median(np.delete(group.waits.mean(axis=1), row)))
    return _Held(int(group.members[row]), late / base if base else 0.0, group, others)


def _verdict(read: list[RankSteps], waits: Waiting, held: _Held | None) -> Verdict:
    median = float(np.median([_step(rank) for rank in read]))
    if held is None:
        low, high = min(read, key=_step), max(read, key=_step)
        said = f"no collectives were matched; steps take {format_ns(_step(low))} on rank {low.rank}"
        return Verdict(f"{said} and {format_ns(_step(high))} on rank {high.rank}", "info")
    over = plural(len(waits.steps), "step")
    if not held.counts:
        waited = format_ns(_median(waits))
        return Verdict(
            f"{len(read)} ranks keep pace over {over}: {waited} of waiting in a step of {format_ns(median)}",
            "good",
        )
    level: Level = "bad" if held.share >= BAD_SHARE else "warn"
    label = held.group.group.label
    who = "the others wait" if len(held.group.members) > 2 else "the other waits"
    return Verdict(
        f"rank {read[held.rank].rank} holds up {f'its {label}' if label else 'the step'}: {who} "
        f"{format_ns(held.others_ns)} a step in collectives "
        f"({format_share(held.share)} of {format_ns(median)} more than it does, over {over})",
        level,
    )


def _frame(read: list[RankSteps], waits: Waiting) -> pl.DataFrame:
    each = waits.waits.mean(axis=1) if waits.matched else [None] * len(read)
    nothing: list[int | None] = [None] * len(read)
    return pl.DataFrame(
        {
            "rank": [rank.rank for rank in read],
            "step_ns": [_step(rank) for rank in read],
            "wait_ns_per_step": [None if wait is None else float(wait) for wait in each],
            "wait_share": [
                None if wait is None or not _step(rank) else min(float(wait) / _step(rank), 1.0)
                for wait, rank in zip(each, read, strict=True)
            ],
            "collective_ns_per_step": [float(rank.collective.mean()) for rank in read],
            "steps": [len(rank.numbers) for rank in read],
            "clock_ns": _clocks(waits) or nothing,
            "clock_spread_ns": [round(spread) for spread in waits.skew_spread.tolist()]
            if waits.skew_spread is not None
            else nothing,
        },
        schema_overrides={
            **dict.fromkeys(("wait_ns_per_step", "wait_share"), pl.Float64),
            **dict.fromkeys(("clock_ns", "clock_spread_ns"), pl.Int64),
        },
    ).sort("wait_ns_per_step", "rank", nulls_last=True)


def _table(frame: pl.DataFrame, waits: Waiting) -> Table:
    clocked = waits.skew is not None
    columns = (
        Column("rank", "rank", "count"),
        Column("step_ns", "step", "ns", "Median step; the device's if the host runs ahead."),
        Column("wait_ns_per_step", "waits/step", "ns", "Mean wait for other ranks in collectives, per step."),
        Column("wait_share", "of step", "share"),
        Column("collective_ns_per_step", "in collectives", "ns", "Union of all collectives, mean per step."),
        Column("steps", "steps", "count"),
        Column("clock_ns", "clock", "ns", "Its clock minus the first rank's.", hidden=not clocked),
        Column("clock_spread_ns", "± ", "ns", "Median absolute deviation of that.", hidden=not clocked),
    )
    return Table(
        "ranks",
        "Ranks, shortest wait first",
        columns,
        frame,
        ""
        if clocked
        else "clocks cannot be compared: "
        + (
            "the traces do not say when they were recorded, or hosts ran the collectives"
            if waits.matched
            else "no collectives were matched"
        ),
    )


def _step_table(read: list[RankSteps], waits: Waiting) -> Table:
    """Show which rank was waited for in each step."""
    least = waits.waits.argmin(axis=0) if waits.matched else []
    rows = [
        (str(number), read[int(index)].rank, float(np.median(each)), int(each.max()))
        for number, index, each in zip(waits.steps.tolist(), least, waits.waits.T, strict=True)
    ]
    columns = (
        Column("step", "step", "text"),
        Column("last", "waits least", "count", "The rank that waited least in this step."),
        Column("wait_ns", "median wait", "ns"),
        Column("most_ns", "longest wait", "ns"),
    )
    title, empty = "Who the others waited for, step by step", "no step in which all ranks' collectives match"
    return Table("steps", title, columns, listed(columns, rows), empty=empty)


ANALYSIS = Analysis(NAME, TITLE, "Which rank holds up the others, and by how much?", run, order=95)
