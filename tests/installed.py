"""Packages that are not installed, or not before they are used."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest


def needs(package: str) -> None:
    """Skip the test or module that calls this where a package is not installed.

    Unlike ``pytest.importorskip`` it does not import it: most such tests start programs that do, and an import of
    PyTorch takes more than a second in each worker.
    """
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)


def lazily(package: str) -> Any:
    """Return a package that is imported when something in it is first used; skip as :func:`needs` does.

    Each worker imports all test modules, and few of them run the tests of one.
    """
    needs(package)
    return _Lazily(package)


class _Lazily:
    def __init__(self, package: str) -> None:
        self._package = package

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_pytest", "__")):  # asked of everything in a module of tests
            raise AttributeError(name)
        return getattr(import_module(self._package), name)
