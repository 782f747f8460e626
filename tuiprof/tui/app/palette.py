"""The command palette, and the jump screen, which shows a letter on every pane."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from rich.cells import cell_len, set_cell_size
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.geometry import Offset
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Static

from tuiprof.errors import TuiprofError
from tuiprof.model.units import format_ns
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.library.data import Library
from tuiprof.tui.library.view import Listing
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.widgets.bars import TabBar
from tuiprof.tui.widgets.spans import ago

if TYPE_CHECKING:
    from tuiprof.tui.app.app import TuiprofApp

#: Letters of panes, those on the home row first, without ``q``, which closes the screen.
LETTERS: Final = "asdfgjklhwertuiopzxcvbnm"


class JumpScreen(ModalScreen[Widget], inherit_bindings=False):
    """Shows a letter at the corner of every pane, and returns the pane whose letter is pressed; None = cancelled."""

    CSS = """
    JumpScreen { background: $background 40%; align: left top; }
    JumpScreen:ansi { background: transparent; }
    JumpScreen Static {
        position: absolute; width: auto; height: 1; background: $block-cursor-background;
        color: $block-cursor-foreground; text-style: bold;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        key("escape,q", "dismiss", "close", "Stay in this pane", id="jump.close", group="Jump", display="esc")
    ]

    def __init__(self, about: Screen[Any]) -> None:
        super().__init__()
        self._panes = dict(zip(LETTERS, panes_of(about), strict=False))

    def compose(self) -> ComposeResult:
        for letter, pane in self._panes.items():
            label = Static(Text(f" {letter} {name_of(pane)} "), markup=False)
            label.styles.offset = Offset(*pane.region.offset)
            yield label

    def on_key(self, event: events.Key) -> None:
        if event.key in self._panes:
            event.stop()
            self.dismiss(self._panes[event.key])


def panes_of(screen: Screen[Any]) -> list[Widget]:
    """Return the visible, focusable widgets of a screen, from top left to bottom right."""
    seen = [pane for pane in screen.focus_chain if pane.region.area and screen.region.overlaps(pane.region)]
    return sorted(seen, key=lambda pane: (pane.region.y, pane.region.x))


#: Names of panes whose id is not one.
_NAMES: Final = {"items": "list", "answer-table": "table", "answer-message": "message", "rungs": "variants"}


def name_of(pane: Widget) -> str:
    """Return the name of a pane."""
    name = pane.id or type(pane).__name__
    return _NAMES.get(name, name.replace("-", " ").replace("_", " ").lower())


#: Width of the palette in the style sheet, and of its borders and padding.
_WIDTH: Final = 100
_FRAME: Final = 5
#: Keys that move a cursor, which the palette does not list.
_MOVING: Final = {"up", "down", "left", "right", "home", "end", "pageup", "pagedown", "tab"}


@dataclass(frozen=True, slots=True)
class Command:
    """An entry of the palette."""

    text: str  # shown and searched
    remark: str  # shown at the right end, for example its key
    run: Callable[[], object]


