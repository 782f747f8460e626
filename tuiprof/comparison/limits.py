"""Limits on the figures of a trace or session: what ``tuiprof check`` tests in CI.

A limit names a fact of any report by its key (``syncs_per_step``); a key may give its time in another unit
(``device_empty_ms_per_step`` for the fact ``device_empty_ns_per_step``). A value such as ``+5%`` is
relative to a baseline.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from tuiprof.errors import UsageProblem
from tuiprof.model import Fact, Report, Unavailable
from tuiprof.model.units import NONE, format_value, typed_number

if TYPE_CHECKING:
    from tuiprof.model.report import Kind

_SCALES = {"us": 1e3, "ms": 1e6, "s": 1e9}
_SYMBOLS = {"us": " µs", "ms": " ms", "s": " s"}
_WHOLE = {"ns": " ns", "bytes": " B", "rate": "/s"}
#: A figure beyond its bound by no more than this share of it is off by the rounding of the division only.
_ROUNDING = 1e-9
_RELATIVE = re.compile(r"([+-]\d+(?:\.\d+)?)%")

Outcome = Literal["passed", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit."""

    key: str  # key of a fact, as typed
    side: Literal["max", "min"]  # whether the figure may be at most or at least ``value``
    #: The bound in the key's unit; with ``relative`` the change allowed, as a share of the baseline.
    value: float
    relative: bool = False  # whether ``value`` is relative to the baseline


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one limit."""

    limit: Limit
    outcome: Outcome  # ``unknown`` when the figure is unknown, which is not a pass
    measured: float | None  # the figure in the key's unit; None = unknown
    bound: float | None  # the bound in the key's unit; None = unknown (no such figure in the baseline)
    baseline: float | None = None  # the baseline's figure; None = none asked for, or unknown
    why: str = ""  # why it is unknown; empty otherwise
    #: What the figures are, as a fact says it: ``ns`` are nanoseconds, ``bytes`` bytes, ``share`` 0 to 1.
    kind: Kind = "number"
    unit: str = ""  # the key's unit where that is another one of time: ``us``, ``ms``, ``s``; else empty

    @property
    def sentence(self) -> str:
        """The result in words."""
        name = self.limit.key
        if self.outcome == "unknown":
            return f"{name}: {self.why}"
        sign = {"max": "≤", "min": "≥"}[self.limit.side]
        measured, bound, base = self._shown(self.measured, self.bound, self.baseline)
        against = f" (baseline {base})" if self.baseline is not None else ""
        return f"{name} is {measured}, allowed {sign} {bound}{against}"

    def _shown(self, *figures: float | None) -> list[str]:
        """Return figures as people read them, with more digits where they would look the same and are not."""
        symbol = _SYMBOLS.get(self.unit, "")
        brief = [format_value(figure, self.kind) + symbol for figure in figures]
        if brief[0] != brief[1] or figures[0] == figures[1]:
            return brief
        symbol = symbol or _WHOLE.get(self.kind, "")
        return [NONE if figure is None else f"{figure:.10g}{symbol}" for figure in figures]


class _Figure(NamedTuple):
    """A figure in the unit that was asked for; its value is None where it is unknown."""

    value: float | None
    kind: Kind
    unit: str = ""


def parse(text: str, side: Literal["max", "min"]) -> Limit:
    """Read ``KEY=VALUE``; raises UsageProblem if it is not of that form."""
    key, equals, value = text.partition("=")
    value = typed_number(value)
    relative = _RELATIVE.fullmatch(value)
    try:
        number = float(relative[1]) / 100 if relative else float(value)
    except ValueError:
        equals = ""
    if not equals or not key or not math.isfinite(number):
        raise UsageProblem(
            f"--{side} {text!r} is not KEY=VALUE", "for example syncs_per_step=0, or step_median_ms=+5%"
        )
    return Limit(key, side, number, relative is not None)


def check(
    limits: Sequence[Limit],
    reports: Sequence[Report | Unavailable],
    baseline: Sequence[Report | Unavailable] | None = None,
) -> list[Result]:
    """Test figures against limits.

    Raises:
        UsageProblem: A limit names no figure of any report, or is relative without a baseline.
    """
    facts, base = _facts(reports), _facts(baseline or ())
    missing = [report for report in reports if isinstance(report, Unavailable)]
    return [_test(limit, facts, base if baseline is not None else None, missing) for limit in limits]


def known(limits: Sequence[Limit], reports: Sequence[Report | Unavailable]) -> bool:
    """Whether each limit names a figure of a report."""
    facts = _facts(reports)
    return all(_value(limit.key, facts) is not None for limit in limits)


def _facts(reports: Sequence[Report | Unavailable]) -> dict[str, Fact]:
    found: dict[str, Fact] = {}
    for report in reports:
        if isinstance(report, Report):
            for fact in report.facts:
                found.setdefault(fact.key, fact)
    return found


def _value(key: str, facts: Mapping[str, Fact]) -> _Figure | None:
    """Return the figure that a key names, in the key's unit; None = there is no such fact at all."""
    if key in facts:
        return _Figure(_number(facts[key].value), facts[key].kind)
    for name, unit in _in_ns(key):
        if name in facts:
            value = _number(facts[name].value)
            return _Figure(None if value is None else value / _SCALES[unit], "number", unit)
    return None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _in_ns(key: str) -> list[tuple[str, str]]:
    """Return the ns keys that a key in other units may stand for, each with that unit."""
    parts = key.split("_")
    return [
        ("_".join([*parts[:i], "ns", *parts[i + 1 :]]), part)
        for i, part in enumerate(parts)
        if part in _SCALES
    ]


