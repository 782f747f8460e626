"""Google TPU chips: found on the PCI bus, read through libtpu in the script's own Python.

libtpu answers only while a program runs on the chips; until then a chip has no figures, and the sample says so.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final

import psutil

from tuiprof.system.files import text_of
from tuiprof.system.monitors import JsonStream
from tuiprof.telemetry import Absent, Backend, Device, Sample, Source, _tpu_agent

_VENDOR: Final = "0x1ae0"  # Google, in the PCI ID registry
#: PCI device id → name and GiB of HBM a chip; v2 and v3 share an id and differ in the subsystem's.
_CHIPS: Final = {
    "0x005e": ("TPU v4", 32),
    "0x0063": ("TPU v5e", 16),
    "0x0062": ("TPU v5p", 95),
    "0x006f": ("TPU v6e", 32),
    "0x0076": ("TPU v7x", 192),
}
_V2_V3: Final = ("0x0027", {"0x004e": ("TPU v2", 16), "0x004f": ("TPU v3", 32)})


class Tpu:
    """Samples every TPU chip; raises OSError if that Python cannot be started."""

    def __init__(self, chips: list[tuple[str, int]], python: str) -> None:
        self._chips = chips
        self._readings: list[Any] = []
        self._error = "no response from libtpu yet"
        self._stream = JsonStream([python, "-u", _tpu_agent.__file__], self._take)

    def devices(self) -> list[Device]:
        """Return the chips in the order of the PCI bus."""
        return [Device(f"tpu{i}", "tpu", name, memory) for i, (name, memory) in enumerate(self._chips)]

    def sample(self) -> list[Sample]:
        """Return the last reading of every chip; never waits."""
        readings, error = self._readings, self._stream.ended or self._error
        cores = max(1, len(readings) // len(self._chips))  # v2, v3 and v7x answer for each of two cores
        samples = []
        for i in range(len(self._chips)):
            values = _together(readings[i * cores : (i + 1) * cores])
            samples.append(Sample(f"tpu{i}", values, {"error": error} if error and not values else {}))
        return samples

    def close(self) -> None:
        """End the process that asks libtpu."""
        self._stream.close()

    def _take(self, document: dict[str, Any]) -> None:
        chips = document.get("chips")
        self._readings = [chip for chip in chips if isinstance(chip, dict)] if isinstance(chips, list) else []
        self._error = str(document.get("error") or "")


def _together(readings: list[Any]) -> dict[str, float]:
    """Return the figures of one chip from those of its cores: memory adds up, shares are averaged."""
    values: dict[str, float] = {}
    for key in dict.fromkeys(key for reading in readings for key in reading):
        numbers = [float(r[key]) for r in readings if isinstance(r.get(key), (int, float))]
        if numbers:
            values[key] = sum(numbers) if key.endswith("_bytes") else sum(numbers) / len(numbers)
    return values


def find_chips(pci: Path = Path("/sys/bus/pci/devices")) -> list[tuple[str, int]]:
    """Return name and memory in bytes of each TPU chip, in the order of the PCI bus."""
    found = []
    for device in sorted(pci.iterdir()) if pci.is_dir() else ():
        if text_of(device / "vendor").lower() != _VENDOR:
            continue
        number = text_of(device / "device").lower()
        known = _CHIPS.get(number)
        if known is None and number == _V2_V3[0]:
            known = _V2_V3[1].get(text_of(device / "subsystem_device").lower())
        if known is not None:
            found.append((known[0], known[1] << 30))
    return found


def _python_of(root: int | None) -> str:
    """Return the Python that the script runs in, else our own."""
    try:
        exe = psutil.Process(root).exe() if root is not None else ""
        environment = psutil.Process(root).environ().get("VIRTUAL_ENV", "") if root is not None else ""
    except psutil.Error:  # gone already, or not ours to ask
        exe = environment = ""
    # A virtual environment's interpreter is a link that exe() has resolved away.
    inside = os.path.join(environment, "bin", "python") if environment else ""
    if inside and os.access(inside, os.X_OK):
        return inside
    return exe if "python" in os.path.basename(exe) else sys.executable


def _open(root: int | None) -> Source | Absent:
    chips = find_chips()
    if not chips:
        return Absent("no Google TPU on the PCI bus")
    try:
        return Tpu(chips, _python_of(root))
    except OSError as error:
        return Absent(f"libtpu cannot be queried: {error}")


BACKEND = Backend("tpu", _open, order=30)
