"""Device profiles of one NeuronCore: instructions by engine, transfers by queue, collectives, semaphores."""

from __future__ import annotations

from typing import Final

import polars as pl

from tuiprof.formats.neuron.assemble import Stretch, track_index
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

#: Instructions that wait or signal and compute nothing.
_SYNC: Final = ("EVENT_SEMAPHORE", "EVENT_SEMAPHORE_RANGE_CLEAR", "DRAIN", "NOTIFY")
#: Instructions that only set up others; Neuron leaves both kinds out of the execution time of a profile.
_SETUP: Final = ("NOP", "SET_ORDERING_MODE", "COMPARE_BRANCH", "WRITE", "TENSOR_LOAD", "MODIFY_POOL_CONFIG")
#: Names of the engines as they are; older files say PE, ACT, DVE, POOL and SP.
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
    "engine": TEXT,
    "timeline_track": TEXT,
    "pcore_idx": TEXT,
    "opcode": TEXT,
}
_TRANSFER: Final[Columns] = {
    **TIMES,
    "queue_name": TEXT,
    "queue_type": TEXT,
    "timeline_track": TEXT,
    "transfer_bytes": NUMBER,
}
_COLLECTIVE: Final[Columns] = {**TIMES, "operation": TEXT, "stream_id": TEXT, "input_size": NUMBER}
_SEMAPHORE: Final[Columns] = {"timestamp": NUMBER, "id": TEXT, "value": TEXT}
#: Table → columns that are a value over time; ``timestamp`` is common.
_COUNTERS: Final = {
    "PendingDma": ("value",),
    "DmaUsage": ("current_throughput",),
    "HbmUsage": ("current_throughput",),
    "SbufUsage": ("avg_util_percent",),
    "PsumUsage": ("avg_util_percent",),
}


def read(tables: Tables) -> list[Stretch]:
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


def describe_tracks(names: list[str]) -> tuple[Track, ...]:
    """Return the tracks of a device profile."""
    return tuple(Track(index, "stream", "NeuronCore", index, name, 0) for index, name in enumerate(names))


def instants(tables: Tables, tracks: tuple[Track, ...]) -> pl.DataFrame | None:
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


def counters(tables: Tables, tracks: tuple[Track, ...]) -> pl.DataFrame | None:
    """Return values over time: pending transfers, throughput, use of the on-chip memories."""
    frames = []
    for table, series in _COUNTERS.items():
        if not tables.has(table):
            continue
        frame = tables.columns(table, {"timestamp": NUMBER, **dict.fromkeys(series, REAL)})
        for column in series:
            if column in frame.columns:
                made = pl.DataFrame({"ts": moments(frame), "value": frame[column]})
                frames.append(made.with_columns(pl.lit(table).alias("name"), pl.lit(column).alias("series")))
    if not frames:
        return None
    track = pl.lit(track_index(tracks, "NeuronCore"), dtype=pl.UInt32).alias("track")
    together = pl.concat(frames).drop_nulls().with_columns(track)
    return together.select("ts", "name", "series", "value", "track").sort("ts")
