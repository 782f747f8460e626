"""Prices findings with the replayed step, and sorts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np

from tuiprof.advice.shared.finding import Finding
from tuiprof.whatif.calibration import Calibrated, Win
from tuiprof.whatif.edit import Edit

#: A finding that saves less than this share of the step is left out.
LEAST_SHARE: Final = 0.002
#: A finding overlaps those above it if it adds less than this share of its own saving.
_ADDS: Final = 0.7


@dataclass(frozen=True, slots=True)
class Priced:
    """A finding and its saving.

    Attributes:
        rule: Name of its rule.
        finding: The finding.
        win: Saving per step; None = unknown.
        share: Saving as a share of the step, at most 1; None = unknown.
        overlaps: After the findings above it, it saves clearly less than alone.
    """

    rule: str
    finding: Finding
    win: Win | None
    share: float | None = None
    overlaps: bool = False


@dataclass(frozen=True, slots=True)
class Priorities:
    """Findings in order, and their combined saving.

    Attributes:
        findings: Those that distort every figure first, then by saving.
        together: Saving of all priced findings together; None = unknown.
        step_ns: Step time without the profiler, including the savings in rare steps; None = unknown.
        missing: Why a rule is unavailable, by name.
        small: Findings that save less than :data:`LEAST_SHARE` of the step and are not shown.
    """

    findings: tuple[Priced, ...]
    together: Win | None
    step_ns: float | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    small: tuple[Priced, ...] = ()


def prioritise(found: Sequence[tuple[str, Finding]], step: Calibrated | None) -> Priorities:
    """Price findings and sort them."""
    settings = [Priced(rule, finding, None) for rule, finding in found if finding.edit is None]
    edits = [(rule, finding) for rule, finding in found if finding.edit is not None]
    if step is None:
        edits.sort(key=lambda item: -_touched_ns(item[1].edit))
        return Priorities((*settings, *(Priced(rule, finding, None) for rule, finding in edits)), None)
    priced = _price([item for item in edits if not item[1].remainder], step)
    others = all_of(priced)
    priced = _ordered([*priced, *_price([item for item in edits if item[1].remainder], step, others)])
    step_ns = step.step_ns + sum(item.finding.rare_ns[0] for item in priced)
    result, before, edit = [], 0.0, Edit()
    for item in priced:
        edit = edit | (item.finding.edit or Edit())
        together_ns = step.likely_ns(edit)
        adds, before = together_ns - before, together_ns
        captured_ns = item.win.ns - item.finding.rare_ns[0] if item.win else 0.0
        share = min(item.win.ns / step_ns, 1.0) if item.win and step_ns else None
        result.append(replace(item, share=share, overlaps=adds < _ADDS * captured_ns))
    together = None
    if priced:
        together = step.win(all_of(priced), all_of(priced, "least"), all_of(priced, "most"))
        for item in priced:
            together = _with_rare(together, item.finding)
    shown = {id(item.finding) for item in result}
    small = tuple(Priced(rule, finding, None) for rule, finding in edits if id(finding) not in shown)
    return Priorities((*settings, *result), together, step_ns, small=small)


def _price(found: Sequence[tuple[str, Finding]], step: Calibrated, on: Edit | None = None) -> list[Priced]:
    """Return the findings with a saving, largest first."""
    worth = []
    for rule, finding in found:
        if finding.edit is None:
            continue
        likely, rare = step.likely_ns(finding.edit, on=on), finding.rare_ns[0]
        if likely + rare >= LEAST_SHARE * step.step_ns:
            win = step.win(finding.edit, finding.least, finding.most, on=on, likely_ns=likely)
            worth.append(Priced(rule, finding, _with_rare(win, finding)))
    return _ordered(worth)


def _with_rare(win: Win, finding: Finding) -> Win:
    """Return a saving plus what the finding saves in steps that may not be captured."""
    if not any(finding.rare_ns):
        return win
    likely, least, most = finding.rare_ns
    return Win(win.ns + likely, win.low_ns + least, win.high_ns + most)


def _ordered(priced: list[Priced]) -> list[Priced]:
    return sorted(priced, key=lambda item: -(item.win.ns if item.win else 0.0))


def all_of(priced: Sequence[Priced], which: Literal["edit", "least", "most"] = "edit") -> Edit:
    """Return the edits of several findings as one."""
    edit = Edit()
    for item in priced:
        edit = edit | (getattr(item.finding, which) or item.finding.edit or Edit())
    return edit


def _touched_ns(edit: Edit | None) -> float:
    """Return the host time that an edit removes: the sort key if nothing can be replayed."""
    return (
        0.0
        if edit is None
        else float(((edit.host.ends - edit.host.starts) * (1 - edit.host.keep)).sum())
        + float(np.sum(1 - edit.keep))
    )
