"""An XSpace as columns: every plane, line, event and stat of the file, in picoseconds, uninterpreted; stats by name.

Messages and field numbers: ``xplane.proto`` of openxla/xla. Times: an event starts at
``line.timestamp_ns`` × 1000 + ``offset_ps``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tuiprof.formats.event_table import LIMIT_NS, Ints
from tuiprof.formats.xplane import protobuf as pb
from tuiprof.formats.xplane.words import THREAD_ID

_EVENTS_AT_ONCE: Final = 1 << 16
_EVENT_TAG: Final = 4 << 3 | pb.BYTES
_METADATA_TAG: Final = 1 << 3 | pb.VARINT
#: Number of events to skip before searching their chain again.
_STEPS: Final = 64

#: Above this a line's ``timestamp_ns`` is Unix time (TensorFlow 2.x), below it counts from the profile's start.
UNIX_TIME_NS: Final = 10**15


@dataclass(slots=True)
class Plane:
    """One device, or one view of the host."""

    name: str = ""  # for example ``"/device:TPU:0"``
    id: int = 0  # as in the file; not unique
    events: dict[int, pb.Metadata] = field(default_factory=dict)  # event metadata by id
    stats: dict[int, str] = field(default_factory=dict)  # names of stats by id
    values: dict[str, pb.Value] = field(default_factory=dict)  # stats of the plane itself by name


@dataclass(slots=True)
class Line:
    """One row of a plane."""

    plane: int  # index of its plane
    id: int = 0  # as in the file
    name: str = ""  # for example ``"XLA Ops"``
    display_name: str = ""  # may be empty
    timestamp_ns: int = 0  # start of the line, ns; event offsets count from here
    first: int = 0  # index of its first event
    count: int = 0  # number of its events


@dataclass(slots=True)
class Stats:
    """Stats of all events, in no particular order."""

    event: npt.NDArray[np.uint32]  # index of the event, shape ``(m,)``
    name: npt.NDArray[np.int32]  # id of the name in the event's plane, shape ``(m,)``
    kind: npt.NDArray[np.uint8]  # Field number of its value in XStat; 0 = none. Shape ``(m,)``.
    value: Ints  # A number as its 64 bits; for text the position of its first byte. Shape ``(m,)``.
    size: npt.NDArray[np.uint32]  # Length of text in bytes; 0 for numbers. Shape ``(m,)``.


@dataclass(slots=True)
class Space:
    """One file."""

    buffer: pb.Buffer  # its bytes
    planes: list[Plane]  # planes in file order
    lines: list[Line]  # lines in file order
    line: npt.NDArray[np.uint32]  # line of each event, shape ``(n,)``
    metadata: Ints  # metadata id of each event in its plane, shape ``(n,)``
    offset_ps: Ints  # start after the line's, ps, shape ``(n,)``
    duration_ps: Ints  # length, ps, shape ``(n,)``
    occurrences: dict[int, int]  # aggregated events, which have no time: index → number of occurrences
    starts: Ints  # first byte of each event's message, shape ``(n,)``
    ends: Ints  # first byte after it, shape ``(n,)``
    stats: Stats  # stats of all events
    #: Events whose bytes make no sense, shape ``(n,)``; their columns are not to be used.
    bad: npt.NDArray[np.bool_]
    errors: list[str] = field(default_factory=list)  # what the profiler itself reports as errors
    warnings: list[str] = field(default_factory=list)  # what it reports as warnings
    hostnames: list[str] = field(default_factory=list)  # hosts recorded

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.offset_ps)

    def metadata_values(self, plane: Plane, metadata: pb.Metadata) -> dict[str, pb.Value]:
        """Return the stats that all events of one name share."""
        data, values = self.buffer.data, dict[str, pb.Value]()
        for number, kind, start, end in pb.fields(data, *metadata.span):
            if number == 5 and kind == pb.BYTES:
                pb.put_stat(data, start, end, plane.stats, values)
        return values

    def event_values(self, event: int) -> dict[str, pb.Value]:
        """Return the stats of one event."""
        data, values = self.buffer.data, dict[str, pb.Value]()
        plane = self.planes[self.lines[self.line[event]].plane]
        for number, kind, start, end in pb.fields(data, int(self.starts[event]), int(self.ends[event])):
            if number == 4 and kind == pb.BYTES:
                pb.put_stat(data, start, end, plane.stats, values)
        return values


def decode(data: pb.Data) -> Space:
    """Decode an XSpace followed by :data:`~tuiprof.formats.xplane.protobuf.PADDING`.

    Raises:
        Damaged: It is no XSpace, or is cut off.
    """
    return _Decoder(pb.Buffer(data)).run()


class _Decoder:
    """Collects bounds of events while walking over planes and lines, then reads all events at once."""

    def __init__(self, buffer: pb.Buffer) -> None:
        self.buffer = buffer
        self.data = buffer.data
        self.planes: list[Plane] = []
        self.lines: list[Line] = []
        self.chains = pb.Chains(buffer, _EVENT_TAG, _METADATA_TAG)
        self.heads: list[Ints] = []
        self.count = 0

    def run(self) -> Space:
        words: dict[int, list[str]] = {2: [], 3: [], 4: []}
        for number, kind, start, end in pb.fields(self.data, 0, self.buffer.size):
            if kind != pb.BYTES or number > 4:
                raise pb.Damaged(f"field {number} is not one of an XSpace")
            if number == 1:
                self._plane(start, end)
            else:
                words[number].append(pb.read_text(self.data, start, end))
        heads = np.concatenate([np.empty(0, dtype=np.int64), *self.heads])
        size, length = self.buffer.varints(heads + 1)
        starts = heads + 1 + length
        ends = starts + size.view(np.int64)
        line = np.repeat(np.arange(len(self.lines)), [line.count for line in self.lines]).astype(np.uint32)
        space = Space(self.buffer, self.planes, self.lines, line, *_read_events(self.buffer, starts, ends))
        space.errors, space.warnings, space.hostnames = words[2], words[3], words[4]
        return space

    def _plane(self, start: int, end: int) -> None:
        plane, index = Plane(), len(self.planes)
        self.planes.append(plane)
        values: list[tuple[int, int]] = []
        for number, kind, a, b in pb.fields(self.data, start, end):
            if number == 1 and kind == pb.VARINT:
                plane.id = pb.signed(a)
            elif kind != pb.BYTES:
                continue
            elif number == 2:
                plane.name = pb.read_text(self.data, a, b)
            elif number == 3:
                self._line(index, a, b)
            elif number == 4:
                key, span = pb.read_entry(self.data, a, b)
                plane.events[key] = pb.read_metadata(self.data, *span)
            elif number == 5:
                key, span = pb.read_entry(self.data, a, b)
                names = (
                    pb.read_text(self.data, p, q)
                    for n, k, p, q in pb.fields(self.data, *span)
                    if n == 2 and k == pb.BYTES
                )
                plane.stats[key] = next(names, "")
            elif number == 6:
                values.append((a, b))
        for a, b in values:  # their names may come after them
            pb.put_stat(self.data, a, b, plane.stats, plane.values)

    def _line(self, plane: int, start: int, end: int) -> None:
        data, line = self.data, Line(plane, first=self.count)
        position = start
        while position < end:
            if data[position] == _EVENT_TAG:
                heads, position = self.chains.follow(position, end)
                self._add(heads)
                if len(heads) < _STEPS:
                    heads, position = self._step(position, end)
                    self._add(heads)
                continue
            number, kind, a, b = next(pb.fields(data, position, end))
            position = b if kind != pb.VARINT else pb.varint(data, pb.varint(data, position)[1])[1]
            if number == 1 and kind == pb.VARINT:
                line.id = pb.signed(a)
            elif number == 2 and kind == pb.BYTES:
                line.name = pb.read_text(data, a, b)
            elif number == 3 and kind == pb.VARINT:
                line.timestamp_ns = pb.signed(a)
            elif number == 11 and kind == pb.BYTES:
                line.display_name = pb.read_text(data, a, b)
        if position > end:
            raise pb.Damaged(f"the line at byte {start} ends in the middle of an event")
        line.count = self.count - line.first
        self.lines.append(line)

    def _step(self, position: int, end: int) -> tuple[Ints, int]:
        """Step over a few events one by one, where they are long or not in the usual order."""
        data = self.data
        heads: list[int] = []
        while position < end and data[position] == _EVENT_TAG and len(heads) < _STEPS:
            heads.append(position)
            size, position = pb.varint(data, position + 1)
            position += size
        return np.array(heads, dtype=np.int64), position

    def _add(self, heads: Ints) -> None:
        self.heads.append(heads)
        self.count += len(heads)


def _read_events(
    buffer: pb.Buffer, starts: Ints, ends: Ints
) -> tuple[Ints, Ints, Ints, dict[int, int], Ints, Ints, Stats, npt.NDArray[np.bool_]]:
    """Read all events and their stats, some hundred thousand at a time so that the intermediate columns stay small."""
    n = len(starts)
    metadata, offset, duration = (np.zeros(n, dtype=np.int64) for _ in range(3))
    bad = np.zeros(n, dtype=bool)
    occurrences: dict[int, int] = {}
    stats: list[Stats] = []
    for low in range(0, n, _EVENTS_AT_ONCE):
        part = slice(low, min(n, low + _EVENTS_AT_ONCE))
        columns = {1: metadata[part], 2: offset[part], 3: duration[part]}
        rows, at, size = [], [], []
        for step in pb.walk(buffer, starts[part], ends[part], bad[part]):
            for number, column in columns.items():
                mine = step.tag == number << 3 | pb.VARINT
                column[step.rows[mine]] = step.value[mine].view(np.int64)
            mine = step.tag == 5 << 3 | pb.VARINT
            if mine.any():
                counted = zip(step.rows[mine].tolist(), step.value[mine].tolist(), strict=True)
                occurrences.update((low + row, count) for row, count in counted)
            mine = step.tag == 4 << 3 | pb.BYTES
            rows.append(step.rows[mine])
            at.append(step.at[mine])
            size.append(step.value[mine].view(np.int64))
        owner = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)
        first = np.concatenate(at) if at else owner
        last = first + (np.concatenate(size) if size else owner)
        stats.append(_read_stats(buffer, owner + low, first, last, bad))
    return metadata, offset, duration, occurrences, starts, ends, _join(stats), bad


def _read_stats(
    buffer: pb.Buffer, event: Ints, starts: Ints, ends: Ints, bad: npt.NDArray[np.bool_]
) -> Stats:
    """Read stats whose messages are known; one that is damaged takes its event with it."""
    m = len(event)
    name, kind = np.zeros(m, dtype=np.int32), np.zeros(m, dtype=np.uint8)
    value, size = np.zeros(m, dtype=np.int64), np.zeros(m, dtype=np.uint32)
    broken = np.zeros(m, dtype=bool)
    for step in pb.walk(buffer, starts, ends, broken):
        mine = step.tag == 1 << 3 | pb.VARINT
        name[step.rows[mine]] = step.value[mine].astype(np.int32)
        rest = ~mine
        rows, tag, content, at = step.rows[rest], step.tag[rest], step.value[rest], step.at[rest]
        kind[rows] = tag >> 3
        text = (tag & 7) == pb.BYTES
        number = content.view(np.int64)
        fixed = (tag & 7) == pb.FIXED64
        number = np.where(fixed, buffer.words[at].view(np.int64), number)
        value[rows] = np.where(text, at, number)
        size[rows] = np.where(text, content, 0).astype(np.uint32)
    bad[event[broken]] = True
    return Stats(event.astype(np.uint32), name, kind, value, size)


def _join(parts: list[Stats]) -> Stats:
    """Put the parts together, column by column, each part's column freed before the next is copied."""
    if len(parts) == 1:
        return parts[0]
    none = np.zeros(0, dtype=np.int64)
    whole: dict[str, Any] = {}
    for column in ("event", "name", "kind", "value", "size"):
        whole[column] = np.concatenate([getattr(part, column) for part in parts] or [none])
        for part in parts:
            setattr(part, column, none)
    return Stats(**whole)


