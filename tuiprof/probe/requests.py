"""Requests to the running script: files in ``control/``, of the user or of a trigger.

A trigger captures after a slow step, or every n steps. All of it runs in the log's thread on completed steps, so the
training thread has no overhead, and a slow step can no longer be captured: the steps after it are captured.

A trigger's request is put into ``control/`` like those of a user. So all ranks of a run serve it, regardless of which
saw the slow step. If several saw one (ranks that wait for each other are all slow, in this step or the next), the first
wins: they use the same number for their next request, and a file can be created only once.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from dataclasses import dataclass
from json import dumps, loads
from time import monotonic_ns
from typing import Any, Callable

from .assembly import Step
from .steps.changed_steps import Change

_FEWEST_STEPS = 20  # for a reliable median
_MEDIAN_OF = 127
_AFTER_CAPTURE = 2  # steps that are slow because a profiler has just stopped
_AHEAD_NS = 400_000_000  # ranks look for requests every 100 ms: a step that all of them can still reach
_SOON_NS = 500_000_000  # later captures are requested later, as the script may end first
_WARM_UP = 10  # steps that are slow for other reasons
_MAX_FAILURES = 3
_REQUEST = re.compile(r"(capture|stacks|steps)-(.*)\.json")
_TRIGGER = re.compile(r"trigger-.+\.json")
_LINE = re.compile(r".:\d{1,9}$")
_FRESH_NS = 3_000_000_000  # a folder changed this recently may have changed again within its clock's tick


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


@dataclass(frozen=True)
class Trigger:
    """What is armed: ``control/trigger-<id>.json``."""

    id: str  # its name
    steps: int = 3  # number of steps per capture
    above_ns: float | None = None  # after a step longer than this, ns; None = otherwise
    times: float | None = None  # after a step longer than this multiple of the median; None = other triggers
    every: int | None = None  # at each multiple of this; None = otherwise
    cooldown_s: float = 30.0  # time from the end of one capture to the next at the earliest
    budget_bytes: float = 500_000_000  # no capture is begun that would bring the session's traces above this
    options: tuple[str, ...] = ()  # options of the capture: stack, shapes, memory
    problem: str = ""  # why it cannot be served; empty = it can

    @classmethod
    def of(cls, identity: str, fields: dict[str, Any]) -> Trigger:
        """Return what a file holds.

        Raises:
            ValueError, TypeError, AttributeError: Its content is invalid.
        """
        above, times, every = (fields.get(name) for name in ("above_ns", "times", "every"))
        if sum(value is not None for value in (above, times, every)) != 1:
            raise ValueError("exactly one of above_ns, times and every is needed")
        if every is not None and int(every) < 1:
            raise ValueError(f"every {every} steps")
        return cls(
            id=identity,
            steps=max(int(fields.get("steps", 3)), 1),
            above_ns=_float(above),
            times=_float(times),
            every=None if every is None else int(every),
            cooldown_s=float(fields.get("cooldown_s", 30.0)),
            budget_bytes=float(fields.get("budget_bytes", 500_000_000)),
            options=tuple(name for name in ("stack", "shapes", "memory") if fields.get(name)),
        )


class _Armed:
    """A trigger and its state."""

    def __init__(self, trigger: Trigger) -> None:
        self.trigger = trigger
        self.ready_ns = 0  # no capture before this time, monotonic
        self.waiting_for = ""  # id of the running capture
        self.made = 0  # finished captures; the same on all ranks, as each serves all of them
        self.failures = 0
        self.stopped = False


class Triggers:
    """Watches the steps and requests captures.

    ``tell`` reports a message to the user: level and text. ``alone``: this process is the only rank.
    """

    def __init__(self, session: str, tell: Callable[[str, str], None], alone: Callable[[], bool]) -> None:
        self._control = os.path.join(session, "control")
        self._traces = os.path.join(session, "traces")
        self._tell = tell
        self._alone = alone
        self._armed: dict[str, _Armed] = {}
        self._usual: deque[int] = deque(maxlen=_MEDIAN_OF)  # step times before the one that is judged, ns
        self._median_ns = 0
        self._skip = 0

    def arm(self, triggers: list[Trigger]) -> None:
        """Arm these triggers only; those already armed continue unchanged."""
        before = self._armed
        self._armed = {}
        for trigger in triggers:
            old = before.get(trigger.id)
            if trigger.problem:
                self._tell("warn", trigger.problem)
            else:
                self._armed[trigger.id] = (
                    old if old is not None and old.trigger == trigger else _Armed(trigger)
                )

    def look(self, steps: list[Step]) -> None:
        """See whether a capture is due after these steps."""
        if not steps:
            return
        if not self._armed:
            for _, _, dur, _, _, _, captured in steps[-_MEDIAN_OF:]:
                if captured:
                    self._usual.clear()
                else:
                    self._usual.append(dur)
            return
        self._median_ns = (
            sorted(self._usual)[len(self._usual) // 2] if len(self._usual) >= _FEWEST_STEPS else 0
        )
        n, _, dur = steps[-1][:3]
        for armed in self._armed.values():
            if armed.trigger.every is not None and self._may(armed):
                every = armed.trigger.every
                first = n + self._reach(dur)
                first += -first % every
                if (first - n) * dur > _SOON_NS and first - n > 2 * self._reach(dur):
                    continue
                self._ask(armed, first, f"step {first} is a multiple of {every}")
        for number, _, dur, _, _, _, captured in steps:
            if number < _WARM_UP:
                continue
            if captured:
                self._skip = _AFTER_CAPTURE
                self._usual.clear()  # a profiler may have slowed down what comes: that is its own usual
            elif self._skip:
                self._skip -= 1
            else:
                self._judge(number, dur, n)

    def _judge(self, number: int, dur: int, n: int) -> None:
        """Ask for a capture if a step was slow."""
        for armed in self._armed.values():
            trigger = armed.trigger
            above, why = trigger.above_ns, ""
            if trigger.times is not None and self._median_ns:
                above = self._median_ns * trigger.times
                why = f"{trigger.times:g} × the median of {_ms(self._median_ns)}, which is "
            if above is not None and dur > above and self._may(armed):
                # Alone, the capture begins with the next step; otherwise with one that all ranks still reach.
                first = None if self._alone() else n + self._reach(dur)
                cause = f"step {number} took {_ms(dur)}, more than {why}{_ms(above)}"
                self._ask(armed, first, cause)
        self._usual.append(dur)

    def _reach(self, dur: int) -> int:
        """Return in how many steps one begins that all ranks have yet to reach."""
        return 2 + _AHEAD_NS // max(self._median_ns or dur, 1)

    def _may(self, armed: _Armed) -> bool:
        return not armed.stopped and not armed.waiting_for and monotonic_ns() >= armed.ready_ns

    def _ask(self, armed: _Armed, first: int | None, cause: str) -> None:
        """Put a request into ``control/``, unless the disk budget is spent."""
        trigger = armed.trigger
        used, largest = _sizes(self._traces)
        if used + largest > trigger.budget_bytes:
            self._stop(
                armed,
                f"the traces take {used / 1e6:.0f} MB, and one more of {largest / 1e6:.0f} MB would exceed "
                f"the budget of {trigger.budget_bytes / 1e6:.0f} MB",
            )
            return
        identity = f"{trigger.id}-{armed.made + 1}"
        request = {"id": identity, "steps": trigger.steps, "at": first, "cause": cause}
        request.update(dict.fromkeys(trigger.options, True))
        path = os.path.join(self._control, f"capture-{identity}.json")
        part = os.path.join(self._control, f".{identity}-{os.getpid()}")
        armed.waiting_for = identity
        try:
            with open(part, "w", encoding="utf-8") as file:
                file.write(dumps(request))
            _put_once(part, path)
        except OSError as error:
            self._stop(armed, f"control/ cannot be written: {error}")

    def ended(self, identity: str, written: bool) -> None:
        """Hear that a capture is over."""
        for armed in self._armed.values():
            if not armed.stopped and identity.startswith(armed.trigger.id + "-"):
                armed.waiting_for = ""
                armed.made += 1
                armed.ready_ns = monotonic_ns() + int(armed.trigger.cooldown_s * 1e9)
                armed.failures = 0 if written else armed.failures + 1
                if armed.failures >= _MAX_FAILURES:
                    self._stop(armed, f"{armed.failures} captures in a row failed")

    def _stop(self, armed: _Armed, why: str) -> None:
        """Make no more captures for a trigger."""
        armed.stopped = True
        armed.waiting_for = ""
        self._tell("warn", f"triggered captures ({armed.trigger.id}) have stopped: {why}")


def _put_once(part: str, path: str) -> None:
    """Give a file its name, unless there is one: another rank's, whose request is served here as well.

    Raises:
        OSError: It cannot be done.
    """
    try:
        os.link(part, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without links: two ranks may both get through, and one is overwritten
        if not os.path.exists(path):
            os.replace(part, path)
            return
    os.unlink(part)


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.1f} ms" if ns >= 1e6 else f"{ns / 1e3:.0f} µs"


def _sizes(folder: str) -> tuple[int, int]:
    """Return the size of all files below a folder, and that of the largest, bytes."""
    used = largest = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                size = os.stat(os.path.join(where, name)).st_size
            except OSError:  # a file that was being finished
                continue
            used += size
            largest = max(largest, size)
    return used, largest


@dataclass(frozen=True)
class Request:
    """Profile some steps."""

    id: str  # name of the request
    steps: int = 1  # how many
    at: int | None = None  # first step; None = as soon as possible
    seconds: float | None = None  # how long, for a capture by the clock; None = it is one of steps
    after_s: float | None = None  # when that begins, from the import of the framework on
    #: A process alone need not wait for ``at`` if this has passed since its first step, s; None = it has to.
    or_after_s: float | None = None
    stack: bool = False  # record Python stacks
    shapes: bool = False  # record tensor shapes
    memory: bool = False  # record the allocator
    cause: str = ""  # why the probe requested it itself; empty = requested by a user
    problem: str = ""  # why it cannot be served; empty = it can


class Requests:
    """Finds requests in the session's ``control/``, each once."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._changed = -1
        self._seen: set[str] = set()
        self.stacks: list[str] = []  # requests for stacks, by id, since the list was last cleared
        self.changes: list[Change] = []  # requests for another kind of step, likewise
        self._armed: dict[str, str] = {}

    def new(self) -> tuple[list[Request], list[Trigger] | None]:
        """Return new requests, oldest name first, and all triggers if they changed; one ``stat`` if nothing did."""
        try:
            changed = os.stat(self._folder).st_mtime_ns
            if changed == self._changed and time.time_ns() - changed > _FRESH_NS:
                return [], None
            self._changed = changed
            names = sorted(os.listdir(self._folder))
        except OSError:  # no folder: no requests
            return [], None
        found: list[Request] = []
        for name in names:
            match = _REQUEST.fullmatch(name)
            if match is None or name in self._seen:
                continue
            self._seen.add(name)
            kind, identity = match.groups()
            if kind == "capture":
                found.append(self._read(name, identity))
            elif kind == "stacks":
                self.stacks.append(identity)
            else:
                self.changes.append(self._read_change(name))
        return found, self._triggers([name for name in names if _TRIGGER.fullmatch(name)])

    def _text(self, name: str) -> str:
        with open(os.path.join(self._folder, name), encoding="utf-8") as file:
            return file.read()

    def _triggers(self, names: list[str]) -> list[Trigger] | None:
        """Return the armed triggers; None = unchanged."""
        texts: dict[str, str] = {}
        for name in names:
            try:
                texts[name] = self._text(name)
            except (OSError, ValueError):  # disarmed just now
                continue
        if texts == self._armed:
            return None
        self._armed = texts
        found: list[Trigger] = []
        for name, text in texts.items():
            identity = name[len("trigger-") : -len(".json")]
            try:
                found.append(Trigger.of(identity, loads(text)))
            except (ValueError, TypeError, AttributeError) as error:
                problem = f"control/{name} cannot be read, so it triggers no captures: {error}"
                found.append(Trigger(identity, problem=problem))
        return found

    def _read_change(self, name: str) -> Change:
        try:
            fields = loads(self._text(name))
            wanted = {key: str(fields.get(key) or "") for key in ("at", "function", "by")}
            if sum(map(bool, wanted.values())) != 1 or (wanted["at"] and not _LINE.search(wanted["at"])):
                raise ValueError("exactly one of at, function and by is required")
        except (OSError, ValueError, AttributeError) as error:
            return Change(problem=f"the request control/{name} cannot be read: {error}")
        return Change(**wanted)

    def _read(self, name: str, identity: str) -> Request:
        """Return one request; an error is in ``problem``."""
        try:
            fields = loads(self._text(name))
            at = fields.get("at")
            request = Request(
                id=str(fields.get("id", identity)),
                steps=int(fields.get("steps", 1)),
                at=None if at is None else int(at),
                seconds=_float(fields.get("seconds")),
                after_s=_float(fields.get("after_s")),
                or_after_s=_float(fields.get("or_after_s")),
                stack=bool(fields.get("stack")),
                shapes=bool(fields.get("shapes")),
                memory=bool(fields.get("memory")),
                cause=str(fields.get("cause") or ""),
            )
        except (OSError, ValueError, TypeError, AttributeError) as error:
            return Request(id=identity, problem=f"the request control/{name} cannot be read: {error}")
        if request.steps < 1:
            return Request(
                id=request.id, problem=f"{request.steps} steps were requested; at least 1 is required"
            )
        return request
