"""Numbers of a JSON file to integer arrays: exactly, or not at all.

Times are microseconds in the file and become nanoseconds. The reference is decimal arithmetic: microseconds times
1000, rounded half to even. A binary fraction near 1.7e15 µs (Unix time) has a spacing of 0.25 µs, so such stamps are
read from their text.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from tuiprof.formats.event_table import LIMIT_NS

#: Sentinel for a missing time or allocator number, until the table is built.
MISSING = -(1 << 63)
#: Sentinel for missing ids and sizes, which are never negative; a small number is faster to convert and to count.
NONE = -1

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.uint32]


# Lists of Python numbers are converted by ``struct``: it rejects values of another type, where numpy would truncate
# fractions or parse text, and is two to three times as fast as numpy or ``array``.


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


_LIMIT_US = LIMIT_NS // 1000
_DOT, _MINUS, _ZERO = ord("."), ord("-"), ord("0")
_WIDEST = 24  # characters of a plain number; longer ones go the slow way


def ns_from_numbers(values: Sequence[object]) -> Ints | None:
    """Convert decoded JSON numbers, microseconds, to ns; None unless every one is provably exact (use
    :func:`ns_from_text`).
    """
    whole = integers(values)
    if whole is None:
        return _from_floats(values)
    if len(whole) and max(int(whole.max()), -int(whole.min())) >= _LIMIT_US:
        return None
    return whole * 1000


def _from_floats(values: Sequence[object]) -> Ints | None:
    """Convert floats (or a mixture with ints).

    A double differs from the decimal it was read from by at most half its spacing. Where that cannot move
    the rounded nanosecond, the result is proven.
    """
    us = floats(values)
    if us is None:
        return None
    whole = np.floor(us)
    scaled = (us - whole) * 1000.0  # the subtraction is exact
    rounded = np.rint(scaled)
    reach = np.spacing(np.abs(us)) * 500.0 + 1e-9  # half a spacing in ns, and the rounding of the product
    if not bool((np.abs(scaled - rounded) + reach < 0.5).all()):  # also False for NaN and infinity
        return None
    return whole.astype(np.int64) * 1000 + rounded.astype(np.int64)


def ns_from_text(texts: Sequence[bytes]) -> Ints:
    """Convert microseconds as text of JSON numbers or strings to ns; ``MISSING`` if there is no number in range."""
    ns = np.full(len(texts), MISSING, dtype=np.int64)
    if not len(texts):
        return ns
    padded = np.array(texts, dtype=np.bytes_)
    width = padded.dtype.itemsize
    slow = np.ones(len(texts), dtype=bool)
    if 0 < width <= _WIDEST:
        characters = padded.view(np.uint8).reshape(len(texts), width)
        alike = _alike(characters)
        if alike is not None:
            return alike
        plain, fast = _plain(characters)
        ns[plain] = fast[plain]
        slow = ~plain
    for i in np.flatnonzero(slow).tolist():
        ns[i] = _decimal(texts[i])
    return ns


def _alike(characters: npt.NDArray[np.uint8]) -> Ints | None:
    """Read positive numbers of the same number of digits before and after the point, in ns; None when they differ.

    Time stamps of one stretch have that, unless a power of ten is passed.
    """
    width = characters.shape[1]
    points = np.flatnonzero(characters[0] == _DOT)
    whole = int(points[0]) if len(points) else width
    decimals = max(width - whole - 1, 0)
    if not 0 < whole <= 16 or decimals > 3:
        return None
    columns = np.ascontiguousarray(np.delete(characters, points[:1], axis=1).T) - np.uint8(_ZERO)
    if (len(points) and not (characters[:, whole] == _DOT).all()) or not (columns <= 9).all():
        return None
    value = np.zeros(len(characters), dtype=np.uint64)
    for digits in columns:
        value = value * np.uint64(10) + digits
    value *= np.uint64(10 ** (3 - decimals))
    return value.astype(np.int64) if int(value.max()) < LIMIT_NS else None


def _plain(characters: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.bool_], Ints]:
    """Read numbers of at most three decimals, column by column: which rows are such, and their ns."""
    n, width = characters.shape
    value = np.zeros(n, dtype=np.uint64)
    digits = np.zeros(n, dtype=np.int8)
    decimals = np.full(n, -1, dtype=np.int8)  # -1 = no point yet
    plain = np.ones(n, dtype=bool)
    negative = characters[:, 0] == _MINUS
    for column in range(width):
        character = np.ascontiguousarray(characters[:, column])
        digit = character - np.uint8(_ZERO)  # wraps around below "0"
        is_digit = digit <= 9
        is_dot = (character == _DOT) & (decimals < 0)
        value = np.where(is_digit, value * np.uint64(10) + digit, value)
        digits += is_digit
        decimals += is_digit & (decimals >= 0)
        decimals[is_dot] = 0
        known = is_digit | is_dot | (character == 0)
        plain &= known | negative if column == 0 else known
    decimals = np.maximum(decimals, 0)
    # At most 16 digits before the point and 3 after: below 1e19, which 64 unsigned bits hold.
    plain &= (digits > 0) & (decimals <= 3) & (digits - decimals <= 16)
    scale = np.array([1000, 100, 10, 1], dtype=np.uint64)[np.minimum(decimals, 3)]
    size = np.where(plain, value, np.uint64(0)) * scale
    plain &= size < np.uint64(LIMIT_NS)
    ns = np.where(plain, size, np.uint64(0)).astype(np.int64)
    return plain, np.where(negative, -ns, ns)


def _decimal(text: bytes) -> int:
    """Convert one number of any shape."""
    try:
        exact = Decimal(text.decode("ascii").strip('" \t\r\n'))
        if not exact.is_finite() or abs(exact) >= _LIMIT_US:
            return MISSING
        return int((exact * 1000).to_integral_value(ROUND_HALF_EVEN))
    except (ArithmeticError, ValueError):
        return MISSING
