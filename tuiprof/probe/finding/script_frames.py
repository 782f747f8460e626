"""Which frames of a stack are the script's own: not those of Python, of installed packages or of the probe."""

from __future__ import annotations

import os
import sys
from types import FrameType

_STDLIB = os.path.dirname(os.__file__) + os.sep
_PROBE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_known: dict[str, bool] = {}
_with_packages: dict[str, bool] = {}


def is_script(filename: str) -> bool:
    """Whether a code object's file belongs to the script."""
    known = _known.get(filename)
    if known is None:
        known = _known[filename] = _is_script(filename)
    return known


def is_probe(filename: str) -> bool:
    """Whether a code object's file belongs to the probe."""
    return filename.startswith(_PROBE)


def _is_script(filename: str) -> bool:
    if filename.startswith("<"):
        return False
    if filename == getattr(sys.modules.get("__main__"), "__file__", None):
        return True  # also one that runs as ``python -m package.train``
    path = os.path.abspath(filename)
    parts = path.split(os.sep)
    if "site-packages" in parts or "dist-packages" in parts:
        return False
    return not path.startswith((_STDLIB, _PROBE)) and not any(
        isinstance(folder, str)
        and folder
        and path.startswith(os.path.join(folder, ""))
        and _holds_packages(folder)
        for folder in sys.path
    )


def _holds_packages(folder: str) -> bool:
    """Whether pip installs into a folder: ``pip install --target FOLDER``, as on clusters."""
    known = _with_packages.get(folder)
    if known is None:
        try:
            known = any(name.endswith(".dist-info") for name in os.listdir(folder))
        except OSError:
            known = False
        _with_packages[folder] = known
    return known


def script_line(frame: FrameType | None) -> str:
    """Return ``file:line`` of the innermost frame of the script; empty = there is none.

    Args:
        frame: The innermost frame to look at.
    """
    while frame is not None:
        if is_script(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
