"""Builds the model's trace from decoded chunks and the properties around the events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tuiprof.formats.event_table import Ints, counter_table, far_off, in_words, order_of, step_markers
from tuiprof.formats.kineto import categories
from tuiprof.formats.kineto.categories import ASYNC, Labels, Lane, describe_lane
from tuiprof.formats.kineto.columns import MISSING, NONE, Columns
from tuiprof.formats.kineto.decode import Communication, EventWait, Rare
from tuiprof.formats.kineto.reader import Gathered
from tuiprof.formats.xla_names import framework
from tuiprof.model import DeviceInfo, Trace, TraceInfo, Track
from tuiprof.model.trace import CATEGORIES, CATEGORY_TYPE, RawSource
from tuiprof.model.trust import ReadStats, Remark

_BEGIN = ord("B")
_LARGEST_DEVICE = 1 << 10
_NO_INTS, _NO_CODES = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint32)


def assemble(
    gathered: Gathered,
    info: TraceInfo,
    stats: ReadStats,
    *,
    base_unix_ns: int | None,
    sync_sites: pl.DataFrame | None = None,
    raw: RawSource | None = None,
    complete: bool = True,
) -> Trace:
    """Build a trace; counts are added to ``stats``.

    When ``complete`` the events move out of ``gathered``, so that they are never in memory twice.
    """
    labels = Labels()
    labels.read(gathered.rare)
    spans, ends, instants = (
        rows.columns(give_away=complete) for rows in (gathered.spans, gathered.pairs, gathered.instants)
    )
    spans = _with_pairs(spans, ends, gathered, stats)
    spans, instants = _together(spans, instants, stats)
    origin = _origin(spans, instants)
    lanes = [describe_lane(pid, tid, labels) for pid, tid in gathered.lanes]
    category, device, stream = _places(spans, gathered, lanes)
    steps = None
    if labels.of_xla:
        steps = _xla_marks(spans, category, origin)
        info = replace(info, framework=info.framework or framework(gathered.names, labels.threads.values()))
    tracks = _tracks(gathered, lanes, spans, device)
    resolved: dict[str, npt.NDArray[Any]] = {"category": category, "device": device, "stream": stream}
    del category, device, stream
    events = _table(spans, resolved, gathered.names, origin)
    return Trace(
        events,
        tracks,
        replace(info, origin_unix_ns=_unix_origin(origin, base_unix_ns)),
        stats,
        instants=_instants(instants, gathered, origin),
        counters=_counters(gathered, origin),
        communications=_communications(gathered.communications),
        event_waits=_event_waits(gathered.event_waits),
        sync_sites=sync_sites,
        step_markers=steps,
        raw=raw,
    )


def _xla_marks(spans: Columns, category: npt.NDArray[np.uint8], origin: int) -> pl.DataFrame | None:
    """Identify launches and step marks of XLA's profilers, which write no category; return the steps."""
    unsaid = category == categories.CODE["other"]
    correlation = spans.numbers.get("correlation")
    if correlation is not None:
        category[unsaid & (correlation > 0)] = categories.CODE["runtime"]
    step = spans.numbers.pop("step_num", None)
    if step is None:
        return None
    marks = np.flatnonzero((step >= 0) & ~np.isin(category, list(categories.ON_DEVICE)))
    category[marks] = categories.CODE["annotation"]
    start = spans.ts[marks] - origin
    return step_markers(spans.name[marks], step[marks], start, start + _durations(spans)[marks])


def _with_pairs(spans: Columns, ends: Columns, gathered: Gathered, stats: ReadStats) -> Columns:
    """Add the spans that were written as begin and end."""
    if not len(ends) and not any(event.phase == "b" for event in gathered.rare):
        return spans
    last = max(
        int(ends.ts.max()) if len(ends) else 0, int((spans.ts + _durations(spans)).max()) if len(spans) else 0
    )
    unended = unbegun = 0
    if len(ends):
        assert ends.phase is not None
        names = gathered.names
        found = match(
            ends.ts, ends.phase, ends.lane.tolist(), [names[code] for code in ends.name.tolist()], last
        )
        unended, unbegun = found.unended, found.unbegun
        matched = ends.take(found.begins)
        matched.dur = found.ends_ns - matched.ts
        spans = spans.joined(matched)
    asynchronous, more_unended, more_unbegun = match_async(gathered.rare, last)
    if asynchronous:
        spans = spans.joined(_async_columns(asynchronous, gathered))
    _remark_unmatched(unended + more_unended, unbegun + more_unbegun, stats)
    return spans


