"""The score of ``giou_kernel.score`` as a Pallas kernel through Mosaic GPU: a warpgroup a block, in registers only."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from giou_kernel.score import score

BLOCK = (8, 128)  # eight numbers of each array in each of the 128 threads


def in_blocks(*edges: Any) -> Any:
    """Return the scores ``[batch, boxes]``.

    Args:
        edges: The coordinates of the first boxes, then those of the second, eight arrays ``[batch, boxes]``.
    """
    shape, (rows, columns) = edges[0].shape, BLOCK
    if shape[0] % rows or shape[1] % columns:
        raise ValueError(f"blocks of {BLOCK} do not divide {shape}")

    def kernel(*references: Any) -> None:
        block = pl.ds(lax.axis_index("row") * rows, rows), pl.ds(lax.axis_index("column") * columns, columns)
        values = [reference[block] for reference in references[:8]]
        references[8][block] = score(values[:4], values[4:], jnp.minimum, jnp.maximum)

    return plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct(shape, jnp.float32),
        grid=(shape[0] // rows, shape[1] // columns),
        grid_names=("row", "column"),
    )(*edges)
