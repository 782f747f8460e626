"""Reads the properties around the events: devices, rank, versions, the base of the clock."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuiprof.model import DeviceInfo, TraceInfo

_VERSIONS = ("torch_version", "pytorch_version", "PyTorch version")


def describe_file(path: Path, properties: Mapping[str, Any]) -> TraceInfo:
    """Return where a trace comes from."""
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
    """Return the Unix time at 0 of the file's clock, ns; None = not said."""
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
