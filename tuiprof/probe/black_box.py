"""The black box: stacks, collectives, NaN and infinite values, and out-of-memory errors, recorded when a run fails.

All of it runs in the log's thread, without signals or stops, except :mod:`.frameworks.torch_black_box`. The options are
in ``control/black-box.json``.

Collectives come from PyTorch's Flight Recorder, which keeps the last ones of each process group in memory. NCCL's is
read first, else the one of the other backends (PyTorch 2.9 and newer); as JSON where this PyTorch can give that (2.5),
else as a pickle of plain values. Nothing is enabled here: the script's environment configures the recorder.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from json import dumps, loads
from time import monotonic_ns
from types import FrameType
from typing import Any, Callable

from .assembly import Step
from .events import RECORD
from .isolation import OWN_FILES, own_errors_dropped, own_errors_reported, write_file
from .requests import Requests
from .slowdown import StallWatch

OPTIONS = "black-box.json"  # in control/
_STALL = "stall-"  # ids of requests made here
_OLD_S = 60.0  # requests older than this process are ignored
_QUIET_NS = 2_000_000_000  # after this time without a step, reading the Flight Recorder delays nothing
_MAX_THREADS = 64
_MAX_FRAMES = 100
_MAX_TEXT = 500
_THREAD_START = os.path.join(OWN_FILES, "isolation.py")
Frame = tuple[str, int, str]  # file, line, function

FOLDER = "stacks"  # in the session
_MAX_BYTES = 32 << 20
#: NCCL's recorder first; the second one is that of gloo.
_DUMPS = (
    ("_dump_nccl_trace_json", ".json"),
    ("_dump_nccl_trace", ".pickle"),
    ("_dump_fr_trace_json", ".json"),
    ("_dump_fr_trace", ".pickle"),
)


def threads_now() -> list[dict[str, Any]]:
    """Return the threads of this process that run Python, the main one first, those of the probe left out.

    Of each: ``id`` (the system's number; 0 = unknown), ``name``, ``main`` and ``frames``, innermost first, without the
    probe's own.
    """
    main = threading.main_thread().ident
    # Not threading.enumerate(), which takes a lock that the script may hold.
    known = dict(getattr(threading, "_active", {}))
    found: list[dict[str, Any]] = []
    for ident, frame in sys._current_frames().items():
        frames = frames_of(frame)
        if frames is None:
            continue
        thread = known.get(ident)
        found.append(
            {
                "id": getattr(thread, "native_id", None) or 0,
                "name": str(getattr(thread, "name", ""))[:_MAX_TEXT],
                "main": ident == main,
                "frames": frames,
            }
        )
    found.sort(key=lambda thread: (not thread["main"], thread["id"]))
    return found[:_MAX_THREADS]


def frames_of(frame: FrameType | None) -> list[Frame] | None:
    """Return a stack, innermost frame first; None = of a thread of the probe."""
    frames: list[Frame] = []
    outermost = ""
    while frame is not None:
        code = frame.f_code
        outermost = code.co_filename
        if len(frames) < _MAX_FRAMES and not outermost.startswith(OWN_FILES):
            frames.append(_frame(code, frame.f_lineno))
        frame = frame.f_back
    return None if outermost == _THREAD_START else frames


def frames_of_error(error: BaseException) -> list[Frame]:
    """Return where an exception was raised: the stack of its traceback, innermost frame first."""
    frames: list[Frame] = []
    entry = error.__traceback__
    while entry is not None:
        if not entry.tb_frame.f_code.co_filename.startswith(OWN_FILES):
            frames.append(_frame(entry.tb_frame.f_code, entry.tb_lineno))
        entry = entry.tb_next
    return frames[::-1][:_MAX_FRAMES]


def _frame(code: Any, line: int | None) -> Frame:
    name = str(getattr(code, "co_qualname", code.co_name))
    return code.co_filename[:_MAX_TEXT], line or 0, name[:_MAX_TEXT]


def dump(session: str, name: str) -> str:
    """Write the contents of the Flight Recorder into the session.

    Returns:
        The file, relative to the session; empty = there is no process group, or no recorder.

    Raises:
        OSError: It cannot be written.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return ""
    data, ending = _read(sys.modules.get("torch._C._distributed_c10d"))
    if not data or len(data) > _MAX_BYTES:
        return ""
    os.makedirs(os.path.join(session, FOLDER), exist_ok=True)
    path = f"{FOLDER}/{name}.flight{ending}"
    write_file(os.path.join(session, path), data)
    return path


def _read(module: Any) -> tuple[bytes, str]:
    """Return the first dump that holds a collective, else the first one there is, and the ending of its file."""
    first = b"", ""
    read: set[str] = set()
    for name, ending in _DUMPS:
        kind = name.replace("_json", "")
        function = getattr(module, name, None)
        if function is None or kind in read:
            continue
        read.add(kind)
        data = function()
        data = data.encode() if isinstance(data, str) else bytes(data)
        if b"profiling_name" in data:
            return data, ending
        first = first if first[0] else (data, ending)
    return first


class BlackBox:
    """The black box of one process; records go ``out``; ``note`` gives the user a message (level, text) once."""

    def __init__(
        self, session: str, out: Callable[[], deque[tuple[Any, ...]]], note: Callable[[str, str], None]
    ) -> None:
        self._session = session
        self._control = os.path.join(session, "control")
        self._out = out
        self._note = note
        self._stall = StallWatch()
        self._not_finite: set[str] = set()
        self.undo: list[Callable[[], None]] = []  # functions that undo registrations with a framework
        self.options = _options(self._control)  # enabled checks
        self._stall.min_ns = float(self.options.get("stall_s") or self._stall.min_ns / 1e9) * 1e9

    def write(self, kind: str, **fields: Any) -> None:
        """Append a record to the log."""
        self._out().append((RECORD, {"t": kind, "at": monotonic_ns(), **fields}))

    # -- in the log's thread --------------------------------------------------------------------------------

    def saw(self, steps: list[Step]) -> None:
        """Process completed steps."""
        self._stall.saw(steps)

    def poll(self, requests: Requests, writer: str, n: int, disturbed: bool) -> None:
        """Answer requests for stacks, and request those of all ranks if steps have stopped."""
        asked, requests.stacks = requests.stacks, []
        for name in asked:
            fields = self._read(name)
            if fields is not None:
                self._answer(name, writer, n, str(fields.get("cause") or ""))
                if name.startswith(_STALL):
                    self._stall.answered()  # another rank has seen it first
        stalled = None if disturbed else self._stall.found()
        if stalled is not None:
            since, median = stalled
            cause = f"no step for {since / 1e9:.0f} s; the median step takes {_in_words(median)}"
            self._ask_all(f"{_STALL}{writer}-{n}", cause, writer, n)

    def _read(self, name: str) -> dict[str, Any] | None:
        """Return a request; None = it is older than this process, or was removed."""
        try:
            with open(os.path.join(self._control, f"stacks-{name}.json"), encoding="utf-8") as file:
                fields = loads(file.read())
            if abs(time.time() - float(fields.get("unix_ns", 0)) / 1e9) > _OLD_S:
                return None
        except (OSError, ValueError, TypeError, AttributeError):
            return None
        return fields  # type: ignore[no-any-return]

    def _ask_all(self, name: str, cause: str, writer: str, n: int) -> None:
        """Put a request into ``control/`` as a user would, so that every rank answers."""
        path = os.path.join(self._control, f"stacks-{name}.json")
        request = {"id": name, "unix_ns": time.time_ns(), "cause": cause}
        try:
            with open(f"{path}.{os.getpid()}", "x", encoding="utf-8") as file:
                file.write(dumps(request))
            os.rename(file.name, path)
        except OSError:  # a full disk: at least this process answers
            self._answer(name, writer, n, cause)

    def _answer(self, name: str, writer: str, n: int, cause: str) -> None:
        """Write the stacks of all threads of this process, and the collectives that it has entered."""
        quiet = self._stall.since_ns() > _QUIET_NS
        self.write("stacks", id=name, n=n, cause=cause, threads=threads_now())
        if quiet:
            # Not during steps: it queries events on the device, which would break a graph capture.
            try:
                path = dump(self._session, f"{name}-{writer}")
            except Exception as error:
                self._note("warn", f"the Flight Recorder could not be read: {error!r}")
                return
            if path:
                self.write("flight", id=name, path=path)

    # -- on the thread that trains --------------------------------------------------------------------------

    def not_finite(self, what: str, n: int, value: str) -> None:
        """Record a NaN or infinite value, once per name, such as ``metric loss`` or ``gradient of layer.weight``."""
        if what not in self._not_finite and len(self._not_finite) < 100:
            self._not_finite.add(what)
            self.write("nan", n=n, what=what, value=value)

    def watch_torch(self, runtime: Any, torch: Any) -> None:
        """Install the checks for PyTorch."""
        with own_errors_reported(
            lambda error: self._note("warn", f"the black box cannot watch PyTorch: {error!r}")
        ):
            from .frameworks.torch_black_box import OutOfMemoryWatch, watch_for_nan

            OutOfMemoryWatch(runtime, torch, history=bool(self.options.get("memory")))
            if self.options.get("nan"):
                watch_for_nan(runtime, torch)

    def ending(self, n: int) -> None:
        """Record the origin of the exception that ends the script."""
        error = getattr(sys, "last_value", None)  # set when an exception reached the top
        if error is None:
            return
        with own_errors_dropped():
            frames = frames_of_error(error)
            thread = {"id": 0, "name": "MainThread", "main": True, "frames": frames}
            cause = f"ended by {type(error).__name__}"
            self.write("stacks", id="end", n=n, cause=cause, threads=[thread])


def _options(control: str) -> dict[str, Any]:
    """Return the enabled checks of the black box."""
    try:
        with open(os.path.join(control, OPTIONS), encoding="utf-8") as file:
            found = loads(file.read())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _in_words(ns: float) -> str:
    return f"{ns / 1e6:.0f} ms" if ns < 1e9 else f"{ns / 1e9:.1f} s"
