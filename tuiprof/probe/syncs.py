"""Which lines made the host wait for the device: the framework's own warnings, with the exact stack.

During a capture ``torch.cuda.set_sync_debug_mode("warn")`` lets PyTorch warn where it synchronises. The
warnings are taken before they reach the script's filters, handlers or stderr; all other warnings pass
untouched. PyTorch does not warn for explicit waits, for copies that are asked not to block and do (because the
host memory is pageable), and for what its allocator asks of the driver: these calls are wrapped for the window.
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

from .allocations import AllocationWatch

_PROTOTYPE = "Synchronization debug mode is a prototype"  # said once when it is switched on
_MESSAGE = re.compile(r"called a synchronizing|" + _PROTOTYPE)
_FILTER = ("always", _MESSAGE, Warning, None, 0)
_MOST_FRAMES = 100
_MOST_SITES = 500_000
_OWN_FILES = __file__.rsplit("syncs", 1)[0]


class SyncWatch:
    """Collects host waits between :meth:`start` and :meth:`stop`.

    Args:
        torch: The module, with CUDA initialised.
        memory: The capture is about memory, so what allocations cost to be watched may be paid.
    """

    def __init__(self, torch: Any, memory: bool) -> None:
        self._torch = torch
        self._allocations = AllocationWatch(torch) if memory else None
        self._more: list[tuple[int, int, str, list[str]]] = []
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
        self._wrap(cuda, "empty_cache", "torch.cuda.empty_cache")
        for name in ("to", "cuda", "copy_"):
            self._wrap_copy(name)
        if self._allocations is not None:
            self._allocations.start()
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
        if self._allocations is not None:
            self._more += self._allocations.stop()

    def write(self, path: str) -> None:
        """Write one line a wait: ``unix_ns`` just after the call, ``tid``, ``what``, ``frames``.

        Args:
            path: The file; it is replaced.
        """
        texts: dict[tuple[types.CodeType, int], str] = {}
        sites = list(self._more)
        for unix_ns, tid, what, frames in self._sites:
            for frame in frames:
                if frame not in texts:
                    code, lineno = frame
                    name = getattr(code, "co_qualname", code.co_name)
                    texts[frame] = f"{code.co_filename}:{lineno} {name}"
            sites.append((unix_ns, tid, what, [texts[frame] for frame in frames]))
        with open(path, "w", encoding="ascii") as file:
            for unix_ns, tid, what, lines in sorted(sites):
                file.write(dumps({"unix_ns": unix_ns, "tid": tid, "what": what, "frames": lines}) + "\n")

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

        self._replace(owner, name, synchronize)

    def _wrap_copy(self, name: str) -> None:
        """Note calls of a tensor's copy that was asked not to block, between the device and pageable memory."""
        tensor = self._torch.Tensor
        original = getattr(tensor, name)
        compiling = getattr(self._torch.compiler, "is_dynamo_compiling", lambda: False)

        def copy(*args: Any, **kwargs: Any) -> Any:
            if compiling():  # the compiler traces through here, and must see the copy alone
                return original(*args, **kwargs)
            result = original(*args, **kwargs)
            if kwargs.get("non_blocking") or True in args[2:]:
                source = args[1] if name == "copy_" else args[0]
                if source.is_cuda != result.is_cuda:
                    host = result if source.is_cuda else source
                    if not host.is_pinned():
                        self._saw("copy of pageable memory", sys._getframe(1))
            return result

        self._replace(tensor, name, copy)

    def _replace(self, owner: Any, name: str, function: Any) -> None:
        """Put a function in the place of another, until :meth:`stop`."""
        own = vars(owner).get(name)
        setattr(owner, name, function)
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
            if _PROTOTYPE in str(message.message) and not told_by_script:
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
