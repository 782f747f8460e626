"""Devices that are sampled, and one reading of one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Device:
    """Something that is sampled: the host, or one accelerator.

    Attributes:
        key: Stable key in samples, for example ``"host"``, ``"gpu0"``, ``"nc3"``.
        kind: ``"host"``, ``"nvidia"``, ``"neuron"``, ``"tpu"`` or ``"amd"``.
        name: Product name.
        memory_bytes: Total memory; None = unknown.
        details: Whatever else is fixed: driver version, cores, power limit (``power_limit_w``), …
    """

    key: str
    kind: str
    name: str
    memory_bytes: int | None = None
    details: Mapping[str, str | float | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of one device.

    Attributes:
        device: Key of the device.
        values: Figures by name, unit in the name: ``util`` (share 0..1), ``mem_used_bytes``, ``power_w``,
            ``temp_c``, ``sm_clock_hz``, ``pcie_rx_bytes_per_s``, … What a device does not give is absent.
        text: Readings that are words, for example ``throttle`` → ``"power cap"``.
    """

    device: str
    values: Mapping[str, float]
    text: Mapping[str, str] = field(default_factory=dict)
