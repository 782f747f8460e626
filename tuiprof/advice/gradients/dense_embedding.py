"""The gradient of an embedding is as large as its table, although a batch uses few rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.model.units import format_rough_share
from tuiprof.whatif import Edit

_GRADIENT: Final = r"^aten::(embedding_dense_backward|_embedding_bag_dense_backward)$"
_FILLS: Final = r"^aten::(zeros|new_zeros|zero_|fill_)$"
#: Minimum share of device work for filling the tables; on a CPU, of the step. A smaller fill is that of a vocabulary,
#: most of whose rows a batch of text may use.
MIN_SHARE: Final = 0.02
#: An optimizer operator that takes at least this share of the time of filling a table on a CPU processes such a table.
_OVER_TABLE: Final = 0.25
#: How often an optimizer operator reads or writes a tensor as large as the table: AdamW's fused one reads gradient,
#: parameter and two moments and writes three of them; addcmul and addcdiv read three and write one; others at most
#: read two and write one.
_PASSES: Final = {"_fused_": 7, "addc": 4, "": 3}
#: A pass that reads takes this many times as long as a fill (an H100 takes 1.2 to 1.25 times).
_PASS: Final = 1.25
#: Share of the update that remains: the rows of a batch have to be sorted and summed, by kernels of their own. Likely,
#: and most helpful.
_KEEP: Final = (0.2, 0.05)
#: Likewise of the gradient's own kernels, which sort and sum the rows too: SGD without momentum adds each row to the
#: table as it is. Both are estimates.
_KEEP_SUMS: Final = (0.5, 0.2)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for embedding gradients that mostly fill memory."""
    is_gradient = trace.named(_GRADIENT)
    gradients, fills = np.flatnonzero(is_gradient), np.flatnonzero(trace.named(_FILLS))
    fills = fills[trace.nesting.directly_in(is_gradient, fills)]
    if not len(fills):
        return
    filling, _ = evidence.work_in(fills)
    if trace.device_indices:
        fill_ns, share, whole = trace.lengths(filling), evidence.share_of_device_time(filling), "device time"
    else:
        fill_ns, share, whole = trace.lengths(fills), evidence.share_of_time(fills), "step"
    if share < MIN_SHARE:
        return
    filled = evidence.without_operators(fills)
    work, _ = evidence.work_in(gradients)
    summed = work[~np.isin(work, filling)] if _is_plain_sgd(evidence) else work[:0]
    likely, most = (
        filled | _without_updates(trace, evidence, fill_ns, keep) | Edit.of_work(summed, keep_sums)
        for keep, keep_sums in zip(_KEEP, _KEEP_SUMS, strict=True)
    )
    yield Finding(
        "gradients are as large as embedding tables: zeroing them takes "
        f"{format_rough_share(share)} of the {whole}, and the optimizer updates every row, though a batch uses few",
        evidence.function_of(int(gradients[0])),
        "nn.Embedding(sparse=True), nn.EmbeddingBag(sparse=True), with SGD, Adagrad or SparseAdam",
        "high",
        "zero fills inside the embedding's gradient",
        likely,
        filled,
        most,
        event=int(gradients[0]),
    )


def _is_plain_sgd(evidence: Evidence) -> bool:
    """Return whether the optimizer is SGD and shows no momentum, whose update would be a product.

    A fused step does not show it.
    """
    trace, calls, steps = evidence.trace, evidence.calls, evidence.updates.rows
    if not len(steps) or not trace.name(int(steps[0])).startswith("Optimizer.step#SGD."):
        return False
    return not trace.named(r"^aten::(_foreach_)?mul_$", calls.rows[evidence.updates.hold(calls.rows)]).any()


def _without_updates(trace: Trace, evidence: Evidence, fill_ns: Ints, keep: float) -> Edit:
    """Return the edit in which the optimizer updates the rows of a batch instead of whole tables."""
    steps = evidence.updates.rows
    if not trace.device_indices:
        updates = trace.operators()
        updates = updates[np.isin(trace.nesting.parent[updates], steps)]
        updates = updates[trace.lengths(updates) >= _OVER_TABLE * float(np.median(fill_ns))]
        return evidence.without_operators(updates, keep, keep)
    # One operator may update all parameters: of its time, the tables take what they take to fill, for each pass.
    calls = evidence.calls
    pass_ns = _PASS * float(fill_ns.sum()) / max(len(steps), 1)
    kept = np.ones(len(calls.rows))
    for index in np.flatnonzero(evidence.updates.hold(calls.rows) & (calls.work_ns > 0)).tolist():
        passes = next(number for part, number in _PASSES.items() if part in calls.names[index])
        kept[index] = 1 - (1 - keep) * min(passes * pass_ns / calls.work_ns[index], 1.0)
    changed = calls.launched_by(kept < 1)
    return Edit.of_work(trace.device_work[changed], kept[calls.call_of_work[changed]])


RULE = AdviceRule("dense-embedding-gradient", find)
