"""Looks at the parameters that are trained or called in a capture: which types they have, and which layout.

Only attributes of plain tensors are read, so no operator runs, and no code of the script: subclasses of tensors and
containers are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from time import monotonic_ns
from typing import Any

from ..events import RECORD
from ..isolation import raised_by_signal_handler
from ..steps.counting import Steps

#: Parameters that are looked at: reading one takes about 1 µs.
_MAX_PARAMETERS = 2000


class Weights:
    """The parameters of the counted optimizer and of the models that are called, anew in each capture."""

    def __init__(self, torch: Any, steps: Steps) -> None:
        self._torch, self._steps = torch, steps
        self._plain = torch.Tensor, torch.nn.Parameter
        self._begin()

    def _begin(self) -> None:
        self._looked_at: set[int] = set()  # ids of parameters
        self._models: set[int] = set()
        self._types: dict[str, int] = {}
        self._first = self._last = self._kernels = self._depthwise = 0

    def look(self) -> None:
        """Look at the parameters of the optimizer whose steps count, as a capture is prepared."""
        self._begin()
        optimizer = self._steps.optimizer
        if optimizer is not None:
            self._add(_of_optimizer(optimizer))

    def called(self, model: Any) -> None:
        """Look at the parameters of a model that is called in a capture."""
        if id(model) not in self._models:
            self._models.add(id(model))
            self._add(_of_model(model))

    def _add(self, parameters: Iterable[Any]) -> None:
        """Count parameters, and record the sums if there were new ones."""
        before = len(self._looked_at)
        try:
            if self._torch.jit.is_tracing():
                return  # sizes are part of the graph then
            with self._torch._C.DisableTorchFunction():  # modes of the script see nothing of it
                for parameter in islice(parameters, _MAX_PARAMETERS):
                    if type(parameter) in self._plain and id(parameter) not in self._looked_at:
                        if len(self._looked_at) >= _MAX_PARAMETERS:
                            break
                        self._looked_at.add(id(parameter))
                        self._count(parameter)
        except Exception as error:  # optimizers, models and tensors of any kind
            if raised_by_signal_handler(error):
                raise
        if self._types and len(self._looked_at) > before:
            layouts = {"first": self._first, "last": self._last}
            kernels = {"kernels": self._kernels, "depthwise": self._depthwise}
            known = {"t": "weights", "at": monotonic_ns(), "n": self._steps.n, "types": dict(self._types)}
            self._steps.out.append((RECORD, {**known, **layouts, **kernels}))

    def _count(self, parameter: Any) -> None:
        elements = parameter.numel()
        if parameter.layout is not self._torch.strided or not elements:  # as where a rank has no part of it
            return
        shape = tuple(parameter.shape)
        dtype = str(parameter.dtype).rpartition(".")[2]
        self._types[dtype] = self._types.get(dtype, 0) + elements
        if len(shape) not in (4, 5) or shape[0] < 2:
            return
        self._kernels += 1
        self._depthwise += shape[1] == 1 and max(shape[2:]) > 1
        # Those of one pixel, and of one channel each, have the same strides in both layouts.
        if shape[1] > 1 and shape[-1] > 1:
            strides = parameter.stride()
            self._first += strides[1] > strides[-1] == 1
            self._last += strides[-1] > strides[1] == 1


def _of_optimizer(optimizer: Any) -> Iterator[Any]:
    """Yield the parameters of an optimizer."""
    groups = vars(optimizer).get("param_groups")
    for group in groups if type(groups) is list else ():
        parameters = group.get("params") if type(group) is dict else None
        if type(parameters) is list:
            yield from parameters


def _of_model(model: Any) -> Iterator[Any]:
    """Yield the parameters of a model, by what they are registered as: the script may list others."""
    for part in model.modules():
        yield from vars(part).get("_parameters", {}).values()
