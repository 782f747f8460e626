"""The score of ``giou_kernel.score`` on an AWS NeuronCore: PyTorch, NKI, and C++ on its GpSimd cores."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch_neuronx
from common.clocks import Clock
from common.scenario import CannotRun

from giou_kernel.score import EPSILON

if TYPE_CHECKING:
    import numpy as np

SOURCES = Path(__file__).parent
INSTANCE = Path("/sys/devices/virtual/dmi/id/product_name")  # on EC2 the type of the instance: inf2.xlarge


class NeuronClock(Clock):
    """The host's clock around a call and the wait for its output, by PyTorch/XLA or by TorchNeuron."""

    method = "host clock around a call and the wait for its output"
    asynchronous = True

    def __init__(self) -> None:
        try:
            name = INSTANCE.read_text(encoding="utf-8").strip()
        except OSError:
            name = "AWS Neuron"
        super().__init__(name, torch=torch.__version__, torch_neuronx=torch_neuronx.__version__)
        self._native = hasattr(torch, "neuron")
        if self._native:
            self.where = "neuron"
        else:
            import torch_xla.core.xla_model

            self._xm = torch_xla.core.xla_model
            self.where = self._xm.xla_device()

    def wait(self, output: Any) -> None:
        if self._native:
            torch.neuron.synchronize()
        else:
            self._xm.mark_step()  # until here XLA has only written down what is to be computed
            self._xm.wait_device_ops()


def prepared(
    name: str, first: np.ndarray, second: np.ndarray
) -> tuple[Callable[..., Any], tuple[Any, ...], Clock]:
    """Return the variant's function, its inputs on the device, and the clock for it.

    Args:
        name: ``"neuron-eager"``, ``"nki"`` or ``"neuron-cpp"``.
        first: float32 ``[batch, boxes, 4]``.
        second: The same.

    Raises:
        CannotRun: The operator for GpSimd cannot be built here.
    """
    from giou_kernel.score_torch import scores

    clock = NeuronClock()
    function = {"neuron-eager": lambda: scores, "nki": by_nki, "neuron-cpp": by_gpsimd}[name]()
    return function, tuple(torch.from_numpy(boxes).to(clock.where) for boxes in (first, second)), clock


def by_nki() -> Callable[..., torch.Tensor]:
    """Return the NKI kernel as a function of two tensors of boxes."""
    import nki
    import nki.isa
    import nki.language

    from giou_kernel.score_nki import kernel

    compiled = nki.jit(kernel(nki.language, nki.isa))
    return lambda first, second: compiled(first.flatten(1), second.flatten(1))


def by_gpsimd() -> Callable[..., torch.Tensor]:
    """Build the operator for GpSimd, or find it built, and return it as a function of two tensors of boxes.

    AWS maintains such operators no further (Neuron 2.33) and points to NKI; they are for NeuronCore-v2 and PyTorch/XLA.
    """
    if hasattr(torch, "neuron"):
        raise CannotRun(
            "custom C++ operators need PyTorch/XLA", "pip install 'torch-neuronx==2.9.*' from AWS's index"
        )
    from torch_neuronx.xla_impl import custom_op

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "tuiprof-scenarios", "gpsimd")
    cache.mkdir(parents=True, exist_ok=True)
    try:
        custom_op.load(
            name="tuiprof_giou_neuron",
            compute_srcs=[str(SOURCES / "gpsimd.cpp")],
            shape_srcs=[str(SOURCES / "gpsimd_shape.cpp")],
            build_directory=str(cache),
            multicore=True,
        )
    except (OSError, RuntimeError) as error:
        said = (str(error).strip().splitlines() or [""])[0]
        tools = "apt install aws-neuronx-gpsimd-tools aws-neuronx-gpsimd-customop-lib"
        raise CannotRun(f"the operator for GpSimd cannot be built: {said}", tools) from error
    return lambda first, second: torch.ops.tuiprof_giou_neuron.scores(first, second, EPSILON)
