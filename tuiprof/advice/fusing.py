"""Sequences of framework calls that one call, or one compiled kernel, could replace, and the step if it did.

What remains of a fused sequence is one memory pass over its inputs and outputs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np

from tuiprof.advice.carried import carried
from tuiprof.advice.levers import argument
from tuiprof.analyses.shared.arguments import has_shapes
from tuiprof.analyses.shared.calls import COPY, Calls, loops
from tuiprof.analyses.shared.calls import calls as calls_of
from tuiprof.analyses.shared.optimizers import updates
from tuiprof.model import Trace
from tuiprof.model.intervals import Floats, Ints, Mask
from tuiprof.model.trace import cached_on_trace
from tuiprof.model.units import format_rough_share
from tuiprof.whatif import Edit, EditRange

_MATMUL: Final = re.compile(r"^aten::(matmul|__matmul__|bmm|baddbmm|einsum|mm)$")
_SOFTMAX: Final = re.compile(r"^aten::(softmax|_softmax|special_softmax)$")
_MEAN: Final = re.compile(r"^aten::(mean|var|std|var_mean|std_mean|sum|norm|linalg_vector_norm)$")
_ROOT: Final = re.compile(r"^aten::(r?sqrt_?|std|std_mean|pow_?|norm|linalg_vector_norm)$")
#: Roots whose reciprocal scales: a distance times something is no norm.
_DIVIDED_BY: Final = re.compile(r"^aten::(sqrt_?|std|norm|linalg_vector_norm)$")
_DIVIDES: Final = re.compile(r"^aten::(div|reciprocal)_?$")
#: No norm has these: radial functions of a distance do.
_CURVES: Final = re.compile(r"^aten::(sin|cos|exp)_?$")
_SCALE: Final = re.compile(r"^aten::(mul_?|div_?)$")
_SHIFT: Final = ("aten::add", "aten::add_")
#: Operators that copy the heads of an attention next to each other.
_JOIN_HEADS: Final = ("aten::reshape", "aten::contiguous", "aten::flatten", "aten::clone")
#: Kinds of work that the compiler fuses into one pass over memory.
POINTWISE: Final = frozenset({"elementwise", "copy", "random"})
#: Additional kinds of work in a fused normalization.
ROWWISE: Final = POINTWISE | {"reduction"}
#: Calls between the products of an attention and its softmax: scaling, making and applying masks, casts, dropout.
_BETWEEN: Final = 12
#: Other calls.
_HEAVY: Final = frozenset({"gemm", "convolution", "attention", "norm", "collective", "optimizer"})
#: Gradient copies of a reducer between its buckets and the parameters, which no compiler sees.
_NOT_COMPILED: Final = r"^(torch\.distributed|c10d::)"
#: Minimum number of computing calls in a chain, and a shorter one that has a kernel of its own (silu, glu).
MIN_CHAIN: Final = 3
SWISH: Final = ("aten::sigmoid", "aten::mul")
#: Activations that have a kernel of their own in torch.nn.functional, by the operators that write them out.
_ACTIVATIONS: Final = {
    "mish": re.compile(r"\bsoftplus tanh mul\b"),
    "hardswish": re.compile(r"\badd (relu6|hardtanh|clamp) (mul div|div mul|mul mul)\b"),
    "gelu": re.compile(r"\b(mul (div|mul) erf add mul|(div|mul) erf add mul mul)\b"),
    'gelu(approximate="tanh")': re.compile(
        r"\b(mul pow mul add mul tanh add mul|pow mul add mul tanh add mul mul"
        r"|mul mul mul mul add mul tanh add mul)\b"
    ),
}
_SHORTEST_ACTIVATION: Final = 3
#: A call, or so many in the same order, repeated more often than this process one tensor after the other.
_LONGEST_PERIOD: Final = 32
_MAX_OF_ONE: Final = 8
#: Maximum number of operators that a finding names.
_NAMED: Final = 10
#: Minimum and maximum number of calls in a written-out norm.
_NORM: Final = range(4, 16)


@dataclass(frozen=True, slots=True)
class Region:
    """A run of calls on one thread in one step."""

    calls: Ints  # their indices, those without device work among them
    busy: Ints  # those with device work


@dataclass(frozen=True, slots=True)
class Regions:
    """The regions found; each call is in at most one."""

    attention: tuple[Region, ...]  # two matrix products around a softmax
    norms: tuple[Region, ...]  # means, differences, a root and a division: a normalisation over rows
    #: By the function of torch.nn.functional that does the same in one kernel.
    activations: dict[str, tuple[Region, ...]]
    chains: tuple[Region, ...]  # elementwise calls in a row, except loops of a few calls


@cached_on_trace
def find_regions(trace: Trace) -> Regions:
    """Find regions in the forward passes of all steps (of the whole trace if it marks none)."""
    calls = calls_of(trace)
    attention: list[Region] = []
    norms: list[Region] = []
    activations: dict[str, list[Region]] = {}
    chains: list[Region] = []
    pointwise, rowwise = _all_work(calls, POINTWISE), _all_work(calls, ROWWISE)
    light = _all_work(calls, frozenset(calls.kinds) - _HEAVY)
    forward = ~(calls.backward | updates(trace).hold(calls.rows))
    for mask in (pointwise, rowwise, light):
        mask &= forward  # other calls end a sequence
    # Fused attention has no second derivative, and what is compiled has none.
    once = ~calls.differentiated_twice
    rowwise &= once
    light &= once
    pointwise &= ~trace.named(_NOT_COMPILED, calls.rows)
    pointwise[carried(trace)] = False  # copies that a compiler would make as well
    for run in _by_thread_and_step(calls, np.flatnonzero(calls.work_count > 0)):
        taken = np.zeros(len(run), dtype=bool)
        for first, last in _attentions(calls, run, light):
            if not taken[first : last + 1].any():
                taken[first : last + 1] = True
                attention.append(_region(calls, run[first : last + 1]))
        for first, last in _stretches(rowwise[run] & ~taken, _NORM.start):
            for low, high in _norms(calls.names_of(run[first : last + 1])):
                taken[first + low : first + high + 1] = True
                norms.append(_region(calls, run[first + low : first + high + 1]))
        for first, last in _stretches(pointwise[run] & ~taken, _SHORTEST_ACTIVATION):
            for function, low, high in _activations(calls.names_of(run[first : last + 1])):
                taken[first + low : first + high + 1] = True
                region = _region(calls, run[first + low : first + high + 1])
                activations.setdefault(function, []).append(region)
        for first, last in _stretches(pointwise[run] & once[run] & ~taken):
            chain = run[first : last + 1]
            long = len(chain) >= MIN_CHAIN and not _is_loop(calls, chain)
            if long or calls.names_of(chain) == SWISH:
                chains.append(_region(calls, chain))
    by_function = {function: tuple(found) for function, found in activations.items()}
    return Regions(tuple(attention), tuple(norms), by_function, tuple(chains))


def passes_over_scores_ns(trace: Trace) -> Floats:
    """Return how long each of ``trace.device_work`` takes at least, as a product that reads or writes attention scores.

    The softmax, which reads and writes them once, tells how long one pass takes, ns; 0 for other work.
    """
    calls = calls_of(trace)
    softmax = calls.work_ns_of(calls.works_of("softmax or loss"))
    passes = np.zeros(len(calls.rows))
    for region in find_regions(trace).attention:
        passes[region.calls] = softmax[region.calls].sum() / 2
    passes = np.where(calls.forward >= 0, passes[calls.forward], passes)
    return np.where(calls.works_of("gemm"), np.append(passes, 0)[calls.call_of_work], 0.0)


def _is_loop(calls: Calls, chain: Ints) -> bool:
    """Whether most of a chain is a few calls repeated, which no compiler makes one kernel."""
    codes = calls.codes[chain]
    repeated = sum(period * times for _, period, times in loops(codes, _LONGEST_PERIOD, _MAX_OF_ONE + 1))
    return 2 * repeated > len(chain)


def _all_work(calls: Calls, kinds: frozenset[str]) -> Mask:
    """Return which calls have only work of the given kinds, ignoring copies between host and device."""
    trace = calls.trace
    allowed = calls.works_of(*kinds)
    allowed &= ~trace.named(r"HtoD|DtoH|Host", trace.device_work)
    result: Mask = (calls.work_count_of(~allowed) == 0) & (calls.work_count > 0)
    return result


def _by_thread_and_step(calls: Calls, indices: Ints) -> Iterator[Ints]:
    """Yield the calls of each thread in each step; calls before the first step and after the last are separate."""
    for track in np.unique(calls.tracks[indices]):
        mine = indices[calls.tracks[indices] == track]
        yield from np.split(mine, np.flatnonzero(np.diff(calls.steps[mine])) + 1)


def _stretches(mask: Mask, shortest: int = 1) -> Iterator[tuple[int, int]]:
    """Yield first and last position of each run of True that is so long."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False]))))
    first, last = edges[::2], edges[1::2] - 1
    long = last - first + 1 >= shortest
    yield from zip(first[long].tolist(), last[long].tolist(), strict=True)


