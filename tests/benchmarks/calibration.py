"""What this machine makes of a trace without tuiprof, so that figures of two machines can be compared.

Run as a program it prints its result::

    python -m tests.benchmarks.calibration TRACE.json
"""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path

import msgspec

#: What the machine on which the goals were set takes: msgspec alone, MB/s on one core.
GOALS_MSGSPEC_MB_S = 450.0
#: Above this size the standard library's decoder takes too much time and memory to be asked, bytes.
_JSON_AT_MOST = 300e6


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str | None = None
    name: str | int | float | None = None
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: float | str | None = None
    dur: float | str | None = None
    args: msgspec.Raw = msgspec.Raw()


class _File(msgspec.Struct):
    traceEvents: list[_Event]  # noqa: N815 - the format's word


def calibrate(path: Path) -> dict[str, float]:
    """Time decoders that keep one object an event, arguments undecoded, on one core.

    Args:
        path: A trace that is an object with ``traceEvents``, plain.

    Returns:
        ``msgspec``, and ``json`` where the file is small enough for it: processor seconds.
    """
    data = path.read_bytes()
    taken: dict[str, float] = {}
    gc.disable()
    began = time.process_time()
    msgspec.json.decode(data, type=_File)
    taken["msgspec"] = time.process_time() - began
    if len(data) <= _JSON_AT_MOST:
        began = time.process_time()
        json.loads(data)
        taken["json"] = time.process_time() - began
    gc.enable()
    return taken


def main() -> None:
    """Print the result for the file that is named."""
    print("RESULT", json.dumps(calibrate(Path(sys.argv[1]))))


if __name__ == "__main__":
    main()
