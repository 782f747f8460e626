"""Source lines of calls that made the host wait for the device, collected during a capture.

*PyTorch.* ``torch.cuda.set_sync_debug_mode("warn")`` makes PyTorch warn when it synchronizes. The warnings are
intercepted before they reach the script's filters, handlers or stderr; all other warnings pass through. PyTorch does
not warn about explicit waits, non-blocking copies that block because the host memory is pageable, and driver calls of
its allocator: these calls are wrapped during the window.

*PyTorch's allocator.* ``cudaMalloc`` makes the host wait. The caching allocator can record the Python stack of every
allocation; those that called the driver (``segment_alloc``) count. Recording slows every allocation down (on an H200 it
doubled the host time lost after a sync in a ResNet-18 step), so it runs only in captures with memory.

*JAX.* Blocking calls are wrapped. XLA's Python tracer records the first line of a function, not the executing one. All
reads of array values (``float``, ``int``, ``bool``, ``print``, ``jax.device_get``) go through ``Array._value``; on a
CPU NumPy reads the array's memory without it. Not every runtime notes a call of ``block_until_ready``, so each is
marked in the trace under the name that the user would call it. XPlane files have no system thread ids, so each waiting
thread leaves a mark in the trace with the interpreter's id. Consecutive threads may share it, and a line of the trace.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import threading
import time
import types
import warnings
from json import dumps
from typing import Any, Callable

from ..isolation import OWN_FILES, leave_out, own_errors_dropped, write_file

_MAX_FRAMES = 100
_MAX_SITES = 500_000
#: Maximum length of the allocator's history; the oldest allocations are dropped.
MAX_ENTRIES = 200_000
#: The probe itself records the history of the whole run (see :mod:`.torch_black_box`): a capture uses that.
kept_for_black_box = False
_PROTOTYPE = "Synchronization debug mode is a prototype"  # said once when it is switched on
_MESSAGE = re.compile(r"called a synchronizing|" + _PROTOTYPE)
_FILTER = ("always", _MESSAGE, Warning, None, 0)
#: Public calls that wait; ``tuiprof/analyses/shared/waits.py`` knows these names.
AWAITS = ("jax.Array.block_until_ready", "jax.block_until_ready")
#: Name of the mark and of the field with the thread's id; ``tuiprof/formats/xplane/words.py`` knows them.
THREAD_MARK, THREAD_ID = "tuiprof.thread", "tuiprof_tid"


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
        """Write a line per wait: ``unix_ns`` after the call, ``tid``, ``what``, ``frames``, and ``dur_ns`` if known."""
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
        write_file(path, text.encode("ascii"))

    def _saw(self, what: str, frame: types.FrameType | None, began_ns: int | None = None) -> None:
        """Record a wait that has just ended."""
        now = time.time_ns()
        if len(self._sites) >= _MAX_SITES:
            return
        locations: list[tuple[types.CodeType, int]] = []
        while frame is not None and len(locations) < _MAX_FRAMES:
            if not frame.f_code.co_filename.startswith(OWN_FILES):
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
            except BaseException as error:
                leave_out(error)
                raise
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


class AllocationWatch:
    """Collects allocations that reached the driver between :meth:`start` and :meth:`stop`."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._tid = self._since_us = 0
        self._on = False

    def start(self) -> None:
        """Start collecting, unless the script records this history itself."""
        self._tid = threading.get_native_id()
        self._since_us = time.time_ns() // 1000
        if self._torch._C._cuda_isHistoryEnabled():
            self._on = kept_for_black_box
            return
        self._record("all", context="all", stacks="python", max_entries=MAX_ENTRIES)
        self._on = True

    def stop(self) -> list[tuple[int, int, str, list[str]]]:
        """Stop, and return the allocations: ``unix_ns`` just after the call, ``tid``, ``what``, ``frames``."""
        if not self._on:
            return []
        self._on = False
        try:
            history = self._torch.cuda.memory._snapshot()["device_traces"]
        finally:
            if not kept_for_black_box:
                self._record(None)
        return [
            # The history does not tell the thread; only the training thread has Python frames here, because
            # backward runs in threads of PyTorch's own.
            (entry["time_us"] * 1000, self._tid, "cudaMalloc", _texts(entry["frames"]))
            for device in history
            for entry in device
            if entry["action"] == "segment_alloc"
            and entry.get("frames")
            and entry.get("time_us", -1) >= self._since_us
        ]

    def _record(self, *args: Any, **kwargs: Any) -> None:
        self._torch.cuda.memory._record_memory_history(*args, **kwargs)


def _texts(frames: list[dict[str, Any]]) -> list[str]:
    """Return frames as sites hold them, innermost first."""
    return [f"{frame['filename']}:{frame['line']} {frame['name']}" for frame in frames]


