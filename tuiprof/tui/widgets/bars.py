"""One-line bars: the keys at the bottom, tabs, and scroll bars drawn as thin lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from rich.color import Color
from rich.segment import Segment, Segments
from rich.style import Style
from textual import events
from textual.binding import Binding
from textual.keys import KEY_NAME_REPLACEMENTS
from textual.message import Message
from textual.screen import Screen
from textual.scrollbar import ScrollBar, ScrollBarRender

from tuiprof.tui.widgets.lines import Lines, Row, row_width

#: Actions of the keys that every screen has, in their order at the right edge.
_EVERYWHERE: Final = ("command_palette", "help", "leave", "quit")
#: Width of the last label, so that the keys before it have the same position on every screen.
_LEAVE_WIDTH: Final = 5
#: Below this width the command palette's key has no label.
_NARROW: Final = 60
#: Keys that type a character under another name than its own: Textual does not know that a text field takes them.
_TYPED: Final = frozenset(KEY_NAME_REPLACEMENTS.values())


@dataclass(frozen=True, slots=True)
class _Key:
    display: str
    label: str
    key: str
    tooltip: str
    action: str


class KeyBar(Lines):
    """The keys that currently work, clickable.

    The keys of every screen (palette, help, quit) are always shown, at the right edge; of the screen's own keys, as
    many as fit. ``labels`` by binding id replace the bindings' own; after changing the dict, call ``refresh_bindings``.
    A widget can replace those of its own keys by a method ``key_label``, which is given the binding's id and returns
    the label; empty = the binding's own.
    """

    DEFAULT_CSS = "KeyBar { height: 1; dock: bottom; }"

    def __init__(self, labels: dict[str, str] | None = None) -> None:
        super().__init__()
        self._labels = {} if labels is None else labels
        self._keys: list[_Key] = []
        #: First cell, cell after the last, key and tooltip of each key drawn.
        self._drawn: list[tuple[int, int, str, str]] = []

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._bindings_changed)
        self._bindings_changed(self.screen)

    def _bindings_changed(self, _screen: Screen[Any]) -> None:
        if self.is_attached and self.screen.is_active:
            focused = self.screen.focused
            typing = focused is not None and focused.check_consume_key("a", "a")
            self._keys = [
                _Key(
                    self._display(binding, typing=typing),
                    self._labels.get(binding.id or "") or _label_of(node, binding),
                    key,
                    tooltip,
                    binding.action,
                )
                for key, (node, binding, enabled, tooltip) in self.screen.active_bindings.items()
                if binding.show and enabled and not (typing and key in _TYPED)
            ]
            self.redraw()

    def _display(self, binding: Binding, *, typing: bool) -> str:
        """Return the name of a key; if the displayed one is typed into a text field, that of the binding's own key."""
        name = self.app.get_key_display(binding)
        if typing and len(name) == 1:
            return self.app.get_key_display(binding.with_key(binding.key, None))
        return name

    def draw(self, width: int, height: int) -> list[Row]:
        self._drawn = []
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
        """Append a key to the row, at cell ``at``; returns the cell after it."""
        row.extend([(key.display, "key"), (f" {label}  ", "dim")])
        end = at + len(key.display) + len(label) + 3
        self._drawn.append((at, end - 2, key.key, key.tooltip))
        return end

    def on_click(self, event: events.Click) -> None:
        for start, end, key, _tooltip in self._drawn:
            if start <= event.x < end:
                self.app.simulate_key(key)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        tooltips = [tooltip for start, end, _key, tooltip in self._drawn if start <= event.x < end]
        self.tooltip = tooltips[0] if tooltips else None


def _label_of(node: object, binding: Binding) -> str:
    label: Callable[[str], str] | None = getattr(node, "key_label", None)
    return (label(binding.id or "") if label is not None else "") or binding.description


#: Roles of tabs that need attention.
_URGENT: Final = ("bad", "warn")


@dataclass(frozen=True, slots=True)
class Tab:
    """One tab."""

    name: str  # identifier
    title: str  # sanitized
    mark: str = ""  # one character after the title; empty = none
    role: str = "dim"  # role of mark and number
    number: str = ""  # short result, such as ``5 %``; empty = none
    key: str = ""  # key that opens it; empty = none
    pinned: bool = False  # whether it is always shown


