"""Widgets drawn as lines of styled text, which repaint only the lines that differ.

A subclass returns each line as spans of ``(text, role)``; the role selects a style of the theme. After new data it
calls :meth:`Lines.redraw`, which compares the lines with those on the screen and repaints the ones that differ. If
nothing changed, nothing is sent to the terminal.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from tuiprof.report.sanitize import sanitize
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.widgets.spans import Row, Span, fit, join, row_width, spread, verdict_rows, wrap

if TYPE_CHECKING:
    from tuiprof.model.report import Level

__all__ = [
    "ROLES", "Flowing", "Heading", "Lines", "Look", "Painted", "Painter", "Row", "Span", "VerdictLine", "fit", "join",
    "row_width", "spread",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Look:
    """The style of a role."""

    variable: str  # theme variable of the colour
    strength: float = 1.0  # 1 = the colour itself; less = blended with the background
    bold: bool = False
    background: str = ""  # theme variable of the background; empty = the widget's


#: Styles by role. Component classes of a style sheet could do the same, but Textual recomputes them for every widget,
#: which took most of the time to the first frame.
ROLES: Final[dict[str, Look]] = {
    "text": Look("foreground"),
    "dim": Look("foreground", 0.66),
    "faint": Look("foreground", 0.4),
    "strong": Look("foreground", bold=True),
    "title": Look("foreground", bold=True),
    "accent": Look("primary", bold=True),
    "key": Look("primary", bold=True),
    "good": Look("success"),
    "info": Look("primary"),
    "warn": Look("warning"),
    "bad": Look("error", bold=True),
    "rule": Look("border"),
    "line": Look("primary"),
    "spread": Look("primary", 0.5),
    "history": Look("primary", 0.7),
    "median": Look("secondary", 0.6),
    "mark": Look("error", bold=True),
    "capture": Look("accent"),
    "cursor": Look("block-cursor-foreground", bold=True, background="block-cursor-background"),
    **{f"phase{number}": Look(f"phase-{number}") for number in range(1, 7)},
}


class _Line(Strip):
    """A strip without reference cycles, which is freed as soon as it is no longer used.

    Textual's strips cache their parts, and a strip that fills its line is its own only part. Such cycles took up to a
    megabyte until they were collected, and Python could return hardly any of it to the system.
    """

    __slots__ = ()

    def divide(self, cuts: Iterable[int]) -> Sequence[Strip]:
        """Return the parts between cells; a strip that is its own only part is not cached."""
        within = [cut for cut in cuts if cut <= self.cell_length]
        return [self] if within == [self.cell_length] else super().divide(within)


class Lines(Widget):
    """A widget drawn line by line; see the module's docstring."""

    ALLOW_SELECT = False

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - the name Textual uses
        super().__init__(id=id)
        self._rows: list[Row] = []
        self._strips: list[Strip] = []
        self._role_styles: dict[str, Style] = {}
        self._drawn_for = Size(0, 0)
        self._drawn_size = Size(0, 0)
        self._unseen = False

    @abstractmethod
    def draw(self, width: int, height: int) -> list[Row]:
        """Return the rows to show; with ``height`` 0, all of them. Missing rows are blank."""

    def height_for(self, width: int) -> int:
        """Return the height for ``height: auto`` in the style sheet."""
        return len(self.draw(width, 0))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return :meth:`height_for`; Textual calls this during a layout."""
        return self.height_for(width)

    def request_layout(self) -> None:
        """Request a layout that measures the height again, even while a layout is in progress.

        Textual caches the height until the widget's styles or its count of layout requests change, and does not count
        requests made during a layout.
        """
        self.styles.merge_rules({})  # counts as a change of the styles
        self.refresh(layout=True)

    def style_of(self, role: str) -> Style:
        """Return the style of a role, or of two roles joined by ``+``, of which the second takes precedence."""
        style = self._role_styles.get(role)
        if style is None:
            first, _, second = role.partition("+")
            look = ROLES[second or first]
            background = self.background_colors[1]
            if look.background:
                background = background + self._variable(look.background)
            colour = self._variable(look.variable)
            if colour.ansi is None:
                colour = background.blend(colour, look.strength * colour.a, 1.0)
            bold = look.bold or ROLES[first].bold
            # ANSI colours cannot be blended; the terminal can dim them.
            dim = True if colour.ansi is not None and look.strength < 1 else None
            style = Style(color=colour.rich_color, bgcolor=background.rich_color, bold=bold, dim=dim)
            self._role_styles[role] = style
        return style

    def _variable(self, name: str) -> Color:
        return Color.parse(self.app.theme_variables[name])

    def notify_style_update(self) -> None:
        """Invalidate cached styles when the theme or a class changes."""
        self._role_styles.clear()
        self._drawn_for = Size(0, 0)
        super().notify_style_update()

    def redraw(self) -> None:
        """Draw again, and request repainting of the lines that differ from the screen."""
        # A hidden widget keeps its outer size, but its content size is 0.
        seen = self.is_attached and self.outer_size and self.screen is self.app.screen
        size = self.size if seen else Size(0, 0)
        if not size:
            if not self._unseen:
                self._unseen = True
                self.refresh()  # or Textual would later take the old lines from its cache
            self._drawn_for = Size(0, 0)  # draw everything when it is next visible
            return
        # During a layout, the outer size may be new while the content size is still old.
        if (self.outer_size, size) != (self._drawn_for, self._drawn_size):
            self._drawn_for = Size(0, 0)
            self.refresh()
            return
        for y, row in enumerate(self._complete(size)):
            if row != self._rows[y]:
                self._rows[y] = row
                self._strips[y] = self._strip(row, size.width)
                # For a widget with `render_line`, Textual keeps every distinct region ever refreshed, so always refresh
                # the whole line. The terminal output finds the cells that differ.
                self.refresh(Region(0, y, size.width, 1))

    def render_line(self, y: int) -> Strip:
        # Compare the outer size, because computing the content size needs the whole layout.
        if self.outer_size != self._drawn_for:
            self._drawn_size = size = self.size
            self._unseen = False
            self._rows = self._complete(size)
            self._strips = [self._strip(row, size.width) for row in self._rows]
            self._drawn_for = self.outer_size
        if y < len(self._strips):
            return self._strips[y]
        width = self.size.width
        return Strip([Segment(" " * width, self.style_of("text"))], width)

    def render_lines(self, crop: Region) -> list[Strip]:
        return [_Line(strip, strip.cell_length) for strip in super().render_lines(crop)]

    def _complete(self, size: Size) -> list[Row]:
        """Draw exactly one row per line, each as wide as the widget."""
        rows = [_pad(row, size.width) for row in self.draw(size.width, size.height)[: size.height]]
        rows.extend([[(" " * size.width, "text")]] * (size.height - len(rows)))
        return rows

    def _strip(self, row: Row, width: int) -> Strip:
        return Strip([Segment(text, self.style_of(role)) for text, role in row], width)


def _pad(row: Row, width: int) -> Row:
    """Return a row of exactly ``width`` cells, without empty spans."""
    row = fit([span for span in row if span[0]], width)
    missing = width - row_width(row)
    if missing > 0:
        row = [*row, (" " * missing, "text")]
    return row


#: Returns rows for a width and a height; height 0 = as many as it wants.
Painter = Callable[[int, int], list[Row]]


class Painted(Lines):
    """Lines drawn by a function."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._painter: Painter | None = None
        self._height = 0

    def paint(self, painter: Painter) -> None:
        """Set the function, and draw with it."""
        self._painter = painter
        wanted = self.height_for(self.size.width) if self.size.width else 0
        if wanted != self._height:
            self._height = wanted
            self.request_layout()
        self.redraw()

    def draw(self, width: int, height: int) -> list[Row]:
        """Call the function; an ellipsis marks content that does not fit."""
        rows = self._painter(width, height) if self._painter is not None and width else []
        if 0 < height < len(rows):
            last = fit(rows[height - 1], width - 2, ellipsis="")
            rows = [*rows[: height - 1], [*last, (f" {glyphs.ELLIPSIS}", "dim")]]
        return rows


