"""Step times, on the host, or on the device if the host runs ahead of it.

Launch calls return before their work is done. A host that never waits marks the end of a step while the device has
only started it, so in a short trace host steps are shorter than the actual step time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from tuiprof.analyses.shared.scope import Scope
from tuiprof.model import Rule, Trace, Window
from tuiprof.model.intervals import Coverage, Ints, union
from tuiprof.model.trace import cached_on_trace

#: The host runs ahead if a device step takes this many times as long as a host step.
AHEAD: Final = 1.05

RULE: Final = Rule(
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
    return StepTimes((steps.ends - steps.starts)[scope.steps], _device(scope))


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
