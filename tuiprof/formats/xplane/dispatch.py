"""Which call of the host handed over what XLA then ran on the CPU, behind the call and on other threads.

An operator carries its program and the number of the run, but no call carries either. The runs of a program are
numbered in the order of the calls (``PjitFunction(step)`` runs ``jit_step``); where there are as many calls as runs,
and none runs before its call, the n-th run is that of the n-th call.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt

from tuiprof.formats.arrange import order_of
from tuiprof.formats.xplane.columns import Named, dense
from tuiprof.formats.xplane.space import Space
from tuiprof.model.nesting import nest

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: A call of a compiled function; within it the program is handed over, unless it is only being traced.
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
    """Return the calls that handed a program over, in order of start, by the program's name; the innermost of nested
    ones.
    """
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
    """Return operators whose call is known, and the call of each."""
    program, run = stats.ints("program_id")[ops], stats.ints("run_id")[ops]
    ids, of_program = dense(program + 1)
    any_op = np.zeros(len(ids), dtype=np.int64)
    any_op[of_program] = ops
    modules = [plain(str(space.event_values(op).get("hlo_module"))) for op in any_op.tolist()]
    works, made_by = [ops[:0]], [ops[:0]]
    for identity, module in enumerate(modules):
        if modules.count(module) > 1 or module not in calls:
            continue  # of two programs of one name nobody knows which call runs which
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
