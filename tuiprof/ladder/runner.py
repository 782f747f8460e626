"""The ladder runner: what is measured in which order, one trial after the other, to be stopped and resumed at will.

Every trial is a fresh process, recorded as an ordinary session. First the numbers of each variant are checked and
some of its steps captured; then come the rounds of timing, interleaved (A B C A B C …), in which nothing is captured.
"""

from __future__ import annotations

import difflib
import platform
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from tuiprof.errors import SessionError, UsageProblem
from tuiprof.ladder import scenarios
from tuiprof.ladder.availability import Missing, availability
from tuiprof.ladder.guard import differences, software, sources
from tuiprof.ladder.process import note_runner
from tuiprof.ladder.state import (
    OUT,
    SCHEMA_VERSION,
    Kind,
    LadderMeta,
    LadderRun,
    Rung,
    Trial,
    now_ns,
)
from tuiprof.ladder.trial import begin, conclude
from tuiprof.model.characters import shell_word
from tuiprof.session.run.control import stop_unless_over
from tuiprof.session.run.interpreter import facts as ask
from tuiprof.session.run.launch import wait
from tuiprof.session.store.folders import RecorderLock

if TYPE_CHECKING:
    from pathlib import PurePath

    from tuiprof.session.run.interpreter import Facts
    from tuiprof.telemetry import Device

_TICK_S: Final = 0.2
#: A script that failed with less room than this is run again when there is more: it may have failed for that.
_LEAST_FREE_BYTES: Final = 1 << 20


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
    once: bool = False,
) -> LadderMeta:
    """Plan a ladder; nothing is run or written.

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
                published_at=tuple(ladder.sizes_of(figure) for figure in variant.published),
                reason=lacks[0],
                remedy=lacks[1],
                command=scenarios.command(variant, preset, steps),
                check=variant.check,
                check_and_run=variant.check_and_run,
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
        rounds=1 if once else rounds,
        once=once,
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
    """
    able = [rung for rung in meta.rungs if not rung.reason]
    if meta.once:
        return [Slot("once", 1, rung.name) for rung in able]
    slots = [Slot("check", 0, rung.name) for rung in able if rung.check is not None]
    slots += [Slot("trace", 0, rung.name) for rung in able]
    slots += [Slot("timing", number, rung.name) for number in range(1, meta.rounds + 1) for rung in able]
    ran = _final(meta)
    out = {trial.variant for trial in meta.trials if trial.state in OUT}
    return [slot for slot in slots if slot in ran or slot.variant not in out]


def pending(meta: LadderMeta) -> list[Slot]:
    """Return the trials that are still to be run, in order."""
    ran = _final(meta)
    return [slot for slot in schedule(meta) if slot not in ran]


def _final(meta: LadderMeta) -> set[Slot]:
    return {_slot(trial) for trial in meta.trials if trial.state not in ("running", "stopped")}


def _slot(trial: Trial) -> Slot:
    return Slot(trial.kind, trial.round, trial.variant)


