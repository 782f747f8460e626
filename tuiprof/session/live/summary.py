"""Report of a recorded run: step times, phases, devices, captures and notes; and the list of all runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

import numpy as np
import polars as pl

from tuiprof.model import Chart, Column, Fact, Report, Rule, Series, Table, Verdict
from tuiprof.model.characters import as_utf8
from tuiprof.model.intervals import Ints
from tuiprof.model.report import Level, listed
from tuiprof.model.units import format_count, format_ns, format_share, format_speed, format_value, plural
from tuiprof.probe.slowdown import RULE as SLOWER_RULE
from tuiprof.probe.slowdown import Slowdown
from tuiprof.session.live.fold import Fold, WriterState
from tuiprof.session.live.hosts import HostState, host_problems, host_states
from tuiprof.session.live.listing import Summary
from tuiprof.session.live.replay import read_fold
from tuiprof.session.live.series import (
    AHEAD_RULE,
    JITTER_RULE,
    OUTLIER_RULE,
    RATE_RULE,
    StepStats,
    timed_steps,
)
from tuiprof.session.live.sharing import crowded, foreign_devices
from tuiprof.session.live.step_source import RULE as EVIDENCE_RULE
from tuiprof.session.live.step_source import again, by_path, described, likely, missing, refusal
from tuiprof.session.log import WorkersStarted
from tuiprof.session.store.folders import Session
from tuiprof.session.store.hosts import CLOCK_RULE
from tuiprof.session.store.meta import viewings
from tuiprof.session.store.output import last_lines, lost_output, recording_problem
from tuiprof.session.store.status import Status
from tuiprof.telemetry.figures import figure, show

#: Figures of a device in a summary, in this order.
_DEVICE_FIGURES = ("util", "mem_used_bytes", "power_w", "temp_c", "sm_clock_hz", "tree_cpu", "tree_rss_bytes")


#: Minimum share to mention time outside all phases, time added by rare long steps, and waiting for data.
_MUCH, _MUCH_DATA = 0.2, 0.15
#: Minimum share of restarted loader workers in the wait for data to name them as its cause.
_MOSTLY = 0.5
#: Minimum share to mention evaluations and checkpoints.
_MIN_BETWEEN = 0.02
#: Minimum share of samples in one line to conclude that it runs all steps.
_NEARLY_ALL = 0.9
#: A run that was stopped earlier than this, or still runs, may not have begun with its steps.
_SETUP_NS = 60_000_000_000
#: The median does not represent the steps if at least this share of them, and the mean, exceed this multiple of it;
#: minimum number of steps.
_MANY, _FAR, _MIN_STEPS_OF_TWO_KINDS = 0.1, 2.0, 20
#: Minimum number of samples to list lines, minimum share of each, and maximum number of lines.
_MIN_SAMPLES, _MIN_LINE_SHARE, _MAX_LINES = 20, 0.02, 8
_BETWEEN = ("evaluation", "checkpoint")
_DATA = ("data", "load", "dataloader")
_REST = "rest of the step"
_OTHER_NOTE = (
    f"{_REST}: time outside of all phases, such as Python code of the loop, logging, copies to the device and "
    "framework code around the model"
)


def summarise(session: Session, fold: Fold | None = None) -> Report:
    """Return the report of a run."""
    fold = fold or read_fold(session)
    status = session.status()
    lead = fold.lead
    stats = lead.steps.whole_run() if lead is not None and len(lead.steps) else None
    hosts = host_states(session, fold)
    lines = _lines(lead, session)
    found = (
        _hosts(hosts),
        _ranks(fold),
        _phases(lead, has_lines=lines is not None),
        lines,
        _devices(fold, foreign_devices(fold, session)),
        _captures(fold),
        _step_time(fold),
    )
    tables = [table for table in found if table]
    title = f"Session {session.id}" + (f" and {len(hosts) - 1} more" if hosts else "")
    return Report(
        analysis="session",
        title=title,
        verdict=Verdict(_sentence(session, status, fold, stats), _level(status, stats)),
        facts=(*_facts(fold, status, lead, stats), *_own_costs(session, fold)),
        tables=tuple(tables),
        rules=(
            Rule(
                "step time",
                "host time from the end of one step to the end of the next, without occasional evaluations and "
                "checkpoints; captured steps are excluded, and so are later steps if a capture slowed them down",
            ),
            *([Rule("on the device", AHEAD_RULE)] if stats is not None and stats.on_device else []),
            Rule("jitter", JITTER_RULE),
            Rule("outlier", OUTLIER_RULE),
            *([Rule("slower since a capture", SLOWER_RULE)] if _slowdown(lead) else []),
            *([Rule("not representative", EVIDENCE_RULE)] if by_path(fold, refusal) else []),
            *([Rule("clocks", CLOCK_RULE)] if hosts else []),
        ),
        notes=(*host_problems(hosts), *_notes(session, fold, status, stats)),
    )


def _notes(session: Session, fold: Fold, status: Status, stats: StepStats | None) -> list[str]:
    """Return the notes of a report: why the run failed, warnings, and limitations of the results."""
    notes = [f"{note.writer}: {note.text}" for note in fold.notes if note.level != "info"]
    notes += fold.problems
    if status.state == "failed" and stats is not None and stats.count and (line := last_words(session)):
        notes.insert(0, f"the last line of its stderr: {line}")
    notes += dict.fromkeys(by_path(fold, refusal).values())
    notes += fold.shortfalls(status.over)
    notes += filter(None, (lost_output(session), "" if status.over else recording_problem(session)))
    if stats is not None and stats.count:
        for rank in fold.ranks:
            if rank.end is not None and rank.end.ph:
                after = ", ".join(f"{name} {format_ns(ns)}" for name, ns in rank.end.ph.items())
                notes.append(
                    f"{f'{rank.name}: ' if len(fold.ranks) > 1 else ''}after the last step: {after}, not counted in "
                    "any step"
                )
        notes += [
            f"{f'{rank.name}: ' if len(fold.ranks) > 1 else ''}{slowdown}, as the profiler still has an effect; "
            "the figures are from the steps before the capture"
            for rank in fold.ranks
            if (slowdown := _slowdown(rank)) is not None
        ]
        notes += dict.fromkeys(f"steps: {few}" for rank in fold.ranks if (few := missing(rank)))
        if fold.lead is not None and (sentence := _two_kinds(fold.lead, stats)):
            notes.append(sentence)
        if sentence := crowded(fold):
            notes.append(sentence)
    return notes


def _two_kinds(lead: WriterState, stats: StepStats) -> str:
    """Return a warning if many steps take much longer than the median; empty = they do not."""
    if stats.on_device or stats.count < _MIN_STEPS_OF_TWO_KINDS or stats.mean_ns < _FAR * stats.median_ns:
        return ""
    dur_ns = lead.steps.rows["dur_ns"][lead.steps.comparable()]
    long = float((dur_ns > _FAR * stats.median_ns).mean())
    if long < _MANY:
        return ""
    ahead = ", for example because the host launches several steps and then waits for all of them"
    return (
        f"{format_share(long)} of the steps take more than twice the median{ahead if lead.can_run_ahead else ''}; "
        "compare the mean or steps/s"
    )


def _slowdown(rank: WriterState | None) -> Slowdown | None:
    """Return the capture since which the steps of a process take longer; None = there is none."""
    return rank.steps.slowdown if rank is not None else None


def _sentence(session: Session, status: Status, fold: Fold, stats: StepStats | None) -> str:
    if status.state == "failed" and (stats is None or not stats.count):
        line = last_words(session)
        return f"{session.title} {status}" + (f": {line}" if line else " and printed no error")
    if not fold.ranks and status.over:
        unseen = "no steps were recorded, as no process with the probe imported PyTorch, JAX or tuiprof"
        return f"{session.title} {status}: {unseen}. {_how_to_name(session, fold)}"
    if fold.lead is not None and len(fold.lead.steps) and (stats is None or not stats.count):
        return (
            f"{session.title} {status}: only {plural(len(fold.lead.steps), 'step')}, while capturing, so how long one "
            "takes without the profiler is not known; let the script run longer"
        )
    if fold.lead is None or stats is None or not stats.count:
        # Imports and the setup may take that long.
        if status.state != "finished" and fold.now_ns < _SETUP_NS and not likely(fold, session.meta.cwd):
            how = _how_to_name(session, fold)
            return (
                f"{session.title} {status}: no step in its first {format_ns(fold.now_ns)}; if there were some, "
                f"{how[0].lower()}{how[1:]}"
            )
        return f"{session.title} {status}: no training steps were detected. {_how_to_name(session, fold)}"
    slowdown = _slowdown(fold.lead)
    mean = f"mean {format_ns(stats.mean_ns)}, " if stats.uneven else ""
    return (
        f"{session.title} {status}: {plural(len(fold.lead.steps), 'step')}, "
        f"median {format_ns(stats.median_ns)}{' on the device' if stats.on_device else ''} "
        f"({mean}p95 {format_ns(stats.p95_ns)}, jitter {format_share(stats.jitter)}), "
        f"{format_value(stats.rate_hz, 'number')} steps/s"
        + (f"; {format_speed(1 + slowdown.share)} since the capture" if slowdown is not None else "")
        + (f"; steps are {what}" if (what := described(fold.lead)) else "")
    )


def _how_to_name(session: Session, fold: Fold) -> str:
    """Return how to record steps that were not detected."""
    if line := likely(fold, session.meta.cwd):
        return f"The script ran the loop at {line}; to count its iterations: {again(session, line)}"
    lines = fold.lead.lines if fold.lead is not None else None
    if lines is not None and lines.samples >= _MIN_SAMPLES and lines.top:
        file, number, count = lines.top[0]
        if count >= _NEARLY_ALL * lines.samples:
            where = f"{_short(file, session)}:{number}"
            return (
                f"{format_share(count / lines.samples)} of the time is spent at {where}; if this line runs all "
                "steps, like lax.scan, only a timed capture shows them: --capture 3s@20s"
            )
    return f"Name the line that ends a step (the script needs no change): {again(session, 'FILE:LINE')}"


def last_words(session: Session) -> str:
    """Return the last line of the script's standard error, sanitized; empty = none."""
    return "".join(last_lines(session.stderr)).strip()


