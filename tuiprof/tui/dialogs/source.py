"""The source of a scenario, to read: highlighted, with line numbers, never run or changed here."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Final

from rich.syntax import Syntax
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Static

from tuiprof.report.sanitize import sanitize
from tuiprof.system.files import read_small
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.widgets.bars import KeyBar
from tuiprof.tui.widgets.lines import Heading, Painted, spread

#: No script to read has more bytes.
_LARGEST: Final = 4 << 20


class SourceScreen(Screen[None], inherit_bindings=False):
    """Shows a file.

    Args:
        path: It.
        find: Begin at the first line below the header that holds this in quotes; empty = at the top.
    """

    CSS = """
    SourceScreen #head { height: 1; }
    SourceScreen VerticalScroll { height: 1fr; scrollbar-size: 1 1; }
    SourceScreen Static { width: auto; }
    """
    HELP = "The script as it lies on disk. Copy it, change it, and run it under `tuiprof run -- python FILE`."
    BINDINGS: ClassVar[list[BindingType]] = [
        key("up,k", "scroll(-1)", "up", "One line up", id="source.up", group="Source", show=False),
        key("down,j", "scroll(1)", "down", "One line down", id="source.down", group="Source", show=False),
        key("pageup", "page(-1)", "page up", "One page up", id="source.page_up", group="Source"),
        key("pagedown,space", "page(1)", "page down", "One page down", id="source.page_down", group="Source"),
        key("home,g", "edge(0)", "start", "Go to the first line", id="source.start", group="Source"),
        key("end,G", "edge(1)", "end", "Go to the last line", id="source.end", group="Source"),
        key(
            "escape,q", "close", "back", "Back to the library", id="source.close", group="Source", display="q"
        ),
    ]

    def __init__(self, path: Path, find: str = "") -> None:
        super().__init__()
        self._path = path
        self._find = find
        self._first = 0

    def compose(self) -> ComposeResult:
        """Name, text, keys."""
        yield Painted(id="head")
        yield Heading("")
        with VerticalScroll(can_focus=False):
            yield Static(self._text(), markup=False)
        yield KeyBar()

    def on_mount(self) -> None:
        """Say which file it is, and go to the place."""
        name, folder = sanitize(self._path.name), sanitize(str(self._path.parent))
        self.query_one("#head", Painted).paint(
            lambda width, _: [spread([(f" {name}", "title")], [(f"{folder} ", "dim")], width)]
        )
        if self._first:
            self.call_after_refresh(self.query_one(VerticalScroll).scroll_to, y=self._first, animate=False)

    def _text(self) -> Syntax | str:
        try:
            lines = read_small(self._path, _LARGEST).decode("utf-8", "replace").splitlines()
        except OSError as error:
            return f"{sanitize(str(self._path))} cannot be read: {error.strerror}"
        body = next(
            (index for index, line in enumerate(lines) if line.strip() and not line.startswith("#")), 0
        )
        if self._find:
            quoted = (f'"{self._find}"', f"'{self._find}'")
            self._first = next(
                (
                    index
                    for index, line in enumerate(lines)
                    if index > body and any(q in line for q in quoted)
                ),
                0,
            )
        theme = "monokai" if self.app.current_theme.dark else "friendly"
        text = "\n".join(sanitize(line.expandtabs(4)) for line in lines)
        return Syntax(
            text,
            "python",
            theme=theme,
            line_numbers=True,
            background_color="default",
            highlight_lines={self._first + 1} if self._first else None,
        )

    def action_scroll(self, lines: int) -> None:
        """Scroll.

        Args:
            lines: Lines; negative = up.
        """
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def action_page(self, pages: int) -> None:
        """Scroll by pages.

        Args:
            pages: Pages; negative = up.
        """
        box = self.query_one(VerticalScroll)
        box.scroll_relative(y=pages * max(1, box.size.height - 1), animate=False)

    def action_edge(self, last: int) -> None:
        """Go to the first or the last line.

        Args:
            last: 1 = the last.
        """
        box = self.query_one(VerticalScroll)
        (box.scroll_end if last else box.scroll_home)(animate=False)

    def action_close(self) -> None:
        """Go back."""
        self.app.pop_screen()