def _async_columns(ranges: Sequence[Async], gathered: Gathered) -> Columns:
    begins = [found.begin for found in ranges]
    return Columns(
        np.array([event.ordinal for event in begins], dtype=np.uint32),
        np.array([event.ts for event in begins], dtype=np.int64),
        np.array([found.dur_ns for found in ranges], dtype=np.int64),
        np.array([gathered.code_of_name(event.name) for event in begins], dtype=np.uint32),
        np.array([gathered.code_of_cat(event.cat) for event in begins], dtype=np.uint16),
        np.array([gathered.code_of_lane(event.pid, ASYNC + event.cat) for event in begins], dtype=np.uint32),
        {},
    )


def _remark_unmatched(unended: int, unbegun: int, stats: ReadStats) -> None:
    stats.malformed += unbegun
    stats.repaired += unended
    if unbegun:
        stats.remarks.append(
            Remark("unbegun", f"{unbegun} end events without a begin event are skipped", level="warn")
        )
    if unended:
        text = f"{unended} begin events without an end event last to the end of the trace"
        stats.remarks.append(Remark("unended", text, level="warn"))


@dataclass(frozen=True, slots=True)
class Matched:
    """Spans made of pairs."""

    begins: Ints  # row of the begin event of each span, among all that were given
    ends_ns: Ints  # end of each span, ns
    unended: int  # how many begins had no end; they last to the end of the trace
    unbegun: int  # how many ends had no begin; they are dropped


def match(
    ts: Ints, phases: npt.NDArray[np.uint8], lanes: Sequence[int], names: Sequence[str], last_ns: int
) -> Matched:
    """Match begin and end events of each lane, like brackets; unclosed ones end at ``last_ns``.

    An end closes the innermost open begin of its lane, or an outer one with its name. File order decides between equal
    timestamps, except that an end waits for a begin of its name at the same instant (an empty range may be written end
    first).
    """
    order = np.argsort(ts, kind="stable").tolist()
    times, kinds = ts.tolist(), (phases == _BEGIN).tolist()
    open_: dict[int, list[int]] = defaultdict(list)
    waiting: dict[tuple[int, str, int], int] = defaultdict(int)
    begins: list[int] = []
    ends: list[int] = []
    unbegun = unended = 0
    soon = {(lanes[row], names[row], times[row]) for row in order if kinds[row]}
    for row in order:
        stack, name, at = open_[lanes[row]], names[row], times[row]
        if kinds[row]:
            key = (lanes[row], name, at)
            if waiting.get(key):
                waiting[key] -= 1
                begins.append(row)
                ends.append(at)
            else:
                stack.append(row)
            continue
        position = _position(stack, names, name)
        if position is None and (lanes[row], name, at) in soon:
            waiting[lanes[row], name, at] += 1
        elif stack:
            begins.append(stack.pop(-1 if position is None else position))
            ends.append(at)
        else:
            unbegun += 1
    unbegun += sum(waiting.values())
    for stack in open_.values():
        unended += len(stack)
        begins.extend(stack)
        ends.extend(max(last_ns, times[row]) for row in stack)
    return Matched(np.asarray(begins, dtype=np.int64), np.asarray(ends, dtype=np.int64), unended, unbegun)


@dataclass(frozen=True, slots=True)
class Async:
    """A span made of asynchronous begin and end events."""

    begin: Rare  # its begin event
    dur_ns: int  # its length, ns


