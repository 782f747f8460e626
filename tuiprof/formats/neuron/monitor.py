"""Recordings of ``neuron-monitor``: no events, but what the cores did over time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from tuiprof.formats.neuron.assemble import empty
from tuiprof.telemetry._neuron_report import read_recording

if TYPE_CHECKING:
    from tuiprof.model import Trace


def read(path: Path) -> Trace:
    """Read a recording.

    Args:
        path: The file.
    """
    from tuiprof.model import DeviceInfo, ReadStats, Remark, Trace, TraceInfo, Track

    keys: dict[str, int] = {}
    rows: list[tuple[int, str, str, float, int]] = []
    reports, devices = 0, []
    for at_s, state in read_recording(path):
        reports += 1
        devices = state.devices()
        for sample in state.samples():
            track = keys.setdefault(sample.device, len(keys))
            rows += [
                (round(at_s * 1e9), sample.device, key, value, track) for key, value in sample.values.items()
            ]
    columns = {
        "ts": pl.Int64,
        "name": pl.String,
        "series": pl.String,
        "value": pl.Float64,
        "track": pl.UInt32,
    }
    tracks = tuple(Track(index, "other", "neuron-monitor", key, key) for key, index in keys.items())
    remark = Remark(
        "telemetry-only",
        f"{reports} reports of neuron-monitor: utilisation over time, but no events",
        "for events, capture a profile with neuron-explorer",
        "warn",
    )
    cores = [device for device in devices if device.key.startswith("nc")]
    info = TraceInfo(
        path,
        "neuron",
        devices=tuple(DeviceInfo(int(device.key[2:]), device.name, device.memory_bytes) for device in cores),
        properties={"kind": "neuron-monitor", **(devices[0].details if devices else {})},
    )
    stats = ReadStats(events=reports, phases={"report": reports}, remarks=[remark])
    return Trace(empty(), tracks, info, stats, counters=pl.DataFrame(rows, schema=columns, orient="row"))
