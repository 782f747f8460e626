"""Reads many numbers at once out of text, eight digits a step.

Eight characters are one 64-bit word; its digits are told from other characters, and summed up, by arithmetic on
the whole word, so that numpy does for all numbers what a C program would do for each.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tuiprof.formats.chrome.arrays import Ints

Words = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]


def _u(value: int) -> np.uint64:
    return np.uint64(value)


_ZEROS = _u(0x3030303030303030)
_CARRY = _u(0x7676767676767676)  # carries into the highest bit of each byte that is above 9
_HIGH = _u(0x8080808080808080)
_EACH = _u(0x0101010101010101)
_POWERS = np.array([10**digits for digits in range(9)], dtype=np.uint64)
#: Keeps the last bytes of a word, by how many.
_LAST = np.array(
    [0] + [(2**64 - 1) << (64 - 8 * kept) & (2**64 - 1) for kept in range(1, 9)], dtype=np.uint64
)
_DOT = ord(".")
#: More digits may not fit 64 bits.
MOST_DIGITS = 18


def text_of(data: bytes) -> tuple[npt.NDArray[np.uint8], Words]:
    """Return views of a text as bytes, and as the eight bytes that begin at each of its bytes.

    Args:
        data: The text, at least eight bytes.
    """
    words: Words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    return np.frombuffer(data, dtype=np.uint8), words


def constant(text: bytes) -> np.uint64:
    """Return eight characters as the word that :func:`text_of` shows for them.

    Args:
        text: The characters; a zero byte for one that does not matter, to be masked out.
    """
    return _u(int.from_bytes(text.ljust(8, b"\0"), "little"))


def _sum_up(digits: Words) -> Words:
    """Return the numbers whose decimal digits are the bytes of the words, the last one highest."""
    digits = (digits * _u(10) + (digits >> _u(8))) & _u(0x00FF00FF00FF00FF)
    digits = (digits * _u(100) + (digits >> _u(16))) & _u(0x0000FFFF0000FFFF)
    return (digits * _u(10000) + (digits >> _u(32))) & _u(0xFFFFFFFF)


def _word(words: Words, at: Ints) -> tuple[Words, Ints]:
    """Read up to eight digits at each place.

    Returns:
        Their values, and how many digits there were.
    """
    digits = words[at] ^ _ZEROS
    other = ((digits + _CARRY) | digits) & _HIGH
    # All bits below the lowest mark (all there are when there is none): one whole byte for each digit before it.
    below = (other & (~other + _u(1))) - _u(1)
    count = (((below >> _u(7)) & _EACH) * _EACH) >> _u(56)
    empty = count == 0
    digits <<= (_u(64) - (count << _u(3))) & _u(63)
    digits[empty] = 0
    return _sum_up(digits), count.astype(np.int64)


def integers(words: Words, at: Ints) -> tuple[Ints, Ints]:
    """Read a whole number at each place, up to what is no digit.

    Args:
        words: The text, from :func:`text_of`; eight more bytes can be read behind each number.
        at: Where the numbers begin, shape ``(n,)``.

    Returns:
        The numbers, and how many digits each has; one with none, or with more than :data:`MOST_DIGITS`, is no
        number.
    """
    value, count = _word(words, at)
    long = np.flatnonzero(count == 8)
    for _ in range(2):
        if not len(long):
            break
        more, digits = _word(words, at[long] + count[long])
        value[long] = value[long] * _POWERS[digits] + more
        count[long] += digits
        long = long[digits == 8]
    return value.view(np.int64), count


def microseconds(
    characters: npt.NDArray[np.uint8], words: Words, starts: Ints, stops: Ints
) -> tuple[Ints, Mask]:
    """Read microseconds without a fraction or with one of three digits, as nanoseconds.

    Args:
        characters: The text, from :func:`text_of`; sixteen bytes can be read before each number.
        words: The same.
        starts: Where the numbers begin, shape ``(n,)``.
        stops: Where they end.

    Returns:
        Nanoseconds, and which of them are such numbers.
    """
    broken = (characters[stops - 4] == _DOT) & (stops - starts > 4)
    fraction, sound = None, np.ones(len(starts), dtype=bool)
    whole_stops = stops
    if broken.any():
        whole_stops = stops - 4 * broken
        fraction, sound = _digits(words, stops, np.where(broken, 3, 0))
    count = whole_stops - starts
    sound &= (count > 0) & (count <= 16)
    value, fine = _digits(words, whole_stops, np.clip(count, 0, 8))
    sound &= fine
    long = np.flatnonzero(count > 8)
    if len(long):
        high, fine = _digits(words, whole_stops[long] - 8, np.clip(count[long] - 8, 0, 8))
        value[long] += high * _POWERS[8]
        sound[long] &= fine
    value *= _u(1000)
    if fraction is not None:
        value += fraction
    return value.view(np.int64), sound


def _digits(words: Words, stops: Ints, count: Ints) -> tuple[Words, Mask]:
    """Read numbers of known length that end at each place; also tell which are digits throughout."""
    digits = (words[stops - 8] ^ _ZEROS) & _LAST[count]
    other = ((digits + _CARRY) | digits) & _HIGH
    return _sum_up(digits), other == 0
