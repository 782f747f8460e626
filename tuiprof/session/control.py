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
from tuiprof.session.files import read_small_json, write_atomic
from tuiprof.session.meta import DEFAULT_BUDGET, TriggerRequest
from tuiprof.session.status import processes
from tuiprof.session.store import CaptureRequest, Session, slug

STOP_FILE: Final = "stop.json"
#: Ids of the triggers that :func:`arm_slow` and :func:`arm_every` make.
SLOW: Final = "slow"
EVERY: Final = "every"


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


def arm_slow(
    session: Session,
    *,
    above_ns: int | None = None,
    times: float | None = None,
    steps: int = 3,
    cooldown_s: float = 30.0,
    budget_bytes: int = DEFAULT_BUDGET,
    stack: bool = False,
    shapes: bool = False,
    memory: bool = False,
) -> str:
    """Ask for a capture of the next steps whenever a step was slow, until :func:`disarm`.

    The slow step itself is over by then and cannot be profiled. Each capture is answered like one that was
    requested; its ``cause`` says which step was how slow. Arming again replaces what was armed.

    Args:
        session: A running session.
        above_ns: Slow is longer than this, ns.
        times: Slow is longer than so many times the median of the steps before (this or ``above_ns``).
        steps: How many steps a capture profiles.
        cooldown_s: Time between two captures at least.
        budget_bytes: No capture is begun that would bring the session's traces above this.
        stack: Record Python stacks.
        shapes: Record operator input shapes.
        memory: Record allocations.

    Returns:
        The trigger's id.

    Raises:
        SessionError: The run is over, or the request cannot be written.
    """
    if (above_ns is None) == (times is None):
        raise ValueError("either a time or a multiple of the median")
    request = TriggerRequest(
        SLOW, steps, above_ns, times, None, cooldown_s, budget_bytes, stack, shapes, memory
    )
    _must_run(session)
    put_trigger(session, request)
    return request.id


def arm_every(
    session: Session,
    every: int,
    *,
    steps: int = 3,
    cooldown_s: float = 10.0,
    budget_bytes: int = DEFAULT_BUDGET,
    stack: bool = False,
    shapes: bool = False,
    memory: bool = False,
) -> str:
    """Ask for a capture at each multiple of a step number, until :func:`disarm`.

    Arming again replaces what was armed.

    Args:
        session: A running session.
        every: A capture begins at steps ``every``, ``2 * every``, …; those within the cool-down are left out.
        steps: How many steps a capture profiles.
        cooldown_s: Time between two captures at least.
        budget_bytes: No capture is begun that would bring the session's traces above this.
        stack: Record Python stacks.
        shapes: Record operator input shapes.
        memory: Record allocations.

    Returns:
        The trigger's id.

    Raises:
        SessionError: The run is over, or the request cannot be written.
    """
    request = TriggerRequest(EVERY, steps, None, None, every, cooldown_s, budget_bytes, stack, shapes, memory)
    _must_run(session)
    put_trigger(session, request)
    return request.id


def put_trigger(session: Session, request: TriggerRequest) -> None:
    """Arm triggered captures, whether or not the script runs yet.

    Args:
        session: The session.
        request: What is wanted.

    Raises:
        SessionError: It cannot be written.
    """
    for name, number in (("steps", request.steps), ("every", request.every), ("above_ns", request.above_ns)):
        if number is not None and number < 1:
            raise ValueError(f"{name} must be at least 1")
    if request.times is not None and not request.times > 1:
        raise ValueError("a slow step takes more than once the median")
    write_atomic(session.control / f"trigger-{request.id}.json", msgspec.json.encode(request))


def armed(session: Session) -> list[TriggerRequest]:
    """Return what is armed, by id.

    A trigger that has spent its budget stays here; a note in the log says that it has stopped.

    Args:
        session: The session.
    """
    found = (read_small_json(path, TriggerRequest) for path in sorted(session.control.glob("trigger-*.json")))
    return [request for request in found if request is not None]  # disarmed just now, or not ours


def disarm(session: Session, id: str) -> None:  # noqa: A002 - it is the trigger's id
    """Make no more triggered captures; one that has begun is completed.

    Args:
        session: The session.
        id: The trigger's id.
    """
    (session.control / f"trigger-{id}.json").unlink(missing_ok=True)


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
    return read_small_json(session.control / STOP_FILE, StopRequest)


def _must_run(session: Session) -> None:
    status = session.status()
    if status.over:
        raise SessionError(f"{session.id} is over: {status}", "start a new run: tuiprof run …")


def _new_id(session: Session) -> str:
    """Return the first free name: ``c1``, ``c2``, …"""
    taken = {path.stem.removeprefix("capture-") for path in session.control.glob("capture-*")}
    return next(f"c{n}" for n in range(1, len(taken) + 2) if f"c{n}" not in taken)
