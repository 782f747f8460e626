"""The help of a screen, generated from its bindings, and the tour.

The tour has five steps, each on a real screen with recorded samples. It is shown on the first start, which is recorded
in the user's state folder, and by ``ctrl+t``.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, ClassVar, Final

import platformdirs
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.dom import DOMNode
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Static

from tuiprof.config import config_path
from tuiprof.resources import shipped
from tuiprof.tui.terminal.keys import key

if TYPE_CHECKING:
    from tuiprof.tui.app.app import TuiprofApp

_help = partial(key, group="Help")
_tour = partial(key, group="Tour")

_EVERYWHERE: Final = "Everywhere"
#: Cells of the column with the keys.
_KEYS: Final = 16
#: Cells beside it that are used even if the terminal has fewer.
_MIN_TEXT: Final = 8
#: Textual's own keys, which have neither a group nor an id.
_TEXTUAL: Final = [
    ("tab", "next pane", "Go to the next pane", ""),
    ("shift+tab", "previous pane", "Go to the previous pane", ""),
]


class HelpScreen(ModalScreen[None], inherit_bindings=False):
    """Lists the keys that work on a screen: those of the focused pane, of the screen, and of every screen.

    The screen's ``HELP``, a plain text that explains it, comes last.
    """

    CSS_PATH = "help.tcss"
    AUTO_FOCUS = ""  # focusing the page after it was drawn would draw it twice
    BINDINGS: ClassVar[list[BindingType]] = [
        _help("escape,q,question_mark", "dismiss", "close", "Close the help", id="help.close", display="esc"),
        _help("i", "ids", "ids", "Show or hide the ids for the configuration", id="help.ids"),
        _help("up,k", "scroll(-1)", "up", "One line up", id="help.up", show=False),
        _help("down,j", "scroll(1)", "down", "One line down", id="help.down", show=False),
        _help("pageup", "scroll(-10)", "page up", "Ten lines up", id="help.page_up", show=False),
        _help("pagedown,space", "scroll(10)", "page down", "Ten lines down", id="help.page_down", show=False),
        _help("home,g", "edge(False)", "start", "Go to the first line", id="help.home", show=False),
        _help("end,G", "edge(True)", "end", "Go to the last line", id="help.end", show=False),
    ]

    def __init__(self, about: Screen[Any]) -> None:
        super().__init__()
        self._about = about
        self._active = dict(about.active_bindings)
        self._ids = False

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog help") as box:
            box.border_title = "help"
            box.border_subtitle = "i ids · esc closes"
            yield Static(self._page(), markup=False)

    def _room(self) -> int:
        """Return the width of the page: that of the dialog in help.tcss and app.tcss without frame and scroll bar."""
        return min(104, self.app.size.width * 95 // 100) - 7

    def _page(self) -> Text:
        """Return the page: the keys by group, then the screen's ``HELP``."""
        page = Text()
        indent, width = " " * _KEYS, max(self._room(), _KEYS + _MIN_TEXT)
        for group, rows in self._groups().items():
            page.append(f"{group}\n", "bold")
            for keys, label, tooltip, binding_id in rows if self._ids else _merged(rows):
                page.append(f"  {keys:<{_KEYS - 3}} ", "bold")
                if self._ids:
                    page.append(f"{tooltip or label:<54}")
                    page.append(f"  {binding_id}\n", "dim")
                else:
                    lines = wrap(tooltip or label, width, initial_indent=indent, subsequent_indent=indent)
                    page.append("\n".join(lines)[_KEYS:] + "\n")
            page.append("\n")
        if self._ids:
            page.append(f"To change keys, use these ids under [keys] in {config_path()}\n\n", "dim")
        text = getattr(self._about, "HELP", None)
        if text:
            page.append("What this screen shows\n", "bold")
            page.append("\n\n".join(" ".join(part.split()) for part in text.split("\n\n")) + "\n")
        return page

    def _groups(self) -> dict[str, list[tuple[str, str, str, str]]]:
        """Return keys, label, tooltip and id of each binding, by group."""
        merged: dict[str, tuple[Binding, list[str], int]] = {}
        for node, binding, _enabled, _tooltip in self._active.values():
            rank = 2 if node is self.app else 1 if node is self._about else 0
            keys = merged.setdefault(binding.id or binding.action, (binding, [], rank))[1]
            keys.append(self.app.get_key_display(binding))
        shown = {binding.group for binding, _, _ in merged.values() if binding.show}
        groups: dict[str, list[tuple[str, str, str, str]]] = {}
        # Groups with keys in the key bar come first, not those that only scroll; within a group, these keys.
        for binding, keys, _rank in sorted(
            merged.values(), key=lambda item: (item[0].group not in shown, item[2], not item[0].show)
        ):
            if binding.group is None:  # Textual's own
                continue
            group = binding.group.description
            unique = " ".join(dict.fromkeys(keys))
            groups.setdefault(group, []).append(
                (unique, binding.description, binding.tooltip, binding.id or "")
            )
        everywhere = groups.pop(_EVERYWHERE, [])
        return {**groups, _EVERYWHERE: [*everywhere, *_TEXTUAL]}

    def action_ids(self) -> None:
        self._ids = not self._ids
        self.query_one(Static).update(self._page())

    def action_scroll(self, lines: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def action_edge(self, last: bool) -> None:
        box = self.query_one(VerticalScroll)
        (box.scroll_end if last else box.scroll_home)(animate=False)


def _merged(rows: list[tuple[str, str, str, str]]) -> list[tuple[str, str, str, str]]:
    """Return the rows with those that say the same in one: ``1–9  Open the tab of this number``."""
    merged: dict[str, tuple[str, str, str, str]] = {}
    for keys, label, tooltip, binding_id in rows:
        first = merged.get(tooltip, (keys,))[0].partition("–")[0]
        merged[tooltip] = (keys if first == keys else f"{first}–{keys}", label, tooltip, binding_id)
    return list(merged.values())


def all_binding_ids() -> set[str]:
    """Return the ids of all bindings of all screens and widgets."""
    return {binding.id for binding in all_bindings() if binding.id}


def all_bindings() -> Iterator[Binding]:
    """Yield all bindings of all screens and widgets."""
    import pkgutil

    import tuiprof.tui

    modules = [
        importlib.import_module(found.name)
        for found in pkgutil.walk_packages(tuiprof.tui.__path__, "tuiprof.tui.")
    ]
    for module in modules:
        for item in vars(module).values():
            if isinstance(item, type) and issubclass(item, DOMNode) and item.__module__ == module.__name__:
                yield from Binding.make_bindings(vars(item).get("BINDINGS", ()))


#: The recorded run is short: replay it slowly, from its first steps on.
_SPEED: Final = 0.5
_FIRST_STEPS_NS: Final = 12_400_000_000


@dataclass(frozen=True, slots=True)
class Stop:
    """One step of the tour."""

    title: str
    text: str
    go: Callable[[TuiprofApp], None]  # opens its screen


def _library(app: TuiprofApp) -> None:
    while len(app.screen_stack) > 1:
        app.pop_screen()


def _live(app: TuiprofApp) -> None:
    from tuiprof.session.live.replay import Replay
    from tuiprof.session.store.folders import Session
    from tuiprof.tui.live.screen import LiveScreen

    _library(app)
    screen = LiveScreen(Session(shipped("traces") / "session-metrics-naive"), replay_speed=_SPEED)
    if isinstance(screen.moment.run, Replay):
        screen.moment.run.seek(_FIRST_STEPS_NS)
    app.push_screen(screen)


def _trace(app: TuiprofApp) -> None:
    _library(app)
    app.go.trace(shipped("traces") / "metrics-naive.pt.trace.json.gz")


def _one_step(app: TuiprofApp) -> None:
    _library(app)
    app.go.trace(shipped("traces") / "metrics-naive.pt.trace.json.gz", step=22)


def _advice(app: TuiprofApp) -> None:
    """Open the tab with advice once the trace is loaded."""
    from tuiprof.tui.trace.screen import TraceScreen
    from tuiprof.tui.trace.widget import TraceView

    if not isinstance(app.screen, TraceScreen):
        _one_step(app)
    screen = app.screen

    def open_tab() -> None:
        if app.screen is not screen:
            return
        views = list(screen.query(TraceView))
        if views:
            views[0].open_tab("advice")
        else:
            screen.set_timer(0.1, open_tab)

    open_tab()


STOPS: Final = (
    Stop(
        "1 of 5 · The library",
        "Run a script, open a trace, or learn from a ladder: a published optimisation, one change at a time. "
        "Your runs are under Recent. r runs the variant under the cursor, o opens a file.",
        _library,
    ),
    Stop(
        "2 of 5 · A run, live",
        "A recorded run, replayed: step times, where a step goes, devices, output, and at the bottom the main "
        "finding. During a run, p captures the next steps. For your own script: tuiprof run -- python train.py",
        _live,
    ),
    Stop(
        "3 of 5 · Its trace",
        "At the top, what to change first: how much it saves, where it is, and the fix; ] shows the next finding. "
        "Below, the timeline with the time lost to it, and one tab for each analysis: digits switch tabs.",
        _trace,
    ),
    Stop(
        "4 of 5 · One step",
        "The same trace, one step: w restricts every analysis to the step or selection, + and - zoom, n goes to the "
        "next sync, enter shows the details of a row or event.",
        _one_step,
    ),
    Stop(
        "5 of 5 · What to do",
        "Advice: what was found, what it costs, the fix, and how certain that is. e exports the reports. On every "
        "screen, ? lists the keys and ctrl+p finds any command, session or trace by name.",
        _advice,
    ),
)


class TourCard(Static, can_focus=True):
    """The text of a tour step, on top of the screen it describes, which stays usable."""

    DEFAULT_CSS = """
    TourCard {
        layer: tour; width: 62; max-width: 100%; height: auto; padding: 0 1;
        background: $panel; color: $foreground; border: round $accent; border-title-color: $accent;
        border-title-style: bold; border-subtitle-color: $foreground;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        _tour("enter,space", "go(1)", "next", "Go to the next step of the tour", id="tour.next"),
        _tour("backspace", "go(-1)", "back", "Go to the previous step of the tour", id="tour.back"),
        _tour("escape", "end", "end the tour", "End the tour", id="tour.end"),
    ]

    def __init__(self, tour: Tour) -> None:
        super().__init__(markup=False, id="tour")
        self._tour = tour
        # Screens focus their table once they are filled. Until the user moves the focus, the card takes it back.
        self._hold_focus = True

    def on_mount(self) -> None:
        stop = STOPS[self._tour.index]
        last = self._tour.index == len(STOPS) - 1
        self.border_title = stop.title
        self.border_subtitle = f"enter {'ends' if last else 'next'} · backspace back · esc ends"
        self.update(Text(stop.text))
        self.call_after_refresh(self.on_resize)
        self.focus()
        self.watch(self.screen, "focused", self._focus_moved, init=False)

    def _focus_moved(self, focused: Widget | None) -> None:
        if self._hold_focus and focused is not self:
            self.call_after_refresh(self.focus)

    def on_key(self, event: events.Key) -> None:
        """Stop holding the focus when another key than one of the card's is pressed."""
        if event.key not in ("enter", "space", "backspace", "escape"):
            self._hold_focus = False

    def mouse_pressed(self, event: events.MouseDown) -> None:
        """Stop holding the focus on a click outside the card."""
        if not self.region.contains(event.screen_x, event.screen_y):
            self._hold_focus = False

    def on_resize(self) -> None:
        screen, size = self.screen.size, self.outer_size
        self.styles.offset = (max(0, screen.width - size.width), max(0, screen.height - size.height - 1))

    def action_go(self, by: int) -> None:
        self._tour.go(self._tour.index + by)

    def action_end(self) -> None:
        self._tour.end()


class Tour:
    """Drives the screens from step to step."""

    def __init__(self, app: TuiprofApp) -> None:
        self.index = 0  # of the current step
        self._app = app

    def go(self, index: int) -> None:
        """Show a step; after the last one, end the tour in the library."""
        self.end()
        if index >= len(STOPS):
            _library(self._app)
            return
        self.index = max(0, index)
        STOPS[self.index].go(self._app)
        self._app.call_later(self._show_card)  # the new screen is on top only in the next callback

    def end(self) -> None:
        """End the tour; the screen stays."""
        for screen in self._app.screen_stack:
            screen.query(TourCard).remove()

    def mouse_pressed(self, event: events.MouseDown) -> None:
        """Pass a click to the card, if it is on the top screen."""
        for card in self._app.screen.query(TourCard):
            card.mouse_pressed(event)

    def _show_card(self) -> None:
        self.end()
        self._app.screen.mount(TourCard(self))


def seen_path() -> Path:
    """Return the file whose existence records that the tour was shown."""
    return platformdirs.user_state_path("tuiprof", appauthor=False) / "tour-shown"


def is_first_start() -> bool:
    """Return whether the tour was never shown to this user, and record that it is shown now.

    Returns False if that cannot be recorded, or the tour would be shown on every start.
    """
    path = seen_path()
    if path.exists() or not shipped("traces").is_dir():
        return False
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return True
    return False
