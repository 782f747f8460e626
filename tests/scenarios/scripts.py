"""The shipped scripts as modules. A folder of the same name holds their parts, and is what ``import`` would find."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from tuiprof.resources import shipped

SCENARIOS = shipped("scenarios")
#: Top-level packages of the scripts: what several use, and the parts of each.
PACKAGES = ("common", *(path.parent.name for path in SCENARIOS.glob("*/__init__.py")))


def load(name: str) -> ModuleType:
    """Return a script as a module of its own, whose main part is not run; ``scenarios`` must be on the path."""
    spec = importlib.util.spec_from_file_location(f"{name}_script", SCENARIOS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def forget(before: set[str]) -> None:
    """Drop the modules of the scripts that were not imported before."""
    for name in set(sys.modules) - before:
        if name.split(".")[0] in PACKAGES or name.endswith("_script"):
            del sys.modules[name]
