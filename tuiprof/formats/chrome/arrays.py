"""Lists of Python numbers to arrays, and never a silent conversion."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.uint32]


def integers(values: Sequence[Any]) -> Ints | None:
    """Return ints as an array; None when something else is among them, or one is wider than 64 bits.

    Args:
        values: The values.
    """
    try:
        # numpy would cut fractions off and read text; array does neither, and is as fast.
        return np.frombuffer(array("q", values), dtype=np.int64)
    except (TypeError, OverflowError):
        return None


def floats(values: Sequence[Any]) -> Floats | None:
    """Return ints and floats as an array of doubles; None when something else is among them.

    Args:
        values: The values.
    """
    try:
        return np.frombuffer(array("d", values), dtype=np.float64)
    except (TypeError, OverflowError):
        return None


def codes(values: Iterable[int]) -> Codes:
    """Return small non-negative ints as an array.

    Args:
        values: The values.
    """
    return np.frombuffer(array("I", values), dtype=np.uint32)