class TuiprofCommands(Provider):
    """The commands of the top screen, and everything in the library."""

    _listing = Listing()

    @property
    def dashboard(self) -> TuiprofApp:
        return cast("TuiprofApp", self.app)

    async def startup(self) -> None:
        """Scan the library, in a thread."""
        start = self.dashboard.start
        library = Library(start.sessions, start.scenarios, start.python)
        try:
            self._listing = await asyncio.to_thread(library.scan)
        except TuiprofError as error:
            self.app.notify(str(error), severity="warning")

    async def discover(self) -> Hits:
        """Yield the actions of the screen, before anything is typed."""
        for command in self._actions():
            yield DiscoveryHit(self._line(command), command.run, command.text)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for command in (*self._actions(), *self._library_commands()):
            score = matcher.match(command.text)
            if score > 0:
                yield Hit(score, self._line(command), command.run, command.text)

    def _line(self, command: Command) -> Content:
        """Return the line of a command, as content so that names are not parsed as markup."""
        room = min(_WIDTH, int(self.app.size.width * 0.96)) - _FRAME
        left = max(room - cell_len(command.remark) - 2, 8)
        text = command.text if cell_len(command.text) <= left else set_cell_size(command.text, left - 1) + "…"
        name, dash, help_ = text.partition(" — ")
        gap = " " * max(room - cell_len(text) - cell_len(command.remark), 2)
        return Content.assemble(name, (f"{dash}{help_}", "not bold dim"), gap, (command.remark, "not bold"))

    def _actions(self) -> Iterator[Command]:
        """Yield the actions of the keys that work now, then those of other panes, then tabs."""
        seen: set[str | None] = set()
        texts: set[str] = set()
        # Keys in the key bar come first.
        active = sorted(self.screen.active_bindings.values(), key=lambda found: not found.binding.show)
        for node, binding, enabled, tooltip in active:
            if not enabled or not tooltip or binding.id in seen or binding.action == "command_palette":
                continue
            seen.add(binding.id)
            text = f"{binding.description} — {tooltip}"
            # The same text: for example, quitting in the screen and in the application.
            if moves_cursor(binding) or text in texts:
                continue
            texts.add(text)
            keys = self.app.get_key_display(binding)
            yield Command(text, keys, partial(self.app.run_action, binding.action, node))
        for pane in panes_of(self.screen):
            for binding in _bindings_of(pane):
                if binding.id in seen or not binding.tooltip:
                    continue
                seen.add(binding.id)
                if moves_cursor(binding):
                    continue
                keys = self.dashboard.settings.keys.get(binding.id or "") or self.app.get_key_display(binding)
                run = partial(self._run_in_pane, pane, binding.action)
                text = f"{binding.description} — {binding.tooltip}"
                yield Command(text, f"{keys} in {name_of(pane)}", run)
        for bar in self.screen.query(TabBar):
            for tab in bar.tabs:
                open_tab = partial(bar.post_message, TabBar.Chosen(tab.name))
                yield Command(f"tab {tab.title} — Open the tab {tab.title}", tab.key, open_tab)
        yield Command("theme — Choose colours: dark, light, Textual's own", "", self.app.action_change_theme)

    async def _run_in_pane(self, pane: Widget, action: str) -> None:
        self.screen.set_focus(pane)
        await self.app.run_action(action, pane)

    def _library_commands(self) -> Iterator[Command]:
        """Yield ladders, their variants, sessions and traces."""
        app = self.dashboard
        for ladder in self._listing.ladders:
            title = sanitize(ladder.title)
            name = sanitize(ladder.name)
            yield Command(
                f"ladder {name} — show results, measure it", "ladder", partial(app.go.ladder, ladder.name)
            )
            for variant in ladder.variants:
                run = partial(app.go.scenario, ladder.name, variant.name)
                yield Command(f"run {name}:{sanitize(variant.name)} — {title}", "scenario", run)
        for session in self._listing.sessions:
            step = f"  {format_ns(session.median_ns)} a step" if session.median_ns is not None else ""
            text = f"open {sanitize(session.title)}  {sanitize(session.id)}{step}"
            remark = f"{session.state} · {ago(session.unix_ns)}"
            yield Command(text, remark, partial(app.go.session, Path(session.path)))
            for path in self._listing.captured.get(session.id, ()):
                text = f"open trace {sanitize(session.title)}  {sanitize(path.name)}"
                yield Command(text, f"trace · {ago(session.unix_ns)}", partial(app.go.trace, path))
        for path in self._listing.traces:
            yield Command(f"open {sanitize(path.name)}", "sample trace", partial(app.go.trace, path))


def moves_cursor(binding: Binding) -> bool:
    """Return whether a key only moves a cursor or scrolls."""
    names = [name.rpartition("+")[2] for name in binding.key.split(",")]
    return not binding.show and any(name in _MOVING for name in names)


def _bindings_of(pane: Widget) -> Iterator[Binding]:
    """Yield the bindings of a pane and of its base classes."""
    for part in type(pane).__mro__:
        yield from Binding.make_bindings(vars(part).get("BINDINGS", ()))
