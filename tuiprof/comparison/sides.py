"""Opens two things (trace files, sessions, rungs of a ladder) and compares them, for command line and screens.

::

    before = open_side("metrics:naive", root=sessions)
    after = open_side("20261121T093000Z-metrics-naive", root=sessions)
    report = compare_sides(before, after)       # the report that text, JSON, CSV, Markdown and screens show
    before.step_ns, after.step_ns               # step times for a chart, ns, empty if not recorded
    before.trace, after.trace                   # for timelines; None where there is none, `why_no_trace` says why
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from tuiprof.advice.proof import KEY as PROOF
from tuiprof.advice.proof import proof_table, prove
from tuiprof.analyses.compare import changed_in_words
from tuiprof.analyses.compare import compare as compare_traces
from tuiprof.analyses.shared.changes import Metric, StepChange, script_change, step_change, step_pair
from tuiprof.analyses.shared.scope import Scope, step_times
from tuiprof.errors import TuiprofError, UsageProblem
from tuiprof.formats import open_set, open_trace
from tuiprof.formats.remote import fetch, is_url
from tuiprof.ladder.state import Figures, LadderRun, Trial, find_run
from tuiprof.model import Fact, Report, Trace, Window
from tuiprof.model.intervals import Ints
from tuiprof.model.report import Kind, Table
from tuiprof.session.live.fold import WriterState
from tuiprof.session.live.replay import read_fold
from tuiprof.session.live.sharing import crowded
from tuiprof.session.run.launch import source_texts
from tuiprof.session.store.folders import Session, find_session, session_dirs, sessions_root
from tuiprof.system.files import typed_path

_NOTHING: Final[Ints] = np.empty(0, dtype=np.int64)

#: Key of the figure that says in words what differs between the traces.
CHANGED: Final = "changed_in_traces"
#: Reads a trace file.
Opener = Callable[[Path], Trace]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a run, as its recording has it."""

    key: str  # stable name with the unit
    label: str  # what a person reads
    kind: Kind  # how it is shown
    value: float


@dataclass(frozen=True, slots=True)
class Side:
    """One of two things to compare."""

    name: str  # what to call it in a heading
    trace: Trace | None = None  # its trace; None = there is none that can be read
    why_no_trace: str = ""  # why there is none; empty = there is one
    session: Session | None = None  # the session it is, or that holds its trace; None = a file
    #: Times of the recorded steps, those under the profiler left out, ns, shape ``(n,)``; empty = not recorded
    step_ns: Ints = field(default_factory=_NOTHING.copy)
    figures: tuple[Figure, ...] = ()  # figures of the recording
    setup: Mapping[str, str] = field(default_factory=dict)  # how it was run: what, and how
    ladder: Path | None = None  # folder of the ladder whose rung it is; None = no rung
    rounds: Mapping[int, Figures] = field(default_factory=dict)  # what its timing trials measured, by round
    crowded: str = ""  # says that other programs kept the machine busy during the run; empty = there was room
    slowed: str = ""  # says that a capture slowed later steps down, which are left out; empty = none did


def open_side(
    target: str | Path,
    *,
    root: Path | None = None,
    opener: Opener = open_trace,
    fetcher: Callable[[str], Path] = fetch,
    rank: int | None = None,
) -> Side:
    """Open a trace file or directory, a URL, a session or a rung of a measured ladder.

    Args:
        target: A trace file, a directory of them (its newest run) or a URL; a session as
            :func:`tuiprof.session.store.folders.find_session` takes it (path, name, beginning of a name, ``last``);
            ``LADDER:VARIANT``, which is that rung of the newest such ladder that was measured, else the newest
            session of that scenario and variant.
        root: Folder of sessions; None = the default one.
        opener: Reads a trace file; give one with progress, or one that can be cancelled.
        fetcher: Copies what is behind a URL; the same.
        rank: Which rank of a directory or session; None = the lowest.

    Raises:
        UsageProblem: There is no such file, session, rung or rank.
        TraceError: The file is not a trace.
        SessionError: The session or ladder cannot be read.
    """
    text = str(target)
    path = fetcher(text) if is_url(text) else typed_path(text)
    root = sessions_root(root)
    if os.path.exists(path) and not (path / "session.json").exists():
        file = open_set(path).file(rank)
        trace = opener(file.path)
        return Side(file.path.name, trace, setup=trace_setup(trace))
    name, colon, variant = text.rpartition(":")
    if colon and name and not os.path.exists(path):
        found = _rung(root, name, variant, opener) or _newest(root, name, variant, opener, rank)
        if found is not None:
            return found
    try:
        session = find_session(root, text)
    except UsageProblem:
        if "/" in text or path.suffix:
            raise UsageProblem(
                f"there is no file or session {text!r}", "`tuiprof list` shows recorded sessions"
            ) from None
        raise
    return _of_session(session, opener, rank)


