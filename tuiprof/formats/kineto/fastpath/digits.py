"""Parses many numbers in a text at once, eight digits per step.

Eight characters are one 64-bit word; its digits are recognized and combined by arithmetic on the whole word (SWAR),
vectorized over all numbers with numpy.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tuiprof.formats.kineto.fastpath.arrays import Ints
from tuiprof.formats.times import LIMIT_NS

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
#: Times a word with one byte of 1 this has the position of that byte, from the low end, in the highest byte.
_FROM_LAST = _u(0x0001020304050607)
#: More digits may not fit 64 bits.
MOST_DIGITS = 18


class Text:
    """A text of at least 128 bytes that can be read at many positions at once.

    Attributes:
        characters: Its bytes.
        words: The eight bytes that begin at each of its bytes.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.characters = np.frombuffer(data, dtype=np.uint8)
        self.words: Words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))

    def three_before(self, at: Ints) -> npt.NDArray[np.uint32]:
        """Return the three bytes before each position (at least 3) as one number: for many, far quicker than words."""
        bytes_ = self.characters
        ends = bytes_.take(at - 1).astype(np.uint32)
        for back in (2, 3):
            ends <<= 8
            ends |= bytes_.take(at - back)
        return ends

    def wide(self, at: Ints, size: int) -> npt.NDArray[np.void]:
        """Return a copy of the bytes that begin at each position: as quick for many bytes as for eight."""
        every: npt.NDArray[np.void] = np.ndarray(
            (len(self.data) - size + 1,), f"V{size}", self.data, strides=(1,)
        )
        return every[at]


def true_at(mask: Mask) -> Ints:
    """Return where a mask is True, as ``flatnonzero`` does, eight bytes at once: fast where True is rare."""
    whole = len(mask) & ~7
    words: Words = mask[:whole].view("<u8")
    at = np.flatnonzero(words != 0)
    found = words.take(at)
    if (found & (found - _u(1))).any() or mask[whole:].any():
        return np.flatnonzero(mask)
    found *= _FROM_LAST
    found >>= _u(56)
    at <<= 3
    at += found.view(np.int64)
    return at


def constant(text: bytes) -> np.uint64:
    """Return eight characters as the word that :class:`Text` shows for them; a zero byte for one to be masked out."""
    return _u(int.from_bytes(text.ljust(8, b"\0"), "little"))


def _sum_up(digits: Words) -> Words:
    """Return the numbers whose decimal digits are the bytes of the words, the last one highest."""
    digits = (digits * _u(10) + (digits >> _u(8))) & _u(0x00FF00FF00FF00FF)
    digits = (digits * _u(100) + (digits >> _u(16))) & _u(0x0000FFFF0000FFFF)
    return (digits * _u(10000) + (digits >> _u(32))) & _u(0xFFFFFFFF)


def _word(words: Words, at: Ints) -> tuple[Words, Ints]:
    """Read up to eight digits at each position: their values, and how many digits there were."""
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
    """Read a whole number at each position: the numbers, and how many digits each has.

    None, or more than :data:`MOST_DIGITS`, is no number. Eight bytes behind each number must be readable.
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


def microseconds(text: Text, starts: Ints, stops: Ints) -> tuple[Ints, Mask, Words]:
    """Read microseconds without a fraction or with one of three digits: ns, which are valid, the next eight characters.

    24 bytes before the end of each number must be readable.
    """
    around = text.wide(stops - 24, 32).view(np.uint8).reshape(-1, 32)

    def before(end: int) -> Words:
        """Return the eight characters before a position counted from the end of each number."""
        return around[:, 16 + end : 24 + end].view("<u8")[:, 0]

    count = stops - starts
    broken = (before(0) >> _u(32) & _u(0xFF)) == _u(_DOT)
    broken &= count > 4
    fraction = None
    if not broken.any():
        low, high = before(0), before(-8)
    else:
        fraction, sound = _digits(before(0), 3 * broken)
        count -= 4 * broken
        if broken.all():
            low, high = before(-4), before(-12)
        else:
            low, high = np.where(broken, before(-4), before(0)), np.where(broken, before(-12), before(-8))
    value, fine = _digits(low, np.clip(count, 0, 8))
    fine &= (count > 0) & (count <= 16)
    if fraction is not None:
        fine &= sound
    long = np.flatnonzero(count > 8)
    if len(long):
        more, digits = _digits(high[long], np.minimum(count[long] - 8, 8))
        value[long] += more * _POWERS[8]
        fine[long] &= digits
    value *= _u(1000)  # 16 digits and three more fit 64 bits without a sign
    if fraction is not None:
        value += fraction
    fine &= value < _u(LIMIT_NS)
    return value.view(np.int64), fine, before(8)


def _digits(words: Words, count: Ints) -> tuple[Words, Mask]:
    """Read the numbers that are the last characters of words; also tell which are digits throughout."""
    digits = (words ^ _ZEROS) & _LAST[count]
    other = ((digits + _CARRY) | digits) & _HIGH
    return _sum_up(digits), other == 0
