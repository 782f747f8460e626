"""Tries a change that needs no edit of the script: runs the command of a session with and without it, in turns.

Such changes are environment variables, and switches of the probe inside the process. No file is changed, and every
trial is an ordinary session without a capture, which is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from tuiprof.errors import SessionError
from tuiprof.ladder.statistics import Interval, Word, ratio_interval, word_for
from tuiprof.ladder.trial import DEFAULT_WARMUP
from tuiprof.session.live.replay import read_fold
from tuiprof.session.run.control import stop_unless_over
from tuiprof.session.run.launch import LaunchSpec, start, wait
from tuiprof.session.store.folders import Session

#: The variable that tells the probe what to switch, and the prefix of its notes on that (see
#: ``probe/frameworks/trial_hooks.py``).
VARIABLE: Final = "TUIPROF_TRY"
NOTED: Final = "trial: "
#: A number that a script logs may differ by this share of it, or by this many times the difference of unchanged runs.
_SAME: Final = 0.02
_TIMES_OWN: Final = 3.0


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One run of the command, with or without the change."""

    session: Session
    changed: bool  # whether it ran with the change
    step_ns: float  # median of its steps, without the first ones, ns
    numbers: Mapping[str, float]  # what it logged at its last step, by name
    switched: tuple[str, ...] = ()  # what the probe switched in it, in words


@dataclass(frozen=True, slots=True)
class Tried:
    """The result of trials."""

    trials: tuple[MeasuredRun, ...]  # the trials in the order in which they ran
    ratio: Interval | None  # step time with the change over that without; None = too few trials
    word: Word  # the verdict on that
    #: Logged numbers that the change alters, by name: without and with it.
    differing: Mapping[str, tuple[float, float]]


def attempt(
    session: Session,
    environment: Mapping[str, str],
    rounds: int,
    *,
    on_trial: Callable[[MeasuredRun], None] = lambda _: None,
    root: Path | None = None,
) -> Tried:
    """Run a session's command with and without environment variables, in turns; the first of a round alternates.

    Raises:
        SessionError: A run failed, or marks no steps.
        LaunchError: It cannot be started.
    """
    trials: list[MeasuredRun] = []
    for number in range(rounds):
        for changed in (False, True) if number % 2 == 0 else (True, False):
            trials.append(_run(session, environment if changed else {}, changed, root))
            on_trial(trials[-1])
    with_it, without = ([trial for trial in trials if trial.changed == which] for which in (True, False))
    pairs = [(ours.step_ns, theirs.step_ns) for ours, theirs in zip(with_it, without, strict=True)]
    ratio = ratio_interval(pairs)
    return Tried(tuple(trials), ratio, word_for(ratio), _differing(without, with_it))


def _run(session: Session, environment: Mapping[str, str], changed: bool, root: Path | None) -> MeasuredRun:
    meta = session.meta
    spec = LaunchSpec(
        tuple(meta.argv),
        name=f"{meta.name}-{'changed' if changed else 'unchanged'}",
        cwd=Path(meta.cwd),
        python=meta.python,
        env=environment,
        capture=None,
        root=root,
        keep_source=False,
        trial=True,
    )
    trial = start(spec)
    try:
        status = wait(trial)
    except BaseException:  # Ctrl-C: a run would go on by itself
        stop_unless_over(trial)
        raise
    if status.state != "finished":
        raise SessionError(f"a trial {status}", f"see {trial.stderr}")
    fold = read_fold(trial)
    lead = fold.lead
    if lead is None or len(lead.steps.rows["dur_ns"]) < 2:
        raise SessionError(f"{trial.id} marks no steps: nothing to time", "mark them with tuiprof.step()")
    rows, count = lead.steps.rows, len(lead.steps.rows["dur_ns"])
    timed = slice(min(DEFAULT_WARMUP, count // 2), count)
    measured = rows["dur_ns"][timed][lead.steps.comparable(timed)]
    switched = tuple(note.text.removeprefix(NOTED) for note in fold.notes if note.text.startswith(NOTED))
    numbers = {}
    for name in lead.steps.metrics:
        values = rows[f"v:{name}"]
        known = values[np.isfinite(values)]
        if len(known):
            numbers[name] = float(known[-1])
    return MeasuredRun(trial, changed, float(np.median(measured)), numbers, switched)


def _differing(without: list[MeasuredRun], with_it: list[MeasuredRun]) -> dict[str, tuple[float, float]]:
    """Return the logged numbers that differ by more than two unchanged runs do."""
    found = {}
    names = set.intersection(*(set(trial.numbers) for trial in (*without, *with_it)))
    for name in sorted(names):
        theirs = [trial.numbers[name] for trial in without]
        ours = [trial.numbers[name] for trial in with_it]
        before, after = float(np.median(theirs)), float(np.median(ours))
        most = max(_SAME * abs(before), _TIMES_OWN * (max(theirs) - min(theirs)))
        if abs(after - before) > most:
            found[name] = (before, after)
    return found
