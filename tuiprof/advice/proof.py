"""Predicted and measured savings of findings that were fixed or are new."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

import polars as pl

from tuiprof.advice import priorities
from tuiprof.advice.pricing import Priced, all_of, touched_ns
from tuiprof.analyses.shared.replay import replayed
from tuiprof.model import Column, Table, Trace
from tuiprof.model.units import format_change
from tuiprof.whatif.replay import Win

KEY: Final = "proof"
#: A finding of which less than this share is left counts as fixed.
_LEFT: Final = 0.3
#: A finding that may save nothing, and at most this share of the step, is not shown.
_MIN_SHARE: Final = 0.01


@dataclass(frozen=True, slots=True)
class Proof:
    """Findings of one run that another run no longer has."""

    findings: tuple[Priced, ...]  # the findings, largest predicted saving first
    predicted: Win  # predicted saving of all of them together

    def words(self, measured_ns: float | None) -> str:
        """Return ``predicted −1.3 ms a step (−1.6 to −1.1 ms), measured −1.3 ms: item-each-step``."""
        return self._words(-1, measured_ns)

    def words_if_new(self) -> str:
        """Return the same for findings that only the later run has: the predicted cost."""
        return self._words(1, None)

    def _words(self, sign: int, measured_ns: float | None) -> str:
        win = self.predicted
        one, other = sorted((win.low_ns, win.high_ns), reverse=sign < 0)
        low, high = (format_change(sign * ns, "ns") for ns in (one, other))
        said = f"predicted {format_change(sign * win.ns, 'ns')} a step ({low} to {high})"
        if measured_ns is not None:
            said += f", measured {format_change(-measured_ns, 'ns')}"
        return f"{said}: {', '.join(dict.fromkeys(item.rule for item in self.findings))}"


def prove(before: Trace, after: Trace, *, waits_alone: bool = False) -> Proof | None:
    """Return the findings of a run that another run does not have; None if there are none, or none can be priced.

    With ``waits_alone`` only waits count: whether a wait is made is certain; the host time of other findings may be
    hidden behind a wait in one of the runs.
    """
    step = replayed(before)
    if isinstance(step, str) or _kind(before) != _kind(after):
        return None  # another framework or device is not a fix
    left: dict[tuple[str, str], _Extent] = {}
    found = priorities(after)
    for item in (*found.findings, *found.small):
        key = _identity(item)
        left[key] = left.get(key, _Extent()) + _extent(item, after)
    gone = tuple(
        item
        for item in priorities(before).findings
        if item.win is not None
        and not item.finding.remainder
        and not any(item.finding.rare_ns)  # the compared medians do not show it
        and (not waits_alone or (item.finding.edit is not None and len(item.finding.edit.waits)))
        and left.get(_identity(item), _Extent()).is_part_of(_extent(item, before), _LEFT)
    )
    if not gone:
        return None
    win = step.win(*all_of(gone))
    if win.low_ns <= 0 and win.ns < _MIN_SHARE * step.step_ns:
        return None
    return Proof(gone, win)


def _kind(trace: Trace) -> tuple[str, bool]:
    return trace.info.format, bool(trace.device_indices)


@dataclass(frozen=True, slots=True)
class _Extent:
    """Extent of a finding in a step, independent of its saving, which may be zero in another run."""

    waits: float = 0.0  # number of waits a step
    ns: float = 0.0  # host time and device work a step

    def __add__(self, other: _Extent) -> _Extent:
        return _Extent(self.waits + other.waits, self.ns + other.ns)

    def is_part_of(self, whole: _Extent, share: float) -> bool:
        """Return whether it is less than a share of another; the length of waits is ignored, as it depends on other
        work.
        """
        return self.waits < share * whole.waits if whole.waits else self.ns < share * whole.ns


def _extent(item: Priced, trace: Trace) -> _Extent:
    edit, steps = item.finding.edit, max(len(trace.steps), 1)
    if edit is None:  # a setting has no extent
        return _Extent(math.inf, math.inf)
    return _Extent(len(edit.waits) / steps, touched_ns(trace, item.finding) / steps)


def _identity(item: Priced) -> tuple[str, str]:
    """Return the identity of a finding across runs, without line numbers, which move when a script changes."""
    return item.rule, re.sub(r"\d+", "", item.finding.where)


def proof_table(fixed: Proof | None, new: Proof | None, measured_ns: float | None) -> Table:
    """Return predicted and measured side by side, of findings that only the earlier or only the later run has.

    The saving of the latter is negative. ``measured_ns`` is the step time before minus that after; None = not measured.
    """
    rows: list[tuple[str, str, str, float, float, float, float | None]] = []
    wins: list[Win] = []
    for change, proof in (("fixed", fixed), ("new", new)):
        if proof is not None:
            turn = (lambda win: win) if proof is fixed else _cost
            wins.append(turn(proof.predicted))
            for item in proof.findings:
                if item.win is not None:
                    win = turn(item.win)
                    what = item.finding.what
                    rows.append((change, item.rule, what, win.ns, win.low_ns, win.high_ns, None))
    ns, low_ns, high_ns = (sum(getattr(win, key) for win in wins) for key in ("ns", "low_ns", "high_ns"))
    if len(rows) > 1 or measured_ns is not None:
        rows.append(("", "", "all together", ns, low_ns, high_ns, measured_ns))
    return Table(
        KEY,
        "Fixed and new findings",
        (
            Column("change", "change", "text"),
            Column("finding", "finding", "text"),
            Column("what", "what", "text"),
            Column(
                "predicted_ns",
                "predicted saving",
                "ns",
                "Per step, predicted from the run that has the finding.",
            ),
            Column(
                "measured_ns", "measured", "ns", "Step time before minus after.", hidden=measured_ns is None
            ),
            Column("predicted_low_ns", "at least", "ns"),
            Column("predicted_high_ns", "at most", "ns"),
        ),
        pl.DataFrame(rows, schema=_SCHEMA, orient="row"),
        prose=True,
    )


def _cost(win: Win) -> Win:
    """Return an additional cost as a negative saving."""
    return Win(0.0 - win.ns, 0.0 - win.high_ns, 0.0 - win.low_ns)


_SCHEMA: Final = {
    "change": pl.String,
    "finding": pl.String,
    "what": pl.String,
    **dict.fromkeys(("predicted_ns", "predicted_low_ns", "predicted_high_ns", "measured_ns"), pl.Float64),
}
