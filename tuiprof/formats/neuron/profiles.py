"""Device profiles of one NeuronCore and system profiles of a host, as one event table of the model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tuiprof.formats.event_table import Ints, far_off, in_words, optional, order_of
from tuiprof.formats.neuron.tables import (
    NUMBER,
    REAL,
    TEXT,
    TIMES,
    Coded,
    Columns,
    Tables,
    coded,
    moments,
    numbers,
    times,
    words,
)
from tuiprof.model import Track
from tuiprof.model.trace import CATEGORY_TYPE, EVENT_SCHEMA


@dataclass(slots=True)
class Stretch:
    """Events of one table."""

    table: str  # name of the table
    start: Ints  # starts, ns
    dur: Ints  # lengths, ns
    name: Coded  # names
    category: Coded  # categories
    track: Coded  # what distinguishes tracks
    device: Ints | int  # device of each, or of all; -1 = host
    correlation: Ints | int  # correlation of each, or of all; -1 = none
    bytes: Ints | int  # bytes moved by each, or by all; -1 = unknown


@dataclass(frozen=True, slots=True)
class Joined:
    """All events of a profile."""

    events: pl.DataFrame  # the model's table
    tracks: list[str]  # the distinct tracks, in order of their index
    ordinals: list[tuple[str, int, int]]  # ordinals of each stretch: table, first, count
    lost: int = 0  # number of events with implausible times, which are left out
    origin: int = 0  # what was subtracted from all times, ns


def join(stretches: Sequence[Stretch], *, from_first: bool) -> Joined:
    """Make the event table."""
    ordinals, first = [], 0
    for stretch in stretches:
        ordinals.append((stretch.table, first, len(stretch.start)))
        first += len(stretch.start)
    if not first:
        return Joined(empty(), [], ordinals)
    name = _chain([stretch.name for stretch in stretches])
    category = _chain([stretch.category for stretch in stretches])
    track = _chain([stretch.track for stretch in stretches])
    start = np.concatenate([stretch.start for stretch in stretches])
    dur = np.concatenate([stretch.dur for stretch in stretches])
    order = _order(start, dur)
    kept = start if order is None else start[order]
    origin = int(kept[0]) if from_first and len(kept) else 0
    device, correlation, bytes_ = (_together(stretches, key) for key in ("device", "correlation", "bytes"))
    number = {word: code for code, word in enumerate(CATEGORY_TYPE.categories.to_list())}
    kinds = np.array([number[word] for word in category.words], dtype=np.uint8)
    lane = track.codes.astype(np.int64)
    stream = lane if isinstance(device, int) and device >= 0 else np.where(np.asarray(device) < 0, -1, lane)
    columns: dict[str, npt.NDArray[Any] | int] = {
        "dur": dur,
        "name": name.codes,
        "category": kinds[category.codes],
        "track": track.codes,
        "device": device,
        "stream": stream,
        "correlation": correlation,
        "external_id": -1,
        "sequence": -1,
        "bytes": bytes_,
    }
    if order is not None:
        columns = {key: value if isinstance(value, int) else value[order] for key, value in columns.items()}
    count = len(kept)
    ordinal = np.arange(count, dtype=np.uint32) if order is None else order.astype(np.uint32)
    types: dict[str, Any] = {"name": pl.Enum(name.words), "category": CATEGORY_TYPE, "device": pl.Int16}
    series = {key: _series(value, count, types.get(key, pl.Int64)) for key, value in columns.items()}
    series["track"] = series["track"].cast(pl.UInt32)
    events = pl.DataFrame({"ts": kept - origin, **series, "ordinal": ordinal})
    return Joined(events, track.words, ordinals, first - count, origin)


def _order(start: Ints, dur: Ints) -> Ints | None:
    """Return the rows of the table in order, without those with implausible times; None = unchanged."""
    backwards, far = dur < 0, far_off(start, np.maximum(dur, 0))
    if far is None and not backwards.any() and (start[1:] > start[:-1]).all():
        return None
    kept = np.flatnonzero(~(backwards if far is None else backwards | far))
    return kept[order_of(start[kept], dur[kept])]


def _together(stretches: Sequence[Stretch], key: str) -> Ints | int:
    """Return a column of all events; a number when it is the same for all."""
    values = [getattr(stretch, key) for stretch in stretches]
    if all(isinstance(value, int) for value in values) and len(set(values)) == 1:
        return int(values[0])
    return np.concatenate(
        [
            np.full(len(stretch.start), value, dtype=np.int64) if isinstance(value, int) else value
            for stretch, value in zip(stretches, values, strict=True)
        ]
    )


def _series(values: npt.NDArray[Any] | int, count: int, kind: Any) -> pl.Series:
    """Return a column of the table; a negative number is null."""
    if isinstance(values, int):
        return pl.Series([None if values < 0 else values], dtype=kind).new_from_index(0, count)
    if isinstance(kind, pl.Enum):
        return in_words(values, kind)
    return optional(values, kind)


def _chain(columns: Sequence[Coded]) -> Coded:
    if len(columns) == 1:
        return columns[0]
    texts = [word for column in columns for word in column.words]
    base = np.cumsum([0, *(len(column.words) for column in columns[:-1])]).astype(np.uint32)
    codes = np.concatenate([column.codes + at for column, at in zip(columns, base, strict=True)])
    return Coded.of(texts, codes)


def empty() -> pl.DataFrame:
    """Return an event table without events."""
    return pl.DataFrame(schema={**EVENT_SCHEMA, "name": pl.Enum([""])})


def track_index(tracks: tuple[Track, ...], pid: str) -> int:
    """Return the index of the first track of a process; 0 without any."""
    return next((track.index for track in tracks if track.pid == pid), 0)


def _counter_table(frames: list[pl.DataFrame], track: int) -> pl.DataFrame | None:
    """Return samples of ``ts``, ``name``, ``series`` and ``value`` as the model's counters; None without any."""
    if not frames:
        return None
    together = pl.concat(frames).drop_nulls()
    together = together.with_columns(pl.lit(track, dtype=pl.UInt32).alias("track"))
    return together.select("ts", "name", "series", "value", "track").sort("ts")


