"""Whether a step is bound by launching kernels, and by which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from tuiprof.analyses import Analysis
from tuiprof.analyses.launches import figures as _launch_figures
from tuiprof.analyses.launches import table as _launch_table
from tuiprof.analyses.launches.table import Launches, QueueDepth
from tuiprof.analyses.shared import idle as _idle
from tuiprof.analyses.shared.launching import launched_faster
from tuiprof.analyses.shared.replay import replayed
from tuiprof.analyses.shared.scope import Scope, device_word, no_device, plural
from tuiprof.model import Fact, Report, Rule, Trace, Unavailable, Verdict, Window
from tuiprof.model.report import Level
from tuiprof.model.units import format_ns, format_share
from tuiprof.whatif.calibration import Calibrated

NAME, TITLE = "kernel_launches", "Launches"

#: Launch-bound from this share of device time idle because the host had not launched yet.
BOUND_SHARE = 0.20
#: Launch-blocking from this share of launches whose kernel had ended when the call returned.
BLOCKING_SHARE, BLOCKING_LEAST = 0.9, 20
#: Code of the verdict that every launch waits for its kernel.
LAUNCH_BLOCKING: Final = "launch-blocking"

_RULES = (
    Rule(
        "launch",
        "A runtime or driver call whose correlation matches device work. A graph launch counts as one "
        "launch of many kernels.",
    ),
    Rule(
        "launch latency",
        "Start of the first work launched minus end of the call. Negative = it began before the call "
        "returned; if before the call began, the clocks differ. Both are counted and not clipped to 0. "
        "With work queued it is mostly queueing time: `unqueued` covers only launches with nothing "
        "queued or running.",
    ),
    Rule("queue depth", "Device events whose launch call has begun and that have not finished."),
    Rule(
        "launch-bound",
        f"Without the profiler, a step would be at least {format_share(BOUND_SHARE)} shorter if "
        "operators, Python and launch calls took no host time (waits and data loading stay), as the "
        "replayed step shows. If it cannot be replayed: the device is idle for that share of the "
        "captured time, between its first and last work, while the host runs operators, Python or "
        "calls before the next launch, or the launch itself.",
    ),
    Rule(
        "launch-blocking",
        f"{format_share(BLOCKING_SHARE)} or more of at least {BLOCKING_LEAST} kernels had finished "
        "when their launch call returned: CUDA_LAUNCH_BLOCKING=1 or its equivalent.",
    ),
    Rule(
        "host time in launches",
        "Time in launch calls. Copies that wait for the device are syncs and do not count, nor do they "
        "in `shorter than its launch`, which compares a kernel with its own launch call (graph "
        "launches excluded).",
    ),
    Rule(
        "sequences",
        "Kernels below 10 µs that repeat in the same order at least three times: a loop of up to 64 "
        "kernels, or a chain of elementwise, reduction, norm and copy kernels. Host and idle time "
        "overlap: do not add them.",
    ),
)


@dataclass(frozen=True, slots=True)
class _Figures:
    scope: Scope
    launches: Launches
    gaps: list[_idle.Gaps]
    depths: list[QueueDepth]
    captured_bound_ns: int
    span_ns: int
    step: Calibrated | None
    bound_ns: float | None
    blocking_share: float
    kernels: int

    @property
    def captured_bound_share(self) -> float:
        return self.captured_bound_ns / self.span_ns if self.span_ns else 0.0

    @property
    def bound_share(self) -> float:
        if self.step is None or self.bound_ns is None:
            return self.captured_bound_share
        # A busy device does not wait for launches, even if its streams could run in parallel.
        idle = 1 - self.step.graph.device_busy_ns / max(self.step.step_ns, 1.0)
        return min(self.bound_ns / max(self.step.step_ns, 1.0), max(idle, 0.0))

    @property
    def bound(self) -> bool:
        return self.bound_share >= BOUND_SHARE

    @property
    def blocking(self) -> bool:
        return self.kernels >= BLOCKING_LEAST and self.blocking_share >= BLOCKING_SHARE


def run(trace: Trace, window: Window) -> Report | Unavailable:
    """Measure launches and judge whether they bound the step."""
    scope = Scope.of(trace, window)
    launches = _launch_table.launches(trace, scope.low, scope.high)
    if not len(launches.rows):
        return _unavailable(trace)
    gaps = [_idle.gaps(trace, device, scope.low, scope.high) for device in trace.device_indices]
    gaps = [item for item in gaps if item.high > item.low]
    if not gaps:
        return Unavailable(
            NAME, "no device works in this window: what it launches runs later", "choose a wider window"
        )
    depths = [_launch_table.queue_depth(trace, item.device, item.low, item.high) for item in gaps]
    kernels = trace.is_category("kernel", "collective")[launches.first_work]
    ended = (trace.ends[launches.first_work] <= trace.ends[launches.rows])[kernels]
    step = replayed(trace) if window.whole else ""
    found = None if isinstance(step, str) else step
    figures = _Figures(
        scope,
        launches,
        gaps,
        depths,
        sum(int(item.host_bound.sum()) for item in gaps),
        sum(item.high - item.low for item in gaps),
        found,
        found.likely_ns(launched_faster(trace, 0.0)) if found is not None else None,
        float(ended.mean()) if len(ended) else 0.0,
        int(kernels.sum()),
    )
    return Report(
        NAME,
        TITLE,
        _verdict(trace, figures),
        _facts(trace, figures),
        tuple(_launch_figures.tables(trace, scope, launches, gaps, depths, BOUND_SHARE)),
        _RULES,
        tuple(_notes(trace, figures)),
        window,
    )


def _unavailable(trace: Trace) -> Unavailable:
    if not len(trace.device_work):
        return no_device(
            trace,
            NAME,
            "operators run where they are called; nothing is launched",
            "see `kernels` (operators by self time)",
        )
    if len(trace.links.launches):
        return Unavailable(NAME, "nothing is launched in this window", "choose a wider window")
    return Unavailable(
        NAME,
        "no device work has a launch call in this trace: correlations are missing",
        "record ProfilerActivity.CPU together with the device's activity",
    )


def _facts(trace: Trace, figures: _Figures) -> tuple[Fact, ...]:
    scope, launches = figures.scope, figures.launches
    rows = launches.rows
    host = np.where(launches.waits, 0, trace.ends[rows] - trace.starts[rows])
    call = None if launches.waits.all() else float(np.median(host[~launches.waits]))
    unqueued = launches.latency[(launches.depth_found == 0) & (launches.latency >= 0)]
    single = launches.work_count == 1
    work_ns = trace.ends[launches.first_work] - trace.starts[launches.first_work]
    shorter = work_ns[single] < host[single]
    kernels = trace.is_category("kernel", "collective")[launches.first_work]
    ones = np.ones(len(rows))
    work_rows = launches.rows[launches.work_launch]
    depth = figures.depths
    return (
        Fact("launch_bound", "launch-bound", "yes" if figures.bound else "no", "text", _RULES[3].text),
        Fact(
            "launch_bound_share",
            "of step waiting for launches",
            figures.bound_share,
            "share",
            _RULES[3].text,
        ),
        Fact(
            "launch_bound_ns",
            "that is",
            figures.bound_ns,
            "ns",
            "Per step, or in total if the trace marks none.",
        ),
        Fact(
            "captured_launch_bound_share",
            "waiting for launches while captured",
            figures.captured_bound_share,
            "share",
        ),
        Fact("launches_per_step", "launches a step", scope.per_step(ones, rows), "count"),
        Fact(
            "work_per_step",
            "device events a step",
            scope.per_step(np.ones(len(work_rows)), work_rows),
            "count",
        ),
        Fact("launch_host_ns_per_step", "host time in launches a step", scope.per_step(host, rows), "ns"),
        Fact("launches", "launches in all", len(rows), "count"),
        Fact("launch_host_ns", "host time in launches", int(host.sum()), "ns", "Summed over all threads."),
        Fact("launch_call_median_ns", "launch call, median", call, "ns"),
        Fact("latency_median_ns", "latency, median", float(np.median(launches.latency)), "ns"),
        Fact(
            "latency_unqueued_median_ns",
            "unqueued",
            float(np.median(unqueued)) if len(unqueued) else None,
            "ns",
            "Median latency of launches with nothing queued or running.",
        ),
        Fact(
            "latency_negative", "began before the call returned", int((launches.latency < 0).sum()), "count"
        ),
        Fact("latency_impossible", "began before the call began", int(launches.impossible.sum()), "count"),
        Fact(
            "shorter_than_launch_share",
            "kernels shorter than their launch",
            float(shorter[kernels[single]].mean()) if (kernels & single).any() else None,
            "share",
        ),
        Fact("queue_depth_mean", "queue depth, mean", float(np.mean([d.mean_all for d in depth])), "number"),
        Fact("queue_empty_share", "queue empty", float(np.mean([d.empty_share for d in depth])), "share"),
        Fact("graph_launches", "graph launches", int(launches.graph.sum()), "count"),
        Fact(
            "blocking_share",
            "launches that blocked until done",
            figures.blocking_share,
            "share",
            _RULES[4].text,
        ),
    )


def _verdict(trace: Trace, figures: _Figures) -> Verdict:
    scope, launches, word = figures.scope, figures.launches, device_word(trace)
    per_step = scope.per_step(np.ones(len(launches.rows)), launches.rows)
    amount = (
        f"{plural(per_step, 'launch')} a step"
        if per_step is not None
        else plural(len(launches.rows), "launch")
    )
    share = figures.bound_share
    if figures.blocking:
        return Verdict(
            f"launch-blocking mode: {format_share(figures.blocking_share)} of {amount} returned only after their "
            "kernel had finished; unset CUDA_LAUNCH_BLOCKING before measuring anything",
            "bad",
            LAUNCH_BLOCKING,
        )
    if figures.bound_ns is None:
        idle = f"{format_share(share)} of the time the {word} is idle while the host gets to the next launch"
    else:
        whole = "a step" if scope.step_count else "the time"
        without = (
            "without the profiler, " if figures.step is not None and figures.step.basis != "none" else ""
        )
        idle = f"{without}the {word} waits for launches {format_share(share)} of {whole}"
    kernel = float(np.median(trace.ends[launches.first_work] - trace.starts[launches.first_work]))
    sizes = f"{amount}, median kernel {format_ns(kernel)}"
    if figures.bound:
        return Verdict(f"launch-bound: {idle} ({sizes})", "bad")
    level: Level = "warn" if share >= BOUND_SHARE / 2 else "good"
    return Verdict(f"not launch-bound: {idle} ({sizes})", level)


def _notes(trace: Trace, figures: _Figures) -> list[str]:
    notes = []
    impossible = int(figures.launches.impossible.sum())
    if impossible:
        notes.append(
            f"{plural(impossible, 'launch')} began on the device before the call did: host and device clocks "
            "differ, so latencies are off by about as much."
        )
    step = figures.step
    if step is not None and step.captured_ns > 1.02 * step.step_ns:
        notes.append(
            f"While captured, a step takes {format_ns(step.captured_ns)} instead of {format_ns(step.step_ns)}: "
            "latencies, call times and idle times below are those of the captured steps."
        )
    unmatched = trace.links.unmatched_work
    if unmatched:
        notes.append(
            f"{plural(unmatched, 'device event')} without a launch in the trace are not counted here."
        )
    return notes


ANALYSIS = Analysis(NAME, TITLE, "Is the step bound by kernel launches, and which ones?", run, order=20)
