"""Bars of one line: the keys at the bottom, the tabs, and scroll bars drawn as thin lines."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from rich.color import Color
from rich.segment import Segment, Segments
from rich.style import Style
from textual import events
from textual.message import Message
from textual.screen import Screen
from textual.scrollbar import ScrollBar, ScrollBarRender

from tuiprof.tui.widgets.lines import Lines, Row, row_width

#: The keys that every screen has, by action: at the right edge, in this order.
_EVERYWHERE: Final = ("command_palette", "help", "leave", "quit")
#: Every label of the way out has this width, so that the keys before it are at the same place on every screen.
_LEAVE_WIDTH: Final = 5
#: Below this width the palette has its key alone.
_NARROW: Final = 60


@dataclass(frozen=True, slots=True)
class _Key:
    display: str
    label: str
    key: str
    tooltip: str
    action: str


class KeyBar(Lines):
    """Keys that work at this moment; a click does the same as the key.

    Where the line is too short the last of the screen's own are left out. What every screen has (palette, help, the
    way out) is always there, at the right edge.
    """

    DEFAULT_CSS = "KeyBar { height: 1; dock: bottom; }"

    def __init__(self, words: dict[str, str] | None = None) -> None:
        """Use these labels instead of the bindings' own, by id; whoever changes them refreshes the bindings."""
        super().__init__()
        self._words = {} if words is None else words
        self._keys: list[_Key] = []
        self._places: list[tuple[int, int, str, str]] = []

    def on_mount(self) -> None:
        """Follow the bindings of the screen."""
        self.screen.bindings_updated_signal.subscribe(self, self._bindings_changed)
        self._bindings_changed(self.screen)

    def _bindings_changed(self, _screen: Screen[Any]) -> None:
        """Read the keys that work now."""
        if self.is_attached and self.screen.is_active:
            self._keys = [
                _Key(
                    self.app.get_key_display(binding),
                    self._words.get(binding.id or "", binding.description),
                    key,
                    tooltip,
                    binding.action,
                )
                for key, (_node, binding, enabled, tooltip) in self.screen.active_bindings.items()
                if binding.show and enabled
            ]
            self.redraw()

    def draw(self, width: int, height: int) -> list[Row]:
        """Draw the keys of the screen from the left, as many as fit, and those of every screen at the right."""
        self._places = []
        fixed = {key.action: key for key in reversed(self._keys) if key.action in _EVERYWHERE}
        right: list[tuple[_Key, str]] = []
        for action in _EVERYWHERE:
            if (key := fixed.get(action)) is not None:
                label = key.label.ljust(_LEAVE_WIDTH) if action in ("leave", "quit") else key.label
                right.append((key, "" if action == "command_palette" and width < _NARROW else label))
        edge = width - sum(len(key.display) + len(label) + 3 for key, label in right)
        row: Row = [(" ", "text")]
        at = 1
        shown: set[str] = set()
        for key in self._keys:
            end = at + len(key.display) + len(key.label) + 1
            if key.action in fixed or key.label in shown or end > (edge - 2 if right else width):
                continue
            shown.add(key.label)
            at = self._add(row, key, key.label, at)
        if right:
            row.append((" " * (edge - at), "text"))
            at = edge
            for key, label in right:
                at = self._add(row, key, label, at)
        if row_width(row) > width:  # no space needed after the last one
            row[-1] = (row[-1][0][: len(row[-1][0]) - row_width(row) + width], row[-1][1])
        return [row]

    def _add(self, row: Row, key: _Key, label: str, at: int) -> int:
        """Add a key to the line at a cell; returns the cell after it."""
        row.extend([(key.display, "key"), (f" {label}  ", "dim")])
        end = at + len(key.display) + len(label) + 3
        self._places.append((at, end - 2, key.key, key.tooltip))
        return end

    def on_click(self, event: events.Click) -> None:
        """Do what the key under the pointer does."""
        for start, end, key, _tooltip in self._places:
            if start <= event.x < end:
                self.app.simulate_key(key)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Explain the key under the pointer."""
        found = [tip for start, end, _key, tip in self._places if start <= event.x < end]
        self.tooltip = found[0] if found else None


#: Roles of tabs that ask for action.
_ASKING: Final = ("bad", "warn")


@dataclass(frozen=True, slots=True)
class Tab:
    """One tab."""

    name: str  # what it is called in code
    title: str  # its text; safe for a terminal
    mark: str = ""  # one sign after the title; may be empty
    role: str = "dim"  # role of the sign
    number: str = ""  # the figure that ranks it, such as ``5 %``; empty = none
    key: str = ""  # the key that opens it; empty = none
    pinned: bool = False  # whether it is always in view


class TabBar(Lines):
    """Tabs in one line.

    Where not all fit: the current and the pinned ones, those that ask for action or have a figure, then those around.
    """

    DEFAULT_CSS = "TabBar { height: 1; }"

    @dataclass(eq=False)
    class Chosen(Message):
        """A tab was clicked."""

        name: str

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

    @property
    def tabs(self) -> list[Tab]:
        """The tabs, in order, whether or not there is room for all of them."""
        return self._tabs

    def show(self, tabs: list[Tab], current: str, remark: str, more: tuple[str, int] | None = None) -> None:
        """Show tabs in order, with text at the right end that is safe for a terminal.

        ``more`` is the key that lists other tabs, and how many those are; None = there are none.
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


class ScrollLine(ScrollBarRender):
    """Draws a line where the thumb is, and nothing beside it; the mouse finds both."""

    HORIZONTAL = "━"
    VERTICAL = "┃"

    @classmethod
    def render_bar(
        cls,
        size: int = 25,
        virtual_size: float = 50,
        window_size: float = 20,
        position: float = 0,
        thickness: int = 1,
        vertical: bool = True,
        back_color: Color | None = None,
        bar_color: Color | None = None,
    ) -> Segments:
        """Draw a bar."""
        across = thickness if vertical else 1
        begin = end = 0
        if window_size and size and virtual_size > window_size:
            length = min(size, max(1, ceil(size * window_size / virtual_size)))
            free, share = size - length, position / (virtual_size - window_size)
            begin = round(free * share)
            if free > 1 and 0 < share < 1:  # the line reaches an end only when the content does
                begin = max(1, min(begin, free - 1))
            end = begin + length
        cells = [
            *[_cell(" " * across, back_color, None, "scroll_up")] * begin,
            *[_cell((cls.VERTICAL if vertical else cls.HORIZONTAL) * across, back_color, bar_color, "grab")]
            * (end - begin),
            *[_cell(" " * across, back_color, None, "scroll_down")] * (size - end),
        ]
        if vertical:
            return Segments(cells, new_lines=True)
        return Segments([*cells, Segment.line()] * thickness)


def _cell(text: str, behind: Color | None, colour: Color | None, action: str) -> Segment:
    return Segment(text, Style(color=colour, bgcolor=behind, meta={"@mouse.down": action}))


def use_scroll_lines() -> None:
    """Draw every scroll bar of this process so."""
    ScrollBar.renderer = ScrollLine
