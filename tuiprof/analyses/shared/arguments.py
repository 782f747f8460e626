"""What operators were called with, where a trace was recorded with shapes.

That lies in the raw text of each event, so it is read for the few that are asked about.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np

from tuiprof.model import Trace
from tuiprof.model.intervals import Ints

#: If so many operators have no shapes, none has.
ASKED: Final = 50


class Arguments(msgspec.Struct):
    """An operator's arguments as Kineto writes them; untrusted, and of any type."""

    dims: list[Any] = msgspec.field(name="Input Dims", default_factory=list)  # shape of each that is a tensor
    types: list[str] = msgspec.field(name="Input type", default_factory=list)  # type of each
    #: Strides of each that is a tensor.
    strides: list[Any] = msgspec.field(name="Input Strides", default_factory=list)
    values: list[Any] = msgspec.field(name="Concrete Inputs", default_factory=list)  # what the others are


class _Event(msgspec.Struct):
    args: Arguments = msgspec.field(default_factory=Arguments)


def arguments(trace: Trace, rows: Ints) -> Iterator[tuple[int, Arguments]]:
    """Yield operators that have shapes in the trace, as rows, with their arguments."""
    # In the order of the file, whose parts are unpacked one after the other.
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
