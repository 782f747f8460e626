"""Links in an XSpace: host waits, launches and their programs, and the clocks of host and TPU."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tuiprof.formats.event_table import order_of
from tuiprof.formats.xplane.columns import Named, dense
from tuiprof.formats.xplane.space import Space
from tuiprof.model.nesting import nest

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
    """Return the value of the interval around each instant; -1 = none."""
    if not len(starts):
        return np.full(len(at), -1, dtype=np.int64)
    order = np.argsort(starts, kind="stable")
    index = np.searchsorted(starts[order], at, side="right") - 1
    found = order[np.maximum(index, 0)]
    covered = (index >= 0) & (at < ends[found])
    return np.where(covered, values[found], -1)


@dataclass(frozen=True, slots=True)
class Shift:
    """Offset of a device's clock from the host's."""

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


Mask = npt.NDArray[np.bool_]

#: A call of a compiled function, which submits the program, unless it is only being traced.
_CALL: Final = re.compile(r"^PjitFunction\((.*)\)$")
_EXECUTE: Final = re.compile(r"Executable::Execute")
_MODULE: Final = "jit_"


def handed_over(
    names: list[str],
    host: Mask,
    name: npt.NDArray[np.integer],
    line: npt.NDArray[np.integer],
    start: Ints,
    end: Ints,
) -> dict[str, Ints]:
    """Return the innermost calls that submitted a program, in order of start, by the program's name."""
    program = {code: plain(match[1]) for code, text in enumerate(names) if (match := _CALL.match(text))}
    executes = np.fromiter((_EXECUTE.search(text) is not None for text in names), bool, len(names))
    either = executes.copy()
    either[list(program)] = True
    rows = np.flatnonzero(host & either[name])
    rows = rows[order_of(start[rows], end[rows] - start[rows])]
    is_execute = executes[name[rows]]
    parent = nest(start[rows], end[rows], line[rows].astype(np.int64)).parent
    at = parent[is_execute]
    while len(at) and (climb := (at >= 0) & is_execute[np.maximum(at, 0)]).any():
        at = np.where(climb, parent[np.maximum(at, 0)], at)
    calls = rows[np.unique(at[at >= 0])]
    found: dict[str, list[int]] = {}
    for call, code in zip(calls.tolist(), name[calls].tolist(), strict=True):
        found.setdefault(program[code], []).append(call)
    return {key: np.array(value, dtype=np.int64) for key, value in found.items()}


def match_programs(
    space: Space, stats: Named, ops: Ints, start: Ints, calls: dict[str, Ints]
) -> tuple[Ints, Ints]:
    """Return operators that XLA ran on the CPU, behind the call and on other threads, and the call of each, where
    known.

    An operator carries its program and the number of the run, but no call carries either. The runs of a program are
    numbered in the order of the calls (``PjitFunction(step)`` runs ``jit_step``); where there are as many calls as
    runs, and none runs before its call, the n-th run is that of the n-th call.
    """
    program, run = stats.ints("program_id")[ops], stats.ints("run_id")[ops]
    ids, of_program = dense(program + 1)
    any_op = np.zeros(len(ids), dtype=np.int64)
    any_op[of_program] = ops
    modules = [plain(str(space.event_values(op).get("hlo_module"))) for op in any_op.tolist()]
    works, made_by = [ops[:0]], [ops[:0]]
    for identity, module in enumerate(modules):
        if modules.count(module) > 1 or module not in calls:
            continue  # calls cannot be matched to two programs of one name
        mine = np.flatnonzero(of_program == identity)
        rows = ops[mine]
        of_call = match_runs(run[mine], start[rows], start[calls[module]])
        if len(of_call):
            works.append(rows)
            made_by.append(calls[module][of_call])
    return np.concatenate(works), np.concatenate(made_by)


def match_runs(run: Ints, start: Ints, call_starts: Ints) -> Ints:
    """Return for each operator of a program which of the program's calls made it run; empty = unknown."""
    numbers, of_run = dense(run - run.min())
    first = np.full(len(numbers), np.iinfo(np.int64).max)
    np.minimum.at(first, of_run, start)
    if len(numbers) != len(call_starts) or (first < call_starts).any():
        return np.empty(0, dtype=np.int64)
    return of_run


def plain(name: str) -> str:
    """Return a function's name as XLA writes it into a program's, without ``jit_`` and underscores at its ends."""
    return re.sub(r"\W+", "_", name.removeprefix(_MODULE)).strip("_")
