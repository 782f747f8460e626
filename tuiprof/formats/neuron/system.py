"""System profiles: what the Neuron runtime did on the host and its programs on the cores, in Unix time."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tuiprof.formats.neuron.assemble import Ints, Stretch, track_index
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

_TABLE: Final = "SystemProfileEvents"
#: Indices from here on are not cores.
_MOST_CORES: Final = 1 << 10
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


def read(tables: Tables) -> list[Stretch]:
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
    device = np.where(hardware, np.where((number >= 0) & (number < _MOST_CORES), number, 0), -1)
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
    """Return the category of an event, by its name and by where it was seen."""
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
    """Return where each event was seen; the older JSON tells by the group, and by the name."""
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


def describe_tracks(names: list[str]) -> tuple[Track, ...]:
    """Return the tracks of a system profile."""
    tracks = []
    for index, name in enumerate(names):
        if name.startswith("NeuronCore "):
            core, _, physical = name.removeprefix("NeuronCore ").partition(" core ")
            device = int(core) if core.isdecimal() and int(core) < _MOST_CORES else 0
            label = f"NeuronCore {core or 0}" + (f" physical {physical}" if physical else "")
            tracks.append(Track(index, "stream", "Neuron", index, label, device))
        else:
            instance, process, thread = (*name.split("/"), "", "")[:3]
            tracks.append(Track(index, "thread", f"{instance} {process}".strip(), thread, f"thread {thread}"))
    return tuple(tracks)


#: Table → value, what tells series apart.
_COUNTERS: Final = {
    "CpuUsage": ("util_percent", "cpu_id"),
    "HostMemUsage": ("used_bytes", "instance_id"),
    "SystemProfileHbmUsage": ("total_bytes", "hbm_idx"),
}


def counters(tables: Tables, tracks: tuple[Track, ...], origin_unix_ns: int) -> pl.DataFrame | None:
    """Return processor and memory use over time."""
    frames = []
    for table, (value, series) in _COUNTERS.items():
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
    if not frames:
        return None
    track = pl.lit(track_index(tracks, ""), dtype=pl.UInt32).alias("track")
    together = pl.concat(frames).drop_nulls().with_columns(track)
    return together.select("ts", "name", "series", "value", "track").sort("ts")
