"""What the script prints, as text: followed while it grows, scrolled back with the keys."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Final

from textual import events
from textual.binding import BindingType
from textual.message import Message

from tuiprof.session.output import OutputReader
from tuiprof.tui.keys import key
from tuiprof.tui.widgets.lines import Lines, Row

_KEEP_LINES: Final = 10_000


class OutputPane(Lines, can_focus=True):
    """Standard output and standard error together, in the order in which they arrive here.

    Attributes:
        following: The newest line is at the bottom and stays there.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        key("up,k", "scroll(-1)", "up", "One line back", id="output.up", group="Output", show=False),
        key("down,j", "scroll(1)", "down", "One line on", id="output.down", group="Output", show=False),
        key(
            "pageup", "page(-1)", "page up", "One page back", id="output.page_up", group="Output", show=False
        ),
        key(
            "pagedown",
            "page(1)",
            "page down",
            "One page on",
            id="output.page_down",
            group="Output",
            show=False,
        ),
        key("home,g", "top", "start", "First line kept", id="output.home", group="Output", show=False),
        key(
            "end,G", "follow", "follow", "Follow the newest line", id="output.end", group="Output", show=False
        ),
    ]

    class Moved(Message):
        """The visible part changed: scrolled, or new lines came."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - the name Textual uses
        super().__init__(id=id)
        self.following = True
        self._lines: list[tuple[str, str]] = []
        self._unfinished: list[tuple[str, str]] = []
        self._readers: list[tuple[OutputReader, str]] = []
        self._bottom = 0  # index after the last visible line when not following
        self._why_empty = "nothing printed yet"

    def open(self, stdout: Path, stderr: Path) -> None:
        """Show these two files.

        Args:
            stdout: The script's standard output; need not exist yet.
            stderr: Its standard error.
        """
        self.close()
        self._readers = [(OutputReader(stdout), "text"), (OutputReader(stderr), "warn")]
        self._lines, self._unfinished, self.following = [], [], True

    def close(self) -> None:
        """Close the files."""
        for reader, _ in self._readers:
            reader.close()
        self._readers = []

    def on_unmount(self) -> None:
        """Close the files with the screen."""
        self.close()

    def poll(self) -> bool:
        """Take up what was printed since; return whether there was anything."""
        before = (len(self._lines), self._unfinished)
        unfinished = []
        for reader, role in self._readers:
            self._lines.extend((line, role) for line in reader.poll())
            if rest := reader.unfinished:
                unfinished.append((rest, role))
        self._unfinished = unfinished
        changed = (len(self._lines), unfinished) != before
        if changed:
            if len(self._lines) > _KEEP_LINES + 1000:
                cut = len(self._lines) - _KEEP_LINES
                self._lines = self._lines[cut:]
                self._bottom = max(0, self._bottom - cut)
            self._moved()
        return changed

    @property
    def position(self) -> str:
        """Where in the output the pane stands, for its heading."""
        total = len(self._lines) + len(self._unfinished)
        if self.following or not total:
            return ""
        return f"line {self._bottom} of {total} · end follows"

    def last_errors(self, count: int) -> list[str]:
        """Return the last lines of standard error.

        Args:
            count: At most so many.
        """
        lines = [text for text, role in [*self._lines, *self._unfinished] if role == "warn" and text.strip()]
        return lines[-count:]

    def draw(self, width: int, height: int) -> list[Row]:
        """Draw the visible lines; those of standard error carry a mark."""
        lines = (
            [*self._lines[-height:], *self._unfinished][-height:] if self.following else self._window(height)
        )
        if not lines:
            return [[(f" {self._why_empty}", "dim")]]
        return [[("▏" if role == "warn" else " ", "warn"), (text, role)] for text, role in lines]

    def _window(self, height: int) -> list[tuple[str, str]]:
        """Return the lines that are visible when scrolled back."""
        everything = [*self._lines, *self._unfinished]
        return everything[max(0, self._bottom - height) : max(height, self._bottom)]

    def action_scroll(self, by: int) -> None:
        """Scroll by lines.

        Args:
            by: Lines; negative = back.
        """
        total = len(self._lines) + len(self._unfinished)
        height = max(1, self.size.height)
        bottom = total if self.following else self._bottom
        self._bottom = min(max(bottom + by, min(height, total)), total)
        self.following = self._bottom >= total and by > 0
        self._moved()

    def action_page(self, pages: int) -> None:
        """Scroll by pages.

        Args:
            pages: Pages; negative = back.
        """
        self.action_scroll(pages * max(1, self.size.height - 1))

    def action_top(self) -> None:
        """Go to the first line kept."""
        self.action_scroll(-len(self._lines) - 1)

    def action_follow(self) -> None:
        """Follow the newest line."""
        self.following = True
        self._moved()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Scroll back with the wheel."""
        event.stop()
        self.action_scroll(-3)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Scroll on with the wheel."""
        event.stop()
        self.action_scroll(3)

    def _moved(self) -> None:
        self.redraw()
        self.post_message(self.Moved())
