"""Batches are made in the training process itself."""

from __future__ import annotations

from collections.abc import Iterator

from tuiprof.advice import AdviceRule, Evidence, Finding
from tuiprof.model import Trace

#: From this share of the step on.
LEAST_WAIT = 0.03


def find(_trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for a loader without workers, or workers that cannot keep up."""
    report = evidence.report("data_loading")
    wait = evidence.figure("data_loading", "data_wait_ns_per_step")
    wait = evidence.figure("data_loading", "data_wait_ns") if wait is None else wait
    share = evidence.figure("data_loading", "data_wait_share")
    if report is None or wait is None or share is None or share < LEAST_WAIT:
        return
    alone = "num_workers=0" in str(report.fact("worker_processes"))
    rows = report.table("fetches").rows
    yield Finding(
        "batches are loaded in the training process, one after the other"
        if alone
        else "the loader's workers do not keep up with the step",
        str(rows["range"][0]),
        "DataLoader(num_workers=4 or more, pin_memory=True, persistent_workers=True)"
        if alone
        else "more workers, a larger prefetch_factor, or cheaper decoding and augmentation",
        wait,
        "high",
        "the host stands in the loader's __next__ in every step",
        "cpu-training:baseline,workers-1",
        int(rows["event"][0]),
    )


RULE = AdviceRule("loader-workers", find)
