"""PyTorch: where optimizers step, where backward runs, and who else uses the profiler."""

from __future__ import annotations

import functools
from threading import get_ident
from time import monotonic_ns
from typing import Any, Callable

from .marks import BACKWARD, STEPPED
from .runtime import Runtime
from .torch_capture import TorchProfiler, watch_profilers
from .torch_device import TorchDevice


def install(runtime: Runtime, torch: Any) -> None:
    """Hook PyTorch, once.

    Args:
        runtime: The probe.
        torch: The module, just imported.
    """
    if getattr(torch.autograd.backward, "_tuiprof", False):
        return
    compiler = getattr(torch, "compiler", None)
    # The first is as good and does less; both are constants under torch.compile.
    compiling = (
        getattr(compiler, "is_dynamo_compiling", None) or getattr(compiler, "is_compiling", None) or _never
    )
    _hook_backward(runtime, torch, compiling)
    _hook_optimizers(runtime, torch, compiling)
    if torch.backends.cuda.is_built():  # of CUDA or ROCm; whether the script uses it is seen at each step
        runtime.steps.time_on(TorchDevice(runtime, torch))
    profilers = watch_profilers(runtime, torch)
    runtime.capture.torch = functools.partial(TorchProfiler, torch, profilers)


def _never() -> bool:
    """Return False: this version of PyTorch has no compiler."""
    return False


def _hook_backward(runtime: Runtime, torch: Any, compiling: Callable[[], bool]) -> None:
    """Wrap ``torch.autograd.backward``, through which ``Tensor.backward`` goes as well."""
    note, clock, ident, part = runtime.steps.marks.append, monotonic_ns, get_ident, BACKWARD
    original = torch.autograd.backward

    def backward(
        tensors: Any,
        grad_tensors: Any = None,
        retain_graph: Any = None,
        create_graph: Any = False,
        grad_variables: Any = None,
        inputs: Any = None,
    ) -> Any:
        # Under torch.compile this is a constant, and the rest of the wrapper is never traced.
        if compiling():
            return original(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
        began = clock()
        result = original(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
        note((part, began, clock(), ident()))
        return result

    def backward_of_any_kind(*args: Any, **kwargs: Any) -> Any:
        if compiling():
            return original(*args, **kwargs)
        began = clock()
        result = original(*args, **kwargs)
        note((part, began, clock(), ident()))
        return result

    # To pack and unpack the arguments costs more than all the rest, so it is left to versions to come.
    known = backward.__code__.co_varnames[: backward.__code__.co_argcount]
    code = getattr(original, "__code__", None)
    if code is None or code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] != known:
        backward = backward_of_any_kind
    backward = functools.wraps(original)(backward)
    backward._tuiprof = True  # type: ignore[attr-defined]
    torch.autograd.backward = backward


def _hook_optimizers(runtime: Runtime, torch: Any, compiling: Callable[[], bool]) -> None:
    """Wrap the ``step`` of every optimizer class when its first instance is made.

    PyTorch itself wraps it there to call its global step hooks. Those run inside the range
    ``Optimizer.step#…`` of a trace, so a step that ended in one of them would overlap that range without
    enclosing it; from outside the step ends after the range.
    """
    hook = runtime.hook("torch.optim.Optimizer.step")
    steps = runtime.steps
    note, clock, stepped = steps.marks.append, monotonic_ns, STEPPED
    optimizer_class = torch.optim.Optimizer
    name = "_patch_step_function" if hasattr(optimizer_class, "_patch_step_function") else "_hook_for_profile"
    patch = getattr(optimizer_class, name)

    inside = False  # an optimizer's step is running; what it calls belongs to it

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            if inside or compiling():
                return original(optimizer, *args, **kwargs)
            inside = True
            began = clock()
            try:
                result = original(optimizer, *args, **kwargs)
            finally:
                inside = False
            t = clock()
            n = steps.n
            if steps.ends() is optimizer and n < steps.due:
                note((stepped, began, t, n, clock()))
                steps.n = n + 1
            elif hook.on:
                try:
                    steps.optimizer_ended(optimizer, began, t)
                except Exception:
                    hook.failed()
            return result

        step._tuiprof = True  # type: ignore[attr-defined]
        return step

    @functools.wraps(patch)
    def patch_step(optimizer: Any) -> Any:
        result = patch(optimizer)
        try:
            kind = type(optimizer)
            if not getattr(kind.step, "_tuiprof", False):
                kind.step = wrap(kind.step)
        except Exception:
            hook.failed()
        return result

    setattr(optimizer_class, name, patch_step)
