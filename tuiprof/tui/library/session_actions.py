"""What can be done with a recorded session in the library: mark, compare, tag, annotate, replay, delete, restore."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tuiprof.errors import UsageProblem
from tuiprof.tui.library.data import Library
from tuiprof.tui.library.view import session_name
from tuiprof.tui.terminal.guest import TerminalApp

if TYPE_CHECKING:
    from tuiprof.session.store.summary import Summary


class SessionActions:
    """The actions on sessions. What they need is imported when it is needed: the first picture comes before.

    Args:
        look_again: Called where the folder of sessions was changed.
        show_again: Called where only the marks were.

    Attributes:
        marked: Paths of the sessions to compare, two at most, in the order in which they were marked.
        deleted: Present and original folders of each deleted run, latest last.
    """

    def __init__(
        self,
        app: TerminalApp,
        library: Library,
        *,
        look_again: Callable[[], object],
        show_again: Callable[[], object],
    ) -> None:
        self._app, self._library = app, library
        self._look_again, self._show_again = look_again, show_again
        self.marked: list[str] = []
        self.deleted: list[list[tuple[Path, Path]]] = []

    def mark(self, session: Summary) -> None:
        """Mark a session, or take its mark away; a third one replaces the first."""
        if session.path in self.marked:
            self.marked.remove(session.path)
        else:
            self.marked = [*self.marked[-1:], session.path]
        self._show_again()

    def compare(self) -> None:
        """Compare the two marked sessions: the one marked first is the one before."""
        there = [path for path in self.marked if Path(path).exists()]
        if there != self.marked:
            self.marked = there
            self._show_again()
            return
        before, after = self.marked
        self._app.go.compare(before, after)

    def ask_for_tags(self, session: Summary) -> None:
        """Change the tags of a session."""
        from tuiprof.session.store.meta import read_labels, set_tags
        from tuiprof.tui.dialogs.form import TextForm

        path = Path(session.path)

        def answered(text: str | None) -> None:
            if text is not None:
                with self._app.telling_errors():
                    set_tags(path, text)
                    self._look_again()

        now = " ".join(read_labels(path).tags)
        hint = "words to find it by, separated by spaces"
        form = TextForm(f"tags of {session_name(session)}", value=now, hint=hint, problem=_wrong_tags)
        self._app.push_screen(form, answered)

    def ask_for_note(self, session: Summary) -> None:
        """Write a note on a session."""
        from tuiprof.session.store.meta import add_note
        from tuiprof.tui.dialogs.form import TextForm

        def answered(text: str | None) -> None:
            if text:
                with self._app.telling_errors():
                    add_note(Path(session.path), text)
                    self._look_again()

        self._app.push_screen(TextForm(f"a note on {session_name(session)}"), answered)

    def delete(self, session: Summary) -> None:
        """Move a session to the trash folder, once confirmed."""
        from tuiprof.tui.dialogs.dialog import ConfirmScreen

        if session.state == "running":
            self._app.notify("it is running: stop it first", severity="warning")
            return

        def answered(yes: bool | None) -> None:
            if yes:
                with self._app.telling_errors():
                    self.deleted.append(
                        [(self._library.throw_away(path), path) for path in map(Path, session.folders)]
                    )
                    self.marked = [one for one in self.marked if one != session.path]
                    self._look_again()

        question = f"Delete {session_name(session)}?"
        what = "It is moved" if len(session.folders) == 1 else "What its hosts recorded is moved"
        lines = [f"{what} to {self._library.trash}; u restores it."]
        self._app.push_screen(ConfirmScreen(question, lines, yes="delete it", no="keep it"), answered)

    def undo_delete(self) -> None:
        """Bring back the session that was deleted last."""
        if self.deleted:
            with self._app.telling_errors():
                found = self.deleted.pop()
                for now, path in found:
                    self._library.bring_back(now, path)
                self._app.notify(f"{found[0][1].name} is restored", timeout=3)
                self._look_again()


def _wrong_tags(text: str) -> str:
    """Return the error in typed tags; empty = none."""
    from tuiprof.session.store.meta import parse_tags

    try:
        parse_tags(text)
    except UsageProblem as problem:
        return str(problem)
    return ""
