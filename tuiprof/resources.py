"""Where the shipped scenarios and sample traces lie: in the wheel, or at the top of a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def shipped(folder: str) -> Path:
    """Return the folder of shipped ``"scenarios"`` or ``"traces"``.

    An installed wheel carries a copy inside the package, a checkout has it beside the package.
    """
    installed = _PACKAGE / "_shipped" / folder
    return installed if installed.is_dir() else _PACKAGE.parent / folder
