"""Convolutions need channels-last tensors, and each converts its inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.calls import blocks_per_multiprocessor
from tuiprof.model import Trace
from tuiprof.model.units import format_rough_share
from tuiprof.whatif import Edit

_TURNS: Final = r"(?i)nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|cudnn.*(transpose|permute).*tensor"
#: PyTorch kernels that have a faster form for channels-last.
_NATIVE: Final = r"batch_norm_(?!.*channels_last)|max_pool_\w*nchw|(avg|adaptive)\w*pool(?!.*nhwc)"
#: Share of their time that this form takes. Measured on an H100, bf16 (docs/predictions.md); likely, least, most.
_KEEP_NATIVE: Final = (0.6, 1.0, 0.35)
#: In channels-first, each channel is one thread block (aten/src/ATen/native/cuda/Normalization.cuh), so fewer channels
#: than multiprocessors leave part of the device idle; in channels-last all of it works. The measurement above has 64
#: channels and more on 132 multiprocessors.
_BLOCK_A_CHANNEL: Final = r"batch_norm_(?!.*channels_last)"
_BLOCKS_MEASURED: Final = 64 / 132
#: Such a kernel is worth mentioning if it fills less than this share of the device that the measured ones fill.
_THIN: Final = 0.9
#: What to do, and how sure that is, by the dimensions of the convolutions. Those over a sequence have no channels-last
#: form: PyTorch runs them as two-dimensional ones of height 1.
_INSTEAD: Final = {
    1: "nn.Conv2d with kernels of height 1 on x.unsqueeze(2), and channels-last as for images: "
    "nn.Conv1d converts its input and output each time",
    2: "model.to(memory_format=torch.channels_last), and the same for its inputs",
    3: "model.to(memory_format=torch.channels_last_3d), and the same for its inputs",
}
#: PyTorch's own depthwise convolutions. For channels-last it uses those of cuDNN
#: (aten/src/ATen/native/Convolution.cpp, use_cudnn_depthwise). Measured on an H200, bf16 (docs/predictions.md);
#: likely, least, most.
_DEPTHWISE: Final = r"conv_depthwise2d_"
_KEEP_DEPTHWISE: Final = (0.25, 0.8, 0.1)
#: On a GPU, PyTorch's group norm converts its input to channels-first (aten/src/ATen/native/group_norm.cpp), so
#: copies around it replace the layout kernels. Likely, least, most.
_FIRST_ONLY: Final = r"^aten::(native_)?group_norm$"
_KEEP_TURNS: Final = (0.0, 0.0, 0.0)
_KEEP_TURNS_BEFORE_FIRST: Final = (0.8, 1.0, 0.3)
#: Convolutions over a sequence run on other kernels then, so a part of what the layout kernels took is lost.
_KEEP_TURNS_OF_SEQUENCES: Final = (0.4, 1.0, 0.0)
#: With these operators around them they are slower in channels-last: group norm as above, and halves of the channels,
#: which are not contiguous in it (measured in docs/predictions.md).
_NOT_OF_SEQUENCES: Final = r"^aten::((native_)?group_norm|chunk|split)$"
#: Minimum share of device time; below it, converting the model is not worthwhile.
MIN_SHARE: Final = 0.01


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for layout conversion kernels, and for depthwise convolutions in the slower layout."""
    work = trace.device_work
    turns, native, depthwise = (trace.named(names, work) for names in (_TURNS, _NATIVE, _DEPTHWISE))
    lengths = trace.ends[work] - trace.starts[work]
    shares = [float(lengths[some].sum() / max(lengths.sum(), 1)) for some in (turns, depthwise)]
    if max(shares) < MIN_SHARE or evidence.is_jax:
        return
    dimensions = _dimensions(trace)
    if dimensions == 1 and trace.named(_NOT_OF_SEQUENCES).any():
        return
    touched = turns | native | depthwise
    first_only = bool(trace.named(_FIRST_ONLY).any())
    # How much of the device the kernels of one block a channel fill, relative to those that were measured.
    filled = np.ones(len(work))
    of_channels = native & trace.named(_BLOCK_A_CHANNEL, work)
    blocks = blocks_per_multiprocessor(trace, work[of_channels])
    filled[of_channels] = np.fmin(np.nan_to_num(blocks, nan=1.0) / _BLOCKS_MEASURED, 1.0)
    if dimensions == 1:
        keep_turns = _KEEP_TURNS_OF_SEQUENCES
    else:
        keep_turns = _KEEP_TURNS_BEFORE_FIRST if first_only else _KEEP_TURNS
    likely, least, most = (
        Edit(
            work=work[touched],
            keep=np.select([turns, depthwise], [turned, deep], part * filled)[touched],
        )
        for turned, part, deep in zip(keep_turns, _KEEP_NATIVE, _KEEP_DEPTHWISE, strict=True)
    )
    instead = _INSTEAD[dimensions]
    if shares[1] > shares[0]:
        largest = int(work[depthwise][np.argmax(lengths[depthwise])])
        yield Finding(
            f"{format_rough_share(shares[1])} of device time is depthwise convolutions in channels-first",
            evidence.function_of(largest),
            instead,
            "medium",
            "PyTorch uses cuDNN's depthwise kernels, which are faster, for channels-last alone",
            likely,
            least,
            most,
            event=largest,
        )
        return
    largest = int(work[turns][np.argmax(lengths[turns])])
    part = format_rough_share(shares[0])
    yield Finding(
        f"{part} of device time converts tensors between channels-first and channels-last, "
        f"{evidence.how_often(int(turns.sum()))}",
        evidence.function_of(largest),
        instead,
        "low" if first_only or dimensions == 1 else "high",
        _because(first_only, thin=bool((filled < _THIN).any())),
        likely,
        least,
        most,
        event=largest,
    )


def _because(first_only: bool, *, thin: bool) -> str:
    """Return the evidence for layouts that are converted; ``thin``: some norms do not fill the device."""
    if first_only:
        return (
            "layout kernels around convolutions, but group norm converts its input to channels-first itself"
        )
    faster = "layout kernels around convolutions; batch norm and pooling are faster in channels-last too"
    return f"{faster}, as one thread block per channel leaves part of the device idle" if thin else faster


def _dimensions(trace: Trace) -> int:
    """Return over how many dimensions most convolutions go; 2 = unknown."""
    rows = np.flatnonzero(trace.is_category("cpu_op"))
    counts = [int(trace.named(rf"^aten::conv{n}d$", rows).sum()) for n in _INSTEAD]
    return 1 + int(np.argmax(counts)) if any(counts) else 2


RULE = AdviceRule("channels-last", find)
