"""The trace contains first uses of kernels and libraries, which take up to seconds and do not come again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.stretches import MIN_FIRST_USE, MIN_NS, first_uses, long_stretches
from tuiprof.analyses.shared.frames import operator_label
from tuiprof.model import Trace
from tuiprof.model.units import format_ns, format_rough_share, plural

_NAMED: Final = 3


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for calls that are long once, on an idle device."""
    which, share = first_uses(trace)
    if share < MIN_FIRST_USE or evidence.is_jax:
        return
    found = long_stretches(trace)
    rows, lengths = found.inside[which], (found.ends - found.starts)[which]
    total = Counter[str]()
    for row, ns in zip(rows.tolist(), lengths.tolist(), strict=True):
        total[operator_label(trace.name(row))] += ns
    names = [name for name, _ in total.most_common(_NAMED)]
    longest = int(rows[np.argmax(lengths)])
    call = int(evidence.calls.inside(np.array([longest]))[0])
    around = operator_label(evidence.calls.names[call]) if call >= 0 else operator_label(trace.name(longest))
    yield Finding(
        f"first uses of kernels and libraries take {format_ns(float(lengths.sum()))}, {format_rough_share(share)} of "
        f"the {'steps' if evidence.stepped else 'trace'}, so these are not steady-state figures: {', '.join(names)}",
        evidence.function_of(longest) or f"longest in {around}",
        "run some steps before recording: wait and warmup of torch.profiler.schedule, or tuiprof record --capture 4@20",
        "medium",
        f"{plural(len(rows), 'call')} of {format_ns(MIN_NS)} and more on an idle device, "
        f"{'each ' if len(rows) > 1 else ''}the first of its kind",
        None,
        event=longest,
    )


RULE = AdviceRule("first-use", find, shown_by="device_idle")
