"""Origin, tracks and limitations of an XSpace."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from tuiprof.formats.xplane import words
from tuiprof.formats.xplane.link import Shift
from tuiprof.formats.xplane.space import Plane, Space
from tuiprof.model import DeviceInfo, Remark, TraceInfo, Track
from tuiprof.model.units import format_count, format_ns


def tracks_of(space: Space, threads: dict[int, int]) -> tuple[Track, ...]:
    """Return a track for every line, in file order."""
    tracks = []
    for index, line in enumerate(space.lines):
        plane = space.planes[line.plane]
        device, row = words.device_of(plane.name), words.row_of(plane.name, line.name)
        name = line.display_name or line.name or f"line {line.id}"
        if row is words.Row.HOST:
            tracks.append(Track(index, "thread", plane.name, threads.get(index, line.id), name))
        elif row in (words.Row.SHADOW, words.Row.WAITS, words.Row.COUNTERS) or device is None:
            tracks.append(Track(index, "other", plane.name, line.id, name, device[1] if device else None))
        else:
            stream = words.stream_of(line.name)
            tracks.append(
                Track(
                    index,
                    "stream",
                    plane.name,
                    line.id if stream is None else stream,
                    name if stream is None else f"stream {stream}",
                    device[1],
                )
            )
    return tuple(tracks)


def describe(space: Space, path: Path | None, origin_unix_ns: int | None) -> TraceInfo:
    """Return the origin of the trace."""
    devices: dict[int, DeviceInfo] = {}
    for plane in space.planes:
        found = words.device_of(plane.name)
        if found is not None and found[1] not in devices:
            devices[found[1]] = _device(plane, *found)
    properties: dict[str, object] = {}
    for plane in space.planes:
        if words.device_of(plane.name) is None:
            properties.update((k, v) for k, v in plane.values.items() if not isinstance(v, bytes))
    return TraceInfo(
        path,
        "xplane",
        origin_unix_ns,
        tuple(devices[index] for index in sorted(devices)),
        framework=_framework(space, properties),
        host=space.hostnames[0] if space.hostnames else "",
        properties=properties,
    )


def _device(plane: Plane, kind: str, index: int) -> DeviceInfo:
    values = plane.values
    vendor = str(values.get("device_vendor") or "")
    name = str(
        values.get("device_type_string")
        or values.get("gpu_device_name")
        or " ".join(word for word in (vendor, kind, str(index)) if word)
    )
    memory = values.get("memory_size")
    properties = {key: value for key, value in values.items() if not isinstance(value, bytes)}
    return DeviceInfo(index, name, memory if isinstance(memory, int) else None, properties)


def _framework(space: Space, properties: dict[str, object]) -> str:
    if version := properties.get("jax_version"):
        return f"JAX {version}"
    return words.framework(
        (metadata.name for plane in space.planes for metadata in plane.events.values()),
        (line.name for line in space.lines),
    )


def remarks(space: Space, shifts: list[Shift], waits: int, steps: pl.DataFrame | None) -> list[Remark]:
    """Return the limitations of the trace."""
    found = [
        Remark("profiler-error", f"the profiler reports: {text[:300]}", level="bad") for text in space.errors
    ]
    found += [
        Remark("profiler-warning", f"the profiler warns: {text[:300]}", level="warn")
        for text in space.warnings
    ]
    moved = [shift for shift in shifts if shift.ps]
    if moved:
        least, most = min(s.ps for s in moved), max(s.ps for s in moved)
        by = (
            format_ns(most / 1000)
            if least == most
            else f"{format_ns(least / 1000)} to {format_ns(most / 1000)}"
        )
        found.append(
            Remark(
                "clock-shift",
                f"the clocks of {len(moved)} devices were shifted by {by}, so that no program starts before the host "
                "launched it: launch latencies are approximate",
                level="warn",
            )
        )
    torn = [shift for shift in shifts if shift.high_ps < shift.ps]
    if torn:
        worst = max(shift.ps - shift.high_ps for shift in torn)
        found.append(
            Remark(
                "clock-contradiction",
                f"the host records the end of programs up to {format_ns(worst / 1000)} before their end on devices "
                f"{', '.join(str(shift.device) for shift in torn)}; host and device times are not exactly comparable",
                level="warn",
            )
        )
    dropped = sum(
        int(v) for plane in space.planes if isinstance(v := plane.values.get("dropped_traces"), int)
    )
    if dropped:
        found.append(Remark("dropped", f"the profiler dropped {format_count(dropped)} events", level="bad"))
    if waits:
        found.append(
            Remark(
                "paired-waits",
                f"{format_count(waits)} host waits were assembled from pairs of begin and end marks",
            )
        )
    if steps is not None and (again := len(steps) - steps["step"].n_unique()):
        text = f"{format_count(again)} of {format_count(len(steps))} steps repeat an earlier number"
        found.append(Remark("steps-anew", f"steps are renumbered: {text}"))
    return found
