"""The step waits for its batch."""

from __future__ import annotations

from collections.abc import Iterator

from tuiprof.advice import AdviceRule, Evidence, Finding
from tuiprof.analyses.data_loading import IN_PROCESS, WORKERS
from tuiprof.model import Trace

#: From this share of the step on.
LEAST_WAIT = 0.03


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for a loader without workers, workers that cannot keep up, or loading by other means."""
    report = evidence.report("data_loading")
    wait = evidence.figure("data_loading", "data_wait_ns_per_step")
    wait = evidence.figure("data_loading", "data_wait_ns") if wait is None else wait
    share = evidence.figure("data_loading", "data_wait_share")
    if report is None or wait is None or share is None or share < LEAST_WAIT:
        return
    kind = report.fact("worker_processes")
    rows, functions = report.table("fetches").rows, evidence.rows("data_loading", "functions")
    where = str(functions["function"][0]) if len(functions) else str(rows["range"][0])
    because = "the host stands in the loader's __next__ in every step"
    if kind == IN_PROCESS and functions.is_empty():
        because += "; which function takes the time is named with --stack"
    yield Finding(
        _WHAT.get(str(kind), "the step waits for its batch"),
        where,
        _instead(str(kind), bool(trace.device_indices)),
        wait,
        "high" if kind else "medium",
        because if kind else f"the host stands in `{rows['range'][0]}` in every step",
        "cpu-training:baseline,workers-1",
        int(rows["event"][0]),
    )


_WHAT = {
    IN_PROCESS: "batches are loaded in the training process, one after the other",
    WORKERS: "the loader's workers do not keep up with the step",
}


def _instead(kind: str, on_device: bool) -> str:
    """Return what to write instead; without a device the workers share the cores with the training itself."""
    cores = "" if on_device else " while cores are idle (training needs them too)"
    if kind == IN_PROCESS:
        return (
            "DataLoader(num_workers=4 or more, pin_memory=True, persistent_workers=True)"
            if on_device
            else f"DataLoader(num_workers=1 or more, persistent_workers=True){cores}; cheaper decoding always helps"
        )
    if kind == WORKERS:
        return f"more workers{cores}, a larger prefetch_factor, or cheaper decoding and augmentation"
    return (
        f"fetch the next batch during the step: a DataLoader with workers{cores}, or a thread that loads ahead; "
        "cheaper decoding and augmentation"
    )


RULE = AdviceRule("loader-workers", find)
