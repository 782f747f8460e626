"""On a CPU: operators compute on one core, and others are idle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.data_loading import fetches
from tuiprof.analyses.shared.frames import operator_label
from tuiprof.model import Trace
from tuiprof.model.intervals import Coverage
from tuiprof.model.units import format_rough_share
from tuiprof.whatif import Edit, EditRange

#: A process that keeps at most this many cores busy computes on one. At least so many others have to be idle.
ONE_CORE: Final = 1.3
MIN_IDLE: Final = 0.7
#: Shorter operators do not gain from more threads, ns. The longer ones take at least this share of the time.
LONG_NS: Final = 200_000
MIN_SHARE: Final = 0.3
#: The throughput of each further core relative to the first: likely, least and most helpful.
_ADDS: Final = (0.5, 0.2, 0.9)
#: With more cores, the step of a small model rarely gets faster.
_MAX_CORES: Final = 16


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for long operators in a CPU run that keeps one core busy while others are idle."""
    seen = trace.uncaptured
    if trace.device_indices or seen is None or seen.busy_cores is None or seen.idle_cores is None:
        return
    if seen.busy_cores > ONE_CORE or seen.idle_cores < MIN_IDLE:
        return
    rows = evidence.calls.rows
    rows = rows[trace.lengths(rows) >= LONG_NS]
    loads = Coverage(*trace.union(fetches(trace)))
    rows = rows[loads.between(trace.starts[rows], trace.ends[rows]) == 0]
    rows = rows[trace.steps.have(rows)]
    share = evidence.share_of_time(rows)
    if share < MIN_SHARE:
        return
    usable = min(seen.usable_cores or _MAX_CORES, _MAX_CORES)
    threads = min(1 + round(seen.idle_cores), usable)
    if threads < 2:  # the process may not use more
        return
    if (
        seen.threads is not None and seen.threads >= threads
    ):  # its operators use one core although they may use more
        return
    longest = trace.longest(rows)
    yield Finding(
        f"{format_rough_share(share)} of the time is spent in operators that could use more threads; the run keeps "
        f"{seen.busy_cores:.1f} cores busy and leaves {seen.idle_cores:.1f} idle",
        f"longest in {operator_label(trace.name(longest))}",
        "remove --xla_cpu_multi_thread_eigen=false from XLA_FLAGS, and give the process all cores "
        "(taskset, the scheduler)"
        if evidence.is_jax
        else f"torch.set_num_threads({threads}), or unset OMP_NUM_THREADS, and give the process all "
        "cores (taskset, the scheduler)",
        "medium",
        "CPU time of the process during training, from the session",
        *EditRange(*(Edit.of_host(trace, rows, 1 / (1 + adds * (threads - 1))) for adds in _ADDS)),
        event=longest,
        environment={} if evidence.is_jax else {"OMP_NUM_THREADS": str(threads)},
    )


RULE = AdviceRule("cpu-threads", find)
