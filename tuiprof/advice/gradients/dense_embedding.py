"""The gradient of an embedding is as large as its table, although a batch uses few rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.calls import Calls, index_of_outer
from tuiprof.model import Trace
from tuiprof.model.intervals import Floats, Ints
from tuiprof.model.units import format_rough_share
from tuiprof.whatif import Edit, EditRange

_GRADIENT: Final = r"^aten::(embedding_dense_backward|_embedding_bag_dense_backward)$"
_NODE: Final = r"Embedding(Bag)?Backward"
_FILLS: Final = r"^aten::(zeros|new_zeros|zero_|fill_)$"
#: Minimum share of device work for filling the tables; on a CPU, of the step. A smaller fill is that of a vocabulary,
#: most of whose rows a batch of text may use.
MIN_SHARE: Final = 0.02
#: Where the optimizer's passes over the tables are known too, of fills and passes.
MIN_SHARE_WITH_PASSES: Final = 0.1
#: Reading a row and writing it takes longer than filling two: a batch whose look-up takes longer than this many fills
#: of the table may use most of its rows.
_MAX_FILLS: Final = 2
#: An optimizer operator that takes at least this share of the time of filling a table on a CPU processes such a table.
_OVER_TABLE: Final = 0.25
#: How often an optimizer operator reads or writes a tensor as large as the table: AdamW's fused one reads gradient,
#: parameter and two moments and writes three of them; addcmul and addcdiv read three and write one; others at most
#: read two and write one, and kernels over lists of tensors say how many lists there are.
_PASSES: Final = {"_fused_": 7, "addc": 4, "": 3}
_LISTS: Final = re.compile(r"TensorList(?:Scalar)?(?:List)?Metadata<(?:\w+, )?(\d)>")
#: A pass that reads takes this many times as long as a fill (an H100 and an H200 take 1.2 to 1.35 times).
_PASS: Final = 1.25
#: Share of the update that remains on a CPU. Likely, least and most helpful.
_KEEP: Final = (0.2, 1.0, 0.05)
#: On a device, what remains grows with the batch: its rows are sorted and summed, the host waits for their number,
#: and some 25 kernels update them. For each table, ns, and how many look-ups of its rows that takes; a likely one, and
#: this many times as much. Fixes of two models on an H200 left 0.24 and 0.95 ms for one table, of one on an H100 1 ms
#: for two.
_OF_TABLE_NS: Final = 400_000
_TIMES: Final = (1.0, 3.0, 0.0)
#: Share that remains of the gradient's own kernels, which sort and sum the rows too: SGD without momentum adds each row
#: to the table as it is. These are estimates.
_KEEP_SUMS: Final = (0.5, 1.0, 0.2)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for embedding gradients that mostly fill memory, and that an optimizer reads as a whole."""
    is_gradient = trace.named(_GRADIENT)
    gradients, fills = np.flatnonzero(is_gradient), np.flatnonzero(trace.named(_FILLS))
    fills = fills[trace.nesting.directly_in(is_gradient, fills)]
    if not len(fills):
        return
    filling, _ = evidence.work_in(fills)
    work, _ = evidence.work_in(gradients)
    plain = _is_plain_sgd(evidence)
    doing = "the optimizer updates every row"
    if trace.device_indices:
        share, whole = evidence.share_of_device_time(filling), "device time"
        fill_ns, every_ns = (float(trace.lengths(rows).sum()) for rows in (filling, trace.device_work))
        looking_up_ns = _looking_up_ns(evidence.calls)
        passes = _Passes.of(evidence, gradients, trace.lengths(filling))
        passes_ns = passes.work_ns if passes is not None else 0.0
        is_large = share >= MIN_SHARE or fill_ns + passes_ns >= MIN_SHARE_WITH_PASSES * every_ns
        if looking_up_ns > _MAX_FILLS * fill_ns or not is_large:
            return
        remaining_ns = looking_up_ns + (0 if plain else _OF_TABLE_NS * len(gradients))
        updates = [passes.without(times * remaining_ns) if passes is not None else Edit() for times in _TIMES]
        if passes is not None:
            doing = f"updating every row {format_rough_share(passes_ns / every_ns)}"
    else:
        share, whole = evidence.share_of_time(fills), "step"
        if share < MIN_SHARE:
            return
        updates = [_without_updates(trace, evidence, trace.lengths(fills), keep) for keep in _KEEP]
    filled = evidence.without_operators(fills)
    summed = work[~np.isin(work, filling)] if plain else work[:0]
    every = zip(updates, _KEEP_SUMS, strict=True)
    edits = EditRange(*(filled | update | Edit.of_work(summed, keep) for update, keep in every))
    yield Finding(
        "gradients are as large as embedding tables: zeroing them takes "
        f"{format_rough_share(share)} of the {whole}, and {doing}, though a batch uses few",
        evidence.function_of(int(gradients[0])),
        "nn.Embedding(sparse=True), nn.EmbeddingBag(sparse=True), with SGD, Adagrad or SparseAdam",
        "high",
        "zero fills inside the embedding's gradient",
        *edits,
        event=int(gradients[0]),
    )


