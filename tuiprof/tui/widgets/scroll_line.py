"""Scroll bars as thin lines: a bar as high as a line of text looks like a row of the table it belongs to."""

from __future__ import annotations

from math import ceil

from rich.color import Color
from rich.segment import Segment, Segments
from rich.style import Style
from textual.scrollbar import ScrollBar, ScrollBarRender


class ScrollLine(ScrollBarRender):
    """Draws a line where the thumb is, and nothing beside it; the mouse finds both."""

    HORIZONTAL = "━"
    VERTICAL = "┃"

    @classmethod
    def render_bar(
        cls,
        size: int = 25,
        virtual_size: float = 50,
        window_size: float = 20,
        position: float = 0,
        thickness: int = 1,
        vertical: bool = True,
        back_color: Color | None = None,
        bar_color: Color | None = None,
    ) -> Segments:
        """Draw a bar."""
        across = thickness if vertical else 1
        begin = end = 0
        if window_size and size and virtual_size > window_size:
            length = min(size, max(1, ceil(size * window_size / virtual_size)))
            free, share = size - length, position / (virtual_size - window_size)
            begin = round(free * share)
            if free > 1 and 0 < share < 1:  # the line reaches an end only when the content does
                begin = max(1, min(begin, free - 1))
            end = begin + length
        cells = [
            *[_cell(" " * across, back_color, None, "scroll_up")] * begin,
            *[_cell((cls.VERTICAL if vertical else cls.HORIZONTAL) * across, back_color, bar_color, "grab")]
            * (end - begin),
            *[_cell(" " * across, back_color, None, "scroll_down")] * (size - end),
        ]
        if vertical:
            return Segments(cells, new_lines=True)
        return Segments([*cells, Segment.line()] * thickness)


def _cell(text: str, behind: Color | None, colour: Color | None, action: str) -> Segment:
    return Segment(text, Style(color=colour, bgcolor=behind, meta={"@mouse.down": action}))


def use_scroll_lines() -> None:
    """Draw every scroll bar of this process so."""
    ScrollBar.renderer = ScrollLine
