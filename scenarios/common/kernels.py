"""Timing one kernel: with a cold and with a warm cache, called and replayed, beside what it must move and compute.

A ladder of kernels has no training loop: a step is one call. The marked steps (for the live view and for captures) come
first; after them the calls are timed by a clock that fits the framework, see ``common.clocks``.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from common.clocks import Clock, NotReplayable

if TYPE_CHECKING:
    from common.scenario import Run

try:  # the scripts run without tuiprof too; under it, the steps appear on its live screen
    import tuiprof
    from tuiprof.whatif.chips import find_chip
except ImportError:
    tuiprof = None

#: No timing takes longer than this, unless five calls do.
LONGEST_S = 2


@dataclass(frozen=True)
class Work:
    """What a call must do at least, however it is written.

    Attributes:
        moved_bytes: Inputs read once and outputs written once.
        operations: Arithmetic operations; a multiply-add is two.
        arithmetic: Type they are done in, which says against which peak of the chip they are held: ``"float32"``,
            ``"bfloat16"`` or ``"int8"``.
    """

    moved_bytes: int
    operations: int
    arithmetic: str


@dataclass(frozen=True)
class Kernel:
    """A call to be timed.

    Attributes:
        function: The kernel; every call with the same arguments does the same.
        arguments: Its inputs, where they are needed.
        clock: How its calls are timed.
        work: What a call must do.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    clock: Clock
    work: Work

    def __call__(self) -> Any:
        """Return the output, which the device may still be computing."""
        return self.function(*self.arguments)


@dataclass(frozen=True)
class Timing:
    """The time of a call.

    Attributes:
        median_ms: Median.
        low_ms: Lower end of its interval.
        high_ms: Upper end.
        calls: How many were timed.
    """

    median_ms: float
    low_ms: float
    high_ms: float
    calls: int

    @classmethod
    def of(cls, samples_ms: Sequence[float]) -> Timing:
        """Summarise the times of calls.

        Args:
            samples_ms: One or more, in milliseconds.

        Returns:
            Their median with the order statistics that hold it in 95 of 100 cases (normal approximation of the
            binomial distribution); of few samples, their whole range.
        """
        ordered, count = sorted(samples_ms), len(samples_ms)
        left_out = max(0, math.floor(count / 2 - 0.98 * math.sqrt(count)))
        return cls(statistics.median(ordered), ordered[left_out], ordered[count - 1 - left_out], count)

    def __str__(self) -> str:
        """Median and interval, in microseconds below a millisecond."""
        scale, unit = (1e3, "µs") if self.median_ms < 1 else (1, "ms")
        low, high = self.low_ms * scale, self.high_ms * scale
        return f"{self.median_ms * scale:.3f} {unit} ({low:.3f} … {high:.3f}, {self.calls} calls)"

    def result(self) -> dict[str, float]:
        """Return it as plain data."""
        return {"median": self.median_ms, "low": self.low_ms, "high": self.high_ms, "calls": self.calls}


@dataclass(frozen=True)
class Measured:
    """What was measured of a kernel; made by :func:`measure`.

    Attributes:
        kernel: The kernel.
        steps: Marked steps that were counted.
        warmup: Calls before them.
        timings: ``cold``, ``warm``, ``replayed``, ``host`` with their times; what cannot be told is left out.
        reasons: Why something was left out, by name.
        parts: Warm times of further calls, by name.
    """

    kernel: Kernel
    steps: int
    warmup: int
    timings: dict[str, Timing]
    reasons: dict[str, str]
    parts: dict[str, Timing]

    def result(self, price: float | None = None) -> dict[str, Any]:
        """Print the times and return them as fields of the result line."""
        clock, work = self.kernel.clock, self.kernel.work
        for name, timing in self.timings.items():
            print(f"{name:>9}: {timing}")
        for name, timing in self.parts.items():
            print(f"{name}: {timing}")
        for name, reason in self.reasons.items():
            print(f"{name:>9}: not measured, {reason}")
        cold = self.timings.get("cold")
        best = cold or self.timings.get("replayed") or self.timings["warm"]
        print(f"{clock.method}; {_rates(work, best, cold is not None, clock.device)}")
        times = {f"{name}_ms": timing.result() for name, timing in self.timings.items()}
        return {
            "steps": self.timings["warm"].calls,
            "warmup": self.warmup + self.steps,
            "step_ms": self.timings["warm"].median_ms,
            "peak_memory_bytes": clock.peak_memory_bytes(),
            "device": clock.device,
            **({"interpreted": True} if clock.interpreted else {}),
            **clock.software,
            **(
                {"ranges_ms": {name: part.median_ms for name, part in self.parts.items()}}
                if self.parts
                else {}
            ),
            "kernel": {
                "moved_bytes": work.moved_bytes,
                "operations": work.operations,
                "arithmetic": work.arithmetic,
                "method": clock.method,
                **times,
                **({"not_measured": self.reasons} if self.reasons else {}),
            },
        }


def measure(run: Run, kernel: Kernel, parts: Mapping[str, Callable[[], Any]] | None = None) -> Measured:
    """Call a kernel as often as the run says, each call a step; then time its calls one by one.

    Args:
        run: What was asked for; ``run.size.calls`` are timed, fewer of those that take long.
        kernel: The kernel.
        parts: Further calls of which the warm time is wanted, by name.
    """
    clock = kernel.clock
    for _ in range(run.steps):
        clock.wait_if_host(kernel())
        if tuiprof is not None:
            tuiprof.step()
    clock.wait(kernel())
    start = time.perf_counter()
    clock.wait(kernel())
    calls = max(5, min(run.size.calls, int(LONGEST_S / (time.perf_counter() - start))))

    timings, reasons = {}, {}
    timings["warm"] = Timing.of(clock.samples_ms(kernel, calls, cold=False))
    if clock.can_flush:
        timings["cold"] = Timing.of(clock.samples_ms(kernel, calls, cold=True))
    else:
        reasons["cold"] = clock.why_no_flush
    try:
        timings["replayed"] = Timing.of(clock.replayed_ms(kernel.function, kernel.arguments, calls))
    except NotReplayable as error:
        reasons["replayed"] = str(error)
    if clock.asynchronous:
        timings["host"] = Timing.of(clock.host_ms(kernel, calls))
    further = {}
    for name, call in (parts or {}).items():
        clock.wait(call())
        further[name] = Timing.of(clock.samples_ms(call, calls, cold=False))
    return Measured(kernel, run.steps - run.warmup, run.warmup, timings, reasons, further)


def _rates(work: Work, timing: Timing, cold: bool, device: str) -> str:
    """Return the achieved rates in words, with the chip's where tuiprof knows it."""
    seconds = timing.median_ms / 1e3
    words = [
        f"{work.moved_bytes / seconds / 1e9:.4g} GB/s",
        f"{work.operations / seconds / 1e12:.4g} T {work.arithmetic} operations/s",
    ]
    chip = find_chip(device) if tuiprof is not None else None
    if chip is None:
        return ", ".join(words)
    if cold:  # from a warm cache, less than everything comes from memory
        words[0] += f" = {work.moved_bytes / seconds / chip.bytes_per_s:.1%} of the chip's"
    if peak := chip.operations_per_s.get(work.arithmetic):
        words[1] += f" = {work.operations / seconds / peak:.1%} of the chip's"
    return ", ".join(words)