def _level(status: Status, stats: StepStats | None) -> Level:
    if status.state in ("failed", "interrupted"):
        return "bad"
    return "good" if stats is not None and stats.count else "warn"


def _facts(fold: Fold, status: Status, lead: WriterState | None, stats: StepStats | None) -> tuple[Fact, ...]:
    facts = [
        Fact("state", "state", str(status), "text", "Whether the run is still going, or how it ended."),
        Fact(
            "exit_code", "exit status", status.code, "count", "As reported by a shell: 128 + n for signal n."
        ),
        Fact("duration_ns", "recorded", fold.now_ns, "ns", "From the start to the latest record."),
    ]
    if lead is None or stats is None:
        return tuple(facts)
    device_ns = lead.steps.rows["device_ns"][lead.steps.comparable()]
    timed, stands_for = timed_steps(device_ns)
    facts += [
        Fact("steps", "steps", len(lead.steps), "count", "Recorded steps, including captured ones."),
        *(
            [Fact("steps_are", "steps are", what, "text", "What ends a step.")]
            if (what := described(lead))
            else []
        ),
        Fact("step_median_ns", "median step", stats.median_ns, "ns"),
        Fact("step_p95_ns", "p95", stats.p95_ns, "ns"),
        Fact(
            "step_mean_ns", "mean", stats.mean_ns, "ns", "Without the first step, where steps/s leave it out."
        ),
        Fact("jitter", "jitter", stats.jitter, "share", JITTER_RULE),
        Fact("steps_per_s", "steps/s", stats.rate_hz, "number", RATE_RULE),
        *(
            [Fact("slower_share", "slower since the capture", slowdown.share, "share", SLOWER_RULE)]
            if (slowdown := lead.steps.slowdown) is not None
            else []
        ),
        Fact("outliers", "outliers", len(lead.steps.outliers()), "count", OUTLIER_RULE),
        Fact(
            "probe_ns_per_step",
            "probe cost per step",
            lead.cost_per_step_ns,
            "ns",
            "Time of the probe's hooks on the training thread: measured at the end of each step, and assumed to be "
            "the same for the step's other hooks. Excludes captured steps and opening the log.",
        ),
        Fact("probe_share", "probe share", lead.cost_share, "share"),
    ]
    if len(timed):
        about = "Mean time between the device events at the ends of two steps."
        if lead.steps.device_every > 1:
            about += (
                f" Measured on one step in {lead.steps.device_every}, as steps this short are slowed down by timing "
                "each of them."
            )
        mean_ns = float(np.average(device_ns[timed], weights=stands_for))
        facts.append(Fact("device_step_mean_ns", "device step", mean_ns, "ns", about))
    return tuple(facts)


