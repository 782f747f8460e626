"""Batches of texts or other sequences are padded to a fixed length that none of them has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.arguments import arguments
from tuiprof.analyses.shared.calls import ACCUMULATE, Calls, index_of_outer
from tuiprof.analyses.shared.idle import DATA_LOADING
from tuiprof.analyses.shared.model_calls import model_calls
from tuiprof.analyses.shared.optimizers import CLEARS
from tuiprof.analyses.shared.waits import outermost
from tuiprof.model import Trace
from tuiprof.model.intervals import Floats, Ints, Mask
from tuiprof.model.steps import BatchPadding
from tuiprof.model.units import format_count
from tuiprof.whatif import Edit, EditRange

#: Minimum number of batches, and the maximum share of their columns that texts use.
MIN_BATCHES: Final = 3
MAX_USED: Final = 0.75
#: Without a mask, the longest text of some batch is longer by at least this share of the width than that of another.
MIN_VARIED: Final = 1 / 64
#: Lengths are rounded up to multiples of this: usually, and where attention is prepared for each length.
_MULTIPLE, _MULTIPLE_IF_PREPARED = 8, 64
#: Share of what padding takes that stays where it helps least: kernels of shorter texts use less of the device.
_STAYS: Final = 0.25
#: No kernel, and no operator on a CPU, becomes shorter than this, ns.
_SHORTEST_NS: Final = 2_000
_SHORTEST_ON_CPU_NS: Final = 5_000
#: Their work grows with the square of the length. In kernels of other operators it grows with the length.
_QUADRATIC: Final = (
    r"^aten::(bmm|baddbmm|_softmax|_softmax_backward_data|_?scaled_dot_product\w*"
    r"|_(flash|efficient|cudnn)_attention\w*)$"
)
#: Layers, where a step does not compute gradients.
_LAYER: Final = r"^aten::(embedding|linear|addmm|mm|bmm|matmul|scaled_dot_product_attention)$"
#: What is done for each parameter, whatever the length.
_OF_PARAMETERS: Final = r"^aten::_(foreach|amp)_|^_?c10d|record_param_comms|nccl|gloo"
#: Calls of a model without gradients for each batch: more of them write a text or draw a picture.
_MAX_CALLS: Final = 3
#: Attention that leaves padding out, as do nested tensors and packed sequences.
_WITHOUT_PADDING: Final = r"(?i)var_?len|nested|jagged|unpad|pack_padded"
#: Attention whose kernels are prepared for each length, some 100 ms each time: BERT-base in the Trainer, batches of 48
#: texts, took 76.6 ms a step padded to 512 tokens, 76 to 90 ms to the longest text (230 steps), 47.7 ms to multiples of
#: 8 and 40.4 ms to multiples of 64 (H100, PyTorch 2.11).
_PREPARED: Final = r"^aten::_scaled_dot_product_cudnn_attention$"
_COMPILED: Final = r"^(Torch-Compiled Region|## Call CompiledFxGraph|CompiledFunction)"
_GRAPH: Final = r"^(cuda|hip)GraphLaunch"


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for padding in the batches that the probe has looked at."""
    seen = trace.uncaptured.padding if trace.uncaptured is not None else None
    if seen is None or not evidence.stepped or not is_padding(seen):
        return
    # A graph has one length, and XLA compiles a program for each.
    if evidence.is_jax or trace.named(_GRAPH, trace.host_calls).any():
        return
    without = trace.named(_WITHOUT_PADDING, trace.device_work).any() or len(trace.operators(_WITHOUT_PADDING))
    calls = evidence.calls
    frames = seen.frames == seen.batches
    if without or _is_cut(trace, seen, frames) or _makes_more(calls):
        return
    chosen, work = _of_tokens(calls, evidence)
    rows = work if len(work) else calls.rows[chosen]
    if not len(rows):
        return
    prepares = len(trace.operators(_PREPARED)) > 0
    multiple = _MULTIPLE_IF_PREPARED if prepares else _MULTIPLE
    used = seen.longest / seen.width
    rounded = min((seen.longest + (multiple - 1) / 2 * seen.batches) / seen.width, 1.0)
    edits = EditRange(
        _shortened(calls, chosen, work, rounded, rounded**2, (1 + rounded) / 2),
        _shortened(calls, chosen, work, *2 * (rounded + _STAYS * (1 - rounded),), 1.0),
        _shortened(calls, chosen, work, used, used**2, used),
    )
    width, longest = (format_count(round(total / seen.batches)) for total in (seen.width, seen.longest))
    kind, one = ("frames", "sequence") if frames else ("tokens", "text")
    padding = (
        f"torch.nn.utils.rnn.pad_sequence in collate_fn, with frames up to a multiple of {multiple}"
        if frames
        else f"DataCollatorWithPadding with padding='longest', pad_to_multiple_of={multiple}"
    )
    yield Finding(
        f"batches are padded to {width} {kind}, their longest {one} has {longest} on average",
        "",
        f"pad to the longest {one} of each batch ({padding}), and "
        f"{evidence.write('grouped-by-length', f'sort {one}s by length')}, which saves more"
        + (
            "; cuDNN's attention is prepared anew for each length, so the lengths must be few"
            if prepares
            else ""
        )
        + ("; torch.compile needs few lengths, or dynamic=True" if trace.names_like(_COMPILED).any() else ""),
        "medium",
        f"measured in {seen.batches} batches as they were loaded: "
        + (
            f"{one}s are as long as their {'lengths or masks' if frames else 'masks'} say"
            if seen.masked == seen.batches
            else "all other columns have one value, and the longest text differs from batch to batch"
        ),
        *edits,
        event=trace.longest(rows),
    )


