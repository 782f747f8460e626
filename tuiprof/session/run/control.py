"""Requests to a running script: files put into its ``control`` folder, each whole or not there.

For a run on several hosts, the request is sent to each of them.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Final

import msgspec

from tuiprof.errors import SessionError
from tuiprof.session.store.folders import Session, slug
from tuiprof.session.store.meta import CaptureRequest, TriggerRequest
from tuiprof.session.store.status import PROCESS_FILE, STOP_FILE, processes, unreached
from tuiprof.session.store.status import status as status_of
from tuiprof.system import process
from tuiprof.system.files import is_own, read_small_json, write_inside
from tuiprof.system.process import Processes

#: Ids of the triggers that users arm: after slow steps, and every n steps.
SLOW: Final = "slow"
EVERY: Final = "every"
#: Options of the probe's black box.
BLACK_BOX_FILE: Final = "black-box.json"
#: Time between two captures of :data:`EVERY` at least, seconds.
_EVERY_COOLDOWN_S: Final = 10.0


class StopRequest(msgspec.Struct, frozen=True):
    """``control/stop.json``: end the script."""

    unix_ns: int  # time of the request; a request with another time is a different request
    signal: int = int(signal.SIGINT)  # first signal to send to the script's process group
    firm: bool = False  # do not wait: SIGKILL at once


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

    On several hosts, ``at`` should be a step that none of them has reached when it reads the request: without it every
    process begins at its current step. The answer comes as capture records in the log: armed, started, then written or
    failed.

    Returns:
        The request's id.

    Raises:
        SessionError: The run has ended, or the request cannot be written.
    """
    if steps < 1:
        raise ValueError("a capture needs at least one step")
    reached = [part for part in running_parts(session) if not unreached(part)]
    if not reached:
        why = ", ".join(filter(None, map(unreached, session.parts)))
        raise SessionError(f"no host of {session.id} can be reached: {why}")
    request = CaptureRequest(slug(id) if id else _new_id(session), steps, at, stack, shapes, memory)
    for part in reached:
        put_capture(part, request)
    return request.id


def put_capture(session: Session, request: CaptureRequest) -> None:
    """Write a capture request, whether or not the script runs yet.

    Raises:
        SessionError: It cannot be written.
    """
    write_inside(session.control, f"capture-{request.id}.json", msgspec.json.encode(request))


def put_black_box(session: Session, *, nan: bool = False, memory: bool = False) -> None:
    """Enable those checks of the black box that cost time; writes nothing if there are none.

    Raises:
        SessionError: It cannot be written.
    """
    wanted = {name: True for name, on in (("nan", nan), ("memory", memory)) if on}
    if wanted:
        write_inside(session.control, BLACK_BOX_FILE, msgspec.json.encode(wanted))


def trigger_requests(
    *, above_ns: int | None = None, times: float | None = None, every: int | None = None, **what: Any
) -> tuple[TriggerRequest, ...]:
    """Return the triggers for captures after slow steps, every n steps, or both.

    Args:
        above_ns: After a step longer than this, ns; None = disabled.
        times: After a step longer than this multiple of the median of the steps before; None = disabled.
        every: At each multiple of this step number; None = disabled.
        **what: The same for each: ``steps``, ``budget_bytes``, ``stack``, ``shapes``, ``memory``.
    """
    found = []
    if above_ns is not None or times is not None:
        found.append(TriggerRequest(SLOW, above_ns=above_ns, times=times, **what))
    if every is not None:
        found.append(TriggerRequest(EVERY, every=every, cooldown_s=_EVERY_COOLDOWN_S, **what))
    return tuple(found)


def arm(session: Session, request: TriggerRequest) -> None:
    """Request captures of the next steps whenever a step was slow, or every n steps, until :func:`disarm`.

    A slow step itself is over by then and cannot be profiled. Each capture is answered like one that was requested;
    its ``cause`` says why it was made. Arming again under the same id replaces what was armed.

    Raises:
        SessionError: The run has ended, or the request cannot be written.
    """
    for part in running_parts(session):
        put_trigger(part, request)


