"""A measured ladder as a report: the variants with their verdicts, and what changed in each; and the list of ladders.

It joins what the trials measured (:mod:`tuiprof.ladder.statistics`) with what their traces show
(:mod:`tuiprof.ladder.why`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from tuiprof.formats import open_trace
from tuiprof.ladder.plan import pending, schedule
from tuiprof.ladder.state import Figures, KernelFigures, LadderMeta, LadderRun, Trial
from tuiprof.ladder.statistics import (
    MEDIAN_RULE,
    MIN_DIFFERENCE,
    RATIO_RULE,
    VERDICT_RULE,
    Interval,
    Judged,
    judge,
    median_known,
    paired,
    ratio_interval,
    word_for,
)
from tuiprof.ladder.why import WHY_RULE, Seen, Traces, Why, problems, same_work, seen, why
from tuiprof.model import Chart, Column, Fact, Report, Rule, Series, Table, Trace, Verdict
from tuiprof.model.characters import as_utf8
from tuiprof.model.report import Kind, Level, listed
from tuiprof.model.units import format_ns, format_ns_range, format_share, format_speed, format_speed_range
from tuiprof.whatif.chips import Chip, find_chip

NAME = "ladder"
PREDICTED_RULE: Final = (
    "Predicted saving per step from all findings that a variant fixes, compared with the one it builds on and without "
    "the profiler, with the range of the prediction; `won` is the saving of the timed steps for the same number of "
    "samples. There is no prediction without a priced finding, or if the batch sizes differ."
)
_OUT = ("wrong", "failed", "unavailable")
_STEP = Series("step_ns", "step_low_ns", "step_high_ns")
#: Additional columns of a variant in JSON and CSV.
_HIDDEN: tuple[tuple[str, Kind], ...] = (
    ("ratio", "number"),
    ("ratio_low", "number"),
    ("ratio_high", "number"),
    ("step_low_ns", "ns"),
    ("step_high_ns", "ns"),
    ("step_coverage", "share"),
    ("trials", "count"),
    ("numbers_equal", "text"),
    ("clock", "text"),
    ("device", "text"),
    ("note", "text"),
    ("why", "text"),
    ("remedy", "text"),
    ("trace", "text"),
)


def report(ladder: LadderRun, opener: Callable[[Path], Trace] = open_trace, *, brief: bool = False) -> Report:
    """Report a ladder, with the trials so far."""
    meta, judged = ladder.meta, judge(ladder.meta)
    traces = Traces(ladder, opener)
    seen_of = {one.name: seen(traces, one.name) for one in judged if one.word not in _OUT}
    reasons = why(traces, meta, seen_of)
    traced = {trial.variant: trial for trial in meta.trials if trial.kind in ("trace", "once")}
    tables = [
        _rungs(meta, judged, seen_of, brief=brief),
        kernels := _kernel_table(judged),
        _range_table(judged),
        _why_table(reasons, meta, judged),
        _out_table(judged),
    ]
    if not brief:
        tables.append(_trials(ladder))
    preset = _preset(meta)
    return Report(
        NAME,
        f"Ladder {meta.ladder} · {preset}",
        _verdict(meta, judged),
        _facts(meta, judged),
        tuple(table for table in tables if not table.rows.is_empty()),
        (
            Rule("step", MEDIAN_RULE),
            Rule("vs baseline", RATIO_RULE),
            Rule("verdict", VERDICT_RULE),
            Rule("what changed", WHY_RULE),
            *([] if all(one.proof is None for one in reasons) else [Rule("predicted", PREDICTED_RULE)]),
            *([] if kernels.rows.is_empty() else [Rule("kernels", KERNEL_RULE)]),
            Rule(
                "start",
                "From the start of the process to the end of its first step: imports, weights, compilation. The "
                "warm-up steps after it are also excluded from the step time.",
            ),
        ),
        (*_notes(meta, judged), *same_work(seen_of), *problems(seen_of, traced)),
    )


def activity(trial: Trial, rounds: int) -> str:
    """Return what a running trial is for, in words."""
    what = {
        "check": "checking",
        "trace": "capturing",
        "timing": f"round {trial.round}/{rounds}",
        "once": "running",
    }
    return f"{what[trial.kind]} {trial.variant}"


def time_left(seconds: float | None) -> str:
    """Return the remaining time in words; empty = unknown."""
    if seconds is None:
        return ""
    seconds = max(round(seconds), 1)
    return f"about {f'{seconds} s' if seconds < 60 else format_ns(seconds * 1e9)} left"


def _preset(meta: LadderMeta) -> str:
    said = {trial.figures.preset for trial in meta.trials if trial.figures and trial.figures.preset}
    return "/".join(sorted(said)) if said else meta.preset


def _verdict(meta: LadderMeta, judged: Sequence[Judged]) -> Verdict:
    counts: dict[str, list[Judged]] = {}
    for one in judged:
        counts.setdefault(one.word, []).append(one)
    faster = sorted(counts.get("faster", []), key=lambda one: one.ratio.value if one.ratio else 1.0)
    parts = []
    if faster and faster[0].ratio:
        baseline = meta.rung(faster[0].name).baseline
        more = f" ({len(faster)} variants are faster than their baseline)" if len(faster) > 1 else ""
        parts.append(f"{faster[0].name} is {format_speed(faster[0].ratio.value)} than {baseline}{more}")
    elif any(one.step_ns and one.word != "baseline" for one in judged) and "undecided" not in counts:
        parts.append("no variant is faster than its baseline")
    for word, phrase in (
        ("slower", "slower"),
        ("no difference", "without a difference"),
        ("undecided", "undecided"),
        ("wrong", "WRONG"),
        ("failed", "failed"),
        ("unavailable", "unavailable here"),
    ):
        found = counts.get(word, [])
        if found:
            names = ", ".join(one.name for one in found)
            few = len(found) <= 3
            parts.append(f"{phrase}: {names}" if few else f"{len(found)} {phrase}")
    left = len(pending(meta))
    if left:
        parts.insert(0, f"incomplete, {left} of {len(schedule(meta))} trials are still to run")
    level: Level = "info"
    if "wrong" in counts or "failed" in counts:
        level = "bad"
    elif left or "undecided" in counts or len(counts.get("unavailable", [])) == len(judged):
        level = "warn"
    elif faster:
        level = "good"
    return Verdict("; ".join(parts) or "only the baseline was measured", level)


def _facts(meta: LadderMeta, judged: Sequence[Judged]) -> tuple[Fact, ...]:
    base = next((one for one in judged if one.name == meta.baseline), None)
    numbers = {word: sum(one.word == word for one in judged) for word in ("faster", *_OUT)}
    return (
        Fact(
            "baseline_step_ns",
            f"{meta.baseline}, a step",
            base.step_ns.value if base and base.step_ns else None,
            "ns",
            "Step time of the ladder's baseline.",
        ),
        Fact("rounds", "rounds", meta.rounds, "count", "Timing trials per variant."),
        Fact("trials_done", "trials", len(schedule(meta)) - len(pending(meta)), "count"),
        Fact("trials_left", "still to run", len(pending(meta)), "count"),
        *(Fact(word, word, count, "count") for word, count in numbers.items()),
    )


def _rungs(meta: LadderMeta, judged: Sequence[Judged], seen_of: Mapping[str, Seen], *, brief: bool) -> Table:
    rows = [_row(meta, one, seen_of.get(one.name)) for one in judged]
    frame = pl.DataFrame(rows, infer_schema_length=None)
    mixed = len({rung.baseline for rung in meta.rungs}) > 1

    def column(key: str, label: str, kind: Kind = "text", help: str = "", hidden: bool = False) -> Column:  # noqa: A002
        # A column without any figure is hidden; the notes say why.
        empty = frame[key].is_null().all() or (kind == "text" and set(frame[key].to_list()) == {""})
        return Column(key, label, kind, help, hidden or bool(empty), whole=key != "published")

    columns = (
        column("variant", "variant"),
        column("verdict", "verdict", help=VERDICT_RULE),
        column("step_ns", "step", "ns", MEDIAN_RULE),
        column("change", "vs baseline", help=RATIO_RULE),
        column("change_interval", "95 % interval", help=RATIO_RULE),
        column("baseline", "baseline", hidden=not mixed),
        column("syncs_per_step", "syncs/step", "count"),
        column("launches_per_step", "launches/step", "count"),
        column("samples_per_s", "samples/s", "number"),
        column("samples_per_usd", "samples/$", "count"),
        column("peak_bytes", "peak memory", "bytes"),
        column("published", "published", help=f"Published figures ({meta.source}), not measured here."),
        column("step_interval", "step interval", help=MEDIAN_RULE, hidden=brief),
        column("start_ns", "start", "ns"),
        column("warmup_ns", "warm-up", "ns"),
        *(Column(key, key, kind, hidden=True) for key, kind in _HIDDEN),
    )
    note = f"Published figures are from {meta.source}; they were not measured here." if meta.source else ""
    chart = Chart("Step time and its interval", (_STEP,), at="variant", form="bars")
    return Table("rungs", meta.title, columns, frame, note, chart=chart)


def _row(meta: LadderMeta, one: Judged, trace: Seen | None) -> dict[str, Any]:
    rung = meta.rung(one.name)
    # A wrong variant has no figures, as its speed does not count.
    figures = [] if one.word in _OUT else list(one.trials.values())
    rate = median_known([item.samples_per_s for item in figures])
    step, ratio = one.step_ns, one.ratio
    return {
        "variant": one.name,
        "verdict": one.word,
        "step_ns": step.value if step else None,
        "change": format_speed(ratio.value) if ratio else "",
        "change_interval": between(ratio),
        "baseline": rung.baseline,
        "syncs_per_step": trace.syncs if trace else None,
        "launches_per_step": trace.launches if trace else None,
        "samples_per_s": rate,
        "samples_per_usd": rate * 3600 / meta.price if rate and meta.price else None,
        "peak_bytes": median_known([item.peak_bytes for item in figures]),
        "published": rung.published_beside(meta.sizes(figures)),
        "step_interval": _range(step),
        "start_ns": median_known([item.start_ns for item in figures]),
        "warmup_ns": median_known([item.warmup_ns for item in figures]),
        "ratio": ratio.value if ratio else None,
        "ratio_low": ratio.low if ratio else None,
        "ratio_high": ratio.high if ratio else None,
        "step_low_ns": step.low if step else None,
        "step_high_ns": step.high if step else None,
        "step_coverage": step.coverage if step else None,
        "trials": len(figures),
        "numbers_equal": "not compared" if one.equal is None else "yes" if one.equal else "no",
        "clock": "/".join(sorted({item.clock for item in figures})),
        "device": "/".join(sorted({item.device for item in figures})),
        "note": rung.note,
        "why": one.why,
        "remedy": one.remedy,
        "trace": as_utf8(str(trace.path)) if trace and trace.path else "",
    }


def between(ratio: Interval | None) -> str:
    """Return an interval of ratios of time to the baseline's in words."""
    return format_speed_range(ratio.low, ratio.high) if ratio is not None else ""


