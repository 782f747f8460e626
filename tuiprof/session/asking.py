"""Asks the processes of a run for their stacks or for another definition of a step, and waits for their answers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from tuiprof.errors import SessionError, UsageProblem
from tuiprof.probe.steps.changed_steps import BY, REFUSED
from tuiprof.session.live.fold import Fold, StacksState, WriterState
from tuiprof.session.live.replay import Live
from tuiprof.session.live.step_source import counted
from tuiprof.session.run.control import running_parts
from tuiprof.session.run.launch import STEP_AT, STEP_FUNCTION, step_environment
from tuiprof.session.store.folders import Session
from tuiprof.session.store.status import processes
from tuiprof.system import process
from tuiprof.system.files import write_inside

#: A probe looks for requests every 100 ms, but never while C code holds the GIL.
_STACKS_PATIENCE_S: Final = 3.0
_POLL_S: Final = 0.05
#: Additional time for the Flight Recorder after every process has answered.
_FLIGHT_S: Final = 0.3


class StacksRequest(msgspec.Struct, frozen=True):
    """``control/stacks-<id>.json``."""

    id: str  # its name, under which all ranks answer
    unix_ns: int  # when it was asked for
    cause: str = ""  # the reason for an automatic request


def request_stacks(session: Session) -> str:
    """Ask the processes of a session for their stacks; they answer in their logs.

    Returns:
        The request's id.

    Raises:
        SessionError: It cannot be written.
    """
    now = time.time_ns()
    request = StacksRequest(f"asked-{now // 1_000_000}", now)
    for part in running_parts(session) if session.others else [session]:
        write_inside(part.control, f"stacks-{request.id}.json", msgspec.json.encode(request))
    return request.id


def expected(session: Session, fold: Fold) -> list[WriterState]:
    """Return the processes that record steps and still run."""
    return [
        rank
        for rank in fold.ranks
        if rank.end is None
        and rank.head is not None
        and (not is_here(session, rank) or process.identify(rank.head.pid) is not None)
    ]


def is_here(session: Session, rank: WriterState) -> bool:
    """Return whether the process ids of a rank are valid on this machine."""
    if rank.elsewhere:
        return False
    who = processes(session.part(rank.name))
    return who is not None and who.pid_namespace == process.pid_namespace()


def take_stacks(session: Session) -> tuple[Fold, StacksState]:
    """Ask for stacks and wait for the answers.

    Returns:
        The session's state, and the answers; empty if no process answered.

    Raises:
        SessionError: The request cannot be written.
    """
    with contextlib.closing(Live(session)) as feed:
        name = request_stacks(session)
        deadline = time.monotonic() + _STACKS_PATIENCE_S
        while time.monotonic() < deadline:
            feed.catch_up()
            found = feed.fold.stacks.get(name)
            ranks = feed.fold.ranks
            if ranks and all(rank.end is not None for rank in ranks):
                break
            missing = [
                rank for rank in expected(session, feed.fold) if not found or rank.name not in found.by_writer
            ]
            if found is not None and not missing:
                deadline = min(deadline, time.monotonic() + _FLIGHT_S)
                if len(found.flights) == len(found.by_writer):
                    break
            time.sleep(_POLL_S)
        return feed.fold, feed.fold.stacks.get(name, StacksState(name))


#: Timeout for an answer; a line not reached by then is reported as pending.
_STEPS_PATIENCE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A process's answer to a request."""

    process: str
    text: str  # the new definition of a step, or why it was not changed
    refused: bool = False  # the definition was not changed


def change_request(
    session: Session, at: str | None = None, function: str | None = None, by: str | None = None
) -> dict[str, str]:
    """Return what ``control/steps-<id>.json`` says, of ``at``, ``function`` or ``by`` (a key of :data:`BY`).

    A file that is not found from the current directory is searched in the script's working directory.

    Raises:
        UsageProblem: None or several are given, or it cannot be read.
    """
    if sum(bool(it) for it in (at, function, by)) != 1:
        raise UsageProblem("give one of --at, --function and --by", "for example --at train.py:88")
    if by:
        if by not in BY:
            raise UsageProblem(f"{by!r} is not a kind of step", f"one of {', '.join(BY)}")
        return {"by": by}
    if at and not Path(at.rpartition(":")[0]).is_file():
        there = Path(session.meta.cwd) / at
        at = str(there) if Path(str(there).rpartition(":")[0]).is_file() else at
    given = step_environment(at, function, option="--{}")
    return {"at": given[STEP_AT]} if STEP_AT in given else {"function": given[STEP_FUNCTION]}


def request_change(session: Session, wanted: dict[str, str]) -> None:
    """Ask every process of a run to count other steps.

    Raises:
        SessionError: The run has ended, or the request cannot be written.
    """
    status = session.status()
    if status.over:
        raise SessionError(
            f"{session.id} has ended: {status}", "give the line when starting a run: --step-at FILE:LINE"
        )
    for part in session.parts:
        write_inside(part.control, f"steps-{time.time_ns()}.json", msgspec.json.encode(wanted))


def change_steps(session: Session, wanted: dict[str, str]) -> list[Answer]:
    """Ask, and wait for the answers.

    Returns:
        One per process that answered; empty if the line has not been reached, or no process answered.

    Raises:
        SessionError: As :func:`request_change`.
    """
    with contextlib.closing(Live(session)) as feed:
        feed.catch_up()
        before = {rank.name: rank.step_source for rank in feed.fold.ranks}
        since_ns = feed.fold.now_ns
        request_change(session, wanted)
        deadline = time.monotonic() + _STEPS_PATIENCE_S
        found: list[Answer] = []
        while time.monotonic() < deadline and (len(found) < len(before) or not found):
            feed.catch_up()
            found = _answers(feed.fold, before, since_ns)
            time.sleep(_POLL_S)
        return found


def _answers(fold: Fold, before: Mapping[str, object], since_ns: int) -> list[Answer]:
    refused = {
        note.writer: note.text.removeprefix(REFUSED)
        for note in fold.notes
        if note.t_ns >= since_ns and note.text.startswith(REFUSED)
    }
    return [
        Answer(rank.name, refused[rank.name], True)
        if rank.name in refused
        else Answer(rank.name, counted(rank))
        for rank in fold.ranks
        if rank.name in refused or rank.step_source != before.get(rank.name)
    ]