def match_async(events: Sequence[Rare], last_ns: int) -> tuple[list[Async], int, int]:
    """Match asynchronous begin and end events (b, e) of one process, category and id; return the spans, how many begins
    had no end, and how many ends had no begin, or events had no time.
    """
    both = [event for event in events if event.phase in ("b", "e")]
    timed = [(event, event.ts) for event in both if event.ts is not None]
    lanes: dict[tuple[object, str, str], int] = {}
    found = match(
        np.array([ts for _, ts in timed], dtype=np.int64),
        np.frombuffer("".join(e.phase for e, _ in timed).upper().encode(), dtype=np.uint8),
        [lanes.setdefault((e.pid, e.cat, e.id), len(lanes)) for e, _ in timed],
        [event.name for event, _ in timed],
        max([last_ns, *(ts for _, ts in timed)]),
    )
    spans = [
        Async(timed[row][0], end - timed[row][1])
        for row, end in zip(found.begins.tolist(), found.ends_ns.tolist(), strict=True)
    ]
    return spans, found.unended, found.unbegun + len(both) - len(timed)


def _position(stack: list[int], names: Sequence[str], name: str) -> int | None:
    """Return the position of the innermost open begin of a name; the last if the end has no name."""
    if not stack:
        return None
    if not name:
        return len(stack) - 1
    return next((i for i in range(len(stack) - 1, -1, -1) if names[stack[i]] == name), None)


def _durations(spans: Columns) -> Ints:
    return np.zeros(len(spans), dtype=np.int64) if spans.dur is None else spans.dur


def _together(spans: Columns, instants: Columns, stats: ReadStats) -> tuple[Columns, Columns]:
    """Drop events whose times are implausibly far from the rest."""
    starts, durs = spans.ts, _durations(spans)
    if len(instants):
        starts = np.concatenate((starts, instants.ts))
        durs = np.concatenate((durs, np.zeros(len(instants), dtype=np.int64)))
    far = far_off(starts, durs)
    if far is None:
        return spans, instants
    stats.malformed += int(far.sum())
    return spans.take(~far[: len(spans)]), instants.take(~far[len(spans) :])


def _origin(spans: Columns, instants: Columns) -> int:
    """Return the first instant of the file, on its own clock in ns."""
    firsts = [int(columns.ts.min()) for columns in (spans, instants) if len(columns)]
    return min(firsts, default=0)


def _unix_origin(origin: int, base_unix_ns: int | None) -> int | None:
    if base_unix_ns is not None:
        return base_unix_ns + origin
    # Kineto wrote Unix time before it had a base: times between 2001 and 2100 are interpreted as such.
    return origin if 10**18 <= origin < 41 * 10**17 else None


def _places(
    spans: Columns, gathered: Gathered, lanes: Sequence[Lane]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int16], Ints]:
    """Return category, device and stream of every span; -1 = none."""
    other = categories.CODE["other"]
    by_word = [categories.category(word) for word in gathered.cats]
    lookup = np.array([other if word is None else categories.CODE[word] for word in by_word], dtype=np.uint8)
    category = lookup[spans.cat] if len(lookup) else np.zeros(0, dtype=np.uint8)
    unsaid = np.array([word is None for word in by_word], dtype=bool)
    if unsaid.any():
        _by_name_and_lane(category, np.flatnonzero(unsaid[spans.cat]), spans, gathered, lanes)
    on_device = np.isin(category, list(categories.ON_DEVICE))
    device = np.full(len(spans), -1, dtype=np.int16)
    stream = np.full(len(spans), -1, dtype=np.int64)
    rows = np.flatnonzero(on_device)
    if len(rows):
        lane = spans.lane[rows]
        lane_device = np.array(
            [_lane_device(pid, about) for (pid, _), about in zip(gathered.lanes, lanes, strict=True)],
            dtype=np.int64,
        )[lane]
        lane_stream = np.array(
            [tid if isinstance(tid, int) and 0 <= tid < 1 << 62 else -1 for _, tid in gathered.lanes],
            dtype=np.int64,
        )[lane]
        device[rows] = _said(spans.numbers.pop("device", None), rows, lane_device, _LARGEST_DEVICE)
        stream[rows] = _said(spans.numbers.pop("stream", None), rows, lane_stream, 1 << 62)
    return category, device, stream


def _lane_device(pid: object, lane: Lane) -> int:
    if lane.device is not None:
        return lane.device
    return pid if isinstance(pid, int) and 0 <= pid < _LARGEST_DEVICE else 0


def _said(column: Ints | None, rows: Ints, otherwise: Ints, limit: int) -> Ints:
    if column is None:
        return otherwise
    said = column[rows]
    return np.where((said >= 0) & (said < limit), said, otherwise)


