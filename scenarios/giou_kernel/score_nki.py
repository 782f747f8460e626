"""The score of ``giou_kernel.score`` in NKI, AWS's language for kernels on NeuronCores; written for NKI 0.7.

The publication used Neuron 2.20, where NKI was a part of the compiler (``neuronxcc.nki``). What has changed since:

- 2.28: NKI is a package of its own, ``nki``; the old name ends with an error from 2.30 on.
- Instructions take the tile they write as ``dst``; there are no tiles of values and no masks any more, so that a tile
  at the end of a batch must be made as small as it is.
- 2.33 (NKI 0.7): a kernel is traced as ordinary Python. Functions, generators and classes of one's own, such as
  ``giou_kernel.tiles``, work inside it; loops over ranges that only the device knows are ``nl.fori_loop``.

NKI's pages speak of Trainium2 and later; ``inf2`` is still a target of ``nki.jit``, as is the simulator's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from giou_kernel.score import EPSILON
from giou_kernel.tiles import EDGES, tiles


def kernel(nl: Any, nisa: Any) -> Callable[[Any, Any], Any]:
    """Return the kernel, not compiled yet.

    Args:
        nl: ``nki.language``, or something that acts like it.
        nisa: ``nki.isa``.
    """

    def giou(first: Any, second: Any) -> Any:
        """Return the scores ``[rows, boxes]`` of boxes ``[rows, 4 × boxes]``, all float32 in device memory."""
        rows, columns = first.shape
        scores = nl.ndarray((rows, columns // EDGES), dtype=nl.float32, buffer=nl.shared_hbm)
        for tile in tiles(rows, columns):
            edges = []
            for boxes in (first, second):
                loaded = nl.ndarray((tile.rows, tile.columns), dtype=nl.float32, buffer=nl.sbuf)
                nisa.dma_copy(dst=loaded, src=boxes[tile.boxes])
                # Every fourth column: the vector engine steps over the others as it reads, so nothing is moved.
                edges.append([loaded[tile.edge(number)] for number in range(EDGES)])
            nisa.dma_copy(dst=scores[tile.scores], src=_score(nl, nisa, *edges))
        return scores

    return giou


def _score(nl: Any, nisa: Any, first: list[Any], second: list[Any]) -> Any:
    """Return a tile of scores from two lists of four tiles."""

    def tile() -> Any:
        return nl.ndarray(first[0].shape, dtype=nl.float32, buffer=nl.sbuf)

    def both(op: Any, left: Any, right: Any) -> Any:
        result = tile()
        nisa.tensor_tensor(dst=result, data1=left, data2=right, op=op)
        return result

    def scalar(op: Any, left: Any, right: float) -> Any:
        result = tile()
        nisa.tensor_scalar(dst=result, data=left, op0=op, operand0=right)
        return result

    def area(x1: Any, y1: Any, x2: Any, y2: Any) -> Any:
        width = scalar(nl.maximum, both(nl.subtract, x2, x1), 0.0)
        result = tile()
        # One instruction for two operations: the height is held to be 0 at least, and multiplied.
        height = both(nl.subtract, y2, y1)
        nisa.scalar_tensor_tensor(
            dst=result, data=height, op0=nl.maximum, operand0=0.0, op1=nl.multiply, operand1=width
        )
        return result

    def over(numerator: Any, divisor: Any) -> Any:
        inverse = tile()
        nisa.reciprocal(dst=inverse, data=scalar(nl.add, divisor, EPSILON))
        return both(nl.multiply, numerator, inverse)

    ax1, ay1, ax2, ay2 = first
    bx1, by1, bx2, by2 = second
    least, most = nl.minimum, nl.maximum
    shared = area(both(most, ax1, bx1), both(most, ay1, by1), both(least, ax2, bx2), both(least, ay2, by2))
    hull = area(both(least, ax1, bx1), both(least, ay1, by1), both(most, ax2, bx2), both(most, ay2, by2))
    union = both(nl.subtract, both(nl.add, area(*first), area(*second)), shared)
    return both(nl.subtract, over(shared, union), over(both(nl.subtract, hull, union), hull))
