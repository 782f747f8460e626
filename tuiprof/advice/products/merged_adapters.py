"""Adapters are added to their frozen weights in each call (LoRA as W + B @ A), so that whole weights have gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.calls import ACCUMULATE, Calls
from tuiprof.analyses.shared.kernel_names import is_fp32_gemm
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints, Mask
from tuiprof.model.units import format_rough_share
from tuiprof.whatif import EditRange
from tuiprof.whatif.chips import Chip, find_chip

_LAYERS: Final = r"^aten::(linear|matmul|mm|addmm)$"
_PRODUCTS: Final = r"^aten::(matmul|mm)$"
#: What may lie between the product of the adapter and the layer: the frozen weight is added.
_ADDS: Final = "aten::add"
_BETWEEN: Final = r"^aten::(mul|div|add|to|_to_copy|t|transpose|view|reshape|type_as)$"
#: Calls that make the weight, and nodes between those of the layer and of the product, at most.
_MOST_CALLS, _MOST_NODES = 6, 14
#: The gradient of the weight is half of the layer's node.
_OF_WEIGHT: Final = 0.5
#: Passes over the layer's input and output that the two narrow products need instead, forward and backward, as each is
#: bound by memory: likely, and where the change helps least and most.
_PASSES: Final = (6.0, 9.0, 4.0)
#: Passes of the addition of the weight, which tell its size.
_OF_ADDITION: Final = 3
#: Share of the chip's limits that a product and a pass reach. Estimates.
_OF_OPERATIONS, _OF_BYTES = 0.7, 0.85
#: Kernels that compute in TF32, on values of 4 bytes.
_TF32: Final = r"tf32|s1688|_sss_"


@dataclass(frozen=True, slots=True)
class _Adapter:
    """A layer whose weight is made in its call, as indices of calls."""

    layer: int
    node: int  # of the layer, in the backward pass
    makes: Ints  # calls that make the weight, in order; the last addition is among them
    added: int  # the addition of the frozen weight


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for layers whose weight is the sum of a frozen one and of a product, which alone learns."""
    calls, chip = evidence.calls, find_chip(trace.info.device_name)
    if evidence.is_jax or chip is None or not calls.backward.any():
        return
    found = list(_adapters(trace, calls))
    if len(found) < evidence.step_count:
        return
    kind, size = _type(trace, calls, found[0])
    keeps = [np.ones(len(calls.rows)) for _ in _PASSES]
    touched = calls.mask()
    for one in found:
        made = calls.with_backward(calls.mask(one.makes))
        removed_ns = _OF_WEIGHT * calls.work_ns[one.node] + calls.work_ns[made].sum()
        touched |= made | calls.mask([one.node])
        for keep, passes in zip(keeps, _PASSES, strict=True):
            saved = max(1 - passes * _pass_ns(calls, one, chip, kind, size) / max(removed_ns, 1), 0.0)
            keep[one.node] = 1 - _OF_WEIGHT * saved
            keep[made] = 1 - saved
    first = int(calls.rows[found[0].makes[0]])
    forward = calls.mask(*(one.makes for one in found), [one.layer for one in found])
    share = calls.work_ns[touched].sum() / max(calls.work_ns.sum(), 1)
    yield Finding(
        f"a layer adds its adapter to the frozen weight in each call, {evidence.how_often(len(found))}: this and the "
        f"gradient of the full-size weight take {format_rough_share(share)} of device time",
        evidence.function_of(first) or evidence.place_by_share(forward),
        "apply the adapter to the input: F.linear(x, weight) + scale * F.linear(F.linear(x, A), B), two narrow "
        "products and no gradient of the size of the weight",
        "medium",
        "the backward pass computes the gradient of a weight that is the result of an addition, of which only the "
        "added product is trained",
        *EditRange(*map(calls.shortened, keeps)),
        event=first,
    )


def _adapters(trace: Trace, calls: Calls) -> Iterator[_Adapter]:
    """Yield the layers whose node is followed by those of an addition and a product, before a gradient is stored."""
    heavy = calls.work_count_of(calls.works_of("gemm"))
    layers, products, between = (
        trace.named(pattern, calls.rows) & ~calls.backward for pattern in (_LAYERS, _PRODUCTS, _BETWEEN)
    )
    stored = trace.named(ACCUMULATE, calls.rows)
    made_by = calls.forward
    nodes = np.flatnonzero(calls.backward & (heavy > 1) & (made_by >= 0))
    for node in nodes[layers[made_by[nodes]]].tolist():
        layer = int(made_by[node])
        first = _product_of(calls, node, layer, stored, products)
        if first < 0:
            continue
        makes = calls.between(first, layer - 1)
        added = [index for index in makes.tolist() if calls.names[index] == _ADDS]
        if len(added) == 1 and between[makes[1:]].all():
            yield _Adapter(layer, node, makes, added[0])


def _product_of(calls: Calls, node: int, layer: int, stored: Mask, products: Mask) -> int:
    """Return the product whose node follows that of a layer, with no gradient stored in between; -1 = there is none."""
    for index in calls.after(node, _MOST_NODES).tolist():
        maker = int(calls.forward[index])
        if stored[index] and index == node + 1:  # the bias of the layer
            continue
        if not calls.backward[index] or stored[index] or not layer - _MOST_CALLS <= maker <= layer:
            return -1
        if products[maker] and maker != layer:
            return maker
    return -1


def _type(trace: Trace, calls: Calls, one: _Adapter) -> tuple[str, int]:
    """Return the type that a layer computes in, and the bytes of a value."""
    works = trace.device_work[(calls.call_of_work == one.layer) & calls.works_of("gemm")]
    if trace.named(_TF32, works).any():
        return "tfloat32", 4
    return (
        ("float32", 4) if any(is_fp32_gemm(trace.name(work)) for work in works.tolist()) else ("bfloat16", 2)
    )


def _pass_ns(calls: Calls, one: _Adapter, chip: Chip, kind: str, size: int) -> float:
    """Return how long a pass over the input and the output of a layer takes, ns.

    The time of the addition tells the size of the weight, and with it that of the layer the number of rows. Of the
    input's and the output's width, only the product is known: they count as equal.
    """
    bytes_per_ns = _OF_BYTES * chip.bytes_per_s / 1e9
    per_ns = _OF_OPERATIONS * chip.operations_per_s.get(kind, chip.operations_per_s["float32"]) / 1e9
    weight = max(calls.work_ns[one.added] * bytes_per_ns / (_OF_ADDITION * size), 1.0)
    rows = calls.work_ns[one.layer] * per_ns / (2 * weight)
    return 2 * float(rows) * sqrt(weight) * size / bytes_per_ns


RULE = AdviceRule("merged-adapters", find)
