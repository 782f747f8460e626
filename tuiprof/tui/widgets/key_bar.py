"""The line of keys at the bottom: what can be done now, made from the bindings themselves."""

from __future__ import annotations

from typing import Any, Final

from textual import events
from textual.screen import Screen

from tuiprof.tui.widgets.lines import Lines, Row, row_width

#: Shown first where there is not room for all.
_FIRST: Final = ("help", "leave", "quit")


class KeyBar(Lines):
    """Keys that work at this moment, the screen's own first; a click does the same as the key.

    Where the line is too short the last ones are left out; ``?`` always stays.

    Args:
        words: Other labels for some bindings, by id.
    """

    DEFAULT_CSS = "KeyBar { height: 1; dock: bottom; }"

    def __init__(self, words: dict[str, str] | None = None) -> None:
        super().__init__()
        self._words = words or {}
        self._keys: list[tuple[str, str, str, str, int]] = []
        self._places: list[tuple[int, int, str, str]] = []

    def on_mount(self) -> None:
        """Follow the bindings of the screen."""
        self.screen.bindings_updated_signal.subscribe(self, self._bindings_changed)
        self._bindings_changed(self.screen)

    def _bindings_changed(self, _screen: Screen[Any]) -> None:
        """Take up the keys that work now."""
        if self.is_attached and self.screen.is_active:
            self._keys = [
                (
                    self.app.get_key_display(binding),
                    self._words.get(binding.id or "", binding.description),
                    key,
                    tooltip,
                    _FIRST.index(binding.action) if binding.action in _FIRST else len(_FIRST),
                )
                for key, (_node, binding, enabled, tooltip) in self.screen.active_bindings.items()
                if binding.show and enabled
            ]
            self.redraw()

    def draw(self, width: int, height: int) -> list[Row]:
        """Draw as many as fit."""
        self._places = []
        row: Row = [(" ", "text")]
        at = 1
        shown: set[str] = set()
        # Help and the way out are never the ones that find no room.
        keys = sorted(self._keys, key=lambda item: item[4]) if width < self._wanted() else self._keys
        for display, label, key, tooltip, _rank in keys:
            size = len(display) + len(label) + 4
            if label in shown or at + size - 3 > width:
                continue
            shown.add(label)
            row.extend([(display, "key"), (f" {label}   ", "dim")])
            self._places.append((at, at + size - 3, key, tooltip))
            at += size
        if row_width(row) > width:  # what is behind the last one needs no room
            row[-1] = (row[-1][0].rstrip(), row[-1][1])
        return [row]

    def _wanted(self) -> int:
        """Return the width that all keys need."""
        shown = {label: len(display) + len(label) + 4 for display, label, *_ in self._keys}
        return sum(shown.values())

    def on_click(self, event: events.Click) -> None:
        """Do what the key under the pointer does."""
        for start, end, key, _tooltip in self._places:
            if start <= event.x < end:
                self.app.simulate_key(key)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Explain the key under the pointer."""
        found = [tip for start, end, _key, tip in self._places if start <= event.x < end]
        self.tooltip = found[0] if found else None
