"""Greedy non-maximum suppression as a Pallas kernel through Mosaic GPU: one warpgroup, every box in its registers."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from nms.in_jax import keys_of, one_round

THREADS = 128  # of a warpgroup


@functools.partial(jax.jit, static_argnames=("threshold", "most"))
def suppress(boxes: Any, scores: Any, *, threshold: float, most: int) -> Any:
    """Return what is kept; boxes are bfloat16 ``[count, 4]``, their number a power of two."""
    count = len(scores)
    if count % THREADS or count & (count - 1):
        raise ValueError(f"{count} boxes: the kernel takes a power of two, {THREADS} at least")
    # A thread has up to four neighbours, and again four of the next round of all threads.
    layout = plgpu.Layout.WG_STRIDED((count,), vec_size=min(4, count // THREADS))

    def kernel(edges: Any, scores: Any, kept: Any) -> None:
        every = (slice(None),)
        boxes = [plgpu.load(edges.at[i], every, layout=layout) for i in range(4)]
        index = plgpu.broadcasted_iota(jnp.int32, (count,), 0, layout=layout)

        def turn(number: Any, keys: Any) -> Any:
            best, left = one_round(keys, boxes, threshold, count)
            kept[number] = best
            return left

        # The first round stands outside of the loop: what it leaves has the sign that the loop's state must keep.
        lax.fori_loop(1, most, turn, turn(0, keys_of(plgpu.load(scores, every, layout=layout), index, count)))

    return plgpu.kernel(
        kernel, out_type=jax.ShapeDtypeStruct((most,), jnp.int32), grid=(1,), grid_names=("one",)
    )(boxes.T.astype(jnp.float32), scores)