def _own_costs(session: Session, fold: Fold) -> tuple[Fact, ...]:
    """Return the CPU utilisation of the recorder and of live screens."""
    duration_s = fold.now_ns / 1e9
    watched = [viewing for viewing in viewings(session.path) if viewing.host == session.meta.host]
    screens = sum(viewing.cpu_s for viewing in watched) / duration_s if watched and duration_s > 0 else None
    help_ = "CPU time divided by the duration of the run; 100 % = one core."
    return (
        Fact("recorder_share", "recorder", fold.recorder_share, "share", help_),
        Fact("screens_share", "live screens", screens, "share", help_),
    )


def _hosts(hosts: Sequence[HostState]) -> Table | None:
    """Return the table of hosts; None = the run has only one."""
    if not hosts:
        return None
    rows = [
        (
            host.name,
            str(host.status),
            ranges([rank.rank for rank in host.ranks if rank.rank is not None]),
            host.waits,
            max((len(rank.steps) for rank in host.ranks), default=0),
            host.lead.steps.whole_run().median_ns if host.lead is not None else None,
            str(host.clock) if host.clock is not None and not host.waits else "",
            host.clock.ahead_ns if host.clock is not None and host.clock.spread_ns is not None else None,
            host.session.path.name,
        )
        for host in hosts
    ]
    columns = (
        Column("host", "host"),
        Column("state", "state"),
        Column("ranks", "ranks"),
        Column("waits", "waits", hidden=not any(host.waits for host in hosts), whole=True),
        Column("steps", "steps", "count"),
        Column("median_ns", "median", "ns", "Of the lowest rank on the host."),
        Column("clock", "clock", help=CLOCK_RULE),
        Column("clock_ahead_ns", "clock ahead", "ns", "Relative to the first host.", hidden=True),
        Column("folder", "session", hidden=True),
    )
    return Table("hosts", "Hosts", columns, listed(columns, rows))


