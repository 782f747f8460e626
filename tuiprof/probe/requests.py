"""Requests of the user to the running script: files in ``control/``."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from json import loads

from .finding.changed_steps import Change
from .triggers import Trigger

_TRIGGER = re.compile(r"trigger-.+\.json")
_LINE = re.compile(r".:\d{1,9}$")
_FRESH_NS = 3_000_000_000  # a folder changed this recently may have changed again within its clock's tick


@dataclass(frozen=True)
class Request:
    """Profile some steps.

    Attributes:
        id: Name of the request.
        steps: How many.
        at: First step; None = as soon as possible.
        seconds: How long, for a capture by the clock; None = it is one of steps.
        after_s: When that begins, from the import of the framework on.
        stack: Record Python stacks.
        shapes: Record tensor shapes.
        memory: Record the allocator.
        cause: Why the probe requested it itself; empty = requested by a user.
        problem: Why it cannot be served; empty = it can.
    """

    id: str
    steps: int = 1
    at: int | None = None
    seconds: float | None = None
    after_s: float | None = None
    stack: bool = False
    shapes: bool = False
    memory: bool = False
    cause: str = ""
    problem: str = ""


class Requests:
    """Finds requests, each once.

    Args:
        folder: The session's ``control/``.

    Attributes:
        stacks: Requests for stacks, by id, since the list was last cleared.
        changes: Requests for another kind of step, likewise.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._changed = -1
        self._seen: set[str] = set()
        self.stacks: list[str] = []
        self.changes: list[Change] = []
        self._armed: dict[str, str] = {}

    def new(self) -> tuple[list[Request], list[Trigger] | None]:
        """Read the folder; costs one ``stat`` if nothing changed.

        Returns:
            Requests not returned before, oldest name first, and all triggers if they are others than last time.
        """
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
            if name.startswith("capture-") and name.endswith(".json") and name not in self._seen:
                self._seen.add(name)
                found.append(self._read(name))
            elif name.startswith("stacks-") and name.endswith(".json") and name not in self._seen:
                self._seen.add(name)
                self.stacks.append(name[len("stacks-") : -len(".json")])
            elif name.startswith("steps-") and name.endswith(".json") and name not in self._seen:
                self._seen.add(name)
                self.changes.append(self._read_change(name))
        return found, self._triggers([name for name in names if _TRIGGER.fullmatch(name)])

    def _triggers(self, names: list[str]) -> list[Trigger] | None:
        """Return the armed triggers; None = unchanged."""
        texts: dict[str, str] = {}
        for name in names:
            try:
                with open(os.path.join(self._folder, name), encoding="utf-8") as file:
                    texts[name] = file.read()
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
            with open(os.path.join(self._folder, name), encoding="utf-8") as file:
                fields = loads(file.read())
            wanted = {key: str(fields.get(key) or "") for key in ("at", "function", "by")}
            if sum(map(bool, wanted.values())) != 1 or (wanted["at"] and not _LINE.search(wanted["at"])):
                raise ValueError("exactly one of at, function and by is required")
        except (OSError, ValueError, AttributeError) as error:
            return Change(problem=f"the request control/{name} cannot be read: {error}")
        return Change(**wanted)

    def _read(self, name: str) -> Request:
        """Return one request; an error is in ``problem``."""
        identity = name[len("capture-") : -len(".json")]
        try:
            with open(os.path.join(self._folder, name), encoding="utf-8") as file:
                fields = loads(file.read())
            at, seconds, after_s = fields.get("at"), fields.get("seconds"), fields.get("after_s")
            request = Request(
                id=str(fields.get("id", identity)),
                steps=int(fields.get("steps", 1)),
                at=None if at is None else int(at),
                seconds=None if seconds is None else float(seconds),
                after_s=None if after_s is None else float(after_s),
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
