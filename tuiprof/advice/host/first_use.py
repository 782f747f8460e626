"""The trace contains first uses of kernels and libraries: the run has just begun, or sizes are new."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, Literal

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.frames import operator_label
from tuiprof.analyses.shared.replay import MIN_LAST, warm_up
from tuiprof.analyses.shared.stretches import (
    IN_MOST,
    MIN_FIRST_USE,
    MIN_NS,
    first_uses,
    long_stretches,
    new_sizes,
)
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.model.steps import Uncaptured
from tuiprof.model.units import format_ns, format_rough_share, plural
from tuiprof.whatif import Edit

_NAMED: Final = 3
#: In a run that is under way, first uses are those of new sizes if steps before the capture were as uneven: their 90th
#: percentile is at least this multiple of the median, or the median of the 10th percentile, and first uses take this
#: share of the difference in a step.
_UNEVEN: Final = 2.0
_MIN_EXPLAINED: Final = 0.5
#: Steps up to this multiple of the 10th percentile are short.
_SHORT: Final = 1.5
#: The time of first uses in the mean of all steps, as a multiple of that in the captured ones: likely, least and most.
#: The range is wide because a few captured steps may have none of the rare long steps, or most of them.
_OF_CAPTURED: Final = (1.0, 0.0, 2.0)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for calls that are long once, on an idle device."""
    which, share = first_uses(trace)
    if share < MIN_FIRST_USE or evidence.is_jax or warm_up(trace) is not None:  # which the trust line tells
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
    calls = f"{plural(len(rows), 'call')} of {format_ns(MIN_NS)} and more on an idle device"
    first = Finding(
        f"first uses of kernels and libraries take {format_ns(float(lengths.sum()))}, {format_rough_share(share)} of "
        f"the {'steps' if evidence.stepped else 'trace'}, so these are not steady-state figures: {', '.join(names)}",
        evidence.function_of(longest) or f"longest in {around}",
        "run some steps before recording: wait and warmup of torch.profiler.schedule, or tuiprof record --capture 4@20",
        "medium",
        f"{calls}, {'each ' if len(rows) > 1 else ''}the first of its kind",
        None,
        event=longest,
    )
    before = trace.uncaptured
    how_often = None if before is None else _how_often(trace, before, rows, lengths)
    if before is None or how_often is None:
        yield first
        return
    per_step = float(lengths.sum()) / evidence.step_count
    likely, least, most = (per_step * part for part in _OF_CAPTURED)
    rare = how_often == "rare"
    cudnn = any("cudnn_attention" in name for name in total)
    if how_often == "always":
        because = (
            f"{plural(len(rows), 'call')} of {format_ns(MIN_NS)} and more, each the first of its operator in a step, "
            "and the last steps of the run are as long as those before the capture"
        )
    else:
        because = (
            f"{calls}; before the capture, the shortest tenth of the steps took up to {format_ns(before.low_ns)}, "
            f"the median {format_ns(before.step_ns)}, the longest tenth {format_ns(before.high_ns)} and more"
        ) + ("; the saving is averaged over all steps" if rare else "")
    yield replace(
        first,
        what=f"kernels are prepared for new sizes, {format_ns(per_step)} a step: {', '.join(names)}",
        instead="pad batches, and tensors that grow with each token, to a few fixed sizes (such as multiples of 64), "
        "which are prepared once"
        + ("; or torch.backends.cuda.enable_cudnn_sdp(False), as cuDNN prepares each size" if cudnn else ""),
        because=because,
        edit=Edit() if rare else Edit.of_host(trace, rows),
        rare_ns=(likely, least, most) if rare else (0.0, 0.0, 0.0),
    )


def _how_often(
    trace: Trace, before: Uncaptured, rows: Ints, lengths: Ints
) -> Literal["rare", "usual", "always"] | None:
    """Return how often such first uses make steps of the run take longer; None = only at its start, or unknown."""
    if _to_the_end(trace, before):
        return "always"
    if before.after_capture or not len(trace.steps):
        return None
    rare = before.high_ns >= _UNEVEN * before.step_ns
    longer_ns = before.high_ns - before.step_ns if rare else before.step_ns - before.low_ns
    if not rare:
        # While most sizes are new, most steps are long. Those of a warm-up come before all short ones.
        early = before.times_ns[: len(before.times_ns) // 2]
        if (
            before.step_ns < _UNEVEN * before.low_ns
            or min(early, default=before.step_ns) > _SHORT * before.low_ns
        ):
            return None
    in_a_step = np.bincount(trace.steps.step_of[rows], weights=lengths).max()
    if in_a_step < _MIN_EXPLAINED * longer_ns:
        return None
    return "rare" if rare else "usual"


def _to_the_end(trace: Trace, before: Uncaptured) -> bool:
    """Return whether most captured steps prepare kernels for new sizes, and the last steps of the run are as long."""
    found, new = long_stretches(trace), new_sizes(trace)
    after = before.last_ns or before.later_ns
    if before.after_capture or len(after) < MIN_LAST or not len(new):
        return False
    of_step, lengths = trace.steps.step_of[found.inside[new]], (found.ends - found.starts)[new]
    in_step = np.bincount(of_step, weights=lengths, minlength=len(trace.steps))
    still_ns = before.step_ns - (1 - _MIN_EXPLAINED) * float(np.median(in_step))
    return bool(np.mean(in_step > 0) >= IN_MOST and np.median(after) >= still_ns)


RULE = AdviceRule("first-use", find, shown_by="device_idle")
