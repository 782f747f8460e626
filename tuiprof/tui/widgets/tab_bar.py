"""One line of tabs: a digit, a title, and a mark for the weight of what is behind it."""

from __future__ import annotations

from dataclasses import dataclass

from textual import events
from textual.message import Message

from tuiprof.tui.widgets.lines import Lines, Row, row_width


@dataclass(frozen=True, slots=True)
class Tab:
    """One tab.

    Attributes:
        name: What it is called in code.
        title: What it says; safe for a terminal.
        mark: One sign behind the title; may be empty.
        role: Role of the sign.
    """

    name: str
    title: str
    mark: str = ""
    role: str = "dim"


class TabBar(Lines):
    """Tabs in one line; where they do not fit, those around the current one show."""

    DEFAULT_CSS = "TabBar { height: 1; }"

    class Chosen(Message):
        """A tab was clicked.

        Attributes:
            name: Its name.
        """

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._tabs: list[Tab] = []
        self._current = ""
        self._remark = ""
        self._places: list[tuple[int, int, str]] = []

    def show(self, tabs: list[Tab], current: str, remark: str) -> None:
        """Show tabs.

        Args:
            tabs: The tabs in order; the first nine go by digit.
            current: Name of the one that is open.
            remark: What stands at the right end; safe for a terminal.
        """
        self._tabs, self._current, self._remark = tabs, current, remark
        self.redraw()

    def draw(self, width: int, height: int) -> list[Row]:
        """Draw the one line."""
        pieces = [self._piece(number, tab) for number, tab in enumerate(self._tabs, 1)]
        widths = [row_width(piece) for piece in pieces]
        here = next((i for i, tab in enumerate(self._tabs) if tab.name == self._current), 0)
        remark: Row = [(f" {self._remark} ", "accent"), ("─", "rule")] if self._remark else []
        room = width - 4
        if sum(widths) + row_width(remark) <= room:
            room -= row_width(remark)
        else:
            remark = remark if sum(widths[here : here + 1]) + row_width(remark) <= room else []
            room -= row_width(remark)
        first, last = 0, here + 1
        while first < here and sum(widths[first:last]) > room:
            first += 1
        while last < len(pieces) and sum(widths[first : last + 1]) <= room:
            last += 1
        row: Row = [("‹ " if first else "──", "rule")]
        self._places = []
        at = 2
        for index in range(first, last):
            self._places.append((at, at + widths[index], self._tabs[index].name))
            row.extend(pieces[index])
            at += widths[index]
        end: Row = [(" ›" if last < len(pieces) else "──", "rule")]
        gap = max(width - row_width(row) - row_width(remark) - 2, 0)
        return [[*row, ("─" * gap, "rule"), *remark, *end]]

    def _piece(self, number: int, tab: Tab) -> Row:
        digit = f"{number} " if number < 10 else ""
        current = tab.name == self._current
        row: Row = [(f" {digit}", "cursor" if current else "key")]
        row.append((tab.title, "cursor" if current else "dim"))
        if tab.mark:
            row.append((f" {tab.mark}", "cursor" if current else tab.role))
        row.append((" ", "cursor" if current else "text"))
        return row

    def on_click(self, event: events.Click) -> None:
        """Choose the tab under the pointer."""
        for begin, end, name in self._places:
            if begin <= event.x < end:
                self.post_message(self.Chosen(name))
