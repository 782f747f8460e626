"""The calls of models that the probe marks in captures, and what runs in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from tuiprof.analyses.shared.calls import Calls, index_of_outer
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints

#: Ranges that the probe puts around each call of a model: class, number of the object, whether it has gradients, and
#: whether the step has called it before, with the same weights and inputs or with the same largest input, or whether
#: its last call with gradients had the same inputs, in the same mode (``train()``, ``eval()``) or in another one.
MODEL_CALL: Final = (
    r"^(\w+ #\d+)(, no gradients)?"
    r"(, same inputs|, same largest input|, inputs trained on(?: in another mode)?)?$"
)
SAME, SAME_LARGEST, TRAINED = ", same inputs", ", same largest input", ", inputs trained on"
IN_ANOTHER_MODE: Final = f"{TRAINED} in another mode"
#: Ranges around the calls of modules that the step before has called again on the same tensors, with the line of the
#: call; none is inside of one on the same inputs.
PART_CALL: Final = MODEL_CALL.removesuffix("$") + r", at (.+)$"
#: Range in which the probe compares the inputs of such a call.
PROBE_RANGE: Final = r"^tuiprof\.inputs$"

#: Range without length before a call without gradients whose input is longer by one than that of the call before: its
#: length, and how many inputs of that length there are.
LONGER: Final = r"^tuiprof\.longer (\d+)x(\d+)$"


@dataclass(frozen=True)
class ModelCalls:
    """Marked calls of models, which do not overlap."""

    rows: Ints
    names: list[re.Match[str]]  # of each, as :data:`MODEL_CALL` matches it
    of_call: Ints  # the call of a model that each framework call lies in, as an index; -1 = none

    def split(self, chosen: Ints) -> list[Ints]:
        """Return which of some framework calls lie in each call of a model."""
        order = np.argsort(self.of_call[chosen], kind="stable")
        edges = np.searchsorted(self.of_call[chosen][order], np.arange(len(self.rows) + 1))
        return np.split(chosen[order], edges)[1:-1]


def model_calls(calls: Calls) -> ModelCalls:
    """Return the marked calls of models."""
    rows, names = _marked(calls.trace, MODEL_CALL)
    return ModelCalls(rows, names, index_of_outer(calls.trace, rows, calls.rows))


def longer_calls(trace: Trace, models: ModelCalls) -> dict[int, tuple[int, int]]:
    """Return the calls on an input that is longer by one, as indices, with its length and how many there are."""
    rows, names = _marked(trace, LONGER)
    starts = trace.starts[models.rows]
    order = np.argsort(starts, kind="stable")
    found = {}
    for row, name in zip(rows.tolist(), names, strict=True):
        later = order[np.searchsorted(starts[order], trace.ends[row]) :]
        mine = later[trace.track_codes[models.rows[later]] == trace.track_codes[row]]
        if len(mine):
            found[int(mine[0])] = int(name[1]), int(name[2])
    return found


def part_calls(trace: Trace) -> tuple[Ints, list[re.Match[str]]]:
    """Return the marked calls of modules, and the name of each, as :data:`PART_CALL` matches it."""
    return _marked(trace, PART_CALL)


def _marked(trace: Trace, pattern: str) -> tuple[Ints, list[re.Match[str]]]:
    rows = trace.host_events(pattern)
    return rows, [match for row in rows.tolist() if (match := re.match(pattern, trace.name(row)))]
