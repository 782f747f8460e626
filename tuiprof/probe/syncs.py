"""Which lines made the host wait for the device: the framework's own warnings, with the exact stack.

During a capture ``torch.cuda.set_sync_debug_mode("warn")`` lets PyTorch warn where it synchronises. The
warnings are taken before they reach the script's filters, handlers or stderr; all other warnings pass
untouched. PyTorch does not warn for explicit waits, so those are wrapped for the window.
"""

from __future__ import annotations

import re
import sys
import threading
import time
import types
import warnings
from json import dumps
from typing import Any, Callable

_MESSAGE = re.compile(r"called a synchronizing|Synchronization debug mode is a prototype")
_FILTER = ("always", _MESSAGE, Warning, None, 0)
_MOST_FRAMES = 100
_MOST_SITES = 500_000
_OWN_FILES = __file__.rsplit("syncs", 1)[0]


class SyncWatch:
    """Collects host waits between :meth:`start` and :meth:`stop`.

    Args:
        torch: The module, with CUDA initialised.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._sites: list[tuple[int, int, str, list[tuple[types.CodeType, int]]]] = []
        self._undo: list[Callable[[], None]] = []
        self._inside = threading.local()
        self._mode_before = 0

    def start(self) -> None:
        """Begin to collect."""
        cuda = self._torch.cuda
        self._mode_before = int(cuda.get_sync_debug_mode())
        self._wrap(cuda, "synchronize", "torch.cuda.synchronize")
        self._wrap(cuda.Event, "synchronize", "torch.cuda.Event.synchronize")
        self._wrap(cuda.Stream, "synchronize", "torch.cuda.Stream.synchronize")
        if self._mode_before == 2:  # the script wants an exception at every wait; there will be none to see
            return
        self._take_warnings()
        if self._mode_before == 0:
            cuda.set_sync_debug_mode(1)
            self._undo.append(lambda: cuda.set_sync_debug_mode(0))

    def stop(self) -> None:
        """Put everything back; harmless when not started."""
        while self._undo:
            self._undo.pop()()

    def write(self, path: str) -> None:
        """Write one line a wait: ``unix_ns`` just after the call, ``tid``, ``what``, ``frames``.

        Args:
            path: The file; it is replaced.
        """
        texts: dict[tuple[types.CodeType, int], str] = {}
        with open(path, "w", encoding="ascii") as file:
            for unix_ns, tid, what, frames in self._sites:
                for frame in frames:
                    if frame not in texts:
                        code, lineno = frame
                        name = getattr(code, "co_qualname", code.co_name)
                        texts[frame] = f"{code.co_filename}:{lineno} {name}"
                line = {"unix_ns": unix_ns, "tid": tid, "what": what, "frames": [texts[f] for f in frames]}
                file.write(dumps(line) + "\n")

    # -- collecting -----------------------------------------------------------------------------------------

    def _saw(self, what: str, frame: types.FrameType | None) -> None:
        """Note a wait that has just ended.

        Args:
            what: The call or the warning.
            frame: The frame that made it, innermost.
        """
        now = time.time_ns()
        if len(self._sites) >= _MOST_SITES:
            return
        frames: list[tuple[types.CodeType, int]] = []
        while frame is not None and len(frames) < _MOST_FRAMES:
            if not frame.f_code.co_filename.startswith(_OWN_FILES):
                frames.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        self._sites.append((now, threading.get_native_id(), what, frames))

    def _wrap(self, owner: Any, name: str, what: str) -> None:
        """Note calls of an explicit wait, until :meth:`stop`."""
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

        own = vars(owner).get(name)
        setattr(owner, name, synchronize)
        if own is None:
            self._undo.append(lambda: delattr(owner, name))
        else:
            self._undo.append(lambda: setattr(owner, name, own))

    def _take_warnings(self) -> None:
        """Let the warnings about waits come here and nowhere else, whatever the script's filters say."""
        show_name = "_showwarnmsg"  # what the interpreter calls, also inside catch_warnings(record=True)
        show = getattr(warnings, show_name)
        told_by_script = self._mode_before != 0

        def show_or_take(message: Any) -> None:
            if not _MESSAGE.search(str(message.message)):
                show(message)
                return
            if not getattr(self._inside, "on", False):
                self._saw(_what(str(message.message)), sys._getframe(1))
            if told_by_script:
                show(message)

        setattr(warnings, show_name, show_or_take)
        self._undo.append(lambda: setattr(warnings, show_name, show))
        if not told_by_script:
            self._undo.append(_pin_filter())


def _what(message: str) -> str:
    """Return a warning's text without where in PyTorch it was raised."""
    return message.split(" (Triggered", 1)[0].strip()


def _pin_filter() -> Callable[[], None]:
    """Keep our filter the first one, however the script changes the filters.

    ``-W error`` or a ``catch_warnings`` block of the script would otherwise turn the warning into an
    exception in the middle of training, or drop it. The interpreter reads ``warnings.filters`` by attribute
    at every warning; a property puts our filter in front just then, in the script's own list.

    Returns:
        What undoes it.
    """
    module: Any = warnings
    kind = type(module)

    def get(_: Any) -> Any:
        filters = vars(module)["filters"]
        if not filters or filters[0] is not _FILTER:
            while _FILTER in filters:
                filters.remove(_FILTER)
            filters.insert(0, _FILTER)
        return filters

    def put(_: Any, value: Any) -> None:
        vars(module)["filters"] = value

    # A warning that the script has already seen at a line would not be raised there again.
    warnings.filterwarnings("always", message=_MESSAGE.pattern)
    module.__class__ = type("_Warnings", (kind,), {"filters": property(get, put)})

    def undo() -> None:
        module.__class__ = kind
        filters = vars(module)["filters"]
        filters[:] = [entry for entry in filters if not _is_ours(entry)]

    return undo


def _is_ours(entry: Any) -> bool:
    """Whether a filter was put there by :func:`_pin_filter`."""
    return entry is _FILTER or getattr(entry[1], "pattern", None) == _MESSAGE.pattern
