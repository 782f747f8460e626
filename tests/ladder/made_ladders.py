"""Ladders written by hand, for tests that measure nothing."""

from __future__ import annotations

import time
from typing import Any

from tuiprof.ladder.state import LadderMeta, Rung


def ladder_meta(*rungs: Rung, **fields: Any) -> LadderMeta:
    """Return a ladder planned just now; its first variant is the baseline."""
    known = {
        "v": 1, "ladder": "toy", "title": "toys", "source": "", "script": "toy.py", "digest": "",
        "baseline": rungs[0].name, "preset": "fit", "steps": None, "rounds": 1, "python": "python", "host": "here",
        "machine": "1 toy", "cwd": "/", "unix_ns": time.time_ns(),
    }  # fmt: skip
    return LadderMeta(**(known | fields), rungs=rungs)
