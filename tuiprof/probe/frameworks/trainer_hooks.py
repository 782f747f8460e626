"""Training frameworks on PyTorch: their own training step, evaluation and checkpoints as phases.

What a framework does around these (callbacks, logging, moving batches) stays outside of them. A checkpoint is what the
framework calls one, with all that it writes; ``torch.save`` alone misses weights in safetensors.
"""

from __future__ import annotations

from typing import Any

from ..marks import CHECKPOINT, EVALUATION, FORWARD
from ..runtime import Runtime

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
