"""Matrix products in torch: the library's own, and a Triton kernel.

The inputs are int8, or bfloat16 of the same values; the sums are int32 or float32, and come out as int32 or bfloat16.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from common.clocks import Clock, torch_clock

if TYPE_CHECKING:
    import numpy as np


def prepared(
    method: str, kind: str, a: np.ndarray, b: np.ndarray, block: tuple[int, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...], Clock]:
    """Return the variant's function, its inputs on their device, and the clock for it.

    Args:
        method: ``"torch"``, ``"triton"``, ``"triton-4-warps"`` or ``"triton-autotuned"``.
        kind: ``"bfloat16"`` or ``"int8"``.
        a: int8 ``[m, k]``.
        b: int8 ``[k, n]``.
        block: Rows and columns of a tile, for Triton.
    """
    clock = torch_clock(interpreted=method == "triton")
    # Column by column, as the weights of a linear layer lie: int8 units take both matrices along the sum only.
    matrices = torch.from_numpy(a), torch.from_numpy(b).t().contiguous()
    left, right = (matrix.to(clock.where, getattr(torch, kind)) for matrix in matrices)
    if method.startswith("triton"):
        from matmul_int8 import in_triton

        warps = 4 if method == "triton-4-warps" else 8
        function = functools.partial(in_triton.product, block=block, warps=warps)
        if method == "triton-autotuned":
            function = in_triton.autotuned()
    else:
        function = torch._int_mm if kind == "int8" else torch.mm
    return function, (left, right.t()), clock
