"""How to run a variant: preset, steps, what to capture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Checkbox, Input, RadioButton, RadioSet

from tuiprof.errors import LaunchError
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.keys import key
from tuiprof.tui.library_items import LadderItem, VariantItem
from tuiprof.tui.widgets.key_bar import KeyBar
from tuiprof.tui.widgets.painted import Painted

FIT = "fit"


@dataclass(frozen=True, slots=True)
class LaunchWish:
    """How the user wants it run.

    Attributes:
        preset: Name of a preset, or ``fit``.
        steps: Number of steps; None = the preset's.
        capture: ``N@STEP``; empty = capture nothing.
        stack: Record Python stacks while capturing.
    """

    preset: str = FIT
    steps: int | None = None
    capture: str = ""
    stack: bool = False


class LaunchForm(ModalScreen[LaunchWish | None], inherit_bindings=False):
    """Answers how to run a variant, or None.

    Args:
        ladder: Its ladder.
        variant: It.
    """

    CSS_PATH = "forms.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        key("enter", "submit", "run", "Start it", id="launch.submit", group="Launch", priority=True),
        key("escape", "cancel", "cancel", "Start nothing", id="launch.cancel", group="Launch", display="esc"),
        key("tab", "app.focus_next", "next field", "To the next field", id="launch.next", group="Launch"),
        key(
            "shift+tab",
            "app.focus_previous",
            "field before",
            "To the field before",
            id="launch.before",
            group="Launch",
            show=False,
        ),
    ]

    def __init__(self, ladder: LadderItem, variant: VariantItem) -> None:
        super().__init__()
        self._ladder = ladder
        self._variant = variant
        self._presets = [FIT, *(name for name in ladder.presets if name != FIT)]

    def compose(self) -> ComposeResult:
        """One box with the fields."""
        with Vertical(classes="dialog form") as box:
            box.border_title = sanitize(f"run {self._ladder.name}:{self._variant.name}")
            yield Painted(id="preset-label")
            with RadioSet(id="preset", compact=True):
                for index, name in enumerate(self._presets):
                    yield RadioButton(sanitize(name), value=index == 0)
            yield Painted(id="steps-label")
            yield Input(placeholder="as the preset says", id="steps", compact=True)
            yield Painted(id="capture-label")
            yield Input("3@10", id="capture", compact=True)
            yield Checkbox(
                "with Python stacks (names source lines; slows the captured steps)", id="stack", compact=True
            )
            yield Painted(id="problem")
            yield KeyBar()

    def on_mount(self) -> None:
        """Fill in the labels."""
        labels = {
            "preset": "preset — fit: as published on an accelerator, small on a CPU",
            "steps": "steps",
            "capture": "capture — N@STEP: profile N steps from STEP on; empty: none",
        }
        for name, text in labels.items():
            self._paint(f"{name}-label", text, "dim")
        self.query_one("#preset", RadioSet).focus()

    def _paint(self, name: str, text: str, role: str) -> None:
        self.query_one(f"#{name}", Painted).paint(lambda _width, _height: [[(text, role)]] if text else [])

    @on(Input.Changed)
    def _changed(self) -> None:
        self._paint("problem", self._problem(), "warn")

    def _problem(self) -> str:
        """Return what is wrong with the fields; empty = nothing."""
        from tuiprof.session.launch import parse_capture

        steps, capture = self._values()
        if steps and not (steps.isdecimal() and int(steps) > 0):
            return "steps must be a whole number above 0"
        if capture:
            try:
                parse_capture(capture)
            except LaunchError:
                return "capture must be N or N@STEP, for example 5@20"
        return ""

    def _values(self) -> tuple[str, str]:
        return self.query_one("#steps", Input).value.strip(), self.query_one("#capture", Input).value.strip()

    def action_submit(self) -> None:
        """Answer, when the fields make sense."""
        if problem := self._problem():
            self._paint("problem", problem, "warn")
            return
        steps, capture = self._values()
        chosen = self.query_one("#preset", RadioSet).pressed_index
        self.dismiss(
            LaunchWish(
                preset=self._presets[max(0, chosen)],
                steps=int(steps) if steps else None,
                capture=capture,
                stack=self.query_one("#stack", Checkbox).value,
            )
        )

    def action_cancel(self) -> None:
        """Answer nothing."""
        self.dismiss(None)
