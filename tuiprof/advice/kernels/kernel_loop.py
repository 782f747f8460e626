"""The same few operators with short kernels are called repeatedly, item by item."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.fusing import in_a_row
from tuiprof.analyses.shared.calls import Calls, loops
from tuiprof.analyses.shared.collectives import buffer_broadcasts
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints, Mask

#: Maximum operators per iteration, and minimum iterations of a loop.
LONGEST_PERIOD, MIN_PASSES = 40, 12
#: A loop inside another one is short each time (the sequences of a batch, for each new token): minimum iterations each
#: time, and in a step.
MIN_INNER, MIN_INNER_IN_ALL = 6, 48
#: Longer kernels compute more than their launch costs.
SHORT_NS: Final = 15_000
#: Layers of a model repeat as well; these loops must not contain operators typical of layers. Products with nothing
#: between them are no layers, which have an activation each. Copies from the host have their own rule.
_LAYERS: Final = ("gemm", "convolution", "attention", "norm")
_TABLES_AND_COPIES: Final = r"HtoD|(?i:embedding)"
#: Reads of values have rules of their own.
_READS: Final = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal")
#: Share of the device work of many short kernels that remains when done for all items at once: likely, least, most.
_KEEP: Final = (0.3, 1.0, 0.1)
_TORCH: Final = (
    "process all items at once: torch._foreach_* or clip_grad_norm_(foreach=True) over parameters, one "
    "call on a padded batch over samples; if the loop must stay, compile it or capture it in a CUDA "
    "graph"
)
_PRODUCTS: Final = (
    "multiply all items at once: one wider layer, or torch.bmm with stacked weights; if the loop must stay, compile it "
    "or capture it in a CUDA graph"
)
_JAX: Final = (
    "one jax.jit around the loop or the whole step; or process all items at once (jax.vmap; pad, then mask)"
)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for loops of operators with short kernels outside the optimizer, combined per step."""
    if not trace.device_indices:
        return
    calls = evidence.calls
    chosen = np.zeros(len(calls.rows), dtype=bool)
    found: list[tuple[int, int, int]] = []  # first call, period, iterations
    short, product = _short(calls, *_LAYERS), _short(calls, *_LAYERS[1:]) & trace.named("^aten::", calls.rows)
    product &= ~short
    for run in _runs(evidence):
        if max(np.count_nonzero(which[run]) for which in (short, product)) < MIN_PASSES:
            continue
        words = trace.name_codes[calls.rows[run]].astype(np.int32)
        codes, products = (np.where(which[run], words, np.int32(-1)) for which in (short, product))
        long = list(loops(codes, LONGEST_PERIOD, MIN_PASSES))
        of_products = loops(products, LONGEST_PERIOD, MIN_PASSES)
        for first, period, times in [*long, *of_products, *_inner(codes, long)]:
            if all(calls.names[index] in _READS for index in run[first : first + period].tolist()):
                continue
            members = np.arange(run[first], run[first + period * times - 1] + 1)
            chosen[members[calls.tracks[members] == calls.tracks[run[first]]]] = True
            found.append((int(run[first]), period, times))
    if not found:
        return
    first, period, times = max(found, key=lambda loop: loop[1] * loop[2])
    busy = [index for index in range(first, len(calls.rows)) if calls.work_count[index]][:period]
    host = min(2.0 / times, 1.0)
    whole = calls.with_backward(chosen)
    likely, least, most = (calls.edit(whole, host, part) for part in _KEEP)
    names = " → ".join(calls.names[index].removeprefix("aten::") for index in busy)
    yield Finding(
        f"a loop calls {in_a_row(names)} {times} times in a row"
        + (
            f", one of {len(found) / evidence.step_count:.0f} loops a step"
            if len(found) > evidence.step_count
            else ""
        ),
        evidence.function_of(int(calls.rows[first])),
        _JAX if evidence.is_jax else _PRODUCTS if product[first] else _TORCH,
        "medium",
        f"operators whose kernels take less than {SHORT_NS // 1000} µs repeat in the same order",
        likely,
        least,
        most,
        proof="giou-kernel:jax,jax-jit" if evidence.is_jax else "",
        event=int(calls.rows[first]),
    )


def _inner(codes: npt.NDArray[np.int32], long: list[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield the loops of two and more operators that are short each time, and run many times in a step."""
    rest = codes.copy()
    for first, period, times in long:
        rest[first : first + period * times] = -1
    of_body: dict[bytes, list[tuple[int, int, int]]] = {}
    for first, period, times in loops(rest, LONGEST_PERIOD, MIN_INNER):
        if period > 1:
            of_body.setdefault(np.sort(codes[first : first + period]).tobytes(), []).append(
                (first, period, times)
            )
    for same in of_body.values():
        if sum(times for _, _, times in same) >= MIN_INNER_IN_ALL:
            yield from same


def _runs(evidence: Evidence) -> Iterator[Ints]:
    """Yield the calls with device work of each thread and step, except of optimizers, DDP and the backward pass."""
    trace, calls, steps = evidence.trace, evidence.calls, evidence.optimizer_steps
    starts = trace.starts[calls.rows]
    at = np.searchsorted(trace.starts[steps], starts, side="right") - 1
    in_optimizer = (at >= 0) & (starts < trace.ends[steps[np.maximum(at, 0)]]) if len(steps) else starts < 0
    of_ddp = trace.named(r"^torch(\.|::)distributed", calls.rows) | buffer_broadcasts(calls)
    # Fills of gradients with zeros have a rule of their own.
    of_others = calls.backward | in_optimizer | of_ddp | calls.within(r"^Optimizer\.zero_grad#")
    busy = np.flatnonzero((calls.work_count > 0) & ~of_others)
    keys = calls.tracks[busy].astype(np.int64) * (len(trace.steps) + 1) + calls.steps[busy] + 1
    for key in np.unique(keys):
        yield busy[keys == key]


def _short(calls: Calls, *without: str) -> Mask:
    """Return which calls have only short kernels, and none of the given kinds."""
    trace = calls.trace
    layers = calls.works_of(*without) | trace.named(_TABLES_AND_COPIES, trace.device_work)
    known = calls.call_of_work >= 0
    heavy = np.bincount(calls.call_of_work[known & layers], minlength=len(calls.rows)) > 0
    mean = calls.work_ns / np.maximum(calls.work_count, 1)
    result: Mask = ~heavy & (mean < SHORT_NS)
    return result


RULE = AdviceRule("kernel-loop", find)