def _range(interval: Interval | None) -> str:
    if interval is None or interval.low == interval.high:
        return ""
    return format_ns_range(interval.low, interval.high)


def _why_table(reasons: Sequence[Why], meta: LadderMeta, judged: Sequence[Judged]) -> Table:
    steps = {one.name: one.step_ns.value for one in judged if one.step_ns is not None}
    batches = {one.name: figures.batch for one in judged for figures in one.trials.values()}
    by_name = {one.name: one for one in judged}
    verdicts = {(one.name, meta.rung(one.name).baseline): one for one in judged}
    rows = []
    for one in reasons:
        timed = one.variant in steps and one.against in steps
        # With another batch size, times are compared for the same number of samples.
        ours, theirs = batches.get(one.variant) or 1, batches.get(one.against) or 1
        same = ours == theirs
        before = steps[one.against] * ours / theirs if timed else None
        win = one.proof.predicted if one.proof is not None and same else None
        ratio, verdict = (
            steps[one.variant] / before if before else None,
            verdicts.get((one.variant, one.against)),
        )
        if verdict is not None and verdict.ratio is not None:  # as in the table of variants
            ratio = verdict.ratio.value if verdict.word != "no difference" else 1.0
        sure = verdict.word != "undecided" if verdict is not None else _is_sure(one, by_name)
        rows.append(
            (
                one.variant,
                one.against,
                _sentence(one, ratio, by_sample=not same, sure=sure),
                win.ns if win else None,
                format_ns_range(win.low_ns, win.high_ns) if win else "",
                before - steps[one.variant] if before else None,
                ", ".join(dict.fromkeys(item.rule for item in one.proof.findings))
                if one.proof and win
                else "",
                "; ".join(one.changes) or "no difference above the thresholds",
            )
        )
    none = all(predicted_ns is None for _, _, _, predicted_ns, *_ in rows)
    columns = (
        Column("variant", "variant"),
        Column("against", "against"),
        Column("sentence", "summary"),
        Column("predicted_ns", "predicted saving", "ns", PREDICTED_RULE, hidden=none),
        Column("predicted_range", "range", help=PREDICTED_RULE, hidden=none),
        Column("measured_ns", "won", "ns", PREDICTED_RULE),
        Column("findings", "fixed findings", help=PREDICTED_RULE, hidden=none),
        Column("changes", "what changed"),
    )
    title = "What changed in the captured steps"
    return Table("why", title, columns, listed(columns, rows), prose=True)


