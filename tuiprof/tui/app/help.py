"""Help for the screen it was opened on, made from its bindings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from tuiprof.config import config_path
from tuiprof.tui.terminal.keys import key

_EVERYWHERE: Final = "Everywhere"
#: Textual's own keys, which have neither a group nor an id.
_TEXTUAL: Final = [
    ("tab", "next pane", "Go to the next pane", ""),
    ("shift+tab", "previous pane", "Go to the previous pane", ""),
]


class HelpScreen(ModalScreen[None], inherit_bindings=False):
    """Every key that works on a screen: those of the focused pane first, then the screen's, then those of every screen.

    ``i`` adds the ids by which keys are changed in the configuration.

    Args:
        about: The screen to explain. Its ``HELP`` (plain text: what is seen there) comes last.
    """

    CSS_PATH = "help.tcss"
    AUTO_FOCUS = ""  # a page that is focused after it was drawn is drawn twice
    BINDINGS: ClassVar[list[BindingType]] = [
        key(
            "escape,q,question_mark",
            "close",
            "close",
            "Close the help",
            id="help.close",
            group="Help",
            display="esc",
        ),
        key("i", "ids", "ids", "Show or hide the ids for the configuration", id="help.ids", group="Help"),
        key("up,k", "scroll(-1)", "up", "One line up", id="help.up", group="Help", show=False),
        key("down,j", "scroll(1)", "down", "One line down", id="help.down", group="Help", show=False),
        key("pageup", "scroll(-10)", "page up", "Ten lines up", id="help.page_up", group="Help", show=False),
        key(
            "pagedown,space",
            "scroll(10)",
            "page down",
            "Ten lines down",
            id="help.page_down",
            group="Help",
            show=False,
        ),
    ]

    def __init__(self, about: Screen[Any]) -> None:
        super().__init__()
        self._about = about
        self._active = dict(about.active_bindings)
        self._ids = False

    def compose(self) -> ComposeResult:
        """One scrolling page."""
        with VerticalScroll(classes="dialog help") as box:
            box.border_title = "help"
            box.border_subtitle = "i ids · esc closes"
            yield Static(self._page(), markup=False)

    def _page(self) -> Text:
        """Return the page: the keys by group, then what is seen."""
        page = Text()
        for group, rows in self._groups().items():
            page.append(f"{group}\n", "bold")
            for keys, label, tooltip, binding_id in rows:
                page.append(f"  {keys:<13} ", "bold")
                if self._ids:
                    page.append(f"{tooltip or label:<54}")
                    page.append(f"  {binding_id}\n", "dim")
                else:
                    page.append(f"{tooltip or label}\n")
            page.append("\n")
        if self._ids:
            page.append(f"Keys can be changed by these ids under [keys] in {config_path()}\n\n", "dim")
        words = getattr(self._about, "HELP", None)
        if words:
            page.append("What this screen shows\n", "bold")
            page.append("\n\n".join(" ".join(part.split()) for part in words.split("\n\n")) + "\n")
        return page

    def _groups(self) -> dict[str, list[tuple[str, str, str, str]]]:
        """Return the bindings by group: keys, label, tooltip, id; several keys of one binding together."""
        merged: dict[str, tuple[Binding, list[str], int]] = {}
        for node, binding, _enabled, _tooltip in self._active.values():
            rank = 2 if node is self.app else 1 if node is self._about else 0
            keys = merged.setdefault(binding.id or binding.action, (binding, [], rank))[1]
            keys.append(self.app.get_key_display(binding))
        groups: dict[str, list[tuple[str, str, str, str]]] = {}
        # Within a group what the line of keys shows comes first, moving around last.
        for binding, keys, _rank in sorted(merged.values(), key=lambda item: (item[2], not item[0].show)):
            if binding.group is None:
                continue  # Textual's own, see below
            group = binding.group.description
            unique = " ".join(dict.fromkeys(keys))
            groups.setdefault(group, []).append(
                (unique, binding.description, binding.tooltip, binding.id or "")
            )
        everywhere = groups.pop(_EVERYWHERE, [])
        return {**groups, _EVERYWHERE: [*everywhere, *_TEXTUAL]}

    def action_ids(self) -> None:
        """Show the ids, or hide them."""
        self._ids = not self._ids
        self.query_one(Static).update(self._page())

    def action_close(self) -> None:
        """Close the help."""
        self.dismiss()

    def action_scroll(self, lines: int) -> None:
        """Scroll the page.

        Args:
            lines: Lines; negative = up.
        """
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)


def all_binding_ids() -> set[str]:
    """Return the id of every binding of every screen and widget of tuiprof."""
    return {binding.id for binding in all_bindings() if binding.id}


def all_bindings() -> Iterator[Binding]:
    """Yield every binding of every screen and widget of tuiprof."""
    import importlib
    import pkgutil

    from textual.dom import DOMNode

    import tuiprof.tui

    modules = [
        importlib.import_module(found.name)
        for found in pkgutil.walk_packages(tuiprof.tui.__path__, "tuiprof.tui.")
    ]
    for module in modules:
        for item in vars(module).values():
            if isinstance(item, type) and issubclass(item, DOMNode) and item.__module__ == module.__name__:
                yield from Binding.make_bindings(vars(item).get("BINDINGS", ()))
