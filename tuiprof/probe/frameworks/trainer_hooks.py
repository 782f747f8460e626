"""Training frameworks: their own training step, evaluation and checkpoints as phases, and Keras' batches as steps.

What a framework does around these (callbacks, logging, moving batches) stays outside of them. A checkpoint is what the
framework calls one, with all that it writes; ``torch.save`` alone misses weights in safetensors.
"""

from __future__ import annotations

import functools
import sys
from threading import get_ident
from time import monotonic_ns
from typing import Any

from ..assembly import CHECKPOINT, EVALUATION, FORWARD
from ..runtime import Runtime
from ..steps.sources import FRAMEWORK

#: Module -> class -> method -> phase. An empty class is the module itself.
_LIGHTNING = {
    "strategies.strategy": {
        "Strategy": {"training_step": FORWARD, "validation_step": EVALUATION, "test_step": EVALUATION}
    },
    "loops.evaluation_loop": {"_EvaluationLoop": {"run": EVALUATION}},
    "trainer.trainer": {"Trainer": {"save_checkpoint": CHECKPOINT}},
}
PHASES: dict[str, dict[str, dict[str, int]]] = {
    "transformers.trainer": {
        "Trainer": {"evaluate": EVALUATION, "predict": EVALUATION, "_save_checkpoint": CHECKPOINT}
    },
    "accelerate.accelerator": {"Accelerator": {"save_state": CHECKPOINT}},
    "safetensors.torch": {"": {"save_file": CHECKPOINT}},
    **{
        f"{package}.{module}": classes
        for package in ("lightning.pytorch", "pytorch_lightning")
        for module, classes in _LIGHTNING.items()
    },
}


#: Modules whose functions run a training loop, and the name of their framework in the log.
_LOOPS = {
    "transformers.trainer": "transformers",
    "lightning.pytorch.trainer.trainer": "lightning",
    "pytorch_lightning.trainer.trainer": "lightning",
}


def trainer_of_thread() -> str:
    """Return the framework whose training loop this thread is in, else whose Accelerator exists; empty = none."""
    frame: Any = sys._getframe()
    while frame is not None:
        found = _LOOPS.get(frame.f_globals.get("__name__", ""))
        if found:
            return found
        frame = frame.f_back
    state = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
    return "accelerate" if getattr(state, "_shared_state", None) else ""


def install(runtime: Runtime, module: Any) -> None:
    """Time the framework's functions in this module."""
    models = runtime.models
    if models is None:  # torch itself is being imported, and hooks it when that is done
        return
    for name, methods in PHASES[module.__name__].items():
        owner = getattr(module, name, None) if name else module
        for method, part in methods.items():
            if hasattr(owner, method):  # not every version has each of them
                models.wrap_method(owner, method, part, _is_forward if part == FORWARD else None)


def _is_forward(strategy: Any) -> bool:
    """Whether Lightning's training step is no more than forward, as opposed to manual optimization."""
    return bool(getattr(strategy.lightning_module, "automatic_optimization", True))


def install_keras(runtime: Runtime, module: Any) -> None:
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
            hook.call(seen, monotonic_ns())
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
