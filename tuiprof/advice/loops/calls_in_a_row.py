"""A model is called several times in a row, on inputs that one call could take as a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.calls import Calls
from tuiprof.analyses.shared.model_calls import SAME, ModelCalls, model_calls
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.whatif import EditRange

#: Calls in a row: guidance with and without a condition needs two, and one with another condition three. In longer
#: rows, each call may need the result of the one before. Minimum number of rows in a step.
MAX_IN_A_ROW, MIN_ROWS = 4, 2
#: Kernels longer than this on average use the device so well that a batch takes as many times as long, ns.
SHORT_NS: Final = 15_000
#: Share of the further calls' device work that remains, of short kernels: likely, least and most helpful. As for other
#: work that is done for all items at once.
_KEEP: Final = (0.3, 1.0, 0.1)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for calls without gradients between which nothing is computed."""
    calls, models = evidence.calls, model_calls(evidence.calls)
    rows_of_calls = [row for row in _in_a_row(calls, models) if 2 <= len(row) <= MAX_IN_A_ROW]
    if len(rows_of_calls) < MIN_ROWS * evidence.step_count:
        return
    further = np.isin(models.of_call, np.concatenate([row[1:] for row in rows_of_calls]))
    if calls.work_ns[further].sum() >= SHORT_NS * calls.work_count[further].sum():
        return
    first = rows_of_calls[0]
    name, often = models.names[first[0]][1].partition(" ")[0], len(rows_of_calls) / evidence.step_count
    times = max(len(row) for row in rows_of_calls)
    often_in_a_row = "twice" if times == 2 else f"{times} times"
    event = int(calls.rows[np.argmax(further)])
    yield Finding(
        f"a model ({name}) is called {often_in_a_row} in a row, {often:.0f} times a step, and its kernels are short",
        evidence.function_of(int(models.rows[first[0]])),
        "call it once on all of these inputs (torch.cat them, and .chunk() the result), as guidance with and without a "
        "condition allows",
        "medium",
        "nothing is computed between these calls, which have no gradients, so they hardly need each other's results",
        *EditRange(*(calls.edit(further, 0.0, part) for part in _KEEP)),
        event=event,
    )


def _in_a_row(calls: Calls, models: ModelCalls) -> Iterator[Ints]:
    """Yield the calls of one model without gradients that follow each other with no device work in between."""
    tracks = calls.trace.track_codes[models.rows]
    for track in np.unique(tracks):
        inside = models.of_call[(calls.work_count > 0) & (calls.tracks == track)]
        row: list[int] = []
        # Calls of models in order, and -1 for what is computed outside of them.
        for index in inside[np.append(True, inside[1:] != inside[:-1])[: len(inside)]].tolist():
            name = models.names[index] if index >= 0 else None
            if row and (name is None or name[1] != models.names[row[-1]][1]):
                yield np.array(row)
                row = []
            # A call on the same inputs has a rule of its own.
            if name is not None and name[2] and name[3] != SAME:
                row.append(index)
        if row:
            yield np.array(row)


RULE = AdviceRule("calls-in-a-row", find, shown_by="kernel_launches")
