"""Detects imports of frameworks, and provides ``import tuiprof`` where it is not installed.

Only :data:`WATCHED` names are handled; every other import costs one dictionary lookup. The real import runs untouched:
the framework's own loader gets an ``exec_module`` that calls us when it is done, so reloads and lazy loaders work as
ever and ``module.__loader__`` stays what it was.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader

from .steps import given_steps

TYPE_CHECKING = False  # without the import, which would double the start-up time of every Python
if TYPE_CHECKING:
    from typing import Any

# Module whose import is awaited -> module and function of the probe that hook it.
WATCHED = {
    "torch": "torch_hooks:install",
    "torch.utils.data.dataloader": "torch_hooks:install_loader",
    "torch._dynamo.eval_frame": "torch_hooks:install_compiled",
    "transformers.trainer": "trainer_hooks:install",
    "accelerate.accelerator": "trainer_hooks:install",
    "safetensors.torch": "trainer_hooks:install",
    "lightning.pytorch.strategies.strategy": "trainer_hooks:install",
    "lightning.pytorch.loops.evaluation_loop": "trainer_hooks:install",
    "lightning.pytorch.trainer.trainer": "trainer_hooks:install",
    "pytorch_lightning.strategies.strategy": "trainer_hooks:install",
    "pytorch_lightning.loops.evaluation_loop": "trainer_hooks:install",
    "pytorch_lightning.trainer.trainer": "trainer_hooks:install",
    "keras.src.callbacks.callback_list": "trainer_hooks:install_keras",
    "torch_xla": "xla_hooks:install_torch_xla",
    "jax.profiler": "xla_hooks:install_jax",
    "flax.nnx.transforms.compilation": "xla_hooks:install_jitted",
    "equinox._jit": "xla_hooks:install_jitted",
}
#: Set only in trials of ``tuiprof fix --try``: what they change, and where.
TRIAL = "TUIPROF_TRY"
TRIED = {"torchmetrics.aggregation": "trial_hooks:install"}
_FOLDER = os.path.dirname(os.path.abspath(__file__))


class FrameworkFinder:
    """First on ``sys.meta_path``: lets the others find a watched module and is notified when it has run."""

    def __init__(self) -> None:
        self._busy: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec the other finders give for a watched name, None for all others."""
        if name not in WATCHED or name in self._busy:
            return None
        self._busy.add(name)
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                spec = find(name, path, target) if find is not None and finder is not self else None
                if spec is not None:
                    _call_when_run(spec, name)
                    return spec  # type: ignore[no-any-return]
            return None
        finally:
            self._busy.discard(name)


class TuiprofFinder:
    """Last on ``sys.meta_path``: ``import tuiprof`` where it is not installed gives ``step`` and ``phase``."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of the light module for the name ``tuiprof`` only."""
        if name != "tuiprof":
            return None
        origin = os.path.join(_FOLDER, "api.py")
        spec = ModuleSpec(name, _LightLoader(name, origin), origin=origin)
        spec.has_location = True
        return spec


class _LightLoader(SourceFileLoader):
    """Loads ``api.py`` as ``tuiprof`` and adds the version."""

    def exec_module(self, module: Any) -> None:
        """Run the file."""
        super().exec_module(module)
        module.__version__ = _version()


def _version() -> str:
    """Return the version written in ``tuiprof/__init__.py``, which cannot be imported here."""
    with open(os.path.join(os.path.dirname(_FOLDER), "__init__.py"), encoding="utf-8") as file:
        for line in file:
            if line.startswith("__version__"):
                return line.split('"')[1]
    return "0"


def _call_when_run(spec: ModuleSpec, name: str) -> None:
    """Let the spec's loader tell :func:`_imported` once it has run the module."""
    loader: Any = spec.loader
    run = getattr(loader, "exec_module", None)
    if run is None:
        return

    def exec_module(module: Any) -> None:
        # The loader is as it was before the module's code can look at it.
        vars(loader).pop("exec_module", None)
        run(module)
        _imported(name, module)

    try:
        loader.exec_module = exec_module
    except AttributeError:  # a loader that takes no attributes: that framework stays without hooks
        return


def _imported(name: str, module: Any) -> None:
    """Install the hooks of a framework that has just been imported."""
    try:
        runtime = _runtime()
        runtime.install(WATCHED[name], module)
        if os.environ.get(TRIAL):
            runtime.install("trial_hooks:install", module)
    except Exception as error:  # the script's import must not fail because of us
        from .isolation import raised_by_signal_handler

        if raised_by_signal_handler(error):
            raise
        sys.stderr.write(f"tuiprof: steps cannot be detected with {name}: {error!r}\n")


def _runtime() -> Any:
    """Return the probe of this process, loaded when the script first needs it."""
    from .runtime import RUNTIME

    return RUNTIME


def watch() -> None:
    """Start watching; frameworks that are already there (a user's sitecustomize) are hooked at once."""
    given_steps.install(_runtime)
    if os.environ.get(TRIAL):
        WATCHED.update(TRIED)
    sys.meta_path.insert(0, FrameworkFinder())
    sys.meta_path.append(TuiprofFinder())
    for name in WATCHED:
        if name in sys.modules:
            _imported(name, sys.modules[name])
