"""Boxes in Triton: loading and storing them whole, and their areas. For every kernel that takes boxes ``[…, 4]``."""

from __future__ import annotations

from common.interpreted import triton_language

triton, tl = triton_language()


@triton.jit
def load_boxes(boxes, count, BLOCK: tl.constexpr):  # noqa: N803 - it is compiled in
    """Return x1, y1, x2, y2 of the block of boxes at the place given, as float32; 0 beyond the last box.

    The four numbers of a box are loaded together, 16 bytes in float32, and taken apart where they already are: in the
    registers of one thread. Loading each coordinate by itself asks the cache for the same line four times.
    """
    number = tl.arange(0, 4 * BLOCK)
    values = tl.load(boxes + number, mask=number < 4 * count, other=0.0)
    by_box_edge_axis = tl.reshape(values.to(tl.float32), (BLOCK, 2, 2))  # as they lie in memory
    x, y = tl.split(by_box_edge_axis)
    x1, x2 = tl.split(x)
    y1, y2 = tl.split(y)
    return x1, y1, x2, y2


@triton.jit
def store_boxes(boxes, count, x1, y1, x2, y2, BLOCK: tl.constexpr):  # noqa: N803
    """Store a block of boxes at the place given, each whole, in that place's type; nothing beyond the last box."""
    number = tl.arange(0, 4 * BLOCK)
    values = tl.reshape(tl.join(tl.join(x1, x2), tl.join(y1, y2)), (4 * BLOCK,))
    tl.store(boxes + number, values.to(boxes.dtype.element_ty), mask=number < 4 * count)


@triton.jit
def area(x1, y1, x2, y2):
    """Return width times height, each 0 at least."""
    return tl.maximum(x2 - x1, 0.0) * tl.maximum(y2 - y1, 0.0)