Mask = npt.NDArray[np.bool_]

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
    "allocator_name",
    "index_on_host",
    THREAD_ID,
)
_SIZE: Final = re.compile(rb"(?:^|\s)(?:size|num_bytes):(\d+)")


class Lookup:
    """Maps many (plane, id) pairs to numbers at once; ``default`` is the number of a pair without an entry."""

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
            last = len(self._rank) - 1  # means "no such id"
            rank = self._rank[np.where((ids < 0) | (ids > last), last, ids)]
        else:
            rank = np.searchsorted(self._ids, ids)
            known = rank < len(self._ids)
            known[known] = self._ids[rank[known]] == ids[known]
            rank = np.where(known, rank, len(self._ids))
        found: npt.NDArray[np.int32] = self._table[planes, rank]
        return found


class Named:
    """Some stats of a file, by name."""

    def __init__(
        self, space: Space, plane_of: npt.NDArray[np.integer], wanted: Sequence[str] = WANTED
    ) -> None:
        number = {name: code for code, name in enumerate(wanted, 1)}
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
        bounds = np.searchsorted(codes[order], np.arange(1, len(wanted) + 2))
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
        double = stats.kind[rows] == pb.DOUBLE
        if double.any():
            value = np.where(double, np.nan_to_num(value.view(np.float64)).astype(np.int64), value)
        number = (stats.kind[rows] > 1) & (stats.kind[rows] < pb.STR)
        column[stats.event[rows[number]]] = value[number]
        return column

    def doubles(self, name: str) -> tuple[Ints, npt.NDArray[np.float64]]:
        """Return a fractional stat as (events, values)."""
        rows = self._rows[name]
        stats = self.space.stats
        values = np.where(
            stats.kind[rows] == pb.DOUBLE, stats.value[rows].view(np.float64), stats.value[rows]
        )
        return self.events(name), values

    def sizes(self, name: str) -> Ints:
        """Return bytes written as ``size:112`` into a text stat, for every event; -1 = missing."""
        found = self.numbers_in(name, _SIZE)
        return np.where(found == 0, -1, found)  # 0 is what a profiler writes that does not know the size

    def numbers_in(self, name: str, pattern: re.Pattern[bytes]) -> Ints:
        """Return the number in a text stat, for every event; -1 = none."""
        column = np.full(len(self.space), -1, dtype=np.int64)
        known = dict[bytes, int]()
        for event, text in self._texts(name):
            size = known.get(text)
            if size is None:
                match = pattern.search(text)
                size = known[text] = int(match[1]) if match else -1
            column[event] = size
        return column

    def texts(self, name: str) -> tuple[Ints, list[str]]:
        """Return a text stat of every event, as positions (-1 = none) in a list of its texts."""
        column = np.full(len(self.space), -1, dtype=np.int64)
        known = dict[bytes, int]()
        for event, text in self._texts(name):
            column[event] = known.setdefault(text, len(known))
        return column, [text.decode("utf-8", "replace") for text in known]

    def _texts(self, name: str) -> Iterator[tuple[int, bytes]]:
        """Yield the events that carry a text stat, and the text."""
        stats, data = self.space.stats, self.space.buffer.data
        plane_of = np.array([line.plane for line in self.space.lines])[self.space.line]
        for row in self._rows[name].tolist():
            event = int(stats.event[row])
            if stats.kind[row] == pb.REF:
                yield event, self.space.planes[plane_of[event]].stats.get(int(stats.value[row]), "").encode()
            else:
                at = int(stats.value[row])
                yield event, bytes(data[at : at + int(stats.size[row])])


def times(space: Space) -> tuple[Ints, Ints, int | None]:
    """Return start and end of every event in ps, and the Unix time of their origin in ns, if recorded.

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


def dense(key: Ints) -> tuple[Ints, Ints]:
    """Return distinct keys and the index of each event's key; dense keys need no sorting."""
    high = int(key.max()) + 1 if len(key) else 0
    if high > 8 * len(key) + 1024:
        found, inverse = np.unique(key, return_inverse=True)
        return found, inverse.astype(np.int64)
    seen = np.zeros(high, dtype=bool)
    seen[key] = True
    found = np.flatnonzero(seen).astype(np.int64)
    index = np.cumsum(seen) - 1
    return found, index[key]
