"""An image is enlarged before a pointwise convolution that leaves few of its channels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding, Sure
from tuiprof.analyses.shared.arguments import arguments
from tuiprof.analyses.shared.calls import Calls
from tuiprof.analyses.shared.launch_shapes import elements, launch_shapes
from tuiprof.model import Trace
from tuiprof.model.intervals import Floats, Ints
from tuiprof.model.units import format_rough_share
from tuiprof.whatif import Edit, EditRange

_INTERPOLATES: Final = r"^aten::_?upsample_\w+$"
_CONVOLVES: Final = r"^aten::(conv[123]d|convolution|_convolution)$"
#: What leaves the values as they are; other layouts and types of them may be copied.
_KEEPS: Final = r"^aten::(to|_to_copy|contiguous|clone|detach|alias|size|dropout)$"
_COPIES: Final = r"^aten::(to|_to_copy|contiguous|clone)$"
#: Operators that take two images: one right after may take the interpolated one as well.
_JOINS: Final = r"^aten::(cat|concat|stack|add_?|sub_?|mul_?|where|maximum)$"
#: Calls after the convolution that may tell how large its result is, and those that may join.
_NEXT, _MAY_JOIN = 2, 10
#: Kernels of interpolations with a thread for each element of the large image.
_OF_ELEMENTS: Final = r"upsample_(\w+_nhwc_out_frame|bilinear2d_backward_(nhwc_)?out_frame)"
_OF_SMALL: Final = r"upsample_nearest\w*_backward"
#: cuDNN passes only pointwise convolutions of stride 1 to kernels of plain matrix products.
_PRODUCT: Final = r"^nvjet_|xmma_gemm_|cutlass::Kernel2?<cutlass_\w*gemm_|^(ampere|volta)_\w*gemm_(?!.*conv)"
_NO_PRODUCT: Final = r"fprop|implicit|conv|winograd|fft|elementwise_kernel|Memset|reduce_kernel"
_ADDS: Final = r"elementwise_kernel.*CUDAFunctor_add"
#: Adding up gradients in less than this part of the interpolation's time is not of its result.
_MAX_ADDING: Final = 0.1
#: Minimum share of device work; at most this share of the channels is left, and the small image is at most this
#: share of the large one.
MIN_SHARE: Final = 0.02
MAX_PART: Final = 0.5
#: What stays, as a multiple of the share of channels (interpolation) or of the image (convolution): likely, least and
#: most helpful. A step of an H200 with 256 channels, 16 of them left (channels-last, autocast to bfloat16), saves
#: 11.5 ms of 12.9; the shares alone would be 12.2.
_OF_SHARE: Final = (2.0, 6.0, 1.0)
_MIN_CHANNELS: Final = 1 / 32
#: A cast in the convolution of less than this share of the large image is that of its weights.
_MIN_CAST: Final = 0.02


@dataclass(frozen=True, slots=True)
class _Pair:
    """An interpolation and the convolution of its result, as indices of calls."""

    interpolates: int
    convolves: int
    copies: tuple[int, ...] = ()  # calls between them


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Shares that remain if a pair is swapped."""

    channels: float  # channels of the result, of those that are interpolated
    image: float  # pixels of the small image, of those of the large one
    sure: Sure


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for interpolations right before a convolution of single pixels that leaves at most half of the channels."""
    calls = evidence.calls
    pairs = list(_pairs(calls))
    if not pairs:
        return
    works = {pair: _works(calls, pair) for pair in pairs}
    all_work = trace.device_work[np.concatenate([rows for two in works.values() for rows in two])]
    if evidence.share_of_device_time(all_work) < MIN_SHARE:
        return
    sizes = _sizes(calls, pairs)
    if not sizes:
        return
    rows, parts = list[Ints](), list[Floats]()
    for pair, known in sizes.items():
        for mine, part in zip(works[pair], (known.channels, known.image), strict=True):
            rows.append(mine)
            parts.append(np.full(len(mine), part))
    chosen, keep = trace.device_work[np.concatenate(rows)], np.concatenate(parts)
    share = evidence.share_of_device_time(chosen)
    if share < MIN_SHARE:
        return
    longest = max(sizes, key=lambda pair: calls.work_ns[pair.interpolates])
    known = sizes[longest]
    yield Finding(
        f"an image is enlarged {1 / known.image:.0f} times before a pointwise convolution that leaves "
        f"1 of {1 / known.channels:.0f} channels; both take {format_rough_share(share)} of device time",
        evidence.function_of(int(calls.rows[longest.interpolates])),
        "first the convolution, then F.interpolate of its few channels (both are linear, and the weights of an "
        "interpolation add up to 1: equal up to rounding, with the bias)",
        known.sure,
        "sizes by recorded shapes"
        if known.sure == "high"
        else "sizes by the grids of kernels; a plain matrix product",
        *EditRange(*(Edit.of_work(chosen, np.minimum(keep * times, 1.0)) for times in _OF_SHARE)),
        event=trace.longest(chosen),
    )


def _pairs(calls: Calls) -> Iterator[_Pair]:
    """Yield interpolations on the device with the convolution that is called right after."""
    trace = calls.trace
    convolves, keeps = trace.named(_CONVOLVES, calls.rows), trace.named(_KEEPS, calls.rows)
    copies, joins = trace.named(_COPIES, calls.rows), trace.named(_JOINS, calls.rows)
    for index in np.flatnonzero(trace.named(_INTERPOLATES, calls.rows) & (calls.work_ns > 0)).tolist():
        between = list[int]()
        for after in calls.after(index, 8).tolist():
            if convolves[after]:
                following = calls.after(after, _MAY_JOIN)
                following = following[~calls.backward[following]]
                if not joins[following].any() and calls.steps[after] == calls.steps[index]:
                    yield _Pair(index, after, tuple(between))
                break
            if not keeps[after] or (calls.work_count[after] and not copies[after]):
                break
            between.append(after)


def _with_backward(calls: Calls, *indices: int) -> Ints:
    return np.flatnonzero(calls.with_backward(calls.mask(list(indices))))


def _works(calls: Calls, pair: _Pair) -> tuple[Ints, Ints]:
    """Return the device work of the interpolation and of the convolution, with their gradients."""
    interpolating, convolving = (
        np.flatnonzero(calls.launched_by(calls.with_backward(calls.mask(list(indices)))))
        for indices in ((pair.interpolates,), (pair.convolves, *pair.copies))
    )
    return interpolating, convolving


def _sizes(calls: Calls, pairs: list[_Pair]) -> dict[_Pair, _Sizes]:
    """Return what swapping a pair leaves, without those for which it is unknown or too much; by those of one step."""
    steps = calls.steps[[pair.interpolates for pair in pairs]]
    _, first, step = np.unique(steps, return_index=True, return_inverse=True)
    position = np.arange(len(pairs)) - first[step]
    asked = [pair for pair, of in zip(pairs, step.tolist(), strict=True) if of == np.bincount(step).argmax()]
    shaped = _by_shapes(calls, asked)
    known = [shaped.get(pair) if shaped else _by_grids(calls, pair) for pair in asked]
    fit = [
        sizes if sizes and sizes.channels <= MAX_PART and sizes.image <= MAX_PART else None for sizes in known
    ]
    return {
        pair: found
        for pair, at in zip(pairs, position.tolist(), strict=True)
        if (found := fit[at % len(fit)]) is not None
    }


def _by_shapes(calls: Calls, asked: list[_Pair]) -> dict[_Pair, _Sizes]:
    """Return the sizes by recorded shapes; empty = none are recorded."""
    of_both = np.array([index for pair in asked for index in (pair.interpolates, pair.convolves)])
    given = {
        row: [_shape(dims) for dims in known.dims]
        for row, known in arguments(calls.trace, calls.rows[of_both])
    }
    found = {}
    for pair in asked:
        small, large, weight = (
            *given.get(int(calls.rows[pair.interpolates]), [])[:1],
            *given.get(int(calls.rows[pair.convolves]), [])[:2],
            *[()] * 3,
        )[:3]
        if len(small) < 3 or len(large) != len(small) or large[:2] != small[:2]:
            continue
        pointwise = len(weight) == len(large) and math.prod(weight[2:]) == 1 and weight[1] == large[1]
        channels = weight[0] / weight[1] if pointwise else 1.0
        found[pair] = _Sizes(channels, math.prod(small) / math.prod(large), "high")
    return found if given else {}


def _shape(dims: Any) -> tuple[int, ...]:
    whole = isinstance(dims, list) and all(isinstance(size, int) and size > 0 for size in dims)
    return tuple(dims) if whole else ()


def _by_grids(calls: Calls, pair: _Pair) -> _Sizes | None:
    """Return the sizes by the threads of kernels; None = unknown, or the convolution may not be one of pixels."""
    trace, work = calls.trace, calls.trace.device_work
    interpolating, _ = (work[rows] for rows in _works(calls, pair))
    convolving = work[calls.call_of_work == pair.convolves]
    products = trace.named(_PRODUCT, convolving) & ~trace.named(_NO_PRODUCT, convolving)
    others = ~products & ~trace.named(r"elementwise_kernel|Memset|reduce_kernel|splitK|Memcpy", convolving)
    if not products.any() or others.any() or _adds_gradients(calls, pair):
        return None
    threads = interpolating[trace.named(_OF_ELEMENTS, interpolating) & ~trace.named(_OF_SMALL, interpolating)]
    large = max(
        (math.prod(shape.grid) * math.prod(shape.block) for shape in launch_shapes(trace, threads).values()),
        default=0,
    )
    product = int(np.flatnonzero(products)[0])
    before, after = convolving[:product], convolving[product + 1 :]
    nearby = calls.after(pair.convolves, 40)
    nearby = nearby[(calls.work_count[nearby] > 0) & ~calls.backward[nearby]][:_NEXT]
    later = work[np.isin(calls.call_of_work, _with_backward(calls, *nearby.tolist()))]
    of_small = elements(trace, interpolating)
    if not of_small:
        previous = np.flatnonzero((calls.tracks == calls.tracks[pair.interpolates]) & (calls.work_count > 0))
        previous = previous[previous < pair.interpolates][-1:]
        of_small = elements(trace, work[np.isin(calls.call_of_work, previous)][-1:])
    small = max((most for _, most in of_small.values() if most < large), default=0)
    few = max((most for _, most in elements(trace, np.concatenate((after, later))).values()), default=0)
    if not large or not small or not few:
        return None
    # Under autocast, an interpolation of float32 is cast for the convolution: then it is the same tensor.
    casts = elements(trace, before)
    cast = max((most for _, most in casts.values()), default=0)
    if cast > _MIN_CAST * large and not 0.4 < cast / large < 2.1:
        return None
    return _Sizes(max(few / large, _MIN_CHANNELS), small / large, "medium")


def _adds_gradients(calls: Calls, pair: _Pair) -> bool:
    """Whether something else uses the interpolated image, so that its gradients are added up."""
    trace, work = calls.trace, calls.trace.device_work
    nodes = _with_backward(calls, pair.convolves, *pair.copies, pair.interpolates)
    mine = work[np.isin(calls.call_of_work, nodes[calls.backward[nodes]])]
    adding = int(trace.lengths(mine[trace.named(_ADDS, mine)]).sum())
    return adding > _MAX_ADDING * int(calls.work_ns[pair.interpolates])


RULE = AdviceRule("upsample-first", find)