def spans(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last of each stretch of consecutive numbers."""
    groups = groupby(enumerate(sorted(set(numbers))), key=lambda item: item[1] - item[0])
    stretches = [[number for _, number in group] for _, group in groups]
    return [(stretch[0], stretch[-1]) for stretch in stretches]


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ranges: ``0-7, 12``."""
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in spans(numbers))


def _ranks(fold: Fold) -> Table | None:
    ranks = [rank for rank in fold.ranks if len(rank.steps)]
    if len(ranks) < 2:
        return None
    found = [(rank, rank.steps.whole_run()) for rank in ranks]
    rows = [
        (rank.label, len(rank.steps), stats.median_ns, stats.p95_ns, stats.jitter, described(rank))
        for rank, stats in found
    ]
    columns = (
        Column("rank", "rank"),
        Column("steps", "steps", "count"),
        Column("median_ns", "median", "ns"),
        Column("p95_ns", "p95", "ns"),
        Column("jitter", "jitter", "share", JITTER_RULE),
        Column("steps_are", "steps are", hidden=len({row[-1] for row in rows}) == 1),
    )
    return Table("ranks", "Ranks", columns, listed(columns, rows).sort("median_ns", descending=True))


def _phases(lead: WriterState | None, *, has_lines: bool) -> Table | None:
    if lead is None:
        return None
    ordinary, means = lead.steps.ordinary_phases(), lead.steps.phase_means()
    total = sum(ordinary.values())
    if not total:
        return None
    rows = [
        (_REST if name == "other" else name, ns := ordinary.get(name, 0.0), ns / total, means.get(name))
        for name in {**means, **ordinary}
    ]
    columns = (
        Column("phase", "phase"),
        Column(
            "step_ns",
            "per step",
            "ns",
            "Host time in an ordinary step, from the half of the steps nearest to the median; the rows add up to the "
            "median step. If the host runs ahead of the device, the rest of the device's step is a separate row.",
        ),
        Column("share", "share", "share"),
        Column("mean_ns", "mean", "ns", "Mean over all steps, including rare long ones such as evaluations."),
    )
    title = "Step time by phase"
    chart = Chart(title, (Series("step_ns"),), at="phase", form="bars")
    note = _diagnosis(ordinary, means, lead, has_lines=has_lines)
    return Table("phases", title, columns, listed(columns, rows), note, chart=chart)


