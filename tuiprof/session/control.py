"""Requests to a running script: files put into its ``control`` folder, each whole or not there."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Final

import msgspec

from tuiprof.errors import SessionError
from tuiprof.session import process
from tuiprof.session.files import write_atomic
from tuiprof.session.status import processes
from tuiprof.session.store import CaptureRequest, Session, slug

STOP_FILE: Final = "stop.json"


class StopRequest(msgspec.Struct, frozen=True):
    """``control/stop.json``: end the script.

    Attributes:
        unix_ns: When it was asked for; a request with another time is another request.
        signal: First signal to send to the script's process group.
        firm: Do not wait: SIGKILL at once.
    """

    unix_ns: int
    signal: int = int(signal.SIGINT)
    firm: bool = False


def request_capture(
    session: Session,
    steps: int,
    at: int | None = None,
    *,
    stack: bool = False,
    shapes: bool = False,
    memory: bool = False,
    id: str = "",  # noqa: A002 - it is the request's id
) -> str:
    """Ask the script's probe to profile some steps.

    The answer comes as capture records in the log: armed, started, then written or failed.

    Args:
        session: A running session.
        steps: How many steps.
        at: First step; None = as soon as possible.
        stack: Record Python stacks.
        shapes: Record operator input shapes.
        memory: Record allocations.
        id: Name of the request; empty = one is made up.

    Returns:
        The request's id.

    Raises:
        SessionError: The run is over, or the request cannot be written.
    """
    if steps < 1:
        raise ValueError("a capture needs at least one step")
    _must_run(session)
    request = CaptureRequest(slug(id) if id else _new_id(session), steps, at, stack, shapes, memory)
    put_capture(session, request)
    return request.id


def put_capture(session: Session, request: CaptureRequest) -> None:
    """Write a capture request, whether or not the script runs yet.

    Args:
        session: The session.
        request: The request.

    Raises:
        SessionError: It cannot be written.
    """
    write_atomic(session.control / f"capture-{request.id}.json", msgspec.json.encode(request))


def request_stop(session: Session, *, sig: int = signal.SIGINT, firm: bool = False) -> None:
    """Ask for the end of a run: a signal, then SIGTERM, then SIGKILL (delays: see the supervisor).

    Returns at once; the session's status tells when it is over. Without a recorder (it was killed) the
    signal is sent to the script's process group from here.

    Args:
        session: A running session.
        sig: First signal to send.
        firm: Do not wait: SIGKILL at once.

    Raises:
        SessionError: The run is over, or the request cannot be written.
    """
    _must_run(session)
    who = processes(session)
    lost = who is not None and who.place == process.place() and not process.alive(who.supervisor)
    if who is not None and lost and who.script is not None:
        with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
            os.killpg(who.script.pid, signal.SIGKILL if firm else sig)
        return
    request = StopRequest(time.time_ns(), int(sig), firm)
    write_atomic(session.control / STOP_FILE, msgspec.json.encode(request))


def read_stop(session: Session) -> StopRequest | None:
    """Return the last request to stop; None = there is none.

    Args:
        session: The session.
    """
    try:
        return msgspec.json.decode((session.control / STOP_FILE).read_bytes(), type=StopRequest)
    except (OSError, msgspec.DecodeError):  # written atomically, so a damaged one is not ours
        return None


def _must_run(session: Session) -> None:
    status = session.status()
    if status.over:
        raise SessionError(f"{session.id} is over: {status}", "start a new run: tuiprof run …")


def _new_id(session: Session) -> str:
    """Return the first free name: ``c1``, ``c2``, …"""
    taken = {path.stem.removeprefix("capture-") for path in session.control.glob("capture-*")}
    return next(f"c{n}" for n in range(1, len(taken) + 2) if f"c{n}" not in taken)
