"""Where the programs of AWS Neuron are."""

from __future__ import annotations

import shutil
from typing import Final

_TOOLS: Final = "/opt/aws/neuron/bin"  # where aws-neuronx-tools puts them, often outside PATH


def find_tool(name: str) -> str | None:
    """Return the path of a Neuron tool.

    Args:
        name: For example ``"neuron-monitor"``.
    """
    return shutil.which(name) or shutil.which(name, path=_TOOLS)