def _is_sure(one: Why, judged: Mapping[str, Judged]) -> bool:
    """Return whether the trials tell a variant from the one it builds on, if that is not its baseline."""
    if one.variant not in judged or one.against not in judged:
        return True
    pairs = paired(judged[one.variant].trials, judged[one.against].trials)
    return word_for(ratio_interval(pairs)) != "undecided"


def _sentence(one: Why, ratio: float | None, *, by_sample: bool, sure: bool) -> str:
    """Return what a variant gained or lost, and the first reason from its trace."""
    each = " a sample" if by_sample else ""
    if ratio is None:
        compared = f"{one.variant} was not timed against {one.against}"
    elif abs(ratio - 1) <= MIN_DIFFERENCE:
        compared = f"{one.variant} takes as long{each} as {one.against}"
    else:
        compared = (
            f"{one.variant} {'is' if sure else 'may be'} {format_speed(ratio)}{each} than {one.against}"
        )
    return f"{compared}: {one.changes[0]}." if one.changes else f"{compared}; the traces show no difference."


def _out_table(judged: Sequence[Judged]) -> Table:
    groups: dict[tuple[str, str, str], list[str]] = {}
    for one in judged:
        if one.word in _OUT:
            groups.setdefault((one.word, one.why, one.remedy), []).append(one.name)
    # Wrong ones first: they matter most.
    rows = sorted(
        ((", ".join(names), *group) for group, names in groups.items()),
        key=lambda row: -_OUT[::-1].index(row[1]),
    )
    columns = (
        Column("variant", "variant"),
        Column("verdict", "state"),
        Column("reason", "why"),
        Column("remedy", "what to do"),
    )
    return Table("out", "Not measured", columns, listed(columns, rows), prose=True)


