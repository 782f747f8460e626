"""The score of ``giou_kernel.score`` in JAX: operation by operation, compiled, and as Pallas kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from common.clocks import JaxClock
from common.mosaic import needs_hopper
from common.pallas import interpreted_here
from jax.experimental import pallas as pl

from giou_kernel.score import score

if TYPE_CHECKING:
    import numpy as np

#: Rows and columns of a block. A TPU fetches the next block while it computes one; a GPU holds one in registers.
BLOCKS = {"pallas": (128, 128), "pallas-triton": (8, 128)}


def prepared(
    name: str, first: np.ndarray, second: np.ndarray
) -> tuple[Callable[..., Any], tuple[Any, ...], JaxClock]:
    """Return the variant's function, its inputs on their device, and the clock for it.

    Args:
        name: ``"jax"``, ``"jax-jit"``, ``"pallas"``, ``"pallas-triton"`` or ``"pallas-mosaic"``.
        first: float32 ``[batch, boxes, 4]``.
        second: The same.

    Raises:
        CannotRun: JAX has not the device that it is for.
    """
    device = jax.devices()[0]
    if name in ("jax", "jax-jit"):
        inputs = jnp.asarray(first), jnp.asarray(second)
        return jax.jit(scores) if name == "jax-jit" else scores, inputs, JaxClock(device)
    edges = tuple(jnp.asarray(boxes[..., i]) for boxes in (first, second) for i in range(4))
    if name == "pallas-mosaic":
        needs_hopper(device)
        from giou_kernel import score_mosaic

        return jax.jit(score_mosaic.in_blocks), edges, JaxClock(device)
    interpret = interpreted_here(name, device)
    function = jax.jit(functools.partial(in_blocks, method=name, interpret=interpret))
    return function, edges, JaxClock(device, interpreted=interpret)


def scores(first: Any, second: Any) -> Any:
    """Return the scores ``[…]`` of boxes ``[…, 4]``."""
    edges = (jnp.moveaxis(boxes, -1, 0) for boxes in (first, second))
    return score(*edges, jnp.minimum, jnp.maximum)


def in_blocks(*edges: Any, method: str, interpret: bool) -> Any:
    """Return the scores by a Pallas kernel.

    Args:
        edges: The coordinates of the first boxes, then those of the second, eight arrays ``[batch, boxes]``.
        method: ``"pallas"`` for TPUs, ``"pallas-triton"`` for GPUs.
        interpret: Interpret it.
    """
    shape, block = edges[0].shape, BLOCKS[method]
    if any(size % part for size, part in zip(shape, block, strict=True)):
        raise ValueError(f"blocks of {block} do not divide {shape}")

    def kernel(*references: Any) -> None:
        values = [reference[...] for reference in references[:8]]
        references[8][...] = score(values[:4], values[4:], jnp.minimum, jnp.maximum)

    settings: dict[str, Any] = {"interpret": interpret}
    if method == "pallas-triton" and not interpret:
        from jax.experimental.pallas import triton as plgpu

        settings["compiler_params"] = plgpu.CompilerParams(num_warps=4)
    spec = pl.BlockSpec(block, lambda i, j: (i, j))
    return pl.pallas_call(
        kernel,
        grid=tuple(size // part for size, part in zip(shape, block, strict=True)),
        in_specs=[spec] * 8,
        out_specs=spec,
        out_shape=jax.ShapeDtypeStruct(shape, jnp.float32),
        **settings,
    )(*edges)
