"""A written-out cross entropy: the logarithm of a softmax, each a pass over all classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.model import Trace
from tuiprof.whatif import Edit

#: Operators allowed between the two: they keep the logarithm finite, or cost nothing.
_BETWEEN: Final = (
    *("aten::add", "aten::add_", "aten::clamp", "aten::clamp_", "aten::clamp_min", "aten::clip"),
    *("aten::view", "aten::reshape", "aten::flatten", "aten::transpose", "aten::squeeze", "aten::to"),
)
#: Maximum number of operators from the softmax to the logarithm.
_LONGEST: Final = 9


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for a logarithm applied to the result of a softmax."""
    calls = evidence.calls
    names = calls.names
    saved, softmaxes = [], []
    for first in np.flatnonzero(trace.named(r"^aten::_?softmax$", calls.rows)).tolist():
        mine = calls.after(first, _LONGEST)
        after = next((index for index in mine.tolist() if names[index] not in _BETWEEN), first)
        if names[after] == "aten::log":
            saved.append(mine[mine <= after])
            softmaxes.append(first)
    if not softmaxes:
        return
    # The gradient of a softmax is a product and a sum over the classes, that of its logarithm only the sum.
    softmax = calls.mask(softmaxes)
    gradient = calls.with_backward(softmax) & ~softmax
    extra = trace.device_work[calls.launched_by(gradient) & calls.works_of("elementwise")]
    yield Finding(
        f"cross entropy is computed as the logarithm of a softmax, {evidence.how_often(len(softmaxes))}",
        evidence.function_of(int(calls.rows[softmaxes[0]])),
        "F.cross_entropy(logits, target), or F.log_softmax, which is also exact where a probability is near 0",
        "high",
        "softmax and log are separate passes over every class, forward and backward",
        calls.edit(calls.with_backward(calls.mask(*saved))) | Edit.of_work(extra),
        event=int(calls.rows[softmaxes[0]]),
    )


RULE = AdviceRule("log-of-softmax", find)
