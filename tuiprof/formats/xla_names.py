"""What the names of XLA's profiler say, in an XSpace and in the JSON that is made of one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

#: Name of the line of a GPU stream: its number, and the kinds of what it holds.
STREAM: Final = re.compile(r"^Stream #(\d+)(?:\((.*)\))?$")


def framework(names: Iterable[str], lines: Iterable[str]) -> str:
    """Return the framework that was profiled, by events that only it writes; empty = unknown."""
    jax = False
    for name in names:
        if name.startswith("SyncTensorsGraph") or "PjRtComputationClient::" in name:
            return "PyTorch/XLA"
        jax = jax or name.startswith("PjitFunction(")
    if any(line.startswith(("TensorFlow ", "tf_data")) for line in lines):
        return "TensorFlow"
    return "JAX" if jax else ""


def of_stream(name: str, line: str, details: str) -> str:
    """Return the category of an event on a GPU stream."""
    kinds = (STREAM.match(line) or [None, None, None])[2] or ""
    words, categories = (details, name, kinds), ("memcpy", "memset", "kernel")
    return next((found for word in words for found in categories if word.lower().startswith(found)), "kernel")
