"""Steps of a few calls with shapes, and of their gradients, after a layer of 1 ms."""

from __future__ import annotations

from typing import Any

from tests.advice.host_ahead import Steps
from tuiprof.model import Trace

ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32"
#: An operator, the shapes of its inputs, and then its values and what it takes, µs, unless these are none and 100.
Call = tuple[str, list[Any], *tuple[Any, ...]]
_NODE = "autograd::engine::evaluate_function"


def step_of(*calls: Call, trained: bool = False, shapes: bool = True) -> Trace:
    """Return steps with a layer of 1 ms, then these calls, and with ``trained`` a node of 100 µs for each."""
    steps = Steps()
    for number in steps.each():
        steps.op("aten::gru", ((GEMM, 1000),), dims=[[64, 256]] if shapes else None)
        for at, (name, dims, *rest) in enumerate(calls):
            values, took = (*rest, *([], 100)[len(rest) :])
            kernel = GEMM if name in ("linear", "matmul") else ELEMENTWISE
            steps.op(
                f"aten::{name}",
                ((kernel, took),) if took else (),
                dims=dims if shapes else None,
                values=values,
                sequence=1000 * number + at if trained else None,
            )
        for at in reversed(range(len(calls) if trained else 0)):
            node = f"{_NODE}: Node{at}Backward0"
            steps.op(node, ((GEMM, 100),), dims=[] if shapes else None, sequence=1000 * number + at)
    return steps.trace()
