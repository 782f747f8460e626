"""What the Pallas kernels through Mosaic GPU have in common: JAX's way to an NVIDIA GPU, Hopper at least."""

from __future__ import annotations

from typing import Any

from common.scenario import CannotRun

HOPPER = (9, 0)


def needs_hopper(device: Any) -> None:
    """Refuse a JAX device that Mosaic GPU does not compile for, with CannotRun; nothing is interpreted."""
    capability = getattr(device, "compute_capability", "")
    if device.platform != "gpu" or tuple(map(int, capability.split("."))) < HOPPER:
        said = (
            f"{device.device_kind} of compute capability {capability}" if capability else device.device_kind
        )
        raise CannotRun(
            f"needs a GPU of compute capability 9.0 or more, JAX finds {said}", "an H100 or newer"
        )
