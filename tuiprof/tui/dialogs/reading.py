"""A window of text over the screen, for example rules or remarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen

from tuiprof.tui.terminal.keys import key
from tuiprof.tui.widgets.bars import KeyBar
from tuiprof.tui.widgets.lines import Heading, Painted, Row
from tuiprof.tui.widgets.spans import wrap

Paragraph = tuple[str, str]


class ReadingScreen(ModalScreen[None], inherit_bindings=False):
    """Shows paragraphs until it is closed.

    Args:
        title: Heading; safe for a terminal.
        paragraphs: Text and role of each; an empty text is a blank line. Leading blanks indent wrapped lines.
        opened_by: Action of the screen below that opened it: its key closes it again; empty = any other way.
    """

    DEFAULT_CSS = """
    ReadingScreen {
        align: center middle;
        & > Vertical {
            width: 96; max-width: 92%; height: auto; max-height: 90%;
            background: $background; border: round $primary; padding: 0 1;
        }
        & VerticalScroll { height: auto; max-height: 100%; scrollbar-size: 1 1; scrollbar-background: $background; }
        & Painted { height: auto; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        key("escape,q,enter", "close", "close", "Close this window", id="reading.close", group="Window"),
    ]

    def __init__(self, title: str, paragraphs: Sequence[Paragraph], *, opened_by: str = "") -> None:
        super().__init__()
        self._opened_by = opened_by
        self._title = title
        self._paragraphs = paragraphs

    def compose(self) -> ComposeResult:
        """Lay out the window."""
        with Vertical():
            yield Heading(self._title)
            with VerticalScroll():
                yield Painted()
            yield KeyBar()

    def on_mount(self) -> None:
        """Fill in the text."""
        self.query_one(Painted).paint(self._draw)
        self.query_one(VerticalScroll).focus()

    def _draw(self, width: int, height: int) -> list[Row]:
        rows: list[Row] = []
        for text, role in self._paragraphs:
            rows.extend(paragraph(text, role, width))
        return rows

    def on_key(self, event: events.Key) -> None:
        """Close the window with the key that opened it, whatever it is configured to be."""
        below = self.app.screen_stack[-2].active_bindings.get(event.key) if self._opened_by else None
        if below is not None and below.binding.action == self._opened_by:
            event.stop()
            self.dismiss()

    def action_close(self) -> None:
        """Close the window."""
        self.dismiss()


def paragraph(text: str, role: str, width: int) -> list[Row]:
    """Wrap a paragraph, keeping its indent."""
    bare = text.lstrip(" ")
    indent = " " * (len(text) - len(bare))
    return [[(indent + line, role)] for line in wrap(bare, max(width - len(indent), 8))]
