"""The score of ``giou_kernel.score`` in torch: operation by operation, compiled, in Triton, and in CUDA."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from common.clocks import Clock, torch_clock
from common.scenario import CannotRun

from giou_kernel.score import EPSILON

if TYPE_CHECKING:
    import numpy as np

SOURCES = Path(__file__).parent


def prepared(
    name: str, first: np.ndarray, second: np.ndarray
) -> tuple[Callable[..., Any], tuple[Any, ...], Clock]:
    """Return the variant's function, its inputs on their device, and the clock for it.

    Args:
        name: ``"eager"``, ``"compiled"``, ``"cuda"``, ``"triton"``, ``"triton-8-warps"`` or ``"triton-autotuned"``.
        first: float32 ``[batch, boxes, 4]``.
        second: The same.

    Raises:
        CannotRun: The CUDA kernel cannot be built here; says what the compiler said.
    """
    clock = torch_clock(interpreted=name == "triton")
    if name.startswith("triton"):
        from giou_kernel import score_triton

        eight = functools.partial(score_triton.scores, warps=8)
        others = {"triton-8-warps": eight, "triton-autotuned": score_triton.autotuned}
        function = others.get(name, score_triton.scores)
    else:
        function = {"eager": lambda: scores, "compiled": lambda: torch.compile(scores), "cuda": by_cuda}[
            name
        ]()
    return function, tuple(torch.from_numpy(boxes).to(clock.where) for boxes in (first, second)), clock


def scores(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return the scores ``[…]`` of boxes ``[…, 4]``."""

    def area(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        width, height = (high - low).clamp(min=0).unbind(-1)
        return width * height

    low, high, other_low, other_high = *first.split(2, -1), *second.split(2, -1)
    shared = area(torch.maximum(low, other_low), torch.minimum(high, other_high))
    hull = area(torch.minimum(low, other_low), torch.maximum(high, other_high))
    union = area(low, high) + area(other_low, other_high) - shared
    return shared / (union + EPSILON) - (hull - union) / (hull + EPSILON)


def by_cuda() -> Callable[..., torch.Tensor]:
    """Build the CUDA kernel, or find it built, and return it as a function of two tensors of boxes.

    torch keeps what it built in ``TORCH_EXTENSIONS_DIR`` (by default in the user's cache) and builds it again when a
    source has changed. The kernel itself knows nothing of torch: it is compiled in seconds, and only the few lines
    of ``operator.cpp``, which register it, are compiled against torch's headers.
    """
    from torch.utils import cpp_extension

    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "{}.{}".format(*torch.cuda.get_device_capability()))
    try:
        cpp_extension.load(
            "tuiprof_giou",
            [str(SOURCES / "operator.cpp"), str(SOURCES / "giou.cu")],
            extra_cflags=["-O1"],
            extra_cuda_cflags=["-O3"],
            is_python_module=False,
        )
    except (OSError, RuntimeError) as error:
        errors = [line for line in str(error).splitlines() if "error" in line.lower()]
        said = (errors or str(error).splitlines() or [""])[0].strip()
        raise CannotRun(
            f"the CUDA kernel cannot be built: {said}", "see what nvcc says of giou_kernel/giou.cu"
        ) from error
    operator = torch.ops.tuiprof_giou.scores

    def function(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return operator(first, second, EPSILON, torch.cuda.current_stream().cuda_stream)

    return function
