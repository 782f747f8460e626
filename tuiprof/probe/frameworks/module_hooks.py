"""PyTorch modules: time of the outermost call of a model, in training and in evaluation.

``nn.Module.__call__`` itself is not wrapped: hundreds of calls per step go through it, and compilers and tracers
inspect it. Only classes of models that the script handles as a whole are wrapped: those whose parameters it lists (for
an optimizer), which it sets to training or evaluation, or moves to a device. Nested calls are part of the outer one.
"""

from __future__ import annotations

import functools
import sys
from threading import get_ident
from time import monotonic_ns
from typing import Any, Callable

from ..guest.exceptions import leave_out
from ..marks import CHECKPOINT, EVALUATION, FORWARD
from ..runtime import Runtime
from ..steps import BATCH, LOOP

#: With these step sources, a model that is not trained is the main work.
_OF_INFERENCE = (BATCH, LOOP)
#: Maximum number of wrapped classes, for scripts that handle their modules one by one.
_MOST_CLASSES = 16
_HANDLED = ("named_parameters", "train", "to")
_COMPILED = "torch._dynamo.eval_frame"
_LABELS = {FORWARD: "forward", EVALUATION: "evaluation", CHECKPOINT: "checkpoint"}


def install(runtime: Runtime, module: Any) -> None:
    """Hook compiled modules, which run a model in a way of their own."""
    if runtime.models is not None:  # None: torch itself is being imported, and hooks it when that is done
        runtime.models.wrap(module.OptimizedModule)


class Models:
    """The timed models of this process."""

    def __init__(self, runtime: Runtime, torch: Any, compiling: Callable[[], bool]) -> None:
        self._hook = runtime.hook("torch.nn.Module")
        self._steps = runtime.steps
        self._torch = torch
        self._compiling = compiling
        self._wrapped: set[type] = set()
        self._inside = [False]  # a model is running; calls inside it belong to it
        for name in _HANDLED:
            self._watch(name)
        self._time_saving()
        if _COMPILED in sys.modules:
            self.wrap(sys.modules[_COMPILED].OptimizedModule)

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
            try:
                self._handled(type(self_))
            except Exception:
                hook.failed()
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
        if len(self._wrapped) < _MOST_CLASSES and kind is not self._torch.nn.Module:
            self.wrap(kind)

    def wrap(self, kind: Any) -> None:
        """Time the calls of instances of a class.

        Args:
            kind: A class of modules; compiled to TorchScript ones stay as they are.
        """
        if kind in self._wrapped:
            return
        self._wrapped.add(kind)
        if getattr(kind.__call__, "_tuiprof", False) or kind.__module__.startswith("torch.jit"):
            return
        owner: Any = next(parent for parent in kind.__mro__ if "__call__" in vars(parent))
        inside, steps, compiling = self._inside, self._steps, self._compiling
        note, clock, ident = steps.marks.append, monotonic_ns, get_ident
        learns = self._torch.is_grad_enabled
        own = vars(kind).get("__call__")

        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            # A tracer replaces nn.Module's: looked up each time.
            call = owner.__call__ if own is None else own
            if compiling() or inside[0]:
                return call(self, *args, **kwargs)
            inside[0] = True
            began = clock()
            try:
                if steps.range is not None:  # the trace has the same phases
                    with steps.range("forward" if self.training or learns() else "evaluation"):
                        return call(self, *args, **kwargs)
                return call(self, *args, **kwargs)
            except BaseException as error:
                leave_out(error)
                raise
            finally:
                inside[0] = False
                steps.called = True
                trains = self.training or learns() or steps.source in _OF_INFERENCE
                note((FORWARD if trains else EVALUATION, began, clock(), ident()))

        if own is not None:
            functools.update_wrapper(__call__, own)
        else:
            __call__.__wrapped__ = owner.__call__  # type: ignore[attr-defined]
        __call__._tuiprof = True  # type: ignore[attr-defined]
        kind.__call__ = __call__

    def wrap_method(self, kind: Any, name: str, part: int, when: Callable[[Any], bool] | None = None) -> None:
        """Time a method in which a framework runs the model, or writes it.

        Args:
            kind: Its class or module.
            name: Its name.
            part: What it is.
            when: Asked with the object whether this call is; None = each is.
        """
        original = getattr(kind, name)
        if getattr(original, "_tuiprof", False):
            return
        inside, steps, clock, ident = self._inside, self._steps, monotonic_ns, get_ident
        note, label = steps.marks.append, _LABELS[part]

        @functools.wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            if inside[0] or (when is not None and not when(args[0])):
                return original(*args, **kwargs)
            inside[0] = True
            began = clock()
            try:
                if steps.range is not None:
                    with steps.range(label):
                        return original(*args, **kwargs)
                return original(*args, **kwargs)
            except BaseException as error:
                leave_out(error)
                raise
            finally:
                inside[0] = False
                note((part, began, clock(), ident()))

        method._tuiprof = True  # type: ignore[attr-defined]
        setattr(kind, name, method)

    def _time_saving(self) -> None:
        """Record the time of ``torch.save``."""
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
