"""Pickles of plain values, read without running anything that is in them.

PyTorch writes allocator snapshots and Flight Recorder dumps with pickle, which can call any function when it is read.
These files need dicts, lists, strings and numbers alone, so every class or function that a pickle names is refused.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any, Final

from tuiprof.errors import TraceError
from tuiprof.model.units import format_bytes

#: Beyond this a file is not read: its objects would take many times that.
MOST_BYTES: Final = 2 << 30
#: What a pickle of protocol 2 or newer begins with, whatever is in it.
_PROTO: Final = b"\x80"


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it refers to {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to an object outside of it")


def is_pickle(path: Path) -> bool:
    """Return whether a file begins as a pickle does."""
    try:
        with open(path, "rb") as file:
            start = file.read(2)
    except OSError:
        return False
    return start[:1] == _PROTO and 2 <= start[1] <= pickle.HIGHEST_PROTOCOL if len(start) == 2 else False


def load_plain(path: Path) -> Any:
    """Read a pickle of dicts, lists, tuples, strings, bytes, numbers and None.

    Raises:
        TraceError: It cannot be read, is cut off, or holds anything else.
    """
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise TraceError(
                f"{path} is too large to read: {format_bytes(size)}",
                "record less history: torch.cuda.memory._record_memory_history(max_entries=…)",
            )
        return loads_plain(path.read_bytes())
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror or error}") from error
    except pickle.UnpicklingError as error:
        raise TraceError(
            f"{path} is not a pickle of plain values: {error}",
            "allocator snapshots and Flight Recorder dumps contain only these; other pickles are never loaded, as "
            "loading could execute code",
        ) from error


def loads_plain(data: bytes) -> Any:
    """Read a pickle of plain values from memory.

    Raises:
        pickle.UnpicklingError: It is damaged, or holds anything else.
    """
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except pickle.UnpicklingError:
        raise
    except RecursionError as error:
        raise pickle.UnpicklingError("it is nested too deeply") from error
    except MemoryError as error:
        raise pickle.UnpicklingError("it declares more data than fits into memory") from error
    except Exception as error:
        raise pickle.UnpicklingError(f"it is damaged: {type(error).__name__}: {error}") from error
