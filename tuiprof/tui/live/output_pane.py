"""The output of the script, as text: followed while it grows, scrolled back with the keys."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import ClassVar, Final

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input

from tuiprof.report.sanitize import sanitize
from tuiprof.session.live.replay import Replay
from tuiprof.session.store.output import OutputReader
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.widgets.lines import Heading, Lines, Row

#: Lines kept in memory; the files have all.
_KEEP_LINES: Final = 2000


class OutputPane(Lines, can_focus=True):
    """Standard output and standard error together, in the order in which they arrive here.

    Attributes:
        following: The newest line is at the bottom and stays there.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        key("up,k", "scroll(-1)", "up", "One line up", id="output.up", group="Output", show=False),
        key("down,j", "scroll(1)", "down", "One line down", id="output.down", group="Output", show=False),
        key("pageup", "page(-1)", "page up", "One page up", id="output.page_up", group="Output", show=False),
        key(
            "pagedown",
            "page(1)",
            "page down",
            "One page down",
            id="output.page_down",
            group="Output",
            show=False,
        ),
        key("home,g", "top", "start", "Go to the first line", id="output.home", group="Output", show=False),
        key(
            "end,G", "follow", "follow", "Follow the newest line", id="output.end", group="Output", show=False
        ),
        key(
            "n",
            "match(1)",
            "next match",
            "Go to the next match",
            id="output.next",
            group="Output",
        ),
        key(
            "N",
            "match(-1)",
            "previous match",
            "Go to the previous match",
            id="output.before",
            group="Output",
            show=False,
        ),
        key(
            "escape",
            "search_end",
            "end search",
            "End the search",
            id="output.unsearch",
            group="Output",
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
        self._paths: tuple[Path, Path] | None = None
        self._until: tuple[int, int] | None = None
        self._sought = ""
        self._match = -1  # index of the line that was gone to

    def open(self, stdout: Path, stderr: Path) -> None:
        """Show these two files."""
        self.close()
        self._paths = stdout, stderr
        self._readers = [(OutputReader(stdout), "text"), (OutputReader(stderr), "warn")]
        self._lines, self._unfinished, self.following = [], [], True

    def show_until(self, sizes: tuple[int, int] | None) -> None:
        """Show only what was printed up to a moment."""
        if sizes == self._until:
            return
        back = sizes is not None and any(
            reader.position > size for (reader, _), size in zip(self._readers, sizes, strict=True)
        )
        jumped = sizes is None and self._until is not None
        self._until = sizes
        if (back or jumped) and self._paths is not None:
            self.open(*self._paths)

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
        for (reader, role), until in zip(self._readers, self._until or (None, None), strict=True):
            self._lines.extend((line, role) for line in reader.poll(until=until))
            if rest := reader.unfinished:
                unfinished.append((rest, role))
        self._unfinished = unfinished
        changed = (len(self._lines), unfinished) != before
        if changed:
            if len(self._lines) > _KEEP_LINES * 1.1:
                cut = len(self._lines) - _KEEP_LINES
                self._lines = self._lines[cut:]
                self._bottom = max(0, self._bottom - cut)
                self._match -= cut
            self._moved()
        return changed

    @property
    def position(self) -> str:
        """Which part of the output is visible, for the heading."""
        total = len(self._lines) + len(self._unfinished)
        if self._sought:
            found = self._matches()
            position = f"{found.index(self._match) + 1} of " if self._match in found else ""
            return f"{position}{len(found)} with {sanitize(self._sought)!r} · esc ends"
        if self.following or not total:
            return ""
        return f"line {self._bottom} of {total} · end follows"

    def last_errors(self, count: int) -> list[str]:
        """Return the last lines of standard error."""
        lines = [text for text, role in [*self._lines, *self._unfinished] if role == "warn" and text.strip()]
        return lines[-count:]

    def draw(self, width: int, height: int) -> list[Row]:
        """Draw the visible lines; those of standard error carry a mark."""
        lines = (
            [*self._lines[-height:], *self._unfinished][-height:] if self.following else self._window(height)
        )
        if not lines:
            return [[(f" {self._why_empty}", "dim")]]
        return [self._line(text, role) for text, role in lines]

    def _line(self, text: str, role: str) -> Row:
        """Return a line with its mark and search matches."""
        mark = ("▏" if role == "warn" else " ", "warn")
        at = text.casefold().find(self._sought.casefold()) if self._sought else -1
        if at < 0 or len(text.casefold()) != len(text):  # where lower case is longer, places differ
            return [mark, (text, role)]
        end = at + len(self._sought)
        return [mark, (text[:at], role), (text[at:end], f"{role}+cursor"), (text[end:], role)]

    # -- searching ---------------------------------------------------------------------------------------

    def search(self, text: str) -> int:
        """Mark a text, and go to the last line that holds it.

        Returns:
            How many of the lines in memory hold it.
        """
        self._sought, self._match = text, len(self._lines)
        found = self._matches()
        if found:
            self.action_match(-1)
        else:
            self._moved()
        self.refresh_bindings()
        return len(found)

    def _matches(self) -> list[int]:
        sought = self._sought.casefold()
        return (
            [index for index, (text, _) in enumerate(self._lines) if sought in text.casefold()]
            if sought
            else []
        )

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Pass keys to the screen if they have no effect here."""
        if action in ("match", "search_end"):
            return bool(self._sought)
        if action == "follow":
            return not self.following
        return True

    def action_match(self, by: int) -> None:
        """Go to the next or the previous match, wrapping around at the ends."""
        found = self._matches()
        if not found:
            return
        after = [index for index in found if (index > self._match if by > 0 else index < self._match)]
        self._match = (after[0] if by > 0 else after[-1]) if after else (found[0] if by > 0 else found[-1])
        height = max(1, self.size.height)
        total = len(self._lines) + len(self._unfinished)
        self._bottom = min(max(self._match + height // 2, min(height, total)), total)
        self.following = False
        self._moved()

    def action_search_end(self) -> None:
        """Clear the marks."""
        self.search("")

    def _window(self, height: int) -> list[tuple[str, str]]:
        """Return the lines that are visible when scrolled back."""
        everything = [*self._lines, *self._unfinished]
        return everything[max(0, self._bottom - height) : max(height, self._bottom)]

    def action_scroll(self, by: int) -> None:
        """Scroll by lines."""
        total = len(self._lines) + len(self._unfinished)
        height = max(1, self.size.height)
        bottom = total if self.following else self._bottom
        self._bottom = min(max(bottom + by, min(height, total)), total)
        self.following = self._bottom >= total and by > 0
        self._moved()

    def action_page(self, pages: int) -> None:
        """Scroll by pages."""
        self.action_scroll(pages * max(1, self.size.height - 1))

    def action_top(self) -> None:
        """Go to the first line kept."""
        self.action_scroll(-len(self._lines) - 1)

    def action_follow(self) -> None:
        """Follow the newest line."""
        self.following = True
        self._moved()
        self.refresh_bindings()

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


class OutputBox(Vertical):
    """The output below a heading with the position in it, and a field to search it."""

    def __init__(self, stdout: Path, stderr: Path, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._paths = stdout, stderr
        self._untimed = False  # of a replay whose session has no times of its output
        self._polled_s = -math.inf

    @property
    def pane(self) -> OutputPane:
        """The output itself."""
        return self.query_one(OutputPane)

    def compose(self) -> ComposeResult:
        """The heading and the output."""
        yield Heading("output", id="output-head")
        yield OutputPane(id="output")

    def on_mount(self) -> None:
        """Open the files."""
        self.pane.open(*self._paths)

    def follow(self, stdout: Path, stderr: Path) -> None:
        """Show these files from now on."""
        self._paths = stdout, stderr
        self.pane.open(stdout, stderr)

    def poll(self, replay: Replay | None, *, at_once: bool) -> None:
        """Show what was printed: at once after a silence, once a second in a stream of lines."""
        self._untimed = replay is not None and not replay.tells_output
        if replay is None or self._untimed or replay.over:
            self.pane.show_until(None)
        else:
            self.pane.show_until(replay.fold.printed or (0, 0))
        now_s = time.monotonic()
        if (at_once or now_s - self._polled_s >= 1.0) and self.pane.poll():
            self._polled_s = now_s

    def on_output_pane_moved(self) -> None:
        """Say where in the output the pane is."""
        self.show_position()

    def show_position(self) -> None:
        """Say in the heading which part of the output is shown."""
        remark = self.pane.position
        if not remark and self._untimed:
            remark = "the whole output: this session recorded no times for it"
        self.query_one("#output-head", Heading).show("output", [(remark, "dim")] if remark else [])

    async def ask_for_text(self) -> None:
        """Open a field for what to search for."""
        if not self.query("#search"):
            field = Input(placeholder="search the output", id="search", compact=True)
            await self.mount(field, before=self.pane)
        self.screen.set_focus(self.query_one("#search"))

    def close_field(self) -> bool:
        """Close the field; return whether it was open."""
        fields = self.query("#search")
        if fields:
            fields.remove()
            self.pane.focus()
        return bool(fields)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Go to the last line that holds what was typed."""
        event.stop()
        self.close_field()
        self.pane.search(event.value)
