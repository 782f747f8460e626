"""The command palette: every action of the screen, every scenario, session and trace, by typing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.markup import escape

from tuiprof.errors import TuiprofError
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.library_data import Library
from tuiprof.tui.library_items import Shelf

if TYPE_CHECKING:
    from tuiprof.tui.app import TuiprofApp


@dataclass(frozen=True, slots=True)
class Command:
    """One thing the palette can do.

    Attributes:
        text: What is searched and shown.
        help: One sentence.
        run: Does it.
    """

    text: str
    help: str
    run: Callable[[], object]


class TuiprofCommands(Provider):
    """Offers what can be done from the screen in front."""

    _shelf = Shelf()

    @property
    def dashboard(self) -> TuiprofApp:
        """The application."""
        return cast("TuiprofApp", self.app)

    async def startup(self) -> None:
        """Look up scenarios and sessions, in a thread."""
        start = self.dashboard.start
        library = Library(start.sessions, start.scenarios, start.python)
        try:
            self._shelf = await asyncio.to_thread(library.look)
        except TuiprofError as error:
            self.app.notify(str(error), severity="warning", markup=False)

    async def discover(self) -> Hits:
        """Offer the actions of the screen before anything is typed."""
        for command in self._actions():
            yield DiscoveryHit(Content(command.text), command.run, command.text, escape(command.help))

    async def search(self, query: str) -> Hits:
        """Offer what matches.

        Args:
            query: What was typed.
        """
        matcher = self.matcher(query)
        for command in (*self._actions(), *self._things()):
            score = matcher.match(command.text)
            if score > 0:
                # Content, not text: names are never parsed as markup.
                yield Hit(score, Content(command.text), command.run, command.text, escape(command.help))

    def _actions(self) -> Iterator[Command]:
        """Yield what the keys of the screen do."""
        seen = set()
        for node, binding, enabled, tooltip in self.screen.active_bindings.values():
            if not enabled or not tooltip or binding.id in seen or binding.action == "command_palette":
                continue
            seen.add(binding.id)
            keys = self.app.get_key_display(binding)
            run = partial(self.app.run_action, binding.action, node)
            yield Command(f"{binding.description} — {tooltip}", f"key {keys}", run)
        yield Command("theme — Choose colours", "dark, light and Textual's own", self.app.action_change_theme)

    def _things(self) -> Iterator[Command]:
        """Yield scenarios, sessions and traces."""
        app = self.dashboard
        for ladder in self._shelf.ladders:
            for variant in ladder.variants:
                name = sanitize(f"{ladder.name}:{variant.name}")
                run = partial(app.run_scenario, ladder.name, variant.name)
                yield Command(f"run {name}", sanitize(ladder.title), run)
        for session in self._shelf.sessions:
            name = sanitize(f"{session.title}  {session.id}")
            yield Command(f"open {name}", session.state, partial(app.open_session, Path(session.path)))
        for path in self._shelf.traces:
            yield Command(f"open {sanitize(path.name)}", "trace", partial(app.open_trace, path))
