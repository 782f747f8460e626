"""Small pieces of a screen that are drawn by a function of their width: heads, rules, sentences."""

from __future__ import annotations

from collections.abc import Callable

from tuiprof.tui.terminal import glyphs
from tuiprof.tui.widgets.lines import Lines, Row, fit, row_width

Painter = Callable[[int, int], list[Row]]


class Painted(Lines):
    """Lines drawn by a function that the screen hands over."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes=classes)
        self._painter: Painter | None = None
        self._height = 0

    def paint(self, painter: Painter) -> None:
        """Draw with this function from now on.

        Args:
            painter: Gets width and height (0 = as high as it likes) and returns rows.
        """
        self._painter = painter
        wanted = self.height_for(self.size.width) if self.size.width else 0
        if wanted != self._height:
            self._height = wanted
            self.lay_out_anew()
        self.redraw()

    def draw(self, width: int, height: int) -> list[Row]:
        """Call the function; content cut off below is marked."""
        rows = self._painter(width, height) if self._painter is not None and width else []
        if 0 < height < len(rows):
            last = fit(rows[height - 1], width - 2, ellipsis="")
            rows = [*rows[: height - 1], [*last, (f" {glyphs.ELLIPSIS}", "dim")]]
        return rows


class Heading(Lines):
    """A rule with a title in it, and a remark at its right end."""

    DEFAULT_CSS = "Heading { height: 1; }"

    def __init__(self, title: str, *, id: str | None = None) -> None:  # noqa: A002 - the name Textual uses
        super().__init__(id=id)
        self._title = title
        self._remark: Row = []

    def show(self, title: str, remark: Row | None = None) -> None:
        """Change the words."""
        self._title, self._remark = title, remark or []
        self.redraw()

    def draw(self, width: int, height: int) -> list[Row]:
        """Draw the one line."""
        left: Row = (
            [(glyphs.RULE * 2 + " ", "rule"), (self._title, "title"), (" ", "text")] if self._title else []
        )
        right: Row = [(" ", "text"), *self._remark, (" " + glyphs.RULE, "rule")] if self._remark else []
        gap = width - row_width(left) - row_width(right)
        if gap < 1:
            return [fit(left, width)]
        return [[*left, (glyphs.RULE * gap, "rule"), *right]]
