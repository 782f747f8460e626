"""An optimizer has about one parameter group for each parameter, and updates one group after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.kernels.single_tensor_optimizer import MIN_OPTIMIZERS, steps_in_a_row
from tuiprof.analyses.shared.calls import ACCUMULATE, index_of_outer
from tuiprof.model import Trace
from tuiprof.model.intervals import Floats, Ints
from tuiprof.model.units import format_count
from tuiprof.whatif import EditRange

#: Operators that update all parameters of a group at once.
_OF_GROUP: Final = r"^aten::_(fused|foreach)_"
MIN_GROUPS: Final = 8
#: Parameters in a group, on average, at most: a group for each module has two of a layer with a bias.
_MAX_PARAMETERS: Final = 2
#: Parameters in a group that remains: rates that differ from layer to layer, each with and without decay, need a group
#: for 7 parameters of a transformer. Likely and least helpful; where it helps most, a few groups remain.
_PARAMETERS: Final = (7, 4)
_FEW: Final = 2
#: Host time of a parameter in terms of that of a group. Measured on a CPU with Adam and SGD, fused and foreach, and
#: 1 to 198 groups of 198 parameters: 0.17 to 0.39.
_OF_PARAMETER: Final = (0.3, 0.4, 0.17)
#: Operators that a group may need of one name, as the largest number of one.
_MAX_OF_NAME: Final = 3


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for updates with as many passes over a group as the backward pass has gradients."""
    updates, calls = evidence.updates, evidence.calls
    if not len(updates.rows) or steps_in_a_row(evidence, updates.rows) >= MIN_OPTIMIZERS:
        return
    passes = np.flatnonzero(trace.named(_OF_GROUP, calls.rows) & updates.hold(calls.rows))
    update = index_of_outer(trace, updates.rows, calls.rows[passes])
    groups = max((_groups(calls.codes[passes[update == one]]) for one in np.unique(update)), default=0)
    if groups < MIN_GROUPS:
        return
    stored = trace.named(ACCUMULATE, calls.rows)
    parameters = max((int(stored[nodes].sum()) for nodes in calls.backward_passes()), default=0)
    if not groups <= parameters <= _MAX_PARAMETERS * groups:
        return
    work = trace.device_work[calls.launched_by(calls.mask(passes))]
    remaining = [max(parameters / each, _FEW) for each in _PARAMETERS] + [float(_FEW)]
    yield Finding(
        f"the optimizer updates {format_count(groups)} groups one by one, for {format_count(parameters)} parameters",
        trace.name(int(updates.rows[0])),
        "one group for all parameters with the same options (rate, decay), instead of one for each parameter",
        "high",
        "Optimizer.step calls its operators again for each group, about as often as the backward pass has gradients",
        *EditRange(
            *(
                replace(
                    evidence.without_updates((share * parameters + few) / (share * parameters + groups), 1.0),
                    work=work,
                    keep=_merged(trace, work, few / groups),
                )
                for share, few in zip(_OF_PARAMETER, remaining, strict=True)
            )
        ),
        event=int(calls.rows[passes[0]]),
    )


def _groups(codes: Ints) -> int:
    """Return the number of groups of an update, by the names of its operators: some are called twice for each."""
    counts = np.unique(codes, return_counts=True)[1]
    return int(counts[counts * _MAX_OF_NAME >= counts.max()].min())


def _merged(trace: Trace, work: Ints, part: float) -> Floats:
    """Return the share of kernels that remains if what the shortest of a name takes is spent a ``part`` as often."""
    lengths, codes = trace.lengths(work).astype(np.float64), trace.name_codes[work]
    shortest = np.full(len(trace.names), np.inf)
    np.minimum.at(shortest, codes, lengths)
    fixed = shortest[codes] / np.maximum(lengths, 1)
    return 1 - fixed * (1 - min(part, 1.0))


RULE = AdviceRule("optimizer-groups", find)
