"""Greedy non-maximum suppression in JAX: a loop that XLA compiles, and Pallas kernels for TPUs and for GPUs.

Boxes are bfloat16, scores float32; kept are the indices as int32 ``[most]``, best first, −1 where none is left. They
are those of ``suppress`` in ``nms.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from common.clocks import JaxClock
from common.mosaic import needs_hopper
from common.pallas import interpreted_here
from common.scenario import CannotRun
from jax import lax
from jax.experimental import pallas as pl

if TYPE_CHECKING:
    import numpy as np

LANES = 128  # width of a TPU's vector registers
GONE = jnp.iinfo(jnp.int32).min  # key of a box that was kept or dropped


def prepared(
    name: str, boxes: np.ndarray, scores: np.ndarray
) -> tuple[Callable[..., Any], tuple[Any, ...], JaxClock]:
    """Return the variant's function, its inputs on their device, and the clock for it.

    Args:
        name: ``"jax-cpu"``, ``"jax"``, ``"pallas"``, ``"pallas-triton"`` or ``"pallas-mosaic"``.
        boxes: float32 ``[count, 4]``.
        scores: float32 ``[count]``.

    Raises:
        CannotRun: JAX has not the device that it is for.
    """
    device = jax.devices("cpu")[0] if name == "jax-cpu" else jax.devices()[0]
    interpret = {"interpret": interpreted_here(name, device)} if name in ("pallas", "pallas-triton") else {}
    if name == "jax" and device.platform == "cpu":
        found = f"JAX finds only {device.device_kind}"
        raise CannotRun(
            f"needs a TPU or GPU, {found}", "pip install 'jax[tpu]' or 'jax[cuda13]' on such a machine"
        )
    function = {"pallas": tpu_kernel, "pallas-triton": gpu_kernel}.get(name, while_loop)
    if name == "pallas-mosaic":
        needs_hopper(device)
        from nms import in_mosaic

        function = in_mosaic.suppress
    clock = JaxClock(device, interpreted=interpret.get("interpret", False))
    inputs = jax.device_put((jnp.asarray(boxes, jnp.bfloat16), jnp.asarray(scores)), device)
    return functools.partial(function, **interpret), inputs, clock


def suppressed(box: Any, edges: Any, threshold: float) -> Any:
    """Say which boxes overlap one by more than a share of their union.

    Args:
        box: Its x1, y1, x2, y2.
        edges: Those of the boxes, four arrays of any shape.
        threshold: The share.
    """
    x1, y1, x2, y2 = edges
    width = jnp.maximum(jnp.minimum(x2, box[2]) - jnp.maximum(x1, box[0]), 0)
    height = jnp.maximum(jnp.minimum(y2, box[3]) - jnp.maximum(y1, box[1]), 0)
    overlap = width * height
    union = (x2 - x1) * (y2 - y1) + (box[2] - box[0]) * (box[3] - box[1]) - overlap
    return overlap > jnp.float32(threshold) * union


@functools.partial(jax.jit, static_argnames=("threshold", "most"))
def while_loop(boxes: Any, scores: Any, *, threshold: float, most: int) -> Any:
    """Return what is kept; a round is a round of ``lax.while_loop``."""
    edges = boxes.astype(jnp.float32).T

    def some_left(state: Any) -> Any:
        turn, _, left = state
        return (turn < most) & (left.max() > -jnp.inf)

    def keep_best(state: Any) -> Any:
        turn, kept, left = state
        best = left.argmax()
        left = jnp.where(suppressed(edges[:, best], edges, threshold), -jnp.inf, left).at[best].set(-jnp.inf)
        return turn + 1, kept.at[turn].set(best.astype(jnp.int32)), left

    return lax.while_loop(some_left, keep_best, (0, jnp.full(most, -1, jnp.int32), scores))[1]


def keys_of(scores: Any, index: Any, count: int) -> Any:
    """Return one int32 for score and index: the largest is the best score, and of equal ones the lowest index.

    The bits of a float compare like those of an integer, but for the order of negative numbers. The last bits hold
    ``count − 1 − index`` in place of what the score has there.
    """
    bits = lax.bitcast_convert_type(scores, jnp.int32)
    ordered = jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (ordered & ~(count - 1)) | (count - 1 - index)


def one_round(keys: Any, edges: Any, threshold: float, count: int) -> tuple[Any, Any]:
    """Return the index of the best box that is left (−1 = none) and the keys without it and those it drops."""
    key = jnp.max(keys)
    chosen = keys == key
    # A mask instead of an index: registers cannot be indexed.
    box = [jnp.max(jnp.where(chosen, edge, -jnp.inf)) for edge in edges]
    left = jnp.where(chosen | suppressed(box, edges, threshold), GONE, keys)
    return jnp.where(key == GONE, -1, count - 1 - (key & (count - 1))), left


@functools.partial(jax.jit, static_argnames=("threshold", "most", "interpret"))
def tpu_kernel(boxes: Any, scores: Any, *, threshold: float, most: int, interpret: bool) -> Any:
    """Return what is kept; a round is a step of the grid, which a TPU goes through in order."""
    from jax.experimental.pallas import tpu as pltpu

    count = _power_of_two(len(scores))
    shape = (count // LANES, LANES)

    def kernel(edges: Any, scores: Any, kept: Any, keys: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            row, lane = (lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
            keys[...] = keys_of(scores[...], row * LANES + lane, count)

        index, left = one_round(keys[...], [edges[i].astype(jnp.float32) for i in range(4)], threshold, count)
        kept[pl.program_id(0)] = index
        keys[...] = left

    return pl.pallas_call(
        kernel,
        grid=(most,),
        in_specs=[pl.BlockSpec((4, *shape), lambda _: (0, 0, 0)), pl.BlockSpec(shape, lambda _: (0, 0))],
        out_specs=pl.BlockSpec(memory_space=pltpu.SMEM),
        out_shape=jax.ShapeDtypeStruct((most,), jnp.int32),
        scratch_shapes=[pltpu.VMEM(shape, jnp.int32)],
        interpret=interpret,
    )(boxes.T.reshape(4, *shape), scores.reshape(shape))


@functools.partial(jax.jit, static_argnames=("threshold", "most", "interpret"))
def gpu_kernel(boxes: Any, scores: Any, *, threshold: float, most: int, interpret: bool) -> Any:
    """Return what is kept; one program goes through all rounds, with every box in its registers."""
    from jax.experimental.pallas import triton as plgpu

    count = _power_of_two(len(scores))

    def kernel(edges: Any, scores: Any, kept: Any) -> None:
        boxes = [edges[i].astype(jnp.float32) for i in range(4)]

        def turn(number: Any, keys: Any) -> Any:
            index, left = one_round(keys, boxes, threshold, count)
            kept[number] = index
            return left

        lax.fori_loop(0, most, turn, keys_of(scores[...], lax.iota(jnp.int32, count), count))

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((most,), jnp.int32),
        compiler_params=None if interpret else plgpu.CompilerParams(num_warps=8),
        interpret=interpret,
    )(boxes.T, scores)


def _power_of_two(count: int) -> int:
    if count & (count - 1) or count % LANES:
        raise ValueError(f"{count} boxes: the kernels take a power of two, {LANES} at least")
    return count
