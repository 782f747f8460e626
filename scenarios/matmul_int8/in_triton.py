"""A matrix product in Triton: one program a tile, the sum in registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from common.interpreted import triton_language

triton, tl = triton_language()

STEP_BYTES = 128  # of a row at a time: what one line of shared memory holds without conflicts
GROUP = 8  # rows of tiles that are worked on together


@triton.jit
def _kernel(
    a,
    b,
    product,
    M: tl.constexpr,  # noqa: N803 - what is compiled in is in capitals
    N: tl.constexpr,  # noqa: N803
    K: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
    STEP: tl.constexpr,  # noqa: N803
    TOGETHER: tl.constexpr,  # noqa: N803
    WIDEN: tl.constexpr,  # noqa: N803
):
    # Programs start in the order of their numbers: a few rows of tiles at a time, column by column, so that blocks of
    # both matrices are used again before they fall out of the cache.
    tile = tl.program_id(0)
    in_group = TOGETHER * (N // COLUMNS)
    tile_row = tile // in_group * TOGETHER + tile % TOGETHER
    tile_column = tile % in_group // TOGETHER
    row = tile_row * ROWS + tl.arange(0, ROWS)
    column = tile_column * COLUMNS + tl.arange(0, COLUMNS)
    along = tl.arange(0, STEP)
    a_block = a + row[:, None] * K + along[None, :]
    b_block = b + column[None, :] * K + along[:, None]  # stored column by column
    integer: tl.constexpr = a.dtype.element_ty == tl.int8
    total = tl.zeros((ROWS, COLUMNS), tl.int32 if integer else tl.float32)
    for _ in range(0, K, STEP):
        left, right = tl.load(a_block), tl.load(b_block)
        if WIDEN:
            left, right = left.to(tl.float32), right.to(tl.float32)
        total = tl.dot(left, right, total, out_dtype=total.dtype)
        a_block += STEP
        b_block += STEP
    tl.store(product + row[:, None] * N + column[None, :], total.to(product.dtype.element_ty))


#: What autotuning tries: tiles, warps that share one, and blocks that are on their way at a time.
CANDIDATES = [
    ((128, 256), 8, 3),
    ((128, 256), 8, 4),
    ((128, 128), 4, 4),
    ((128, 128), 8, 4),
    ((256, 128), 8, 3),
    ((256, 128), 8, 4),
    ((64, 256), 4, 4),
]


def autotuned() -> Callable[..., torch.Tensor]:
    """Return the product by whichever of the candidates is the fastest for the first matrices it is given."""
    chosen: list[dict[str, Any]] = []

    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if not chosen:
            settings = [dict(zip(("block", "warps", "stages"), each, strict=True)) for each in CANDIDATES]
            times = {i: _time(lambda i=i: product(a, b, **settings[i])) for i in range(len(settings))}
            chosen.append(settings[min(times, key=times.__getitem__)])
            print("autotuned: " + ", ".join(f"{name} {value}" for name, value in chosen[0].items()))
        return product(a, b, **chosen[0])

    return function


def _time(call: Callable[[], Any]) -> float:
    """Return the milliseconds of a call; infinite for what the chip has no room for."""
    try:
        return float(triton.testing.do_bench(call, warmup=10, rep=50))
    except triton.runtime.errors.OutOfResources:
        return float("inf")


def product(
    a: torch.Tensor, b: torch.Tensor, *, block: tuple[int, ...], warps: int = 8, stages: int = 4
) -> torch.Tensor:
    """Return the product of ``[m, k]`` and ``[k, n]``, the second stored column by column.

    Args:
        a: int8 or bfloat16.
        b: The same.
        block: Rows and columns of a tile.
        warps: Warps that share a tile.
        stages: Blocks that are on their way at a time.
    """
    (m, k), n, (rows, columns) = a.shape, b.shape[1], block
    step = STEP_BYTES // a.element_size()
    if m % rows or n % columns or k % step or b.stride() != (1, k) or not a.is_contiguous():
        raise ValueError(
            f"tiles of {block} do not fit {tuple(a.shape)} × {tuple(b.shape)}, or it is stored otherwise"
        )
    result = torch.empty(m, n, dtype=torch.int32 if a.dtype == torch.int8 else a.dtype, device=a.device)
    together = GROUP if m // rows % GROUP == 0 else 1
    # Triton's interpreter keeps bfloat16 as its bits, and tl.dot multiplies those.
    widen = a.dtype == torch.bfloat16 and not a.is_cuda
    _kernel[((m // rows) * (n // columns),)](
        a, b, result, m, n, k, rows, columns, step, together, widen, num_warps=warps, num_stages=stages
    )
    return result
