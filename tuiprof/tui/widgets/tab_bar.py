"""One line of tabs: a key, a title, a mark for the importance of its content, and the figure that ranks it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from textual import events
from textual.message import Message

from tuiprof.tui.widgets.lines import Lines, Row, row_width

#: Roles of tabs that ask for action.
_ASKING: Final = ("bad", "warn")


@dataclass(frozen=True, slots=True)
class Tab:
    """One tab.

    Attributes:
        name: What it is called in code.
        title: What it says; safe for a terminal.
        mark: One sign after the title; may be empty.
        role: Role of the sign.
        number: The figure that ranks it, such as ``5 %``; empty = none.
        key: The key that opens it; empty = none.
        pinned: Whether it is always in view.
    """

    name: str
    title: str
    mark: str = ""
    role: str = "dim"
    number: str = ""
    key: str = ""
    pinned: bool = False


class TabBar(Lines):
    """Tabs in one line.

    Where not all fit: the current and the pinned ones, those that ask for action or have a figure, then those around.
    """

    DEFAULT_CSS = "TabBar { height: 1; }"

    class Chosen(Message):
        """A tab was clicked."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    class MoreWanted(Message):
        """The separate list of tabs is requested."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._tabs: list[Tab] = []
        self._current = ""
        self._remark = ""
        self._more: Row = []
        self._more_at = (0, 0)
        self._places: list[tuple[int, int, str]] = []

    def show(self, tabs: list[Tab], current: str, remark: str, more: tuple[str, int] | None = None) -> None:
        """Show tabs.

        Args:
            tabs: The tabs in order.
            current: Name of the one that is open.
            remark: Text at the right end; safe for a terminal.
            more: The key that lists other tabs, and how many those are; None = there are none.
        """
        self._tabs, self._current, self._remark = tabs, current, remark
        self._more = []
        if more is not None:
            self._more = [(f" {more[0]}", "key"), (f" more {more[1]} ▾ ", "dim")]
        self.redraw()

    def draw(self, width: int, height: int) -> list[Row]:
        """Draw the one line."""
        pieces = [self._piece(tab) for tab in self._tabs]
        widths = [row_width(piece) for piece in pieces]
        here = next((i for i, tab in enumerate(self._tabs) if tab.name == self._current), 0)
        remark: Row = [(f" {self._remark} ", "accent"), ("─", "rule")] if self._remark else []
        room = width - 4 - row_width(self._more)
        kept = {here, *(i for i, tab in enumerate(self._tabs) if tab.pinned)} if self._tabs else set()
        if sum(widths[i] for i in kept) + row_width(remark) > room:
            remark = []
        room -= row_width(remark)
        asking = [i for i, tab in enumerate(self._tabs) if tab.role in _ASKING]
        asking += [i for i, tab in enumerate(self._tabs) if tab.number and i not in asking]
        shown = self._shown(widths, here, kept, asking, room)
        left_out = len(pieces) - len(shown)
        row: Row = [("‹ " if shown and shown[0] else "──", "rule")]
        self._places = []
        at, before = 2, -1
        for index in shown:
            if index > before + 1 and before >= 0:
                row.append(("…", "rule"))
                at += 1
            self._places.append((at, at + widths[index], self._tabs[index].name))
            row.extend(pieces[index])
            at += widths[index]
            before = index
        self._more_at = (at, at + row_width(self._more))
        row.extend(self._more)
        end: Row = [(" ›" if left_out and shown and shown[-1] < len(pieces) - 1 else "──", "rule")]
        gap = max(width - row_width(row) - row_width(remark) - 2, 0)
        return [[*row, ("─" * gap, "rule"), *remark, *end]]

    @staticmethod
    def _shown(widths: list[int], here: int, kept: set[int], asking: list[int], room: int) -> list[int]:
        """Return which tabs there is room for, the kept ones in any case."""
        shown = set(kept)
        # A sign marks where some are left out.
        used = sum(widths[i] for i in shown) + len(kept)
        for index in [*asking, *range(here - 1, -1, -1), *range(here + 1, len(widths))]:
            if index not in shown and used + widths[index] <= room:
                shown.add(index)
                used += widths[index]
        return sorted(shown)

    def _piece(self, tab: Tab) -> Row:
        current = tab.name == self._current
        row: Row = [(f" {tab.key} " if tab.key else " ", "cursor" if current else "key")]
        row.append((tab.title, "cursor" if current else "dim"))
        if tab.mark:
            row.append((f" {tab.mark}", "cursor" if current else tab.role))
        if tab.number:
            row.append((f" {tab.number}", "cursor" if current else tab.role))
        row.append((" ", "cursor" if current else "text"))
        return row

    def on_click(self, event: events.Click) -> None:
        """Choose the tab under the pointer, or list the others."""
        if self._more_at[0] <= event.x < self._more_at[1]:
            self.post_message(self.MoreWanted())
        for begin, end, name in self._places:
            if begin <= event.x < end:
                self.post_message(self.Chosen(name))
