"""Keras 3, on any backend: the end of a training batch ends a step; its validation is a phase."""

from __future__ import annotations

import functools
from threading import get_ident
from time import monotonic_ns
from typing import Any

from ..marks import EVALUATION
from ..runtime import Runtime
from ..steps import FRAMEWORK


def install(runtime: Runtime, module: Any) -> None:
    """Wrap the callbacks that ``fit`` calls at the end of each training batch, and around validation."""
    callbacks = module.CallbackList
    if getattr(callbacks.on_train_batch_end, "_tuiprof", False):
        return
    hook = runtime.hook("keras.callbacks.CallbackList")
    steps = runtime.steps
    began_at = 0

    def wrap(name: str, seen: Any) -> None:
        original = getattr(callbacks, name)

        @functools.wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if hook.on:
                try:
                    seen(monotonic_ns())
                except Exception:
                    hook.failed()
            return result

        method._tuiprof = True  # type: ignore[attr-defined]
        setattr(callbacks, name, method)

    def begins(t: int) -> None:
        nonlocal began_at
        began_at = t

    def ended(t: int) -> None:
        steps.marks.append((EVALUATION, began_at or t, t, get_ident()))

    wrap("on_train_batch_end", lambda t: steps.end(FRAMEWORK, t))
    wrap("on_test_begin", begins)
    wrap("on_test_end", ended)
