"""What is done to recorded sessions in the library: mark, compare, tag, annotate, throw away, bring back."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from textual.getters import app as getters_app
from textual.screen import Screen

from tuiprof.errors import UsageProblem
from tuiprof.tui.app.app import TuiprofApp
from tuiprof.tui.library.keys import library_keys
from tuiprof.tui.widgets.choices import Choices

if TYPE_CHECKING:
    from tuiprof.session.store.glance import Summary
    from tuiprof.tui.library.data import Library
    from tuiprof.tui.library.items import Shelf


class SessionShelf(Screen[None], inherit_bindings=False):
    """The library without its picture. What it needs is imported when it is needed: the first picture comes before.

    Attributes:
        marked: Paths of the sessions to compare, two at most, in the order in which they were marked.
    """

    app = getters_app(TuiprofApp)
    BINDINGS = library_keys()

    def __init__(self) -> None:
        super().__init__()
        self._shelf: Shelf | None = None
        self.marked: list[str] = []
        self._thrown: list[tuple[Path, Path]] = []  # where it is now, where it was

    @cached_property
    def library(self) -> Library:
        """Finds what is listed."""
        from tuiprof.tui.library.data import Library

        start = self.app.start
        return Library(start.sessions, start.scenarios, start.python)

    @property
    def shelf(self) -> Shelf:
        """What is listed; empty until it has been looked for."""
        if self._shelf is None:
            from tuiprof.tui.library.items import Shelf

            return Shelf()
        return self._shelf

    @abstractmethod
    def look_again(self) -> None:
        """Look at the folder of sessions."""

    @abstractmethod
    def show_again(self) -> None:
        """Draw the list and the detail from what is known."""

    @property
    def current(self) -> str:
        """Key of what the cursor is on: ``ladder:…``, ``session:…`` or ``trace:…``."""
        return self.query_one("#items", Choices).current

    def session(self) -> Summary | None:
        """Return the session under the cursor; None = it is on something else."""
        kind, _, name = self.current.partition(":")
        return self.shelf.session(name) if kind == "session" else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Say which keys work on what the cursor is on; a slash typed into a field is text."""
        if action == "filter":
            return self.focused is None or self.focused.id != "filter"
        kind = self.current.partition(":")[0] if self.is_mounted else ""
        if action in ("run", "into", "ladder", "source"):
            return kind == "ladder"
        if action in ("replay", "delete", "mark", "tags", "note"):
            return kind == "session"
        if action == "compare":
            return len(self.marked) == 2
        if action == "undo":
            return bool(self._thrown)
        return True

    def action_mark(self) -> None:
        """Mark the session, or take its mark away; a third one takes the place of the first."""
        if (session := self.session()) is None:
            return
        if session.path in self.marked:
            self.marked.remove(session.path)
        else:
            self.marked = [*self.marked[-1:], session.path]
        self.show_again()

    def action_compare(self) -> None:
        """Compare the two marked sessions: the one marked first is the one before."""
        gone = [path for path in self.marked if not Path(path).exists()]
        if gone:
            self.marked = [path for path in self.marked if path not in gone]
            self.show_again()
            return
        before, after = self.marked
        self.app.open_compare(before, after)

    def action_tags(self) -> None:
        """Change the tags of the session."""
        from tuiprof.session.store.labels import read_labels, set_tags
        from tuiprof.tui.dialogs.text_form import TextForm

        if (session := self.session()) is None:
            return
        path = Path(session.path)

        def answered(text: str | None) -> None:
            if text is not None:
                with self.app.telling_errors():
                    set_tags(path, text)
                    self.look_again()

        now = " ".join(read_labels(path).tags)
        hint = "words to find it by, with blanks between"
        self.app.push_screen(
            TextForm(f"tags of {_named(session)}", value=now, hint=hint, problem=_wrong_tags),
            answered,
        )

    def action_note(self) -> None:
        """Write a note on the session."""
        from tuiprof.session.store.labels import add_note
        from tuiprof.tui.dialogs.text_form import TextForm

        if (session := self.session()) is None:
            return
        path = Path(session.path)

        def answered(text: str | None) -> None:
            if text:
                with self.app.telling_errors():
                    add_note(path, text)
                    self.look_again()

        self.app.push_screen(TextForm(f"a note on {_named(session)}"), answered)

    def action_replay(self) -> None:
        """Replay the session under the cursor."""
        if (session := self.session()) is not None:
            self.app.open_session(Path(session.path), replay_speed=1.0)

    def action_delete(self) -> None:
        """Move the session under the cursor to the trash folder, once confirmed."""
        from tuiprof.tui.dialogs.confirm import ConfirmScreen

        if (session := self.session()) is None:
            return
        if session.state == "running":
            self.app.notify("it runs: stop it first", severity="warning")
            return
        lines = [f"It goes to {self.library.trash}; u brings it back."]

        def answered(yes: bool | None) -> None:
            if yes:
                with self.app.telling_errors():
                    path = Path(session.path)
                    self._thrown.append((self.library.throw_away(path), path))
                    self.marked = [one for one in self.marked if one != session.path]
                    self.look_again()

        self.app.push_screen(
            ConfirmScreen(f"Delete {_named(session)}?", lines, yes="delete it", no="keep it"),
            answered,
        )

    def action_undo(self) -> None:
        """Bring back the session that was deleted last."""
        if self._thrown:
            with self.app.telling_errors():
                thrown, path = self._thrown.pop()
                self.library.bring_back(thrown, path)
                self.app.notify(f"{path.name} is back", timeout=3)
                self.look_again()


def _named(session: Summary) -> str:
    from tuiprof.tui.library.words import session_name

    return session_name(session)


def _wrong_tags(text: str) -> str:
    """Return what is wrong with tags as typed; empty = nothing."""
    from tuiprof.session.store.labels import parse_tags

    try:
        parse_tags(text)
    except UsageProblem as problem:
        return str(problem)
    return ""
