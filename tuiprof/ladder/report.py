"""A measured ladder as a report: the rungs with their verdicts, what changed in each, and what could not be measured.

It joins what the trials measured (:mod:`tuiprof.ladder.statistics`) with what their traces show
(:mod:`tuiprof.ladder.why`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from tuiprof.formats import open_trace
from tuiprof.ladder.kernels import KERNEL_RULE, kernel_table, range_table
from tuiprof.ladder.runner import pending, schedule
from tuiprof.ladder.state import LadderMeta, LadderRun
from tuiprof.ladder.statistics import (
    LEAST_DIFFERENCE,
    MEDIAN_RULE,
    RATIO_RULE,
    VERDICT_RULE,
    Interval,
    Judged,
    judge,
    median_known,
)
from tuiprof.ladder.why import WHY_RULE, Seen, Traces, Why, problems, same_work, seen, why
from tuiprof.model import Chart, Column, Fact, Report, Rule, Series, Table, Trace, Verdict
from tuiprof.model.characters import as_utf8
from tuiprof.model.report import Kind, Level
from tuiprof.model.units import format_ns_range, format_speed, format_speed_range

NAME = "ladder"
PREDICTED_RULE: Final = (
    "Predicted saving per step from all findings that a variant fixes, compared with the one it builds on and without "
    "the profiler, with the range of the prediction; `won` is the saving of the timed steps for the same number of "
    "samples. There is no prediction without a priced finding, or if the batch sizes differ."
)
_OUT = ("wrong", "failed", "unavailable")
_STEP = Series("step_ns", "step_low_ns", "step_high_ns")
#: What JSON and CSV carry of a rung beyond what is drawn.
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
    """Report a ladder, as far as it was run."""
    meta, judged = ladder.meta, judge(ladder.meta)
    traces = Traces(ladder, opener)
    seen_of = {one.name: seen(traces, one.name) for one in judged if one.word not in _OUT}
    reasons = why(traces, meta, seen_of)
    traced = {trial.variant: trial for trial in meta.trials if trial.kind in ("trace", "once")}
    tables = [
        _rungs(meta, judged, seen_of, brief=brief),
        kernels := kernel_table(judged, _OUT),
        range_table(judged, _OUT),
        _why_table(reasons, judged),
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
        # A figure that no variant has here is no column of dashes; why it is missing is said in the notes.
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
    # A wrong variant has no figures: nothing of it may look fast.
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
    """Return an interval of ratios in words.

    Args:
        ratio: Time over the baseline's; None = unknown.
    """
    return format_speed_range(ratio.low, ratio.high) if ratio is not None else ""


def _range(interval: Interval | None) -> str:
    if interval is None or interval.low == interval.high:
        return ""
    return format_ns_range(interval.low, interval.high)


def _why_table(reasons: Sequence[Why], judged: Sequence[Judged]) -> Table:
    steps = {one.name: one.step_ns.value for one in judged if one.step_ns is not None}
    batches = {one.name: figures.batch for one in judged for figures in one.trials.values()}
    rows = []
    for one in reasons:
        timed = one.variant in steps and one.against in steps
        # A step of another batch is compared by the sample: with what the other one takes for as many.
        ours, theirs = batches.get(one.variant) or 1, batches.get(one.against) or 1
        same = ours == theirs
        before = steps[one.against] * ours / theirs if timed else None
        win = one.proof.predicted if one.proof is not None and same else None
        rows.append(
            {
                "variant": one.variant,
                "against": one.against,
                "sentence": _sentence(
                    one, steps[one.variant] / before if before else None, by_sample=not same
                ),
                "predicted_ns": win.ns if win else None,
                "predicted_range": format_ns_range(win.low_ns, win.high_ns) if win else "",
                "measured_ns": before - steps[one.variant] if before else None,
                "findings": ", ".join(dict.fromkeys(item.rule for item in one.proof.findings))
                if one.proof and win
                else "",
                "changes": "; ".join(one.changes) or "no difference above the thresholds",
            }
        )
    none = all(row["predicted_ns"] is None for row in rows)
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
    types = {column.key: pl.Float64 if column.kind == "ns" else pl.String for column in columns}
    frame = pl.DataFrame(rows, schema=types, orient="row")
    return Table("why", "What changed in the captured steps", columns, frame, prose=True)


def _sentence(one: Why, ratio: float | None, *, by_sample: bool) -> str:
    """Return what a rung gained or lost and the first thing that its trace gives as the reason."""
    each = " a sample" if by_sample else ""
    if ratio is None:
        compared = f"{one.variant} was not timed against {one.against}"
    elif abs(ratio - 1) <= LEAST_DIFFERENCE:
        compared = f"{one.variant} takes as long{each} as {one.against}"
    else:
        compared = f"{one.variant} is {format_speed(ratio)}{each} than {one.against}"
    return f"{compared}: {one.changes[0]}." if one.changes else f"{compared}; the traces show no difference."


def _out_table(judged: Sequence[Judged]) -> Table:
    groups: dict[tuple[str, str, str], list[str]] = {}
    for one in judged:
        if one.word in _OUT:
            groups.setdefault((one.word, one.why, one.remedy), []).append(one.name)
    # What is wrong first: it is the news.
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
    frame = pl.DataFrame(rows, schema=[column.key for column in columns], orient="row")
    return Table("out", "Not measured", columns, frame, prose=True)


def _trials(ladder: LadderRun) -> Table:
    rows = [
        {
            "kind": trial.kind,
            "round": trial.round,
            "variant": trial.variant,
            "state": trial.state,
            "step_ns": trial.figures.median_ns if trial.figures else None,
            "steps": trial.figures.steps if trial.figures else None,
            "wall_ns": trial.wall_ns or None,
            "why": trial.why,
            "session": as_utf8(f"{ladder.id}/trials/{trial.session}") if trial.session else "",
        }
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
    frame = pl.DataFrame(rows, schema=[c.key for c in columns], orient="row", infer_schema_length=None)
    return Table("trials", "Trials, in the order they ran", columns, frame)


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
    """List ladders as a report.

    Args:
        ladders: They, the newest first; what cannot be read as what is wrong with it.
        root: Where they are.
    """
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
    frame = pl.DataFrame(rows, schema=[column.key for column in columns], orient="row")
    word = "ladder" if len(rows) == 1 else "ladders"
    return Report(
        "ladders",
        "Ladders",
        Verdict(f"{len(rows)} {word} in {root}; see one again: tuiprof ladder --resume NAME"),
        tables=(Table("ladders", "Ladders", columns, frame),),
    )