def _by_name_and_lane(
    category: npt.NDArray[np.uint8], rows: Ints, spans: Columns, gathered: Gathered, lanes: Sequence[Lane]
) -> None:
    """Fill in the category of events whose category word is ambiguous."""
    keys = np.stack(
        [
            spans.cat[rows].astype(np.int64),
            spans.lane[rows].astype(np.int64),
            spans.name[rows].astype(np.int64),
        ],
        1,
    )
    distinct, where = np.unique(keys, axis=0, return_inverse=True)
    names, cats = gathered.names, gathered.cats
    codes = []
    for cat, lane, name in distinct.tolist():
        about, text = lanes[lane], names[name]
        if cats[cat].lower() in categories.BY_NAME:
            word = categories.of_device_work(text)
        elif about.kind == "stream":
            word = "device_annotation" if about.shadow else categories.of_device_work(text, about.name)
        else:
            word = "other" if about.kind == "other" else categories.of_host_event(text)
        codes.append(categories.CODE[word])
    category[rows] = np.array(codes, dtype=np.uint8)[where.reshape(-1)]


def _table(
    spans: Columns, resolved: dict[str, npt.NDArray[Any]], names: Sequence[str], origin: int
) -> pl.DataFrame:
    """Sort the events by time into a table; each source column is freed once copied."""
    given: dict[str, npt.NDArray[Any]] = {
        "ts": spans.ts,
        "dur": _durations(spans),
        "name": spans.name,
        "track": spans.lane,
        "ordinal": spans.ordinal,
        **resolved,
        **{key: column for key, column in spans.numbers.items() if key not in resolved},
    }
    resolved.clear()
    spans.numbers.clear()
    spans.ts, spans.dur, spans.name, spans.lane, spans.ordinal = (
        _NO_INTS,
        None,
        _NO_CODES,
        _NO_CODES,
        _NO_CODES,
    )
    order = order_of(given["ts"], given["dur"], given["ordinal"])
    if len(order) < 1 << 32:
        order = order.astype(np.uint32)  # half the memory while the columns are put in order

    def sorted_(key: str) -> npt.NDArray[Any]:
        return given.pop(key)[order]

    columns = [
        pl.Series("ts", sorted_("ts") - origin),
        pl.Series("dur", sorted_("dur")),
        in_words(sorted_("name"), pl.Enum(list(names))).alias("name"),
        in_words(sorted_("category"), CATEGORY_TYPE).alias("category"),
        pl.Series("track", sorted_("track")),
        _nullable("device", sorted_("device"), -1),
        _nullable("stream", sorted_("stream"), -1),
    ]
    for key in ("correlation", "external_id", "sequence", "bytes"):
        if key in given:
            columns.append(_nullable(key, sorted_(key), NONE))
        else:
            columns.append(pl.Series(key, [None], dtype=pl.Int64).new_from_index(0, len(order)))
    columns.append(pl.Series("ordinal", sorted_("ordinal")))
    return pl.DataFrame(columns)


def _nullable(name: str, values: npt.NDArray[Any], missing: int) -> pl.Series:
    series = pl.Series(name, values)
    absent = values == missing
    return series.set(pl.Series(absent), None) if absent.any() else series


def _tracks(
    gathered: Gathered, lanes: Sequence[Lane], spans: Columns, device: npt.NDArray[np.int16]
) -> tuple[Track, ...]:
    """Describe every lane; one with device work is a stream, regardless of the metadata."""
    device_of = np.full(len(lanes), -1, dtype=np.int64)
    rows = np.flatnonzero(device >= 0)
    device_of[spans.lane[rows]] = device[rows]
    tracks = []
    for index, ((pid, tid), lane) in enumerate(zip(gathered.lanes, lanes, strict=True)):
        works = device_of[index] >= 0
        kind = "stream" if works and lane.kind != "other" else lane.kind
        name = lane.name
        if works and lane.kind == "thread" and name == f"thread {tid}":
            name = str(tid) if str(tid).startswith("stream") else f"stream {tid}"
        tracks.append(
            Track(
                index,
                kind,
                "" if pid is None else pid,
                "" if tid is None else tid,
                name,
                int(device_of[index]) if works else lane.device if kind == "stream" else None,
            )
        )
    return tuple(tracks)


