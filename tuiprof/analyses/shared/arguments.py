"""Arguments of operators: shapes and types of tensors, and other values, as PyTorch's profiler records them.

On a GPU, the profiler slows the host down to record them. So the probe records them in one more step, of which nothing
else is known, and they are those of the operators that come at the same place in the captured steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.model.trace import cached_on_trace

#: Operators that are read where some tell of all.
ASKED: Final = 50
#: If so many operators at the beginning of a file have no shapes, none has.
_FIRST: Final = 200
#: Nodes of the backward pass never have any; their thread may come first in the file.
_NODE: Final = "^autograd::engine::"


class Arguments(msgspec.Struct):
    """Arguments of an operator as Kineto writes them; untrusted, of any type."""

    dims: list[Any] = msgspec.field(name="Input Dims", default_factory=list)  # shape of each that is a tensor
    types: list[str] = msgspec.field(name="Input type", default_factory=list)  # type of each
    #: Strides of each that is a tensor.
    strides: list[Any] = msgspec.field(name="Input Strides", default_factory=list)
    values: list[str] = msgspec.field(name="Concrete Inputs", default_factory=list)  # values of the others


class _Event(msgspec.Struct):
    args: Arguments = msgspec.field(default_factory=Arguments)


_decode: Final = msgspec.json.Decoder(_Event).decode


def arguments(trace: Trace, rows: Ints) -> Iterator[tuple[int, Arguments]]:
    """Yield operators that have shapes in the trace, or in the step beside it, as rows, with their arguments."""
    if trace.shapes_step is None:
        if has_shapes(trace):
            yield from _recorded(trace, rows)
        return
    operators = trace.operators()
    rows = rows[np.isin(rows, operators)]
    there = _counterparts(trace)[np.searchsorted(operators, rows)]
    rows, there = rows[there >= 0], there[there >= 0]
    # Several captured steps have the same counterpart.
    known = dict(_recorded(trace.shapes_step, np.unique(there)))
    for row, counterpart in zip(rows.tolist(), there.tolist(), strict=True):
        if (given := known.get(counterpart)) is not None:
            yield row, given


def _recorded(trace: Trace, rows: Ints) -> Iterator[tuple[int, Arguments]]:
    """Yield the operators among rows that have shapes in a trace, with their arguments."""
    for row in _in_file_order(trace, rows).tolist():
        try:
            given = _decode(trace.raw_event(row)).args
        except (msgspec.MsgspecError, RecursionError):
            continue
        if given.dims:
            yield row, given


@cached_on_trace
def has_shapes(trace: Trace) -> bool:
    """Return whether the trace has the shapes of operators, or a step beside it has."""
    if trace.shapes_step is not None:
        return True
    return any(True for _ in _recorded(trace, _in_file_order(trace, trace.operators())[:_FIRST]))


def _in_file_order(trace: Trace, rows: Ints) -> Ints:
    """Return operators in the order of the file, whose parts are decompressed in turn; nodes are left out."""
    rows = rows[~trace.named(_NODE, rows)]
    return rows[np.argsort(trace.ints("ordinal", rows), kind="stable")]


# -- the step beside the trace ---------------------------------------------------------------------------

#: Operators in a step that are compared one by one where they differ; more of them have no counterparts.
_COMPARED: Final = 400


@cached_on_trace
def _counterparts(trace: Trace) -> Ints:
    """Return the row in the step beside the trace for each of the trace's operators; -1 = it has none there."""
    beside = trace.shapes_step
    operators = trace.operators()
    found = np.full(len(operators), -1, dtype=np.int64)
    if beside is None:
        return found
    rows = beside.operators()
    code_of = {name: code for code, name in enumerate(trace.names)}
    codes = np.array([code_of.get(name, -1) for name in beside.names], dtype=np.int64)[
        beside.name_codes[rows]
    ]
    mine = trace.name_codes[operators].astype(np.int64)
    # What only one of them records, such as ranges of the probe, does not count.
    rows, codes = rows[np.isin(codes, mine)], codes[np.isin(codes, mine)]
    shared = np.isin(mine, codes)
    threads, tracks = beside.track_codes[rows], trace.track_codes[operators]
    steps = trace.steps.step_of[operators]
    for thread in np.unique(threads).tolist():
        there = threads == thread
        track = _track_of(trace, beside, thread)
        for step in range(len(trace.steps)):
            here = np.flatnonzero(shared & (steps == step) & (tracks == track))
            at = aligned(mine[here], codes[there])
            found[here] = np.where(at >= 0, np.append(rows[there], -1)[at], -1)
    return found


def _track_of(trace: Trace, beside: Trace, thread: int) -> int:
    """Return the track of a thread of the step beside the trace in the trace; -1 = it has none."""
    wanted = beside.tracks[thread]
    return next(
        (at for at, track in enumerate(trace.tracks) if (track.pid, track.tid) == (wanted.pid, wanted.tid)),
        -1,
    )


def aligned(one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> Ints:
    """Return for each word of a sequence where it is in another one with the same words in order; -1 = not there.

    The sequences are equal but for one part at most, in which they are compared word by word if it is short.
    """
    found = np.full(len(one), -1, dtype=np.int64)
    length = min(len(one), len(other))
    begin = int(np.argmin(np.append(one[:length] == other[:length], False)))
    rest = length - begin
    end = int(np.argmin(np.append(one[::-1][:rest] == other[::-1][:rest], False)))
    found[:begin] = np.arange(begin)
    found[len(one) - end :] = np.arange(len(other) - end, len(other))
    middle, among = one[begin : len(one) - end].tolist(), other[begin : len(other) - end].tolist()
    if max(len(middle), len(among)) <= _COMPARED:
        for block in SequenceMatcher(None, middle, among, autojunk=False).get_matching_blocks():
            at = begin + np.arange(block.size)
            found[at + block.a] = at + block.b
    return found
