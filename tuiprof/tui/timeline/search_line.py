"""Asks what to search a timeline for."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType
from textual.widgets import Input

from tuiprof.tui.terminal.keys import key
from tuiprof.tui.timeline.timeline import Timeline


class SearchLine(Input):
    """A line for a text, hidden until it is opened; the timeline that asked for it then searches."""

    DEFAULT_CSS = """
    SearchLine { height: 1; border: none; background: $surface; display: none; }
    SearchLine, SearchLine.-textual-compact { padding: 0 1; }
    SearchLine:focus { border: none; background-tint: transparent 0%; }
    SearchLine.-open { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        key("escape", "give_up", "cancel", "Cancel the search", id="prompt.give_up", group="Search"),
    ]

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(placeholder="search the names of all events", compact=True, id=id)
        self._timeline: Timeline | None = None

    def ask(self, timeline: Timeline) -> None:
        """Open, with what the timeline was searched for last."""
        self._timeline = timeline
        self.value = timeline.state.search.needle if timeline.state.search is not None else ""
        self.add_class("-open")
        self.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Search; without a text, end the search."""
        event.stop()
        self._done(event.value)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Keep what is being typed from the filters around."""
        event.stop()

    def action_give_up(self) -> None:
        """End the search."""
        self._done("")

    def _done(self, text: str) -> None:
        self.remove_class("-open")
        if self._timeline is None:
            return
        self._timeline.focus()
        if text:
            self._timeline.navigation.search(text)
        else:
            self._timeline.navigation.end_search()
