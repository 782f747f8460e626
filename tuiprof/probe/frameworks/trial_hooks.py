"""Changes made by ``tuiprof fix --try`` in a trial, without an edit of the script.

Nothing here runs unless :data:`VARIABLE` is set, which only trials do. It is a comma-separated list of switches,
``loader_workers=2`` or ``fused_optimizer=1``. Applied switches are recorded in the log, so that trials without any are
detected. The script's own arguments take precedence over a switch.
"""

from __future__ import annotations

import functools
import inspect
import os
from typing import Any, Callable

from ..runtime import Runtime

VARIABLE = "TUIPROF_TRY"
#: How the notes of what was switched begin.
NOTED = "trial: "
#: Optimizers of torch.optim that may have a fused form.
OPTIMIZERS = ("Adam", "AdamW", "SGD", "Adagrad")


def asked() -> dict[str, str]:
    """Return the switches and their values."""
    pairs = (item.partition("=") for item in os.environ.get(VARIABLE, "").split(",") if item)
    return {name.strip(): value.strip() for name, _, value in pairs}


def install(runtime: Runtime, module: Any) -> None:
    """Install the switches that concern a module that was imported just now."""
    switches, name = asked(), module.__name__
    if name == "torch":
        if "matmul_precision" in switches:
            module.set_float32_matmul_precision(switches["matmul_precision"])
            runtime.note("info", f'{NOTED}set_float32_matmul_precision("{switches["matmul_precision"]}")')
        if "fused_optimizer" in switches:
            for kind in OPTIMIZERS:
                _wrap(getattr(module.optim, kind, None), functools.partial(_fused, runtime))
    elif name == "torch.utils.data.dataloader":
        if "loader_workers" in switches or "pin_memory" in switches:
            _wrap(module.DataLoader, functools.partial(_loader, runtime, module, switches))
    elif name == "torchmetrics.aggregation" and "nan_strategy" in switches:
        _wrap(module.BaseAggregator, functools.partial(_unchecked, runtime, switches["nan_strategy"]))


#: Calls the given constructor with changed arguments.
Change = Callable[[Callable[..., None], inspect.BoundArguments], None]


def _wrap(made: Any, change: Change) -> None:
    """Replace the arguments with which a class is instantiated."""
    original = getattr(made, "__init__", None)
    if original is None or getattr(original, "_tuiprof_trial", False):
        return
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError:  # the script's own mistake
            original(self, *args, **kwargs)
        else:
            change(original, bound)

    __init__._tuiprof_trial = True  # type: ignore[attr-defined]
    made.__init__ = __init__


def _call(original: Callable[..., None], bound: inspect.BoundArguments, **changed: Any) -> None:
    given = inspect.BoundArguments(bound.signature, type(bound.arguments)(bound.arguments))
    given.arguments.update(changed)
    original(*given.args, **given.kwargs)


def _fused(runtime: Runtime, original: Callable[..., None], bound: inspect.BoundArguments) -> None:
    given, names = bound.arguments, bound.signature.parameters
    if "params" in given and not isinstance(given["params"], (list, tuple, dict)):
        given["params"] = list(given["params"])  # it is read twice
    asked_for = "fused" not in names or given.get("fused") is not None or given.get("differentiable")
    if asked_for or not all(map(_has_fused_form, _parameters(given.get("params", ())))):
        _call(original, bound)
        return
    _call(original, bound, fused=True, **({"foreach": None} if "foreach" in names else {}))
    runtime.note("info", f"{NOTED}{type(given['self']).__name__}(fused=True)")


def _parameters(params: Any) -> list[Any]:
    """Return the tensors among what an optimizer is given: tensors, groups of them, or either with its name."""
    found = []
    for item in params:
        if isinstance(item, dict):
            if not isinstance(item["params"], (list, tuple)) and not hasattr(item["params"], "device"):
                item["params"] = list(item["params"])
            group = item["params"]
            found += [group] if hasattr(group, "device") else _parameters(group)
        else:
            found.append(item[1] if isinstance(item, tuple) else item)
    return found


def _has_fused_form(parameter: Any) -> bool:
    return parameter.device.type in ("cpu", "cuda", "xpu", "mps") and parameter.is_floating_point()


def _loader(
    runtime: Runtime,
    module: Any,
    switches: dict[str, str],
    original: Callable[..., None],
    bound: inspect.BoundArguments,
) -> None:
    import multiprocessing

    given, changed = bound.arguments, {}
    # Each worker of an iterable dataset gives all of it, and a worker of a loader can have none itself.
    divisible = not isinstance(given.get("dataset"), module.IterableDataset)
    divisible = divisible and not given.get("num_workers") and not multiprocessing.current_process().daemon
    if "loader_workers" in switches and divisible:
        changed["num_workers"] = int(switches["loader_workers"])
    if "pin_memory" in switches and not given.get("pin_memory") and module.torch.cuda.is_available():
        changed["pin_memory"] = True
    _call(original, bound, **changed)
    if changed:
        words = ", ".join(f"{name}={value}" for name, value in changed.items())
        runtime.note("info", f"{NOTED}DataLoader({words})")


def _unchecked(
    runtime: Runtime, strategy: str, original: Callable[..., None], bound: inspect.BoundArguments
) -> None:
    if bound.arguments.get("nan_strategy", "error") not in ("error", "warn", "ignore"):
        _call(original, bound)
        return
    try:
        _call(original, bound, nan_strategy=strategy)
    except ValueError:  # an older version
        _call(original, bound)
    else:
        runtime.note("info", f'{NOTED}{type(bound.arguments["self"]).__name__}(nan_strategy="{strategy}")')
