"""AMD GPUs, through the files of the amdgpu kernel driver.

The kernel's interface (Documentation/gpu/amdgpu/thermal.rst and the hwmon convention) is stable, needs no
package and no ROCm installation, and is what AMD's own library reads as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tuiprof.system.files import text_of
from tuiprof.telemetry import Absent, Backend, Device, Sample, Source

_VENDOR: Final = "0x1002"
_DRM: Final = Path("/sys/class/drm")

#: File below the device's directory, key of the figure, factor to its unit.
_FIGURES: Final = (
    ("gpu_busy_percent", "util", 0.01),
    ("mem_busy_percent", "mem_util", 0.01),
    ("mem_info_vram_used", "mem_used_bytes", 1.0),
    ("mem_info_vram_total", "mem_total_bytes", 1.0),
)
#: hwmon label → key, factor. Temperatures in m°C, power in µW, clocks in Hz.
_SENSORS: Final = {
    "temp": ({"edge": "temp_c", "junction": "temp_c", "mem": "mem_temp_c"}, 1e-3),
    "freq": ({"sclk": "sm_clock_hz", "mclk": "mem_clock_hz"}, 1.0),
}


@dataclass(frozen=True, slots=True)
class _Gpu:
    """One GPU: its files, found once."""

    key: str
    path: Path  # its directory in sysfs
    files: tuple[tuple[Path, str, float], ...]  # file, key, factor


class Amd:
    """Samples every AMD GPU."""

    def __init__(self, drm: Path = _DRM) -> None:
        cards = [card for card in drm.glob("card*") if re.fullmatch(r"card\d+", card.name)]
        paths = [card / "device" for card in sorted(cards, key=lambda card: int(card.name[4:]))]
        gpus = [path for path in paths if text_of(path / "vendor") == _VENDOR]
        self._gpus = [_Gpu(f"amd{i}", path, tuple(_files(path))) for i, path in enumerate(gpus)]

    def devices(self) -> list[Device]:
        """Return the GPUs in the order of their cards."""
        found = []
        for gpu in self._gpus:
            name = text_of(gpu.path / "product_name") or f"AMD GPU {text_of(gpu.path / 'device')}"
            total = _number(gpu.path / "mem_info_vram_total")
            limits = [limit for path in gpu.path.glob("hwmon/hwmon*/power1_cap") if (limit := _number(path))]
            details: dict[str, str | float | int] = {"pci": gpu.path.resolve().name.rpartition(".")[0]}
            if unique := text_of(gpu.path / "unique_id"):  # ROCm's UUID is this number with a prefix
                details["uuid"] = f"GPU-{unique}"
            if limits:
                details["power_limit_w"] = limits[0] * 1e-6
            found.append(Device(gpu.key, "amd", name, int(total) if total else None, details))
        return found

    def sample(self) -> list[Sample]:
        """Read every GPU once: some ten small files each."""
        samples = []
        for gpu in self._gpus:
            readings = ((key, _number(path), factor) for path, key, factor in gpu.files)
            samples.append(Sample(gpu.key, {key: n * factor for key, n, factor in readings if n is not None}))
        return samples

    def close(self) -> None:
        """Nothing is held open."""


def _files(device: Path) -> list[tuple[Path, str, float]]:
    """Find the files of a device that hold figures; where two give the same figure the later one counts."""
    found: dict[str, tuple[Path, str, float]] = {}
    for name, key, factor in _FIGURES:
        if (device / name).exists():
            found[key] = (device / name, key, factor)
    for hwmon in sorted(device.glob("hwmon/hwmon*")):
        for power in ("power1_average", "power1_input"):  # a GPU has one or the other
            if (hwmon / power).exists():
                found["power_w"] = (hwmon / power, "power_w", 1e-6)
        for prefix, (labels, factor) in _SENSORS.items():
            for path in sorted(hwmon.glob(f"{prefix}*_label")):
                label = labels.get(text_of(path))
                if label is not None:
                    found[label] = (path.with_name(path.name.replace("_label", "_input")), label, factor)
    return list(found.values())


def _number(path: Path) -> float | None:
    try:
        return float(text_of(path))
    except ValueError:
        return None


def _open(root: int | None) -> Source | Absent:  # the kernel counts for all processes together
    source = Amd()
    return source if source.devices() else Absent("no AMD GPU (none under /sys/class/drm)")


BACKEND = Backend("amd", _open, order=15)
