"""What the figures of a report refer to: the window, its steps, and the name of the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tuiprof.model import Trace, Unavailable, Window
from tuiprof.model.intervals import Ints, Mask, clip, distinct, member, total
from tuiprof.model.trace import cached_on_trace


@dataclass(frozen=True, slots=True)
class Scope:
    """Window and steps of a report."""

    trace: Trace
    window: Window  # the window asked for
    low: int  # its first instant, ns
    high: int  # its end, ns
    steps: Ints  # indices into ``trace.steps`` of the steps wholly inside the window

    @classmethod
    def of(cls, trace: Trace, window: Window) -> Scope:
        """Compute the scope of a window."""
        low, high = trace.bounds(window)
        return cls(trace, window, low, high, trace.steps.inside(low, high))

    @property
    def step_count(self) -> int:
        """Number of whole steps in the window; 0 = the trace marks none here."""
        return len(self.steps)

    @property
    def step_time_ns(self) -> int:
        """Summed length of the steps, ns."""
        return total(self.trace.steps.starts[self.steps], self.trace.steps.ends[self.steps])

    def in_steps(self, rows: Ints) -> Mask:
        """Return which events belong to a whole step of the window, by launch for device work."""
        return member(self.trace.steps.step_of[rows], self.steps)

    def per_step(self, values: npt.ArrayLike, rows: Ints) -> float | None:
        """Return the sum of the values of events (``rows``) in each step; None if there are no steps."""
        if not self.step_count:
            return None
        return float(np.asarray(values)[self.in_steps(rows)].sum()) / self.step_count

    def device_span(self, device: int) -> tuple[int, int]:
        """Return first start and last end of a device's work in the window, ns; equal when it did none."""
        starts, ends = clip(*self.trace.busy(device), self.low, self.high)
        return (int(starts[0]), int(ends[-1])) if len(starts) else (self.low, self.low)

    @property
    def over(self) -> str:
        """The basis of the figures, for a sentence: ``"4 steps"`` or ``"this window"``."""
        if self.step_count:
            return f"{self.step_count} step" + ("s" if self.step_count > 1 else "")
        return self.window.label or ("the trace" if self.window.whole else "this window")


@cached_on_trace
def device_word(trace: Trace) -> str:
    """Return the name of a device for a sentence: ``GPU`` with CUDA or HIP calls, else its type."""
    if trace.dispatched is not None and not trace.device_indices:
        return "CPU"
    calls = distinct(trace.name_codes[trace.host_calls])
    gpu = any(trace.names[code].startswith(("cuda", "cu", "hip")) for code in calls.tolist())
    return "GPU" if gpu else "device"


def no_device(trace: Trace, name: str, cpu_only: str, instead: str) -> Unavailable:
    """Return the reason why a device analysis is unavailable for a trace without device work."""
    remarks = trace.trust.remarks
    damage = next((remark for remark in remarks if remark.code in ("truncated", "damaged")), None)
    if damage is not None:
        return Unavailable(
            name, f"no device activity in the part that could be read: {damage.text}", damage.remedy
        )
    lost = next((remark for remark in remarks if remark.code == "no-device-work"), None)
    if lost is not None:
        return Unavailable(name, lost.text, lost.remedy)
    return Unavailable(name, f"a CPU-only trace: {cpu_only}", instead)


def plural(count: float, word: str) -> str:
    """Return a count with its noun: ``1 sync``, ``2.5 syncs``, ``1 318 syncs``."""
    from tuiprof.model.units import format_count

    text = format_count(round(count, 2))
    if text == "1":
        return f"1 {word}"
    return f"{text} {word}" + ("es" if word.endswith(("s", "ch")) else "s")
