"""Which event of one trace is which of another: the same name, in the same step, as often into it."""

from __future__ import annotations

import numpy as np

from tuiprof.model.intervals import Ints
from tuiprof.model.trace import Trace


def counterpart(trace: Trace, row: int, other: Trace) -> int | None:
    """Return the row of the event in another trace that does the same work.

    Steps are counted from the first that each trace holds. Where an event is in no step, or a trace has none, the
    whole trace is taken for one step.

    Returns:
        Its row there; None = there is none so far into that step.
    """
    name = trace.name(row)
    try:
        code = other.names.index(name)
    except ValueError:
        return None
    category = int(trace.category_codes[row])
    step = int(trace.steps.step_of[row])
    stepped = step >= 0 and len(other.steps) > 0
    if stepped and step >= len(other.steps):
        return None
    mine = _alike(trace, int(trace.name_codes[row]), category, step if stepped else None)
    theirs = _alike(other, code, category, step if stepped else None)
    position = int(np.searchsorted(mine, row))
    return int(theirs[position]) if position < len(theirs) else None


def _alike(trace: Trace, name: int, category: int, step: int | None) -> Ints:
    """Return the rows of events of one name and category, in order of start."""
    alike = (trace.name_codes == name) & (trace.category_codes == category)
    if step is not None:
        alike &= trace.steps.step_of == step
    return np.flatnonzero(alike).astype(np.int64)


def shift_between(before: Trace, after: Trace) -> int:
    """Return by how many ns an instant of the second trace is later than the same moment of the first.

    The begins of their first steps are the same moment; without steps the begins of the traces are.
    """

    def begin(trace: Trace) -> int:
        return int(trace.steps.starts[0]) if len(trace.steps) else trace.span[0]

    return begin(after) - begin(before)
