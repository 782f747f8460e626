"""A program of XLA waits for copies between the device's memory and another one, such as the host's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.model import Trace
from tuiprof.model.units import format_rough_share, plural
from tuiprof.whatif import Edit, EditRange

#: The operation that ends when an asynchronous copy has; what computes meanwhile comes before it.
_DONE: Final = r"^(async-)?copy-done(\.|$)"
#: Minimum share of the time of the threads of operations that have such waits.
MIN_SHARE: Final = 0.05
#: Share of the waits that remains: likely, least and most helpful.
_KEEP: Final = (0.2, 0.6, 0.0)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for waits for copies that no computation hides."""
    if not evidence.is_jax:
        return
    work = trace.device_work
    waits = work[trace.named(_DONE, work)]
    beside = work[np.isin(trace.track_codes[work], np.unique(trace.track_codes[waits]))]
    share = float(trace.lengths(waits).sum()) / max(float(trace.lengths(beside).sum()), 1.0)
    if not len(waits) or share < MIN_SHARE:
        return
    edits = EditRange(*(Edit.of_work(waits, keep) for keep in _KEEP))
    longest = trace.longest(waits)
    names = len(np.unique(trace.name_codes[waits]))
    yield Finding(
        f"for {format_rough_share(share)} of its time the device waits for copies from or to another memory, which no "
        "computation hides",
        trace.name(longest) + (f" and {plural(names - 1, 'other')}" if names > 1 else ""),
        "keep these arrays in the device's memory: fewer arrays in pinned_host memory (offloaded parameters, optimizer "
        "state, activations), or smaller ones, so that computation hides their copies",
        "medium",
        "XLA's copy-done operations, which last until the copy has arrived",
        *edits,
        event=longest,
    )


RULE = AdviceRule("awaited-copies", find)