#: Instructions that wait or signal and compute nothing.
_SYNC: Final = ("EVENT_SEMAPHORE", "EVENT_SEMAPHORE_RANGE_CLEAR", "DRAIN", "NOTIFY")
#: Instructions that only set up others; Neuron leaves both kinds out of the execution time of a profile.
_SETUP: Final = ("NOP", "SET_ORDERING_MODE", "COMPARE_BRANCH", "WRITE", "TENSOR_LOAD", "MODIFY_POOL_CONFIG")
#: Names of the engines; older files have PE, ACT, DVE, POOL and SP.
_ENGINES: Final = {
    "pe": "Tensor",
    "act": "Scalar",
    "activation": "Scalar",
    "dve": "Vector",
    "pool": "GpSimd",
    "sp": "Sync",
    "tensor": "Tensor",
    "scalar": "Scalar",
    "vector": "Vector",
    "gpsimd": "GpSimd",
    "sync": "Sync",
}

_INSTRUCTION: Final[Columns] = {
    **TIMES,
    **dict.fromkeys(("engine", "timeline_track", "pcore_idx", "opcode"), TEXT),
}
_TRANSFER: Final[Columns] = {
    **TIMES,
    **dict.fromkeys(("queue_name", "queue_type", "timeline_track"), TEXT),
    "transfer_bytes": NUMBER,
}
_COLLECTIVE: Final[Columns] = {**TIMES, "operation": TEXT, "stream_id": TEXT, "input_size": NUMBER}
_SEMAPHORE: Final[Columns] = {"timestamp": NUMBER, "id": TEXT, "value": TEXT}
#: Table → columns that are a value over time; ``timestamp`` is common.
_DEVICE_COUNTERS: Final = {
    "PendingDma": ("value",),
    "DmaUsage": ("current_throughput",),
    "HbmUsage": ("current_throughput",),
    "SbufUsage": ("avg_util_percent",),
    "PsumUsage": ("avg_util_percent",),
}


