"""PyTorch/XLA: its device."""

from __future__ import annotations

import os

import torch

from common.needs import tpu_visible


def xla_device() -> torch.device:
    """Return the TPU if there is one, else XLA's CPU; where PJRT_DEVICE is set, what that says."""
    os.environ.setdefault("PJRT_DEVICE", "TPU" if tpu_visible() else "CPU")
    import torch_xla

    return torch_xla.device()
