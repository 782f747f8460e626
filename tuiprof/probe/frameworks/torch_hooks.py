"""PyTorch: where optimizers step, where backward runs, and who else uses the profiler."""

from __future__ import annotations

import functools
import inspect
import weakref
from threading import get_ident
from time import monotonic_ns
from types import CodeType
from typing import Any, Callable

from ..guest.exceptions import leave_out
from ..marks import BACKWARD, STEPPED
from ..runtime import Runtime
from ..steps import NO_CALL
from .module_hooks import Models
from .torch_capture import TorchProfiler, watch_profilers
from .torch_device import TorchDevice


def install(runtime: Runtime, torch: Any) -> None:
    """Hook PyTorch, once."""
    if getattr(torch.autograd.backward, "_tuiprof", False):
        return
    compiler = getattr(torch, "compiler", None)
    # The first is as good and does less; both are constants under torch.compile.
    compiling = (
        getattr(compiler, "is_dynamo_compiling", None) or getattr(compiler, "is_compiling", None) or _never
    )
    running = getattr(torch._C, "_current_graph_task_id", None)  # before 2.0 there is none
    if running is not None:
        runtime.steps.call = running
    _hook_backward(runtime, torch, compiling)
    calls = [0]
    _hook_optimizers(runtime, torch, compiling, calls)
    _hook_scaler(runtime, torch, calls)
    runtime.models = Models(runtime, torch, compiling)
    if torch.backends.cuda.is_built():  # of CUDA or ROCm; whether the script uses it is seen at each step
        device = TorchDevice(runtime, torch)
        runtime.steps.time_on(device)
        runtime.capture.must_wait = device.captures_graph
    profilers = watch_profilers(runtime, torch)
    runtime.capture.torch = functools.partial(TorchProfiler, torch, profilers)


def _nothing() -> None:
    """Stand in for a weak reference."""


def _never() -> bool:
    """Return False: this version of PyTorch has no compiler."""
    return False


def _takes(original: Callable[..., Any], hook: Callable[..., Any]) -> bool:
    """Whether a function takes what its hook takes, by name and order, and nothing more.

    Packing and unpacking arguments would double the cost of a hook, so it is done only for unknown versions.
    """
    code = getattr(inspect.unwrap(original), "__code__", None)
    return code is not None and _parameters(code) == _parameters(hook.__code__)


def _parameters(code: CodeType) -> tuple[Any, ...]:
    """Return names of parameters, and whether there are ``*args`` or ``**kwargs``."""
    named = code.co_argcount + code.co_kwonlyargcount
    return (*code.co_varnames[:named], code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS))


