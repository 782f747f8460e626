"""The library: scenarios by ladder, recorded sessions and traces on the left, what is chosen on the right."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.getters import app as getters_app
from textual.screen import Screen
from textual.worker import get_current_worker

from tuiprof.errors import TuiprofError
from tuiprof.tui import library_words as words
from tuiprof.tui.app import TuiprofApp
from tuiprof.tui.keys import key
from tuiprof.tui.library_data import Library, Shelf
from tuiprof.tui.widgets.choices import Choices
from tuiprof.tui.widgets.key_bar import KeyBar
from tuiprof.tui.widgets.lines import Row
from tuiprof.tui.widgets.painted import Heading, Painted

if TYPE_CHECKING:
    from textual.widgets import Input

    from tuiprof.tui.screens.launch_form import LaunchWish

#: Seconds between two looks at the folder of sessions: runs come and go.
_LOOK_S: Final = 2.0
#: Seconds until the first one.
_FIRST_LOOK_S: Final = 0.05


class LibraryScreen(Screen[None], inherit_bindings=False):
    """What there is to run, to watch, to replay and to read."""

    app = getters_app(TuiprofApp)
    CSS_PATH = "library.tcss"
    HORIZONTAL_BREAKPOINTS = [(0, "-thin"), (70, "-narrow"), (110, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-tall")]  # noqa: RUF012
    HELP = (
        "Ladders are published optimisation stories, one variant a change. `published` is the publication's\n"
        "figure on its own hardware; `here` is the median step time of the newest finished run on this machine.\n"
        "● runs now · ✓ finished · ✗ failed · ■ stopped · ◌ interrupted"
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        key("r", "run", "run", "Run the scenario under the cursor", id="library.run", group="Library"),
        key(
            "R",
            "replay",
            "replay",
            "Replay the session from its beginning",
            id="library.replay",
            group="Library",
        ),
        key(
            "o",
            "open_file",
            "open a file",
            "Open a trace or session by its path",
            id="library.open_file",
            group="Library",
        ),
        key(
            "slash",
            "filter",
            "filter",
            "Show only what contains a text",
            id="library.filter",
            group="Library",
            display="/",
        ),
        key(
            "delete",
            "delete",
            "delete",
            "Move the session to the trash folder (asks first)",
            id="library.delete",
            group="Library",
            display="del",
        ),
        key(
            "right,tab", "into", "variants", "To the variants", id="library.into", group="Library", show=False
        ),
        key(
            "left,shift+tab",
            "back",
            "list",
            "Back to the list",
            id="library.back",
            group="Library",
            show=False,
        ),
        key(
            "escape",
            "clear",
            "clear filter",
            "Show everything again",
            id="library.clear",
            group="Library",
            show=False,
        ),
        key("q", "quit", "quit", "Close tuiprof; what runs goes on", id="library.quit", group="Library"),
    ]

    def __init__(self) -> None:
        super().__init__()
        start = self.app.start
        self.library = Library(start.sessions, start.scenarios, start.python)
        self.shelf = Shelf()
        self._filter = ""

    def compose(self) -> ComposeResult:
        """Two columns."""
        yield Painted(id="head")
        yield Heading("")
        with Horizontal(id="body"):
            with Vertical(id="side"):
                yield Choices(id="items", empty="looking …")
            with Vertical(id="detail"):
                yield Painted(id="about")
                yield Choices(id="variants")
                yield Painted(id="note")
        yield KeyBar()

    def on_mount(self) -> None:
        """Show the frame at once; what is found comes when it is found."""
        self.query_one("#head", Painted).paint(self._head)
        self.query_one("#items", Choices).focus()
        # Not before the first picture is out: what the threads import would hold it up.
        self.set_timer(_FIRST_LOOK_S, self._begin)

    def _begin(self) -> None:
        self._look()
        self._ask_interpreter()
        self.set_interval(_LOOK_S, self._look)

    def on_screen_resume(self) -> None:
        """Look again when coming back from another screen."""
        if self.shelf != Shelf():
            self._look()

    # -- what is found, in threads that touch no widget --------------------------------------------------

    @work(thread=True, exclusive=True, exit_on_error=False, group="look")
    def _look(self) -> None:
        """Read the headers of the scenarios and the folder of sessions."""
        try:
            shelf = self.library.look()
        except TuiprofError as error:
            shelf = Shelf(problems=(str(error),))
        if not get_current_worker().is_cancelled:
            self.app.call_from_thread(self._found, shelf)

    @work(thread=True, exclusive=True, exit_on_error=False, group="interpreter")
    def _ask_interpreter(self) -> None:
        """Ask the interpreter that scenarios run in what it has; takes a second or two."""
        try:
            self.library.ask_interpreter()
        except TuiprofError as error:
            self.app.call_from_thread(self.app.notify, str(error), severity="warning", markup=False)
        if not get_current_worker().is_cancelled:
            self.app.call_from_thread(self._look)

    def _found(self, shelf: Shelf) -> None:
        """Show what was found."""
        if shelf == self.shelf:
            return
        self.shelf = shelf
        self._list()
        self._show_detail()

    # -- what is shown -----------------------------------------------------------------------------------

    def _head(self, width: int, _height: int) -> list[Row]:
        return [words.head(self.shelf, width)]

    def _list(self) -> None:
        self.query_one("#head", Painted).paint(self._head)
        self.query_one("#items", Choices).show(words.items(self.shelf, self._filter))

    @property
    def current(self) -> str:
        """Key of what the cursor is on: ``ladder:…``, ``session:…`` or ``trace:…``."""
        return self.query_one("#items", Choices).current

    def _show_detail(self) -> None:
        """Show what the cursor of the list is on."""
        kind, _, name = self.current.partition(":")
        variants = self.query_one("#variants", Choices)
        variants.display = kind == "ladder"
        about, note = self.query_one("#about", Painted), self.query_one("#note", Painted)
        about.set_class(kind == "ladder", "ladder")
        shelf = self.shelf
        if kind == "ladder" and (ladder := shelf.ladder(name)) is not None:
            about.paint(lambda width, _: words.about_ladder(ladder, width))
            variants.show(words.variants(ladder))
            self._note_variant()
        elif kind == "session" and (session := shelf.session(name)) is not None:
            errors = self.library.last_errors(session)
            about.paint(lambda width, _: words.about_session(session, errors, width))
            note.paint(lambda _width, _height: [])
        elif kind == "trace":
            about.paint(lambda width, _: words.about_trace(Path(name), width))
            note.paint(lambda _width, _height: [])
        else:
            about.paint(lambda width, _: words.about_nothing(shelf, self._filter, width))
            note.paint(lambda _width, _height: [])
        self.refresh_bindings()

    def _note_variant(self) -> None:
        """Say below the table what the variant under the cursor changes, and what it lacks."""
        ladder = self.shelf.ladder(self.current.partition(":")[2])
        name = self.query_one("#variants", Choices).current
        variant = ladder.variant(name) if ladder is not None else None
        if ladder is not None:
            self.query_one("#note", Painted).paint(
                lambda width, _: words.about_variant(ladder, variant, width)
            )

    @on(Choices.Moved, "#items")
    def _item_moved(self) -> None:
        self._show_detail()

    @on(Choices.Moved, "#variants")
    def _variant_moved(self) -> None:
        if self.current.startswith("ladder:"):
            self._note_variant()

    # -- what the keys do --------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Say which keys work on what the cursor is on."""
        kind = self.current.partition(":")[0] if self.is_mounted else ""
        if action in ("run", "into"):
            return kind == "ladder"
        if action in ("replay", "delete"):
            return kind == "session"
        return True

    @on(Choices.Chosen, "#items")
    def _item_chosen(self, event: Choices.Chosen) -> None:
        kind, _, name = event.key.partition(":")
        if kind == "ladder":
            self.action_into()
        elif kind == "session":
            self.app.open_session(Path(name))
        elif kind == "trace":
            self.app.open_trace(Path(name))

    @on(Choices.Chosen, "#variants")
    def _variant_chosen(self) -> None:
        self.action_run()

    def action_into(self) -> None:
        """Put the cursor into the table of variants."""
        if self.current.startswith("ladder:"):
            self.query_one("#variants", Choices).focus()

    def action_back(self) -> None:
        """Put the cursor into the list."""
        self.query_one("#items", Choices).focus()

    def action_run(self) -> None:
        """Ask how to run the variant under the cursor, then start it and watch it."""
        ladder = self.shelf.ladder(self.current.partition(":")[2])
        variant = ladder.variant(self.query_one("#variants", Choices).current) if ladder is not None else None
        if ladder is not None and variant is not None:
            self.run_variant(ladder.name, variant.name)

    def run_variant(self, ladder_name: str, variant_name: str) -> None:
        """Ask how to run a variant, then start it.

        Args:
            ladder_name: Its ladder.
            variant_name: Its name.
        """
        from tuiprof.tui.screens.launch_form import LaunchForm

        if self.shelf == Shelf():  # asked for before the shelf was filled
            self.shelf = self.library.look()
        ladder = self.shelf.ladder(ladder_name)
        variant = ladder.variant(variant_name) if ladder is not None else None
        if ladder is None or variant is None:
            return
        if variant.runnable is False:
            self.app.notify(
                variant.why, title="cannot run here", severity="warning", timeout=10, markup=False
            )
            return

        def answered(wish: LaunchWish | None) -> None:
            if wish is not None:
                self.app.notify(f"starting {ladder_name}:{variant_name} …", timeout=2, markup=False)
                self._launch(ladder_name, variant_name, wish)

        self.app.push_screen(LaunchForm(ladder, variant), answered)

    @work(thread=True, exclusive=True, exit_on_error=False, group="launch")
    def _launch(self, ladder: str, variant: str, wish: LaunchWish) -> None:
        """Start a scenario; the screen that watches it opens once it runs."""
        try:
            session = self.library.launch(
                ladder, variant, wish.preset, wish.steps, wish.capture, stack=wish.stack
            )
        except TuiprofError as error:
            self.app.call_from_thread(
                self.app.notify,
                str(error),
                title="it did not start",
                severity="error",
                timeout=12,
                markup=False,
            )
        else:
            self.app.call_from_thread(self.app.open_session, session.path)

    def action_replay(self) -> None:
        """Replay the session under the cursor."""
        self.app.open_session(Path(self.current.partition(":")[2]), replay_speed=1.0)

    def action_open_file(self) -> None:
        """Ask for a path and open it."""
        from tuiprof.tui.screens.path_form import PathForm

        def answered(path: Path | None) -> None:
            if path is not None:
                self.app.open_path(path)

        self.app.push_screen(PathForm(), answered)

    async def action_filter(self) -> None:
        """Type what to look for."""
        from textual.widgets import Input

        if not self.query("#filter"):
            field = Input(placeholder="filter", id="filter", compact=True)
            await self.query_one("#side").mount(field, before=0)
        self.add_class("-filtering")
        self.query_one("#filter").focus()

    def action_clear(self) -> None:
        """Show everything again."""
        self.remove_class("-filtering")
        self._filter_by("")
        for field in self.query("#filter"):
            field.remove()
        self.query_one("#items", Choices).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show what contains the text typed so far."""
        self._filter_by(event.value.strip())

    def on_input_submitted(self) -> None:
        """Go to what was found."""
        self.query_one("#items", Choices).focus()

    def _filter_by(self, text: str) -> None:
        self._filter = text
        self._list()
        self._show_detail()

    def action_delete(self) -> None:
        """Move the session under the cursor to the trash folder, once confirmed."""
        from tuiprof.tui.screens.confirm import ConfirmScreen

        session = self.shelf.session(self.current.partition(":")[2])
        if session is None:
            return
        if session.state == "running":
            self.app.notify("it runs: stop it first", severity="warning", markup=False)
            return
        lines = [f"It goes to {self.library.trash}, from where it can be moved back."]

        def answered(yes: bool | None) -> None:
            if yes:
                with self.app.telling_errors():
                    self.library.throw_away(Path(session.path))
                    self._look()

        self.app.push_screen(
            ConfirmScreen(f"Delete {words.session_name(session)}?", lines, yes="delete it", no="keep it"),
            answered,
        )

    def action_quit(self) -> None:
        """Close the dashboard."""
        self.app.leave()
