"""The step waits for its batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.data_loading import FETCH_FUNCTIONS, FETCHES, IN_PROCESS, WORKERS, fetches
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.model.units import format_rough_share
from tuiprof.whatif import Edit, EditRange

#: Minimum share of the step.
MIN_WAIT: Final = 0.03
#: Maximum number of workers to suggest; more rarely help.
_MAX_WORKERS: Final = 8
#: Factor on the number of workers if the idle cores are unknown.
_UNKNOWN_MORE: Final = 2.0
#: Host time of fetching a batch from a worker: this many ns, and what it takes to read its memory, which is shared and
#: mapped anew. Fitted to six steps whose loader got workers (docs/results/predictions.md).
_HAND_OVER_NS: Final = 300_000.0
_READ_BYTES_PER_S: Final = 8e9
#: If the size of a batch is unknown, fetching it takes this share of the time to make it, since large batches take long
#: to make and to transfer. The range for all batches, least and most helpful, is given by such shares too.
_HAND_OVER: Final = 0.1
_HAND_OVER_RANGE: Final = (0.3, 0.02)
#: Without a device, what a worker needs in addition for a batch (likely, least and most helpful): this many ns to put
#: it into shared memory and send it, and a share of the time to make it, as batches may be large and the cores share
#: caches. Training fetches it in half of that share, and at least so many ns (docs/results/predictions.md).
_SEND_NS: Final = (800_000.0, 1_900_000.0, 500_000.0)
_SLOWER: Final = (0.1, 0.3, 0.02)
_FETCH_ON_CPU_NS: Final = (400_000.0, 1_000_000.0, 300_000.0)
#: There, workers come first if they save at least this share of the time that the loader takes.
_WORTH: Final = 0.4
#: If workers cannot win, batches have to become cheaper: read preprocessed, they take this share of the time.
_CHEAPER: Final = (0.1, 1.0, 0.02)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for a loader without workers, workers that cannot keep up, or loading without a DataLoader."""
    report = evidence.report("data_loading")
    wait = evidence.figure("data_loading", "data_wait_ns_per_step")
    wait = evidence.figure("data_loading", "data_wait_ns") if wait is None else wait
    share = evidence.figure("data_loading", "data_wait_share")
    seen = trace.uncaptured
    if seen is not None and seen.fetch_ns is not None and share is not None:
        share = max(share, seen.fetch_ns / seen.step_ns)
    if report is None or wait is None or share is None or share < MIN_WAIT:
        return
    kind = str(report.fact("worker_processes") or "")
    fetch = evidence.rows(FETCHES)[0]
    functions = evidence.rows(FETCH_FUNCTIONS, optional=True)
    line = evidence.line_doing("makes a batch" if kind == IN_PROCESS else "waits for a batch")
    where = functions[0].function if functions else line.where if line else fetch.range
    because = "every step spends time in the loader's __next__"
    if kind == IN_PROCESS and line and not functions:
        because += ", and most samples of it hit this line"
    elif kind == IN_PROCESS and not functions:
        because += "; record with --stack to name the function"
    on_device = bool(trace.device_indices)
    workers = _workers(trace, on_device)
    if kind == IN_PROCESS and not workers:
        because += "; training already uses all cores, so workers would only take them from it"
    on_cpu = _on_cpu(trace, workers) if kind == IN_PROCESS and workers and not on_device else None
    if on_cpu is not None:
        workers = on_cpu.workers
        because += on_cpu.because
    more = _times_more(trace)
    beside = workers if kind == IN_PROCESS else more
    if beside and on_cpu is not None:
        edits = on_cpu.edits
    elif beside:
        least_beside = workers if kind == IN_PROCESS else min(more, _UNKNOWN_MORE)
        edits = EditRange.over(
            partial(with_workers, trace, now=kind == WORKERS),
            (beside, least_beside, beside),
            (None, *_HAND_OVER_RANGE),
        )
    else:
        edits = EditRange(*(Edit.of_host(trace, fetches(trace), part) for part in _CHEAPER))
    yield Finding(
        _WHAT.get(kind, "each step waits for its batch"),
        where,
        _instead(evidence, kind, on_device, workers, more),
        "high" if kind else "medium",
        because if kind else f"every step spends time in `{fetch.range}`",
        *edits,
        proof="cpu-training:baseline,workers-1" if beside else "",
        event=fetch.event,
        switch=f"loader_workers={workers}" if kind == IN_PROCESS and workers and not evidence.is_jax else "",
    )


