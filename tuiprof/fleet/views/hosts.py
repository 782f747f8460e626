"""Hosts, sorted by how long ranks of other hosts waited for theirs."""

from __future__ import annotations

import numpy as np
import polars as pl

from tuiprof.analyses.shared.scope import plural
from tuiprof.fleet.fleet import HOST_SHARE, Fleet
from tuiprof.model import Column, Fact, Report, Rule, Table, Unavailable, Verdict
from tuiprof.model.units import format_ns, format_share

NAME, TITLE = "hosts", "Hosts"

_RULES = (
    Rule("host", "A host arrives at a collective when its last rank does."),
    Rule(
        "late host",
        f"{format_share(HOST_SHARE)} of its ranks are stragglers, so that the host is the likely cause.",
    ),
)


def report(fleet: Fleet) -> Report | Unavailable:
    """Rank the hosts."""
    if len(fleet.hosts) < 2 or not len(fleet.groups):
        said = "all ranks are on one host" if fleet.hosts else "the traces do not name their hosts"
        return Unavailable(NAME, said if len(fleet.groups) else "no collectives were matched")
    known = fleet.host_of >= 0
    host = fleet.host_of[known]
    cost = fleet.held_by_host
    speed = dict(
        fleet.speed.join(fleet.read.select("file", "host"), on="file")
        .group_by("host")
        .agg(pl.col("factor").median())
        .iter_rows()
    )
    rows = pl.DataFrame(
        {
            "host": fleet.hosts,
            "ranks": np.bincount(host, minlength=len(fleet.hosts)),
            "stragglers": np.bincount(host, weights=fleet.late[known], minlength=len(fleet.hosts)).astype(
                int
            ),
            "late_ns": cost.late,
            "held_ns": cost.waited,
            "wins_ns": [_wins(fleet, index) for index in range(len(fleet.hosts))],
            "kernels": [speed.get(host) for host in fleet.hosts],
            "clock_ns": [
                _median(fleet.clocks.offset[fleet.host_of == index]) for index in range(len(fleet.hosts))
            ],
        },
        schema_overrides=dict.fromkeys(("late_ns", "held_ns", "wins_ns", "kernels", "clock_ns"), pl.Float64),
    ).sort(["wins_ns", "held_ns", "host"], descending=[True, True, False], nulls_last=True)
    late = [fleet.hosts[index] for index in fleet.late_hosts]
    first = rows.row(0, named=True)
    wins = first["wins_ns"]
    if late:
        slower = [speed.get(host) for host in late]
        why = (
            f", and its kernels take {slower[0]:.2f}× as long"
            if len(late) == 1 and (slower[0] or 0) > 1.03
            else ""
        )
        verdict = Verdict(
            f"{', '.join(late[:4])}: most ranks come late{why}"
            + (f"; if it kept up, the job would save {format_ns(wins)} a step" if wins is not None else ""),
            "warn",
        )
    else:
        verdict = Verdict(f"no host delays the others ({plural(len(fleet.hosts), 'host')})", "good")
    return Report(
        NAME,
        TITLE,
        verdict,
        (
            Fact("hosts", "hosts", len(fleet.hosts), "count"),
            Fact("late_hosts", "late hosts", len(late), "count"),
            Fact("first_host", "waited for most", str(first["host"]), "text"),
        ),
        (
            Table(
                "hosts",
                "Hosts, largest saving first",
                (
                    Column("host", "host"),
                    Column("ranks", "ranks", "count"),
                    Column("stragglers", "stragglers", "count"),
                    Column(
                        "late_ns", "late", "ns", "Later than the median of the others, a step.", signed=True
                    ),
                    Column(
                        "held_ns", "others wait", "ns", "In collectives at which it arrived last, a step."
                    ),
                    Column(
                        "wins_ns",
                        "wins",
                        "ns",
                        "What the job saves a step if its ranks arrived like the median of the others.",
                    ),
                    Column(
                        "kernels",
                        "kernels",
                        "number",
                        "How many times as long its kernels take, median of its ranks.",
                    ),
                    Column("clock_ns", "clock", "ns", "Its clock minus the median rank's.", signed=True),
                ),
                rows,
            ),
        ),
        _RULES,
    )


def _wins(fleet: Fleet, host: int) -> float | None:
    own = fleet.host_of == host
    # With several process groups each saving needs a replay of the job: skipped for hosts without stragglers.
    return fleet.wins_ns(own) if len(fleet.groups) == 1 or fleet.late[own].any() else None


def _median(values: np.ndarray) -> float | None:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else None
