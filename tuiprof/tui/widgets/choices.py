"""A selection list with headings and a cursor."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.message import Message

from tuiprof.tui.terminal import glyphs
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.widgets.lines import Lines
from tuiprof.tui.widgets.spans import Choice, Row, fit, row_width

_list = partial(key, group="List")

__all__ = ["Choice", "Choices"]


class Choices(Lines, can_focus=True):
    """A selection list that scrolls by itself; without choices it shows the text ``empty``."""

    BINDINGS: ClassVar[list[BindingType]] = [
        _list("up,k", "move(-1)", "up", "One entry up", id="list.up", show=False),
        _list("down,j", "move(1)", "down", "One entry down", id="list.down", show=False),
        _list("pageup", "move(-10)", "page up", "Ten entries up", id="list.page_up", show=False),
        _list("pagedown", "move(10)", "page down", "Ten entries down", id="list.page_down", show=False),
        _list("home,g", "edge(0)", "first", "Go to the first entry", id="list.first", show=False),
        _list("end,G", "edge(1)", "last", "Go to the last entry", id="list.last", show=False),
        _list("enter", "choose", "open", "Open the selected entry", id="list.open"),
    ]

    @dataclass(eq=False)
    class Moved(Message):
        """The cursor moved to another choice."""

        choices: Choices
        key: str  # of the choice under the cursor; empty = none

        @property
        def control(self) -> Choices:
            return self.choices

    class Chosen(Moved):
        """The choice under the cursor was opened."""

    def __init__(self, *, id: str | None = None, empty: str = "") -> None:  # noqa: A002
        super().__init__(id=id)
        self._choices: list[Choice] = []
        self._cursor = -1
        self._top = 0
        self._empty = empty

    def show(self, choices: list[Choice]) -> None:
        """Show these choices; the cursor stays on the same key if it is still there."""
        before = self.current
        self._choices = choices
        keys = [choice.key for choice in choices]
        if before and before in keys:
            self._cursor = keys.index(before)
        else:
            self._cursor = min(max(self._cursor, 0), len(keys) - 1)
            if not 0 <= self._cursor < len(keys) or not keys[self._cursor]:
                self._cursor = next((index for index, key in enumerate(keys) if key), -1)
        if self.current != before:
            self.post_message(self.Moved(self, self.current))
        if self.styles.is_auto_height and len(choices) != self.size.height:
            self.request_layout()
        self.redraw()

    @property
    def current(self) -> str:
        """Key of the choice under the cursor; empty = none."""
        return self._choices[self._cursor].key if 0 <= self._cursor < len(self._choices) else ""

    def move_to(self, key: str) -> None:
        """Move the cursor to a choice, if the list has it."""
        found = [index for index, choice in enumerate(self._choices) if choice.key == key]
        if found:
            self._set(found[0])

    def draw(self, width: int, height: int) -> list[Row]:
        if not self._choices:
            return [[(f" {self._empty}", "dim")]]
        height = height or len(self._choices)
        if 0 <= self._cursor < len(self._choices):
            # Keep a heading in view with the first item below it.
            first = (
                self._cursor - 1 if self._cursor and not self._choices[self._cursor - 1].key else self._cursor
            )
            self._top = min(max(self._top, self._cursor - height + 1), first)
        self._top = max(0, min(self._top, len(self._choices) - height))
        rows = []
        for index, choice in enumerate(self._choices[self._top : self._top + height], self._top):
            here = index == self._cursor
            mark = glyphs.CURSOR if here else " "
            line = fit([(mark.rjust(choice.indent), "accent"), *choice.draw(width - choice.indent)], width)
            if here and self.has_focus:
                line = [*line, (" " * (width - row_width(line)), "text")]
                line = [(text, f"{role}+cursor") for text, role in line]
            elif here:
                line = [(text, "strong" if role == "text" else role) for text, role in line]
            rows.append(line)
        return rows

    def on_focus(self) -> None:
        self.redraw()

    def on_blur(self) -> None:
        """Remove the highlight; the cursor's mark stays."""
        self.redraw()

    def _set(self, index: int) -> None:
        if index != self._cursor:
            self._cursor = index
            self.redraw()
            self.post_message(self.Moved(self, self.current))

    def action_move(self, by: int) -> None:
        """Move the cursor by a number of items, skipping headings."""
        items = [index for index, choice in enumerate(self._choices) if choice.key]
        if items:
            here = items.index(self._cursor) if self._cursor in items else 0
            self._set(items[min(max(here + by, 0), len(items) - 1)])

    def action_edge(self, last: int) -> None:
        """Move the cursor to the first (0) or last (1) item."""
        self.action_move(len(self._choices) if last else -len(self._choices))

    def action_choose(self) -> None:
        if self.current:
            self.post_message(self.Chosen(self, self.current))

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the clicked line; a double click opens it."""
        index = self._top + event.y
        if 0 <= index < len(self._choices) and self._choices[index].key:
            if index == self._cursor and event.chain > 1:
                self.action_choose()
            self._set(index)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.action_move(-1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.action_move(1)
