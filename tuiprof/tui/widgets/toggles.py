"""What is switched on or off: ``[x]`` and ``[ ]``, ``(●)`` and ``( )``, so that the sign says it without its colour."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Checkbox, RadioButton

from tuiprof.tui.terminal import glyphs


class Check(Checkbox):
    """A box to tick."""

    BUTTON_LEFT = BUTTON_RIGHT = ""
    BUTTON_INNER = "   "  # as wide as the sign that is drawn

    def render(self) -> Content:
        """Draw the sign of what it is now."""
        self.BUTTON_INNER = "[x]" if self.value else "[ ]"
        return super().render()


class Option(RadioButton):
    """One of several, of which one is taken."""

    BUTTON_LEFT = BUTTON_RIGHT = ""
    BUTTON_INNER = "   "  # as wide as the sign that is drawn

    def render(self) -> Content:
        """Draw the sign of what it is now."""
        self.BUTTON_INNER = f"({glyphs.OUTLIER})" if self.value else "( )"
        return super().render()
