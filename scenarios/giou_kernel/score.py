"""The generalised IoU of pairs of boxes (Rezatofighi et al. 2019), as every kernel language of the ladder has it.

A box is x1, y1, x2, y2. Its width and height are 0 where x2 < x1 or y2 < y1; so are those of what two boxes share,
and of the smallest box around both (their hull). The score is shared ÷ union − (hull − union) ÷ hull, with
``EPSILON`` added to both divisors: 1 for equal boxes, down to −1 for boxes far apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

EPSILON = 1e-5
#: For each pair: two areas of own boxes (5 each), two of shared and hull (9 each: four edges, two lengths, two clamps,
#: a product), the union (2), two quotients (2 and 3), and their difference.
OPERATIONS = 36


def random_pairs(batch: int, boxes: int, image: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two batches of boxes in an image of so many pixels, float32 ``[batch, boxes, 4]``; some are inside out."""
    import numpy as np

    random = np.random.default_rng(seed)
    shape = (batch, boxes, 4)
    first = random.random(shape, np.float32) * np.float32(image)
    near = first + random.standard_normal(shape, np.float32) * np.float32(image / 16)
    return first, near


def score(first: Any, second: Any, minimum: Any, maximum: Any) -> Any:
    """Return the scores of pairs.

    Args:
        first: The four coordinates of the first boxes, arrays of any framework and shape.
        second: Those of the second boxes.
        minimum: The framework's minimum of two arrays, or of an array and a number.
        maximum: The framework's maximum.
    """
    ax1, ay1, ax2, ay2 = first
    bx1, by1, bx2, by2 = second

    def area(x1: Any, y1: Any, x2: Any, y2: Any) -> Any:
        return maximum(x2 - x1, 0) * maximum(y2 - y1, 0)

    shared = area(maximum(ax1, bx1), maximum(ay1, by1), minimum(ax2, bx2), minimum(ay2, by2))
    hull = area(minimum(ax1, bx1), minimum(ay1, by1), maximum(ax2, bx2), maximum(ay2, by2))
    union = area(ax1, ay1, ax2, ay2) + area(bx1, by1, bx2, by2) - shared
    return shared / (union + EPSILON) - (hull - union) / (hull + EPSILON)


def in_numpy(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the scores ``[…]`` of boxes ``[…, 4]``, in their own precision."""
    import numpy as np

    edges = (np.moveaxis(boxes, -1, 0) for boxes in (first, second))
    return score(*edges, np.minimum, np.maximum)
