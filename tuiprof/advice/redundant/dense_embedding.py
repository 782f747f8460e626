"""The gradient of an embedding is as large as its table, although a batch uses few rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.model import Trace
from tuiprof.model.units import format_rough_share

_GRADIENT: Final = r"^aten::(embedding_dense_backward|_embedding_bag_dense_backward)$"
_FILLS: Final = r"^aten::(zeros|new_zeros|zero_|fill_)$"
#: Minimum share of device work for filling the tables; on a CPU, of the step.
LEAST_SHARE: Final = 0.03
#: An optimizer operator that takes at least this share of the time of filling a table processes such a table.
_OVER_TABLE: Final = 0.25
#: Time for the rows of a batch relative to the whole table.
_KEEP: Final = 0.05


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for embedding gradients that mostly fill memory."""
    gradients = np.flatnonzero(trace.named(_GRADIENT))
    is_gradient = np.zeros(len(trace), dtype=bool)
    is_gradient[gradients] = True
    fills = np.flatnonzero(trace.named(_FILLS))
    fills = fills[trace.nesting.directly_in(is_gradient, fills)]
    if not len(fills):
        return
    low, high = trace.span
    fill_ns, all_ns, whole = trace.lengths(fills), high - low, "step"
    if trace.device_indices:
        fill_ns, all_ns = (
            trace.lengths(evidence.work_in(fills)[0]),
            int(trace.lengths(trace.device_work).sum()),
        )
        whole = "device time"
    share = float(fill_ns.sum()) / max(all_ns, 1)
    if share < LEAST_SHARE:
        return
    updates = np.flatnonzero(trace.is_category("cpu_op"))
    is_step = np.zeros(len(trace), dtype=bool)
    is_step[evidence.optimizer_steps] = True
    updates = updates[trace.nesting.directly_in(is_step, updates)]
    if not trace.device_indices:
        updates = updates[trace.lengths(updates) >= _OVER_TABLE * float(np.median(fill_ns))]
    filled = evidence.without_operators(fills)
    yield Finding(
        f"{format_rough_share(share)} of the {whole} zeroes gradients the size of embedding tables; "
        "the optimizer then updates every row, though a batch uses only a few",
        evidence.function_of(int(gradients[0])),
        "nn.Embedding(sparse=True), nn.EmbeddingBag(sparse=True), with SGD, Adagrad or SparseAdam",
        "high",
        "zero fills inside the embedding's gradient",
        filled | evidence.without_operators(updates, _KEEP, _KEEP),
        filled,
        event=int(gradients[0]),
    )


RULE = AdviceRule("dense-embedding-gradient", find)
