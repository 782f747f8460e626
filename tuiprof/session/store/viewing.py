"""Cost of watching a run: each screen that did leaves a small file in the session's ``views`` folder."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from pathlib import Path

import msgspec

from tuiprof.errors import SessionError
from tuiprof.system.files import read_small_json, write_inside


class Viewing(msgspec.Struct, frozen=True):
    """One screen that watched a running script.

    Attributes:
        unix_ns: End, Unix ns.
        wall_s: Duration.
        cpu_s: CPU time of the screen's process in that time.
        host: Machine of the screen: one on another machine costs the run nothing.
    """

    unix_ns: int
    wall_s: float
    cpu_s: float
    host: str


def store_viewing(session: Path, wall_s: float, cpu_s: float) -> None:
    """Store the cost of watching a run; does nothing where the session cannot be written."""
    viewing = Viewing(time.time_ns(), wall_s, cpu_s, platform.node())
    folder = session / "views"
    with contextlib.suppress(OSError, SessionError):
        folder.mkdir(exist_ok=True)
        write_inside(folder, f"{viewing.unix_ns}-{os.getpid()}.json", msgspec.json.encode(viewing))


def viewings(session: Path) -> list[Viewing]:
    """Return the cost of each screen that has watched a run, oldest first."""
    found = (read_small_json(path, Viewing) for path in sorted((session / "views").glob("*.json")))
    return [viewing for viewing in found if viewing is not None]
