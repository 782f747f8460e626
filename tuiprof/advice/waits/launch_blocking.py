"""Every launch waits for its kernel."""

from __future__ import annotations

from collections.abc import Iterator

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.kernel_launches import LAUNCH_BLOCKING
from tuiprof.model import Trace


def find(_trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for launch-blocking mode."""
    report = evidence.report("kernel_launches")
    if report is not None and report.verdict.code == LAUNCH_BLOCKING:
        yield Finding(
            "every launch returns only when its kernel has finished",
            "",
            "unset CUDA_LAUNCH_BLOCKING (AMD_SERIALIZE_KERNEL on ROCm); it is for debugging",
            "high",
            "almost every kernel had finished when its launch call returned",
            None,
            environment={"CUDA_LAUNCH_BLOCKING": "0", "AMD_SERIALIZE_KERNEL": "0"},
        )


RULE = AdviceRule("launch-blocking", find, needs=("kernel_launches",))