def left_s(meta: LadderMeta) -> float | None:
    """Return how long the rest will take: what the same variant took for the same, else the mean of such trials.

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


def run(
    ladder: LadderRun,
    asked: Callable[[], int] = lambda: 0,
    *,
    checks_at_once: int = 1,
    limit_s: float | None = None,
) -> Iterator[Progress]:
    """Run what is still to be run; yields several times a second.

    Args:
        ladder: The ladder; what happens is stored in it.
        asked: How often the user has asked to stop: once = after the current trial, twice = stop that too (it
            will be repeated).
        checks_at_once: How many variants are checked at the same time. What is timed or captured always runs alone.
            A check that fails beside others is repeated alone: together they may have needed too much memory.
        limit_s: A trial that takes longer is stopped, and its variant has failed; None = none is.

    Yields:
        How far it is.

    Raises:
        SessionError: Someone else runs this ladder, its script changed since it was planned, it was planned on
            another machine, or the disk is full.
    """
    meta = ladder.meta
    _must_fit(ladder)
    try:
        lock = RecorderLock(ladder.path / "control")
    except SessionError as error:
        if not isinstance(error.__cause__, BlockingIOError):
            raise
        remedy = f"wait for it, or show its progress: tuiprof ladder --show {shell_word(ladder.id)}"
        raise SessionError(f"{ladder.id} is being measured by another tuiprof", remedy) from error
    note_runner(ladder)
    try:
        # Trials whose runner died: they themselves may live.
        live = [
            _Live(ladder, trial, limit_s, adopted=True) for trial in meta.trials if trial.state == "running"
        ]
        alone: set[Slot] = set()  # they failed beside others
        while True:
            for slot in () if asked() else _next(meta, [one.trial for one in live], checks_at_once, alone):
                trial = begin(ladder, slot.kind, slot.round, meta.rung(slot.variant))
                ladder.put(trial)
                live.append(_Live(ladder, trial, limit_s))
            if not live:
                return
            for one in live if len(live) > 1 else ():
                one.beside_others = True
            for one in tuple(live):
                over = one.look(_TICK_S / len(live), stop=asked() > 1)
                if over:
                    live.remove(one)
                    if one.to_repeat:
                        alone.add(_slot(one.trial))
                yield _progress(ladder, one.trial, over, one.left_s)
                if one.disk_was_full:  # the next one would fail just so
                    remedy = f"free some space in {ladder.path}, then: tuiprof ladder --resume {shell_word(ladder.id)}"
                    raise SessionError(f"{ladder.id}: the disk is full", remedy)
    finally:
        lock.release()


def _next(
    meta: LadderMeta, live: Sequence[Trial], checks_at_once: int, alone: Collection[Slot]
) -> list[Slot]:
    """Return what may be started now: most checks run concurrently, anything else alone."""
    taken = {_slot(trial) for trial in live}
    slots = [slot for slot in pending(meta) if slot not in taken]
    if any(trial.kind != "check" for trial in live):
        return []
    checks = [slot for slot in slots if slot.kind == "check" and slot not in alone]
    if checks and not any(_slot(trial) in alone for trial in live):
        return checks[: max(0, checks_at_once - len(live))]
    return [] if live else slots[:1]


class _Live:
    """A trial that runs."""

    def __init__(
        self, ladder: LadderRun, trial: Trial, limit_s: float | None, *, adopted: bool = False
    ) -> None:
        self.trial = trial
        self._ladder, self._limit_s = ladder, limit_s
        self._adopted = adopted
        self._began_s, self._expected_s = time.monotonic(), left_s(ladder.meta)
        self._stopping = False
        self._too_long = False
        self._over = False
        self.beside_others = False  # for some of its time
        self.to_repeat = False
        self.disk_was_full = False

    @property
    def left_s(self) -> float | None:
        """Seconds until the ladder is through; None = nothing to tell it from."""
        if self._over:
            return left_s(self._ladder.meta)
        gone_s = time.monotonic() - self._began_s
        return None if self._expected_s is None else max(0.0, self._expected_s - gone_s)

    def look(self, timeout_s: float, *, stop: bool) -> bool:
        """Return whether it is over, and store what became of it if so; waits for its end that long."""
        if self.trial.state == "running":
            try:
                session = self._ladder.session(self.trial)
            except SessionError as error:
                self.trial = msgspec.structs.replace(self.trial, state="stopped", why=error.message)
            else:
                status = wait(session, timeout_s)
                if not status.over:
                    taken_s = time.monotonic() - self._began_s
                    if not self._stopping and self._limit_s is not None and taken_s > self._limit_s:
                        self._too_long = stop = True
                    if stop and not self._stopping:
                        self._stopping = True
                        stop_unless_over(session)
                    return False
                if self._adopted and status.state == "interrupted":  # the machine went down: it is repeated
                    self.trial = msgspec.structs.replace(self.trial, state="stopped", why=str(status))
                else:
                    self.trial = conclude(self.trial, session, status)
                if self.trial.state == "stopped" and self._too_long:
                    why, remedy = (
                        f"not finished after {self._limit_s:g} s",
                        f"use a longer --limit; see {session.stderr}",
                    )
                    self.trial = msgspec.structs.replace(self.trial, state="failed", why=why, remedy=remedy)
                elif self.trial.state == "failed" and _disk_is_full(session.path):
                    self.disk_was_full = True
                    why = f"failed as the disk was full: {self.trial.why}"
                    self.trial = msgspec.structs.replace(self.trial, state="stopped", why=why)
                if self.trial.state == "failed" and self.beside_others:
                    self.to_repeat = True
                    why = f"failed next to other checks, repeated alone: {self.trial.why}"
                    self.trial = msgspec.structs.replace(self.trial, state="stopped", why=why)
            self._ladder.put(self.trial)
        self._over = True
        return True


def _disk_is_full(path: Path) -> bool:
    return shutil.disk_usage(path).free < _LEAST_FREE_BYTES


def _progress(ladder: LadderRun, trial: Trial, ended: bool, left: float | None) -> Progress:
    slots = schedule(ladder.meta)
    return Progress(len(slots) - len(pending(ladder.meta)), len(slots), trial, ended, left)


def _must_fit(ladder: LadderRun) -> None:
    """Refuse to mix trials that cannot be compared."""
    meta, again = ladder.meta, f"start a new one: tuiprof ladder {shell_word(ladder.meta.ladder)}"
    if not pending(meta) and not any(trial.state == "running" for trial in meta.trials):
        return  # nothing will be run
    if meta.host != platform.node():
        raise SessionError(f"{ladder.id} was started on {meta.host}, this is {platform.node()}", again)
    said = differences(meta, ask(meta.python or None))
    if said:
        raise SessionError(f"{'; '.join(said)}, since {ladder.id} was started", again)
