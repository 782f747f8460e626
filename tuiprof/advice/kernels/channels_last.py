"""Convolutions need channels-last tensors, and each converts its inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding, Sure
from tuiprof.advice.fusing import pass_ns
from tuiprof.analyses.shared.calls import Calls
from tuiprof.analyses.shared.launch_shapes import grid_widths
from tuiprof.model import Trace
from tuiprof.model.intervals import Floats, Mask
from tuiprof.model.units import format_rough_share
from tuiprof.whatif import Edit, EditRange, HostTime

_TURNS: Final = r"(?i)nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|cudnn.*(transpose|permute).*tensor"
#: Batch norm in channels-first, by PyTorch, and for float32 by cuDNN: each channel is one thread block
#: (aten/src/ATen/native/cuda/Normalization.cuh), which is far from the limits of the memory.
_NORMS: Final = r"batch_norm_(?!.*channels_last)|cudnn::bn_(fw_tr|bw)_1C11"
_NORM_BACKWARD: Final = r"batch_norm_backward_(?!.*channels_last)"
#: In channels-last it takes as long as so many passes over its tensor by elementwise kernels, forward and backward.
#: PyTorch's, measured in 16 traces of an H100 and an H200, bf16; cuDNN's, measured alone on an H100, float32
#: (docs/results/predictions.md); likely, least, most.
_PASSES: Final = ((9.4, 8.2), (12.2, 10.8), (7.6, 6.8))
_CUDNN_PASSES: Final = ((3.5, 5.2), (4.8, 6.0), (3.4, 5.0))
#: With few channels it takes so much longer: PyTorch starts at most 128 thread blocks for each 32 channels
#: (``flexible_launch_configs`` in the same file), one per multiprocessor. Measured in two of these traces.
_FEW_CHANNELS: Final = 32
_LONGER: Final = 1.8
#: Share of its time that remains if the trace shows no such pass over the tensor of any norm.
_KEEP_NORMS: Final = (0.4, 1.0, 0.25)
#: The backward pass of max pooling has a faster form for channels-last (measured in the same traces); its forward
#: pass and average pooling have none.
_POOLS: Final = r"max_pool_backward_nchw"
_KEEP_POOLS: Final = (0.65, 0.9, 0.45)
#: What to do, and how sure that is, by the dimensions of the convolutions. Those over a sequence have no channels-last
#: form: PyTorch runs them as two-dimensional ones of height 1.
_INSTEAD: Final = {
    1: "nn.Conv2d with kernels of height 1 on x.unsqueeze(2), and channels-last as for images: "
    "nn.Conv1d converts its input and output each time",
    2: "model.to(memory_format=torch.channels_last), and the same for its inputs",
    3: "model.to(memory_format=torch.channels_last_3d), and the same for its inputs",
}
#: PyTorch's own depthwise convolutions. For channels-last it uses those of cuDNN
#: (aten/src/ATen/native/Convolution.cpp, use_cudnn_depthwise). Measured on an H200, bf16 (docs/results/predictions.md);
#: likely, least, most.
_DEPTHWISE: Final = r"conv_depthwise2d_"
_KEEP_DEPTHWISE: Final = (0.25, 0.8, 0.1)
#: On a GPU, PyTorch's group norm converts its input to channels-first (aten/src/ATen/native/group_norm.cpp), as does
#: its instance norm, which is a batch norm (``instance_norm`` in Normalization.cpp), so copies around them replace the
#: layout kernels. Likely, least, most.
_FIRST_ONLY: Final = r"^aten::((native_)?group_norm|instance_norm)$"
_KEEP_TURNS: Final = (0.0, 0.0, 0.0)
_KEEP_TURNS_BEFORE_FIRST: Final = (0.8, 1.0, 0.3)
#: The first convolution's few channels are padded to those of tensor cores in channels-last too, in both passes
#: (measured in docs/results/predictions.md).
_KEEP_PADDING: Final = (0.8, 1.0, 0.3)
#: Convolutions over a sequence run on other kernels then, so a part of what the layout kernels took is lost.
_KEEP_TURNS_OF_SEQUENCES: Final = (0.4, 1.0, 0.0)
#: With these operators around them they are slower in channels-last: group norm as above, and halves of the channels,
#: which are not contiguous in it (measured in docs/results/predictions.md).
_NOT_OF_SEQUENCES: Final = r"^aten::((native_)?group_norm|chunk|split)$"
#: Minimum share of device time; below it, converting the model is not worthwhile.
MIN_SHARE: Final = 0.01


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for layout conversion kernels, and for depthwise convolutions in the slower layout."""
    work = trace.device_work
    turns, norms, pools, depthwise = (
        trace.named(names, work) for names in (_TURNS, _NORMS, _POOLS, _DEPTHWISE)
    )
    # CUTLASS names what a kernel does not permute, too.
    turns &= ~evidence.calls.works_of("convolution", "gemm")
    turned_share, deep_share = (evidence.share_of_device_time(work[some]) for some in (turns, depthwise))
    if max(turned_share, deep_share) < MIN_SHARE or evidence.is_jax:
        return
    weights = trace.uncaptured.weights if trace.uncaptured is not None else None
    if weights is not None and weights.last > weights.first:
        return  # it is in channels-last already
    dimensions = _dimensions(trace)
    if dimensions == 1 and trace.named(_NOT_OF_SEQUENCES).any():
        return
    touched = turns | norms | pools | depthwise
    first_only = bool(trace.named(_FIRST_ONLY).any())
    if dimensions == 1:
        keep_turns = _KEEP_TURNS_OF_SEQUENCES
    else:
        keep_turns = _KEEP_TURNS_BEFORE_FIRST if first_only else _KEEP_TURNS
    padding = _pads(evidence.calls, turns)
    launches = trace.links.launch_of[work[turns]]
    launches = launches[launches >= 0]
    # The backward pass of a batch norm has one kernel more.
    more = trace.named(_NORM_BACKWARD, work).sum() / max(len(launches), 1)
    edits = EditRange(
        *(
            Edit(
                host=HostTime.of(trace, launches, min(turned + more, 1.0)),
                work=work[touched],
                keep=np.select(
                    [padding, turns, pools, depthwise], [max(padded, turned), turned, pooled, deep], normed
                )[touched],
            )
            for padded, turned, pooled, deep, normed in zip(
                _KEEP_PADDING,
                keep_turns,
                _KEEP_POOLS,
                _KEEP_DEPTHWISE,
                _kept_norms(evidence.calls, norms),
                strict=True,
            )
        )
    )
    if deep_share > turned_share:
        largest = trace.longest(work[depthwise])
        what = f"{format_rough_share(deep_share)} of device time is depthwise convolutions in channels-first"
        sure: Sure = "medium"
        because = "PyTorch uses cuDNN's depthwise kernels, which are faster, for channels-last alone"
    else:
        largest = trace.longest(work[turns])
        what = (
            f"{format_rough_share(turned_share)} of device time converts tensors between channels-first and "
            f"channels-last, {evidence.how_often(int(turns.sum()))}"
        )
        sure = "low" if first_only or dimensions == 1 else "high"
        because = (
            "layout kernels around convolutions, but group and instance norms convert their input to channels-first"
            if first_only
            else "layout kernels around convolutions; batch norm and max pooling are faster in channels-last too"
        )
    yield Finding(
        what, evidence.function_of(largest), _INSTEAD[dimensions], sure, because, *edits, event=largest
    )


