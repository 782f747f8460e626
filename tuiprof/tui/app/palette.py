"""The command palette: every action of the screen and its panes, every ladder, session and trace, by typing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from textual.binding import Binding
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.markup import escape
from textual.widget import Widget

from tuiprof.errors import TuiprofError
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.app.jump import name_of, panes_of
from tuiprof.tui.library.data import Library
from tuiprof.tui.library.items import Shelf

if TYPE_CHECKING:
    from tuiprof.session.store.glance import Summary
    from tuiprof.tui.app.app import TuiprofApp

#: Of so many of the newest sessions the captured traces are offered.
_RECENT: Final = 20


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
    _captured: tuple[tuple[str, Path], ...] = ()

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
            self._captured = await asyncio.to_thread(_captured, self._shelf.sessions)
        except TuiprofError as error:
            self.app.notify(str(error), severity="warning")

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
        """Yield what the keys of the screen do, then those of its panes that have not the focus."""
        seen: set[str | None] = set()
        # Those in the line of keys come first, moving around last.
        active = sorted(self.screen.active_bindings.values(), key=lambda found: not found.binding.show)
        for node, binding, enabled, tooltip in active:
            if not enabled or not tooltip or binding.id in seen or binding.action == "command_palette":
                continue
            seen.add(binding.id)
            keys = self.app.get_key_display(binding)
            run = partial(self.app.run_action, binding.action, node)
            yield Command(f"{binding.description} — {tooltip}", f"key {keys}", run)
        for pane in panes_of(self.screen):
            for binding in _bindings_of(pane):
                if binding.id in seen or not binding.tooltip:
                    continue
                seen.add(binding.id)
                keys = self.dashboard.settings.keys.get(binding.id or "") or self.app.get_key_display(binding)
                there = partial(self._go_and_run, pane, binding.action)
                text = f"{binding.description} — {binding.tooltip}"
                yield Command(text, f"key {keys} in {name_of(pane)}", there)
        yield Command("theme — Choose colours", "dark, light and Textual's own", self.app.action_change_theme)

    async def _go_and_run(self, pane: Widget, action: str) -> None:
        """Do what a key does in a pane that has not the focus: go there first."""
        self.screen.set_focus(pane)
        await self.app.run_action(action, pane)

    def _things(self) -> Iterator[Command]:
        """Yield ladders and their variants, sessions and traces."""
        app = self.dashboard
        for ladder in self._shelf.ladders:
            title = sanitize(ladder.title)
            yield Command(
                f"ladder {sanitize(ladder.name)} — show results, measure it",
                title,
                partial(app.open_ladder, ladder.name),
            )
            for variant in ladder.variants:
                name = sanitize(f"{ladder.name}:{variant.name}")
                run = partial(app.run_scenario, ladder.name, variant.name)
                yield Command(f"run {name}", title, run)
        for session in self._shelf.sessions:
            name = sanitize(f"{session.title}  {session.id}")
            yield Command(f"open {name}", session.state, partial(app.open_session, Path(session.path)))
        for name, path in self._captured:
            yield Command(f"open trace {sanitize(name)}", "captured", partial(app.open_trace, path))
        for path in self._shelf.traces:
            yield Command(f"open {sanitize(path.name)}", "trace", partial(app.open_trace, path))


def _bindings_of(pane: Widget) -> Iterator[Binding]:
    """Yield the bindings of a pane, its own before those of what it is made of."""
    for part in type(pane).__mro__:
        yield from Binding.make_bindings(vars(part).get("BINDINGS", ()))


def _captured(sessions: Sequence[Summary]) -> tuple[tuple[str, Path], ...]:
    """In a thread: return name and path of the traces of the newest sessions."""
    from tuiprof.session.store.folders import Session

    found = []
    for summary in sessions[:_RECENT]:
        try:
            traces = Session(Path(summary.path)).traces()
        except TuiprofError:  # one that cannot be read any more has nothing to offer
            continue
        found += [(f"{summary.title}  {path.name}", path) for path in reversed(traces)]
    return tuple(found)
