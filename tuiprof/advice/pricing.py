"""What findings save: each alone, after those above it, and all together, by replaying the step with their edits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from tuiprof.advice.finding import Finding
from tuiprof.model import Trace
from tuiprof.whatif import Edit, EditRange
from tuiprof.whatif.replay import Kinds, Win

#: A finding that saves less than this share of the step is left out.
MIN_SHARE: Final = 0.002
#: A finding overlaps others if it adds less than this share of its own saving once they are fixed.
ADDS: Final = 0.7

#: Share of what is in the way of a change that another one has to remove to come first.
_MOST: Final = 0.5


@dataclass(frozen=True, slots=True)
class Priced:
    """A finding and its saving."""

    rule: str  # name of its rule
    finding: Finding
    win: Win | None  # saving per step; None = unknown
    share: float | None = None  # saving as a share of the step, at most 1; None = unknown
    overlaps: bool = False  # after the findings above it, it saves clearly less than alone
    on_top: bool = (
        False  # its saving is what is left after the findings above it; alone, it would save clearly more
    )


@dataclass(frozen=True, slots=True)
class Priorities:
    """Findings in order, and their combined saving."""

    #: Those that distort every figure first, then by saving, but the general ones (``Finding.remainder``) below the
    #: specific ones that cause a good part of what they are about.
    findings: tuple[Priced, ...]
    together: Win | None  # saving of all priced findings together; None = unknown
    #: Step time without the profiler, including the savings in rare steps; None = unknown.
    step_ns: float | None = None
    missing: Mapping[str, str] = field(default_factory=dict)  # why a rule is unavailable, by name
    #: Findings that save less than :data:`MIN_SHARE` of the step and are not shown.
    small: tuple[Priced, ...] = ()
    steps: Kinds | None = None  # the replayed steps; None = nothing can be replayed


def prioritise(found: Sequence[tuple[str, Finding]], step: Kinds | None, trace: Trace) -> Priorities:
    """Price findings and sort them."""
    settings = [Priced(rule, finding, None) for rule, finding in found if finding.edit is None]
    edits = [(rule, finding) for rule, finding in found if finding.edit is not None]
    if step is None:
        edits.sort(key=lambda item: -touched_ns(trace, item[1]))
        return Priorities((*settings, *(Priced(rule, finding, None) for rule, finding in edits)), None)
    priced = _price([item for item in edits if not item[1].remainder], step)
    others = all_of(priced).likely
    left = [item for item in edits if item[1].remainder]
    # Faster kernels can make the host what a step is bound by, so what is left for it may be more than it saves now.
    now = {id(item.finding): item for item in _price(left, step)}
    on_top = [item for item in _price(left, step, others) if id(item.finding) in now]
    priced = _ordered([*priced, *(min(item, now[id(item.finding)], key=_saved_ns) for item in on_top)])
    priced = _specific_first(priced, step)
    step_ns = step.step_ns + sum(item.finding.rare_ns[0] for item in priced)
    result, before, edit = [], 0.0, Edit()
    for item in priced:
        edit = edit | item.finding.edits.likely
        together_ns = step.likely_ns(edit)
        adds, before = together_ns - before, together_ns
        captured_ns = item.win.ns - item.finding.rare_ns[0] if item.win else 0.0
        share = min(item.win.ns / step_ns, 1.0) if item.win and step_ns else None
        result.append(replace(item, share=share, overlaps=adds < ADDS * captured_ns))
    together = None
    if priced:
        together = step.win(*all_of(priced))
        for item in priced:
            together = with_rare(together, item.finding.rare_ns)
    shown = {id(item.finding) for item in result}
    small = tuple(Priced(rule, finding, None) for rule, finding in edits if id(finding) not in shown)
    return Priorities((*settings, *result), together, step_ns, small=small, steps=step)


def _price(found: Sequence[tuple[str, Finding]], step: Kinds, on: Edit | None = None) -> list[Priced]:
    """Return the findings with a saving, largest first."""
    worth = []
    for rule, finding in found:
        if finding.edit is None:
            continue
        likely, rare = step.likely_ns(finding.edit, on=on), finding.rare_ns[0]
        if likely + rare >= MIN_SHARE * step.step_ns:
            win = step.win(*finding.edits, on=on, likely_ns=likely)
            worth.append(Priced(rule, finding, with_rare(win, finding.rare_ns)))
    return _ordered(worth)


def with_rare(win: Win, rare_ns: tuple[float, float, float]) -> Win:
    """Return a saving plus what a change saves in steps that may not be captured: likely, least and most, ns."""
    if not any(rare_ns):
        return win
    likely, least, most = rare_ns
    return Win(win.ns + likely, win.low_ns + least, win.high_ns + most)


def _specific_first(priced: Sequence[Priced], step: Kinds) -> list[Priced]:
    """Move each general change below the specific ones that it overlaps.

    A general change, as to launch less, contains much of what specific ones remove. Its price is what it saves on top
    of them, and it is the larger edit of the script and the less certain one. So a loop that causes a good part of the
    launches is named first, even if more is left to save after it, and so is what removes most of the waits or of the
    work that has to go before.
    """
    later = [item.finding.remainder or item.finding.after is not None for item in priced]
    ordered = [item for item, late in zip(priced, later, strict=True) if not late]
    for general in (item for item, late in zip(priced, later, strict=True) if late):
        alone_ns = step.likely_ns(general.finding.edits.likely)
        causes = [
            index
            for index, item in enumerate(ordered)
            if not item.finding.remainder
            # No change takes away more than it saves itself.
            and _saved_ns(item) >= (1 - ADDS) * alone_ns
            and (
                _removes_most(item, general.finding.after)
                or (
                    general.finding.remainder
                    and step.likely_ns(general.finding.edits.likely, on=item.finding.edits.likely)
                    < ADDS * alone_ns
                )
            )
        ]
        above = [index for index, item in enumerate(ordered) if _saved_ns(item) >= _saved_ns(general)]
        at = max((index + 1 for index in (*causes, *above)), default=0)
        ordered.insert(at, replace(general, on_top=bool(causes) and general.finding.remainder))
    return ordered


def _removes_most(item: Priced, before: Edit | None) -> bool:
    """Return whether a finding ends most of the waits, or shortens most of the work, of what has to go before."""
    if before is None:
        return False
    edit = item.finding.edits.likely
    pairs = ((before.waits, edit.waits), (before.work, edit.work))
    return any(len(rows) > 0 and np.isin(rows, mine).mean() >= _MOST for rows, mine in pairs)


def _saved_ns(item: Priced) -> float:
    return item.win.ns if item.win else 0.0


def _ordered(priced: list[Priced]) -> list[Priced]:
    return sorted(priced, key=_saved_ns, reverse=True)


def all_of(priced: Iterable[Priced]) -> EditRange:
    """Return the edits of several findings as one."""
    return EditRange.all_of(item.finding.edits for item in priced)


def touched_ns(trace: Trace, finding: Finding) -> float:
    """Return how much host time and device work the edit of a finding removes: the order if nothing can be replayed."""
    edit = finding.edits.likely
    host = (edit.host.ends - edit.host.starts) * (1 - edit.host.keep)
    work = trace.lengths(edit.work) * (1 - edit.keep)
    return float(host.sum() + work.sum())
