"""Runs at the start of every Python of a tuiprof run; its folder is on PYTHONPATH.

It first runs the user's own ``sitecustomize``, as Python would without it, and then loads the probe package from its
file location under the private name ``_tuiprof_probe``, so that nothing needs to be installed in this environment.
Nothing is recorded yet: the probe only watches for a framework's import.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # without the import, which would double the start-up time of every Python
if TYPE_CHECKING:
    from typing import Any


def _entries_after_ours(here: str) -> list[str]:
    """Return the entries of ``sys.path`` other than this folder."""
    return [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]


def _run_users_own(here: str) -> None:
    """Run the ``sitecustomize`` that this one hides, under its own name; its errors are Python's to report."""
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec("sitecustomize", _entries_after_ours(here))
    if spec is None or spec.loader is None:
        return
    module: Any = type(sys)("sitecustomize")
    module.__spec__ = spec
    module.__loader__ = spec.loader
    module.__file__ = spec.origin
    module.__cached__ = spec.cached
    module.__package__ = spec.parent
    if spec.submodule_search_locations is not None:
        module.__path__ = spec.submodule_search_locations
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _load_probe(here: str) -> None:
    """Put the probe package into ``sys.modules`` and let it watch for frameworks."""
    from importlib.machinery import ModuleSpec, SourceFileLoader

    name = "_tuiprof_probe"
    folder = os.path.dirname(here)
    path = os.path.join(folder, "__init__.py")
    loader = SourceFileLoader(name, path)
    spec = ModuleSpec(name, loader, origin=path, is_package=True)
    spec.submodule_search_locations = [folder]
    package: Any = type(sys)(name)
    package.__spec__ = spec
    package.__loader__ = loader
    package.__file__ = path
    package.__package__ = name
    package.__path__ = [folder]
    sys.modules[name] = package
    loader.exec_module(package)
    from importlib import import_module

    import_module(f"{name}.imports").watch()


def _main() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    try:
        _run_users_own(here)
    finally:
        if os.environ.get("TUIPROF_SESSION") and "_tuiprof_probe" not in sys.modules:
            try:
                _load_probe(here)
            except Exception as error:
                # A failure of the probe must not affect the script.
                sys.modules.pop("_tuiprof_probe", None)
                sys.stderr.write(f"tuiprof: the probe could not be loaded: {error!r}\n")


_main()
