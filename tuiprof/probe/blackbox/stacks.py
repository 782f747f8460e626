"""The Python stack of every thread of this process, read by a thread of the probe without signals or stops."""

from __future__ import annotations

import os
import sys
import threading
from types import FrameType
from typing import Any

_MOST_THREADS = 64
_MOST_FRAMES = 100
_MOST_TEXT = 500
_OWN_FILES = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_THREAD_START = os.path.join(_OWN_FILES, "guest", "threads.py")

Frame = tuple[str, int, str]  # file, line, function


def threads_now() -> list[dict[str, Any]]:
    """Return the threads of this process that run Python, those of the probe left out.

    Returns:
        ``id`` (the system's number; 0 = unknown), ``name``, ``main`` and ``frames`` (file, line, function; innermost
        first, the probe's own left out) of each, the main thread first.
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
                "name": str(getattr(thread, "name", ""))[:_MOST_TEXT],
                "main": ident == main,
                "frames": frames,
            }
        )
    found.sort(key=lambda thread: (not thread["main"], thread["id"]))
    return found[:_MOST_THREADS]


def frames_of(frame: FrameType | None) -> list[Frame] | None:
    """Return a stack, innermost frame first; None = of a thread of the probe."""
    frames: list[Frame] = []
    outermost = ""
    while frame is not None:
        code = frame.f_code
        outermost = code.co_filename
        if len(frames) < _MOST_FRAMES and not outermost.startswith(_OWN_FILES):
            frames.append(_frame(code, frame.f_lineno))
        frame = frame.f_back
    return None if outermost == _THREAD_START else frames


def frames_of_error(error: BaseException) -> list[Frame]:
    """Return where an exception was raised: the stack of its traceback, innermost frame first."""
    frames: list[Frame] = []
    entry = error.__traceback__
    while entry is not None:
        if not entry.tb_frame.f_code.co_filename.startswith(_OWN_FILES):
            frames.append(_frame(entry.tb_frame.f_code, entry.tb_lineno))
        entry = entry.tb_next
    return frames[::-1][:_MOST_FRAMES]


def _frame(code: Any, line: int | None) -> Frame:
    name = str(getattr(code, "co_qualname", code.co_name))
    return code.co_filename[:_MOST_TEXT], line or 0, name[:_MOST_TEXT]
