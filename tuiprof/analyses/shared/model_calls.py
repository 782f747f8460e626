"""The calls of models that the probe marks in captures, and what runs in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from tuiprof.analyses.shared.calls import Calls, index_of_outer
from tuiprof.model.intervals import Ints

#: Ranges that the probe puts around each call of a model: class, number of the object, whether it has gradients, and
#: whether the step has called it before, with the same weights and inputs or with the same largest input.
MODEL_CALL: Final = r"^(\w+ #\d+)(, no gradients)?(, same inputs|, same largest input)?$"
SAME, SAME_LARGEST = ", same inputs", ", same largest input"


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
    trace = calls.trace
    rows = trace.host_events(MODEL_CALL)
    names = [match for row in rows.tolist() if (match := re.match(MODEL_CALL, trace.name(row)))]
    return ModelCalls(rows, names, index_of_outer(trace, rows, calls.rows))
