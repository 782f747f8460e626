"""What the machine does while the script runs: one file per backend, one sample type for all.

A module here defines ``BACKEND = Backend(name=..., open=...)`` and is discovered automatically.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Protocol

from tuiprof.errors import REPORT_IT, describe
from tuiprof.model.devices import Device as Device
from tuiprof.model.devices import Sample as Sample
from tuiprof.plugins import discover
from tuiprof.telemetry.figures import Figure as Figure


@dataclass(frozen=True, slots=True)
class Absent:
    """Missing hardware, and why: never an empty panel."""

    reason: str  # for example ``"no NVIDIA driver (libnvidia-ml.so.1 not found)"``
    remedy: str = ""  # what would make it appear; may be empty


class Source(Protocol):
    """An open backend."""

    def devices(self) -> list[Device]:
        """Return what it samples."""

    def sample(self) -> list[Sample]:
        """Read every device once, without blocking for more than some milliseconds."""

    def close(self) -> None:
        """Release it."""


@dataclass(frozen=True, slots=True)
class Backend:
    """One telemetry backend."""

    name: str  # its name, for example ``"nvidia"``
    #: Opens it for a process tree (root pid, or None for the machine alone).
    open: Callable[[int | None], Source | Absent]
    order: int = 100  # position among the panels; lower comes first
    #: How its figures are shown that :mod:`tuiprof.telemetry.figures` does not have.
    figures: tuple[Figure, ...] = ()


def backends() -> dict[str, Backend]:
    """Return every backend by name, in panel order; one that cannot be loaded or opened is absent, with the reason."""
    found = discover("telemetry")
    every: dict[str, Backend] = {
        name: replace(item, open=_guarded(item.open)) for name, item in found.items.items()
    }
    for name, why in found.failed.items():
        every.setdefault(name, Backend(name, lambda _root, why=why: Absent(why, REPORT_IT)))  # type: ignore[misc]
    return dict(sorted(every.items(), key=lambda item: (item[1].order, item[0])))


def _guarded(open_: Callable[[int | None], Source | Absent]) -> Callable[[int | None], Source | Absent]:
    def guarded(root: int | None) -> Source | Absent:
        try:
            return open_(root)
        except Exception as error:  # noqa: BLE001 - the drivers behind a backend raise what they like
            return Absent(f"it failed: {describe(error)}", REPORT_IT)

    return guarded


@dataclass(frozen=True, slots=True)
class Hardware:
    """What telemetry finds."""

    devices: Mapping[str, list[Device]]  # devices by backend, in panel order
    absent: Mapping[str, Absent]  # why a backend finds none

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


def visible(devices: Sequence[Device], env: Mapping[str, str]) -> Set[str] | None:
    """Return the keys of the devices that an environment lets a process use (``CUDA_VISIBLE_DEVICES`` and its like).

    What is a number in it counts devices in the framework's order, which only sometimes is the monitor's:

    - CUDA puts the fastest GPU first, by a heuristic of its own, and does not say how it orders the rest, unless
      ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` (CUDA C++ Programming Guide, "CUDA Environment Variables"). GPUs of one model are
      equally fast and in practice counted by their PCI addresses; among different ones a number tells nothing.
    - A GPU divided by MIG is counted by its instances, so numbers tell nothing there either.
    - ROCm applies ``ROCR_VISIBLE_DEVICES`` first and counts for ``HIP_VISIBLE_DEVICES`` (or, by the name that it takes
      over, ``CUDA_VISIBLE_DEVICES``) what is left (ROCm documentation, "GPU isolation techniques").

    Returns:
        The keys; None = the environment names none, or in a way that does not tell which.
    """
    kinds = {device.kind for device in devices}
    if kinds == {"nvidia"}:
        return _keys(_nvidia(devices, env))
    if kinds == {"amd"}:
        return _keys(_amd(devices, env))
    return None


def _keys(found: Sequence[Device] | None) -> Set[str] | None:
    return None if found is None else frozenset(device.key for device in found)


def _nvidia(devices: Sequence[Device], env: Mapping[str, str]) -> list[Device] | None:
    ordered = sorted(devices, key=lambda device: str(device.details.get("pci", "")))
    alike = len({device.name for device in devices}) == 1 or env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    countable = alike and not any("mig" in device.details for device in devices)
    return _chosen(ordered, env.get("CUDA_VISIBLE_DEVICES"), countable=countable)


def _amd(devices: Sequence[Device], env: Mapping[str, str]) -> list[Device] | None:
    left = _chosen(devices, env.get("ROCR_VISIBLE_DEVICES"), countable=True)
    wanted = env.get("HIP_VISIBLE_DEVICES", env.get("CUDA_VISIBLE_DEVICES"))
    chosen = _chosen(devices if left is None else left, wanted, countable=True)
    return left if chosen is None else chosen


def _chosen(devices: Sequence[Device], wanted: str | None, *, countable: bool) -> list[Device] | None:
    """Return the devices that a list of numbers and (beginnings of) UUIDs names; what fits none ends the list."""
    if wanted is None:
        return None
    chosen: list[Device] = []
    for word in (part.strip() for part in wanted.split(",")):
        if word.isdecimal():
            if not countable:
                return None
            # No host has so many that their number fills ten digits, and Python reads no number of any length.
            index = int(word[-10:]) if len(word.lstrip("0")) <= 10 else len(devices)
            fitting = [devices[index]] if index < len(devices) else []
        else:
            fitting = [device for device in devices if word and _is_called(device, word)]
        if len(fitting) != 1:
            break
        chosen += fitting
    return chosen


def _is_called(device: Device, word: str) -> bool:
    """Whether a word is the beginning of a device's UUID, or of that of a MIG instance on it."""
    uuid, instances = (str(device.details.get(name, "")).lower() for name in ("uuid", "mig_uuids"))
    word = word.lower()
    # Older drivers name an instance by its GPU: MIG-GPU-<uuid>/<instance>/<compute instance>.
    whole = word.removeprefix("mig-").partition("/")[0]
    if whole.startswith("gpu-"):
        return uuid.startswith(whole)
    return word.startswith("mig-") and any(name.startswith(word) for name in instances.split(","))
