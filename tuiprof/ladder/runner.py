"""Runs the trials of a ladder; a run can be stopped and resumed at any time.

Every trial is a fresh process, recorded as an ordinary session.
"""

from __future__ import annotations

import platform
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from tuiprof.errors import SessionError
from tuiprof.ladder.background import note_runner
from tuiprof.ladder.plan import Slot, left_s, pending, schedule, slot_of
from tuiprof.ladder.resuming import differences
from tuiprof.ladder.state import LadderMeta, LadderRun, State, Trial
from tuiprof.ladder.trial import begin, conclude
from tuiprof.model.characters import shell_word
from tuiprof.session.run.control import stop_unless_over
from tuiprof.session.run.interpreter import facts as ask
from tuiprof.session.run.launch import wait
from tuiprof.session.store.folders import RecorderLock, Session
from tuiprof.session.store.status import Status

_TICK_S: Final = 0.2
#: A script that failed with less free disk space than this is run again, as that may be the reason.
_MIN_FREE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a ladder."""

    done: int  # completed trials that count
    total: int  # total number of trials, as currently known
    trial: Trial  # the trial that is running or has just ended
    ended: bool  # whether it has just ended
    left_s: float | None  # time left, estimated from similar trials; None = not known yet


def run(
    ladder: LadderRun,
    asked: Callable[[], int] = lambda: 0,
    *,
    checks_at_once: int = 1,
    limit_s: float | None = None,
) -> Iterator[Progress]:
    """Run the remaining trials; yields several times a second.

    Args:
        ladder: The ladder; results are stored in it.
        asked: Returns how often the user has asked to stop: once = after the current trial, twice = stop that too (it
            will be repeated).
        checks_at_once: How many variants are checked at the same time. Timed and captured trials always run alone.
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
        # Trials whose runner died may still be running themselves.
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
                        alone.add(slot_of(one.trial))
                slots = schedule(meta)
                yield Progress(len(slots) - len(pending(meta)), len(slots), one.trial, over, one.left_s)
                if one.disk_was_full:  # the next one would fail just so
                    remedy = f"free some space in {ladder.path}, then: tuiprof ladder --resume {shell_word(ladder.id)}"
                    raise SessionError(f"{ladder.id}: the disk is full", remedy)
    finally:
        lock.release()


def _next(
    meta: LadderMeta, live: Sequence[Trial], checks_at_once: int, alone: Collection[Slot]
) -> list[Slot]:
    """Return what may be started now: most checks run concurrently, anything else alone."""
    taken = {slot_of(trial) for trial in live}
    slots = [slot for slot in pending(meta) if slot not in taken]
    if any(trial.kind != "check" for trial in live):
        return []
    checks = [slot for slot in slots if slot.kind == "check" and slot not in alone]
    if checks and not any(slot_of(trial) in alone for trial in live):
        return checks[: max(0, checks_at_once - len(live))]
    return [] if live else slots[:1]


class _Live:
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
        """Seconds until the ladder is done; None = unknown."""
        if self._over:
            return left_s(self._ladder.meta)
        gone_s = time.monotonic() - self._began_s
        return None if self._expected_s is None else max(0.0, self._expected_s - gone_s)

    def look(self, timeout_s: float, *, stop: bool) -> bool:
        """Return whether it has ended, and if so store its outcome; waits for its end that long."""
        if self.trial.state == "running":
            try:
                session = self._ladder.session(self.trial)
            except SessionError as error:
                self._ends("stopped", error.message)
            else:
                status = wait(session, timeout_s)
                if not status.over:
                    self._stop_if(stop, session)
                    return False
                self._conclude(session, status)
            self._ladder.put(self.trial)
        self._over = True
        return True

    def _stop_if(self, asked: bool, session: Session) -> None:
        """Stop it once, if that is asked for or it takes too long."""
        if self._stopping:
            return
        self._too_long = self._limit_s is not None and time.monotonic() - self._began_s > self._limit_s
        if asked or self._too_long:
            self._stopping = True
            stop_unless_over(session)

    def _conclude(self, session: Session, status: Status) -> None:
        if self._adopted and status.state == "interrupted":  # the machine went down: it is repeated
            self._ends("stopped", str(status))
        else:
            self.trial = conclude(self.trial, session, status)
        if self.trial.state == "stopped" and self._too_long:
            remedy = f"use a longer --limit; see {session.stderr}"
            self._ends("failed", f"not finished after {self._limit_s:g} s", remedy=remedy)
        elif self.trial.state == "failed" and shutil.disk_usage(session.path).free < _MIN_FREE_BYTES:
            self.disk_was_full = True
            self._ends("stopped", f"failed as the disk was full: {self.trial.why}")
        if self.trial.state == "failed" and self.beside_others:
            self.to_repeat = True
            self._ends("stopped", f"failed next to other checks, repeated alone: {self.trial.why}")

    def _ends(self, state: State, why: str, **more: str) -> None:
        self.trial = msgspec.structs.replace(self.trial, state=state, why=why, **more)


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
