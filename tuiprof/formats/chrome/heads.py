"""Numbers the first lines of events: category, name, process and thread, of which a trace repeats the same few.

A line is known by a hash of 64 bits over its text, seeded anew in every process, so that nobody can write two
lines that collide; by chance, a million different lines do with a probability of 3 in 10⁸. Each line is decoded
once.
"""

from __future__ import annotations

import secrets

import msgspec
import numpy as np

from tuiprof.formats.chrome.arrays import Codes, Ints
from tuiprof.formats.chrome.columns import Books
from tuiprof.formats.chrome.digits import Words

#: So many lines are remembered; then they are forgotten, and learned again.
_MOST = 1 << 16
#: Lines of more words than this are hashed one by one.
_LONG = 20
_SHIFT = np.uint64(32)


class Head(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The first line of an event, without its phase."""

    cat: str | None = None
    name: str | int | float | None = None
    pid: int | str | float | None = None
    tid: int | str | float | None = None


_decode = msgspec.json.Decoder(Head).decode


class Heads:
    """The first lines seen so far."""

    def __init__(self) -> None:
        self._seed = np.uint64(secrets.randbits(64))
        self._factor = np.uint64(secrets.randbits(64) | 1)
        self._forget()

    def _forget(self) -> None:
        self._known: list[Head] = []
        self._hashes, self._codes = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)

    def number(
        self, data: bytes, words: Words, starts: Ints, stops: Ints, books: Books
    ) -> tuple[Codes, Codes, Codes]:
        """Number names, category words and lanes.

        Args:
            data: The text.
            words: The text, from :func:`~tuiprof.formats.chrome.digits.text_of`.
            starts: Where each line begins, at a quote; it has at least eight characters.
            stops: Where it ends.
            books: Codebooks to extend.

        Returns:
            Codes of the names, of the category words and of the lanes.

        Raises:
            msgspec.DecodeError: A line holds something else than these.
        """
        if len(self._known) > _MOST:
            self._forget()
        code = self._recognise(data, starts, stops, self._hash(data, words, starts, stops))
        first = np.full(len(self._known), len(code))
        first[code[::-1]] = np.arange(len(code))[::-1]  # of several the last one written stays: the first in the file
        present = np.argsort(first, kind="stable")[: np.count_nonzero(first < len(code))]
        mapped = np.zeros((3, len(self._known)), dtype=np.uint32)
        for known in present.tolist():
            head = self._known[known]
            lane = head.pid, head.tid
            mapped[0, known] = books.names.setdefault(head.name, len(books.names))
            mapped[1, known] = books.cats.setdefault(head.cat, len(books.cats))
            mapped[2, known] = books.lanes.setdefault(lane, len(books.lanes))
        return mapped[0][code], mapped[1][code], mapped[2][code]

    def _recognise(self, data: bytes, starts: Ints, stops: Ints, hashes: Words) -> Ints:
        """Return which known line each is; new ones are decoded."""
        place = np.searchsorted(self._hashes, hashes)
        if len(self._hashes):
            found = self._hashes[np.minimum(place, len(self._hashes) - 1)] == hashes
        else:
            found = np.zeros(len(hashes), dtype=bool)
        if not found.all():
            rows = np.flatnonzero(~found)
            new, first = np.unique(hashes[rows], return_index=True)
            heads = [
                _decode(b"{%b}" % data[start:stop])
                for start, stop in zip(starts[rows[first]].tolist(), stops[rows[first]].tolist(), strict=True)
            ]
            everything = np.concatenate((self._hashes, new))
            codes = np.concatenate((self._codes, len(self._known) + np.arange(len(new), dtype=np.int64)))
            order = np.argsort(everything)
            self._known += heads
            self._hashes, self._codes = everything[order], codes[order]
            place = np.searchsorted(self._hashes, hashes)
        return self._codes[place]

    def _hash(self, data: bytes, words: Words, starts: Ints, stops: Ints) -> Words:
        length = stops - starts
        value = self._mix(length.astype(np.uint64) ^ self._seed, words[stops - 8])
        whole = length >> 3
        common = min(int(whole.min(initial=_LONG)), _LONG)
        for k in range(common):
            value = self._mix(value, words[starts + 8 * k])
        long = whole > _LONG
        rows = np.flatnonzero((whole > common) & ~long)
        k = common
        while len(rows):
            value[rows] = self._mix(value[rows], words[starts[rows] + 8 * k])
            k += 1
            rows = rows[whole[rows] > k]
        rows = np.flatnonzero(long)
        if len(rows):
            bounds = zip(starts[rows].tolist(), stops[rows].tolist(), strict=True)
            each = np.array([hash(data[start:stop]) for start, stop in bounds], dtype=np.int64)
            value[rows] = each.view(np.uint64)
        return value

    def _mix(self, value: Words, word: Words) -> Words:
        value = (value ^ word) * self._factor
        value ^= value >> _SHIFT
        return value
