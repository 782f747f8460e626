"""Other processes that run a module of tuiprof's own."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of tuiprof in this interpreter.

    The working directory, which may be anybody's, is no place to import from (``-P``).
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def module_environment() -> dict[str, str]:
    """Return the environment for it: tuiprof may run from a checkout that is not installed."""
    path = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