def _hook_backward(runtime: Runtime, torch: Any, compiling: Callable[[], bool]) -> None:
    """Wrap ``torch.autograd.backward``, through which ``Tensor.backward`` goes as well."""
    note, clock, ident, part = runtime.steps.marks.append, monotonic_ns, get_ident, BACKWARD
    steps, hook = runtime.steps, runtime.hook("torch.autograd.backward")
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
        try:
            result = original(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
        except BaseException as error:
            leave_out(error)
            raise
        t = clock()
        note((part, began, t, ident()))
        if steps.put_off is not None or steps.watch_backward:
            returned(t)
        return result

    def backward_of_any_kind(*args: Any, **kwargs: Any) -> Any:
        if compiling():
            return original(*args, **kwargs)
        began = clock()
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            leave_out(error)
            raise
        t = clock()
        note((part, began, t, ident()))
        if steps.put_off is not None or steps.watch_backward:
            returned(t)
        return result

    def returned(t: int) -> None:
        """An optimizer stepped inside, called by a hook, or there is none: the step ends here."""
        if hook.on:
            try:
                steps.call_returned(t)
                if steps.watch_backward:
                    steps.backward_ended(t)
            except Exception:
                hook.failed()

    backward = functools.wraps(original)(backward if _takes(original, backward) else backward_of_any_kind)
    backward._tuiprof = True  # type: ignore[attr-defined]
    torch.autograd.backward = backward


def _hook_scaler(runtime: Runtime, torch: Any, calls: list[int]) -> None:
    """Let ``GradScaler.step`` end a step also if it skips the optimizer because gradients overflowed."""
    scaler: Any = getattr(getattr(torch, "amp", None), "GradScaler", None)
    if scaler is None:  # before 2.3
        scaler = getattr(getattr(torch.cuda, "amp", None), "GradScaler", None)
    if scaler is None or getattr(scaler.step, "_tuiprof", False):
        return
    hook, steps, clock = runtime.hook("torch.amp.GradScaler.step"), runtime.steps, monotonic_ns
    original = scaler.step

    @functools.wraps(original)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = calls[0]
        began = clock()
        try:
            result = original(self, optimizer, *args, **kwargs)
        except BaseException as error:
            leave_out(error)
            raise
        if calls[0] == before and hook.on:
            try:
                steps.optimizer_ended(optimizer, began, clock())
            except Exception:
                hook.failed()
        return result

    step._tuiprof = True  # type: ignore[attr-defined]
    scaler.step = step


def _hook_optimizers(runtime: Runtime, torch: Any, compiling: Callable[[], bool], calls: list[int]) -> None:
    """Wrap the ``step`` of every optimizer class when its first instance is made.

    PyTorch itself wraps it there to call its global step hooks. Those run inside the range
    ``Optimizer.step#…`` of a trace, so a step that ended in one of them would overlap that range without
    enclosing it; from outside the step ends after the range.
    """
    hook = runtime.hook("torch.optim.Optimizer.step")
    steps = runtime.steps
    note, clock, stepped, absent = steps.marks.append, monotonic_ns, STEPPED, object()
    optimizer_class = torch.optim.Optimizer
    name = "_patch_step_function" if hasattr(optimizer_class, "_patch_step_function") else "_hook_for_profile"
    patch = getattr(optimizer_class, name)
    inside = False  # an optimizer's step is running; what it calls belongs to it
    newest: Callable[[], Any] = _nothing
    call, no_call = steps.call, NO_CALL

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def step_of_any_kind(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            if compiling() or inside:
                return original(optimizer, *args, **kwargs)
            inside = True
            began = clock()
            try:
                result = original(optimizer, *args, **kwargs)
            except BaseException as error:
                leave_out(error)
                raise
            finally:
                inside = False
            calls[0] += 1
            ended(optimizer, began, clock())
            return result

        def step(self: Any, closure: Any = absent) -> Any:
            nonlocal inside
            if compiling() or inside:
                return original(self) if closure is absent else original(self, closure)
            inside = True
            began = clock()
            try:
                result = original(self) if closure is absent else original(self, closure)
            except BaseException as error:
                leave_out(error)
                raise
            finally:
                inside = False
            t = clock()
            calls[0] += 1
            n = steps.n
            if n < steps.optimizer_due and call() == no_call:
                note((stepped, began, t, n, clock()))
                steps.n = n + 1
            else:
                ended(self, began, t)
            return result

        hooked = functools.wraps(original)(step if _takes(original, step) else step_of_any_kind)
        hooked._tuiprof = True  # type: ignore[attr-defined]
        return hooked

    def ended(optimizer: Any, began: int, t: int) -> None:
        """Handle the end of an optimizer step."""
        if hook.on:
            try:
                steps.optimizer_ended(optimizer, began, t)
            except Exception:
                hook.failed()

    @functools.wraps(patch)
    def patch_step(optimizer: Any) -> Any:
        nonlocal newest
        result = patch(optimizer)
        try:
            steps.optimizer_made = True
            before = newest()
            if before is not None and before is not optimizer:
                steps.several_optimizers()
            newest = weakref.ref(optimizer)
            kind = type(optimizer)
            if not getattr(kind.step, "_tuiprof", False):
                kind.step = wrap(kind.step)
        except Exception:
            hook.failed()
        return result

    setattr(optimizer_class, name, patch_step)
