"""The panes of the library: the list on the left, details of the selection on the right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from tuiprof.tui.library import view
from tuiprof.tui.library.view import LadderItem, Shelf
from tuiprof.tui.widgets.choices import Choices
from tuiprof.tui.widgets.lines import Heading, Painted


class LibraryPanes(Vertical):
    """Draws the list."""

    def compose(self) -> ComposeResult:
        """Two columns below the first line."""
        head = Painted(id="head")
        head.paint(lambda width, _: [view.head(Shelf(), width)])
        yield head
        yield Heading("")
        with Horizontal(id="body"):
            with Vertical(id="side"):
                yield Choices(id="items", empty="looking …")
            with Vertical(id="detail"):
                yield Painted(id="about")
                yield Choices(id="variants")
                yield Painted(id="note")

    @property
    def items(self) -> Choices:
        """The list."""
        return self.query_one("#items", Choices)

    @property
    def variants(self) -> Choices:
        """The table of the variants of a ladder."""
        return self.query_one("#variants", Choices)

    def show_list(self, shelf: Shelf, contains: str, marked: Sequence[str], *, all_sessions: bool) -> None:
        """Show the items that contain a text."""
        self.query_one("#head", Painted).paint(lambda width, _: [view.head(shelf, width)])
        self.items.show(view.items(shelf, contains, marked, all_sessions=all_sessions))

    def show_ladder(self, ladder: LadderItem, python: str) -> None:
        """Show a ladder with its variants."""
        self.query_one("#about", Painted).paint(lambda width, _: view.about_ladder(ladder, width))
        self.variants.show(view.variants(ladder))
        self.show_variant(ladder, python)
        self._show_table(shown=True, beside_story=True)

    def show_variant(self, ladder: LadderItem, python: str) -> None:
        """Say below the table what the variant under the cursor changes, and what it lacks."""
        variant = ladder.variant(self.variants.current)
        self.query_one("#note", Painted).paint(
            lambda width, _: view.about_variant(ladder, variant, width, python)
        )

    def show_other(self, shelf: Shelf, current: str, contains: str, errors: list[str]) -> None:
        """Show what can be done, a session with the end of its standard error, a trace, or why nothing is listed."""
        kind, _, name = current.partition(":")
        about = self.query_one("#about", Painted)
        if kind == "session" and (session := shelf.session(name)) is not None:
            about.paint(lambda width, _: view.about_session(shelf, session, errors, width))
        elif current == "do:run":
            about.paint(lambda width, _: view.about_run(shelf, width))
        elif current == "do:open":
            about.paint(lambda width, _: view.about_open(width))
        elif current == "do:example":
            about.paint(lambda width, _: view.about_example(shelf, width))
        elif kind == "trace":
            about.paint(lambda width, _: view.about_trace(Path(name), width))
        else:
            about.paint(lambda width, _: view.about_nothing(shelf, contains, width))
        self.query_one("#note", Painted).paint(lambda _width, _height: [])
        commands = view.past_commands(shelf) if current == "do:run" else []
        self.variants.show(commands)
        self._show_table(shown=bool(commands))

    def _show_table(self, *, shown: bool, beside_story: bool = False) -> None:
        """Show the table or not; a long story gives way to it."""
        self.variants.display = shown
        self.query_one("#about", Painted).set_class(beside_story, "ladder")
