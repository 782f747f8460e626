"""A matrix product as a Pallas kernel through Mosaic GPU: a pipeline of blocks into shared memory, Hopper's wgmma."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from matmul_int8.in_jax import TYPES

TILE = 128  # rows and columns of a tile: its sums fill half of a warpgroup's registers
SWIZZLE = 128  # bytes of a row that lie together in shared memory, as wgmma reads them
STAGES = 4


def product(a: Any, b_by_columns: Any) -> Any:
    """Return the product of ``[m, k]`` and ``[k, n]``; the second is stored as ``[n, k]``, which 8-bit wgmma needs."""
    (m, k), (n, _) = a.shape, b_by_columns.shape
    sums, output = TYPES[a.dtype]
    step = SWIZZLE // a.dtype.itemsize
    if m % TILE or n % TILE or k % step:
        raise ValueError(f"tiles of {TILE} and steps of {step} do not divide {m}, {n} and {k}")

    def swizzled(dtype: Any) -> tuple[Any, ...]:
        return plgpu.TilingTransform((8, SWIZZLE // jnp.dtype(dtype).itemsize)), plgpu.SwizzleTransform(
            SWIZZLE
        )

    def kernel(a: Any, b: Any, out: Any, tile: Any) -> None:
        row, column = lax.axis_index("row"), lax.axis_index("column")

        def block(number: Any) -> Any:
            # A block stays a step longer, while wgmma, which is asynchronous, may still read it.
            return plgpu.BlockSpec(
                (TILE, step), lambda turn: (number, turn), transforms=swizzled(a.dtype), delay_release=1
            )

        def total(register: Any) -> Any:
            def add(_: Any, left: Any, right: Any) -> None:
                plgpu.wgmma(register, left, plgpu.transpose_ref(right, (1, 0)))
                plgpu.wgmma_wait(1)

            plgpu.emit_pipeline(
                add, grid=(k // step,), in_specs=[block(row), block(column)], max_concurrent_steps=STAGES
            )(a, b)
            return register[...]

        tile[...] = pl.run_scoped(total, plgpu.ACC((TILE, TILE), sums)).astype(output)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(tile, out.at[pl.ds(row * TILE, TILE), pl.ds(column * TILE, TILE)])
        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct((m, n), output),
        scratch_types={"tile": plgpu.SMEM((TILE, TILE), output, transforms=swizzled(output))},
        grid=(m // TILE, n // TILE),
        grid_names=("row", "column"),
    )(a, b_by_columns)
