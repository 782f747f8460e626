"""Gathers the columns of chunks, in file order, under one numbering of names, words and lanes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tuiprof.formats.kineto.columns import MEMORY_NUMBERS, NUMBERS, Columns
from tuiprof.formats.kineto.communications import Communication
from tuiprof.formats.kineto.events import MISSING, NONE
from tuiprof.formats.kineto.fastpath.arrays import Codes, Ints
from tuiprof.formats.kineto.lanes import Identity
from tuiprof.formats.kineto.reading.decode import Chunk, Rare

if TYPE_CHECKING:
    from tuiprof.model.trust import ReadStats


class Column:
    """A growing column; its buffer grows with it, so no concatenation is needed later."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._bytes = bytearray()

    def append(self, values: npt.NDArray[Any]) -> None:
        """Add values."""
        self._bytes += np.ascontiguousarray(values, dtype=self._dtype).data.cast("B")

    def values(self) -> npt.NDArray[Any]:
        """Return a view of the values, which must be released before the column grows again."""
        return np.frombuffer(self._bytes, dtype=self._dtype)


class Rows:
    """The events of one shape."""

    def __init__(self, numbers: Sequence[str], missing: int) -> None:
        self._missing = missing
        self._number_names = numbers
        self._empty()

    def _empty(self) -> None:
        self.length = 0
        self._numbers: dict[str, Column] = {}
        self._ts, self._dur = Column(np.int64), Column(np.int64)
        self._ordinal, self._name, self._lane = Column(np.uint32), Column(np.uint32), Column(np.uint32)
        self._cat, self._phase = Column(np.uint16), Column(np.uint8)

    def append(self, columns: Columns, first: int, names: Codes, cats: Codes, lanes: Codes) -> None:
        """Add the events of a chunk."""
        count = len(columns)
        if not count:
            return
        self._ts.append(columns.ts)
        if columns.dur is not None:
            self._dur.append(columns.dur)
        if columns.phase is not None:
            self._phase.append(columns.phase)
        self._ordinal.append(columns.ordinal + np.uint32(first))
        self._name.append(names[columns.name])
        self._cat.append(cats[columns.cat])
        self._lane.append(lanes[columns.lane])
        for key in self._number_names:
            column = columns.numbers.get(key)
            if column is None:
                if key in self._numbers:
                    self._numbers[key].append(np.full(count, self._missing, dtype=np.int64))
                continue
            if key not in self._numbers:
                self._numbers[key] = Column(np.int64)
                self._numbers[key].append(np.full(self.length, self._missing, dtype=np.int64))
            self._numbers[key].append(column)
        self.length += count

    def columns(self, *, give_away: bool) -> Columns:
        """Return views of all columns."""
        dur, phase = self._dur.values(), self._phase.values()
        columns = Columns(
            self._ordinal.values(),
            self._ts.values(),
            dur if len(dur) == self.length else None,
            self._name.values(),
            self._cat.values(),
            self._lane.values(),
            {key: column.values() for key, column in self._numbers.items()},
            phase if len(phase) == self.length else None,
        )
        if give_away:
            self._empty()
        return columns


class Gathered:
    """All chunks so far.

    Attributes:
        spans: Complete events.
        pairs: Begin and end events.
        instants: Events without length.
        rare: Events that were decoded whole; ``ordinal`` is their position in the file.
        communications: What events say of process groups.
        events: Number of events, of every phase.
    """

    def __init__(self) -> None:
        self.communications: list[Communication] = []
        self.spans, self.pairs = Rows(NUMBERS, NONE), Rows(NUMBERS, NONE)
        self.instants = Rows(MEMORY_NUMBERS, MISSING)
        self.rare: list[Rare] = []
        self.events = self.malformed = self.repaired = 0
        self._phases: Counter[str] = Counter()
        self._names: dict[str, int] = {}
        self._cats: dict[str, int] = {}
        self._lanes: dict[tuple[Identity, Identity], int] = {}

    @property
    def names(self) -> list[str]:
        """Names by code."""
        return list(self._names)

    @property
    def cats(self) -> list[str]:
        """Category words by code."""
        return list(self._cats)

    @property
    def lanes(self) -> list[tuple[Identity, Identity]]:
        """(process, thread) by code."""
        return list(self._lanes)

    def add(self, chunk: Chunk) -> None:
        """Add the next chunk of the file."""
        codes = (
            np.array([self._names.setdefault(w, len(self._names)) for w in chunk.names], dtype=np.uint32),
            np.array([self._cats.setdefault(w, len(self._cats)) for w in chunk.cats], dtype=np.uint32),
            np.array([self._lanes.setdefault(w, len(self._lanes)) for w in chunk.lanes], dtype=np.uint32),
        )
        self.spans.append(chunk.spans, self.events, *codes)
        self.pairs.append(chunk.pairs, self.events, *codes)
        self.instants.append(chunk.instants, self.events, *codes)
        for event in chunk.rare:
            event.ordinal += self.events
        self.rare += chunk.rare
        self.communications += chunk.communications
        self._phases.update(chunk.phases)
        self.events += chunk.events
        self.malformed += chunk.malformed
        self.repaired += chunk.repaired

    def code_of_name(self, name: str) -> int:
        """Return the code of a name, adding it if necessary."""
        return self._names.setdefault(name, len(self._names))

    def code_of_cat(self, cat: str) -> int:
        """Return the code of a category word, adding it if necessary."""
        return self._cats.setdefault(cat, len(self._cats))

    def code_of_lane(self, pid: Identity, tid: Identity) -> int:
        """Return the code of a lane, adding it if necessary."""
        return self._lanes.setdefault((pid, tid), len(self._lanes))

    def count_into(self, stats: ReadStats) -> None:
        """Write the counts down."""
        stats.events, stats.phases = self.events, dict(self._phases.most_common())
        stats.malformed += self.malformed
        stats.repaired += self.repaired


def time_order(ts: Ints, dur: Ints, ordinal: Codes) -> npt.NDArray[np.intp]:
    """Return the order of the event table: by start, the longer first, then as in the file."""
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
