"""The line of keys at the bottom: what can be done now, made from the bindings themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from textual import events
from textual.screen import Screen

from tuiprof.tui.widgets.lines import Lines, Row, row_width

#: The keys that every screen has, by action: at the right edge, in this order.
_EVERYWHERE: Final = ("command_palette", "help", "leave", "quit")
#: Every label of the way out has this width, so that the keys before it are at the same place on every screen.
_LEAVE_WIDTH: Final = 5
#: Below this width the palette has its key alone.
_NARROW: Final = 60


@dataclass(frozen=True, slots=True)
class _Key:
    """One key of the line."""

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
        """Take up the keys that work now."""
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
