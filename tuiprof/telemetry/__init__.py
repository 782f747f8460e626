"""What the machine does while the script runs: one file a backend, one sample type for all.

A module here defines ``BACKEND = Backend(name=..., open=...)`` and is found by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from tuiprof.errors import REPORT_IT, describe
from tuiprof.model.devices import Device as Device
from tuiprof.model.devices import Sample as Sample
from tuiprof.plugins import discover


@dataclass(frozen=True, slots=True)
class Absent:
    """Missing hardware, and why: never an empty panel.

    Attributes:
        reason: For example ``"no NVIDIA driver (libnvidia-ml.so.1 not found)"``.
        remedy: What would make it appear; may be empty.
    """

    reason: str
    remedy: str = ""


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
    """One telemetry backend.

    Attributes:
        name: Its name, for example ``"nvidia"``.
        open: Opens it for a process tree (root pid, or None for the machine alone).
        order: Position among the panels; lower comes first.
    """

    name: str
    open: Callable[[int | None], Source | Absent]
    order: int = 100


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
