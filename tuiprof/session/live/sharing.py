"""Sharing of the machine with other programs: which accelerators a run uses, and whether others keep the cores busy.

A run uses the accelerators

1. whose identity (UUID, PCI address) one of its processes reported, after it had allocated memory there, and
2. on which the driver lists one of its processes (in a container, it may list none, or process ids of the host).

If there are none, the run's environment (``CUDA_VISIBLE_DEVICES`` and the like) decides; if that is not set either,
every device counts as used.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from tuiprof.model.units import format_share
from tuiprof.session.live.fold import CORE, Fold
from tuiprof.session.log import Uses
from tuiprof.session.store.folders import Session
from tuiprof.session.store.meta import DeviceMeta

#: Figure of a device: memory used by the run's processes, if the driver lists any.
_HELD = "tree_mem_used_bytes"


def foreign_devices(fold: Fold, session: Session) -> frozenset[str]:
    """Return the keys of the accelerators that the run does not use; empty = it uses all, or nothing is known."""
    on_host = ["", *(f"@{host.name}" for host in session.others)]
    return frozenset(
        key
        for part, suffix in zip(session.parts, on_host, strict=True)
        for devices in _by_kind(part.meta.devices, suffix)
        for key in _others(fold, devices, _reported(fold, suffix))
    )


def _by_kind(devices: Iterable[DeviceMeta], suffix: str) -> Iterable[list[DeviceMeta]]:
    """Return the accelerators of one host by kind, under their keys in the run."""
    by_kind: dict[str, list[DeviceMeta]] = {}
    for device in devices:
        if device.kind != "host":
            by_kind.setdefault(device.kind, []).append(replace(device, key=device.key + suffix))
    return by_kind.values()


def _reported(fold: Fold, suffix: str) -> list[Uses]:
    """Return the devices that the processes of one host reported to use."""
    writers = (it for it in fold.writers.values() if "".join(it.name.partition("@")[1:]) == suffix)
    return [uses for writer in writers for uses in writer.uses.values()]


def device_of(uses: Uses, devices: Iterable[DeviceMeta]) -> DeviceMeta | None:
    """Return the sampled device that a process reported; None = it is not sampled."""
    for device in devices:
        names = f"{device.details.get('uuid', '')},{device.details.get('mig_uuids', '')}".split(",")
        bare = {name.rpartition("GPU-")[2].removeprefix("MIG-") for name in names if name}
        if uses.uuid in bare or (uses.pci and uses.pci == device.details.get("pci")):
            return device
    return None


def _others(fold: Fold, devices: list[DeviceMeta], reported: list[Uses]) -> set[str]:
    """Return the keys of the devices of one kind that the run does not use."""
    keys = {device.key for device in devices}
    used = {found.key for uses in reported if (found := device_of(uses, devices)) is not None}
    used |= {key for key in keys & fold.devices.keys() if _HELD in fold.devices[key].overview}
    if used:
        return keys - used
    return {device.key for device in devices if device.visible is False}


#: Other programs slow a run down if the CPU utilisation is at least this high, and theirs at least this.
BUSY_SHARE: Final = 0.9
OTHERS_SHARE: Final = 0.2
_MIN_READINGS: Final = 4


def crowded(fold: Fold) -> str:
    """Return a warning if other programs used cores that the run could have used; empty = they did not, or unknown."""
    host = fold.devices.get("host")
    cores = sum(CORE.fullmatch(name) is not None for name in host.overview) if host is not None else 0
    if host is None or not cores:
        return ""
    busy, own = host.overview.get("util"), host.overview.get("tree_cpu")
    if busy is None or own is None or min(busy.total, own.total) < _MIN_READINGS:
        return ""
    used = busy.overall_mean
    others = used - own.overall_mean / cores
    if used < BUSY_SHARE or others < OTHERS_SHARE:
        return ""
    return (
        f"other programs kept the machine busy: {format_share(used)} of its CPU time was used, {format_share(others)} "
        "by other programs, so step times are longer and vary more than on an idle machine"
    )
