"""What watching a run cost: each screen that watched it leaves a small file in the session's ``views`` folder."""

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
    """One screen that watched a run while it went on.

    Attributes:
        unix_ns: When it stopped watching.
        wall_s: How long it watched.
        cpu_s: CPU time of the screen's process meanwhile.
        host: Where it ran: a screen elsewhere costs the run nothing.
    """

    unix_ns: int
    wall_s: float
    cpu_s: float
    host: str


def store_viewing(session: Path, wall_s: float, cpu_s: float) -> None:
    """Store what watching a run cost; a session that cannot be written stays as it is."""
    viewing = Viewing(time.time_ns(), wall_s, cpu_s, platform.node())
    folder = session / "views"
    with contextlib.suppress(OSError, SessionError):
        folder.mkdir(exist_ok=True)
        write_inside(folder, f"{viewing.unix_ns}-{os.getpid()}.json", msgspec.json.encode(viewing))


def viewings(session: Path) -> list[Viewing]:
    """Return what watching a run cost so far, the oldest first."""
    found = (read_small_json(path, Viewing) for path in sorted((session / "views").glob("*.json")))
    return [viewing for viewing in found if viewing is not None]