def _test(
    limit: Limit, facts: dict[str, Fact], base: dict[str, Fact] | None, missing: Sequence[Unavailable]
) -> Result:
    found = _value(limit.key, facts)
    if found is None and not missing:
        near = difflib.get_close_matches(limit.key, facts, n=3, cutoff=0.5)
        raise UsageProblem(f"no metric {limit.key!r}", f"did you mean {', '.join(near or sorted(facts))}?")
    earlier = _value(limit.key, base) if base is not None else None
    before = earlier.value if earlier is not None else None
    if limit.relative and base is None:
        raise UsageProblem(f"the limit on {limit.key} is relative", "give --baseline FILE|SESSION")
    if found is None or found.value is None:
        return Result(limit, "unknown", None, None, before, _why_unknown(limit, facts, missing))
    measured, kind, unit = found.value, found.kind, found.unit
    if limit.relative and before is None:
        why = "the baseline does not have this metric"
        return Result(limit, "unknown", measured, None, None, why, kind, unit)
    # 5 % more of a negative figure (memory that shrinks) is above it as well.
    bound = before + abs(before) * limit.value if limit.relative and before is not None else limit.value
    beyond = measured - bound if limit.side == "max" else bound - measured
    passed = beyond <= _ROUNDING * abs(bound)
    return Result(limit, "passed" if passed else "failed", measured, bound, before, "", kind, unit)


def _why_unknown(limit: Limit, facts: Mapping[str, Fact], missing: Sequence[Unavailable]) -> str:
    """Return why a figure has no value, and what was probably meant where its name is not among those found."""
    if _value(limit.key, facts) is not None:
        return "; ".join(f"{item.analysis}: {item.reason}" for item in missing) or "unknown from this trace"
    # A figure is named after its subject, as the analysis is: syncs_per_step is of sync_events.
    if its := [item for item in missing if _stems(limit.key) & _stems(item.analysis)]:
        return "; ".join(f"{item.analysis} is unavailable: {item.reason}" for item in its)
    near = difflib.get_close_matches(limit.key, facts, n=3, cutoff=0.75)
    hint = f" (did you mean {', '.join(near)}?)" if near else " (tuiprof report -f json lists them)"
    reasons = {item.reason for item in missing}
    why = f": {reasons.pop()}" if len(reasons) == 1 else ": " + ", ".join(m.analysis for m in missing)
    return f"no such metric{hint}; unavailable here{why}"


def _stems(name: str) -> set[str]:
    """Return the first letters of the words of a name, which are the same in ``syncs`` and ``sync``."""
    return {word[:4] for word in name.split("_") if len(word) >= 4}
