"""When a device is idle, and what the host does in that time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from tuiprof.analyses.shared import waits as _waits
from tuiprof.model import Trace, Window
from tuiprof.model.intervals import Coverage, Ints, Mask, clip, complement, distinct, member, row_type, union
from tuiprof.model.trace import HOST_CALLS, cached_on_trace

if TYPE_CHECKING:
    from tuiprof.analyses.shared.scope import Scope

#: Host activities, most specific first: an instant belongs to the first that applies.
HOST_CAUSES: dict[str, str] = {
    "sync": "the host waits for the device",
    "allocator": "the host allocates or frees device memory",
    "collective wait": "the host waits for other ranks",
    "compile": "the host compiles (Dynamo, Inductor, Triton, XLA)",
    "garbage collector": "Python's garbage collector runs",
    "data loading": "the host waits for data",
    "host callback": "the compiled function waits for a function of the host (JAX callbacks)",
    "profiler": "the profiler does its own work",
    "runtime call": "the host is in another device runtime call",
    "operator": "the host runs operators before launching",
    "Python": "the host runs Python between operators",
    "unrecorded": "nothing was recorded on the host (Python, if frames are off)",
}
NOT_RECORDED = "launch not recorded"
#: Causes of the rest of a gap.
DEVICE_CAUSES: dict[str, str] = {
    "launching": "the host is in the launch call or has just left it",
    "hand-over": "submitted work has not started: a dependency, a graph, or kernel to kernel",
    NOT_RECORDED: "the call that launched the next work is missing from the trace",
}
CAUSES: tuple[str, ...] = (*HOST_CAUSES, *DEVICE_CAUSES)
#: The host is too slow, without a specific cause.
HOST_BOUND: tuple[str, ...] = ("runtime call", "operator", "Python", "unrecorded", "launching")

DATA_LOADING = (
    r"enumerate\(DataLoader\)|DataLoader\w*\.__next__|dataloader\.py\(\d+\): __next__"
    r"|IteratorGetNext|dataset_iterator"
)
GARBAGE = r"^(Python GC|python_gc|gc\.collect|<built-in function collect>)"
COMPILE = (
    r"\(dynamo_timed\)|^(inductor_compile|fx_codegen_and_compile|compile_fx|async_compile|backend_compile|XlaCompile)"
    r"|torch/_(dynamo|inductor)/(convert_frame|compile_fx|async_compile)\.py"
)
#: Frames of a callback (jax/_src/callback.py, debugging.py), and its operator if frames are off.
CALLBACK = r"\b(callback|debugging)\.py\(\d+\): \w*callback\w*$|^(debug_callback|pure_callback|io_callback)\b"
#: Causes on threads that do not launch: the profiler's own work.
_OWN_LANES = ("overhead",)
#: Host causes as they are recorded, by category or by name, from "compile" on.
_RECORDED: tuple[tuple[tuple[str, ...], str], ...] = (
    (("compile",), COMPILE),
    ((), GARBAGE),
    (("dataloader",), DATA_LOADING),
    ((), CALLBACK),
    (_OWN_LANES, ""),
    (HOST_CALLS, ""),
    (("cpu_op",), ""),
    (("python_function",), ""),
)
#: A submission is assumed to reach a busy device within the 10th percentile of the trace's launch latency, at most the
#: first of these; an idle device within the second.
MAX_SUBMISSION_NS, SUBMISSION_NS = 20_000, 100_000


@dataclass(frozen=True)
class Gaps:
    """Idle gaps of one device between its first and last work in a window, in order of time."""

    device: int  # device index
    low: int  # start of the device's first work in the window, ns
    high: int  # end of its last, ns
    starts: Ints  # when the device ran dry, ns, shape ``(g,)``
    ends: Ints  # when it began to work again, ns
    work: Ints  # row of the work that ended each gap
    launch: Ints  # row of the call that launched it; -1 = not in the trace
    #: Those of :data:`CAUSES` that may explain any of it, in their order. There may be as many gaps as kernels, so that
    #: a row for each of them takes much memory.
    possible: tuple[str, ...]
    causes: (
        Ints  # idle time by ``possible`` cause, ns, shape ``(len(possible), g)``; each column sums to its gap
    )

    @property
    def ns(self) -> Ints:
        """Length of each gap, ns."""
        return self.ends - self.starts

    def in_steps(self, scope: Scope) -> Mask:
        """Return which gaps belong to a whole step of the scope, by the launch that ended them."""
        return scope.in_steps(np.maximum(self.launch, 0)) & (self.launch >= 0)

    def of(self, *causes: str) -> Ints:
        """Return the idle time of some causes in each gap, ns, shape ``(g,)``."""
        total: Ints = np.zeros(len(self.starts), dtype=np.int64)
        for cause in causes:
            if cause in self.possible:
                total += self.causes[self.possible.index(cause)]
        return total

    @cached_property
    def host_bound(self) -> Ints:
        """Idle time in each gap because the host was too slow, ns, shape ``(g,)``."""
        return self.of(*HOST_BOUND)


@cached_on_trace
def gaps(trace: Trace, device: int, low: int, high: int) -> Gaps:
    """Find the idle gaps of a device and what explains them.

    A gap ``[dry, f)`` ends with work launched by a call in ``[b, e)``: before ``b`` the host had not yet reached the
    launch, and its activity, on any thread that launches work, is the cause; from ``b`` until the call has returned
    and its submission has had time to arrive, the cause is launching; the rest is hand-over. A submission to a device
    that was idle before the call gets ``SUBMISSION_NS``, because it may have to wake the device; any other the 10th
    percentile of the trace's launch latency.
    """
    busy_starts, busy_ends = clip(*trace.busy(device), low, high)
    none = np.empty(0, dtype=np.int64)
    if not len(busy_starts):
        return Gaps(device, low, low, none, none, none, none, (), np.empty((0, 0), dtype=np.int64))
    activity = _host_activity(trace)  # before the arrays below, as it needs much temporary memory
    first, last = int(busy_starts[0]), int(busy_ends[-1])
    starts, ends = complement(busy_starts, busy_ends, first, last)
    rows = trace.work_of(device)
    # Rows are sorted by start: the first work that starts with the busy interval is the one that ended the gap.
    work = rows[np.searchsorted(trace.starts[rows], ends, side="left")]
    launch = trace.links.launch_of[work]
    known = launch >= 0
    begin = np.where(known, trace.starts[np.maximum(launch, 0)], starts)
    end = np.where(known, trace.ends[np.maximum(launch, 0)], starts)
    begin = np.clip(begin, starts, ends)
    allowance = np.where(begin > starts, SUBMISSION_NS, submission_ns(trace))
    launching_until = np.where(known, np.clip(end + allowance, begin, ends), begin)

    active = {
        cause: covered for cause, covered in zip(HOST_CAUSES, activity, strict=False) if covered is not None
    }
    possible = (*active, "unrecorded", *DEVICE_CAUSES)
    narrow = np.int32 if (ends - starts).max(initial=0) < 2**31 else np.int64
    causes = np.zeros((len(possible), len(starts)), dtype=narrow)
    late = np.flatnonzero(begin > starts)  # the host is the cause only before the launch
    before: Ints = np.zeros(len(late), dtype=np.int64)
    for index, coverage in enumerate(active.values()):
        covered = coverage.between(starts[late], begin[late])
        causes[index, late] = covered - before
        before = covered
    causes[possible.index("unrecorded"), late] = (begin - starts)[late] - before
    causes[possible.index("launching")] = launching_until - begin
    causes[possible.index("hand-over")] = np.where(known, ends - launching_until, 0)
    causes[possible.index(NOT_RECORDED)] = np.where(known, 0, ends - starts)
    return Gaps(device, first, last, starts, ends, work, launch, possible, causes)


@cached_on_trace
def submission_ns(trace: Trace) -> int:
    """Return the time of a submission to an idle device: the 10th percentile of launch latency, ns."""
    work = trace.device_work
    launch = trace.links.launch_of[work]
    work, launch = work[launch >= 0], launch[launch >= 0]
    latency = trace.starts[work] - trace.ends[launch]
    latency = latency[latency >= 0]
    return min(int(np.percentile(latency, 10)), MAX_SUBMISSION_NS) if len(latency) else 0


@cached_on_trace
def _host_activity(trace: Trace) -> list[Coverage | None]:
    """Return for each host cause except the last the time covered by it or an earlier one; None = it adds none."""
    covered: list[Coverage | None] = []
    starts: Ints = np.empty(0, dtype=np.int64)
    ends = starts
    for more_starts, more_ends in _activities(trace):
        if not len(more_starts):
            covered.append(None)
            continue
        merged = union(more_starts, more_ends)
        starts, ends = union(np.concatenate((starts, merged[0])), np.concatenate((ends, merged[1])))
        covered.append(Coverage(starts, ends))
    return covered


def _activities(trace: Trace) -> Iterator[tuple[Ints, Ints]]:
    """Yield starts and ends of host activities, for each host cause except the last."""
    waits = _waits.find(trace, Window())
    allocator, collective = (waits.kind == waits.kinds.index(k) for k in ("allocator", "collective wait"))
    for which in (~allocator & ~collective, allocator, collective):
        yield waits.starts[which], waits.ends[which]
    launching = distinct(trace.track_codes[trace.links.launches])
    on_host = member(trace.track_codes, launching) & trace.on_host
    for categories, named in _RECORDED:
        mask = trace.is_category(*categories)
        if named:
            mask |= trace.named(named)
        if categories != _OWN_LANES:
            mask &= on_host
        rows = np.flatnonzero(mask).astype(row_type(len(trace)))
        rows = rows[~trace.nesting.directly_in(mask, rows)]  # covered by their parents
        yield trace.starts[rows], trace.ends[rows]
