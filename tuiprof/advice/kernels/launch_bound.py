"""The device waits for launches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.kernel_launches import BOUND_SHARE, LAUNCHING_OPERATORS, OUTSIDE, PARTLY_BOUND_SHARE
from tuiprof.analyses.shared.replay import launched_faster, replayed
from tuiprof.analyses.shared.waits import COUNTED
from tuiprof.analyses.shared.waits import find as find_waits
from tuiprof.model import Trace, Window
from tuiprof.whatif import Edit, EditRange

#: Share of the host's operator time that remains when a graph is launched instead: likely, least, most helpful.
_KEEP: Final = (0.1, 0.4, 0.03)
_GRAPHS: Final = 'torch.compile(mode="reduce-overhead")'
_COPIES: Final = r"HtoD|HostToDevice"
#: Syncs a step at least between which graphs would be small parts of it.
_MANY_SYNCS: Final = 8
#: Smaller copies than this are no batches, bytes.
_BATCH_BYTES: Final = 4096
#: Optimizers of torch.optim whose state stays on the host unless they are capturable.
_CAPTURABLE: Final = ("Adadelta", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")


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
        else f"{evidence.write('batch-size', 'larger batches')}, "
        f"{_graphs(evidence)}, or fewer and larger kernels"
        f"{_before_graphs(trace, round(syncs or 0))}",
        "medium",
        "host time in and between operators, minus what other findings save",
        *EditRange(*(launched_faster(trace, part) for part in _KEEP)),
        remainder=True,
        after=_without_waits(trace) if evidence.stepped and (syncs or 0) >= _MANY_SYNCS else None,
        proof="giou-kernel:jax,jax-jit" if evidence.is_jax else "attention:native,native-compiled",
        event=first.event,
    )


def _graphs(evidence: Evidence) -> str:
    if evidence.calls.differentiated_twice.any():
        return "CUDA graphs (torch.cuda.graph: torch.compile does not support gradients of gradients)"
    return f"{evidence.write('compile-graphs', _GRAPHS)} or CUDA graphs"


def _before_graphs(trace: Trace, syncs: int) -> str:
    """Return what prevents a whole step from becoming one CUDA graph."""
    first = []
    if syncs:
        each = f"{syncs} syncs" if syncs > 1 else "sync"
        first.append(f"remove the step's {each} first: a graph cannot wait for the device")
    if _batches_differ(trace):
        first.append(
            "pad batches to one size, or a few: their sizes differ, and the shapes of a graph cannot"
        )
    if optimizers := _not_capturable_by_default(trace):
        first.append(f"create {optimizers} with capturable=True if the graph includes its step")
    return "".join(f"; {one}" for one in first)


def _without_waits(trace: Trace) -> Edit:
    """Return the edit in which the steps do not wait."""
    waits = find_waits(trace, Window())
    return Edit(waits.last[waits.apart == COUNTED])


def _batches_differ(trace: Trace) -> bool:
    """Return whether the largest copy to the device is of another size in most steps."""
    copies = trace.device_work[trace.named(_COPIES, trace.device_work)]
    step_of, sizes = trace.steps.step_of[copies], trace.ints("bytes", copies)
    batches = (step_of >= 0) & (sizes >= _BATCH_BYTES)
    largest = np.zeros(len(trace.steps), dtype=np.int64)
    np.maximum.at(largest, step_of[batches], sizes[batches])
    largest = largest[largest > 0]
    return len(largest) >= 3 and 2 * len(np.unique(largest)) > len(largest) + 1


def _not_capturable_by_default(trace: Trace) -> str:
    """Return the classes of optimizers that a graph requires to be capturable; empty = none is known."""
    steps = trace.host_events(r"^Optimizer\.step#")
    names = {trace.name(row).partition("#")[2].removesuffix(".step") for row in steps.tolist()}
    return " and ".join(sorted(names.intersection(_CAPTURABLE)))


RULE = AdviceRule("launch-bound", find, needs=("kernel_launches", "sync_events"), shown_by="kernel_launches")