def _trials(ladder: LadderRun) -> Table:
    rows = [
        (
            trial.kind,
            trial.round,
            trial.variant,
            trial.state,
            trial.figures.median_ns if trial.figures else None,
            trial.figures.steps if trial.figures else None,
            trial.wall_ns or None,
            trial.why,
            as_utf8(f"{ladder.id}/trials/{trial.session}") if trial.session else "",
        )
        for trial in ladder.meta.trials
    ]
    columns = (
        Column("kind", "kind"),
        Column("round", "round", "count"),
        Column("variant", "variant"),
        Column("state", "state"),
        Column("step_ns", "median step", "ns"),
        Column("steps", "steps", "count"),
        Column("wall_ns", "lasted", "ns"),
        Column("why", "why"),
        Column("session", "session"),
    )
    return Table("trials", "Trials, in the order they ran", columns, listed(columns, rows))


def _notes(meta: LadderMeta, judged: Sequence[Judged]) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for one in judged:
        if one.word not in _OUT and one.why:
            by_reason.setdefault(one.why, []).append(one.name)
    notes = [f"measured on {meta.host}: {meta.machine}"]
    notes += [f"{', '.join(names)}: {reason}" for reason, names in by_reason.items()]
    clocks = {item.clock for one in judged for item in one.trials.values()}
    if "probe" in clocks:
        notes.append(
            "Steps of scripts that do not time them are timed on the host, which can run ahead of the device."
        )
    return notes


