"""Images are filtered with a large kernel that nothing trains, as for a blur: two kernels of one dimension may do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.products.shapes import Shape, arguments_of, shape_of
from tuiprof.analyses.shared.arguments import arguments
from tuiprof.analyses.shared.calls import Calls
from tuiprof.analyses.shared.roofline import ELEMENT_BYTES
from tuiprof.model import Trace
from tuiprof.model.intervals import Floats, Mask
from tuiprof.model.units import format_rough_share
from tuiprof.whatif import EditRange
from tuiprof.whatif.chips import find_chip

_CONVOLUTIONS: Final = r"^aten::(conv2d|conv3d|convolution)$"
#: Minimum size of a kernel in each dimension.
_LARGE: Final = 7
#: Images have so many channels; layers of networks, which are trained somewhere else, have more.
_IMAGE_CHANNELS: Final = 4
#: What takes the time of a pass beside its kernel's values, in terms of these: the index of each result is computed,
#: and memory is read and written. Likely, least and most helpful. On one core of an EPYC (Zen 5), PyTorch 2.13,
#: float32, two passes keep 0.4 to 1.2 of the time for 11 × 11 (forward, or with the gradient of the image), 0.3 to 1
#: for 15, 0.2 to 0.7 for 23 and 0.1 to 0.5 for 31, and save nothing for 7; on an H200, 0.3 for 23 with three channels
#: of float32. Other devices are estimated with the same figures.
_BESIDE: Final = (50.0, 200.0, 10.0)
#: Minimum share of the time of all operators, maximum share of a convolution that remains, and how many are inspected.
MIN_SHARE, _MAX_KEPT, _LOOKED_AT = 0.02, 0.8, 200


@dataclass(frozen=True, slots=True)
class _Filter:
    """A convolution of each channel for itself."""

    call: int  # its index
    image: Shape
    kernel: Shape  # in space
    element_bytes: int

    def kept(self, beside: float) -> float:
        """Return the share of its operations that remains with a kernel for each dimension."""
        each = sum(size + beside for size in self.kernel)
        return min(each / (prod(self.kernel) + beside), 1.0)

    @property
    def moved_bytes(self) -> int:
        """What is read and written with a kernel for each dimension."""
        return 2 * len(self.kernel) * prod(self.image) * self.element_bytes


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for depthwise convolutions with large kernels without gradients, in traces with shapes."""
    if evidence.is_jax:
        return
    calls = evidence.calls
    found = [one for one in _fixed(calls, _filters(calls)) if one.kept(_BESIDE[0]) <= _MAX_KEPT]
    forward = calls.mask([one.call for one in found])
    share = calls.share_of_time(calls.with_backward(forward))
    if not found or share < MIN_SHARE:
        return
    largest = max(found, key=lambda one: prod(one.image) * prod(one.kernel))
    size = " × ".join(map(str, largest.kernel))
    event = int(calls.rows[largest.call])
    ones = [
        " × ".join(str(length) if at == dim else "1" for at in range(len(largest.kernel)))
        for dim, length in reversed(list(enumerate(largest.kernel)))
    ]
    yield Finding(
        f"images are filtered with a kernel of {size} that nothing trains, {evidence.how_often(len(found))}: "
        f"{format_rough_share(share)} of the time of all operators",
        evidence.function_of(event) or evidence.place_by_share(forward),
        f"if it is an outer product, as a Gaussian or a box is, filter with {' and then with '.join(ones)} "
        "(torchvision's gaussian_blur does not, kornia's does)",
        "medium",
        "the shapes of the convolution: each channel has a kernel of its own, for which no gradient is computed",
        *EditRange.over(lambda beside: calls.shortened(_keep(calls, found, beside)), _BESIDE),
        event=event,
    )


def _keep(calls: Calls, found: list[_Filter], beside: float) -> Floats:
    """Return the share of the time of each call that remains, forward and backward."""
    keep = np.ones(len(calls.rows))
    chip = find_chip(calls.trace.info.device_name)
    for one in found:
        least_ns = 1e9 * one.moved_bytes / chip.bytes_per_s if chip else 0.0
        floor = min(least_ns / max(int(calls.took_ns[one.call]), 1), 1.0)
        keep[calls.with_backward(calls.mask([one.call]))] = max(one.kept(beside), floor)
    return keep


def _filters(calls: Calls) -> Iterator[_Filter]:
    """Yield the convolutions of each channel with one large kernel and no bias."""
    which = np.flatnonzero(calls.trace.named(_CONVOLUTIONS, calls.rows) & ~calls.backward)
    which = which[np.argsort(-calls.took_ns[which], kind="stable")[:_LOOKED_AT]]
    for call, given in arguments_of(calls, which).items():
        image, weight, bias = (*map(shape_of, given.dims[:3]), (), (), ())[:3]
        kernel = weight[2:]
        if len(kernel) < 2 or len(image) < len(weight) or bias or min(kernel) < _LARGE:
            continue
        if weight[:2] == (image[1], 1):
            yield _Filter(call, image, kernel, ELEMENT_BYTES.get(given.types[0] if given.types else "", 4))


def _fixed(calls: Calls, filters: Iterator[_Filter]) -> list[_Filter]:
    """Return the filters that nothing trains.

    The backward pass says for which of its arguments it computes gradients. Only images are looked at: layers with
    large kernels have many channels, and are learned even where they are frozen.
    """
    known = list(filters)
    trains = _trained(calls, calls.mask([one.call for one in known])) if known else {}
    trained = {one.kernel + one.image[1:2] for one in known if trains.get(one.call, False)}
    return [
        one
        for one in known
        if one.image[1] <= _IMAGE_CHANNELS
        and not (
            trains.get(one.call, True)
            if calls.differentiated[one.call]
            else one.kernel + one.image[1:2] in trained
        )
    ]


def _trained(calls: Calls, which: Mask) -> dict[int, bool]:
    """Return whether the backward pass computes a gradient for the kernel of each of some convolutions."""
    rows = calls.trace.operators(r"^aten::convolution_backward$")
    nodes = calls.inside(rows)
    made_by = np.where(nodes >= 0, calls.forward[nodes], -1)
    mine = (made_by >= 0) & which[made_by]
    of_row = dict(zip(rows[mine].tolist(), made_by[mine].tolist(), strict=True))
    found = {}
    for row, given in arguments(calls.trace, rows[mine]):
        # The last argument is a list of three: for the input, the weight and the bias.
        wanted = str(given.values[-1]).strip("[]").split(", ") if given.values else []
        if len(wanted) == 3:
            found[of_row[row]] = wanted[1] != "False"
    return found


RULE = AdviceRule("separable-kernel", find)
