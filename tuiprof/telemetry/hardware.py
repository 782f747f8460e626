"""What telemetry finds on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tuiprof.telemetry import Absent, Device, backends


@dataclass(frozen=True, slots=True)
class Hardware:
    """What telemetry finds.

    Attributes:
        devices: Devices by backend, in panel order.
        absent: Why a backend finds none.
    """

    devices: Mapping[str, list[Device]]
    absent: Mapping[str, Absent]

    @property
    def all(self) -> list[Device]:
        """Every device."""
        return [device for found in self.devices.values() for device in found]


def find_hardware() -> Hardware:
    """Open every telemetry backend once and close it again."""
    devices: dict[str, list[Device]] = {}
    absent: dict[str, Absent] = {}
    for name, backend in backends().items():
        source = backend.open(None)
        if isinstance(source, Absent):
            absent[name] = source
            continue
        devices[name] = source.devices()
        source.close()
    return Hardware(devices, absent)
