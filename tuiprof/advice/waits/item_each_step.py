"""A value is read from the device in every step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.waits import values_read
from tuiprof.advice.waits.size_from_device import sizes_read
from tuiprof.advice.waits.values_read import LOOP
from tuiprof.analyses.shared.calls import Calls
from tuiprof.analyses.shared.formatting import formatted
from tuiprof.analyses.shared.waits import READ_KINDS
from tuiprof.analyses.sync_events import WaitLocation
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.whatif import Edit, EditRange, HostTime

#: Places that are named.
_NAMED: Final = 3
_LATER: Final = (
    "keep the value on the device and read it every N steps (sum on the device, one .item() when logging), or copy it "
    "to pinned memory with non_blocking=True and read it a step later"
)
_WITH_LOOPS: Final = ", one after the other, in a loop over these values"
_RARELY: Final = (
    "compute and log these values only every N steps, or only a few of them; or all at once: torch._foreach_norm for "
    "norms, torch.stack, and one .tolist()"
)
_HOW = {
    "bool": "a branch on a tensor (if, bool())",
    "equal": "a comparison of whole tensors (equal, allclose)",
}


def find(_trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for `.item()`-like reads in every step; those of metrics and of sizes have their own rules.

    Reads in one function are one finding: without the first of them, the next one waits instead.
    """
    if evidence.waits_of_formatting:
        yield _formatting(evidence, formatted(evidence.trace), evidence.waits_of_formatting)
    functions: dict[object, list[WaitLocation]] = {}
    for row in evidence.waits(*READ_KINDS):
        if "aggregation.py" in f"{row.where} {row.stack}" or len(sizes_read(evidence, row)):
            continue
        lines = (row.where.rpartition(":")[0], row.in_, row.called_from) if row.at_line else row.event
        functions.setdefault((row.kind, lines), []).append(row)
    for rows in functions.values():
        row = rows[0]
        others = sorted(int(other.where.rpartition(":")[2]) for other in rows[1:])
        reads, inside = Edit.all_of(map(evidence.without_reading, rows)), _calls_of(evidence, rows)
        around = values_read.stretches(evidence.calls, inside)
        yield Finding(
            f"{_HOW.get(row.kind, '.item(), float() or print')} reads a value from the device "
            f"{evidence.rhythm(*rows)}{_WITH_LOOPS if around else ''}",
            ", ".join((evidence.location(row), *(f":{line}" for line in others))),
            _RARELY if around else evidence.write("own-read" if evidence.is_own(row) else "logging", _LATER),
            "high" if row.at_line else "medium",
            f"{row.through} waits for the device",
            *(
                values_read.run_rarely(evidence.calls, around, reads)
                if around
                else EditRange(reads, reads, _without_loop(evidence, rows, inside) or reads)
            ),
            proof="metrics:naive,no-nan-check" if row.kind == "bool" else "",
            event=row.event,
        )


def _formatting(evidence: Evidence, tensors: list[Ints], rows: list[WaitLocation]) -> Finding:
    trace, calls = evidence.trace, evidence.calls
    first, last = (calls.rows[[int(tensor[end]) for tensor in tensors]] for end in (0, -1))
    between = HostTime(
        trace.track_codes[first].astype(np.int64), trace.starts[first], trace.ends[last], np.zeros(len(first))
    )
    places = list(dict.fromkeys(evidence.location(row) for row in rows))
    return Finding(
        f"tensors are formatted as text (print, an f-string), which reads from the device {evidence.rhythm(*rows)}",
        ", ".join(places[:_NAMED]) + (f" and {len(places) - _NAMED} more" if len(places) > _NAMED else ""),
        "format tensors only in messages that are written, every N steps: an f-string reads them even if the logger "
        "drops the message; for a single number, format .item()",
        "high",
        "PyTorch runs operators to find the width of the numbers (isfinite, masked_select), and reads the results",
        calls.edit(calls.mask(*tensors)) | Edit(host=between),
        event=rows[0].event,
    )


def _calls_of(evidence: Evidence, rows: list[WaitLocation]) -> Ints:
    inside = evidence.calls.inside(np.concatenate([evidence.calls_of(row) for row in rows]))
    return inside[inside >= 0]


def _without_loop(evidence: Evidence, rows: list[WaitLocation], inside: Ints) -> Edit | None:
    """Return the edit in which many reads of a step become one, including all calls between them."""
    if sum(row.per_step or 0 for row in rows) < LOOP:
        return None
    calls = evidence.calls
    chosen = []
    for step in np.unique(calls.steps[inside]):
        mine = inside[calls.steps[inside] == step]
        chosen.append(calls.between(int(mine.min()), _end_of_loop(calls, int(mine.max()))))
    return calls.edit(calls.mask(*chosen), 1 / LOOP, 1.0)


def _end_of_loop(calls: Calls, last: int) -> int:
    """Return the last call of a loop of one operator after a read, which processes the values."""
    same = (calls.tracks == calls.tracks[last]) & (calls.steps == calls.steps[last]) & (calls.work_count > 0)
    after = np.flatnonzero(same)
    after = after[after > last]
    count = 0
    while count < len(after) and calls.names[after[count]] == calls.names[after[0]]:
        count += 1
    return int(after[count - 1]) if count >= LOOP else last


RULE = AdviceRule("item-each-step", find, needs=("sync_events",))
