"""Ask for the path of a trace or session, completing it as it is typed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from textual.binding import BindingType
from textual.suggester import Suggester
from textual.widget import Widget
from textual.widgets import Input

from tuiprof.system.files import typed_path
from tuiprof.tui.dialogs.form import Form, answer_keys
from tuiprof.tui.terminal.keys import key


class _PathSuggester(Suggester):
    """Suggests the first file or folder that begins with what was typed."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        """Return the completed path; None = nothing begins so."""
        folder, _, begun = value.rpartition("/")
        where = typed_path(folder + "/" if folder or value.startswith("/") else ".")
        try:
            names = sorted(entry.name + ("/" if entry.is_dir() else "") for entry in os.scandir(where))
        except OSError:  # a folder that does not exist or may not be read suggests nothing
            return None
        found = next((name for name in names if name.startswith(begun) and (begun or name[0] != ".")), None)
        return None if found is None else value[: len(value) - len(begun)] + found


class PathForm(Form[Path], inherit_bindings=False):
    """Answers a path that exists, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *answer_keys("path", "Open", "open", "Open it", "Open nothing"),
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

    def __init__(self) -> None:
        super().__init__("open a trace or a session")

    def fields(self) -> Sequence[Widget]:
        """Return the path's."""
        return [Input(placeholder="path", id="path", suggester=_PathSuggester(), compact=True)]

    def hint(self) -> tuple[str, str]:
        """Say nothing of a path that is not whole yet."""
        return "", "dim"

    def problem(self) -> str:
        """Return why that path cannot be opened."""
        text = self.typed("path")
        path = typed_path(text)
        if not text:
            return "type a path; tab completes it"
        if not os.path.exists(path):
            return f"there is no {path}"
        if os.path.isdir(path) and not os.path.exists(path / "session.json"):
            return "that is a folder, and not a session"
        return ""

    def answer(self) -> Path:
        """Return the path."""
        return typed_path(self.typed("path")).absolute()

    def action_complete(self) -> None:
        """Take the suggestion."""
        self.query_one(Input).action_cursor_right()
