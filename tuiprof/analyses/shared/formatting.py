"""Tensors on a device that are formatted as text: by print, str, repr or in an f-string (torch/_tensor_str.py)."""

from __future__ import annotations

from typing import Final

import numpy as np

from tuiprof.analyses.shared.calls import Calls, calls
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints, Mask
from tuiprof.model.trace import cached_on_trace

#: Operators in a row that find the numbers on which the width of a column depends.
_LOOKS: Final = tuple(f"aten::{name}" for name in ("isfinite", "ne", "__and__", "masked_select", "abs"))
#: Operators before them: views, and those that join the edges of a tensor that is too large to be shown whole.
_VIEWS, _JOINS = r"^aten::(select|slice|reshape)$", r"^aten::(cat|stack)$"
#: Operators after them, until the last number is read.
_AFTER: Final = (
    r"^aten::(reshape|abs|to|min|max|unbind|ceil|ne|is_nonzero|div|gt|lt|detach|item|select|slice|resolve_conj|"
    r"resolve_neg)$"
)
_READS: Final = r"^aten::(is_nonzero|item)$"
#: ``tolist()`` copies the numbers right after this operator.
_BEFORE_LIST: Final = r"^aten::resolve_neg$"


@cached_on_trace
def formatted(trace: Trace) -> list[Ints]:
    """Return the calls that format each such tensor of floating-point numbers, as indices.

    Tensors of whole numbers need no such operators.
    """
    if not set(_LOOKS) <= set(trace.names):
        return []
    found, every = list[Ints](), calls(trace)
    for track in np.unique(every.tracks).tolist():
        mine = np.flatnonzero(every.tracks == track)
        found += [mine[low:high] for low, high in _on_thread(every, mine)]
    return found


def _on_thread(every: Calls, mine: Ints) -> list[tuple[int, int]]:
    def where(pattern: str) -> Mask:
        return every.trace.named(pattern, every.rows[mine])

    names = every.trace.names
    words = every.codes[mine]
    first = np.flatnonzero(words == names.index(_LOOKS[0]))
    first = first[first + len(_LOOKS) <= len(mine)]
    for at, name in enumerate(_LOOKS):
        first = first[words[first + at] == names.index(name)]
    first = first[every.work_count[mine[first]] > 0]
    joins, reads = where(_JOINS), where(_READS)
    reads[1:] |= where(_BEFORE_LIST)[:-1]
    others_before, others_after = (np.flatnonzero(~mask) for mask in (where(_VIEWS) | joins, where(_AFTER)))
    found = list[tuple[int, int]]()
    for low in first.tolist():
        at = int(np.searchsorted(others_before, low))
        begin = int(others_before[at - 1]) + 1 if at else 0
        if not joins[begin:low].any():
            begin = max(begin, low - 1)
        at = int(np.searchsorted(others_after, low + len(_LOOKS)))
        until = int(others_after[at]) if at < len(others_after) else len(mine)
        last = low + np.flatnonzero(reads[low:until]).max(initial=len(_LOOKS) - 1)
        found.append((begin, int(last) + 1))
    return found
