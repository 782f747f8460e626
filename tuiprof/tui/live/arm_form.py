"""When to capture by itself: after a slow step, or every so many steps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from textual.binding import BindingType
from textual.widget import Widget
from textual.widgets import Input

from tuiprof.session.run.control import trigger_requests
from tuiprof.session.store.meta import TriggerRequest
from tuiprof.tui.dialogs.form import Form, form_keys

_TIME: Final = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>µs|us|ms|s|x|×)")
_UNITS_NS: Final = {"µs": 1e3, "us": 1e3, "ms": 1e6, "s": 1e9}


def parse_slow(text: str) -> tuple[int | None, float | None]:
    """Return the time in ns, or the multiple of the median, that a text says; both None = neither.

    Args:
        text: ``35 ms``, ``0.5 s``, ``1.5x``.
    """
    match = _TIME.fullmatch(text.strip())
    if match is None:
        return None, None
    number, unit = float(match["number"]), match["unit"]
    if unit in ("x", "×"):
        return None, number if number > 1 else None
    return (round(number * _UNITS_NS[unit]) or None), None


class ArmForm(Form[tuple[TriggerRequest, ...]], inherit_bindings=False):
    """Answers what to arm (nothing in a wish = disarm), or None.

    Args:
        slow: What stands in the first field: ``35 ms``, ``1.5x``; empty = not armed.
        every: What stands in the second: steps; empty = not armed.
        budget_bytes: Budget.
    """

    BINDINGS: ClassVar[list[BindingType]] = form_keys(
        "arm", "Arm", "arm", "Arm what is filled in, only that", "Change nothing"
    )
    LABELS: ClassVar[Mapping[str, str]] = {
        "slow": "after a step slower than — 35 ms, or 1.5x the median; empty: not",
        "every": "every so many steps — empty: not",
        "budget": "as long as the session's traces take less than, MB",
    }

    def __init__(self, slow: str, every: str, budget_bytes: int) -> None:
        super().__init__("capture by itself")
        self._values = {"slow": slow, "every": every, "budget": str(round(budget_bytes / 1e6))}

    def fields(self) -> Sequence[Widget]:
        """When, and how much it may take."""
        return [Input(value, id=name, compact=True) for name, value in self._values.items()]

    def problem(self) -> str:
        """Return what is wrong with the fields; empty = nothing."""
        slow, every, budget = (self.typed(name) for name in self._values)
        if slow and parse_slow(slow) == (None, None):
            return "slower than: a time such as 35 ms, or a multiple above 1 such as 1.5x"
        if every and not (every.isdecimal() and int(every) > 0):
            return "every: a whole number of steps above 0"
        if not (budget.isdecimal() and int(budget) > 0):
            return "the budget is a whole number of megabytes above 0"
        return ""

    def answer(self) -> tuple[TriggerRequest, ...]:
        """Return what the fields say."""
        slow, every, budget = (self.typed(name) for name in self._values)
        above_ns, times = parse_slow(slow)
        return trigger_requests(
            above_ns=above_ns,
            times=times,
            every=int(every) if every else None,
            budget_bytes=int(budget) * 1_000_000,
        )
