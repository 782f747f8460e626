"""Source lines of calls that wait: stack, thread and time of each call."""

from __future__ import annotations

import os
import sys
import threading
import time
import types
from json import dumps
from typing import Any, Callable

from .guest.own_file import OwnFile

_MOST_FRAMES = 100
_MOST_SITES = 500_000
_OWN_FILES = os.path.dirname(__file__) + os.sep


class SiteWatch:
    """Collects the lines of wrapped calls, until :meth:`stop`."""

    #: Identifier of a thread in the trace.
    _thread_id = staticmethod(threading.get_native_id)

    def __init__(self) -> None:
        self._more: list[tuple[int, int, str, list[str]]] = []
        self._sites: list[tuple[int, int, int | None, str, list[tuple[types.CodeType, int]]]] = []
        self._undo: list[Callable[[], None]] = []
        self._inside = threading.local()

    def stop(self) -> None:
        """Restore everything; harmless if nothing was replaced."""
        while self._undo:
            self._undo.pop()()

    def write(self, path: str) -> None:
        """Write one line per wait: ``unix_ns`` just after the call, ``tid``, ``what``, ``frames``; ``dur_ns`` if known.

        Args:
            path: The file, which must not exist.
        """
        texts: dict[tuple[types.CodeType, int], str] = {}
        lines = [
            (unix_ns, {"unix_ns": unix_ns, "tid": tid, "what": what, "frames": frames})
            for unix_ns, tid, what, frames in self._more
        ]
        for unix_ns, tid, dur_ns, what, locations in self._sites:
            for location in locations:
                if location not in texts:
                    code, lineno = location
                    name = getattr(code, "co_qualname", code.co_name)
                    texts[location] = f"{code.co_filename}:{lineno} {name}"
            fields = {
                "unix_ns": unix_ns,
                "tid": tid,
                "what": what,
                "frames": [texts[location] for location in locations],
            }
            lines.append((unix_ns, fields if dur_ns is None else fields | {"dur_ns": dur_ns}))
        text = "".join([dumps(fields) + "\n" for _, fields in sorted(lines, key=lambda line: line[0])])
        file = OwnFile(path)
        try:
            file.append(text.encode("ascii"))
        finally:
            file.close()

    def _saw(self, what: str, frame: types.FrameType | None, began_ns: int | None = None) -> None:
        """Record a wait that has just ended."""
        now = time.time_ns()
        if len(self._sites) >= _MOST_SITES:
            return
        locations: list[tuple[types.CodeType, int]] = []
        while frame is not None and len(locations) < _MOST_FRAMES:
            if not frame.f_code.co_filename.startswith(_OWN_FILES):
                locations.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        dur_ns = None if began_ns is None else now - began_ns
        self._sites.append((now, self._thread_id(), dur_ns, what, locations))

    def _wrap(self, owner: Any, name: str, what: str) -> None:
        """Record explicit waits, until :meth:`stop`."""
        original = getattr(owner, name)
        inside = self._inside

        def synchronize(*args: Any, **kwargs: Any) -> Any:
            if getattr(inside, "on", False):  # one of them calls another, or warns: that is one wait
                return original(*args, **kwargs)
            inside.on = True
            try:
                return original(*args, **kwargs)
            finally:
                inside.on = False
                self._saw(what, sys._getframe(1))

        self._replace(owner, name, synchronize)

    def _replace(self, owner: Any, name: str, function: Any) -> None:
        """Replace a function with another, until :meth:`stop`."""
        own = vars(owner).get(name)
        setattr(owner, name, function)
        if own is None:
            self._undo.append(lambda: delattr(owner, name))
        else:
            self._undo.append(lambda: setattr(owner, name, own))
