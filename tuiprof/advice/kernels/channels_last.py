"""Convolutions want channels last, and each of them turns its tensors round."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.shared.finding import AdviceRule, Evidence, Finding
from tuiprof.model import Trace
from tuiprof.model.units import format_rough_share
from tuiprof.whatif.edit import Edit

_TURNS: Final = r"(?i)nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|cudnn.*(transpose|permute).*tensor"
#: Kernels of PyTorch that have a faster form for channels last.
_NATIVE: Final = r"batch_norm_(?!.*channels_last)|max_pool_\w*nchw|(avg|adaptive)\w*pool(?!.*nhwc)"
#: The part of their time that this form takes. Measured on an H100, bf16 (docs/predictions.md); likely, least, most.
_KEEP_NATIVE: Final = (0.6, 1.0, 0.35)
#: PyTorch's group norm makes its input channels first on a GPU (aten/src/ATen/native/group_norm.cpp), so that copies
#: around it take the place of the layout kernels. Likely, least, most.
_FIRST_ONLY: Final = r"^aten::(native_)?group_norm$"
_KEEP_TURNS: Final = (0.0, 0.0, 0.0)
_KEEP_TURNS_BEFORE_FIRST: Final = (0.8, 1.0, 0.3)
#: Fewer of the device's time than this is not worth turning a model round.
LEAST_SHARE: Final = 0.01


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for kernels that turn layouts round."""
    work = trace.device_work
    turns, native = trace.named(_TURNS, work), trace.named(_NATIVE, work)
    lengths = trace.ends[work] - trace.starts[work]
    share = float(lengths[turns].sum() / max(lengths.sum(), 1))
    if share < LEAST_SHARE or evidence.is_jax:
        return
    either = turns | native
    first_only = bool(trace.named(_FIRST_ONLY).any())
    likely, least, most = (
        Edit(work=work[either], keep=np.where(turns, turned, part)[either])
        for turned, part in zip(
            _KEEP_TURNS_BEFORE_FIRST if first_only else _KEEP_TURNS, _KEEP_NATIVE, strict=True
        )
    )
    largest = int(work[turns][np.argmax(lengths[turns])])
    part = format_rough_share(share)
    yield Finding(
        f"{part} of device time converts tensors between channels-first and channels-last, "
        f"{evidence.how_often(int(turns.sum()))}",
        evidence.function_of(largest),
        "model.to(memory_format=torch.channels_last), and the same for its inputs",
        "low" if first_only else "high",
        "layout kernels around convolutions, but group norm converts its input to channels-first itself"
        if first_only
        else "layout kernels around convolutions; batch norm and pooling are faster in channels-last too",
        likely,
        least,
        most,
        event=largest,
    )


RULE = AdviceRule("channels-last", find)
