"""What a trace shows of convolutions on a CPU: their layout, and whether they are depthwise."""

from __future__ import annotations

from typing import Final

import numpy as np

from tuiprof.analyses.shared.calls import Calls, index_of_outer
from tuiprof.model import Trace
from tuiprof.model.intervals import Mask

#: In channels-first, oneDNN's result becomes a tensor that is given its strides (aten/src/ATen/native/mkldnn/Conv.cpp,
#: MKLDNNConversions.cpp, mkldnn_to_dense).
_ONEDNN, _GIVEN_STRIDES = r"^aten::mkldnn_convolution$", r"^aten::as_strided_$"
#: PyTorch's own convolution, which on one thread is used for kernels of one pixel with fewer than 16 images, and for
#: float64 (aten/src/ATen/native/Convolution.cpp, use_mkldnn): where a MobileNet has most of its products.
_OWN: Final = r"^aten::_slow_conv2d_(forward|backward)$"
#: Minimum share of depthwise kernels.
_DEPTHWISE: Final = 0.1


def are_channels_first(calls: Calls, convolutions: Mask) -> bool | None:
    """Return whether most convolutions of oneDNN in the given calls are channels-first; None = there are none."""
    trace = calls.trace
    onednn = trace.operators(_ONEDNN)
    at = calls.inside(onednn)
    onednn = onednn[(at >= 0) & convolutions[at]]
    if not len(onednn):
        return None
    inside = index_of_outer(trace, onednn, trace.operators(_GIVEN_STRIDES))
    return len(np.unique(inside[inside >= 0])) > len(onednn) / 2


def of_pytorch(calls: Calls) -> Mask:
    """Return the calls in which PyTorch's own convolutions run, rather than oneDNN's."""
    return calls.mask(calls.inside(calls.trace.operators(_OWN)))


def has_depthwise(trace: Trace) -> bool:
    """Return whether the model has depthwise convolutions, by its parameters, or may have small ones, by names."""
    weights = trace.uncaptured.weights if trace.uncaptured is not None else None
    if weights is None:
        return bool(len(trace.operators(_OWN)))
    return weights.depthwise >= max(_DEPTHWISE * weights.kernels, 1)
