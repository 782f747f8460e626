"""Requests the stacks of the running script's threads."""

from __future__ import annotations

import time
from typing import Final

import msgspec

from tuiprof.session.live.fold import Fold, StacksState
from tuiprof.session.live.replay import Live
from tuiprof.session.live.writer_state import WriterState
from tuiprof.session.run.control import running_parts
from tuiprof.session.store.folders import Session
from tuiprof.session.store.status import processes
from tuiprof.system import process
from tuiprof.system.files import write_inside

#: A probe looks for requests every 100 ms, but never while C code holds the GIL.
PATIENCE_S: Final = 3.0
_LOOK_S: Final = 0.05
#: Additional time for the Flight Recorder after every process has answered.
_FLIGHT_S: Final = 0.3


class StacksRequest(msgspec.Struct, frozen=True):
    """``control/stacks-<id>.json``.

    Attributes:
        id: Its name, under which all ranks answer.
        unix_ns: When it was asked for.
        cause: The reason for an automatic request.
    """

    id: str
    unix_ns: int
    cause: str = ""


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
    who = processes(session.part(rank.name))
    return who is not None and who.pid_namespace == process.pid_namespace()


def take_stacks(session: Session, patience_s: float = PATIENCE_S) -> tuple[Fold, StacksState]:
    """Ask for stacks and wait for the answers.

    Returns:
        The session's state, and the answers; empty if no process answered.

    Raises:
        SessionError: The request cannot be written.
    """
    feed = Live(session)
    try:
        name = request_stacks(session)
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            while feed.advance() or feed.behind:
                pass
            found = feed.fold.stacks.get(name)
            missing = [
                rank for rank in expected(session, feed.fold) if not found or rank.name not in found.by_writer
            ]
            if found is not None and not missing:
                deadline = min(deadline, time.monotonic() + _FLIGHT_S)
                if len(found.flights) == len(found.by_writer):
                    break
            time.sleep(_LOOK_S)
        return feed.fold, feed.fold.stacks.get(name, StacksState(name))
    finally:
        feed.close()