def _lines(lead: WriterState | None, session: Session) -> Table | None:
    """Return the table of sampled lines of the script's main thread."""
    lines = lead.lines if lead is not None else None
    if lead is None or lines is None or lines.samples < _MIN_SAMPLES:
        return None
    doing = [*lines.doing, *[""] * len(lines.top)]
    rows = [
        (f"{_short(file, session)}:{line}", count / lines.samples, what)
        for (file, line, count), what in zip(lines.top[:_MAX_LINES], doing, strict=False)
        if count >= _MIN_LINE_SHARE * lines.samples
    ]
    if len(rows) > 1 and len({where for where, _, _ in rows}) == 1:
        # One line runs everything, such as trainer.train(): its phases are a table already.
        return None
    columns = (Column("where", "line"), Column("share", "share", "share"), Column("doing", "in"))
    note = (
        f"{format_count(lines.samples)} samples of the thread that runs the steps, ten per second, taken where it "
        "leaves Python or waits; each counts for the script's line in its stack"
    )
    took_ns = lines.at + lead.offset_ns  # since the start of the run: sampling begins before the first step
    if lines.ns and took_ns > 0:
        note += f". Sampling took {format_share(lines.ns / took_ns)} of a core"
    return (
        Table("lines", "Time by line of the script", columns, listed(columns, rows), note) if rows else None
    )


def _short(file: str, session: Session) -> str:
    """Return a file's path relative to the script's working directory, or its name if it is elsewhere."""
    path = Path(file)
    cwd = Path(session.meta.cwd)
    return str(path.relative_to(cwd)) if cwd in path.parents else path.name


def _diagnosis(
    ordinary: dict[str, float], means: dict[str, float], lead: WriterState, *, has_lines: bool
) -> str:
    """Return remarks on the phases of a run; may be empty."""
    total, mean = sum(ordinary.values()), sum(means.values())
    remarks = []
    waits = sum(means.get(name, 0.0) for name in _DATA)
    if waits >= _MUCH_DATA * mean:
        # The share in the table, unless it is rare long steps that wait.
        usual = sum(ordinary.get(name, 0.0) for name in _DATA) / total
        share = format_share(usual) if usual >= _MUCH_DATA else f"on average {format_share(waits / mean)}"
        remarks.append(
            f"the script waits for data {share} of the time: "
            + _data_fix(lead.workers, waits * len(lead.steps))
        )
    if ordinary.get("other", 0.0) >= _MUCH * total and len(ordinary) > 1:
        remarks.append(f"{_OTHER_NOTE}; see the table of lines" if has_lines else _OTHER_NOTE)
    between = {name: means.get(name, 0.0) for name in _BETWEEN if name not in ordinary}
    if sum(between.values()) >= _MIN_BETWEEN * mean:
        shares = " and ".join(f"{name} {format_share(ns / mean)}" for name, ns in between.items() if ns)
        remarks.append(f"between steps: {shares} of the time")
    if ordinary.get("evaluation", 0.0) >= _MIN_BETWEEN * total and "backward" in ordinary:
        remarks.append(
            "evaluation in ordinary steps: a model in evaluation mode runs without gradients, for example a teacher"
        )
    grown = {name: ns - ordinary.get(name, 0.0) for name, ns in means.items() if name not in between}
    largest = max(grown, key=lambda name: grown[name])
    if mean - sum(between.values()) - total >= _MUCH * total and grown[largest] > 0:
        name = _REST if largest == "other" else largest
        remarks.append(f"rare long steps raise the mean step to {format_ns(mean)}, mostly in {name}")
    return "; ".join(remarks)


def _data_fix(workers: WorkersStarted | None, waited_ns: float) -> str:
    """Return the recommended fix for waiting for data."""
    if workers is not None and workers.ns + workers.waited_ns >= _MOSTLY * waited_ns:
        return (
            f"the loader has started its {workers.workers} workers again {format_count(workers.starts)} times, which "
            "DataLoader(persistent_workers=True) avoids"
        )
    return "do less work per sample, or use more loader workers if cores are idle"