def _instants(instants: Columns, gathered: Gathered, origin: int) -> pl.DataFrame | None:
    if not len(instants):
        return None
    order = np.argsort(instants.ts, kind="stable")
    columns = {
        "ts": pl.Series((instants.ts - origin)[order]),
        "name": pl.Series(
            np.array(gathered.names, dtype=object)[instants.name[order]].tolist(), dtype=pl.String
        ),
        "category_text": pl.Series(
            np.array(gathered.cats, dtype=object)[instants.cat[order]].tolist(), dtype=pl.String
        ),
        "track": pl.Series(instants.lane[order]),
        "ordinal": pl.Series(instants.ordinal[order]),
    }
    for key, column in instants.numbers.items():
        columns[key] = _nullable(key, column[order], MISSING)
    return pl.DataFrame(columns)


def _communications(found: Sequence[Communication]) -> pl.DataFrame | None:
    """Return them as a table; None when there are none."""
    if not found:
        return None
    schema = {
        "correlation": pl.Int64,
        "external_id": pl.Int64,
        "group": pl.String,
        "description": pl.String,
        "ranks": pl.String,
        "size": pl.Int64,
        "bytes": pl.Int64,
    }
    return pl.DataFrame([msgspec.structs.astuple(one) for one in found], schema=schema, orient="row")


def _event_waits(found: Sequence[EventWait]) -> pl.DataFrame | None:
    """Return them as a table; None when there are none."""
    schema = dict.fromkeys(EventWait.__struct_fields__, pl.Int64)
    return pl.DataFrame(map(msgspec.structs.astuple, found), schema=schema, orient="row") if found else None


def _counters(gathered: Gathered, origin: int) -> pl.DataFrame | None:
    """Make one row per series of each counter event; non-numeric values are dropped."""
    lane_of = {lane: code for code, lane in enumerate(gathered.lanes)}
    rows: list[tuple[int, str, str, float, int | None]] = []
    for event in gathered.rare:
        if event.phase != "C" or event.ts is None or not isinstance(event.args, Mapping):
            continue
        for series, value in event.args.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                lane = lane_of.get((event.pid, event.tid))
                rows.append((event.ts - origin, event.name, str(series), float(value), lane))
    return counter_table(rows) if rows else None


assert len(CATEGORIES) < 256, "a category code fits one byte"


_VERSIONS = ("torch_version", "pytorch_version", "PyTorch version")


def describe_file(path: Path, properties: Mapping[str, Any]) -> TraceInfo:
    """Return the origin of a trace."""
    job = properties.get("distributedInfo")
    job = job if isinstance(job, Mapping) else {}
    return TraceInfo(
        path=path,
        format="kineto",
        devices=_devices(properties.get("deviceProperties")),
        rank=_whole(job.get("rank")),
        world_size=_whole(job.get("world_size")),
        framework=_framework(properties),
        host=str(properties.get("host_name") or properties.get("hostname") or ""),
        properties=properties,
    )


def base_unix_ns(properties: Mapping[str, Any]) -> int | None:
    """Return the Unix time at 0 of the file's clock, ns; None = not recorded."""
    return _whole(properties.get("baseTimeNanoseconds"))


def _devices(described: object) -> tuple[DeviceInfo, ...]:
    if not isinstance(described, list):
        return ()
    devices = []
    for position, item in enumerate(described):
        if not isinstance(item, Mapping):
            continue
        index = _whole(item.get("id"))
        devices.append(
            DeviceInfo(
                position if index is None else index,
                str(item.get("name") or "device"),
                _whole(item.get("totalGlobalMem")),
                {str(key): value for key, value in item.items() if key not in ("id", "name")},
            )
        )
    return tuple(sorted(devices, key=lambda device: device.index))


def _framework(properties: Mapping[str, Any]) -> str:
    for key in _VERSIONS:
        if properties.get(key):
            return f"PyTorch {properties[key]}"
    if "schemaVersion" in properties:
        return "PyTorch"
    return "viztracer" if "viztracer_metadata" in properties else ""


def _whole(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            return None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) else None
