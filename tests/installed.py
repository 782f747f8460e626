"""Skipping tests of packages that are not installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(package: str) -> None:
    """Skip the test or module that calls this where a package is not installed.

    Unlike ``pytest.importorskip`` it does not import it: most such tests start programs that do, and an import of
    PyTorch takes more than a second in each worker.
    """
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)