def _devices(fold: Fold, others: Set[str]) -> Table | None:
    rows, in_cores = [], False
    for key, history in fold.devices.items():
        if key in others:
            continue
        for name in _DEVICE_FIGURES:
            if name in history.overview:
                mean = history.overview[name].overall_mean
                if mean == mean:  # read at least once
                    rows.append((key, figure(name).label, show(name, mean), show(name, history.peak[name])))
                    in_cores |= name == "tree_cpu"
    if not rows:
        return None
    columns = (
        Column("device", "device"),
        Column("figure", "figure"),
        Column("mean", "mean", figure=True),
        Column("peak", "peak", figure=True),
    )
    note = "CPU (run): 100 % = one core" if in_cores else ""
    named = ", ".join(key for key in fold.devices if key in others)
    left_out = f"not used by this run, left out: {named}" if named else ""
    return Table(
        "devices", "Devices", columns, listed(columns, rows), "; ".join(filter(None, (note, left_out)))
    )


def _captures(fold: Fold) -> Table | None:
    rows = [
        (one.id, one.state, one.first, one.last, " ".join(one.paths), one.why)
        for one in fold.captures.values()
    ]
    if not rows:
        return None
    columns = (
        Column("id", "capture"),
        Column("state", "state"),
        Column("first", "first step", "count"),
        Column("last", "last step", "count"),
        Column("trace", "trace"),
        Column("why", "why"),
    )
    return Table("captures", "Captures", columns, listed(columns, rows), prose=True)


def _step_time(fold: Fold) -> Table | None:
    lead = fold.lead
    if lead is None or len(lead.steps.overview) < 2:
        return None
    overview = lead.steps.overview
    known = overview.count > 0
    captured = _captured(fold, lead)
    rows = {
        "start_ns": overview.t_start_ns,
        "steps": overview.count,
        "captured": captured,
        "mean_ns": overview.mean,
        "lowest_ns": overview.minimum,
        "highest_ns": overview.maximum,
    }
    columns = (
        Column("start_ns", "at", "ns", "Time of the first of these steps, since the start of the run."),
        Column("steps", "steps", "count"),
        Column(
            "captured", "captured", "count", "How many of these steps ran under the profiler.", hidden=True
        ),
        Column("mean_ns", "mean", "ns"),
        Column("lowest_ns", "fastest", "ns"),
        Column("highest_ns", "slowest", "ns"),
    )
    frame = pl.DataFrame({name: values[known] for name, values in rows.items()})
    title = "Step time over the run"
    chart = Chart(title, (Series("mean_ns", "lowest_ns", "highest_ns"),), at="start_ns", marked="captured")
    note = "captured steps included" if captured.any() else ""
    return Table("step_time", title, columns, frame, note=note, chart=chart)


def _captured(fold: Fold, lead: WriterState) -> Ints:
    """Return the number of captured steps in each row of the overview."""
    steps = lead.steps
    counts = np.zeros(len(steps.overview), np.int64)
    if steps.last_n is None:
        return counts
    # Count back from the last step, because the first steps of a long run are no longer kept.
    first_n = steps.last_n - len(steps) + 1
    for capture in fold.captures.values():
        if capture.first is not None and capture.last is not None:
            low, high = (min(max(n - first_n, 0), len(steps)) for n in (capture.first, capture.last + 1))
            np.add.at(counts, np.arange(low, high) // steps.overview.width, 1)
    return counts


def listing(root: Path, summaries: Sequence[Summary]) -> Report:
    """Return the list of sessions as a report."""
    rows = [
        (
            as_utf8(item.id),
            f"{item.state}{f' ({item.detail})' if item.detail else ''}",
            item.code,
            datetime.fromtimestamp(item.unix_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M"),
            item.duration_ns,
            item.steps,
            item.median_ns,
        )
        for item in summaries
    ]
    columns = (
        Column("id", "session"),
        Column("state", "state"),
        Column("code", "exit", "count"),
        Column("started", "started (UTC)", hidden=True),  # the id starts with it
        Column("duration_ns", "lasted", "ns"),
        Column("steps", "steps", "count"),
        Column("median_ns", "median step", "ns"),
    )
    running = sum(item.state == "running" for item in summaries)
    sentence = f"{plural(len(rows), 'session')} in {root}"
    sentence += f", {running} running" if running else ""
    note = "of long runs, the median of the last steps" if any(item.recent for item in summaries) else ""
    table = Table("sessions", "Newest first", columns, listed(columns, rows), note)
    return Report("list", "Sessions", Verdict(sentence), tables=(table,))
