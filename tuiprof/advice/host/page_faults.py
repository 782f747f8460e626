"""On a CPU: memory is returned to the operating system, and requested and cleared again, in every step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.model import Trace
from tuiprof.model.units import format_count, format_rough_share
from tuiprof.whatif import Edit, EditRange

#: Minimum number of page faults in a step, and share of the CPU time that the operating system takes.
MIN_FAULTS, MIN_SHARE = 200, 0.05
#: What a page fault costs, ns: likely, least and most, with what the operating system takes as the limit. Measured on
#: a virtual EPYC (Zen 5) as what steps save without them: 1.7 to 2.1 µs for pages of 4 KiB. Those of files that are
#: mapped into memory stay.
_FAULT_NS: Final = (1_800.0, 0.0, 2_500.0)
#: Operators that are shorter touch little new memory, ns.
_LONG_NS: Final = 20_000
#: What remains of operators at least.
_LEFT: Final = 0.1
#: Makes glibc keep all memory: it maps none (``mmap``), and returns none from the end of its heap.
#: Its ``malloc`` documents the variables as tunable parameters of ``mallopt``.
_KEEP_MEMORY: Final = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 36),
    "MALLOC_TOP_PAD_": str(64 << 20),
}


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for page faults in every step of a session."""
    seen = trace.uncaptured
    if trace.device_indices or seen is None or seen.page_faults is None or not evidence.stepped:
        return
    faults = seen.page_faults
    if faults.per_step < MIN_FAULTS or faults.system_share < MIN_SHARE:
        return
    rows = evidence.calls.rows
    rows = rows[trace.steps.have(rows) & (trace.lengths(rows) >= _LONG_NS)]
    captured_ns = float(trace.lengths(rows).sum())
    if not captured_ns:
        return
    took_ns = [min(faults.per_step * ns, faults.system_share * seen.step_ns) for ns in _FAULT_NS]
    # Captured steps may have fewer, as what the profiler allocates keeps the heap from shrinking.
    shares = [ns * len(trace.steps) / captured_ns for ns in took_ns]
    yield Finding(
        f"memory is returned to the operating system and requested again: {format_count(faults.per_step)} page faults "
        "a step",
        "",
        " ".join(f"{name}={value}" for name, value in _KEEP_MEMORY.items())
        + " before the command, so that glibc keeps it; or jemalloc or tcmalloc (LD_PRELOAD)",
        "medium",
        f"{format_rough_share(faults.system_share)} of the process's CPU time is the operating system's; faults of "
        "files that are mapped into memory remain",
        *EditRange(*(Edit.of_host(trace, rows, max(1 - share, _LEFT)) for share in shares)),
        event=trace.longest(rows),
        environment=_KEEP_MEMORY,
    )


RULE = AdviceRule("page-faults", find)
