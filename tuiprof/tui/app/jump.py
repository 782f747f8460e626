"""Jump mode: every pane gets a letter, and the letter goes there."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.geometry import Offset
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Static

from tuiprof.tui.terminal.keys import key

#: On the home row first; never the letters that close.
LETTERS: Final = "asdfgjklhwertuiopzxcvbnm"


class JumpScreen(ModalScreen[Widget | None], inherit_bindings=False):
    """The letters, each at the corner of its pane."""

    CSS = """
    JumpScreen { background: $background 40%; align: left top; }
    JumpScreen:ansi { background: transparent; }
    JumpScreen Static {
        position: absolute; width: auto; height: 1; background: $block-cursor-background;
        color: $block-cursor-foreground; text-style: bold;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        key("escape,q", "close", "close", "Stay in this pane", id="jump.close", group="Jump", display="esc")
    ]

    def __init__(self, about: Screen[Any]) -> None:
        super().__init__()
        self._places = dict(zip(LETTERS, panes_of(about), strict=False))

    def compose(self) -> ComposeResult:
        """Put a letter at each pane."""
        for letter, pane in self._places.items():
            label = Static(Text(f" {letter} {name_of(pane)} "), markup=False)
            label.styles.offset = Offset(*pane.region.offset)
            yield label

    def on_key(self, event: events.Key) -> None:
        """Go to the pane of a letter; any other key is not for here."""
        if event.key in self._places:
            event.stop()
            self.dismiss(self._places[event.key])

    def action_close(self) -> None:
        """Stay where the focus was."""
        self.dismiss(None)


def panes_of(screen: Screen[Any]) -> list[Widget]:
    """Return what can have the focus and is in view, from top left to bottom right."""
    seen = [pane for pane in screen.focus_chain if pane.region.area and screen.region.overlaps(pane.region)]
    return sorted(seen, key=lambda pane: (pane.region.y, pane.region.x))


def name_of(pane: Widget) -> str:
    """Return what a pane is called."""
    return (pane.id or type(pane).__name__).replace("-", " ").replace("_", " ").lower()
