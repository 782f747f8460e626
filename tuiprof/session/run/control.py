"""Requests to a running script, written atomically as files in its ``control`` folder.

For a run on several hosts, the request is written for each of them. All functions that write raise a SessionError if
the request cannot be written.
"""

from __future__ import annotations

import os
import re
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

#: Ids of the users' triggers: after slow steps, and every n steps.
SLOW: Final = "slow"
EVERY: Final = "every"
#: Options of the probe's black box.
BLACK_BOX_FILE: Final = "black-box.json"
#: Minimum interval between captures of :data:`EVERY`.
_EVERY_COOLDOWN_S: Final = 10.0
_LIMIT: Final = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([^\W\d]*|×)\s*")
_TIMES_NS: Final = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


class StopRequest(msgspec.Struct, frozen=True):
    """``control/stop.json``: stop the script."""

    unix_ns: int  # time of the request, which identifies it
    signal: int = int(signal.SIGINT)  # first signal to send to the script's process group
    firm: bool = False  # send SIGKILL at once


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

    Without ``at``, every process starts at its current step. On several hosts, ``at`` should be a step that none of
    them reaches before it reads the request. The probe answers by capture records in the log: armed, started, then
    written or failed.

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
    """Write a capture request, whether or not the script runs yet."""
    write_inside(session.control, f"capture-{request.id}.json", msgspec.json.encode(request))


def put_black_box(session: Session, *, nan: bool = False, memory: bool = False) -> None:
    """Enable the expensive checks of the black box."""
    wanted = {name: True for name, on in (("nan", nan), ("memory", memory)) if on}
    if wanted:
        write_inside(session.control, BLACK_BOX_FILE, msgspec.json.encode(wanted))


def parse_slower(text: str) -> tuple[int | None, float | None]:
    """Read ``40 ms`` as a time in ns, ``1.5x`` as a multiple of the median; one of the two is None.

    Raises:
        ValueError: It is neither.
    """
    match = _LIMIT.fullmatch(text)
    number, unit = (float(match[1]), match[2].lower()) if match else (0.0, "")
    if unit in ("x", "×") and number > 1:
        return None, number
    if unit in _TIMES_NS and number * _TIMES_NS[unit] >= 1:
        return round(number * _TIMES_NS[unit]), None
    raise ValueError(f"{text!r} is not a time (40ms, 2s) or a multiple of the median above 1 (1.5x)")


def trigger_requests(
    *, above_ns: int | None = None, times: float | None = None, every: int | None = None, **what: Any
) -> tuple[TriggerRequest, ...]:
    """Return the triggers for captures after slow steps, every n steps, or both; None = not so.

    A step is slow that is longer than ``above_ns``, or ``times`` the median of earlier steps. ``what`` are fields for
    all of them: ``steps``, ``budget_bytes``, ``stack``, ``shapes``, ``memory``.
    """
    found = []
    if above_ns is not None or times is not None:
        found.append(TriggerRequest(SLOW, above_ns=above_ns, times=times, **what))
    if every is not None:
        found.append(TriggerRequest(EVERY, every=every, cooldown_s=_EVERY_COOLDOWN_S, **what))
    return tuple(found)


def arm(session: Session, request: TriggerRequest) -> None:
    """Arm a trigger: capture the next steps after every slow step, or every n steps, until :func:`disarm`.

    The slow step itself has ended and cannot be profiled. Captures are logged like requested ones, with their
    ``cause``. Arming a trigger with the same id replaces it.

    Raises:
        SessionError: The run has ended.
    """
    for part in running_parts(session):
        put_trigger(part, request)


def put_trigger(session: Session, request: TriggerRequest) -> None:
    """Arm a trigger, whether or not the script runs yet."""
    if sum(when is not None for when in (request.above_ns, request.times, request.every)) != 1:
        raise ValueError("give one of a time, a multiple of the median, and a number of steps")
    for name, number in (("steps", request.steps), ("every", request.every), ("above_ns", request.above_ns)):
        if number is not None and number < 1:
            raise ValueError(f"{name} must be at least 1")
    if request.times is not None and not request.times > 1:
        raise ValueError("the multiple of the median must be above 1")
    write_inside(session.control, f"trigger-{request.id}.json", msgspec.json.encode(request))


def armed(session: Session) -> list[TriggerRequest]:
    """Return the armed triggers, sorted by id, including those that have used up their budget."""
    found = {
        path: read_small_json(path, TriggerRequest) for path in sorted(session.control.glob("trigger-*.json"))
    }
    # None = disarmed in the meantime; another id = not written by tuiprof.
    return [it for path, it in found.items() if it is not None and path.name == f"trigger-{it.id}.json"]


def disarm(session: Session, id: str) -> None:  # noqa: A002 - it is the trigger's id
    """Disarm a trigger; a capture in progress is completed."""
    for part in session.parts:
        (part.control / f"trigger-{slug(id)}.json").unlink(missing_ok=True)


def request_stop(
    session: Session, *, sig: int = signal.SIGINT, firm: bool = False, known: Processes | None = None
) -> None:
    """Ask to stop a run on all its hosts: by a signal, then SIGTERM, then SIGKILL (delays: see the supervisor).

    Returns at once. If the request cannot be written (the disk is full, or the session was deleted), the signal is sent
    to the supervisor or, if that was killed, to the script.

    Raises:
        SessionError: The run is over, or cannot be reached.
    """
    if session.others:
        for part in running_parts(session):
            _stop(part, sig, firm, known if part is session else None)
    else:
        _stop(session, sig, firm, known)


def _stop(session: Session, sig: int, firm: bool, known: Processes | None) -> None:
    """Ask to stop the part of a run on one host."""
    who = processes(session) or known
    if who is None or session.path.exists():
        _must_run(session)
    here = who is not None and who.pid_namespace == process.pid_namespace()
    supervised = here and who is not None and process.alive(who.supervisor)
    try:
        request = StopRequest(time.time_ns(), int(sig), firm)
        write_inside(session.control, STOP_FILE, msgspec.json.encode(request))
        if not here or supervised:
            return
    except SessionError:
        if not here:
            raise
    assert who is not None  # on this host
    pid = who.script.pid if who.script is not None else who.supervisor.pid
    remedy = f"stop it as the user who started it (process {pid})"
    if known is None and not is_own(session.control / PROCESS_FILE):  # it could name any process
        raise SessionError(f"{session.id} belongs to another user", remedy)
    try:
        if supervised and not firm:
            os.kill(who.supervisor.pid, sig)
        elif who.script is not None and process.alive(who.script):
            os.killpg(who.script.pid, signal.SIGKILL if firm else sig)
    except ProcessLookupError:  # it has just ended
        pass
    except PermissionError as error:
        raise SessionError(f"{session.id} belongs to another user", remedy) from error


def stop_unless_over(
    session: Session, *, sig: int = signal.SIGINT, firm: bool = False, known: Processes | None = None
) -> None:
    """Stop a run like :func:`request_stop`, but do nothing if it has ended.

    Raises:
        SessionError: The run cannot be reached.
    """
    try:
        request_stop(session, sig=sig, firm=firm, known=known)
    except SessionError:
        if not session.status().over:
            raise


def read_stop(session: Session) -> StopRequest | None:
    """Return the last stop request; None = there is none."""
    return read_small_json(session.control / STOP_FILE, StopRequest)


def running_parts(session: Session) -> list[Session]:
    """Return the running parts of a run, one per host; raises SessionError if the run has ended."""
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
