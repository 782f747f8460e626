"""Verbs that say what to change and what that saves: why, whatif, fix; and the page of a trace or session."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from tuiprof.cli import options
from tuiprof.cli.targets import (
    Selection,
    say,
    session_or_none,
    step_window,
    title_of,
    trace_at,
    trace_named,
    trace_of,
)
from tuiprof.errors import TraceError, UsageProblem

if TYPE_CHECKING:
    from tuiprof.advice.pricing import Priced
    from tuiprof.ladder.fixing import Tried
    from tuiprof.model import Report, Table, Trace, Unavailable
    from tuiprof.model.report import Answer
    from tuiprof.report import Style
    from tuiprof.session.live.fold import Fold
    from tuiprof.session.store.folders import Session

#: What `why` prints at most, so that it fits into a chat, a commit message or the context of an agent.
_MAX_BYTES = 2000
#: A step that savings are of and the mean step of a run differ notably from this share on.
_OTHER_BASE = 0.2
#: What the page of a session draws of its run.
_DRAWN = ("step_time", "phases", "ranks")
#: And these as text.
_WHOLE = ("hosts", "lines", "raised_at", "output")


@click.command(short_help="Say in a few lines what to change first.")
@click.argument("target", default="last", shell_complete=options.complete_targets)
@click.option("--json", "as_json", is_flag=True, help="JSON with stable keys, at most 2 kB.")
@click.option("--step", type=int, help="Analyse only this step.")
@options.trace_options
@options.convert_option
@click.pass_obj
def why(
    invocation: options.Invocation,
    target: str,
    as_json: bool,
    step: int | None,
    rank: int | None,
    run_: str | None,
    convert: bool | None,
) -> int:
    """Say in a few lines what to change first, for a trace FILE, a DIRECTORY of traces, a URL or a SESSION.

    The largest saving, its line, what to write instead, and how to prove it, in at most 2 kB. Without TARGET: the
    last session.
    """
    from tuiprof.report import stdout_style
    from tuiprof.report.answer import MAX_CHANGES, to_json, to_text

    found = answer_for(session_or_none(invocation, target), target, Selection(rank, run_, step, convert))
    if as_json:
        sys.stdout.write(to_json(found, _MAX_BYTES))
        return 0
    style, most = stdout_style(), min(MAX_CHANGES, len(found.changes))
    text = to_text(found, style, most)
    while len(text.encode()) > _MAX_BYTES:
        if found.lines:
            found = replace(found, lines=found.lines[:-1])
        elif most > 1:
            most -= 1
        elif found.run_notes:
            found = replace(found, run_notes=found.run_notes[:-1])
        else:
            break
        text = to_text(found, style, most)
    sys.stdout.write(text)
    return 0


def answer_for(session: Session | None, target: str, wanted: Selection) -> Answer:
    """Return the page of a session, or else of the trace that a target names."""
    from tuiprof.advice.answer import answer

    if session is not None:
        return session_answer(session, wanted)
    trace, title = _named_trace(target, wanted)
    return answer(trace, title, step_window(trace, wanted.step))


def _named_trace(target: str, wanted: Selection) -> tuple[Trace, str]:
    """Open a trace; return it, and what the page calls it."""
    trace = trace_at(target, wanted)
    return trace, title_of(trace, target)


def write_page_of_trace(target: str, style: Style, wanted: Selection) -> None:
    """Write the page of a trace as text to standard output, its first lines as soon as they are known."""
    from tuiprof.analyses.shared.replay import opening
    from tuiprof.report.answer import opening_text, to_text

    trace, title = _named_trace(target, wanted)
    window = step_window(trace, wanted.step)
    begun = opening_text(opening(trace, title), style)
    sys.stdout.write(begun)
    sys.stdout.flush()
    from tuiprof.advice.answer import answer

    sys.stdout.write(to_text(answer(trace, title, window), style).removeprefix(begun))


def session_answer(session: Session, wanted: Selection) -> Answer:
    """Return the page of a session: how it ran, and what its newest capture (or ``wanted.run``) says."""
    from tuiprof.model.report import Answer, Line
    from tuiprof.model.units import format_ns
    from tuiprof.session.live.replay import read_fold
    from tuiprof.session.live.summary import summarise

    fold = read_fold(session)
    summary = summarise(session, fold)
    line = Line(summary.analysis, summary.title, summary.verdict.level, summary.verdict.sentence)
    if not session.all_traces():
        steps = fold.lead.steps.whole_run().count if fold.lead is not None else 0
        why = next((capture.why for capture in fold.captures.values() if capture.why), "")
        nothing = "no trace was captured"
        if not steps:
            nothing += ", as no step was detected"
        else:
            nothing += f": {why}" if why else "; capture one: tuiprof record --capture 5 …"
        step_ns = _step_ns(summary)
        return Answer(
            session.title,
            "",
            steps,
            step_ns,
            notes=summary.notes,
            run=line,
            refused=nothing,
            run_notes=summary.notes,
        )
    found, cleared = _captured(session, fold, wanted)
    notes = tuple(note for note in summary.notes if note != cleared)
    told = tuple(note for note in notes if not found.refused or found.refused not in note)
    mean_ns = summary.fact("step_mean_ns")
    base_ns = found.step_ns if found.changes else None
    if base_ns and isinstance(mean_ns, float) and abs(mean_ns / base_ns - 1) > _OTHER_BASE:
        mean = (
            f"savings refer to a step of {format_ns(base_ns)}; the run's mean step takes {format_ns(mean_ns)}"
        )
        notes, told = (*notes, mean), (*told, mean)
    notes = (*notes, *found.notes)
    return replace(found, title=session.title, run=line, notes=notes, run_notes=told)


def refused(trace: Trace, why: str) -> tuple[str, str]:
    """Return why nothing is advised because of a capture, and the refusal that does not hold; either is empty.

    A capture of steps unlike the others is evidence if they differ in what a warm-up does, which the replay leaves out.
    """
    from tuiprof.analyses.shared.replay import stands_for_last_steps

    return ("", why) if stands_for_last_steps(trace) else (why, "")


def _captured(session: Session, fold: Fold, wanted: Selection) -> tuple[Answer, str]:
    """Return the page of a capture, and the note that does not hold; nothing is advised because of no evidence."""
    from tuiprof.advice.answer import answer
    from tuiprof.analyses.shared.replay import awaited_together, replayed_steps
    from tuiprof.session.live.step_source import by_path, missed_steps, rare_steps, refusal

    trace = trace_at(session.with_traces(wanted.rank).path / "traces", wanted)
    path = trace.info.path
    found = answer(trace, _title(trace), step_window(trace, wanted.step))
    place = os.path.relpath(path, session.path) if path is not None else ""
    steps = replayed_steps(trace)
    weighted = not isinstance(steps, str) and steps.long is not None
    said = "" if weighted else by_path(fold, rare_steps).get(place, "")
    # In long steps that the device explains, the host only waits for the others.
    missed = by_path(fold, missed_steps).get(place) if awaited_together(trace) is None else None
    if missed is not None:
        most_ns = max((change.saves_ns or 0.0 for change in found.changes), default=0.0)
        if not found.changes:
            found = replace(found, refused=str(missed))
        elif most_ns < missed.longer_ns / 2:  # no finding is about them
            said = str(missed)
    if said:
        rest = f" · {found.trust.removeprefix('trust: ')}" if found.limited or not found.complete else ""
        found = replace(found, trust=f"trust: {said}{rest}", complete=False)
    why, cleared = refused(trace, by_path(fold, refusal).get(place, ""))
    return (replace(found, changes=(), together_ns=None, refused=why) if why else found), cleared


def _title(trace: Trace) -> str:
    """Return what to call a capture of a session: ``capture of steps 30 to 32``, else its file."""
    numbers, info = trace.steps.numbers, trace.info
    if not len(numbers):
        return info.path.name if info.path is not None else ""
    rank = f", rank {info.rank}" if info.rank is not None and (info.world_size or 1) > 1 else ""
    first, last = int(numbers.min()), int(numbers.max())
    return f"capture of step{f's {first} to' if first < last else ''} {last}{rank}"


def _drawn(table: Table) -> Table:
    """Return a table as the page draws it: without phases that an ordinary step has not."""
    import polars as pl

    return replace(table, rows=table.rows.filter(pl.col("step_ns") > 0)) if table.key == "phases" else table


def _step_ns(summary: Report) -> float | None:
    value = next((fact.value for fact in summary.facts if fact.key == "step_median_ns"), None)
    return float(value) if isinstance(value, (int, float)) else None


def run_reports(session: Session, fold: Fold) -> tuple[Report, list[Report | Unavailable]]:
    """Report how a session ran and, each apart, what went wrong: how it failed, what held the memory, where it hung.

    A run that failed before its first step has nothing but its error: that is one report.
    """
    from tuiprof.blackbox.dumps import snapshot_report
    from tuiprof.blackbox.session import failure_report, kept, snapshots
    from tuiprof.model import Unavailable
    from tuiprof.session.live.summary import summarise

    summary = summarise(session, fold)
    reports: list[Report | Unavailable] = []
    status = session.status()
    ended = failure_report(session, fold, status)
    if ended is not None:
        notes = tuple(note for note in ended.notes if note not in summary.notes)
        if status.state == "failed" and (fold.lead is None or not len(fold.lead.steps)):
            tables = (*summary.tables, *ended.tables)
            facts, notes = (*summary.facts, *ended.facts), (*summary.notes, *notes)
            summary = replace(summary, verdict=ended.verdict, facts=facts, tables=tables, notes=notes)
        else:
            reports.append(replace(ended, notes=notes))
    for path in snapshots(fold)[-1:]:
        try:
            reports.append(snapshot_report(session.path / path, title="Where memory ran out"))
        except TraceError as error:
            reports.append(Unavailable("allocator", error.message, error.remedy))
    stall = fold.newest_stacks
    if stall is not None and stall.cause and (report := kept(session, fold)) is not None:
        reports.append(report)
    return summary, reports


def page(session: Session | None, target: str, fmt: str, style: Style, wanted: Selection) -> str:
    """Return a trace or session on one page as ``text``, ``md`` or ``json``; of a session also where its steps go."""
    from tuiprof.report import md, text
    from tuiprof.report.answer import to_json, to_markdown, to_text
    from tuiprof.session.live.replay import read_fold

    if fmt == "json":
        return to_json(answer_for(session, target, wanted))
    head = ""
    if session is not None:
        fold = read_fold(session)
        summary, wrong = run_reports(session, fold)
        if session.all_traces():
            found, cleared = _captured(session, fold, wanted)
            summary = replace(summary, notes=tuple(note for note in summary.notes if note != cleared))
        drawn = [_drawn(table) for key in _DRAWN for table in summary.tables if table.key == key]
        whole = tuple(table for table in summary.tables if table.key in _WHOLE)
        memory = tuple(fact for fact in summary.facts if fact.kind == "bytes")
        bare = replace(summary, facts=memory, tables=whole, rules=())
        if fmt == "text":
            parts = [text.report_lines(bare, style) + text.pictures(drawn, style)]
            head = text.document([*parts, *(text.report_lines(report, style) for report in wrong)], style)
        else:
            parts = [md.report_lines(bare, style) + md.pictures(drawn, style)]
            parts += [md.report_lines(report, style) for report in wrong]
            head = "\n".join(line for part in parts for line in part).rstrip("\n") + "\n"
        if not session.all_traces():
            return head
        head = f"{head}\n"
    else:
        found = answer_for(None, target, wanted)
    return head + (to_text(found, style) if fmt == "text" else to_markdown(found))


@click.command(
    short_help="Predict how long a step would take after a change.",
    epilog="Without options, every finding is answered. For example: tuiprof whatif last --without "
    "item-each-step --scale gemm=0.5",
)
@click.argument("target", shell_complete=options.complete_targets)
@click.option(
    "--without",
    multiple=True,
    metavar="RULE[@N]",
    help="With this finding fixed (@N: the N-th of the rule; repeatable).",
)
@click.option("--loader-workers", type=click.IntRange(min=0), metavar="N", help="With N DataLoader workers.")
@click.option(
    "--scale",
    multiple=True,
    metavar="KERNEL=F",
    help="With kernels whose name contains KERNEL taking F times as long.",
)
@click.option(
    "--host",
    type=options.Positive(),
    metavar="F",
    help="With host time outside waits taking F times as long.",
)
@options.format_option()
@options.trace_options
@options.convert_option
@click.pass_obj
def whatif(
    invocation: options.Invocation,
    target: str,
    without: tuple[str, ...],
    loader_workers: int | None,
    scale: tuple[str, ...],
    host: float | None,
    format_: str,
    rank: int | None,
    run_: str | None,
    convert: bool | None,
) -> int:
    """Predict how long a step of a trace FILE, a DIRECTORY of traces, a URL or a SESSION would take after a change."""
    from tuiprof.advice.question import answer, changes
    from tuiprof.analyses.shared.replay import trust
    from tuiprof.report import render, stdout_style

    trace = trace_named(invocation, target, Selection(rank, run_, convert=convert))
    asked = changes(trace, without=without, loader_workers=loader_workers, scale=scale, host=host)
    sys.stdout.write(render(answer(trace, asked), format_, trust=trust(trace).text, style=stdout_style()))
    return 0


@click.command(
    short_help="Try fixes that need no edit of the script.",
    epilog="No file is changed. For example: tuiprof fix last --try fp32-matmul --trials 5",
)
@click.argument("target", shell_complete=options.complete_targets)
@click.option(
    "--try", "tried", metavar="RULE", help="Run the session's command with and without this fix, alternating."
)
@click.option(
    "--trials",
    type=click.IntRange(min=2),
    default=3,
    show_default=True,
    help="Number of runs with the fix, and without.",
)
@click.pass_obj
def fix(invocation: options.Invocation, target: str, tried: str | None, trials: int) -> int:
    """List the advice on a SESSION that can be tried without editing the script, or try one item.

    \b
    By environment variables: blocking launches, JAX's precision, the allocator, threads on a CPU.
    By the probe, in the trials alone: TF32 (set_float32_matmul_precision), nan_strategy of
    torchmetrics, DataLoader(num_workers, pin_memory), fused optimizers.
    """
    from tuiprof.ladder.fixing import attempt
    from tuiprof.model.units import format_ns
    from tuiprof.report.sanitize import sanitize

    session = session_or_none(invocation, target)
    if session is None:
        raise UsageProblem(f"{target} is not a session", "a trace does not record the command to run")
    able = _to_try(trace_of(session, Selection()))
    if tried is None:
        _list_fixes(target, able)
        return 0
    if tried not in able:
        known = f"there are {', '.join(able)}" if able else "there are none"
        raise UsageProblem(f"no finding {tried!r} that can be tried without editing the script", known)
    item, environment = able[tried]
    result = attempt(
        session,
        environment,
        trials,
        on_trial=lambda trial: say(
            f"{trial.session.id}: {'with' if trial.changed else 'without'} the fix {format_ns(trial.step_ns)} a step"
        ),
        root=invocation.sessions,
    )
    with_it = [trial for trial in result.trials if trial.changed]
    if item.finding.switch and not all(trial.switched for trial in with_it):
        sys.stdout.write(
            f"{tried}: not applied: the script creates nothing that {item.finding.switch} applies to, or sets it "
            "itself\n"
        )
        return 1
    predicted = f"; predicted: {format_ns(item.win.ns)} less per step" if item.win is not None else ""
    sys.stdout.write(f"{tried}: {_measured(result, trials)}{predicted}\n")
    for switched in dict.fromkeys(name for trial in with_it for name in trial.switched):
        sys.stdout.write(f"  applied: {sanitize(switched)}\n")
    if item.finding.switch:
        sys.stdout.write(f"  in the script: {item.finding.instead}\n")
    for name, (before, after) in result.differing.items():
        sys.stdout.write(f"  {name} differs: {before:.6g} without the fix, {after:.6g} with it\n")
    if not result.differing:
        logged = bool(result.trials[0].numbers)
        sys.stdout.write(
            "  the logged metrics are the same with the fix\n"
            if logged
            else "  metrics not compared: the script logs none (tuiprof.step(loss=…))\n"
        )
    return 1 if result.differing else 0


def _to_try(trace: Trace) -> dict[str, tuple[Priced, dict[str, str]]]:
    """Return the first finding of each rule whose fix needs no edit, with the variables that turn it on."""
    from tuiprof.advice import priorities
    from tuiprof.ladder.fixing import VARIABLE

    able: dict[str, tuple[Priced, dict[str, str]]] = {}
    for item in priorities(trace).findings:
        switch = {VARIABLE: item.finding.switch} if item.finding.switch else {}
        if item.finding.environment or switch:
            able.setdefault(item.rule, (item, {**item.finding.environment, **switch}))
    return able


def _list_fixes(target: str, able: Mapping[str, tuple[Priced, Mapping[str, str]]]) -> None:
    """Print what can be tried, and how."""
    from tuiprof.model.characters import shell_word
    from tuiprof.model.units import format_ns

    word = shell_word(target)
    if not able:
        sys.stdout.write(
            f"no advice can be tried without editing the script: see tuiprof report {word} advice\n"
        )
    for rule, (item, environment) in able.items():
        variables = " ".join(f"{name}={value}" for name, value in environment.items())
        if item.finding.switch:
            variables += f" (only in the trials; in the script: {item.finding.instead})"
        saves = f": saves about {format_ns(item.win.ns)} a step" if item.win is not None else ""
        sys.stdout.write(f"{rule}{saves}\n  {variables}\n  tuiprof fix {word} --try {rule}\n")


def _measured(result: Tried, trials: int) -> str:
    """Return what trials say of the time of a step."""
    from tuiprof.model.units import format_share

    if result.ratio is None:
        return "undecided"
    return (
        f"{result.word}: a step takes {format_share(result.ratio.value)} of the time without it (95 % interval: "
        f"{format_share(result.ratio.low)} to {format_share(result.ratio.high)}, {trials} runs each)"
    )
