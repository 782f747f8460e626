"""Stacks of a session: asked for now, or kept when steps stopped coming."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tuiprof.blackbox.flight import of_session
from tuiprof.blackbox.stacks import Process, processes_of, stacks_report
from tuiprof.errors import SessionError
from tuiprof.model import Report
from tuiprof.model.units import format_ns
from tuiprof.session import ptrace
from tuiprof.session.asking import expected, is_here, take_stacks
from tuiprof.session.live.fold import Fold, StacksState
from tuiprof.session.store.folders import Session
from tuiprof.session.store.status import processes
from tuiprof.system import process

_RANK = re.compile(r"rank(\d+)")
#: Id of the stack that an exception left when it ended the script.
END = "end"


def asked(session: Session) -> Report:
    """Ask the processes of a running session where they are; those that do not answer are read from outside.

    Raises:
        SessionError: It cannot be asked.
    """
    fold, found = take_stacks(session)
    silent = [rank for rank in expected(session, fold) if rank.name not in found.by_writer]
    more, missing = [], []
    for rank in silent:
        assert rank.head is not None  # expected() returns no others
        if not is_here(session, rank):
            missing.append(
                f"{rank.label} did not answer, and runs on another machine or in another container"
            )
            continue
        read, why = _from_outside(rank.head.pid, rank.name)
        more += read
        missing += why
    if not found.by_writer and not silent:
        more, missing = _without_steps(session)
    return _report(session, fold, found, more=more, missing=missing)


def _without_steps(session: Session) -> tuple[list[Process], list[str]]:
    """Read the stacks of the script by py-spy: the probe answers only from the first step on."""
    who = processes(session)
    if (
        who is None
        or who.script is None
        or who.pid_namespace != process.pid_namespace()
        or not process.alive(who.script)
    ):
        return [], ["the script has not run a step yet, and runs on another machine or in another container"]
    read, why = _from_outside(who.script.pid, "the script", children=True)
    return read, ["the script has not run a step yet: its stacks are read by py-spy", *why]


def _from_outside(pid: int, name: str, *, children: bool = False) -> tuple[list[Process], list[str]]:
    """Return what py-spy says of a process that does not answer, and why it is asked or says nothing."""
    try:
        found = ptrace.stacks_of(pid, children=children)
    except SessionError as error:
        return [], [f"{name} (process {pid}) did not answer: {error.message}; {error.remedy}"]
    read = [
        Process(name if number == pid else f"process {number}", threads) for number, threads in found.items()
    ]
    return read, [] if children else [
        f"{name} (process {pid}) did not answer, as native code holds its interpreter lock: read by py-spy"
    ]


def kept(session: Session, fold: Fold) -> Report | None:
    """Return the stacks that were written last; None = none were."""
    found = newest(fold)
    return None if found is None else _report(session, fold, found)


def newest(fold: Fold) -> StacksState | None:
    """Return the stacks that were written last, those that an exception left aside; None = none were."""
    held = [found for name, found in fold.stacks.items() if name != END and found.by_writer]
    return max(held, key=lambda found: found.t_ns, default=None)


def _report(
    session: Session,
    fold: Fold,
    found: StacksState,
    *,
    more: Sequence[Process] = (),
    missing: Sequence[str] = (),
) -> Report:
    return stacks_report(
        [*processes_of(fold, found), *more],
        title=f"Stacks of {session.id}" + (f", {format_ns(found.t_ns)} into the run" if found.t_ns else ""),
        cause=found.cause,
        missing=missing,
        notes=flight_notes(session, found),
    )


def flight_notes(session: Session, found: StacksState) -> list[str]:
    """Return what the Flight Recorder's dumps say that were taken with stacks."""
    flights = {}
    for name, path in found.flights.items():
        match = _RANK.fullmatch(name.partition("@")[0])
        if match is not None:
            flights[int(match[1])] = path
    return [f"Flight Recorder: {line}" for line in of_session(session.path, flights)]