def compare(before: str | os.PathLike[str] | Trace, after: str | os.PathLike[str] | Trace) -> Report:
    """Compare two runs: step time, kernels, launches, syncs.

    Returns:
        The report; differences are after minus before, so negative is faster.

    Raises:
        tuiprof.errors.TuiprofError: One of them cannot be found or read.

    Example:
        >>> from tuiprof.resources import shipped
        >>> traces = shipped("traces")
        >>> report = compare(
        ...     traces / "metrics-naive.pt.trace.json.gz", traces / "metrics-no-nan-check.pt.trace.json.gz"
        ... )
        >>> report.fact("uncaptured_change")
        '1.064× faster, 27.1 ms → 25.5 ms'
    """

    def side(one: str | os.PathLike[str] | Trace, name: str) -> Side:
        if not isinstance(one, Trace):
            return open_side(os.fspath(one))
        path = one.info.path
        return Side(path.name if path is not None else name, one)

    return compare_sides(side(before, "before"), side(after, "after"))


def with_distinct_names(before: Side, after: Side) -> tuple[Side, Side]:
    """Return both sides with names that differ, where two runs of a script or files of one name are compared."""
    if before.name != after.name:
        return before, after
    old, new = _unique_name(before), _unique_name(after)
    return replace(before, name=old), replace(after, name=new)


def _unique_name(side: Side) -> str:
    if side.session is not None:
        return side.session.id
    path = side.trace.info.path if side.trace is not None else None
    return side.name if path is None else os.path.join(*path.absolute().parts[-2:])


def compare_sides(before: Side, after: Side) -> Report:
    """Compare two sides; differences are after minus before, so negative is faster.

    The step time is compared by paired trials where both are rungs of one ladder, else by the steps that both recorded
    without a profiler, else by those of the traces.
    """
    before, after = with_distinct_names(before, after)
    recorded = {figure.key: figure for figure in before.figures}
    metrics = [
        Metric(figure.key, figure.label, figure.kind, recorded[figure.key].value, figure.value)
        for figure in after.figures
        if figure.key in recorded
    ]
    differences = [
        (what, before.setup.get(what, "–"), after.setup.get(what, "–"))
        for what in dict.fromkeys((*before.setup, *after.setup))
        if before.setup.get(what) != after.setup.get(what)
        # A session records more of its setup than a file: what only one side has is not a difference.
        and (what in before.setup) == (what in after.setup)
    ]
    change = _trials(before, after) or _runs(before, after)
    report = compare_traces(
        before.trace,
        after.trace,
        names=(before.name, after.name),
        change=change,
        metrics=metrics,
        differences=differences,
        notes=[
            f"{side.name}: {said}"
            for side in (before, after)
            for said in (side.why_no_trace, side.crowded, side.slowed)
            if said
        ],
    )
    changed = changed_in_words(report, before.trace, after.trace)
    facts = [*report.facts, Fact(CHANGED, "in the traces", changed, "text")]
    tables = list(report.tables)
    if before.session is not None and after.session is not None:
        table, words = compare_scripts(before.session, after.session)
        facts.append(Fact(table.key, "in the script", words or None, "text"))
        tables.insert(-1, table)  # beside what else differs in the runs themselves
    times = both_step_times(before, after)
    if before.trace is not None and after.trace is not None:
        old, now, _ = times
        slower = bool(len(old) and len(now) and np.median(now) > np.median(old))
        fixed = prove(before.trace, after.trace, waits_alone=slower)
        new = prove(after.trace, before.trace, waits_alone=not slower)
        won_ns = None if change is None else change.before_ns - change.after_ns
        if fixed is not None:
            facts.append(Fact(PROOF, "fixed", fixed.words(won_ns if new is None else None), "text"))
        if new is not None:
            facts.append(Fact("new_findings", "new", new.words_if_new(), "text"))
        if fixed is not None or new is not None:
            tables.insert(0 if won_ns is not None else 1, proof_table(fixed, new, won_ns))
    tables.append(step_pair(*times))
    return replace(report, facts=tuple(facts), tables=tuple(tables))


def both_step_times(before: Side, after: Side) -> tuple[Ints, Ints, str]:
    """Return the step times of both, ns, and where they were measured: by the runs, else in the traces."""
    if (len(before.step_ns) and len(after.step_ns)) or before.trace is None or after.trace is None:
        return before.step_ns, after.step_ns, "recorded without a profiler"
    in_traces = [step_times(Scope.of(trace, Window())).period for trace in (before.trace, after.trace)]
    return in_traces[0], in_traces[1], "from the traces"