def listing(ladders: Sequence[LadderRun | Exception], root: Path) -> Report:
    """List ladders, newest first, as a report; one that cannot be read as its error."""
    rows: list[tuple[str, str, int | None, int | None]] = []
    for ladder in ladders:
        if isinstance(ladder, Exception):
            rows.append((as_utf8(str(ladder)), "unreadable", None, None))
            continue
        left = len(pending(ladder.meta))
        total = len(schedule(ladder.meta))
        rows.append(
            (as_utf8(ladder.id), f"{left} trials left" if left else "complete", len(ladder.meta.rungs), total)
        )
    columns = (
        Column("id", "ladder"),
        Column("state", "state"),
        Column("variants", "variants", "count"),
        Column("trials", "trials", "count"),
    )
    word = "ladder" if len(rows) == 1 else "ladders"
    return Report(
        "ladders",
        "Ladders",
        Verdict(f"{len(rows)} {word} in {root}; see one again: tuiprof ladder --resume NAME"),
        tables=(Table("ladders", "Ladders", columns, listed(columns, rows)),),
    )


# -- kernels and the parts of a step ---------------------------------------------------------------------

KERNEL_RULE: Final = (
    "cold: a call with its inputs in memory, not in a cache; warm: a call right after another one; replayed: one of "
    "many calls that the host launched together (a CUDA graph, a compiled loop); host: host time to launch a call. "
    "Medians. GB/s and T op/s are the least bytes and operations that a call needs, divided by the cold time if it is "
    "known, else by the replayed or the warm time. Shares are of the chip's published peaks without sparsity; "
    "bandwidth has no share without a cold time, as the data may come from a cache."
)
#: Rates are computed from the first known one of these times.
_RATED: Final = ("cold", "replayed", "warm")


def _kernel_table(judged: Sequence[Judged]) -> Table:
    """Return the measurements of single kernels; without rows if there are none."""
    rows = []
    for one in judged:
        trials = (
            [figures for figures in one.trials.values() if figures.kernel] if one.word not in _OUT else []
        )
        if trials:
            rows.append(_kernel_row(one.name, trials))
    columns = (
        Column("variant", "variant", whole=True),
        Column("cold_ns", "cold", "ns", KERNEL_RULE),
        Column("warm_ns", "warm", "ns"),
        Column("replayed_ns", "replayed", "ns"),
        Column("host_ns", "host", "ns"),
        Column("bandwidth", "GB/s", help="10⁹ bytes a second.", figure=True),
        Column("bandwidth_share", "% of peak", "share", "Of the chip's memory bandwidth."),
        Column("arithmetic_rate", "T op/s", help="10¹² operations a second.", figure=True),
        Column("arithmetic_share", "% of peak", "share", "Of the chip's arithmetic in the kernel's type."),
        Column("least_ns", "least", "ns", "Lowest time that the chip's limits allow, with inputs in memory."),
        Column("device", "on"),
        *(Column(key, key, kind, hidden=True) for key, kind in _KERNEL_HIDDEN),
    )
    frame = pl.DataFrame(rows, infer_schema_length=None) if rows else listed(columns, ())
    shown = tuple(column for column in columns if column.hidden or not rows or not _empty(frame[column.key]))
    return Table("kernels", "Kernels and the chip's limits", shown, frame, _chips(frame))


def kernel_words(row: Mapping[str, Any]) -> str:
    """Return a row of the table of kernels in words."""
    times = [
        f"{name} {format_ns(row[f'{name}_ns'])}"
        for name in ("cold", "warm", "replayed", "host")
        if row[f"{name}_ns"]
    ]
    said = [", ".join(times)]
    for rate, unit, share in (
        ("bandwidth", "GB/s", "bandwidth_share"),
        ("arithmetic_rate", "T op/s", "arithmetic_share"),
    ):
        if row[rate]:
            of = f" ({format_share(row[share])} of {row['chip']})" if row[share] is not None else ""
            said.append(f"{row[rate]} {unit}{of}")
    if row["least_ns"]:
        said.append(f"the chip's limits allow {format_ns(row['least_ns'])}")
    return "; ".join(filter(None, said))


def range_words(row: Mapping[str, Any]) -> str:
    """Return a row of the table of parts in words."""
    times = [
        (key.removesuffix("_ns").replace("_", " "), ns) for key, ns in row.items() if key.endswith("_ns")
    ]
    return ", ".join(f"{name} {format_ns(ns)}" for name, ns in times if ns is not None)


