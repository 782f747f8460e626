"""The ladder runner: what is measured in which order, one trial after the other, to be stopped and resumed at will.

Every trial is a fresh process, recorded as an ordinary session. First the numbers of each variant are checked and
some of its steps captured; then come the rounds of timing, interleaved (A B C A B C …), in which nothing is captured.
"""

from __future__ import annotations

import difflib
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from tuiprof.errors import SessionError, UsageProblem
from tuiprof.session import scenarios
from tuiprof.session.availability import Missing, availability
from tuiprof.session.control import request_stop
from tuiprof.session.interpreter import facts as ask
from tuiprof.session.ladder_guard import differences, software, sources
from tuiprof.session.ladder_runner import note_runner
from tuiprof.session.ladder_state import (
    OUT,
    SCHEMA_VERSION,
    Kind,
    LadderMeta,
    LadderRun,
    Rung,
    Trial,
    now_ns,
)
from tuiprof.session.ladder_trial import begin, conclude
from tuiprof.session.launch import wait
from tuiprof.session.store import RecorderLock

if TYPE_CHECKING:
    from pathlib import PurePath

    from tuiprof.session.interpreter import Facts
    from tuiprof.telemetry import Device

_TICK_S: Final = 0.2


class Slot(NamedTuple):
    """One trial that belongs to a ladder, run or not."""

    kind: Kind
    round: int
    variant: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a ladder is.

    Attributes:
        done: Trials that are over and count.
        total: Trials in all, as far as is known now.
        trial: The trial that runs or has just ended.
        ended: It has just ended.
        left_s: Time left, from how long like trials took; None = nothing to tell it from yet.
    """

    done: int
    total: int
    trial: Trial
    ended: bool
    left_s: float | None


def plan(
    ladder: scenarios.Ladder,
    facts: Facts,
    devices: Sequence[Device] = (),
    *,
    variants: Sequence[str] = (),
    rounds: int = 5,
    preset: str = "fit",
    steps: int | None = None,
    price: float | None = None,
    cwd: PurePath | None = None,
) -> LadderMeta:
    """Plan a ladder; nothing is run or written.

    Args:
        ladder: The ladder.
        facts: What the interpreter that will run it has.
        devices: What telemetry sees.
        variants: Names of variants; none = all. The baselines of those named are added.
        rounds: Timing trials a variant.
        preset: Preset.
        steps: Steps a trial; None = the preset's.
        price: Dollars an hour of the machine, for samples per dollar.
        cwd: Where to run; None = here.

    Raises:
        UsageProblem: There is no such variant or preset.
    """
    chosen = _chosen(ladder, variants)
    rungs = []
    for variant in chosen:
        able = availability(variant, facts, devices)
        lacks = (able.reason, able.remedy) if isinstance(able, Missing) else ("", "")
        rungs.append(
            Rung(
                name=variant.name,
                baseline=variant.baseline,
                builds_on=variant.builds_on,
                note=variant.note,
                published=tuple(figure.text for figure in variant.published),
                reason=lacks[0],
                remedy=lacks[1],
                command=scenarios.command(variant, preset, steps),
                check=variant.check,
            )
        )
    files = sources(ladder.script)
    return LadderMeta(
        v=SCHEMA_VERSION,
        ladder=ladder.name,
        title=ladder.title,
        source=ladder.source,
        script=str(ladder.script),
        digest=files[ladder.script.name],
        sources=files,
        software=software(ladder, chosen, facts),
        baseline=ladder.baseline,
        preset=preset,
        steps=steps,
        rounds=rounds,
        python=facts.python,
        host=platform.node(),
        machine=facts.sentence,
        cwd=str(cwd or Path.cwd()),
        unix_ns=now_ns(),
        price=price,
        rungs=tuple(rungs),
    )


def _chosen(ladder: scenarios.Ladder, names: Sequence[str]) -> list[scenarios.Variant]:
    if not names:
        return list(ladder.variants)
    known = {variant.name: variant for variant in ladder.variants}
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            remedy = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            raise UsageProblem(f"the ladder {ladder.name!r} has no variant {name!r}", remedy)
    wanted = {*names, *(known[name].baseline for name in names)}
    return [variant for variant in ladder.variants if variant.name in wanted]


def schedule(meta: LadderMeta) -> list[Slot]:
    """Return every trial that the ladder takes, in order, those that are over included.

    Variants that proved wrong, failed or turned out unavailable are not run any further.

    Args:
        meta: The ladder.
    """
    able = [rung for rung in meta.rungs if not rung.reason]
    slots = [Slot("check", 0, rung.name) for rung in able if rung.check is not None]
    slots += [Slot("trace", 0, rung.name) for rung in able]
    slots += [Slot("timing", number, rung.name) for number in range(1, meta.rounds + 1) for rung in able]
    ran = _final(meta)
    out = {trial.variant for trial in meta.trials if trial.state in OUT}
    return [slot for slot in slots if slot in ran or slot.variant not in out]


def pending(meta: LadderMeta) -> list[Slot]:
    """Return the trials that are still to be run, in order.

    Args:
        meta: The ladder.
    """
    ran = _final(meta)
    return [slot for slot in schedule(meta) if slot not in ran]


def _final(meta: LadderMeta) -> set[Slot]:
    return {_slot(trial) for trial in meta.trials if trial.state not in ("running", "stopped")}


def _slot(trial: Trial) -> Slot:
    return Slot(trial.kind, trial.round, trial.variant)


def left_s(meta: LadderMeta) -> float | None:
    """Return how long the rest will take: what the same variant took for the same, else the mean of such trials.

    Args:
        meta: The ladder.

    Returns:
        Seconds; None = no trial is over yet.
    """
    ran = [trial for trial in meta.trials if trial.state == "done"]
    if not ran:
        return None
    total = 0.0
    for slot in pending(meta):
        like = [trial.wall_ns for trial in ran if (trial.kind, trial.variant) == (slot.kind, slot.variant)]
        like = like or [trial.wall_ns for trial in ran if trial.kind == slot.kind]
        like = like or [trial.wall_ns for trial in ran]
        total += sum(like) / len(like) / 1e9
    return total


def run(ladder: LadderRun, asked: Callable[[], int] = lambda: 0) -> Iterator[Progress]:
    """Run what is still to be run; yields several times a second.

    Args:
        ladder: The ladder; what happens is stored in it.
        asked: How often the user has asked to stop: once = after the current trial, twice = stop that too (it
            will be repeated).

    Yields:
        How far it is.

    Raises:
        SessionError: Someone else runs this ladder, its script changed since it was planned, it was planned on
            another machine, or the disk is full.
    """
    meta = ladder.meta
    _must_fit(ladder)
    lock = RecorderLock(ladder.path / "control")
    note_runner(ladder)
    try:
        if meta.trials and meta.trials[-1].state == "running":  # its runner died; the trial itself may live
            yield from _follow(ladder, meta.trials[-1], asked, adopted=True)
        while (slots := pending(meta)) and not asked():
            trial = begin(ladder, slots[0].kind, slots[0].round, meta.rung(slots[0].variant))
            ladder.put(trial)
            yield from _follow(ladder, trial, asked)
    finally:
        lock.release()


def _follow(
    ladder: LadderRun, trial: Trial, asked: Callable[[], int], *, adopted: bool = False
) -> Iterator[Progress]:
    """Wait for the end of a trial and store it."""
    began_s, expected_s = time.monotonic(), left_s(ladder.meta)
    if trial.state == "running":
        try:
            session = ladder.session(trial)
        except SessionError as error:
            trial = msgspec.structs.replace(trial, state="stopped", why=error.message)
        else:
            stopping = False
            while not (status := wait(session, _TICK_S)).over:
                if asked() > 1 and not stopping:
                    stopping = True
                    request_stop(session)
                gone_s = time.monotonic() - began_s
                yield _progress(
                    ladder, trial, False, None if expected_s is None else max(0.0, expected_s - gone_s)
                )
            if adopted and status.state == "interrupted":  # the machine went down: the trial is repeated
                trial = msgspec.structs.replace(trial, state="stopped", why=str(status))
            else:
                trial = conclude(trial, session, status)
        ladder.put(trial)
    yield _progress(ladder, trial, True, left_s(ladder.meta))


def _progress(ladder: LadderRun, trial: Trial, ended: bool, left: float | None) -> Progress:
    slots = schedule(ladder.meta)
    return Progress(len(slots) - len(pending(ladder.meta)), len(slots), trial, ended, left)


def _must_fit(ladder: LadderRun) -> None:
    """Refuse to mix trials that cannot be compared."""
    meta, again = ladder.meta, f"start anew: tuiprof ladder {ladder.meta.ladder}"
    if not pending(meta) and not (meta.trials and meta.trials[-1].state == "running"):
        return  # nothing will be run
    if meta.host != platform.node():
        raise SessionError(f"{ladder.id} was begun on {meta.host}, this is {platform.node()}", again)
    said = differences(meta, ask(meta.python or None))
    if said:
        raise SessionError(f"{'; '.join(said)}, since {ladder.id} was begun", again)
