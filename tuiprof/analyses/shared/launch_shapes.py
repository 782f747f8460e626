"""How many threads kernels are launched with, as Kineto writes it, and what that says about their tensors."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np

from tuiprof.analyses.shared.arguments import ASKED
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints

#: PyTorch's kernels for operators with strides or broadcasting: threads of a block, and elements of a thread.
ELEMENTWISE: Final = r"\belementwise_kernel<(\d+), (\d+)"
#: Those that convert types or are not aligned, whose threads have 4 elements, and those for whole vectors: 4 elements
#: of a thread, in PyTorch 2.11 mostly 8.
_UNROLLED: Final = r"\bunrolled_elementwise_kernel<"
_VECTORIZED: Final = r"\bvectorized_elementwise_kernel<"
#: Its reductions.
REDUCTION: Final = r"\breduce_kernel<"
#: Threads that reduce one row, in blocks for rows that lie in memory one after the other; shorter rows have fewer.
_WARP: Final = 32


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """Thread blocks of a launch, and threads of a block, in x, y and z."""

    grid: tuple[int, ...]
    block: tuple[int, ...]


class _Kernel(msgspec.Struct):
    """What Kineto writes of a kernel; untrusted, of any type."""

    grid: list[Any] = msgspec.field(default_factory=list)
    block: list[Any] = msgspec.field(default_factory=list)


class _KernelEvent(msgspec.Struct):
    args: _Kernel = msgspec.field(default_factory=_Kernel)


_decode: Final = msgspec.json.Decoder(_KernelEvent).decode


def launch_shapes(trace: Trace, rows: Ints) -> dict[int, LaunchShape]:
    """Return the shapes of kernels by row, without those that are unknown.

    Only the :data:`~tuiprof.analyses.shared.arguments.ASKED` longest are read.
    """
    asked = rows[np.argsort(-trace.lengths(rows), kind="stable")[:ASKED]]
    found = {}
    # In file order, as its parts are decompressed sequentially.
    for row in asked[np.argsort(trace.ints("ordinal", asked), kind="stable")].tolist():
        try:
            kernel = _decode(trace.raw_event(row)).args
        except (msgspec.MsgspecError, RecursionError):
            continue
        if _are_sizes(kernel.grid):
            found[row] = LaunchShape(
                tuple(kernel.grid), tuple(kernel.block) if _are_sizes(kernel.block) else ()
            )
    return found


def grid_widths(trace: Trace, rows: Ints) -> Ints:
    """Return the thread blocks of each kernel in the first dimension of its grid; 0 = unknown."""
    shapes = launch_shapes(trace, rows)
    return np.array([shapes[row].grid[0] if row in shapes else 0 for row in rows.tolist()], dtype=np.int64)


def elements(trace: Trace, rows: Ints) -> dict[int, tuple[int, int]]:
    """Return how many elements PyTorch's elementwise kernels write, at least and at most, by row.

    The last thread block counts as full. Other kernels, and those whose shape is unknown, are left out.
    """
    found = {}
    for row, shape in launch_shapes(trace, rows).items():
        name, blocks, threads = trace.name(row), math.prod(shape.grid), math.prod(shape.block)
        if sizes := re.search(ELEMENTWISE, name):
            found[row] = (blocks * int(sizes[1]) * int(sizes[2]),) * 2
        elif shape.block and re.search(_UNROLLED, name):
            found[row] = (blocks * threads * 4,) * 2
        elif shape.block and re.search(_VECTORIZED, name):
            found[row] = (blocks * threads * 4, blocks * threads * 8)
    return found


def row_length(trace: Trace, reduction: int, elementwise: int) -> int:
    """Return how many values each row has that a reduction sums up; 0 = unknown.

    Args:
        trace: The trace.
        reduction: Row of the reduction's kernel, of PyTorch.
        elementwise: Row of an :data:`ELEMENTWISE` kernel over the same tensor.
    """
    shape = launch_shapes(trace, np.array([reduction])).get(reduction)
    _, values = elements(trace, np.array([elementwise])).get(elementwise, (0, 0))
    # A wider block divides long rows among its threads, or does not reduce the last dimension.
    if shape is None or len(shape.block) < 2 or shape.block[0] > _WARP:
        return 0
    return round(values / (shape.grid[0] * shape.block[1]))


def _are_sizes(given: list[Any]) -> bool:
    return bool(given) and all(isinstance(size, int) and 0 < size < 2**31 for size in given)
