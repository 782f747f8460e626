"""Triton, compiled on a GPU and interpreted on a CPU."""

from __future__ import annotations

import os
import sys
from types import ModuleType

import torch


def triton_language() -> tuple[ModuleType, ModuleType]:
    """Return ``triton`` and ``triton.language``; without a GPU, kernels defined with them are interpreted.

    The interpreter must be chosen before Triton is imported: what is imported later decorates functions one way or
    the other for good.
    """
    if not torch.cuda.is_available():
        if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
            raise RuntimeError(
                "Triton was imported before it was told to interpret: import the kernels first"
            )
        os.environ["TRITON_INTERPRET"] = "1"
    import triton
    import triton.language

    return triton, triton.language