def is_padding(seen: BatchPadding) -> bool:
    """Whether enough of the columns are unused, and these are padding rather than columns that happen to be alike."""
    if seen.cut or seen.batches < MIN_BATCHES or seen.longest > MAX_USED * seen.width:
        return False
    varied = (seen.most - seen.least) * seen.batches >= MIN_VARIED * seen.width
    return seen.masked == seen.batches or (not seen.full and varied)


def _is_cut(trace: Trace, seen: BatchPadding, frames: bool) -> bool:
    """Whether the script shortens its batches itself, as far as shapes were recorded."""
    if frames:
        return False  # what is embedded is text beside them
    widths = [
        given.dims[1][1]
        for _, given in arguments(trace, trace.operators("^aten::embedding$"))
        if len(given.dims) > 1 and isinstance(given.dims[1], list) and len(given.dims[1]) == 2
    ]
    known = [width for width in widths if isinstance(width, int)]
    return bool(known) and max(known) * seen.batches < (1 + MAX_USED) / 2 * seen.width


def _makes_more(calls: Calls) -> bool:
    """Whether most calls of a model work on what is made from a batch, such as each next word, or on pictures of it."""
    trace = calls.trace
    loads = len(outermost(trace, trace.host_events(DATA_LOADING)))
    names = Counter(name[1] for name in model_calls(calls).names if name[2])
    return max(names.values(), default=0) > _MAX_CALLS * max(loads, len(trace.steps))


def _of_tokens(calls: Calls, evidence: Evidence) -> tuple[Mask, Ints]:
    """Return the calls and the device work of forward and backward passes: from the first layer of a step to the last.

    What is done for each parameter is no part of them.
    """
    trace = calls.trace
    apart = evidence.updates.hold(calls.rows) | calls.within(CLEARS)
    apart |= trace.named(f"{ACCUMULATE}|{_OF_PARAMETERS}", calls.rows)
    layer = calls.backward | calls.differentiated | trace.named(_LAYER, calls.rows)
    layers = np.flatnonzero(layer & ~apart & (calls.steps >= 0))
    count = len(trace.steps)
    begins, ends = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
    np.minimum.at(begins, calls.steps[layers], trace.starts[calls.rows[layers]])
    np.maximum.at(ends, calls.steps[layers], trace.ends[calls.rows[layers]])

    def within(rows: Ints) -> Mask:
        steps, starts = trace.steps.step_of[rows], trace.starts[rows]
        inside: Mask = (steps >= 0) & (starts >= begins[steps]) & (starts < ends[steps])
        return inside

    work, launches = trace.device_work, trace.links.launch_of[trace.device_work]
    mine = (launches >= 0) & within(np.maximum(launches, 0)) & ~calls.launched_by(apart)
    mine &= ~(calls.works_of("collective") | trace.is_category("memcpy", rows=work))
    return within(calls.rows) & ~apart, work[mine]


def _shortened(
    calls: Calls, chosen: Mask, work: Ints, keep: float, keep_quadratic: float, keep_copies: float
) -> Edit:
    """Return the edit in which device work, or on a CPU the time of operators, keeps some shares.

    Copies may be casts of weights, which do not become shorter.
    """
    trace = calls.trace
    quadratic = outermost(trace, trace.operators(_QUADRATIC))
    if not len(work):
        rows = calls.rows[chosen]
        squared = calls.mask(calls.inside(quadratic))[chosen]
        return Edit.of_host(
            trace, rows, _at_least(trace, rows, np.where(squared, keep_quadratic, keep), True)
        )
    launches = trace.links.launch_of[work]
    which = np.isin(trace.device_work, work)
    squared = (index_of_outer(trace, quadratic, launches) >= 0) | calls.works_of("attention")[which]
    shares = np.select([squared, calls.works_of("copy")[which]], [keep_quadratic, keep_copies], keep)
    return Edit(work=work, keep=_at_least(trace, work, shares, False))


def _at_least(trace: Trace, rows: Ints, shares: Floats, on_cpu: bool) -> Floats:
    """Return the shares that remain, with a minimum of time."""
    shortest = _SHORTEST_ON_CPU_NS if on_cpu else _SHORTEST_NS
    result: Floats = np.maximum(shares, np.minimum(shortest / np.maximum(trace.lengths(rows), 1), 1.0))
    return result


RULE = AdviceRule("padded-batches", find)