class TabBar(Lines):
    """Tabs in one line.

    If not all fit, the order of precedence is: the current and the pinned ones, urgent ones, those with a number, then
    the neighbours of the current one.
    """

    DEFAULT_CSS = "TabBar { height: 1; }"

    @dataclass(eq=False)
    class Chosen(Message):
        """A tab was clicked."""

        name: str

    class MoreWanted(Message):
        """The list of the other tabs was clicked."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._tabs: list[Tab] = []
        self._current = ""
        self._remark = ""
        self._more: Row = []
        self._more_cells = (0, 0)  # first, and the one after the last
        self._drawn: list[tuple[int, int, str]] = []  # first cell, cell after the last, and name of each tab

    @property
    def tabs(self) -> list[Tab]:
        """All tabs, including those that do not fit."""
        return self._tabs

    def show(self, tabs: list[Tab], current: str, remark: str, more: tuple[str, int] | None = None) -> None:
        """Show tabs, with a sanitized remark at the right end.

        ``more`` is the key that lists further tabs, and how many there are; None = none.
        """
        self._tabs, self._current, self._remark = tabs, current, remark
        self._more = []
        if more is not None:
            self._more = [(f" {more[0]}", "key"), (f" more {more[1]} ▾ ", "dim")]
        self.redraw()

    def draw(self, width: int, height: int) -> list[Row]:
        pieces = [self._piece(tab) for tab in self._tabs]
        widths = [row_width(piece) for piece in pieces]
        current = next((i for i, tab in enumerate(self._tabs) if tab.name == self._current), 0)
        remark: Row = [(f" {self._remark} ", "accent"), ("─", "rule")] if self._remark else []
        room = width - 4 - row_width(self._more)
        kept = {current, *(i for i, tab in enumerate(self._tabs) if tab.pinned)} if self._tabs else set()
        if sum(widths[i] for i in kept) + row_width(remark) > room:
            remark = []
        room -= row_width(remark)
        preferred = [i for i, tab in enumerate(self._tabs) if tab.role in _URGENT]
        preferred += [i for i, tab in enumerate(self._tabs) if tab.number and i not in preferred]
        # An ellipsis marks each gap, at most one per kept tab.
        room -= sum(widths[i] for i in kept) + len(kept)
        for index in [*preferred, *range(current - 1, -1, -1), *range(current + 1, len(widths))]:
            if index not in kept and widths[index] <= room:
                kept.add(index)
                room -= widths[index]
        shown = sorted(kept)
        left_out = len(pieces) - len(shown)
        row: Row = [("‹ " if shown and shown[0] else "──", "rule")]
        self._drawn = []
        at, before = 2, -1
        for index in shown:
            if index > before + 1 and before >= 0:
                row.append(("…", "rule"))
                at += 1
            self._drawn.append((at, at + widths[index], self._tabs[index].name))
            row.extend(pieces[index])
            at += widths[index]
            before = index
        self._more_cells = (at, at + row_width(self._more))
        row.extend(self._more)
        end: Row = [(" ›" if left_out and shown and shown[-1] < len(pieces) - 1 else "──", "rule")]
        gap = max(width - row_width(row) - row_width(remark) - 2, 0)
        return [[*row, ("─" * gap, "rule"), *remark, *end]]

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
        if self._more_cells[0] <= event.x < self._more_cells[1]:
            self.post_message(self.MoreWanted())
        for start, end, name in self._drawn:
            if start <= event.x < end:
                self.post_message(self.Chosen(name))


class ScrollLine(ScrollBarRender):
    """Draws the thumb as a line and leaves the track blank; both are clickable."""

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
        across = thickness if vertical else 1
        start = end = 0
        if window_size and size and virtual_size > window_size:
            length = min(size, max(1, ceil(size * window_size / virtual_size)))
            free, share = size - length, position / (virtual_size - window_size)
            start = round(free * share)
            if free > 1 and 0 < share < 1:  # touch an end only if the content is scrolled there
                start = max(1, min(start, free - 1))
            end = start + length
        cells = [
            *[_cell(" " * across, back_color, None, "scroll_up")] * start,
            *[_cell((cls.VERTICAL if vertical else cls.HORIZONTAL) * across, back_color, bar_color, "grab")]
            * (end - start),
            *[_cell(" " * across, back_color, None, "scroll_down")] * (size - end),
        ]
        if vertical:
            return Segments(cells, new_lines=True)
        return Segments([*cells, Segment.line()] * thickness)


def _cell(text: str, behind: Color | None, colour: Color | None, action: str) -> Segment:
    return Segment(text, Style(color=colour, bgcolor=behind, meta={"@mouse.down": action}))


def use_scroll_lines() -> None:
    """Draw all scroll bars of this process with :class:`ScrollLine`."""
    ScrollBar.renderer = ScrollLine
