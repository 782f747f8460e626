"""How long a step took on the device, and what the allocator holds, without ever waiting for the device.

An event is recorded at each step boundary on the current stream. Some boundaries later, when ``query()`` says
that it has happened, the time between two neighbours is read. Events are read on the thread that steps: a
query from another thread would break a CUDA graph capture that is going on.
"""

from __future__ import annotations

from collections import deque
from ctypes import py_object, pythonapi
from typing import Any

from .runtime import Runtime
from .steps import DEVICE

_READ_AT_ONCE = 4
_MOST_PENDING = 4096


class TorchDevice:
    """Device events of the steps, on the CUDA (or ROCm) device that is current at their ends.

    Args:
        runtime: The probe.
        torch: The module.
    """

    def __init__(self, runtime: Runtime, torch: Any) -> None:
        self._hook = runtime.hook("torch.cuda.Event")
        self._memory_hook = runtime.hook("torch.cuda.memory_stats")
        self._steps = runtime.steps
        self._cuda = torch.cuda
        self._capturing = getattr(torch.cuda, "is_current_stream_capturing", None)
        self._pool: list[Any] = []
        self._pending: deque[tuple[int, Any, Any]] = deque()
        self._last: Any = None
        self._index = -1

    def forget(self) -> None:
        """Let go of the events of the parent process (in a forked child) without destroying them.

        CUDA does not survive a fork: destroying an event in a child, such as a DataLoader worker, aborts it. So
        the child keeps them for ever.
        """
        for event in (*self._pool, *(event for _, *pair in self._pending for event in pair), self._last):
            if event is not None:
                pythonapi.Py_IncRef(py_object(event))
        self._pool = []
        self._pending = deque()
        self._last = None

    def boundary(self, n: int) -> None:
        """Record the end of a step and read what has become known.

        Args:
            n: The step that ended.
        """
        cuda = self._cuda
        if not self._hook.on or not cuda.is_initialized():
            return
        try:
            if self._capturing is not None and self._capturing():
                self._last = None  # a graph is being captured: an event would become part of it
                return
            index = cuda.current_device()
            if index != self._index:
                self._index = index
                self._last = None
                self._pool = []
            event = self._pool.pop() if self._pool else cuda.Event(enable_timing=True)
            event.record(cuda.current_stream())  # twice as fast as letting it look the stream up
            if self._last is not None and len(self._pending) < _MOST_PENDING:
                self._pending.append((n, self._last, event))
            self._last = event
            if self._pending:
                self._read(_READ_AT_ONCE)
        except Exception:
            self._hook.failed()

    def break_chain(self) -> None:
        """Let the next device step begin at a new event: what comes now belongs to no step."""
        if self._last is None:
            return
        try:
            if self._capturing is not None and self._capturing():
                self._last = None
                return
            self._last = self._cuda.Event(enable_timing=True)
            self._last.record(self._cuda.current_stream())
        except Exception:
            self._hook.failed()

    def read(self) -> None:
        """Read all that have happened (at the end of the script)."""
        if self._hook.on:
            try:
                self._read(_MOST_PENDING)
            except Exception:
                self._hook.failed()

    def _read(self, most: int) -> None:
        """Move up to ``most`` finished device steps to the log."""
        pending = self._pending
        for _ in range(min(most, len(pending))):
            n, first, second = pending[0]
            if not second.query():
                return
            pending.popleft()
            # Milliseconds as a float32 with a resolution of about 0.5 µs.
            self._steps.out.append((DEVICE, n, int(first.elapsed_time(second) * 1e6)))
            if len(self._pool) < _READ_AT_ONCE * 4:
                self._pool.append(first)

    def memory(self) -> list[tuple[int, int, int, int]]:
        """Return (device, allocated, reserved, peak) in bytes of the devices this process uses.

        Reads the allocator's own counters on the host; the device is not asked.
        """
        cuda = self._cuda
        if not self._memory_hook.on or not cuda.is_initialized():
            return []
        found: list[tuple[int, int, int, int]] = []
        try:
            for index in range(cuda.device_count()):
                stats = cuda.memory_stats_as_nested_dict(index)
                if stats:
                    allocated = stats["allocated_bytes"]["all"]
                    reserved = stats["reserved_bytes"]["all"]
                    if reserved["peak"]:
                        numbers = allocated["current"], reserved["current"], allocated["peak"]
                        found.append((index, *map(int, numbers)))  # type: ignore[arg-type]
        except Exception:
            self._memory_hook.failed()
        return found
