"""Stats by name and events as columns that the model's table is made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from tuiprof.formats.event_table import LIMIT_NS
from tuiprof.formats.xplane.space import UNIX_TIME_NS, Space
from tuiprof.formats.xplane.words import THREAD_ID

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_DOUBLE, _STR, _REF = 2, 5, 7
_DENSE: Final = 1 << 20
#: Maximum distance of a time from the origin of a profile: 26 days.
_FAR_PS: Final = 1 << 61

#: Stats that the model needs; others are decoded only for an event's raw text.
WANTED: Final = (
    "correlation_id",
    "run_id",
    "program_id",
    "device_ordinal",
    "step_num",
    "group_id",
    "_pt",
    "_p",
    "_ct",
    "_c",
    "size",
    "kernel_details",
    "memcpy_details",
    "memset_details",
    "hlo_op",
    "% util",
    "allocation_bytes",
    "addr",
    "bytes_allocated",
    "bytes_reserved",
    "allocator_name",
    "index_on_host",
    "dropped_traces",
    THREAD_ID,
)
_SIZE: Final = re.compile(rb"(?:^|\s)(?:size|num_bytes):(\d+)")


class Lookup:
    """From (plane, id) to a number, for many at once; ``default`` stands for a pair without an entry."""

    def __init__(self, entries: Mapping[tuple[int, int], int], planes: int, default: int) -> None:
        count = len(entries)
        of_plane = np.fromiter((plane for plane, _ in entries), np.int64, count)
        of_id = np.fromiter((i for _, i in entries), np.int64, count)
        self._ids = np.unique(of_id)
        self._table = np.full((planes, len(self._ids) + 1), default, dtype=np.int32)
        self._table[of_plane, np.searchsorted(self._ids, of_id)] = np.fromiter(
            entries.values(), np.int32, count
        )
        self._rank: Ints | None = None
        if len(self._ids) and self._ids[0] >= 0 and self._ids[-1] < _DENSE:
            self._rank = np.full(int(self._ids[-1]) + 2, len(self._ids), dtype=np.int64)
            self._rank[self._ids] = np.arange(len(self._ids))

    def __call__(
        self, planes: npt.NDArray[np.integer], ids: npt.NDArray[np.integer]
    ) -> npt.NDArray[np.int32]:
        """Look up pairs of a plane and an id, both of shape ``(n,)``."""
        if self._rank is not None:
            last = len(self._rank) - 1  # stands for "no such id"
            rank = self._rank[np.where((ids < 0) | (ids > last), last, ids)]
        else:
            rank = np.searchsorted(self._ids, ids)
            known = rank < len(self._ids)
            known[known] = self._ids[rank[known]] == ids[known]
            rank = np.where(known, rank, len(self._ids))
        found: npt.NDArray[np.int32] = self._table[planes, rank]
        return found


class Named:
    """The wanted stats of a file, by name."""

    def __init__(self, space: Space, plane_of: npt.NDArray[np.integer]) -> None:
        number = {name: code for code, name in enumerate(WANTED, 1)}
        entries = {
            (index, key): number[name]
            for index, plane in enumerate(space.planes)
            for key, name in plane.stats.items()
            if name in number
        }
        self.space = space
        stats = space.stats
        codes = Lookup(entries, len(space.planes), 0)(plane_of[stats.event], stats.name).astype(np.uint8)
        self._rows = {}
        kept = np.flatnonzero(codes)
        order = kept[np.argsort(codes[kept], kind="stable")]
        bounds = np.searchsorted(codes[order], np.arange(1, len(WANTED) + 2))
        for name, code in number.items():
            self._rows[name] = order[bounds[code - 1] : bounds[code]]

    def events(self, name: str) -> Ints:
        """Return the events that carry a stat (each as often as it does)."""
        return self.space.stats.event[self._rows[name]].astype(np.int64)

    def has(self, name: str) -> Mask:
        """Return which events carry a stat, shape ``(n,)``."""
        mask = np.zeros(len(self.space), dtype=bool)
        mask[self.events(name)] = True
        return mask

    def ints(self, name: str, missing: int = -1) -> Ints:
        """Return an integer stat of every event, shape ``(n,)``; unsigned ones above 2^63 come out negative."""
        column = np.full(len(self.space), missing, dtype=np.int64)
        rows = self._rows[name]
        stats = self.space.stats
        value = stats.value[rows]
        double = stats.kind[rows] == _DOUBLE
        if double.any():
            value = np.where(double, np.nan_to_num(value.view(np.float64)).astype(np.int64), value)
        number = (stats.kind[rows] > 1) & (stats.kind[rows] < _STR)
        column[stats.event[rows[number]]] = value[number]
        return column

    def doubles(self, name: str) -> tuple[Ints, npt.NDArray[np.float64]]:
        """Return a fractional stat as (events, values)."""
        rows = self._rows[name]
        stats = self.space.stats
        values = np.where(stats.kind[rows] == _DOUBLE, stats.value[rows].view(np.float64), stats.value[rows])
        return self.events(name), values

    def sizes(self, name: str) -> Ints:
        """Return bytes written as ``size:112`` into a text stat, for every event; -1 = not said."""
        found = self.numbers_in(name, _SIZE)
        return np.where(found == 0, -1, found)  # 0 is what a profiler writes that does not know the size

    def numbers_in(self, name: str, pattern: re.Pattern[bytes]) -> Ints:
        """Return the number in a text stat, for every event; -1 = none."""
        column = np.full(len(self.space), -1, dtype=np.int64)
        stats, data, known = self.space.stats, self.space.buffer.data, dict[bytes, int]()
        plane_of = np.array([line.plane for line in self.space.lines])[self.space.line]
        for row in self._rows[name].tolist():
            event = int(stats.event[row])
            if stats.kind[row] == _REF:
                text = self.space.planes[plane_of[event]].stats.get(int(stats.value[row]), "").encode()
            else:
                at = int(stats.value[row])
                text = bytes(data[at : at + int(stats.size[row])])
            size = known.get(text)
            if size is None:
                match = pattern.search(text)
                size = known[text] = int(match[1]) if match else -1
            column[event] = size
        return column


def times(space: Space) -> tuple[Ints, Ints, int | None]:
    """Return start and end of every event in ps, and the Unix time in ns that they count from, where it is said.

    Lines of TensorFlow 2.x carry Unix time, others time since the start of the profile. The origin is subtracted
    before multiplying, so that picoseconds fit into 64 bits; events that still do not fit are marked as damaged, with
    time 0.
    """
    stamps = np.array([line.timestamp_ns for line in space.lines], dtype=np.int64)
    unix = (stamps > UNIX_TIME_NS) & (stamps < LIMIT_NS)
    origin = None
    if unix.any():
        middle = int(np.median(stamps[unix]))
        origin = int(stamps[unix & (abs(stamps - middle) < _FAR_PS // 1000)].min())
        stamps[unix] -= origin
    else:
        starts = (plane.values.get("profile_start_time") for plane in space.planes)
        origin = next((start for start in starts if isinstance(start, int)), None)
    lost = abs(stamps) >= _FAR_PS // 1000
    begin, duration = space.offset_ps, space.duration_ps
    space.bad |= (begin <= -_FAR_PS) | (begin >= _FAR_PS) | (duration < 0) | (duration >= _FAR_PS)
    if len(stamps):
        space.bad |= lost[space.line]
        begin = (np.where(lost, 0, stamps) * 1000)[space.line] + begin
    if space.bad.any():
        begin, duration = np.where(space.bad, 0, begin), np.where(space.bad, 0, duration)
    return begin, begin + duration, origin


def distinct(values: Iterable[str]) -> tuple[list[str], dict[str, int]]:
    """Number distinct texts in order of appearance."""
    numbers: dict[str, int] = {}
    for value in values:
        numbers.setdefault(value, len(numbers))
    return list(numbers), numbers


def dense(key: Ints) -> tuple[Ints, Ints]:
    """Return distinct keys and where each event's stands; dense keys need no sorting."""
    high = int(key.max()) + 1 if len(key) else 0
    if high > 8 * len(key) + 1024:
        found, inverse = np.unique(key, return_inverse=True)
        return found, inverse.astype(np.int64)
    seen = np.zeros(high, dtype=bool)
    seen[key] = True
    found = np.flatnonzero(seen).astype(np.int64)
    index = np.cumsum(seen) - 1
    return found, index[key]
