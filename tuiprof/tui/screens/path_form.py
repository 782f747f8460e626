"""Ask for the path of a trace or session, completing it as it is typed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.suggester import Suggester
from textual.widgets import Input

from tuiprof.report.sanitize import sanitize
from tuiprof.tui.keys import key
from tuiprof.tui.widgets.key_bar import KeyBar
from tuiprof.tui.widgets.painted import Painted


class _PathSuggester(Suggester):
    """Suggests the first file or folder that begins with what was typed."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        """Return the completed path; None = nothing begins so."""
        folder, _, begun = value.rpartition("/")
        where = Path(folder + "/" if folder or value.startswith("/") else ".").expanduser()
        try:
            names = sorted(entry.name + ("/" if entry.is_dir() else "") for entry in os.scandir(where))
        except OSError:  # a folder that does not exist or may not be read suggests nothing
            return None
        found = next((name for name in names if name.startswith(begun) and (begun or name[0] != ".")), None)
        return None if found is None else value[: len(value) - len(begun)] + found


class PathForm(ModalScreen[Path | None], inherit_bindings=False):
    """Answers a path that exists, or None."""

    CSS_PATH = "forms.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        key("enter", "submit", "open", "Open it", id="path.submit", group="Open", priority=True),
        key("escape", "cancel", "cancel", "Open nothing", id="path.cancel", group="Open", display="esc"),
        key(
            "tab",
            "complete",
            "complete",
            "Take the suggestion",
            id="path.complete",
            group="Open",
            priority=True,
        ),
    ]

    def compose(self) -> ComposeResult:
        """One box with one field."""
        with Vertical(classes="dialog form") as box:
            box.border_title = "open a trace or a session"
            yield Input(placeholder="path", id="path", suggester=_PathSuggester(), compact=True)
            yield Painted(id="problem")
            yield KeyBar()

    def action_complete(self) -> None:
        """Take the suggestion."""
        self.query_one(Input).action_cursor_right()

    @on(Input.Changed)
    def _changed(self) -> None:
        self._say("")

    def _say(self, text: str) -> None:
        self.query_one("#problem", Painted).paint(lambda _width, _height: [[(text, "warn")]] if text else [])

    def action_submit(self) -> None:
        """Answer, when there is something at that path."""
        text = self.query_one(Input).value.strip()
        path = Path(text).expanduser()
        if not text:
            self._say("type a path; tab completes it")
        elif not path.exists():
            self._say(sanitize(f"there is no {path}"))
        elif path.is_dir() and not (path / "session.json").exists():
            self._say("that is a folder, and not a session")
        else:
            self.dismiss(path.absolute())

    def action_cancel(self) -> None:
        """Answer nothing."""
        self.dismiss(None)
