"""What belongs together in an XSpace: host waits, launches and their programs, and the clocks of host and TPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

_GENERIC: Final = 0  # type of flow that marks a wait's two ends


def pair_waits(rows: Ints, line: Ints, start: Ints, flow: dict[str, Ints]) -> tuple[Ints, Ints]:
    """Pair the marks of host waits: events that begin a wait, and events that end it.

    The runtime writes a wait as two short events of one name on one line: the first produces a generic flow (``_pt`` 0,
    ``_p`` id), the second consumes it (``_ct`` 0, ``_c`` id). The wait lasts from the start of the first to the end of
    the second; summing up their own lengths would say a few µs instead.
    """
    begins, ends = [], []
    open_waits: dict[tuple[int, int], int] = {}
    for row in rows[np.argsort(start[rows], kind="stable")].tolist():
        if (
            flow["_ct"][row] == _GENERIC
            and (begin := open_waits.pop((int(line[row]), int(flow["_c"][row])), None)) is not None
        ):
            begins.append(begin)
            ends.append(row)
        elif flow["_pt"][row] == _GENERIC:
            open_waits[int(line[row]), int(flow["_p"][row])] = row
    return np.array(begins, dtype=np.int64), np.array(ends, dtype=np.int64)


def number_runs(device: Ints, run: Ints, rows: Ints) -> Ints:
    """Number the (device, run id) of some rows from 1 on, which serves as correlation."""
    pairs = np.stack((device[rows], run[rows]), axis=1)
    _, inverse = np.unique(pairs, axis=0, return_inverse=True)
    return inverse.reshape(-1).astype(np.int64) + 1


def inside(starts: Ints, ends: Ints, values: Ints, at: Ints) -> Ints:
    """Return the value of the interval that each instant lies in; -1 where it lies in none."""
    if not len(starts):
        return np.full(len(at), -1, dtype=np.int64)
    order = np.argsort(starts, kind="stable")
    index = np.searchsorted(starts[order], at, side="right") - 1
    found = order[np.maximum(index, 0)]
    covered = (index >= 0) & (at < ends[found])
    return np.where(covered, values[found], -1)


@dataclass(frozen=True, slots=True)
class Shift:
    """How far a device's clock is off the host's."""

    device: int  # device index
    ps: int  # what to add to the device's times
    low_ps: int  # smallest shift with which no program starts before it was handed over
    #: Largest shift with which no program ends after the host heard of its end; below ``low_ps`` the two contradict
    #: each other.
    high_ps: int
    runs: int  # number of programs the bounds come from


def clock_shift(device: int, enqueued: Ints, started: Ints, ended: Ints, heard: Ints) -> Shift:
    """Estimate the shift of one device.

    The smallest shift is taken that lets every program start after it was handed over; where no shift is
    needed for that, none is made. Completion can be reported too early by some versions of libtpu, so it bounds
    the estimate but does not pull it.
    """
    low = int((enqueued - started).max()) if len(started) else 0
    high = int((heard - ended).min()) if len(ended) else low
    return Shift(device, max(0, low), low, high, len(started))