def put_trigger(session: Session, request: TriggerRequest) -> None:
    """Arm triggered captures, whether or not the script runs yet.

    Raises:
        SessionError: It cannot be written.
    """
    if sum(when is not None for when in (request.above_ns, request.times, request.every)) != 1:
        raise ValueError("give one of a time, a multiple of the median, and a number of steps")
    for name, number in (("steps", request.steps), ("every", request.every), ("above_ns", request.above_ns)):
        if number is not None and number < 1:
            raise ValueError(f"{name} must be at least 1")
    if request.times is not None and not request.times > 1:
        raise ValueError("the multiple of the median must be above 1")
    write_inside(session.control, f"trigger-{request.id}.json", msgspec.json.encode(request))


def armed(session: Session) -> list[TriggerRequest]:
    """Return what is armed, by id.

    A trigger that has spent its budget stays here; a note in the log says that it has stopped.
    """
    found = {
        path: read_small_json(path, TriggerRequest) for path in sorted(session.control.glob("trigger-*.json"))
    }
    # Disarmed just now, or not ours.
    return [it for path, it in found.items() if it is not None and path.name == f"trigger-{it.id}.json"]


def disarm(session: Session, id: str) -> None:  # noqa: A002 - it is the trigger's id
    """Make no more triggered captures; one that has begun is completed."""
    for part in session.parts:
        (part.control / f"trigger-{slug(id)}.json").unlink(missing_ok=True)


def request_stop(
    session: Session, *, sig: int = signal.SIGINT, firm: bool = False, known: Processes | None = None
) -> None:
    """Ask for the end of a run: a signal, then SIGTERM, then SIGKILL (delays: see the supervisor).

    Of several hosts each is asked. Returns at once; the session's status tells when it is over. Where the request
    cannot be written (a full disk, a session that was deleted) the recorder is sent the signal instead, and where it
    was killed the script is.

    Raises:
        SessionError: The run is over, or cannot be reached.
    """
    if session.others:
        for part in running_parts(session):
            _stop(part, sig, firm, known if part is session else None)
    else:
        _stop(session, sig, firm, known)


def _stop(session: Session, sig: int, firm: bool, known: Processes | None) -> None:
    """Ask for the end of one host's part of a run."""
    who = processes(session) or known
    if who is None or session.path.exists():
        _must_run(session)
    here = who is not None and who.pid_namespace == process.pid_namespace()
    recorded = here and who is not None and process.alive(who.supervisor)
    try:
        request = StopRequest(time.time_ns(), int(sig), firm)
        write_inside(session.control, STOP_FILE, msgspec.json.encode(request))
        if not here or recorded:
            return
    except SessionError:
        if not here:
            raise
    assert who is not None  # on this host
    pid = who.script.pid if who.script is not None else who.supervisor.pid
    remedy = f"stop it as the user who started it (process {pid})"
    if known is None and not is_own(session.control / PROCESS_FILE):  # it may name any process
        raise SessionError(f"{session.id} belongs to another user", remedy)
    try:
        if recorded and not firm:
            os.kill(who.supervisor.pid, sig)
        elif who.script is not None and process.alive(who.script):
            os.killpg(who.script.pid, signal.SIGKILL if firm else sig)
    except ProcessLookupError:  # the process has just ended by itself
        pass
    except PermissionError as error:
        raise SessionError(f"{session.id} belongs to another user", remedy) from error


def stop_unless_over(
    session: Session, *, sig: int = signal.SIGINT, firm: bool = False, known: Processes | None = None
) -> None:
    """Request the end of a run that may have ended in the meantime: then nothing is done.

    Raises:
        SessionError: The request cannot be written.
    """
    try:
        request_stop(session, sig=sig, firm=firm, known=known)
    except SessionError:
        if not session.status().over:
            raise


def read_stop(session: Session) -> StopRequest | None:
    """Return the last request to stop; None = none."""
    return read_small_json(session.control / STOP_FILE, StopRequest)


def running_parts(session: Session) -> list[Session]:
    """Return the running parts of a run, one per host.

    Raises:
        SessionError: The run is over.
    """
    if not session.others:
        _must_run(session)
        return [session]
    running = [part for part in session.parts if not status_of(part).over]
    if not running:
        _must_run(session)
    return running


def _must_run(session: Session) -> None:
    status = status_of(session)
    if status.over:
        raise SessionError(f"{session.id} has ended: {status}", "start a new run: tuiprof run …")


def _new_id(session: Session) -> str:
    """Return the first free name: ``c1``, ``c2``, …"""
    taken = {
        path.stem.removeprefix("capture-")
        for part in session.parts
        for path in part.control.glob("capture-*")
    }
    return next(f"c{n}" for n in range(1, len(taken) + 2) if f"c{n}" not in taken)