class Heading(Lines):
    """A horizontal rule with a title, and a remark at the right end."""

    DEFAULT_CSS = "Heading { height: 1; }"

    def __init__(self, title: str, *, id: str | None = None) -> None:  # noqa: A002 - the name Textual uses
        super().__init__(id=id)
        self._title = title
        self._remark: Row = []

    def show(self, title: str, remark: Row | None = None) -> None:
        self._title, self._remark = title, remark or []
        self.redraw()

    def draw(self, width: int, height: int) -> list[Row]:
        left: Row = (
            [(glyphs.RULE * 2 + " ", "rule"), (self._title, "title"), (" ", "text")] if self._title else []
        )
        right: Row = [(" ", "text"), *self._remark, (" " + glyphs.RULE, "rule")] if self._remark else []
        gap = width - row_width(left) - row_width(right)
        if gap < 1:
            return [fit(left, width)]
        return [[*left, (glyphs.RULE * gap, "rule"), *right]]


class Flowing(Lines):
    """Text with automatic height, which requests a layout only when its height changes."""

    _height = -1

    def _fit_height(self) -> None:
        width = self.size.width
        wanted = len(self.draw(width, 0)) if width else -1
        if self.is_attached and (wanted != self._height or not width):
            self._height = wanted
            self.request_layout()
        self.redraw()


class VerdictLine(Flowing):
    """A sentence of up to two lines, after a bar in the colour of its level."""

    DEFAULT_CSS = "VerdictLine { height: auto; max-height: 2; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._sentence = ""
        self._level: Level | None = None

    def show(self, sentence: str, level: Level | None = None) -> None:
        """Show a sentence, which may be untrusted; without a level, the verdict is still pending."""
        self._sentence = sanitize(sentence)
        self._level = level
        self._fit_height()

    def draw(self, width: int, height: int) -> list[Row]:
        return verdict_rows(wrap(self._sentence, max(width - 4, 8), height or 2), self._level)
