"""The loss of ``giou_loss.py`` by a CUDA kernel, which nvcc compiles once into a library without Python or torch."""

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

from giou_loss.epsilon import EPSILON

#: Types of the predicted and of the target boxes → how the functions for them are called.
KINDS = {
    (torch.float32, torch.float32): "float_float",
    (torch.float64, torch.float64): "double_double",
    (torch.bfloat16, torch.float32): "bfloat16_float",
}
SOURCE = Path(__file__).parent / "giou.cu"


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
    pointer, number = ctypes.c_void_p, ctypes.c_int
    for types in KINDS.values():
        last = [number, number, number, ctypes.c_double, number, pointer]
        getattr(loaded, f"giou_loss_{types}").argtypes = [*[pointer] * 7, *last]
        getattr(loaded, f"giou_gradient_{types}").argtypes = [*[pointer] * 6, *last]
    return loaded


@functools.cache
def ticket(_device: int, _stream: int) -> torch.Tensor:
    """Return the counter by which blocks know that they are the last; each launch leaves it at 0 for the next.

    Launches of one stream follow one another and share it; those of two streams may meet, and do not.
    """
    return torch.zeros(1, dtype=torch.int32, device="cuda")


class GIoULoss(torch.autograd.Function):
    """Computes the loss in one launch, and the gradient in another."""

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
        counts = counts.int().contiguous()  # the kernel is given addresses, and cannot see a type or a stride
        (batch, boxes), stream = target.shape[:2], torch.cuda.current_stream().cuda_stream
        sums = torch.empty(batch + 1, dtype=target.dtype, device=target.device)
        loss = torch.empty((), dtype=target.dtype, device=target.device)
        total = sums[batch:]
        launch = getattr(library(), f"giou_loss_{KINDS[predicted.dtype, target.dtype]}")
        _must_succeed(
            launch(
                predicted.data_ptr(),
                target.data_ptr(),
                counts.data_ptr(),
                sums.data_ptr(),
                total.data_ptr(),
                loss.data_ptr(),
                ticket(target.get_device(), stream).data_ptr(),
                batch,
                boxes,
                work,
                EPSILON,
                conditional,
                stream,
            )
        )
        ctx.save_for_backward(predicted, target, counts, total)
        ctx.settings = batch, boxes, work, EPSILON, conditional
        return loss

    @staticmethod
    def backward(ctx: Any, outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        predicted, target, counts, total = ctx.saved_tensors
        gradient = torch.empty_like(predicted)
        launch = getattr(library(), f"giou_gradient_{KINDS[predicted.dtype, target.dtype]}")
        tensors = (predicted, target, counts, total, outer, gradient)
        stream = torch.cuda.current_stream().cuda_stream
        _must_succeed(launch(*(tensor.data_ptr() for tensor in tensors), *ctx.settings, stream))
        return gradient, None, None, None, None


def _must_succeed(status: int) -> None:
    if status:
        raise RuntimeError(f"the CUDA kernel could not be launched: error {status}")


def loss(
    predicted: torch.Tensor, target: torch.Tensor, counts: torch.Tensor, *, conditional: bool, work: int = 1
) -> torch.Tensor:
    """Return the loss, in the type of the target.

    Args:
        predicted: ``[batch, boxes, 4]``; bfloat16 is read as it is, by a target of float32.
        target: float32 or float64 ``[batch, boxes, 4]``.
        counts: Integers ``[batch]``, from 0 to boxes.
        conditional: Threads of padding leave at once, instead of computing what is thrown away.
        work: How often the arithmetic is done.
    """
    if not predicted.numel():
        return predicted.to(target.dtype).sum()  # 0, and there is nothing to launch
    return GIoULoss.apply(predicted, target, counts, conditional, work)


def loss_after_cast(
    predicted: torch.Tensor, target: torch.Tensor, counts: torch.Tensor, *, conditional: bool, work: int = 1
) -> torch.Tensor:
    """Return the same, after the predicted boxes have been written to memory in the type of the target."""
    return loss(predicted.to(target.dtype), target, counts, conditional=conditional, work=work)
