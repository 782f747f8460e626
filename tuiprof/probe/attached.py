"""The probe in a process that was already running: hooks existing objects, and can undo all of it.

When launched with the script, the probe sees the creation of every optimizer. Here they already exist: their classes
are wrapped through the same hook that PyTorch calls for a new one, and a learning rate scheduler, which keeps the
optimizer's original function, gets the wrapped one.

Detaching restores every wrapped function: any attribute of a framework's module or class that is defined in this
folder is replaced by the function it wraps.
"""

from __future__ import annotations

import atexit
import gc
import sys
from time import monotonic, sleep
from types import CellType, FunctionType
from typing import Any

from . import imports
from .isolation import OWN_FILES
from .runtime import RUNTIME

_FRAMEWORKS = frozenset(name.partition(".")[0] for name in imports.WATCHED) | {"jaxlib"}
_CAPTURE_S = 60.0  # wait for a running capture first

#: Changes besides attributes: closure cells, and their original contents.
_cells: list[tuple[CellType, Any]] = []


def enter() -> dict[str, Any]:
    """Start watching; return the frameworks found, and the number of optimizers."""
    imports.watch()
    torch = sys.modules.get("torch")
    optimizers = _hook_optimizers(torch) if torch is not None else 0
    found = [name for name in ("torch", "torch_xla", "jax") if name in sys.modules]
    return {"frameworks": found, "optimizers": optimizers}


def _hook_optimizers(torch: Any) -> int:
    """Wrap the steps of optimizers that exist; return how many there are."""
    kind = torch.optim.Optimizer
    found = [it for it in gc.get_objects() if issubclass(type(it), kind)]
    for optimizer in found:
        before = type(optimizer).step
        optimizer._patch_step_function()
        own = vars(optimizer).get("step")
        if own is not None:
            _point_to(own, before, type(optimizer).step)
    return len(found)


def _point_to(function: Any, before: Any, now: Any, depth: int = 4) -> None:
    """Make a closure over an optimizer's step call the current function."""
    if before is now:
        # Hooked for an optimizer of the same class: what it wraps is what a scheduler closes over.
        before = getattr(now, "__wrapped__", None)
    for cell in getattr(function, "__closure__", None) or ():
        try:
            holds = cell.cell_contents
        except ValueError:  # empty
            continue
        if holds is before:
            _cells.append((cell, holds))
            cell.cell_contents = now
        elif isinstance(holds, FunctionType) and depth:
            _point_to(holds, before, now, depth - 1)  # a wrapper around a wrapper


def leave() -> list[str]:
    """Stop watching, and restore everything; return what could not be restored (it is inactive)."""
    deadline = monotonic() + _CAPTURE_S
    while RUNTIME.capture.disturbing and monotonic() < deadline:
        sleep(0.02)
    sys.meta_path[:] = [finder for finder in sys.meta_path if not _is_ours(type(finder))]
    for cell, held in _cells:
        cell.cell_contents = held
    _cells.clear()
    for undo in RUNTIME.black_box.undo:
        undo()
    left = _restore()
    atexit.unregister(RUNTIME._exit)
    RUNTIME.detach()
    return left


def _restore() -> list[str]:
    """Restore the functions wrapped by the probe, in every module and class of a framework."""
    left: list[str] = []
    for owner in _owners():
        for name, value in list(vars(owner).items()):
            if name == "_tuiprof":
                delattr(owner, name)
            elif type(value) is FunctionType and _is_ours(value):
                original = _unwrapped(name, value)
                if original is None:
                    left.append(f"{owner.__name__}.{name}")
                elif isinstance(owner, type) and _inherits(owner, name, original):
                    delattr(owner, name)
                else:
                    setattr(owner, name, original)
    return left


def _owners() -> list[Any]:
    """Return the modules of frameworks, their classes, and the classes of the script's optimizers and models."""
    modules = [
        module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in _FRAMEWORKS and isinstance(module, type(sys))
    ]
    classes: dict[int, Any] = {}
    for module in modules:
        for value in list(vars(module).values()):
            if issubclass(type(value), type):  # not isinstance(), which runs code of proxies
                classes[id(value)] = value
    torch = sys.modules.get("torch")
    # A torch that is still being imported, or something else of that name, may lack them.
    bases = (getattr(torch, "optim", None), "Optimizer"), (getattr(torch, "nn", None), "Module")
    waiting = [kind for module, name in bases if isinstance(kind := getattr(module, name, None), type)]
    while waiting:
        kind = waiting.pop()
        classes[id(kind)] = kind
        waiting += type.__subclasses__(kind)
    return [*modules, *classes.values()]


def _is_ours(value: Any) -> bool:
    """Whether a function or class was written in the probe's folder."""
    if isinstance(value, type):
        return value.__module__.startswith(f"{__package__}.")
    return bool(value.__code__.co_filename.startswith(OWN_FILES))


def _unwrapped(name: str, function: Any) -> Any:
    """Return the function that a function of the probe replaces; None = unknown."""
    while isinstance(function, FunctionType) and _is_ours(function):
        inner = getattr(function, "__wrapped__", None)
        if inner is None:
            held = [cell.cell_contents for cell in function.__closure__ or ()]
            named = [it for it in held if getattr(it, "__name__", None) == name]
            inner = named[0] if len(named) == 1 else None
        function = inner
    return function


def _inherits(owner: type, name: str, original: Any) -> bool:
    return any(vars(base).get(name) is original for base in owner.__mro__[1:])
