"""When to capture by itself: after a slow step, or every so many steps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input

from tuiprof.tui.keys import key
from tuiprof.tui.widgets.key_bar import KeyBar
from tuiprof.tui.widgets.painted import Painted

_TIME: Final = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>µs|us|ms|s|x|×)")
_UNITS_NS: Final = {"µs": 1e3, "us": 1e3, "ms": 1e6, "s": 1e9}


@dataclass(frozen=True, slots=True)
class ArmWish:
    """What is to be armed.

    Attributes:
        above_ns: Capture after a step longer than this; None = not so.
        times: Capture after a step longer than so many times the median; None = not so.
        every: Capture every so many steps; None = not so.
        budget_bytes: The session's traces may take so much.
    """

    above_ns: int | None = None
    times: float | None = None
    every: int | None = None
    budget_bytes: int = 500_000_000


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


class ArmForm(ModalScreen[ArmWish | None], inherit_bindings=False):
    """Answers what to arm (nothing in a wish = disarm), or None.

    Args:
        slow: What stands in the first field: ``35 ms``, ``1.5x``; empty = not armed.
        every: What stands in the second: steps; empty = not armed.
        budget_bytes: Budget.
    """

    CSS_PATH = "forms.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        key(
            "enter",
            "submit",
            "arm",
            "Arm what is filled in, only that",
            id="arm.submit",
            group="Arm",
            priority=True,
        ),
        key("escape", "cancel", "cancel", "Change nothing", id="arm.cancel", group="Arm", display="esc"),
        key("tab", "app.focus_next", "next field", "To the next field", id="arm.next", group="Arm"),
        key(
            "shift+tab",
            "app.focus_previous",
            "field before",
            "To the field before",
            id="arm.before",
            group="Arm",
            show=False,
        ),
    ]

    def __init__(self, slow: str, every: str, budget_bytes: int) -> None:
        super().__init__()
        self._values = {"slow": slow, "every": every, "budget": str(round(budget_bytes / 1e6))}

    def compose(self) -> ComposeResult:
        """One box with the fields."""
        with Vertical(classes="dialog form") as box:
            box.border_title = "capture by itself"
            for name, value in self._values.items():
                yield Painted(id=f"{name}-label")
                yield Input(value, id=name, compact=True)
            yield Painted(id="problem")
            yield KeyBar()

    def on_mount(self) -> None:
        """Fill in the labels."""
        labels = {
            "slow": "after a step slower than — 35 ms, or 1.5x the median; empty: not",
            "every": "every so many steps — empty: not",
            "budget": "as long as the session's traces take less than, MB",
        }
        for name, text in labels.items():
            self._paint(f"{name}-label", text, "dim")

    def _paint(self, name: str, text: str, role: str) -> None:
        self.query_one(f"#{name}", Painted).paint(lambda _width, _height: [[(text, role)]] if text else [])

    @on(Input.Changed)
    def _changed(self) -> None:
        self._paint("problem", "", "warn")

    def action_submit(self) -> None:
        """Answer, when the fields make sense."""
        slow, every, budget = (self.query_one(f"#{name}", Input).value.strip() for name in self._values)
        above_ns, times = parse_slow(slow)
        if slow and above_ns is None and times is None:
            self._paint(
                "problem", "slower than: a time such as 35 ms, or a multiple above 1 such as 1.5x", "warn"
            )
        elif every and not (every.isdecimal() and int(every) > 0):
            self._paint("problem", "every: a whole number of steps above 0", "warn")
        elif not (budget.isdecimal() and int(budget) > 0):
            self._paint("problem", "the budget is a whole number of megabytes above 0", "warn")
        else:
            self.dismiss(ArmWish(above_ns, times, int(every) if every else None, int(budget) * 1_000_000))

    def action_cancel(self) -> None:
        """Answer nothing."""
        self.dismiss(None)