def read_device(tables: Tables) -> list[Stretch]:
    """Read the events of a device profile."""
    stretches = []
    if tables.has("Instruction"):
        stretches.append(_instructions(tables))
    # Aggregated transfers and the packets they consist of are the same bytes: one of the two.
    transfers = "DmaPacketAggregated" if tables.has("DmaPacketAggregated") else "DmaPacket"
    if tables.has(transfers):
        stretches.append(_transfers(tables, transfers))
    if tables.has("CcOp"):
        stretches.append(_collectives(tables))
    return stretches


def _instructions(tables: Tables) -> Stretch:
    frame = tables.columns("Instruction", _INSTRUCTION)
    start, dur = times(frame)
    opcode = coded(frame, "opcode")
    engine = coded(frame, "engine").beside(coded(frame, "timeline_track"), _engine)
    track = engine.beside(coded(frame, "pcore_idx"), lambda name, core: f"{name} {core}".strip())
    return Stretch("Instruction", start, dur, opcode, opcode.map(_kind), track, 0, -1, -1)


def _engine(engine: str, track: str) -> str:
    return _ENGINES.get((engine or track).lower(), engine or track)


def _kind(opcode: str) -> str:
    return "sync" if opcode in _SYNC else "other" if opcode in _SETUP else "kernel"


def _transfers(tables: Tables, table: str) -> Stretch:
    frame = tables.columns(table, _TRANSFER)
    start, dur = times(frame)
    queue = coded(frame, "queue_name").beside(
        coded(frame, "timeline_track"), lambda name, lane: f"DMA {name or lane}"
    )
    name = coded(frame, "queue_type").map(lambda kind: f"DMA {kind or 'transfer'}")
    size = numbers(frame, "transfer_bytes").to_numpy()
    return Stretch(table, start, dur, name, Coded.same("memcpy", len(frame)), queue, 0, -1, size)


def _collectives(tables: Tables) -> Stretch:
    frame = tables.columns("CcOp", _COLLECTIVE)
    start, dur = times(frame)
    category = Coded.same("collective", len(frame))
    track = coded(frame, "stream_id").map(lambda stream: f"collectives {stream}")
    size = numbers(frame, "input_size").to_numpy()
    return Stretch("CcOp", start, dur, coded(frame, "operation"), category, track, 0, -1, size)


def device_tracks(names: list[str]) -> tuple[Track, ...]:
    """Return the tracks of a device profile."""
    return tuple(Track(index, "stream", "NeuronCore", index, name, 0) for index, name in enumerate(names))


def device_instants(tables: Tables, tracks: tuple[Track, ...]) -> pl.DataFrame | None:
    """Return semaphore updates, errors and throttling as instants."""
    frames = []
    if tables.has("SemaphoreUpdate"):
        frame = tables.columns("SemaphoreUpdate", _SEMAPHORE)
        label = pl.concat_str([pl.lit("S["), words(frame, "id"), pl.lit("] = "), words(frame, "value")])
        frames.append(_instant(frame, pl.select(label).to_series(), "semaphore"))
    for table, text in (("Error", "description"), ("Throttle", "type")):
        if tables.has(table):
            frame = tables.columns(table, {"timestamp": NUMBER, text: TEXT})
            frames.append(_instant(frame, words(frame, text), table.lower()))
    if not frames:
        return None
    joined = pl.concat(frames).drop_nulls("ts").sort("ts")
    return joined.with_columns(
        pl.lit(track_index(tracks, "NeuronCore"), dtype=pl.UInt32).alias("track"),
        pl.lit(0, dtype=pl.UInt32).alias("ordinal"),
    )


def _instant(frame: pl.DataFrame, name: pl.Series, kind: str) -> pl.DataFrame:
    return pl.DataFrame({"ts": moments(frame), "name": name}).with_columns(
        pl.lit(kind).alias("category_text")
    )


