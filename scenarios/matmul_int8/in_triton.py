"""A matrix product in Triton: one program a tile, the sum in registers."""

from __future__ import annotations

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


def product(a: torch.Tensor, b: torch.Tensor, *, block: tuple[int, ...]) -> torch.Tensor:
    """Return the product of ``[m, k]`` and ``[k, n]``, the second stored column by column.

    Args:
        a: int8 or bfloat16.
        b: The same.
        block: Rows and columns of a tile.
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
        a, b, result, m, n, k, rows, columns, step, together, widen, num_warps=8, num_stages=4
    )
    return result
