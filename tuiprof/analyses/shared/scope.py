"""What the figures of a report refer to: the window, its steps and their times, and the name of the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tuiprof.model import Rule, Trace, Unavailable, Window
from tuiprof.model.intervals import Coverage, Ints, Mask, clip, distinct, member, total, union
from tuiprof.model.trace import cached_on_trace
from tuiprof.model.units import plural


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
            return plural(self.step_count, "step")
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


# -- step times ---------------------------------------------------------------------------------------------
#
# Launch calls return before their work is done. A host that never waits marks the end of a step while the device has
# only started it, so in a short trace host steps are shorter than the actual step time.

#: The host runs ahead if a device step takes this many times as long as a host step.
AHEAD: Final = 1.05

PERIOD_RULE: Final = Rule(
    "step period",
    f"The host's median step, or the device's if that is longer by {(AHEAD - 1) * 100:.0f} % or more: "
    "the host then runs ahead. A device step lasts from the start of the first work a step launched to "
    "the start of the next step's; the last one, to the end of its last work. Without a device, work "
    "that XLA runs asynchronously on the CPU counts as device work.",
)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Step times of a scope."""

    host: Ints  # from the beginning to the end of each step's marker, ns, shape ``(steps,)``
    device: Ints  # the same steps on the device, ns; empty = not known

    @property
    def host_ahead(self) -> bool:
        """Whether the host marks steps faster than the device completes them."""
        return bool(len(self.device)) and float(np.median(self.device)) >= AHEAD * float(np.median(self.host))

    @property
    def period(self) -> Ints:
        """Step times, ns: on the device if the host runs ahead."""
        return self.device if self.host_ahead else self.host


def step_times(scope: Scope) -> StepTimes:
    """Measure the steps of a scope on the host and on the device."""
    steps = scope.trace.steps
    return StepTimes(steps.lengths[scope.steps], _device(scope))


@cached_on_trace
def step_period_ns(trace: Trace) -> float | None:
    """Return the step period of a whole trace, ns; None = it marks no steps."""
    period = step_times(Scope.of(trace, Window())).period
    return float(np.median(period)) if len(period) else None


def _device(scope: Scope) -> Ints:
    trace, wanted = scope.trace, scope.steps
    nothing = np.empty(0, dtype=np.int64)
    # Only work with a launch in the trace has a step.
    work = trace.device_work[trace.links.launch_of[trace.device_work] >= 0]
    if not len(trace.device_work) and trace.dispatched is not None:
        work = trace.dispatched["work"].to_numpy()
    step_of = trace.steps.step_of[work]
    work = work[step_of >= 0]
    if len(wanted) < 2 or not len(work):
        return nothing
    step_of = trace.steps.step_of[work]
    first = np.full(len(trace.steps), np.iinfo(np.int64).max)
    last = np.full(len(trace.steps), np.iinfo(np.int64).min)
    np.minimum.at(first, step_of, trace.starts[work])
    np.maximum.at(last, step_of, trace.ends[work])
    first, last = first[wanted], last[wanted]
    behind = last > trace.steps.ends[wanted]
    if not len(trace.device_work) and 2 * behind.sum() <= len(behind):
        return nothing  # the CPU works inside the steps: time between them is host time
    if (last < first).any():  # a step without work
        return nothing
    times: Ints = np.diff(np.append(first, last[-1]))
    return times if (times > 0).all() else nothing  # steps of several threads, executed in another order


def host_time_by_step(scope: Scope, starts: Ints, ends: Ints) -> Ints:
    """Return the length of the union of host intervals inside each step, ns."""
    steps = scope.trace.steps
    coverage = Coverage(*union(starts, ends))
    return coverage.between(steps.starts[scope.steps], steps.ends[scope.steps])
