"""Filters each line before it is sent: no control sequences, and only characters that this terminal can show."""

from __future__ import annotations

import re
from functools import lru_cache

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

from tuiprof.model.characters import UNSAFE
from tuiprof.report.sanitize import to_ascii


class TextAlone(LineFilter):
    """Removes control and invisible characters from the output of all widgets.

    Widgets show such characters (:func:`tuiprof.report.sanitize.sanitize`). Where one does not, they are taken away
    here, as many cells left blank as the layout counted for them.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the cells of a line without them."""
        return [
            segment
            if segment.control or (segment.text.isascii() and segment.text.isprintable())
            else Segment(UNSAFE.sub(_blank, segment.text), segment.style)
            for segment in segments
        ]


def _blank(match: re.Match[str]) -> str:
    return " " * cell_len(match[0])


class PlainText(LineFilter):
    """Turns every cell into ASCII."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the cells of a line in ASCII."""
        return [
            segment
            if segment.control or segment.text.isascii()
            else Segment(to_ascii(segment.text), segment.style)
            for segment in segments
        ]


class OneColour(LineFilter):
    """Removes colours: text with a background of its own is shown in reverse."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the cells of a line without colours."""
        return [Segment(text, style and _uncoloured(style), control) for text, style, control in segments]


@lru_cache(1024)
def _uncoloured(style: Style) -> Style:
    marked = style.bgcolor is not None and not style.bgcolor.is_default
    return Style(
        bold=style.bold,
        dim=style.dim,
        underline=style.underline,
        italic=style.italic,
        reverse=marked != bool(style.reverse),
    )
