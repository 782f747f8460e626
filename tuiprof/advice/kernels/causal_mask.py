"""Fused attention is given a mask tensor that all samples share, as causal masks are."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.arguments import ASKED, arguments
from tuiprof.analyses.shared.calls import Calls, index_of_outer
from tuiprof.analyses.shared.launch_shapes import ELEMENTWISE, grid_widths
from tuiprof.analyses.shared.waits import outermost
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.whatif import Edit, EditRange

_ATTENTION: Final = "^aten::scaled_dot_product_attention$"
#: Kernels that take a mask. Flash attention takes none.
_MASKABLE: Final = r"^aten::_scaled_dot_product_(cudnn|efficient)_attention$"
#: Flash attention takes no float32.
_FLOAT32: Final = "fmha_cutlassF_f32_"
#: PyTorch adds a mask to the scores, so it turns one of bool into numbers in each call.
_CONVERTS: Final = r"^aten::(where|scalar_tensor)$"
#: Kernels whose grid begins with the blocks of queries, and queries of a block.
_BY_QUERIES: Final = (("convert_dq_to_16bits", 32), ("fmha_cutlassF_[a-z0-9]+_aligned_64x", 64))
#: With fewer blocks, a mask of two samples may look like that of one.
_MIN_BLOCKS: Final = 4
_MAKES_CAUSAL: Final = r"^aten::(tril|triu)_?$"
#: Time with is_causal relative to that with a mask: likely, and where it helps most. That the mask may not be causal is
#: where it helps least. Measured in docs/results/predictions.md.
_OF_CUDNN: Final = (0.5, 0.35)
_OF_EFFICIENT: Final = (0.3, 0.15)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for masks as large as one sample's scores."""
    calls = evidence.calls
    fused = np.flatnonzero(trace.named(_MASKABLE))
    if not len(fused):
        return
    inside = calls.inside(fused)
    float32 = calls.mask(calls.call_of_work[trace.named(_FLOAT32, trace.device_work)])
    attention = trace.named(_ATTENTION, calls.rows) & calls.mask(inside) & (calls.work_count > 0) & ~float32
    shared = _shared_masks(calls, np.flatnonzero(attention))
    if not len(shared):
        return
    causal = bool(trace.named(_MAKES_CAUSAL, calls.rows).any())
    event = int(calls.rows[shared[0]])
    yield Finding(
        f"scaled_dot_product_attention is given a mask that all samples share, {evidence.how_often(len(shared))}",
        evidence.function_of(event),
        "if the mask is causal, pass is_causal=True instead of attn_mask: FlashAttention or cuDNN's kernel then skips "
        "the masked half of the scores",
        "medium" if causal else "low",
        "the mask has an element for each pair of positions, but not for each sample"
        + (", and the step makes a triangular tensor" if causal else ", as causal masks do")
        + "; with a mask, all scores are computed",
        *_without_mask(evidence, shared, inside[trace.named("efficient", fused)]),
        event=event,
    )


def _shared_masks(calls: Calls, attention: Ints) -> Ints:
    """Return which calls have a mask that all samples share, by the calls of one step."""
    if not len(attention):
        return attention
    _, first, step = np.unique(calls.steps[attention], return_index=True, return_inverse=True)
    position = np.arange(len(attention)) - first[step]
    asked = attention[step == np.bincount(step).argmax()][:ASKED]
    shared = np.isin(asked, [*_by_shapes(calls, asked), *_by_grids(calls, asked)])
    found: Ints = attention[shared[position % len(asked)]]
    return found


def _by_shapes(calls: Calls, asked: Ints) -> Iterator[int]:
    """Yield the calls whose mask has the size of one sample's scores, if shapes were recorded."""
    index_of = dict(zip(calls.rows[asked].tolist(), asked.tolist(), strict=True))
    for row, given in arguments(calls.trace, calls.rows[asked]):
        query, _, _, mask = [*map(_shape, given.dims), *[()] * 4][:4]
        square = len(query) > 2 and mask[-2:] == query[-2:-1] * 2
        # That of a single sample has a dimension for the batch only if it was made for each sample.
        if square and math.prod(mask[:-2]) == 1 and (len(mask) == 2 or math.prod(query[:-3]) > 1):
            yield index_of[row]


def _shape(dims: Any) -> tuple[int, ...]:
    whole = isinstance(dims, list) and all(isinstance(size, int) for size in dims)
    return tuple(dims) if whole else ()


def _by_grids(calls: Calls, asked: Ints) -> Iterator[int]:
    """Yield the calls that convert a mask with the size of one sample's scores, by the grids of kernels."""
    trace, work = calls.trace, calls.trace.device_work
    maker = np.where(calls.call_of_work >= 0, calls.forward[calls.call_of_work], -1)
    of_call = np.where(
        maker >= 0, maker, calls.call_of_work
    )  # the call, or the one whose backward node it is
    mine = work[np.isin(of_call, asked)]
    index_of = dict(zip(mine.tolist(), of_call[np.isin(of_call, asked)].tolist(), strict=True))
    lengths = {}
    for name, queries in _BY_QUERIES:
        rows = mine[trace.named(name, mine)]
        for row, blocks in zip(rows.tolist(), grid_widths(trace, rows).tolist(), strict=True):
            if blocks >= _MIN_BLOCKS:
                lengths[index_of[row]] = (queries * (blocks - 1) + 1, queries * blocks)
    converts = outermost(trace, np.flatnonzero(trace.named(_CONVERTS)))
    launches = trace.links.launch_of[mine]
    launched = mine[(launches >= 0) & (index_of_outer(trace, converts, launches) >= 0)]
    rows = launched[trace.named(ELEMENTWISE, launched)]
    for row, blocks in zip(rows.tolist(), grid_widths(trace, rows).tolist(), strict=True):
        threads, each = map(int, re.findall(ELEMENTWISE, trace.name(row))[0])
        least, most = lengths.get(index_of[row], (0, 0))
        if 0 <= (blocks - 1) * threads * each < most**2 and least**2 <= blocks * threads * each:
            yield index_of[row]


def _without_mask(evidence: Evidence, shared: Ints, efficient: Ints) -> EditRange:
    """Return the edit in which some calls get no mask, and their kernels skip half of the scores."""
    calls, trace = evidence.calls, evidence.trace
    chosen = calls.mask(shared)
    converts = np.flatnonzero(trace.named(_CONVERTS))
    inside = calls.inside(converts)
    converted = evidence.without_operators(converts[(inside >= 0) & chosen[inside]])
    of_efficient = calls.launched_by(calls.with_backward(chosen & calls.mask(efficient)))
    works = calls.launched_by(calls.with_backward(chosen))
    likely, most = (
        converted | Edit(work=trace.device_work[works], keep=np.where(of_efficient, slow, fast)[works])
        for slow, fast in zip(_OF_EFFICIENT, _OF_CUDNN, strict=True)
    )
    return EditRange(likely, Edit(), most)


RULE = AdviceRule("causal-mask", find)
