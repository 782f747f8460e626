"""Reports of a job from its summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
import polars as pl

from tuiprof.analyses import attempt
from tuiprof.fleet import stragglers
from tuiprof.fleet.fleet import HOST_SHARE, SLOWER, Fleet, differing
from tuiprof.fleet.meeting import TOLERANCE
from tuiprof.model import Chart, Column, Fact, Report, Rule, Series, Table, Unavailable, Verdict
from tuiprof.model.intervals import Floats
from tuiprof.model.units import format_bytes, format_ns, format_share, plural

# -- job -------------------------------------------------------------------------------------------------

_JOB_RULES = (
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


def job(fleet: Fleet) -> Report | Unavailable:
    """Return the savings of the advice findings for the job."""
    if sum(map(len, fleet.groups)) < 2:
        return Unavailable("job", "no collectives were matched, so it is unknown what the ranks wait for")
    job = fleet.job
    if not job.fits:
        return Unavailable(
            "job",
            f"the job rebuilt from its collectives takes {format_ns(job.takes_ns())} instead of the "
            f"captured {format_ns(job.captured_ns)}: collectives overlap"
            + ("" if fleet.grouped else ", or belong to process groups that the traces do not name"),
            "for advice on single ranks: tuiprof report FOLDER --rank N",
        )
    index = {file: row for row, file in enumerate(fleet.files.tolist())}
    priced = fleet.summary.findings.filter(pl.col("wins_ns").is_not_null())
    # In the order of a rank, a general change may follow a specific one that saves less.
    priced = priced.with_columns(pl.col("wins_ns").cum_min().over("file").alias("order_ns"))
    found = []
    for (rule, where), group in priced.group_by("rule", "where", maintain_order=True):
        less = _by_file(group, "wins_ns", index)
        on_rank = float(np.median(group["wins_ns"].to_numpy()))
        wins_ns = min(job.wins_ns(less), on_rank)
        in_turn = _by_file(group, "order_ns", index)
        order_ns = wins_ns
        if (in_turn < less).any():
            order_ns = min(job.wins_ns(in_turn), float(np.median(group["order_ns"].to_numpy())))
        found.append(
            {
                "what": group["what"][0],
                "where": where,
                "instead": group["instead"][0],
                "ranks": int((less > 0).sum()),
                "rank_ns": on_rank,
                "wins_ns": wins_ns,
                "order_ns": order_ns,
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
                **dict.fromkeys(("rank_ns", "wins_ns", "order_ns"), pl.Float64),
                "rule": pl.String,
            },
        )
        .with_columns((pl.col("wins_ns") / step if step else pl.lit(None, pl.Float64)).alias("share"))
        .sort(
            "order_ns",
            pl.col("order_ns") < pl.col("wins_ns"),
            "rank_ns",
            "rule",
            descending=[True, False, True, False],
        )
        .drop("order_ns")
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
    columns = (
        Column("wins_ns", "saves/step", "ns"),
        Column("share", "of step", "share"),
        Column("rank_ns", "on a rank", "ns", "What the same change saves on a rank by itself, median."),
        Column("ranks", "ranks", "count", "Ranks on which it is found."),
        Column("what", "what"),
        Column("where", "where", elide="start"),
        Column("instead", "fix"),
        Column("rule", "rule", hidden=True),
    )
    return Report(
        "job",
        "What a change saves the job",
        verdict,
        (
            Fact("job_ns", "a step of the job, rebuilt", job.takes_ns() / job.steps, "ns"),
            Fact("findings", "findings", len(rows), "count"),
        ),
        (
            Table(
                "findings",
                "What to change, by what it saves the job",
                columns,
                rows,
                empty="no rule applies",
                prose=True,
            ),
        ),
        _JOB_RULES,
        (
            "Savings are estimates for a step without the profiler; the collectives are those that were captured.",
        ),
    )


# -- hosts -----------------------------------------------------------------------------------------------

_HOSTS_RULES = (
    Rule("host", "A host arrives at a collective when its last rank does."),
    Rule(
        "late host",
        f"{format_share(HOST_SHARE)} of its ranks are stragglers, so that the host is the likely cause.",
    ),
)


def _by_file(findings: pl.DataFrame, column: str, index: Mapping[int, int]) -> Floats:
    """Return the largest value of each file, in the order of ``index``; 0 where it has none."""
    values = np.zeros(len(index))
    for file, ns in findings.select("file", column).iter_rows():
        if file in index:
            values[index[file]] = max(values[index[file]], ns)
    return values


def hosts(fleet: Fleet) -> Report | Unavailable:
    """Rank the hosts."""
    if len(fleet.hosts) < 2 or not len(fleet.groups):
        said = "all ranks are on one host" if fleet.hosts else "the traces do not name their hosts"
        return Unavailable("hosts", said if len(fleet.groups) else "no collectives were matched")
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
    columns = (
        Column("host", "host"),
        Column("ranks", "ranks", "count"),
        Column("stragglers", "stragglers", "count"),
        Column("late_ns", "late", "ns", "Later than the median of the others, a step.", signed=True),
        Column("held_ns", "others wait", "ns", "In collectives at which it arrived last, a step."),
        Column(
            "wins_ns",
            "wins",
            "ns",
            "What the job saves a step if its ranks arrived like the median of the others.",
        ),
        Column(
            "kernels", "kernels", "number", "How many times as long its kernels take, median of its ranks."
        ),
        Column("clock_ns", "clock", "ns", "Its clock minus the median rank's.", signed=True),
    )
    return Report(
        "hosts",
        "Hosts",
        verdict,
        (
            Fact("hosts", "hosts", len(fleet.hosts), "count"),
            Fact("late_hosts", "late hosts", len(late), "count"),
            Fact("first_host", "waited for most", str(first["host"]), "text"),
        ),
        (Table("hosts", "Hosts, largest saving first", columns, rows),),
        _HOSTS_RULES,
    )


def _wins(fleet: Fleet, host: int) -> float | None:
    own = fleet.host_of == host
    # With several process groups each saving needs a replay of the job: skipped for hosts without stragglers.
    return fleet.wins_ns(own) if len(fleet.groups) == 1 or fleet.late[own].any() else None


def _median(values: np.ndarray) -> float | None:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else None


# -- slow steps ------------------------------------------------------------------------------------------

#: A step is slow if it takes this many times as long as the median step.
SLOW: Final = 1.2
#: A rank is the cause if its delay is at least this share of the excess of the step.
_REASON: Final = 0.5

_SLOW_STEPS_RULES = (
    Rule("slow", f"A step that takes {SLOW:g} times the median step or more, by the median of the ranks."),
    Rule(
        "because of",
        "The rank that comes later than the median rank by "
        f"{format_share(_REASON)} or more of what the step takes beyond the median step; none = it is slow on all.",
    ),
)


def slow_steps(fleet: Fleet) -> Report | Unavailable:
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
            "slow_steps",
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
    columns = (
        Column("step", "step", "count"),
        Column("step_ns", "takes", "ns", "Median of the ranks."),
        Column("over_ns", "beyond the median", "ns"),
        Column("because", "because of rank", "count", "Empty: the step is slow on all ranks."),
        Column("late_ns", "latest rank by", "ns", "How much later than the median rank.", signed=True),
        Column("most_ns", "longest", "ns", "On any rank."),
    )
    return Report(
        "slow_steps",
        "Slow steps",
        _slow_steps_verdict(len(slow), len(steps), median, counts),
        (
            Fact("steps", "steps", len(steps), "count"),
            Fact("slow_steps", "slow steps", len(slow), "count"),
            Fact("slow_ns", "excess time of slow steps", float(rows["over_ns"].sum()), "ns"),
        ),
        (
            Table(
                "steps",
                "Slow steps, the slowest first",
                columns,
                rows,
                empty=f"no step takes {SLOW:g} times the median step",
            ),
        ),
        _SLOW_STEPS_RULES,
    )


def _slow_steps_verdict(slow: int, steps: int, median: float, counts: Counter[int]) -> Verdict:
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


# -- slow kernels ----------------------------------------------------------------------------------------

#: Share of slower kernel time from which the device is the cause rather than single kernels.
_DEVICE_SHARE: Final = 0.8

_SLOW_KERNELS_RULES = (
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


def slow_kernels(fleet: Fleet) -> Report | Unavailable:
    """Find the ranks whose kernels are slower."""
    speed = fleet.speed.join(fleet.read.select("file", "rank", "host", "device"), on="file")
    if speed.is_empty():
        return Unavailable(
            "slow_kernels", "no kernel runs on three ranks or more", "open traces of devices of one model"
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
    rank_columns = (
        Column("rank", "rank", "count"),
        Column("host", "host", hidden=not fleet.hosts),
        Column("factor", "factor", "number"),
        Column("slower", "slower", "share", "Share of the kernels' time in kernels that are slower."),
        Column("cause", "likely"),
        Column("device", "device"),
    )
    columns = (
        Column("name", "kernel"),
        Column("more_ns", "more", "ns", "Excess time in it on all slower ranks, in all steps."),
        Column("ranks", "ranks", "count", "On which it is slower."),
        Column("factor", "at most", "number"),
        Column("rank", "on rank", "count"),
        Column("typical_ns", "median rank", "ns"),
    )
    return Report(
        "slow_kernels",
        "Slow kernels",
        _slow_kernels_verdict(slower, speed),
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
                rank_columns,
                slower,
                empty="the kernels take the same time on all ranks",
            ),
            Table(
                "kernels",
                "Kernels, largest excess on the slower ranks first",
                columns,
                kernels,
                empty="no kernel is slower on some rank",
            ),
        ),
        _SLOW_KERNELS_RULES,
    )


def _slow_kernels_verdict(slower: pl.DataFrame, speed: pl.DataFrame) -> Verdict:
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


# -- differences -----------------------------------------------------------------------------------------

_DIFFERENCES_RULES = (
    Rule(
        "differs",
        "By half a sync a step, by a launch and 0.5 % of the launches a step, by 64 MiB and 5 % of the peak memory, "
        "from the median rank. Where more than half the ranks differ (stages of a pipeline), none is listed.",
    ),
)


def differences(fleet: Fleet) -> Report | Unavailable:
    """Compare the activity of ranks."""
    if len(fleet.read) < 3:
        return Unavailable(
            "differences",
            f"{plural(len(fleet.read), 'rank')}: no other ranks to compare with",
            "open three ranks or more",
        )
    found = list(differing(fleet.read))
    late = (
        dict(zip(fleet.number.tolist(), fleet.held.late.tolist(), strict=True)) if len(fleet.groups) else {}
    )
    schema = {"rank": pl.Int64, "what": pl.String, **dict.fromkeys(("own", "others", "late_ns"), pl.Float64)}
    each = [(one.rank, one.words, one.own, one.others, late.get(one.rank)) for one in found]
    rows = pl.DataFrame(each, schema=schema, orient="row")
    if found:
        first = found[0]
        rest = len({one.rank for one in found}) - 1
        more = f"; {plural(rest, 'other rank')} also differ" if rest else ""
        verdict = Verdict(f"rank {first.rank} has {first.words}{more}", "warn")
    else:
        verdict = Verdict("all ranks have the same syncs, launches and memory", "good")
    columns = (
        Column("rank", "rank", "count"),
        Column("what", "differs by"),
        Column("own", "this rank", "number"),
        Column("others", "median rank", "number"),
        Column("late_ns", "late", "ns", "Later than the median rank, a step.", signed=True),
    )
    return Report(
        "differences",
        "Differences",
        verdict,
        (Fact("differing_ranks", "ranks that differ", len({one.rank for one in found}), "count"),),
        (Table("ranks", "Ranks that differ", columns, rows, empty="all ranks do the same"),),
        _DIFFERENCES_RULES,
    )


# -- heat ------------------------------------------------------------------------------------------------

#: Maximum number of cells per line; a cell of several steps shows the largest delay.
_CELLS: Final = 40
_LEVELS: Final = "▁▂▃▄▅▆▇█"

_HEAT_RULES = (
    Rule(
        "late",
        "How much later than the median of the others a rank arrives at the collectives of a step, summed; below 0 it "
        "is earlier. The line of a rank is drawn from 0 to the latest of all ranks and steps.",
    ),
)


def heat(fleet: Fleet) -> Report | Unavailable:
    """Show the delay of each rank in each step."""
    late, steps = fleet.late_per_step, fleet.steps
    if not late.size:
        return Unavailable("heat", "no collectives were matched, so it is unknown which ranks are late")
    top = float(np.nanmax(late))
    row, column = np.unravel_index(int(np.nanargmax(late)), late.shape)
    keys = [f"step_{step}_ns" for step in steps.tolist()]
    rows = pl.DataFrame(
        {
            "rank": fleet.number,
            "host": fleet.ranks["host"],
            "late_ns": fleet.held.late,
            "heat": _lines(late, top),
            **{key: late[:, index] for index, key in enumerate(keys)},
        }
    ).with_columns(pl.col(keys).fill_nan(None))
    columns = (
        Column("rank", "rank", "count"),
        Column("host", "host", hidden=not fleet.hosts),
        Column("late_ns", "late", "ns", "Later than the median of the others, mean a step.", signed=True),
        Column(
            "heat", f"steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"step {steps[0]}", whole=True
        ),
        *(
            Column(key, f"step {step}", "ns", hidden=True)
            for key, step in zip(keys, steps.tolist(), strict=True)
        ),
    )
    return Report(
        "heat",
        "Step × rank",
        Verdict(
            f"{len(late)} ranks × {plural(len(steps), 'step')}: rank {fleet.number[row]} is the latest, by "
            f"{format_ns(top)} in step {steps[column]}",
            "info",
        ),
        (Fact("latest_ns", "latest", top, "ns"),),
        (
            Table(
                "heat",
                "Ranks, the latest first",
                columns,
                rows.sort(["late_ns", "rank"], descending=[True, False]),
                chart=Chart(
                    "How late each rank comes in each step",
                    tuple(Series(key) for key in keys),
                    at="rank",
                    in_text=False,
                    form="heat",
                ),
            ),
        ),
        _HEAT_RULES,
    )


def _lines(late: Floats, top: float) -> list[str]:
    """Return one line of characters per rank."""
    count = late.shape[1]
    cells = min(count, _CELLS)
    first = np.arange(cells) * count // cells
    binned = np.maximum.reduceat(np.nan_to_num(late, nan=-np.inf), first, axis=1)
    scale = top if top > 0 else 1.0
    level = np.clip((binned / scale * len(_LEVELS)), 0, len(_LEVELS) - 1)
    level = np.nan_to_num(level, neginf=0).astype(int)
    return ["".join(_LEVELS[one] for one in line) for line in level.tolist()]


# -- files -----------------------------------------------------------------------------------------------


def files(fleet: Fleet) -> Report | Unavailable:
    """List the files."""
    rows = fleet.summary.files.with_columns((pl.col("problem") != "").alias("unread"))
    size = int(rows["bytes"].fill_null(0).sum())
    unread = len(fleet.unread)
    said = f"{plural(len(rows), 'file')} ({format_bytes(size)})"
    verdict = (
        Verdict(f"{said}: {unread} cannot be read", "warn")
        if unread
        else Verdict(f"{said}: all were read", "good")
    )
    columns = (
        Column("rank", "rank", "count"),
        Column("problem", "problem"),
        Column("remedy", "what to do"),
        Column("steps", "steps", "count"),
        Column("bytes", "size", "bytes"),
        Column("path", "file", elide="start"),
        Column("host", "host", hidden=True),
        Column("device", "device", hidden=True),
    )
    return Report(
        "files",
        "Files",
        verdict,
        (
            Fact("files", "files", len(rows), "count"),
            Fact("unread", "cannot be read", unread, "count"),
            Fact("bytes", "on disk", size, "bytes"),
        ),
        (Table("files", "Files", columns, rows.sort(["unread", "file"], descending=[True, False])),),
    )


#: The reports, in the order of the page.
_REPORTS: Final[dict[str, Callable[[Fleet], Report | Unavailable]]] = {
    "stragglers": stragglers.report,
    "job": job,
    "hosts": hosts,
    "slow_steps": slow_steps,
    "slow_kernels": slow_kernels,
    "differences": differences,
    "heat": heat,
    "files": files,
}
NAMES: Final = tuple(_REPORTS)


def reports(fleet: Fleet, names: Sequence[str] = NAMES) -> list[Report | Unavailable]:
    """Return the reports of a job, some of :data:`NAMES`."""
    return [attempt(name, partial(_REPORTS[name], fleet)) for name in names]