_WHAT = {
    IN_PROCESS: "batches are loaded in the training process, one at a time",
    WORKERS: "the loader's workers cannot keep up",
}


def _workers(trace: Trace, on_device: bool) -> int:
    """Return how many workers to suggest: at most the cores that training does not need."""
    seen = trace.uncaptured
    cores = seen.usable_cores if seen is not None else None
    if seen is None or cores is None:
        return 4 if on_device else 1
    if seen.idle_cores is not None:
        idle = min(round(seen.idle_cores), cores - 1, _MAX_WORKERS)
        return max(idle, 1) if on_device else max(idle, 0)
    # With a device, training needs one core to launch; without one, it computes on all of them.
    return max(min(cores - 1, _MAX_WORKERS), 1) if on_device else min(max(cores // 4, 0), _MAX_WORKERS)


@dataclass(frozen=True, slots=True)
class _OnCpu:
    """Workers beside a training that computes on a CPU."""

    workers: int  # how many to suggest; 0 = cheaper batches save more
    because: str  # added to the evidence
    edits: EditRange


def _on_cpu(trace: Trace, idle: int) -> _OnCpu:
    """Choose the number of workers that share a CPU with training, which leaves some cores idle.

    While training waits for a batch, its own core is free for one more worker.
    """
    seen = trace.uncaptured
    if seen is None or seen.idle_cores is None or seen.busy_cores is None:
        most, cores = idle, None
    else:
        cores = seen.busy_cores + seen.idle_cores
        cores = min(cores, float(seen.usable_cores)) if seen.usable_cores else cores
        most = min(max(idle, round(cores)), _MAX_WORKERS)
    left = [_left_on_cpu(trace, workers, cores) for workers in range(1, most + 1)]
    best = int(np.argmin([likely for likely, _, _ in left]))
    # One more worker has to save a twentieth of the loader's time.
    workers = next(count for count, one in enumerate(left, 1) if one[0] <= left[best][0] + 0.05)
    parts = left[workers - 1]
    edits = EditRange(*(Edit.of_host(trace, fetches(trace), part) for part in parts))
    if parts[0] <= 1 - _WORTH:
        return _OnCpu(workers, "", edits)
    if parts[0] < 0.95:
        because = (
            f"; workers would share the cores with training and have to send their batches, so {workers} of them "
            f"would save only about {format_rough_share(1 - parts[0])} of that time"
        )
    else:
        because = "; workers would share the cores with training and have to send their batches, which saves nothing"
    return _OnCpu(0, because, edits)


def _left_on_cpu(trace: Trace, workers: int, cores: float | None) -> tuple[float, ...]:
    """Return the share of the loader's time that remains with workers on a CPU: likely, least and most helpful."""
    making, rest = _fetch_and_rest_ns(trace, fetches(trace))
    making = max(making, 1.0)
    seen = trace.uncaptured
    busy = seen.busy_cores if seen is not None and seen.busy_cores is not None else 1.0
    # Training may compute on several cores, the loader uses one.
    computing = max(busy * (making + rest) - making, rest)
    found = []
    for send, slower, least in zip(_SEND_NS, _SLOWER, _FETCH_ON_CPU_NS, strict=True):
        made = making * (1 + slower) + send
        fetched = max(least, slower / 2 * making)
        shared = (made + fetched + computing) / cores if cores else 0.0
        step = max(rest + fetched, made / workers, shared)
        found.append(min((step - rest) / making, 1.0))
    return tuple(found)


def _times_more(trace: Trace) -> float:
    """Return the factor on the number of workers that the idle cores allow; 0 = no more workers."""
    seen = trace.uncaptured
    if seen is None or seen.idle_cores is None or seen.busy_cores is None:
        return _UNKNOWN_MORE
    # The step waits for the workers, so the busy cores are mostly theirs.
    now = max(round(seen.busy_cores), 1)
    idle = round(seen.idle_cores)
    return max(min(now + idle, _MAX_WORKERS) / now, min(1 + idle / now, _UNKNOWN_MORE)) if idle else 0.0


def with_workers(trace: Trace, workers: float, part: float | None = None, *, now: bool = False) -> Edit:
    """Return the edit in which workers make the batches in parallel with the step, and the step fetches them.

    Args:
        trace: The trace of the step.
        workers: Their number, or a factor on the current number: the time of the loader is divided by it; 0 =
            batches are made in the step as before.
        part: Time to fetch a batch as a share of the time to make it; None = by its size.
        now: There are already workers, which make batches during the whole step.
    """
    rows = fetches(trace)
    making, rest = _fetch_and_rest_ns(trace, rows)
    # The step waits for what the workers cannot make during its remaining time.
    made = making + rest if now else making
    fetched = _hand_over_ns(trace, len(rows), making) if part is None else part * making
    left = max(_HAND_OVER_NS, fetched, made / workers - rest if workers else making)
    return Edit.of_host(trace, rows, min(left / max(making, 1.0), 1.0))


def _fetch_and_rest_ns(trace: Trace, rows: Ints) -> tuple[float, float]:
    """Return how long fetching a batch takes, and the time until the next fetch, ns.

    In a capture batches may come early, as workers get ahead while the profiler starts; so the session counts, if its
    steps wait longer.
    """
    lengths = trace.lengths(rows)
    (low, high), count = trace.span, max(len(rows), 1)
    fetch = float(lengths.mean()) if len(lengths) else 1.0
    rest = (high - low - float(lengths.sum())) / count
    seen = trace.uncaptured
    if seen is not None and seen.fetch_ns is not None and len(trace.steps):
        a_step = count / len(trace.steps)
        if seen.fetch_ns / a_step > fetch:
            return seen.fetch_ns / a_step, max(seen.step_ns - seen.fetch_ns, 0.0) / a_step
    return fetch, rest


def _hand_over_ns(trace: Trace, batches: int, making_ns: float) -> float:
    """Return the likely time to fetch a batch, ns, by what is copied to the device for each."""
    copies = trace.device_work[trace.named("HtoD", trace.device_work)]
    copied = float(np.maximum(trace.ints("bytes", copies), 0).sum()) / max(batches, 1)
    return _HAND_OVER_NS + copied / _READ_BYTES_PER_S * 1e9 if copied else _HAND_OVER * making_ns


def _instead(evidence: Evidence, kind: str, on_device: bool, workers: int, more: float) -> str:
    """Return what to write instead; without a device, workers and training share the cores."""
    cores = "" if on_device else " if cores are idle (training needs them too)"
    if kind == IN_PROCESS:
        if not on_device and not workers:
            return (
                "cheaper decoding and augmentation, or preprocess once and read from disk; workers "
                "need idle cores, and batches that take far longer to make than to send"
            )
        pinned = "pin_memory=True, " if on_device else ""
        plain = f"DataLoader(num_workers={workers}, {pinned}persistent_workers=True)"
        given = evidence.write("workers", plain, workers=workers)
        return given if on_device else f"{given}{cores}; cheaper decoding always helps"
    if kind == WORKERS and not more:
        return "cheaper decoding and augmentation, or preprocess once and read from disk; no core is idle"
    if kind == WORKERS:
        workers_, prefetch = (
            evidence.write(*lever)
            for lever in (("more-workers", "more workers"), ("prefetch", "a larger prefetch_factor"))
        )
        return f"{workers_}{cores}, {prefetch}, or cheaper decoding and augmentation"
    return (
        f"fetch the next batch during the step: a DataLoader with workers{cores}, or a prefetch "
        "thread; or cheaper decoding and augmentation"
    )


RULE = AdviceRule("loader-workers", find, needs=("data_loading",))