def _region(calls: Calls, busy: Ints) -> Region:
    return Region(calls.between(int(busy[0]), int(busy[-1])), busy)


def _attentions(calls: Calls, run: Ints, light: Mask) -> Iterator[tuple[int, int]]:
    names = calls.names_of(run)
    for position, name in enumerate(names):
        if not _SOFTMAX.match(name) or not light[run[position]]:
            continue
        first = _product(names, run, light, range(position - 1, max(position - 1 - _BETWEEN, -1), -1))
        last = _product(names, run, light, range(position + 1, min(position + 1 + _BETWEEN, len(run))))
        if first is not None and last is not None:
            if first > 0 and _SCALE.match(names[first - 1]):  # of the queries
                first -= 1
            if last + 1 < len(names) and names[last + 1] in _JOIN_HEADS:
                last += 1
            yield first, last


def _product(names: Sequence[str], run: Ints, light: Mask, positions: range) -> int | None:
    """Return the position of the next matrix product; None if other work comes first."""
    for position in positions:
        if _MATMUL.match(names[position]):
            return position
        if not light[run[position]]:
            return None
    return None


def _ends_norm(name: str) -> bool:
    return bool(_MEAN.match(name) or _CURVES.match(name))


def _norms(names: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield first and last position of each written-out norm: from its first mean to its last scaling."""
    means = [i for i, name in enumerate(names) if _MEAN.match(name)]
    start = 0
    for root in (i for i, name in enumerate(names) if _ROOT.match(name)):
        first = next((i for i in means if start <= i < root), None)
        squares = names[root].startswith("aten::pow") and names[root - 1] == "aten::sub"
        if first is None or squares:
            continue
        # The next one begins with the next mean, or with the square before it.
        until = next((i for i in range(root + 1, len(names)) if _ends_norm(names[i])), len(names))
        scales = [i for i in range(root + 1, until) if _SCALE.match(names[i])]
        if not scales:  # the square of a variance
            continue
        if _DIVIDED_BY.match(names[root]) and not any(map(_DIVIDES.match, names[root:until])):
            continue
        if until < len(names) and _is_square(names[until - 1]) and scales[0] < until - 1:
            until -= 1
            scales = [i for i in scales if i < until]
        # Squares may come before the mean of a root mean square, a shift after the scaling.
        if first > start and _is_square(names[first - 1]):
            first -= 1
        last = scales[-1]
        if last + 1 < until and names[last + 1] in _SHIFT:
            last += 1
        if last - first + 1 in _NORM:
            yield first, last
        start = last + 1


def _activations(names: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yield the function, and first and last position, of each activation that is written out."""
    text = " ".join(name.removeprefix("aten::").rstrip("_") for name in names)
    for function, written in _ACTIVATIONS.items():
        for match in written.finditer(text):
            first = text.count(" ", 0, match.start())
            yield function, first, first + match[0].count(" ")


def _is_square(name: str) -> bool:
    return name in ("aten::pow", "aten::square", "aten::mul")


#: Kinds of work that torch.compile may fuse with their neighbours, and what a trace of compiled code shows.
_FUSIBLE: Final = ROWWISE | {"norm", "softmax or loss"}
_COMPILED: Final = r"^(triton_|Torch-Compiled Region|## Call CompiledFxGraph|CompiledFunction)"
#: Minimum share of such work that is worth trying it. With three whole models on an H100, it saved half of this work in
#: two, and nothing in the third (docs/results/predictions.md).
_WORTH_COMPILING: Final = 0.25


def left_to_compile(trace: Trace) -> str:
    """Return what torch.compile may shorten, as a sentence; empty = too little, or some code is compiled.

    Without shapes, it says that more rules would apply with them.
    """
    if trace.info.framework.startswith("JAX") or trace.named(_COMPILED).any():
        return ""
    calls = calls_of(trace)
    fusible = calls.works_of(*_FUSIBLE) & trace.is_category("kernel", rows=trace.device_work)
    fusible &= ~calls.launched_by(calls.with_backward(calls.differentiated_twice))
    lengths = trace.lengths(trace.device_work)
    share = float(lengths[fusible].sum()) / max(int(lengths.sum()), 1)
    if share < _WORTH_COMPILING:
        return ""
    return (
        f"try {argument(trace, 'compile', 'torch.compile(model)')}, which may fuse {format_rough_share(share)} of "
        "device time: copies, elementwise operators, norms and losses"
        + ("" if has_shapes(trace) else "; with --shapes, rules about the sizes of tensors apply as well")
    )


# -- as one kernel -----------------------------------------------------------------------------------------

#: What remains (likely, least and most helpful): the number of tensors that a fused kernel reads and writes in the
#: forward and in the backward, which also reads saved tensors; but at least this share of the device work, since a
#: kernel with much arithmetic is not purely memory-bound.
_TENSORS: Final = ((3.0, 5.0, 2.0), (4.0, 7.0, 3.0))
#: The same for an activation, which has one input; at best, it is in 16 bits and the operators are in 32.
ACTIVATION_TENSORS: Final = ((2.0, 3.0, 1.0), (3.0, 4.0, 1.5))
_MIN_PART: Final = (0.1, 0.3, 0.0)
#: Of copies, what remains of the operator that takes longest: one kernel that converts a tensor and lays it out anew
#: reads and writes it once. Copies by the same operator are probably of several tensors. At best, what reads the tensor
#: makes them.
_COPIED: Final = (1.0, 1.5, 0.5)
#: Copies that take so many times as long as most passes of a region are of larger tensors.
_LARGER: Final = 4.0
#: Host time of a call and of its backward, ns: for one operator, and for a compiled function, which has guards.
OPERATOR_NS: Final = (20_000.0, 40_000.0, 10_000.0)
COMPILED_NS: Final = (75_000.0, 150_000.0, 30_000.0)
#: Tensors touched by an operator with two inputs, and with one.
_BINARY, _UNARY = 3, 2
#: Minimum length of a kernel, ns.
_SHORTEST_NS: Final = 1_500.0


def fused(
    calls: Calls,
    regions: Sequence[Region],
    host_ns: tuple[float, float, float],
    host_part: float,
    slower: tuple[Floats | float, Floats | float, Floats | float] = (1.0, 1.0, 1.0),
    tensors: tuple[tuple[float, float, float], tuple[float, float, float]] = _TENSORS,
) -> EditRange:
    """Return the edits in which each region and its backward are one call each.

    Elementwise kernels are memory-bound, so what remains is the time of some passes over a tensor, times what the
    fused kernel takes longer than these (likely, where it helps least and most; for each region or for all).
    ``tensors`` are those of the forward and of the backward. Of a region of copies, one operator remains.
    """
    trace = calls.trace
    region_of = np.full(len(calls.rows), -1, dtype=np.int32)
    for number, region in enumerate(regions):
        region_of[region.calls] = number
    forward = region_of >= 0
    # A backward node that does more does not belong to an elementwise operator, whatever its sequence number.
    known = calls.call_of_work >= 0
    heavier = calls.work_count_of(~calls.works_of(*ROWWISE))
    backward = (calls.forward >= 0) & forward[calls.forward] & (heavier == 0)
    region_of[backward] = region_of[calls.forward[backward]]
    call = np.maximum(calls.call_of_work, 0)
    lengths = trace.lengths(trace.device_work).astype(np.float64)
    mine = np.flatnonzero(known & forward[call])
    passes_ns = pass_ns(trace)
    tensor_ns = _upper_quartiles(region_of[call[mine]], passes_ns[mine], len(regions))
    # A few copies of far larger tensors are no part of the passes over the others.
    is_larger = known & (region_of[call] >= 0) & calls.works_of(COPY)
    is_larger &= passes_ns > _LARGER * tensor_ns[region_of[call]]
    edits = []
    copies = calls.work_count_of(~calls.works_of(COPY)) == 0
    of_copies = np.array([copies[region.busy].all() for region in regions])
    for forward_tensors, backward_tensors, least_part, call_ns, times, copied in zip(
        *tensors, _MIN_PART, host_ns, slower, _COPIED, strict=True
    ):
        parts = []
        for part, passes in ((forward, forward_tensors), (backward, backward_tensors)):
            total = np.bincount(
                region_of[call[known & part[call]]],
                weights=lengths[known & part[call]],
                minlength=len(regions),
            )
            left = np.where(
                of_copies,
                copied * _longest_operator_ns(calls, region_of, part, len(regions)),
                passes * times * tensor_ns
                + copied * _longest_operator_ns(calls, region_of, part, len(regions), is_larger),
            )
            left = np.maximum(left, _SHORTEST_NS)
            keep = np.clip(left / np.maximum(total, 1.0), least_part, 1.0)
            host = np.bincount(
                region_of[part], weights=trace.lengths(calls.rows[part]), minlength=len(regions)
            )
            keep_host = np.minimum(call_ns / np.maximum(host_part * host, 1.0), 1.0)
            parts.append(
                calls.edit(part, keep_host[np.maximum(region_of, 0)], keep[np.maximum(region_of[call], 0)])
            )
        edits.append(Edit.all_of(parts))
    return EditRange(*edits)


@cached_on_trace
def pass_ns(trace: Trace) -> Floats:
    """Return how long each device work takes for one pass over a tensor if it is an elementwise kernel, ns.

    Such kernels are memory-bound, so that is their time divided by the number of tensors that they read and write.
    """
    work = trace.device_work
    binary = trace.named(r"BinaryFunctor|CUDAFunctor_(add|sub)|(Mul|Div|Add)Functor<", work)
    return trace.lengths(work) / np.where(binary, _BINARY, _UNARY)


def _longest_operator_ns(
    calls: Calls, region_of: Ints, part: Mask, count: int, works: Mask | None = None
) -> Floats:
    """Return the device time of the operator that takes longest in each region, all its calls together, ns.

    ``works`` are those of its device work that count; None = all.
    """
    work_ns = calls.work_ns if works is None else calls.work_ns_of(works)
    chosen = np.flatnonzero(part)
    codes = len(calls.trace.names)
    of_one, number = np.unique(
        region_of[chosen].astype(np.int64) * codes + calls.codes[chosen], return_inverse=True
    )
    longest = np.zeros(count)
    np.maximum.at(longest, of_one // codes, np.bincount(number, weights=work_ns[chosen]))
    return longest


def _upper_quartiles(groups: Ints, values: Floats, count: int) -> Floats:
    """Return the upper quartile of the values of each group, 0 if empty: large sizes dominate."""
    order = np.lexsort((values, groups))
    sizes = np.bincount(groups, minlength=count)
    last = np.cumsum(sizes) - 1
    at = last - (sizes - 1) // 4
    found = values[order][np.maximum(at, 0)] if len(values) else np.zeros(count)
    return np.where(sizes > 0, found, 0.0)


def in_a_row(names: Sequence[str]) -> str:
    """Return the first names of a chain of operators for a sentence; consecutive repetitions are named once."""
    runs = [(name.removeprefix("aten::"), len(list(run))) for name, run in groupby(names)]
    texts = [f"{name} ×{count}" if count > 1 else name for name, count in runs]
    more = f" → … ({len(names)} operators)" if len(texts) > _NAMED else ""
    return " → ".join(texts[:_NAMED]) + more
