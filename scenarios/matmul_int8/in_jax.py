"""Matrix products in JAX: XLA's own, and Pallas kernels for TPUs and for GPUs.

The inputs are int8, or bfloat16 of the same values; the sums are int32 or float32, and come out as int32 or bfloat16.
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
from jax import lax
from jax.experimental import pallas as pl

if TYPE_CHECKING:
    import numpy as np

#: Type of the inputs → type of the sum, type of the result.
TYPES = {jnp.dtype("bfloat16"): (jnp.float32, jnp.bfloat16), jnp.dtype("int8"): (jnp.int32, jnp.int32)}
GPU_STEP = 128  # bytes of a row that a GPU's kernel takes at a time: a line of its shared memory


def prepared(
    method: str, kind: str, a: np.ndarray, b: np.ndarray, block: tuple[int, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...], JaxClock]:
    """Return the variant's function, its inputs on their device, and the clock for it.

    Args:
        method: ``"xla"``, ``"pallas"``, ``"pallas-triton"`` or ``"pallas-mosaic"``.
        kind: ``"bfloat16"`` or ``"int8"``.
        a: int8 ``[m, k]``.
        b: int8 ``[k, n]``.
        block: Rows and columns of a tile, and for TPUs the length of a step along the sum.

    Raises:
        CannotRun: JAX has not the device that it is for.
    """
    device, inputs = jax.devices()[0], (jnp.asarray(a, kind), jnp.asarray(b, kind))
    if method == "xla":
        return jax.jit(xla), inputs, JaxClock(device)
    if method == "pallas-mosaic":
        needs_hopper(device)
        from matmul_int8 import in_mosaic

        return jax.jit(in_mosaic.product), (inputs[0], inputs[1].T.copy()), JaxClock(device)
    interpret = interpreted_here(method, device)
    kernel = tpu_kernel
    if method == "pallas-triton":
        kernel, inputs = gpu_kernel, (inputs[0], inputs[1].T)
    function = jax.jit(functools.partial(kernel, block=block, interpret=interpret))
    return function, inputs, JaxClock(device, interpreted=interpret)


def xla(a: Any, b: Any) -> Any:
    """Return the product."""
    sums, output = TYPES[a.dtype]
    return jnp.matmul(a, b, preferred_element_type=sums).astype(output)


def tpu_kernel(a: Any, b: Any, *, block: tuple[int, ...], interpret: bool) -> Any:
    """Return the product; the last axis of the grid goes along the sum, which a TPU does in order."""
    from jax.experimental.pallas import tpu as pltpu

    (m, k), (_, n) = a.shape, b.shape
    rows, columns, step = _dividing(block, (m, n, k))
    sums, output = TYPES[a.dtype]

    def kernel(a: Any, b: Any, tile: Any, total: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            total[...] = jnp.zeros_like(total)

        total[...] += jnp.dot(a[...], b[...], preferred_element_type=sums)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _() -> None:
            tile[...] = total[...].astype(output)

    return pl.pallas_call(
        kernel,
        grid=(m // rows, n // columns, k // step),
        in_specs=[
            pl.BlockSpec((rows, step), lambda i, j, along: (i, along)),
            pl.BlockSpec((step, columns), lambda i, j, along: (along, j)),
        ],
        out_specs=pl.BlockSpec((rows, columns), lambda i, j, along: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), output),
        scratch_shapes=[pltpu.VMEM((rows, columns), sums)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        interpret=interpret,
    )(a, b)


def gpu_kernel(a: Any, columns_of_b: Any, *, block: tuple[int, ...], interpret: bool) -> Any:
    """Return the product; each program goes along the sum by itself, with its tile in registers.

    Args:
        a: ``[m, k]``.
        columns_of_b: The second matrix column by column, ``[n, k]``: a GPU's int8 units take both along the sum only.
        block: Rows and columns of a tile.
        interpret: Interpret it.
    """
    from jax.experimental.pallas import triton as plgpu

    (m, k), n = a.shape, columns_of_b.shape[0]
    rows, columns, step = _dividing((*block, GPU_STEP // a.dtype.itemsize), (m, n, k))
    sums, output = TYPES[a.dtype]

    def kernel(a: Any, b: Any, tile: Any) -> None:
        def add(turn: Any, total: Any) -> Any:
            along = pl.ds(turn * step, step)
            last_axes = (((1,), (1,)), ((), ()))  # are summed over, none is a batch
            return total + lax.dot_general(a[:, along], b[:, along], last_axes, preferred_element_type=sums)

        total = lax.fori_loop(0, k // step, add, jnp.zeros((rows, columns), sums))
        tile[...] = total.astype(output)

    return pl.pallas_call(
        kernel,
        grid=(m // rows, n // columns),
        in_specs=[
            pl.BlockSpec((rows, k), lambda i, j: (i, 0)),  # where the rows begin: nothing is fetched yet
            pl.BlockSpec((columns, k), lambda i, j: (j, 0)),
        ],
        out_specs=pl.BlockSpec((rows, columns), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), output),
        compiler_params=None if interpret else plgpu.CompilerParams(num_warps=8, num_stages=3),
        interpret=interpret,
    )(a, columns_of_b)


def _dividing(block: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    if any(size % part for part, size in zip(block, sizes, strict=True)):
        raise ValueError(f"blocks of {block} do not divide {sizes}")
    return block
