"""Devices that are sampled, and one reading of one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Device:
    """Something that is sampled: the host, or one accelerator."""

    key: str  # stable key in samples, for example ``"host"``, ``"gpu0"``, ``"nc3"``
    kind: str  # ``"host"``; any other is an accelerator: ``"nvidia"``, ``"neuron"``, ``"tpu"``, ``"amd"``, …
    name: str  # product name
    memory_bytes: int | None = None  # total memory; None = unknown
    #: Whatever else is fixed: driver version, cores, power limit (``power_limit_w``) and so on.
    details: Mapping[str, str | float | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of one device."""

    device: str  # key of the device
    #: Figures by name, unit in the name: ``util`` (share 0..1), ``mem_used_bytes``, ``power_w``, ``temp_c``,
    #: ``sm_clock_hz``, ``pcie_rx_bytes_per_s``, … What a device does not give is absent.
    values: Mapping[str, float]
    #: Readings that are text, for example ``throttle`` → ``"power cap"``.
    text: Mapping[str, str] = field(default_factory=dict)