def compare_targets(
    before: str | Path,
    after: str | Path,
    *,
    root: Path | None = None,
    opener: Opener = open_trace,
    rank: int | None = None,
) -> Report:
    """Open two things and compare them; the arguments are those of :func:`open_side`."""
    return compare_sides(
        open_side(before, root=root, opener=opener, rank=rank),
        open_side(after, root=root, opener=opener, rank=rank),
    )


def _runs(before: Side, after: Side) -> StepChange | None:
    """Compare two runs by their steps; of a crowded machine nothing is sure, however steady the steps were."""
    change = step_change(before.step_ns, after.step_ns)
    sessions = [side.session.path for side in (before, after) if side.session is not None]
    if change is not None and len(sessions) == 2 and sessions[0] == sessions[1]:
        return replace(change, sure="no: both are the same session")
    if change is not None and change.sure == "yes" and (before.crowded or after.crowded):
        return replace(change, sure="no: other programs kept the machine busy")
    return change


def _trials(before: Side, after: Side) -> StepChange | None:
    """Compare two rungs of one ladder by their trials, in pairs of one round."""
    from tuiprof.ladder.statistics import median_interval, ratio_interval, word_for

    if before.ladder is None or before.ladder != after.ladder:
        return None
    both = sorted(before.rounds.keys() & after.rounds.keys())
    pairs = [(after.rounds[number].median_ns, before.rounds[number].median_ns) for number in both]
    ratio = ratio_interval(pairs)
    if ratio is None:
        return None
    base = median_interval([old for _, old in pairs]).value
    word = word_for(ratio)
    sure = {
        "undecided": "no: the trials vary too much",
        "no difference": "no: within the variation of the trials",
    }
    return StepChange(
        base, base * ratio.value, ratio.low, ratio.high, sure.get(word, "yes"), f"{len(pairs)} paired trials"
    )


def _rung(root: Path, name: str, variant: str, opener: Opener) -> Side | None:
    """Return a rung of a measured ladder; None where no such ladder was measured."""
    try:
        ladder = find_run(root, name)
    except UsageProblem:
        return None
    if not any(rung.name == variant for rung in ladder.meta.rungs):
        known = ", ".join(rung.name for rung in ladder.meta.rungs)
        raise UsageProblem(f"the ladder {ladder.id} has no variant {variant!r}", f"there are {known}")
    timed = [t for t in _done(ladder, variant, "timing") if t.figures is not None]
    traced = _done(ladder, variant, "trace")
    sessions = [session for trial in timed if (session := _session(ladder, trial)) is not None]
    runs = [_step_ns(read_fold(session).lead) for session in sessions]
    base = _session(ladder, traced[-1]) if traced else None
    trace, why = _trace_of(base, opener) if base is not None else (None, "no trace was captured")
    shown = base or (sessions[0] if sessions else None)
    return Side(
        f"{ladder.meta.ladder}:{variant}",
        trace,
        why,
        shown,
        step_ns=np.concatenate([_NOTHING, *runs]),
        figures=_rung_figures([trial.figures for trial in timed if trial.figures is not None]),
        setup=session_setup(shown) if shown is not None else {},
        ladder=ladder.path,
        rounds={trial.round: trial.figures for trial in timed if trial.figures is not None},
    )


def _done(ladder: LadderRun, variant: str, kind: str) -> list[Trial]:
    trials = ladder.meta.trials
    return [t for t in trials if t.variant == variant and t.kind == kind and t.state == "done"]


def _session(ladder: LadderRun, trial: Trial) -> Session | None:
    try:
        return ladder.session(trial)
    except TuiprofError:  # deleted to save space: the trial's figures are in the ladder itself
        return None


def _rung_figures(trials: list[Figures]) -> tuple[Figure, ...]:
    if not trials:
        return ()
    figures = [
        Figure(
            "step_trials_ns",
            "step time, median of trials",
            "ns",
            float(np.median([t.median_ns for t in trials])),
        )
    ]
    peaks = [t.peak_bytes for t in trials if t.peak_bytes is not None]
    if peaks:
        figures.append(Figure("peak_bytes", "peak memory", "bytes", float(max(peaks))))
    rates = [t.samples_per_s for t in trials if t.samples_per_s is not None]
    if rates:
        figures.append(Figure("samples_per_s", "samples", "rate", float(np.median(rates))))
    return tuple(figures)


