"""What telemetry finds on this machine, and which of its accelerators an environment lets a process use.

``CUDA_VISIBLE_DEVICES`` and its like may hold numbers, which count devices in the framework's order; that is only
sometimes the monitor's:

- CUDA puts the fastest GPU first, by a heuristic of its own, and does not say how it orders the rest, unless
  ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` (CUDA C++ Programming Guide, "CUDA Environment Variables"). GPUs of one model are
  equally fast and in practice counted by their PCI addresses; among different ones a number tells nothing.
- A GPU divided by MIG is counted by its instances, so numbers tell nothing there either.
- ROCm applies ``ROCR_VISIBLE_DEVICES`` first and counts for ``HIP_VISIBLE_DEVICES`` (or, by the name that it takes
  over, ``CUDA_VISIBLE_DEVICES``) what is left (ROCm documentation, "GPU isolation techniques").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
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


def visible(devices: Sequence[Device], env: Mapping[str, str]) -> Set[str] | None:
    """Return the keys of the devices that an environment names.

    Returns:
        The keys; None = it names none, or in a way that does not tell which.
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
