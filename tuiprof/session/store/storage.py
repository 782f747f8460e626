"""Reports what of a run could not be stored, and whether the disk has free space."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import msgspec

from tuiprof.model.units import format_bytes
from tuiprof.system.files import read_small_json

if TYPE_CHECKING:
    from tuiprof.session.store.folders import Session

#: With less free space than this, nothing is recorded: file systems keep some for themselves.
LEAST_FREE_BYTES: Final = 16 << 10


class Counts(msgspec.Struct, frozen=True):
    """``control/output.json``: output that is not in the files; written only when one of these figures changes.

    Attributes:
        lost: Bytes of standard output and of standard error that could not be stored.
        waiting: Bytes of each held in memory because they cannot be stored at the moment.
        why: Why they cannot be stored; empty = nothing is held back.
        why_lost: Why the last of the lost bytes could not be stored.
    """

    lost: tuple[int, int] = (0, 0)
    waiting: tuple[int, int] = (0, 0)
    why: str = ""
    why_lost: str = ""


def read_counts(session: Session) -> Counts:
    """Return how much of a script's output is lost or waiting."""
    return read_small_json(session.control / "output.json", Counts) or Counts()


def lost_output(session: Session) -> str:
    """Return how much of what a script printed could not be stored, and why; empty = all is."""
    counts = read_counts(session)
    lost = sum(counts.lost)
    return f"{format_bytes(lost)} of the output lost ({counts.why_lost})" if lost else ""


def trouble(session: Session) -> str:
    """Return why a running script is not recorded at the moment; empty = it is."""
    counts = read_counts(session)
    if counts.why:
        return f"{counts.why}: {_kept(counts)}; the script keeps running ({session.path})"
    try:
        disk = os.statvfs(session.path)
    except FileNotFoundError:
        return f"the session was deleted: nothing more is recorded; the script keeps running ({session.path})"
    except OSError:  # a mount that does not answer: nothing is known
        return ""
    # A file system without a size, such as some network ones, has no blocks.
    if disk.f_blocks and disk.f_bavail * disk.f_frsize < LEAST_FREE_BYTES:
        return f"no space left: nothing more is recorded; the script keeps running ({session.path})"
    return ""


def _kept(counts: Counts) -> str:
    said = f"{format_bytes(sum(counts.waiting))} of output is held in memory"
    lost = sum(counts.lost)
    return f"{said}, {format_bytes(lost)} is lost" if lost else said
