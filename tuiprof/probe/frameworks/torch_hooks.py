"""PyTorch: where optimizers step, backward and models run, batches are awaited, and who else uses the profiler.

``nn.Module.__call__`` itself is not wrapped: hundreds of calls per step go through it, and compilers and tracers
inspect it. Only classes of models that the script handles as a whole are wrapped: those whose parameters it lists (for
an optimizer), which it sets to training or evaluation, or moves to a device. Nested calls are part of the outer one.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from threading import get_ident
from time import monotonic_ns
from types import CodeType
from typing import Any, Callable

from ..assembly import BACKWARD, CHECKPOINT, DATA, EVALUATION, FORWARD, STEPPED
from ..events import RECORD
from ..isolation import leave_out
from ..runtime import Hook, Runtime
from ..steps.counting import Steps
from ..steps.given_steps import CALLED
from ..steps.put_off import NO_CALL
from ..steps.sources import BATCH, LOOP
from .batches import Batches, is_compiling
from .model_calls import ModelCalls
from .module_calls import ModuleCalls
from .torch_capture import TorchProfiler, watch_profilers
from .torch_device import TorchDevice
from .weights import Weights

#: With these step sources, a model that is not trained is the main work.
_OF_INFERENCE = (BATCH, LOOP)
#: Maximum number of wrapped classes, for scripts that handle their modules one by one.
_MAX_CLASSES = 16
_HANDLED = ("named_parameters", "train", "to")
_COMPILED = "torch._dynamo.eval_frame"
_LABELS = {FORWARD: "forward", EVALUATION: "evaluation", CHECKPOINT: "checkpoint"}


class _Used:
    """What a wrapper in a class of the script uses.

    Cloudpickle writes such a class by value, with all that its methods refer to. In the copy this is False, and the
    wrapper only calls what it wraps, without the probe.
    """

    __slots__ = ("hook", "inside", "name", "note", "steps")
    leave_out = staticmethod(leave_out)

    def __init__(self, hook: Hook, steps: Steps, name: Any = None) -> None:
        #: Threads in which a wrapped function is running; calls inside it belong to it.
        self.inside: set[int] = set()
        self.hook, self.steps, self.note, self.name = hook, steps, steps.marks.append, name

    def __reduce__(self) -> tuple[Any, ...]:
        return bool, ()


def install(runtime: Runtime, torch: Any) -> None:
    """Hook PyTorch, once."""
    if getattr(torch.autograd.backward, "_tuiprof", False):
        return
    compiler = getattr(torch, "compiler", None)
    # The first is as good and does less; both are constants under torch.compile.
    compiling = (
        getattr(compiler, "is_dynamo_compiling", None)
        or getattr(compiler, "is_compiling", None)
        or (lambda: False)
    )
    running = getattr(torch._C, "_current_graph_task_id", None)  # before 2.0 there is none
    if running is not None:
        runtime.steps.call = running
    _hook_backward(runtime, torch, compiling)
    calls = [0]
    _hook_optimizers(runtime, torch, compiling, calls)
    _hook_scaler(runtime, torch, calls)
    weights = Weights(torch, runtime.steps)
    runtime.models = Models(runtime, torch, compiling, weights)
    if torch.backends.cuda.is_built():  # of CUDA or ROCm; whether the script uses it is seen at each step
        device = TorchDevice(runtime, torch)
        runtime.steps.time_on(device)
        runtime.capture.must_wait = device.captures_graph
    profilers = watch_profilers(runtime, torch)
    modules = ModuleCalls(runtime, torch, compiling)
    runtime.capture.torch = functools.partial(TorchProfiler, torch, profilers, modules, weights)


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
        hook.call(steps.call_returned, t)
        if steps.watch_backward:
            hook.call(steps.backward_ended, t)

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
        if calls[0] == before:
            hook.call(steps.optimizer_ended, optimizer, began, clock())
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
    clock, ident, stepped, absent, no_call = monotonic_ns, get_ident, STEPPED, object(), NO_CALL
    optimizer_class = torch.optim.Optimizer
    name = "_patch_step_function" if hasattr(optimizer_class, "_patch_step_function") else "_hook_for_profile"
    patch = getattr(optimizer_class, name)
    newest: Callable[[], Any] | None = None
    used = _Used(hook, steps)

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def step_of_any_kind(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if compiling() or not used or (thread := ident()) in used.inside:
                return original(optimizer, *args, **kwargs)
            used.inside.add(thread)
            began = clock()
            try:
                result = original(optimizer, *args, **kwargs)
            except BaseException as error:
                used.leave_out(error)
                raise
            finally:
                used.inside.discard(thread)
            calls[0] += 1
            used.hook.call(used.steps.optimizer_ended, optimizer, began, clock())
            return result

        def step(self: Any, closure: Any = absent) -> Any:
            if compiling() or not used or (thread := ident()) in used.inside:
                return original(self) if closure is absent else original(self, closure)
            used.inside.add(thread)
            steps, note = used.steps, used.note
            began = clock()
            try:
                result = original(self) if closure is absent else original(self, closure)
            except BaseException as error:
                used.leave_out(error)
                raise
            finally:
                used.inside.discard(thread)
            t = clock()
            calls[0] += 1
            n = steps.n
            if n < steps.optimizer_due and steps.call() == no_call:
                note((stepped, began, t, n, clock()))
                steps.n = n + 1
            else:
                used.hook.call(steps.optimizer_ended, self, began, t)
            return result

        hooked = functools.wraps(original)(step if _takes(original, step) else step_of_any_kind)
        hooked._tuiprof = used  # type: ignore[attr-defined]
        return hooked

    @functools.wraps(patch)
    def patch_step(optimizer: Any) -> Any:
        nonlocal newest
        result = patch(optimizer)
        try:
            steps.optimizer_made = True
            steps.optimizers.made(optimizer)
            before = None if newest is None else newest()
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


def install_compiled(runtime: Runtime, module: Any) -> None:
    """Hook compiled modules, which run a model in a way of their own, and let compiled code end steps."""
    config = sys.modules.get("torch._dynamo.config")
    getattr(config, "reorderable_logging_functions", set()).update(CALLED)  # since 2.2
    if runtime.models is not None:  # None: torch itself is being imported, and hooks it when that is done
        runtime.models.wrap(module.OptimizedModule)


def _timed(kind: Any, used: _Used, compiling: Callable[[], bool], learns: Callable[[], bool]) -> Any:
    """Return what times the calls of modules of a class."""
    clock, ident = monotonic_ns, get_ident
    own = vars(kind).get("__call__")

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        # Looked up each time: a tracer replaces nn.Module's, and another base of a subclass may have its own.
        call = super(kind, self).__call__ if own is None else own.__get__(self)
        if compiling() or not used or (thread := ident()) in used.inside:
            return call(*args, **kwargs)
        used.inside.add(thread)
        steps, note = used.steps, used.note
        began = clock()
        try:
            mark = steps.range  # read once: a capture by the clock may end at any time, in another thread
            if mark is not None:  # the trace has the same phases, and which model runs
                learning = learns()
                trains = self.training or learning or steps.source in _OF_INFERENCE
                phase = "forward" if trains else "evaluation"
                with mark(phase), mark(used.name(self, args, kwargs, learning, steps.n, mark)):
                    return call(*args, **kwargs)
            return call(*args, **kwargs)
        except BaseException as error:
            used.leave_out(error)
            raise
        finally:
            used.inside.discard(thread)
            steps.called = True
            trains = self.training or learns() or steps.source in _OF_INFERENCE
            note((FORWARD if trains else EVALUATION, began, clock(), thread))

    if own is not None:
        functools.update_wrapper(__call__, own)
    else:
        __call__.__wrapped__ = kind.__call__  # type: ignore[attr-defined]
    __call__._tuiprof = used  # type: ignore[attr-defined]
    return __call__


class Models:
    """The timed models of this process."""

    def __init__(self, runtime: Runtime, torch: Any, compiling: Callable[[], bool], weights: Weights) -> None:
        self._runtime = runtime
        self._weights = weights
        self._hook = runtime.hook("torch.nn.Module")
        self._steps = runtime.steps
        self._torch = torch
        self._compiling = compiling
        self._wrapped: set[type] = set()
        self._calls = ModelCalls(torch)
        self._used = _Used(self._hook, self._steps, self._name)
        for name in _HANDLED:
            self._watch(name)
        self._time_saving()
        if _COMPILED in sys.modules:
            self.wrap(sys.modules[_COMPILED].OptimizedModule)

    def _name(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *more: Any) -> str:
        """Return the name of a call's range in a capture."""
        if self._runtime.batches is not None:
            self._runtime.batches.given(args, kwargs)
        self._weights.called(model)
        return self._calls.name(model, args, kwargs, *more)

    def _watch(self, name: str) -> None:
        """Record models from a method that is called on whole models."""
        base, compiling, hook = self._torch.nn.Module, self._compiling, self._hook
        original = getattr(base, name)
        busy = False  # train() calls itself for each part

        @functools.wraps(original)
        def method(self_: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal busy
            if compiling() or busy or not hook.on or kwargs.get("recurse") is False:
                return original(self_, *args, **kwargs)
            busy = True
            hook.call(self._handled, type(self_))
            try:
                return original(self_, *args, **kwargs)
            except BaseException as error:
                leave_out(error)
                raise
            finally:
                busy = False

        setattr(base, name, method)

    def _handled(self, kind: type) -> None:
        self._steps.has_modules = True
        # The compiler's own modules: torch.export looks twice at the one that it traces.
        ours = kind is self._torch.nn.Module or kind.__module__.startswith("torch._")
        if len(self._wrapped) < _MAX_CLASSES and not ours:
            self.wrap(kind)

    def wrap(self, kind: Any) -> None:
        """Time the calls of modules of a class; those compiled to TorchScript stay as they are."""
        if kind in self._wrapped:
            return
        self._wrapped.add(kind)
        if getattr(kind.__call__, "_tuiprof", False) or kind.__module__.startswith("torch.jit"):
            return
        if not hasattr(kind.__call__, "__get__"):  # an object, which is not bound to the model
            return
        kind.__call__ = _timed(kind, self._used, self._compiling, self._torch.is_grad_enabled)

    def wrap_method(self, kind: Any, name: str, part: int, when: Callable[[Any], bool] | None = None) -> None:
        """Time a method or function in which a framework runs the model or writes it, as this part of a step.

        ``when`` is asked with the object whether this call is; None = each is.
        """
        original = getattr(kind, name)
        if getattr(original, "_tuiprof", False):
            return
        used, steps, clock, ident = self._used, self._steps, monotonic_ns, get_ident
        label = _LABELS[part]

        @functools.wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            thread = ident()
            if thread in used.inside or (when is not None and not when(args[0])):
                return original(*args, **kwargs)
            used.inside.add(thread)
            began = clock()
            try:
                mark = steps.range
                if mark is not None:
                    with mark(label):
                        return original(*args, **kwargs)
                return original(*args, **kwargs)
            except BaseException as error:
                leave_out(error)
                raise
            finally:
                used.inside.discard(thread)
                used.note((part, began, clock(), thread))

        method._tuiprof = True  # type: ignore[attr-defined]
        setattr(kind, name, method)

    def _time_saving(self) -> None:
        original = self._torch.save
        note, clock, ident = self._steps.marks.append, monotonic_ns, get_ident

        @functools.wraps(original)
        def save(*args: Any, **kwargs: Any) -> Any:
            began = clock()
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                leave_out(error)
                raise
            finally:
                note((CHECKPOINT, began, clock(), ident()))

        # Also in its defining module: pickling for another process finds it there by name.
        self._torch.save = self._torch.serialization.save = save


def install_loader(runtime: Runtime, module: Any) -> None:
    """Wrap ``__next__`` of all DataLoader iterators, and what starts their workers, once."""
    iterator_class = module._BaseDataLoaderIter
    original = iterator_class.__next__
    if getattr(original, "_tuiprof", False):
        return
    hook = runtime.hook("torch.utils.data.DataLoader")
    steps = runtime.steps
    note, clock, ident, part = steps.marks.append, monotonic_ns, get_ident, DATA
    quiet = BATCH + 1  # from this source on batches are no steps
    workers = _Workers(runtime, module._MultiProcessingDataLoaderIter)
    batches = runtime.batches = Batches(steps)
    torch = sys.modules.get("torch")  # which may be importing the loader

    @functools.wraps(original)
    def __next__(iterator: Any) -> Any:  # noqa: N807
        if is_compiling(torch):
            return original(iterator)
        if steps.source < quiet and hook.on:
            try:
                return looking(iterator)
            except BaseException as error:
                leave_out(error)
                raise
        began = clock()
        try:
            batch = original(iterator)
        except BaseException as error:
            if isinstance(error, StopIteration):
                workers.stopped(iterator, clock() - began)
            leave_out(error)
            raise
        finally:  # the end of the data is a wait too
            t = clock()
            note((part, began, t, ident()))
            if workers.fresh is not None and workers.fresh() is iterator:
                workers.first_batch(t - began)
        if steps.n >= batches.due:
            batches.look(batch)
        return batch

    def looking(iterator: Any) -> Any:
        """Batches are the steps, or may be."""
        hook.call(steps.data_begins)
        more = False
        began = clock()
        try:
            batch = original(iterator)
            more = True
        except BaseException as error:
            leave_out(error)
            raise
        finally:
            t = clock()
            note((part, began, t, ident()))
            if workers.fresh is not None and workers.fresh() is iterator:
                workers.first_batch(t - began)
            if not more:
                workers.stopped(iterator, t - began)
            hook.call(steps.data_ended, began, t, more)
        if steps.n >= batches.due:
            batches.look(batch)
        return batch

    __next__._tuiprof = True  # type: ignore[attr-defined]
    iterator_class.__next__ = __next__


class _Workers:
    """Time of loader workers to stop, and to restart."""

    def __init__(self, runtime: Runtime, iterator_class: Any) -> None:
        #: A weak reference to the iterator whose workers were started again and have made no batch yet; None = there
        #: is none.
        self.fresh: Any = None
        self._steps = runtime.steps
        self._known: dict[int, weakref.ref[Any]] = {}  # loaders, by id, as they may have no hash
        self._starts = self._ns = self._stopping_ns = self._waited_ns = self._workers = 0
        self._class = iterator_class
        hook = runtime.hook("torch.utils.data.DataLoader workers")
        original = iterator_class.__init__

        @functools.wraps(original)
        def __init__(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            began = monotonic_ns()
            try:
                original(iterator, loader, *args, **kwargs)
            except BaseException as error:
                leave_out(error)
                raise
            hook.call(self._started, iterator, loader, began, monotonic_ns())

        iterator_class.__init__ = __init__

    def _started(self, iterator: Any, loader: Any, began: int, t: int) -> None:
        self._steps.marks.append((DATA, began, t, get_ident()))
        known: Any = self._known.get(id(loader))
        if known is None or known() is not loader:
            self._known[id(loader)] = weakref.ref(loader)
            return
        self.fresh, self._workers = weakref.ref(iterator), loader.num_workers
        self._starts += 1
        self._ns += t - began + self._stopping_ns
        self._stopping_ns = 0

    def stopped(self, iterator: Any, ns: int) -> None:
        """The data is exhausted; the time includes waiting for non-persistent workers to stop."""
        if isinstance(iterator, self._class):
            self._stopping_ns += ns

    def first_batch(self, ns: int) -> None:
        """Restarted workers have delivered their first batch after this wait."""
        self.fresh = None
        self._waited_ns += ns
        fields = {"n": self._steps.n, "workers": self._workers, "starts": self._starts}
        times = {"ns": self._ns, "waited_ns": self._waited_ns}
        self._steps.out.append((RECORD, {"t": "workers", "at": monotonic_ns(), **fields, **times}))