def _looking_up_ns(calls: Calls) -> float:
    """Return the device time of the look-ups whose gradients are dense, ns; 0 = unknown."""
    gradients = np.flatnonzero(calls.backward & calls.trace.named(_NODE, calls.rows))
    return float(calls.work_ns[calls.forward[gradients][calls.forward[gradients] >= 0]].sum())


@dataclass(frozen=True, slots=True, eq=False)
class _Passes:
    """The part of the optimizers' device work that goes over whole tables."""

    calls: Calls
    share: Floats  # of the device work of each call

    @classmethod
    def of(cls, evidence: Evidence, gradients: Ints, fill_ns: Ints) -> _Passes | None:
        """Find it by the time that it takes to fill the tables; None = there is none.

        One operator may update all parameters: of its time, the tables take what they take to fill, for each pass. Of
        operators that update a parameter each, those over tables take longest.
        """
        calls, rows = evidence.calls, evidence.updates.rows
        trace = calls.trace
        backward = calls.inside(gradients)
        passes = sum(bool(np.isin(nodes, backward).any()) for nodes in calls.backward_passes())
        pass_ns = _PASS * float(fill_ns.sum()) / max(passes, 1)
        smallest_ns = float(fill_ns.min()) if len(fill_ns) else 0.0
        share = np.zeros(len(calls.rows))
        chosen = np.flatnonzero(evidence.updates.hold(calls.rows) & (calls.work_ns > 0))
        optimizer = index_of_outer(trace, rows, calls.rows[chosen])
        left: dict[tuple[int, str], float] = {}
        for at in np.argsort(-calls.work_ns[chosen], kind="stable").tolist():
            index = int(chosen[at])
            key, took_ns = (int(optimizer[at]), calls.names[index]), float(calls.work_ns[index])
            number = _passes_of(calls, index)
            if took_ns < number / 2 * smallest_ns:
                continue  # over other parameters
            mine_ns = min(left.get(key, number * pass_ns), took_ns)
            left[key] = left.get(key, number * pass_ns) - mine_ns
            share[index] = mine_ns / took_ns
        return cls(calls, share) if share.any() else None

    @property
    def work_ns(self) -> float:
        """Its device time, ns."""
        return float((self.share * self.calls.work_ns).sum())

    def without(self, remaining_ns: float) -> Edit:
        """Return the edit in which only some of its time remains, ns."""
        calls = self.calls
        keep = 1 - self.share * (1 - min(remaining_ns / self.work_ns, 1.0))
        changed = calls.launched_by(keep < 1)
        return Edit.of_work(calls.trace.device_work[changed], keep[calls.call_of_work[changed]])


def _passes_of(calls: Calls, index: int) -> int:
    """Return how often an operator of an optimizer reads or writes a tensor of the size of each parameter."""
    name = calls.names[index]
    kernel = calls.trace.device_work[np.flatnonzero(calls.call_of_work == index)[0]]
    lists = _LISTS.search(calls.trace.name(int(kernel)))
    if lists is None or "_fused_" in name:
        return next(number for part, number in _PASSES.items() if part in name)
    # One in place writes one of the lists that it reads.
    return int(lists[1]) + name.endswith("_")


def _is_plain_sgd(evidence: Evidence) -> bool:
    """Return whether the optimizer is SGD and shows no momentum, whose update would be a product.

    A fused step does not show it.
    """
    trace, calls, steps = evidence.trace, evidence.calls, evidence.updates.rows
    if not len(steps) or not trace.name(int(steps[0])).startswith("Optimizer.step#SGD."):
        return False
    return not trace.named(r"^aten::(_foreach_)?mul_$", calls.rows[evidence.updates.hold(calls.rows)]).any()


def _without_updates(trace: Trace, evidence: Evidence, fill_ns: Ints, keep: float) -> Edit:
    """Return the edit in which the optimizer updates the rows of a batch instead of whole tables, on a CPU."""
    updates = trace.operators()
    updates = updates[np.isin(trace.nesting.parent[updates], evidence.updates.rows)]
    updates = updates[trace.lengths(updates) >= _OVER_TABLE * float(np.median(fill_ns))]
    return evidence.without_operators(updates, keep, keep)


RULE = AdviceRule("dense-embedding-gradient", find)
