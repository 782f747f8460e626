"""A compiled program copies arguments before it updates them in place, because its caller keeps them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.compiled.dataflow import FORMS, Flow, size_of
from tuiprof.analyses.shared.compiled.instructions import carried_out, source_of
from tuiprof.model import Trace
from tuiprof.model.programs import Instruction, Program
from tuiprof.model.units import format_bytes, format_rough_share, plural
from tuiprof.whatif import Edit

#: Instructions whose result is their first operand with a part of it replaced.
_UPDATES: Final = ("dynamic-update-slice", "scatter")
#: How the compiler names an argument: ``cache[0]['k']``, ``state.mu``.
_ARGUMENT: Final = re.compile(r"[A-Za-z_]\w*")
#: Names of positional arguments without a name of their own.
_UNNAMED: Final = ("args", "kwargs")


@dataclass(frozen=True, slots=True)
class _Copied:
    """An argument that is copied, and what updates the copy."""

    parameter: Instruction
    copy: Instruction
    update: Instruction


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for arguments that a program copies, updates in place and returns."""
    if not trace.device_indices:
        return
    done = carried_out(trace)
    for program in done.programs:
        rows_of = done.rows_of(program)
        found = [one for one in _copied(program) if one.copy.name in rows_of]
        if not found:
            continue
        rows = np.sort(np.concatenate([rows_of[one.copy.name] for one in found]))
        size = sum(one.copy.elements * size_of(one.copy.dtype) for one in found)
        longest = max(found, key=lambda one: int(trace.lengths(rows_of[one.copy.name]).sum()))
        names = _names(found)
        of = f" of {', '.join(names)}" if names else ""
        yield Finding(
            f"each call of jit({_function(program)}) copies {plural(len(found), 'array')}{of} ({format_bytes(size)}) "
            f"only to update a part: {format_rough_share(evidence.share_of_device_time(rows))} of device time",
            source_of(longest.update),
            f"donate what the caller replaces by the result: jax.jit({_function(program)}, {_option(names)}); the "
            "arrays that were given cannot be used after the call",
            "high",
            "the compiled program: it copies arguments that it updates in place and returns, and reads them no more",
            Edit.of_work(rows),
            event=int(trace.longest(rows_of[longest.copy.name])),
        )


def _copied(program: Program) -> Iterator[_Copied]:
    """Yield the arguments of a program that it copies only because its caller keeps them."""
    entry = program.computations.get(program.entry)
    if entry is None or entry.root not in entry.instructions:
        return
    flow = Flow(program, entry)
    when = {at: turn for turn, at in enumerate(flow.nodes)}
    root = flow.same(entry.root)
    seen = set[int]()
    for result in flow.inputs[root] if flow.nodes[root].opcode == "tuple" else (root,):
        one = _behind(flow, result)
        if one is None or one.copy.id in seen:
            continue
        seen.add(one.copy.id)
        # What reads the argument later needs the copy.
        others = {*flow.users.get(one.parameter.id, ())} - {one.update.id}
        if one.parameter.id in entry.instructions and all(when[at] < when[one.update.id] for at in others):
            yield one


def _behind(flow: Flow, at: int) -> _Copied | None:
    """Return the argument of which a result is an updated copy; None = it is something else."""
    update: Instruction | None = None
    while True:
        one, inputs = flow.nodes[at], flow.inputs[at]
        source = flow.nodes[flow.same(at)]
        if one.opcode == "copy" and update is not None and source.opcode == "parameter":
            whole = (one.shape, one.dtype) == (source.shape, source.dtype)
            return _Copied(source, one, update) if whole else None
        if one.opcode in _UPDATES and inputs:
            update, at = one, inputs[0]
        elif one.opcode == "get-tuple-element" and inputs and flow.nodes[inputs[0]].opcode == "while":
            update = flow.nodes[inputs[0]]
            given = [flow.same(each) for each in flow.inputs[update.id]]
            carried = flow.inputs[given[0]] if given and flow.nodes[given[0]].opcode == "tuple" else ()
            if not 0 <= one.index < len(carried):
                return None
            at = carried[one.index]
        elif one.opcode in FORMS and len(inputs) == 1:
            at = inputs[0]
        else:
            return None


def _function(program: Program) -> str:
    return program.name.removeprefix("jit_")


def _names(found: list[_Copied]) -> list[str]:
    """Return the arguments' names in the function's signature, in order."""
    matches = [
        _ARGUMENT.match(one.parameter.op_name) for one in sorted(found, key=lambda one: one.parameter.index)
    ]
    return list(dict.fromkeys(match[0] for match in matches if match is not None))


def _option(names: list[str]) -> str:
    if not names or any(name in _UNNAMED for name in names):
        return "donate_argnums=…"
    return f"donate_argnames={names[0]!r}" if len(names) == 1 else f"donate_argnames={tuple(names)!r}"


RULE = AdviceRule("copied-arguments", find)
