"""Lines that made the allocator call the driver, from the history of PyTorch's allocator.

``cudaMalloc`` makes the host wait, and PyTorch has no warning for it. Its caching allocator can record the Python
stack of every allocation; those that called the driver (``segment_alloc``) count. Recording slows every allocation
down (on an H200 it doubled the host time lost after a sync in a ResNet-18 step), so it runs only in captures with
memory.
"""

from __future__ import annotations

import threading
import time
from typing import Any

#: Maximum number of allocations per capture window; the oldest are dropped.
_MOST_ENTRIES = 200_000
#: The probe itself records the history of the whole run (see :mod:`.out_of_memory`): a capture uses that.
kept_for_black_box = False


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
        self._record("all", context="all", stacks="python", max_entries=_MOST_ENTRIES)
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
