"""The loss of ``common.giou`` by a CUDA kernel, which nvcc compiles once into a library without Python or torch."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch

from common.giou import EPSILON

SOURCE = Path(__file__).parent.parent / "giou_loss" / "giou.cu"


@functools.cache
def library() -> ctypes.CDLL:
    """Return the compiled kernel for the present GPU; it is kept in the user's cache.

    Raises:
        RuntimeError: nvcc is missing or refuses the source; its words are in the message.
    """
    architecture = "sm_{}{}".format(*torch.cuda.get_device_capability())
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    flags = ["-O3", "-std=c++17", f"-arch={architecture}", "--shared", "-Xcompiler", "-fPIC"]
    source = SOURCE.read_bytes()
    key = hashlib.sha256(source + " ".join([nvcc, *flags]).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "tuiprof-scenarios")
    built = cache / f"giou-{architecture}-{key}.so"
    if not built.exists():
        cache.mkdir(parents=True, exist_ok=True)
        partial = built.with_suffix(f".{os.getpid()}")
        try:
            done = subprocess.run(
                [nvcc, *flags, SOURCE, "-o", partial], capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise RuntimeError(
                f"{nvcc} cannot be started: {error.strerror}; install the CUDA toolkit"
            ) from error
        if done.returncode:
            raise RuntimeError(f"nvcc cannot compile {SOURCE}:\n{done.stdout}{done.stderr}")
        partial.replace(built)
    loaded = ctypes.CDLL(str(built))
    for name in ("giou_float", "giou_double"):
        pointer, number = ctypes.c_void_p, ctypes.c_int
        function = getattr(loaded, name)
        function.argtypes = [*[pointer] * 5, number, number, ctypes.c_double, number, number, pointer]
    return loaded


class GIoULoss(torch.autograd.Function):
    """Computes the loss and, in the same pass, its gradient; backward only scales it."""

    @staticmethod
    def forward(
        ctx: Any,
        predicted: torch.Tensor,
        target: torch.Tensor,
        counts: torch.Tensor,
        conditional: bool,
        work: int,
    ) -> torch.Tensor:
        predicted, target = predicted.contiguous(), target.contiguous()
        batch, boxes = target.shape[:2]
        gradient = torch.empty_like(predicted) if ctx.needs_input_grad[0] else None
        sums = predicted.new_empty(batch)
        launch = library().giou_double if predicted.dtype == torch.float64 else library().giou_float
        status = launch(
            predicted.data_ptr(),
            target.data_ptr(),
            counts.data_ptr(),
            None if gradient is None else gradient.data_ptr(),
            sums.data_ptr(),
            batch,
            boxes,
            EPSILON,
            work,
            conditional,
            torch.cuda.current_stream(predicted.device).cuda_stream,
        )
        if status:
            raise RuntimeError(f"the CUDA kernel could not be launched: error {status}")
        total = counts.sum().clamp(min=1)
        if gradient is not None:
            ctx.save_for_backward(gradient, total)
        return sums.sum() / total

    @staticmethod
    def backward(ctx: Any, outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradient, total = ctx.saved_tensors
        return gradient * (outer / total), None, None, None, None


def loss(
    predicted: torch.Tensor, target: torch.Tensor, counts: torch.Tensor, *, conditional: bool, work: int = 1
) -> torch.Tensor:
    """Return the loss.

    Args:
        predicted: ``[batch, boxes, 4]`` of any type; cast to that of the target.
        target: float32 or float64 ``[batch, boxes, 4]``.
        counts: int32 ``[batch]``, from 0 to boxes.
        conditional: Threads of padding leave at once, instead of computing what is thrown away.
        work: How often the arithmetic is done.
    """
    return GIoULoss.apply(predicted.to(target.dtype), target, counts, conditional, work)
