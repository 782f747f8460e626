"""Collectives that this process has entered, from PyTorch's Flight Recorder.

The recorder keeps the last collectives of each process group in memory. NCCL's is read first, else the one of the
other backends (PyTorch 2.9 and newer); as JSON where this PyTorch can give that (2.5), else as a pickle of plain
values. Nothing is enabled here: the script's environment configures the recorder.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ..guest.own_file import OwnFile

FOLDER = "stacks"  # in the session
_MOST_BYTES = 32 << 20
#: NCCL's recorder first; the second one is that of gloo.
_DUMPS = (
    ("_dump_nccl_trace_json", ".json"),
    ("_dump_nccl_trace", ".pickle"),
    ("_dump_fr_trace_json", ".json"),
    ("_dump_fr_trace", ".pickle"),
)


def dump(session: str, name: str) -> str:
    """Write the contents of the recorder into the session.

    Returns:
        The file, relative to the session; empty = there is no process group, or no recorder.

    Raises:
        OSError: It cannot be written.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return ""
    data, ending = _read(sys.modules.get("torch._C._distributed_c10d"))
    if not data or len(data) > _MOST_BYTES:
        return ""
    os.makedirs(os.path.join(session, FOLDER), exist_ok=True)
    path = f"{FOLDER}/{name}.flight{ending}"
    file = OwnFile(os.path.join(session, path))
    try:
        file.append(data)
    finally:
        file.close()
    return path


def _read(module: Any) -> tuple[bytes, str]:
    """Return the first dump that holds a collective, else the first one there is, and the ending of its file."""
    first = b"", ""
    read: set[str] = set()
    for name, ending in _DUMPS:
        kind = name.replace("_json", "")
        function = getattr(module, name, None)
        if function is None or kind in read:
            continue
        read.add(kind)
        data = function()
        data = data.encode() if isinstance(data, str) else bytes(data)
        if b"profiling_name" in data:
            return data, ending
        first = first if first[0] else (data, ending)
    return first
