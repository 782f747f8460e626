"""Where the two kinds of Pallas kernels of the ladders run."""

from __future__ import annotations

from typing import Any

from common.scenario import CannotRun


def interpreted_here(method: str, device: Any) -> bool:
    """Say whether a kernel must be interpreted on a device: on a CPU, which shows its numbers and not its speed.

    Args:
        method: ``"pallas"``, which is written for TPUs, or ``"pallas-triton"``, for GPUs.
        device: A JAX device.

    Raises:
        CannotRun: It is for another kind of device.
    """
    found = f"JAX finds only {device.device_kind}"
    if method == "pallas" and device.platform == "gpu":
        why = "needs a TPU, whose grid runs in order (or a CPU, to interpret it)"
        raise CannotRun(
            f"{why}; {found}", "on a GPU use the variant through Triton; JAX_PLATFORMS=cpu interprets"
        )
    if method == "pallas-triton" and device.platform == "tpu":
        raise CannotRun(f"needs a GPU (or a CPU, to interpret it); {found}", "use the variant for TPUs")
    return bool(device.platform == "cpu")
