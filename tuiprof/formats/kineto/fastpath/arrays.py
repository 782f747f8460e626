"""Lists of Python numbers to arrays, and never a silent conversion.

``struct`` rejects values of another type, where numpy would truncate fractions or parse text, and is two to three
times as fast as numpy or ``array`` on a list.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.uint32]


def integers(values: Sequence[Any]) -> Ints | None:
    """Return ints as an array; None if there are other values, or one is wider than 64 bits."""
    try:
        return np.frombuffer(struct.pack(f"{len(values)}q", *values), dtype=np.int64)
    except struct.error:
        return None


def floats(values: Sequence[Any]) -> Floats | None:
    """Return ints and floats as an array of doubles; None if there are other values."""
    try:
        return np.frombuffer(struct.pack(f"{len(values)}d", *values), dtype=np.float64)
    except (struct.error, OverflowError):
        return None


def codes(values: Sequence[int]) -> Codes:
    """Return small non-negative ints as an array."""
    return np.frombuffer(struct.pack(f"{len(values)}I", *values), dtype=np.uint32)
