"""FlexAttention is given no block mask, so it computes the scores of all pairs of positions."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.products.shapes import shape_of
from tuiprof.analyses.shared.arguments import ASKED, Arguments, arguments
from tuiprof.model import Trace
from tuiprof.model.units import format_count, format_rough_share
from tuiprof.whatif import Edit, EditRange

#: Kernels that torch.compile makes of ``flex_attention``, forward and backward, also the operators that launch them.
_KERNELS: Final = r"^triton_tem_\w*flex_attention"
#: A mask has a block for 128 positions by default: of fewer positions than some blocks it saves little.
_MIN_POSITIONS: Final = 512
#: Share of the kernels that remains: a causal mask leaves half of the blocks and those on the diagonal; a window leaves
#: few; a bias over all positions leaves all. Estimates.
_KEEP: Final = (0.55, 1.0, 0.1)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for kernels whose table of blocks has a single entry, which stands for all positions."""
    work = trace.device_work[trace.named(_KERNELS, trace.device_work)]
    if not len(work):
        return
    positions: dict[str, list[tuple[int, int]]] = {}
    for row, given in arguments(trace, trace.operators(_KERNELS)[:ASKED]):
        positions.setdefault(trace.name(row), []).append(_computed_at_once(given))
    dense = [name for name, found in positions.items() if all(map(min, found))]
    codes = [code for code, name in enumerate(trace.names) if name in dense]
    work = work[np.isin(trace.name_codes[work], codes)]
    if not len(work):
        return
    event = trace.longest(work)
    queries, keys = map(format_count, positions[trace.name(event)][0])
    yield Finding(
        f"flex_attention is given no block mask and computes the scores of all {queries} × {keys} positions: "
        f"{format_rough_share(evidence.share_of_device_time(work))} of device time",
        evidence.function_of(event),
        "if score_mod masks scores (a causal mask, a window, documents), pass the same condition as "
        "block_mask=create_block_mask(mask_mod, …), made once and not in each step: blocks without scores are skipped",
        "low",
        "the table of blocks that the kernel takes has a single entry, by the shapes of its inputs; whether scores are "
        "masked is not in the trace",
        *EditRange(*(Edit.of_work(work, keep) for keep in _KEEP)),
        event=event,
    )


def _computed_at_once(given: Arguments) -> tuple[int, int]:
    """Return the queries and keys of a kernel that computes all scores; none = it skips some, or there are few."""
    shapes = [shape_of(dims) for dims in given.dims]
    tables = [
        shape for shape, kind in zip(shapes, given.types, strict=False) if kind == "int" and len(shape) > 2
    ]
    queries, keys = (shape[-2] if len(shape) == 4 else 0 for shape in [*shapes, (), ()][:2])
    at_once = bool(tables) and all(prod(shape) == 1 for shape in tables)
    return (queries, keys) if at_once and min(queries, keys) >= _MIN_POSITIONS else (0, 0)


RULE = AdviceRule("flex-block-mask", find)
