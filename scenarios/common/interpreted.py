"""Triton, compiled on a GPU and interpreted on a CPU."""

from __future__ import annotations

import os
from types import ModuleType

import torch


def triton_language() -> tuple[ModuleType, ModuleType]:
    """Return ``triton`` and ``triton.language``; without a GPU, kernels defined with them are interpreted.

    The interpreter must be chosen before Triton is imported: what is imported later decorates functions one way or
    the other for good.
    """
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
    import triton
    import triton.language

    return triton, triton.language
