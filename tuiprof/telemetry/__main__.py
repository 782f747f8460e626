"""``python -m tuiprof.telemetry [SAMPLES]``: what is found on this machine and some readings, as JSON lines."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from typing import Any

from tuiprof.telemetry import Absent, backends

PERIOD_S = 0.5


def main(samples: int) -> None:
    """Print devices, reasons of absent backends, and readings with the time each took."""
    sources = {}
    for name, backend in backends().items():
        source = backend.open(os.getpid())
        if isinstance(source, Absent):
            _print(backend=name, absent=source.reason, remedy=source.remedy)
            continue
        sources[name] = source
        for device in source.devices():
            _print(backend=name, device=asdict(device))
    for _ in range(samples):
        time.sleep(PERIOD_S)
        for name, source in sources.items():
            start = time.perf_counter()
            readings = source.sample()
            took_ms = (time.perf_counter() - start) * 1e3
            for reading in readings:
                _print(backend=name, took_ms=round(took_ms, 2), **asdict(reading))
    for source in sources.values():
        source.close()


def _print(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
