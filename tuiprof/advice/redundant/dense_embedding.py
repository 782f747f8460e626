"""The gradient of an embedding is as large as its table, of which a batch touches a few rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.shared.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.shared.optimizers import optimizer_steps
from tuiprof.model import Trace
from tuiprof.model.units import format_rough_share

_GRADIENT: Final = r"^aten::(embedding_dense_backward|_embedding_bag_dense_backward)$"
_FILLS: Final = r"^aten::(zeros|new_zeros|zero_|fill_)$"
#: Filling the tables takes at least this part of the device's work; on a CPU, of the step.
LEAST_SHARE: Final = 0.03
#: An operator of the optimizer that takes this part of the time of filling a table or more goes over such a table.
_OVER_TABLE: Final = 0.25
#: The rows that a batch touches take this part of what the table does.
_KEEP: Final = 0.05


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for embeddings' gradients that mostly fill memory."""
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
    is_step[optimizer_steps(trace)] = True
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