def _range_table(judged: Sequence[Judged]) -> Table:
    """Return the times of named parts of the step; without rows if no script reported any."""
    timed = {
        one.name: trials
        for one in judged
        if one.word not in _OUT and (trials := [f for f in one.trials.values() if f.ranges_ns])
    }
    names = list(dict.fromkeys(name for trials in timed.values() for f in trials for name in f.ranges_ns))
    rows = [
        (variant, *(median_known(f.ranges_ns.get(name) for f in trials) for name in names))
        for variant, trials in timed.items()
    ]
    columns = (Column("variant", "variant", whole=True), *(Column(_key(name), name, "ns") for name in names))
    note = "Median time of each named range of a step, device time if the script measures it."
    return Table("ranges", "Parts of the step", columns, listed(columns, rows), note)


_KERNEL_HIDDEN: Final[tuple[tuple[str, Kind], ...]] = (
    ("bytes_per_s", "number"),
    ("operations_per_s", "number"),
    ("moved_bytes", "bytes"),
    ("operations", "count"),
    ("arithmetic", "text"),
    ("chip", "text"),
    ("not_measured", "text"),
)


def _kernel_row(variant: str, trials: Sequence[Figures]) -> dict[str, Any]:
    device = trials[-1].device
    kernels = [figures.kernel for figures in trials if figures.kernel is not None]
    last, chip = kernels[-1], find_chip(device)
    times = {
        name: median_known(kernel.times_ns.get(name) for kernel in kernels)
        for name in ("cold", "warm", "replayed", "host")
    }
    rated = next((times[name] for name in _RATED if times[name]), None)
    peak = chip.operations_per_s.get(last.arithmetic) if chip is not None else None
    per_s = (
        {"bytes": last.moved_bytes * 1e9 / rated, "operations": last.operations * 1e9 / rated}
        if rated
        else {}
    )
    bandwidth = per_s["bytes"] / chip.bytes_per_s if chip is not None and times["cold"] else None
    return {
        "variant": variant,
        **{f"{name}_ns": time for name, time in times.items()},
        "bandwidth": _figure(per_s["bytes"] / 1e9) if rated and last.moved_bytes else "",
        "bandwidth_share": bandwidth if last.moved_bytes else None,
        "arithmetic_rate": _figure(per_s["operations"] / 1e12) if rated and last.operations else "",
        "arithmetic_share": per_s["operations"] / peak if rated and peak and last.operations else None,
        "least_ns": _least(last, chip),
        "device": device,
        "bytes_per_s": per_s.get("bytes") or None,
        "operations_per_s": per_s.get("operations") or None,
        "moved_bytes": last.moved_bytes or None,
        "operations": last.operations or None,
        "arithmetic": last.arithmetic,
        "chip": chip.name if chip is not None else "",
        "not_measured": "; ".join(f"{name}: {reason}" for name, reason in last.not_measured.items()),
    }


def _least(kernel: KernelFigures, chip: Chip | None) -> float | None:
    """Return the minimum time on a chip, ns; None = unknown."""
    if chip is None:
        return None
    peak = chip.operations_per_s.get(kernel.arithmetic)
    compute_s = kernel.operations / peak if peak else 0.0
    return max(kernel.moved_bytes / chip.bytes_per_s, compute_s) * 1e9 or None


def _chips(frame: pl.DataFrame) -> str:
    """Return the limits of the chips in words."""
    limits: dict[str, str] = {}
    unknown: dict[str, None] = {}
    for device, arithmetic in frame.select("device", "arithmetic").unique(maintain_order=True).iter_rows():
        chip = find_chip(device)
        if chip is None:
            unknown[device] = None
            continue
        peak = chip.operations_per_s.get(arithmetic)
        limits.setdefault(chip.name, f"{chip.name}: {chip.bytes_per_s / 1e9:.0f} GB/s")
        limits[chip.name] += f", {peak / 1e12:.4g} T {arithmetic} op/s" if peak else ""
    if unknown:
        limits[""] = f"not in the table of chips, so no shares: {', '.join(unknown)}"
    return "; ".join(limits.values())


def _figure(value: float) -> str:
    """Return a number with three significant digits, never with an exponent."""
    if value >= 999.5 or not value:
        return f"{value:.0f}"
    return f"{value:.3g}" if value >= 1e-4 else f"{value:.{2 - math.floor(math.log10(value))}f}"


def _empty(column: pl.Series) -> bool:
    return column.is_null().all() or set(column.to_list()) <= {None, ""}


def _key(name: str) -> str:
    return f"{name.replace(' ', '_')}_ns"