def device_counters(tables: Tables, tracks: tuple[Track, ...]) -> pl.DataFrame | None:
    """Return values over time: pending transfers, throughput, use of the on-chip memories."""
    frames = []
    for table, series in _DEVICE_COUNTERS.items():
        if not tables.has(table):
            continue
        frame = tables.columns(table, {"timestamp": NUMBER, **dict.fromkeys(series, REAL)})
        for column in series:
            if column in frame.columns:
                made = pl.DataFrame({"ts": moments(frame), "value": frame[column]})
                frames.append(made.with_columns(pl.lit(table).alias("name"), pl.lit(column).alias("series")))
    return _counter_table(frames, track_index(tracks, "NeuronCore"))


_TABLE: Final = "SystemProfileEvents"
#: Indices from here on are not cores.
_MAX_CORES: Final = 1 << 10
_EVENT: Final[Columns] = {
    **TIMES,
    **dict.fromkeys(("name", "trace_event_source", "instance_id", "process_id", "thread_id", "group"), TEXT),
    **dict.fromkeys(("pcore_idx", "flow_id", "extra_attributes_json", "exec_id"), TEXT),
    "nc_idx": NUMBER,
    "size": NUMBER,
}

#: Event name → category. The set of names is open: what is not here gets its category from where it ran.
_CATEGORIES: Final = {
    "nc_exec_running": "kernel",
    "device_exec": "kernel",
    "cc_running": "collective",
    "cc_exec_barrier": "sync",
    "nc_model_switch": "other",
    "nrt_model_switch": "other",
    "timestamp_sync_point": "other",
    "hw_notify": "other",
    "numerical_err": "other",
    "nrt_load": "compile",  # the first use of a program: after a recompilation it is seen in the middle of a run
    "nrt_load_collectives": "compile",
    "model_load": "compile",
    "nrt_profile_add_node_info": "overhead",
    "notification_consume_errors": "overhead",
    "exec_consume_gpsimd_stdio": "overhead",
    "exec_consume_cc_core_notifications": "overhead",
}
#: Host calls that submit a program, linked with device rows of the same flow or execution.
_LAUNCHES: Final = ("nrt_execute", "nrta_execute_schedule", "runtime_execute")
_PYTHON: Final = re.compile(r"\.py\(\d+\): ")
#: Transfers that move the bytes; the calls around them name the same bytes once more.
_COPIES: Final = ("dmem_buf_copyin", "dmem_buf_copyout")


def read_system(tables: Tables) -> list[Stretch]:
    """Read the events of a system profile, in Unix time."""
    if not tables.has(_TABLE):
        return []
    frame = tables.columns(_TABLE, _EVENT)
    if frame.is_empty():
        return []
    start, dur = times(frame)
    name, extra = coded(frame, "name"), words(frame, "extra_attributes_json")
    source = _source(frame, name)
    hardware = np.array([word == "neuron_hw" for word in source.words], dtype=bool)[source.codes]
    number = numbers(frame, "nc_idx").to_numpy()
    device = np.where(hardware, np.where((number >= 0) & (number < _MAX_CORES), number, 0), -1)
    category = name.beside(source, _category)
    thread = coded(frame, "process_id").beside(
        coded(frame, "thread_id"), lambda process, tid: f"{process}/{tid}"
    )
    thread = coded(frame, "instance_id").beside(thread, lambda instance, rest: f"{instance}/{rest}")
    core = coded(frame, "nc_idx").beside(
        coded(frame, "pcore_idx"), lambda nc, core: f"NeuronCore {nc} core {core}"
    )
    lane = thread.beside(core, lambda host, device: f"{host}\n{device}")
    track = source.beside(lane, lambda where, both: both.split("\n")[where == "neuron_hw"])
    linked = hardware | _named(name, _LAUNCHES)
    correlation = np.where(linked, _correlation(frame, extra), -1)
    size = (
        numbers(frame, "size")
        if "size" in frame.columns
        else extra.str.extract(r'"size"\s*:\s*"?(\d{1,18})').cast(pl.Int64)
    )
    bytes_moved = np.where(_named(name, _COPIES), size.fill_null(-1).to_numpy(), -1)
    return [Stretch(_TABLE, start, dur, name, category, track, device, correlation, bytes_moved)]


