"""The line of keys at the bottom: what can be done now, made from the bindings themselves."""

from __future__ import annotations

from textual import events
from textual.screen import Screen

from tuiprof.tui.widgets.lines import Lines, Row


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
        self._keys: list[tuple[str, str, str, str]] = []
        self._places: list[tuple[int, int, str, str]] = []

    def on_mount(self) -> None:
        """Follow the bindings of the screen."""
        self.screen.bindings_updated_signal.subscribe(self, self._bindings_changed)
        self._bindings_changed(self.screen)

    def _bindings_changed(self, _screen: Screen[object]) -> None:
        """Take up the keys that work now."""
        if self.is_attached and self.screen.is_active:
            self._keys = [
                (
                    self.app.get_key_display(binding),
                    self._words.get(binding.id or "", binding.description),
                    key,
                    tooltip,
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
        keys = sorted(self._keys, key=lambda item: item[2] != "question_mark") if width < 60 else self._keys
        for display, label, key, tooltip in keys:
            size = len(display) + len(label) + 4
            if label in shown or at + size - 3 > width:
                continue
            shown.add(label)
            row.extend([(display, "key"), (f" {label}   ", "dim")])
            self._places.append((at, at + size - 3, key, tooltip))
            at += size
        return [row]

    def on_click(self, event: events.Click) -> None:
        """Do what the key under the pointer does."""
        for start, end, key, _tooltip in self._places:
            if start <= event.x < end:
                self.app.simulate_key(key)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Explain the key under the pointer."""
        found = [tip for start, end, _key, tip in self._places if start <= event.x < end]
        self.tooltip = found[0] if found else None