def _newest(root: Path, name: str, variant: str, opener: Opener, rank: int | None) -> Side | None:
    """Return the newest session of a scenario's variant; None where there is none."""
    for path in session_dirs(root):
        try:
            session = Session(path)
        except TuiprofError:
            continue
        scenario = session.meta.scenario
        if scenario is not None and (scenario.name, scenario.variant) == (name, variant):
            return _of_session(session, opener, rank)
    return None


def _of_session(session: Session, opener: Opener, rank: int | None) -> Side:
    trace, why = _trace_of(session, opener, rank)
    fold = read_fold(session)
    lead = fold.lead if rank is None else next((one for one in fold.ranks if one.rank == rank), None)
    figures: list[Figure] = []
    if lead is not None and len(lead.steps):
        stats = lead.steps.whole_run()
        if stats.count:
            figures += [
                Figure("step_recorded_median_ns", "step, median", "ns", stats.median_ns),
                Figure("step_recorded_p95_ns", "step, 95th percentile", "ns", stats.p95_ns),
                Figure("jitter_share", "jitter", "share", stats.jitter),
                Figure("steps_per_s", "step rate", "rate", stats.rate_hz),
            ]
        for phase, ns in lead.steps.phase_means().items():
            figures.append(Figure(f"phase_{phase}_ns", f"{phase}, mean a step", "ns", ns))
    return Side(
        session.title,
        trace,
        why,
        session,
        step_ns=_step_ns(lead),
        figures=tuple(figures),
        setup={**(trace_setup(trace) if trace is not None else {}), **session_setup(session)},
        crowded=crowded(fold),
        slowed=""
        if lead is None or lead.steps.slowdown is None
        else f"{lead.steps.slowdown}; they are left out",
    )


def _step_ns(rank: WriterState | None) -> Ints:
    """Return the times of the steps that no profiler slowed down, ns."""
    return _NOTHING if rank is None else rank.steps.times_ns()


def _trace_of(session: Session, opener: Opener, rank: int | None = None) -> tuple[Trace | None, str]:
    """Return the newest trace of a session, or why there is none."""
    if not session.traces():
        return None, "no trace was captured"
    path = open_set(session.path / "traces").file(rank).path
    try:
        return opener(path), ""
    except TuiprofError as problem:  # a run that was killed while the profiler wrote still has its step times
        return None, f"its trace cannot be read: {problem.message}"


def trace_setup(trace: Trace) -> dict[str, str]:
    """Return what a trace says of the run that it is of, by what it is about; what it does not say is left out."""
    info = trace.info
    said = {
        "device": ", ".join(dict.fromkeys(device.name for device in info.devices if device.name)),
        "framework": info.framework,
        "world size": str(info.world_size or ""),
    }
    return {what: how for what, how in said.items() if how}


def session_setup(session: Session) -> dict[str, str]:
    """Return how a session's run was set up, by what it is about; what is not known is left out."""
    meta = session.meta
    scenario, git = meta.scenario, meta.git
    said = {
        "command": shlex.join(meta.argv),
        "variant": scenario.variant if scenario else "",
        "preset": scenario.preset if scenario else "",
        "host": meta.host,
        "devices": ", ".join(dict.fromkeys(d.name for d in meta.devices if d.kind not in ("host", "cpu"))),
        "python": meta.python,
        "commit": f"{git.commit[:10]}{' (changed)' if git.dirty else ''}" if git else "",
        "tuiprof": meta.versions.get("tuiprof", ""),
    }
    return {what: how for what, how in said.items() if how}


def compare_scripts(before: Session, after: Session) -> tuple[Table, str]:
    """Return the lines of the script that differ between two sessions, or why they are unknown; their number."""
    old, new = before.meta.source, after.meta.source
    if old is None or new is None:
        which = "neither session has" if old is new else f"{(before if old is None else after).id} has not"
        why = f"{which} kept its script: it runs no Python file, or an earlier tuiprof recorded it"
        return script_change({}, {}, empty=why)
    kept = source_texts(before), source_texts(after)
    if old.script in kept[0] and new.script in kept[1]:
        changed = {name for name, digest in old.digests.items() if new.digests.get(name, digest) != digest}
        unseen = sorted(changed - (kept[0].keys() & kept[1].keys()) - {old.script})
        note = f"Also changed, but too large to be stored: {', '.join(unseen)}." if unseen else ""
        return script_change(*kept, note=note)
    if old.digests.get(old.script) == new.digests.get(new.script):
        return script_change({}, {})[0], "the same"
    return script_change(
        {}, {}, empty="the script changed; its text was not kept, so the lines are not known"
    )
