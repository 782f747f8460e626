"""Merges the columns of many chunks into one set with shared codes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tuiprof.formats.chrome.columns import Codes, Columns
from tuiprof.formats.chrome.decode import Chunk
from tuiprof.formats.chrome.events import MISSING
from tuiprof.formats.chrome.lanes import Identity

Ints = npt.NDArray[np.int64]


class Merged:
    """All chunks of a file under one numbering of names, words and lanes.

    Attributes:
        names: Names by code.
        cats: Category words by code.
        lanes: (process, thread) by code.
    """

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self._chunks = chunks
        names: dict[str, int] = {}
        cats: dict[str, int] = {}
        lanes: dict[tuple[Identity, Identity], int] = {}
        self._name_codes = [_renumber(chunk.names, names) for chunk in chunks]
        self._cat_codes = [_renumber(chunk.cats, cats) for chunk in chunks]
        self._lane_codes = [_renumber(chunk.lanes, lanes) for chunk in chunks]
        self._first = np.cumsum([0, *(chunk.events for chunk in chunks)])
        self.names, self.cats, self.lanes = list(names), list(cats), list(lanes)

    def columns(self, which: str, number_names: Sequence[str]) -> Columns:
        """Take the columns of one shape out of the chunks and join them.

        The chunks give their columns away, so that both never lie in memory whole.

        Args:
            which: ``"spans"``, ``"pairs"`` or ``"instants"``.
            number_names: The integer columns of that shape.
        """
        parts: list[Columns] = [getattr(chunk, which) for chunk in self._chunks]
        lengths = [len(part) for part in parts]
        ordinal = self._joined(
            [part.ordinal + np.uint32(first) for part, first in self._with(parts, self._first)]
        )
        name = self._joined([codes[part.name] for part, codes in self._with(parts, self._name_codes)])
        cat = self._joined([codes[part.cat] for part, codes in self._with(parts, self._cat_codes)])
        lane = self._joined([codes[part.lane] for part, codes in self._with(parts, self._lane_codes)])
        ts = np.concatenate([part.ts for part in parts]) if parts else np.empty(0, dtype=np.int64)
        durs = [part.dur for part in parts if part.dur is not None]
        phases = [part.phase for part in parts if part.phase is not None]
        numbers = {}
        for key in number_names:
            pieces = [part.numbers.pop(key, None) for part in parts]
            if any(piece is not None for piece in pieces):
                numbers[key] = np.concatenate(
                    [
                        np.full(length, MISSING, dtype=np.int64) if piece is None else piece
                        for piece, length in zip(pieces, lengths, strict=True)
                    ]
                )
        return Columns(
            ordinal,
            ts,
            np.concatenate(durs) if durs else None,
            name,
            cat,
            lane,
            numbers,
            np.concatenate(phases) if phases else None,
        )

    def ordinal_of(self, chunk: int, ordinal: int) -> int:
        """Return the position in the file of an event of a chunk.

        Args:
            chunk: Index of the chunk.
            ordinal: Position in it.
        """
        return int(self._first[chunk]) + ordinal

    @staticmethod
    def _with(parts: Sequence[Columns], others: Sequence[Codes] | Ints) -> zip[tuple[Columns, Codes]]:
        return zip(parts, others, strict=False)

    @staticmethod
    def _joined(parts: Sequence[Codes]) -> Codes:
        if not parts:
            return np.empty(0, dtype=np.uint32)
        return np.concatenate(parts).astype(np.uint32, copy=False)


def _renumber(words: Sequence[object], book: dict[object, int]) -> Codes:  # type: ignore[type-arg]
    return np.array([book.setdefault(word, len(book)) for word in words], dtype=np.uint32)


def time_order(ts: Ints, dur: Ints, ordinal: Codes) -> npt.NDArray[np.intp]:
    """Return the order of the event table: by start, the longer first, then as in the file.

    Args:
        ts: Starts in ns.
        dur: Lengths in ns.
        ordinal: Positions in the file.
    """
    order = np.argsort(ts, kind="stable")
    sorted_ts = ts[order]
    same = sorted_ts[1:] == sorted_ts[:-1]
    tied = np.zeros(len(ts), dtype=bool)
    tied[1:] |= same
    tied[:-1] |= same
    rows = order[tied]
    if len(rows):
        order[tied] = rows[np.lexsort((ordinal[rows], -dur[rows], ts[rows]))]
    return order
