"""Waits at several places: without one of them the host waits at the next.

Where a framework's training loop calls a library that waits, that wait stays, and the host cannot run ahead of the
device: ending the others is worth what is left of it after other findings.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.levers import in_own_loop
from tuiprof.analyses.shared.frames import inside_script
from tuiprof.analyses.shared.replay import replayed
from tuiprof.analyses.shared.waits import COPY_KINDS, READ_KINDS
from tuiprof.analyses.sync_events import WaitLocation
from tuiprof.model import Trace
from tuiprof.model.units import plural
from tuiprof.whatif import Edit

#: Where removing them all saves this many times what removing those of any one place saves, they hide one another.
_MORE: Final = 2.0
#: So much of the step they have to save.
_MIN_SHARE: Final = 0.02
#: Places that are replayed one by one, and those that are named.
_PLACES: Final = 12
_NAMED: Final = 3
#: Levers of a training framework for its own waits, by their kinds.
_LEVERS: Final = {"pinned-batches": COPY_KINDS, "logging": READ_KINDS}


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for places whose waits save much together and little one by one."""
    step = replayed(trace)
    if isinstance(step, str):
        return
    places: dict[Hashable, list[WaitLocation]] = {}
    stay: list[WaitLocation] = []
    for row in evidence.waits():
        # What allocates has its own advice, and is needed as long as memory is short.
        if row.kind == "allocator":
            continue
        if _stays(evidence, row):
            stay.append(row)
        else:
            places.setdefault(_place(row), []).append(row)
    if len(places) < 2:
        return
    edits = {place: Edit.all_of(map(evidence.without_waiting, rows)) for place, rows in places.items()}
    every = Edit.all_of(edits.values())
    together_ns = step.likely_ns(every)
    if together_ns < _MIN_SHARE * step.step_ns:
        return
    longest = sorted(places, key=lambda place: -sum(row.blocked_ns for row in places[place]))
    if any(_MORE * step.likely_ns(edits[place]) > together_ns for place in longest[:_PLACES]):
        return
    rows = [places[place][0] for place in longest]
    names, staying = (list(dict.fromkeys(map(evidence.location, some))) for some in (rows, stay))
    all_rows = [row for found in places.values() for row in found]
    yield Finding(
        f"the host waits for the device at {plural(len(names), 'place')}, {evidence.rhythm(*all_rows)}: without one of "
        "these waits the next takes as long",
        _listed(names),
        "remove them all, not one: fixed shapes instead of masks and nonzero, values that stay on the device, and "
        "pinned copies with non_blocking=True; then the host "
        + (f"waits only in {_listed(staying)}" if stay else "runs ahead of the device")
        + "".join(f"; {written}" for written in _of_framework(evidence, all_rows)),
        "medium",
        "each of them saves less than half of what all of them save",
        every,
        remainder=bool(stay),
        event=rows[0].event,
    )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _of_framework(evidence: Evidence, rows: list[WaitLocation]) -> Iterator[str]:
    """Yield the arguments of the training framework that end those waits that are its own."""
    for lever in _LEVERS:
        if any(_ends(evidence, lever, row) for row in rows):
            yield evidence.write(lever, "")


def _ends(evidence: Evidence, lever: str, row: WaitLocation) -> bool:
    return bool(row.kind in _LEVERS[lever] and not evidence.is_own(row) and evidence.write(lever, ""))


def _stays(evidence: Evidence, row: WaitLocation) -> bool:
    """Return whether a wait is in a library, called by a framework's training loop, and no argument ends it."""
    if not row.called_from or any(_ends(evidence, lever, row) for lever in _LEVERS):
        return False
    return in_own_loop(inside_script(row.stack.splitlines()))


def _place(row: WaitLocation) -> Hashable:
    """Return what one change removes: the waits of one kind in one function, or in one operator where none is known."""
    if row.at_line:
        return (row.kind, row.where.rpartition(":")[0], row.in_)
    return (row.kind, row.where, row.through)


RULE = AdviceRule("waits-in-turn", find, needs=("sync_events",))