def _category(name: str, source: str) -> str:
    """Return the category of an event, by its name and its source."""
    if name in _CATEGORIES:
        return _CATEGORIES[name]
    if source != "framework":
        return "other" if source == "neuron_hw" else "runtime"
    if _PYTHON.search(name):
        return "python_function"
    return "annotation" if name.startswith("ProfilerStep#") else "cpu_op"


def _named(name: Coded, wanted: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = np.array([word in wanted for word in name.words], dtype=bool)[name.codes]
    return mask


def _source(frame: pl.DataFrame, name: Coded) -> Coded:
    """Return the source of each event; in the older JSON it follows from the group and the name."""
    if "trace_event_source" in frame.columns:
        return coded(frame, "trace_event_source")

    def guess(group: str, event: str) -> str:
        if group.startswith("framework"):
            return "framework"
        return "neuron_hw" if _CATEGORIES.get(event) in ("kernel", "collective", "sync") else "neuron_rt"

    return coded(frame, "group").beside(name, guess)


def _correlation(frame: pl.DataFrame, extra: pl.Series) -> Ints:
    """Number flows from 1 on: the first flow of an event, else its execution on its core."""
    flow = pl.Series([None], dtype=pl.String).new_from_index(0, len(frame))
    if "flow_id" in frame.columns:
        flow = frame["flow_id"]
    execution = (
        words(frame, "exec_id")
        if "exec_id" in frame.columns
        else extra.str.extract(r'"exec_id"\s*:\s*"?(\d+)')
    )
    fallback = pl.select(
        pl.when(execution.is_not_null() & (execution != "")).then(
            pl.concat_str([pl.lit("exec "), execution, pl.lit(" on "), words(frame, "nc_idx")])
        )
    ).to_series()
    key = pl.select(pl.coalesce([flow, fallback])).to_series()
    rank = key.rank("dense").cast(pl.Int64)
    numbered: Ints = rank.fill_null(-1).to_numpy()
    return numbered


def system_tracks(names: list[str]) -> tuple[Track, ...]:
    """Return the tracks of a system profile."""
    tracks = []
    for index, name in enumerate(names):
        if name.startswith("NeuronCore "):
            core, _, physical = name.removeprefix("NeuronCore ").partition(" core ")
            device = int(core) if core.isdecimal() and int(core) < _MAX_CORES else 0
            label = f"NeuronCore {core or 0}" + (f" physical {physical}" if physical else "")
            tracks.append(Track(index, "stream", "Neuron", index, label, device))
        else:
            instance, process, thread = (*name.split("/"), "", "")[:3]
            tracks.append(Track(index, "thread", f"{instance} {process}".strip(), thread, f"thread {thread}"))
    return tuple(tracks)


#: Table → column of the value, column that distinguishes series.
_SYSTEM_COUNTERS: Final = {
    "CpuUsage": ("util_percent", "cpu_id"),
    "HostMemUsage": ("used_bytes", "instance_id"),
    "SystemProfileHbmUsage": ("total_bytes", "hbm_idx"),
}


def system_counters(tables: Tables, tracks: tuple[Track, ...], origin_unix_ns: int) -> pl.DataFrame | None:
    """Return processor and memory use over time."""
    frames = []
    for table, (value, series) in _SYSTEM_COUNTERS.items():
        if tables.has(table):
            frame = tables.columns(table, {"timestamp": NUMBER, value: REAL, series: TEXT})
            if value in frame.columns:
                frames.append(
                    pl.DataFrame(
                        {
                            "ts": moments(frame) - origin_unix_ns,
                            "series": words(frame, series),
                            "value": frame[value],
                        }
                    ).with_columns(pl.lit(table).alias("name"))
                )
    return _counter_table(frames, track_index(tracks, ""))
