"""Every launch waits for its kernel."""

from __future__ import annotations

from collections.abc import Iterator

from tuiprof.advice.shared.finding import AdviceRule, Evidence, Finding
from tuiprof.model import Trace


def find(_trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for launch-blocking mode."""
    report = evidence.report("kernel_launches")
    if report is not None and report.verdict.sentence.startswith("launch-blocking"):
        yield Finding(
            "launches return only after their kernel has ended",
            "",
            "unset CUDA_LAUNCH_BLOCKING (AMD_SERIALIZE_KERNEL on ROCm); it is for debugging",
            "high",
            "almost every kernel had ended when its launch call returned",
            None,
        )


RULE = AdviceRule("launch-blocking", find, needs=("kernel_launches",))
