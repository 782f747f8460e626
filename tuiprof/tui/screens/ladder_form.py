"""How to measure a ladder: preset, rounds, steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, RadioButton, RadioSet

from tuiprof.report.sanitize import sanitize
from tuiprof.tui.keys import key
from tuiprof.tui.widgets.key_bar import KeyBar
from tuiprof.tui.widgets.painted import Painted

_PRESETS = ("fit", "smoke", "paper")


@dataclass(frozen=True, slots=True)
class LadderWish:
    """How the user wants it measured.

    Attributes:
        preset: Name of a preset, or ``fit``.
        rounds: Timing trials a variant.
        steps: Steps a trial; None = the preset's.
    """

    preset: str = "fit"
    rounds: int = 5
    steps: int | None = None


class LadderForm(ModalScreen[LadderWish | None], inherit_bindings=False):
    """Answers how to measure a ladder, or None.

    Args:
        name: Its name.
    """

    CSS_PATH = "forms.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        key("enter", "submit", "measure", "Start it", id="measure.submit", group="Measure", priority=True),
        key(
            "escape", "cancel", "cancel", "Start nothing", id="measure.cancel", group="Measure", display="esc"
        ),
        key("tab", "app.focus_next", "next field", "To the next field", id="measure.next", group="Measure"),
        key(
            "shift+tab",
            "app.focus_previous",
            "field before",
            "To the field before",
            id="measure.before",
            group="Measure",
            show=False,
        ),
    ]

    def __init__(self, name: str) -> None:
        super().__init__()
        self._ladder = name

    def compose(self) -> ComposeResult:
        """One box with the fields."""
        with Vertical(classes="dialog form") as box:
            box.border_title = sanitize(f"measure {self._ladder}")
            yield Painted(id="preset-label")
            with RadioSet(id="preset", compact=True):
                for index, name in enumerate(_PRESETS):
                    yield RadioButton(name, value=index == 0)
            yield Painted(id="rounds-label")
            yield Input("5", id="rounds", compact=True)
            yield Painted(id="steps-label")
            yield Input(placeholder="as the preset says", id="steps", compact=True)
            yield Painted(id="problem")
            yield KeyBar()

    def on_mount(self) -> None:
        """Fill in the labels."""
        labels = {
            "preset": "preset — fit: as published on an accelerator, small on a CPU",
            "rounds": "rounds — timing trials a variant, taken in turns; two or more give a ratio",
            "steps": "steps a trial",
        }
        for name, text in labels.items():
            self._paint(f"{name}-label", text, "dim")
        self.query_one("#preset", RadioSet).focus()

    def _paint(self, name: str, text: str, role: str) -> None:
        self.query_one(f"#{name}", Painted).paint(lambda _width, _height: [[(text, role)]] if text else [])

    @on(Input.Changed)
    def _changed(self) -> None:
        self._paint("problem", "", "warn")

    def action_submit(self) -> None:
        """Answer, when the fields make sense."""
        rounds, steps = (self.query_one(f"#{name}", Input).value.strip() for name in ("rounds", "steps"))
        if not (rounds.isdecimal() and 1 <= int(rounds) <= 1000):
            self._paint("problem", "rounds must be a whole number from 1 to 1000", "warn")
        elif steps and not (steps.isdecimal() and int(steps) >= 2):
            self._paint("problem", "steps must be a whole number above 1", "warn")
        else:
            chosen = max(0, self.query_one("#preset", RadioSet).pressed_index)
            self.dismiss(LadderWish(_PRESETS[chosen], int(rounds), int(steps) if steps else None))

    def action_cancel(self) -> None:
        """Answer nothing."""
        self.dismiss(None)