class SyncWatch(SiteWatch):
    """Collects host waits between :meth:`start` and :meth:`stop`, with ``memory`` also those of allocations."""

    def __init__(self, torch: Any, memory: bool) -> None:
        super().__init__()
        self._torch = torch
        self._allocations = AllocationWatch(torch) if memory else None
        self._mode_before = 0

    def start(self) -> None:
        """Start collecting."""
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
        """Restore everything; harmless if not started."""
        super().stop()
        if self._allocations is not None:
            self._more += self._allocations.stop()

    # -- collecting -----------------------------------------------------------------------------------------

    def _wrap_copy(self, name: str) -> None:
        """Record non-blocking copies between the device and pageable memory."""
        tensor = self._torch.Tensor
        original = getattr(tensor, name)
        compiling = getattr(self._torch.compiler, "is_dynamo_compiling", lambda: False)

        def copy(*args: Any, **kwargs: Any) -> Any:
            if compiling():  # the compiler traces through here, and must see the copy alone
                return original(*args, **kwargs)
            result = original(*args, **kwargs)
            if kwargs.get("non_blocking") or True in args[2:]:
                with own_errors_dropped():  # tensors of any kind
                    source = (*args, kwargs.get("other"))[name == "copy_"]
                    if source.is_cuda != result.is_cuda:
                        host = result if source.is_cuda else source
                        if not host.is_pinned():
                            self._saw("copy of pageable memory", sys._getframe(1))
            return result

        self._replace(tensor, name, copy)

    def _take_warnings(self) -> None:
        """Intercept the warnings about waits, regardless of the script's filters."""
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
    """Return a warning's text without its location in PyTorch."""
    return message.split(" (Triggered", 1)[0].strip()


def _pin_filter() -> Callable[[], None]:
    """Keep our filter first, even if the script changes the filters.

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
        filters[:] = [entry for entry in filters if not _is_own_filter(entry)]

    return undo


def _is_own_filter(entry: Any) -> bool:
    """Whether a filter was put there by :func:`_pin_filter`."""
    return entry is _FILTER or getattr(entry[1], "pattern", None) == _MESSAGE.pattern


class JaxSyncWatch(SiteWatch):
    """Collects host waits between :meth:`start` and :meth:`stop`."""

    _thread_id = staticmethod(threading.get_ident)

    def start(self) -> None:
        """Start collecting; functions missing in this version of JAX are skipped."""
        modules = sys.modules
        array = getattr(modules.get("jax._src.array"), "ArrayImpl", None)
        if array is None:
            return
        value = vars(array).get("_value")
        if isinstance(value, property) and value.fget is not None:
            self._put(array, "_value", property(self._timed(value.fget, "jax.Array._value", _is_cached)))
        self._watch(array, "block_until_ready", AWAITS[0])
        self._watch(modules["jax._src.array"].xc, "batched_block_until_ready", AWAITS[1])
        for name in ("asarray", "array"):
            self._watch(modules["numpy"], name, f"numpy.{name}", lambda value: type(value) is not array)

    def _watch(self, owner: Any, name: str, what: str, skip: Callable[[Any], bool] | None = None) -> None:
        """Wrap a function where there is one."""
        if (original := getattr(owner, name, None)) is not None:
            self._put(owner, name, self._timed(original, what, skip))

    def _put(self, owner: Any, name: str, wrapper: Any) -> None:
        """Install a wrapper, unless this version of JAX does not allow it."""
        with contextlib.suppress(TypeError, AttributeError):
            self._replace(owner, name, wrapper)

    def _timed(self, original: Any, what: str, skip: Callable[[Any], bool] | None) -> Any:
        """Return a function that notes its calls with their length."""
        inside = self._inside
        mark = sys.modules["jax.profiler"].TraceAnnotation if what in AWAITS else _no_mark

        def call(*args: Any, **kwargs: Any) -> Any:
            # One of them calls another: that is one wait.
            if getattr(inside, "on", False) or (skip is not None and (not args or skip(args[0]))):
                return original(*args, **kwargs)
            inside.on = True
            began_ns = time.time_ns()
            try:
                with mark(what):
                    return original(*args, **kwargs)
            except BaseException as error:
                leave_out(error)
                raise
            finally:
                inside.on = False
                with own_errors_dropped():
                    self._mark_thread()
                    self._saw(what, sys._getframe(1), began_ns)

        with contextlib.suppress(TypeError):  # a method of the extension has no text for a name
            functools.update_wrapper(call, original)
        return call

    def _mark_thread(self) -> None:
        if not getattr(self._inside, "marked", False):
            self._inside.marked = True
            with sys.modules["jax.profiler"].TraceAnnotation(THREAD_MARK, **{THREAD_ID: self._thread_id()}):
                pass


def _no_mark(_what: str) -> contextlib.AbstractContextManager[None]:
    """Leave no mark: the runtime itself records array reads."""
    return contextlib.nullcontext()


def _is_cached(array: Any) -> bool:
    """Whether an array's values were read before."""
    return getattr(array, "_npy_value", None) is not None
