"""Device time of steps and the state of the allocator, without waiting for the device.

An event is recorded at a step boundary on the current stream. Some boundaries later, when ``query()`` reports
completion, the time between two neighbors is read. Events are read on the thread that makes the steps: a query from
another thread would break a running CUDA graph capture.

An event costs the host a few microseconds, too much for every short step. So the cost of a boundary is measured, and
if it exceeds :data:`_BUDGET_NS` or 0.1 % of a step on average, only one step in 4, 8, … is timed (one in 2 would
save nothing: a single timed step needs an event on either side). The record of each timed step has this number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from ctypes import py_object, pythonapi
from random import Random
from time import monotonic_ns
from typing import Any

from ..events import DEVICE
from ..runtime import Runtime

_BUDGET_NS = 2_000
_SHARE_OF_STEP = 0.001
_WINDOW = 32  # boundaries after which the cost is judged
_MAX_INTERVAL = 4096
# A longer boundary was blocked by a full launch queue, as the script's next launch would have been: not a cost.
_BLOCKED_NS = 200_000
_READ_AT_ONCE = 8
_READ_AFTER_NS = 100_000_000
_MAX_PENDING = 4096
_MAX_POOLED = 64


class TorchDevice:
    """Device events of the steps, on the CUDA (or ROCm) device that is current at their ends."""

    def __init__(self, runtime: Runtime, torch: Any) -> None:
        self._hook = runtime.hook("torch.cuda.Event")
        self._memory_hook = runtime.hook("torch.cuda.memory_stats")
        self._names_hook = runtime.hook("torch.cuda.get_device_properties")
        self._steps = runtime.steps
        self._cuda = torch.cuda
        # Python wrappers cost two to five times as much, torch.cuda.current_stream() 30 µs.
        self._capturing = getattr(
            torch._C,
            "_cuda_isCurrentStreamCapturing",
            getattr(torch.cuda, "is_current_stream_capturing", None),
        )
        self._raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self._current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
        self.cost_ns = 0  # host time spent at the step boundaries so far, ns
        self.every = 1  # on average, every n-th step is timed
        self._intervals = Random(0)  # not the script's random numbers
        self._told: set[int] = set()
        self._forget_events()
        self._forget_costs()

    def _forget_events(self) -> None:
        self._pool: list[Any] = []
        self.is_used = False  # whether the script uses the device
        # step, its first event, its last event, the stream, whether the last one begins the next step, `every` then
        self._pending: deque[tuple[int, Any, Any, Any, bool, int]] = deque()
        self._last: Any = None
        self._last_n = -1  # the step that ended with it
        self._index = -1
        self._stream: Any = None
        self._stream_id = -1
        self._read_at = 0

    def _forget_costs(self) -> None:
        self._costs: list[int] = []
        self._step_times: list[int] = []
        self._ended_n = -1
        self._ended_at = 0

    def forget(self) -> None:
        """Release the parent's events in a forked child without destroying them.

        CUDA does not survive a fork: destroying an event in a child, such as a DataLoader worker, aborts it. So the
        child keeps them forever.
        """
        pending = (event for _, first, second, *_ in self._pending for event in (first, second))
        for event in (*self._pool, *pending, self._last):
            if event is not None:
                pythonapi.Py_IncRef(py_object(event))
        self._forget_events()
        self._forget_costs()
        self._told = set()
        self.every = 1

    def boundary(self, n: int) -> int:
        """Record the end of a step, read the events that completed, and return the next step whose end is wanted."""
        cuda = self._cuda
        if not self._hook.on:
            return 1 << 62
        if not self.is_used:
            if not cuda.is_initialized():
                return n + 8
            self.is_used = True
        began = monotonic_ns()
        try:
            self._look_around()
            if self._captures():
                self._last = None  # a graph is being captured: an event would become part of it
                return n + 1
            event = self._pool.pop() if self._pool else cuda.Event(enable_timing=True)
            event.record(self._stream)  # twice as fast as letting it look the stream up
            every = self.every
            timed = self._last is not None and self._last_n == n - 1
            if timed and len(self._pending) < _MAX_PENDING:
                self._pending.append((n, self._last, event, self._stream, every == 1, every))
            if timed and every > 1:
                self._last = None
                # Not at equal intervals: all of them could be the same step of a loop within the training loop.
                following = n - 1 + self._intervals.randrange(every // 2 + 1, every * 3 // 2)
            else:
                self._last = event
                self._last_n = n
                following = n + 1
            if len(self._pending) >= _READ_AT_ONCE or (
                self._pending and began - self._read_at > _READ_AFTER_NS
            ):
                self._read_at = began
                self._read(_READ_AT_ONCE * 2)
        except Exception:
            self._hook.failed()
            return 1 << 62
        ended = monotonic_ns()
        if self._ended_n == n - 1:
            self._step_times.append(began - self._ended_at)
        self._ended_n, self._ended_at = n, ended
        if ended - began < _BLOCKED_NS:
            self.cost_ns += ended - began
            self._costs.append(ended - began)
            if len(self._costs) >= _WINDOW:
                self._judge()
        return following

    def _look_around(self) -> None:
        """Determine the current device and stream."""
        index = self._current_device()
        if index != self._index:
            self._index = index
            self._last = None
            self._pool = []
            self._stream_id = -1
        stream_id = -2 if self._raw_stream is None else self._raw_stream(index)
        if stream_id != self._stream_id or stream_id == -2:
            self._stream_id = stream_id
            self._stream = self._cuda.current_stream()

    def _captures(self) -> bool:
        """Whether a graph is being captured on the current stream; the default stream cannot, and is not asked."""
        return self._stream_id != 0 and self._capturing is not None and self._capturing()

    def captures_graph(self) -> bool:
        """Whether a graph is being captured on the current stream, which any profiler would end."""
        return self._capturing is not None and self._cuda.is_initialized() and bool(self._capturing())

    def _judge(self) -> None:
        """Adjust how many steps are timed, by the cost of the boundaries since the last time and the step time."""
        step_times = sorted(self._step_times)
        boundary_ns = sum(self._costs) / len(self._costs)
        self._costs, self._step_times = [], []
        if not step_times:
            return
        # The median: an evaluation between two steps makes none of them longer.
        allowed_ns = max(_BUDGET_NS, step_times[len(step_times) // 2] * _SHARE_OF_STEP)
        every = 1
        # Hysteresis: timing more steps requires a clear margin.
        while _cost_a_step(boundary_ns, every) > allowed_ns * (0.7 if every < self.every else 1.0):
            every = 4 if every == 1 else every * 2
        self.every = min(every, _MAX_INTERVAL)

    def drop_pending(self) -> None:
        """Discard unread steps: their numbers are withdrawn."""
        self._pending.clear()
        self._last = None

    def break_chain(self) -> None:
        """Restart the running device step at a new event: the time until now belongs to no step."""
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
        self._hook.call(self._read, _MAX_PENDING)

    def _read(self, limit: int) -> None:
        """Move up to ``limit`` finished device steps to the log."""
        pending = self._pending
        pool = self._pool
        limit = min(limit, len(pending))
        if not limit:
            return
        _, _, newest, stream_of_newest, _, _ = pending[limit - 1]
        known = newest.query()  # then all before it on its stream have happened
        for _ in range(limit):
            n, first, second, stream, shared, every = pending[0]
            if not (known and stream is stream_of_newest) and not second.query():
                return
            pending.popleft()
            # Milliseconds as a float32 with a resolution of about 0.5 µs.
            self._steps.out.append((DEVICE, n, int(first.elapsed_time(second) * 1e6), every))
            if len(pool) < _MAX_POOLED:
                pool.append(first)
                if not shared:
                    pool.append(second)

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

    def names(self, indices: Iterable[int]) -> list[tuple[int, str, str]]:
        """Return (device, UUID, PCI address) of the devices not reported before.

        An index counts what the environment lets the process see; the other two are the device's own, which every
        monitor knows. PyTorch has them at hand: it read the properties of all devices when it woke the driver.
        """
        found: list[tuple[int, str, str]] = []
        if not self._names_hook.on:
            return found
        try:
            for index in indices:
                if index in self._told:
                    continue
                self._told.add(index)
                properties = self._cuda.get_device_properties(index)
                address = [getattr(properties, f"pci_{part}_id", -1) for part in ("domain", "bus", "device")]
                pci = "" if -1 in address else "{:04x}:{:02x}:{:02x}".format(*address)
                found.append((index, str(getattr(properties, "uuid", "")), pci))
        except Exception:
            self._names_hook.failed()
        return found


def _cost_a_step(boundary_ns: float, every: int) -> float:
    """Return the mean cost of a step, ns."""
    return boundary_ns if every == 1 else boundary_ns * 2 / every
