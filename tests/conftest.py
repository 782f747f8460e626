"""Fixtures that several rooms share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference material beside the checkout; a clone elsewhere has none."""
    path = Path(__file__).resolve().parents[2] / "shared"
    if not path.is_dir():
        pytest.skip("the folder shared/ is not beside this checkout")
    return path