def _pads(calls: Calls, turns: Mask) -> Mask:
    """Return which layout kernels convert the input of a first convolution: its backward pass makes no gradient of it.

    Without that gradient the backward pass converts as many tensors as the forward pass, else twice as many. The input
    comes first in both.
    """
    at = calls.call_of_work
    count = np.append(calls.work_count_of(turns), 0)
    backward = np.flatnonzero((count[:-1] > 0) & calls.backward & (calls.forward >= 0))
    made_by = calls.forward[backward]
    only_weights = count[backward] <= count[made_by]
    first_layers = calls.mask(backward[only_weights], made_by[only_weights])
    rows = np.flatnonzero(turns & np.append(first_layers, False)[at])
    result = np.zeros(len(turns), dtype=bool)
    result[rows[np.unique(at[rows], return_index=True)[1]]] = True
    return result


def _kept_norms(calls: Calls, norms: Mask) -> Iterator[Floats]:
    """Yield the share of its time that each work keeps if it is a batch norm: likely, least and most helpful.

    An activation that follows a norm shows how long a pass over its tensor takes. Other norms keep as much as those.
    """
    took = calls.work_ns_of(norms).astype(np.float64)
    cudnn = calls.work_ns_of(norms & calls.trace.named("cudnn", calls.trace.device_work)) > 0
    made_by = np.where(calls.backward, calls.forward, np.arange(len(took)))
    longer = np.where(_has_few_channels(calls, norms)[made_by] & ~cudnn, _LONGER, 1.0)
    pass_ns = longer * _next_pass_ns(calls)[made_by]  # -1 reads the last call, which none follows
    first_only = (made_by >= 0) & calls.trace.named(_FIRST_ONLY, calls.rows)[made_by]
    took[first_only] = 0
    known = (took > 0) & (pass_ns > 0)
    for passes, of_cudnn, otherwise in zip(_PASSES, _CUDNN_PASSES, _KEEP_NORMS, strict=True):
        forward, backward = (np.where(cudnn, *pair) for pair in zip(of_cudnn, passes, strict=True))
        left = np.minimum(np.where(calls.backward, backward, forward) * pass_ns, took)
        rest = left[known].sum() / took[known].sum() if known.any() else otherwise
        keep = np.where(known, left / np.maximum(took, 1.0), np.where(first_only, 1.0, rest))
        yield np.append(keep, rest)[calls.call_of_work]  # -1 (no call) reads the last entry


def _has_few_channels(calls: Calls, norms: Mask) -> Mask:
    """Return which calls are batch norms of few channels, by their thread blocks."""
    channels, call = grid_widths(calls.trace, calls.trace.device_work[norms]), calls.call_of_work[norms]
    few = call[(channels > 0) & (channels <= _FEW_CHANNELS) & (call >= 0)]
    return calls.mask(np.where(calls.backward[few], calls.forward[few], few))


def _next_pass_ns(calls: Calls) -> Floats:
    """Return how long a pass over a tensor takes in the next call with device work, ns, if that is elementwise."""
    passes, elementwise = pass_ns(calls.trace), calls.works_of("elementwise") & (calls.call_of_work >= 0)
    count = calls.work_count_of(elementwise)
    total = np.bincount(calls.call_of_work[elementwise], passes[elementwise], minlength=len(calls.rows))
    result = np.full(len(calls.rows), np.nan)
    for track in np.unique(calls.tracks):
        mine = np.flatnonzero((calls.tracks == track) & (calls.work_count > 0))
        result[mine[:-1]] = np.where(count[mine[1:]] == 1, total[mine[1:]], np.nan)
    return result


def _dimensions(trace: Trace) -> int:
    """Return over how many dimensions most convolutions go; 2 = unknown."""
    counts = [len(trace.operators(rf"^aten::conv{n}d$")) for n in _INSTEAD]
    return 1 + int(np.argmax(counts)) if any(counts) else 2


RULE = AdviceRule("channels-last", find)
