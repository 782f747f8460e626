"""Asks what to search a timeline for."""

from __future__ import annotations

from tuiprof.tui.timeline.timeline import Timeline
from tuiprof.tui.widgets.prompt_line import PromptLine


class SearchLine(PromptLine):
    """Asks for a text, and lets the timeline that wanted it search for that."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(placeholder="search the names of all events", compact=True, id=id)
        self._timeline: Timeline | None = None

    def ask(self, timeline: Timeline) -> None:
        """Ask, starting with what the timeline was searched for last."""
        self._timeline = timeline
        self.open(timeline.state.search.needle if timeline.state.search is not None else "")

    def on_prompt_line_done(self, message: PromptLine.Done) -> None:
        """Search; without a text, end the search."""
        message.stop()
        if self._timeline is None:
            return
        self._timeline.focus()
        if message.text:
            self._timeline.navigation.search(message.text)
        else:
            self._timeline.navigation.end_search()
