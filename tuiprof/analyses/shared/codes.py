"""Sets of small integers (name codes, tracks) by table lookup, which is faster than sorting millions of them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tuiprof.model.intervals import Ints


def distinct(codes: Ints) -> Ints:
    """Return the distinct values of codes at or above 0, ascending; -1 is left out."""
    flat = codes.reshape(-1)
    flat = flat[flat >= 0]
    return np.flatnonzero(np.bincount(flat)).astype(np.int64) if len(flat) else np.empty(0, dtype=np.int64)


def factorize(codes: Ints) -> tuple[Ints, Ints]:
    """Return the distinct values of codes at or above -1, ascending, and the index of each code among them."""
    seen = np.bincount(codes + 1) > 0 if len(codes) else np.empty(0, dtype=bool)
    index = np.cumsum(seen) - 1
    return (np.flatnonzero(seen) - 1).astype(np.int64), index[codes + 1] if len(codes) else codes


def member(codes: Ints, wanted: Ints | Iterable[int]) -> npt.NDArray[np.bool_]:
    """Return which codes are in the given set; -1 never is."""
    chosen = wanted if isinstance(wanted, np.ndarray) else np.fromiter(wanted, dtype=np.int64)
    size = max(int(codes.max(initial=-1)), int(chosen.max(initial=-1))) + 2
    table = np.zeros(size, dtype=bool)
    table[chosen[chosen >= 0]] = True
    mask: npt.NDArray[np.bool_] = table[codes]  # -1 reads the last entry, which no code reaches
    return mask
