"""The device waits for launches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.kernel_launches import BOUND_SHARE, LAUNCHING_OPERATORS, OUTSIDE, PARTLY_BOUND_SHARE
from tuiprof.analyses.shared.replay import launched_faster, replayed
from tuiprof.model import Trace
from tuiprof.whatif import EditRange

#: Share of the host's operator time that remains when a graph is launched instead: likely, least, most helpful.
_KEEP: Final = (0.1, 0.4, 0.03)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for a step that is at least partly bound by its launches."""
    # A captured share includes what the profiler adds to it.
    least_share = BOUND_SHARE if isinstance(replayed(trace), str) else PARTLY_BOUND_SHARE
    if (evidence.figure("kernel_launches", "launch_bound_share") or 0.0) < least_share:
        return
    syncs = evidence.figure("sync_events", "syncs_per_step") if evidence.report("sync_events") else None
    first = evidence.rows(LAUNCHING_OPERATORS)[0]
    yield Finding(
        "the device waits for the host to launch work",
        f"mostly before {first.operator}" if first.operator != OUTSIDE else "",
        "larger batches, one jax.jit around the whole step, or jax.lax.scan over several steps"
        if evidence.is_jax
        else 'larger batches, torch.compile(mode="reduce-overhead") or CUDA graphs, or fewer and '
        f"larger kernels{_before_graphs(round(syncs or 0))}",
        "medium",
        "host time in and between operators, minus what other findings save",
        *EditRange(*(launched_faster(trace, part) for part in _KEEP)),
        remainder=True,
        proof="giou-kernel:jax,jax-jit" if evidence.is_jax else "attention:native,native-compiled",
        event=first.event,
    )


def _before_graphs(syncs: int) -> str:
    """Return what prevents a whole step from becoming one CUDA graph."""
    if not syncs:
        return ""
    return f"; remove the step's {syncs} sync{'s' if syncs > 1 else ''} first: a graph cannot wait for the device"


RULE = AdviceRule("launch-bound", find, needs=("kernel_launches", "sync_events"), shown_by="kernel_launches")
