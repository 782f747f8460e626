"""The map of ranks and steps as a widget."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import BindingType

from tuiprof.tui.terminal.keys import key
from tuiprof.tui.widgets.lines import Lines, Row

if TYPE_CHECKING:
    from tuiprof.tui.fleet.view import HeatMap


class RankMap(Lines, can_focus=True):
    """Ranks from top to bottom, steps from left to right."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("up,k", "move(-1, 0)", "up", "Rank above", id="fleet.up", group="Ranks", show=False),
        key("down,j", "move(1, 0)", "down", "Rank below", id="fleet.down", group="Ranks", show=False),
        key("left,h", "move(0, -1)", "left", "Previous step", id="fleet.left", group="Ranks", show=False),
        key("right,l", "move(0, 1)", "right", "Next step", id="fleet.right", group="Ranks", show=False),
        key(
            "pageup",
            "page(-1)",
            "page up",
            "One page up",
            id="fleet.page_up",
            group="Ranks",
            show=False,
        ),
        key(
            "pagedown",
            "page(1)",
            "page down",
            "One page down",
            id="fleet.page_down",
            group="Ranks",
            show=False,
        ),
        key(
            "plus,equals_sign",
            "magnify(1)",
            "zoom in",
            "Zoom in: fewer ranks and steps per cell",
            id="fleet.closer",
            group="Ranks",
            display="+",
        ),
        key(
            "minus",
            "magnify(-1)",
            "zoom out",
            "Zoom out: more ranks and steps per cell",
            id="fleet.farther",
            group="Ranks",
            display="-",
        ),
        key("s", "sort", "sort", "Sort by lateness or by rank", id="fleet.sort", group="Ranks"),
        key("x", "latest", "latest", "Go to the latest rank and step", id="fleet.latest", group="Ranks"),
    ]

    def __init__(self, shown: HeatMap) -> None:
        super().__init__(id="fleet-map")
        self._shown = shown

    def draw(self, width: int, height: int) -> list[Row]:
        """Draw the map, what it means, and the cell under the cursor."""
        if not width or height < 4:
            return []
        shown = self._shown
        return [*shown.rows(width, height - 3), shown.legend(width), [], shown.readout(width)]

    def action_move(self, lines: int, columns: int) -> None:
        """Move the cursor."""
        self._shown.move(lines, columns)
        self.redraw()

    def action_page(self, pages: int) -> None:
        """Move the cursor by a screen."""
        self._shown.page(pages)
        self.redraw()

    def action_magnify(self, steps: int) -> None:
        """Show fewer ranks and steps a cell, or more."""
        self._shown.magnify(steps)
        self.redraw()

    def action_sort(self) -> None:
        """Sort by lateness or by rank."""
        self._shown.sort()
        self.redraw()

    def action_latest(self) -> None:
        """Go to the latest rank and step."""
        self._shown.latest()
        self.redraw()
