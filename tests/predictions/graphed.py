"""Functions whose work on a GPU is launched as one CUDA graph, for changed copies of scripts (``followed.py``).

Requirements of a capture: nothing in the function waits for the device or copies from the host, tensors that change
between calls are arguments or are changed in place, shapes and Python values stay the same, optimizers are capturable,
and no result that is kept has an autograd graph.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

import torch

#: Calls that run as usual before the capture; they also create the optimizers' state, and choose algorithms.
_WARM_UPS = 3


class _Graph:
    """One function; it runs as usual without a GPU."""

    #: For warm-ups and captures of all functions, as nodes that add up gradients remember their stream.
    stream: torch.cuda.Stream | None = None

    def __init__(self) -> None:
        self.warm_ups = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: list[torch.Tensor] = []
        self.outputs: Any = None

    def call(self, function: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> Any:
        """Return what the function returns; a later call overwrites it."""
        if not torch.cuda.is_available():
            return function(*inputs)
        _Graph.stream = _Graph.stream or torch.cuda.Stream()
        if self.warm_ups < _WARM_UPS:
            self.warm_ups += 1
            _Graph.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(_Graph.stream):
                self.outputs = function(*inputs)
            torch.cuda.current_stream().wait_stream(_Graph.stream)
            return self.outputs
        if self.graph is None:
            self.inputs = [one.clone() for one in inputs]
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=_Graph.stream):
                self.outputs = function(*self.inputs)
        else:
            for mine, new in zip(self.inputs, inputs, strict=True):
                mine.copy_(new)
        self.graph.replay()
        return self.outputs


_graphs: dict[CodeType, _Graph] = {}


def graphed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function of tensors, which may be defined anew in each step."""
    graph = _graphs.setdefault(function.__code__, _Graph())
    return lambda *inputs: graph.call(function, inputs)
