"""Numbers the first lines of events: category, name, process and thread, of which a trace repeats the same few.

A line is known by a hash of 64 bits over its text, seeded anew in every process, so that nobody can write two
lines that collide; by chance, a million different lines do with a probability of 3 in 10⁸. Each line is decoded
once.
"""

from __future__ import annotations

import secrets

import msgspec
import numpy as np

from tuiprof.formats.kineto.columns import Books
from tuiprof.formats.kineto.fastpath.arrays import Codes, Ints
from tuiprof.formats.kineto.fastpath.digits import Text, Words

#: So many lines are remembered; then they are forgotten, and learned again.
_MOST = 1 << 16
#: Bytes that are hashed at a time. Lines of more blocks than this are hashed one by one.
_BLOCK, _BLOCKS = 96, 16
#: Keeps the first bytes of a block, by how many.
_WITHIN = np.array(
    [b"\xff" * kept + b"\0" * (_BLOCK - kept) for kept in range(_BLOCK + 1)], dtype=f"V{_BLOCK}"
)
_SHIFT = np.uint64(32)


class Head(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The first line of an event, without its phase."""

    cat: str | None = None
    name: str | int | float | None = None
    pid: int | str | float | None = None
    tid: int | str | float | None = None


_decode = msgspec.json.Decoder(Head).decode


def _decoded(line: bytes) -> Head:
    if not line.endswith(b",\n"):
        raise msgspec.DecodeError("there is text between the first line and the second")
    return _decode(b"{%b}" % line[:-2])


class Heads:
    """The first lines seen so far."""

    def __init__(self) -> None:
        self._seed = np.uint64(secrets.randbits(64))
        self._factor = np.uint64(secrets.randbits(64) | 1)
        self._forget()

    def _forget(self) -> None:
        self._known: list[Head] = []
        self._hashes, self._codes = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)

    def number(self, text: Text, starts: Ints, stops: Ints, books: Books) -> tuple[Codes, Codes, Codes]:
        """Number names, category words and lanes.

        Returns:
            Codes of the names, of the category words and of the lanes.

        Raises:
            msgspec.DecodeError: A line holds something else than these.
        """
        if len(self._known) > _MOST:
            self._forget()
        code = self._recognise(text.data, starts, stops, self._hash(text, starts, stops))
        first = np.full(len(self._known), len(code))
        # Of several that are written the last stays: backwards that is the first in the file.
        first[code[::-1]] = np.arange(len(code))[::-1]
        present = np.argsort(first, kind="stable")[: np.count_nonzero(first < len(code))]
        mapped = np.zeros((3, len(self._known)), dtype=np.uint32)
        names, cats, lanes = books.names, books.cats, books.lanes
        mapped[:, present] = np.array(
            [
                (
                    names.setdefault(head.name, len(names)),
                    cats.setdefault(head.cat, len(cats)),
                    lanes.setdefault((head.pid, head.tid), len(lanes)),
                )
                for head in map(self._known.__getitem__, present.tolist())
            ],
            dtype=np.uint32,
        ).T.reshape(3, -1)
        return mapped[0].take(code), mapped[1].take(code), mapped[2].take(code)

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
                _decoded(data[start:stop])
                for start, stop in zip(starts[rows[first]].tolist(), stops[rows[first]].tolist(), strict=True)
            ]
            everything = np.concatenate((self._hashes, new))
            codes = np.concatenate((self._codes, len(self._known) + np.arange(len(new), dtype=np.int64)))
            order = np.argsort(everything)
            self._known += heads
            self._hashes, self._codes = everything[order], codes[order]
            place = np.searchsorted(self._hashes, hashes)
        return self._codes[place]

    def _hash(self, text: Text, starts: Ints, stops: Ints) -> Words:
        length = stops - starts
        value = length.astype(np.uint64) ^ self._seed
        rows, at = np.arange(len(starts)), starts
        for block in range(_BLOCKS):
            if block:
                rows = np.flatnonzero(length > block * _BLOCK)
                if not len(rows):
                    return value
                at = starts[rows] + block * _BLOCK
            words = text.wide(at, _BLOCK).view("<u8")
            words &= _WITHIN[np.minimum(length[rows] - block * _BLOCK, _BLOCK)].view("<u8")
            part = value[rows]
            for k in range(_BLOCK // 8):
                part ^= words[k :: _BLOCK // 8]
                part *= self._factor
                part ^= part >> _SHIFT
            value[rows] = part
        rows = np.flatnonzero(length > _BLOCKS * _BLOCK)
        bounds = zip(starts[rows].tolist(), stops[rows].tolist(), strict=True)
        each = np.array([hash(text.data[start:stop]) for start, stop in bounds], dtype=np.int64)
        value[rows] = each.view(np.uint64)
        return value
