"""A stretch of a trace as a picture: lanes of named ranges, and of how busy something was from left to right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["steps", "ranges", "busy", "calls", "waits", "idle"]


@dataclass(frozen=True, slots=True)
class Range:
    """A named stretch.

    Attributes:
        start: Where it begins, as a share of the picture.
        end: Where it ends.
        label: Its name; untrusted.
        dur_ns: How long it takes.
    """

    start: float
    end: float
    label: str
    dur_ns: int


@dataclass(frozen=True, slots=True)
class Lane:
    """One line of a picture.

    Attributes:
        label: What it is of.
        kind: ``steps`` and ``ranges`` have names; of the others ``shares`` says how much of each column is ``busy``,
            spent in launch ``calls``, in ``waits`` of the host for the device, or ``idle``.
        ranges: The named stretches, in order; they do not overlap.
        shares: How much of each column, 0 to 1; all lanes have as many columns.
    """

    label: str
    kind: Kind
    ranges: tuple[Range, ...] = ()
    shares: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Picture:
    """A stretch of a trace.

    Attributes:
        title: Which stretch.
        dur_ns: How long it is.
        lanes: From the top down.
    """

    title: str
    dur_ns: int
    lanes: tuple[Lane, ...]
