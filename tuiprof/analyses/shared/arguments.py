"""Arguments of operators, in traces recorded with shapes.

They are in the raw text of each event, so they are read only for the requested operators.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np

from tuiprof.model import Trace
from tuiprof.model.intervals import Ints

#: If this many operators have no shapes, none has.
ASKED: Final = 50


class Arguments(msgspec.Struct):
    """Arguments of an operator as Kineto writes them; untrusted, of any type."""

    dims: list[Any] = msgspec.field(name="Input Dims", default_factory=list)  # shape of each that is a tensor
    types: list[str] = msgspec.field(name="Input type", default_factory=list)  # type of each
    #: Strides of each that is a tensor.
    strides: list[Any] = msgspec.field(name="Input Strides", default_factory=list)
    values: list[Any] = msgspec.field(name="Concrete Inputs", default_factory=list)  # values of the others


class _Event(msgspec.Struct):
    args: Arguments = msgspec.field(default_factory=Arguments)


def arguments(trace: Trace, rows: Ints) -> Iterator[tuple[int, Arguments]]:
    """Yield operators that have shapes in the trace, as rows, with their arguments."""
    # In file order, as its parts are decompressed sequentially.
    rows = rows[np.argsort(trace.ints("ordinal", rows), kind="stable")]
    known = False
    for asked, row in enumerate(rows.tolist()):
        if asked == ASKED and not known:
            return
        try:
            given = msgspec.json.decode(trace.raw_event(row), type=_Event).args
        except (msgspec.MsgspecError, RecursionError):
            continue
        if given.dims:
            known = True
            yield row, given
