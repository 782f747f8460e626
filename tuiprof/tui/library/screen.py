"""The library: scenarios by ladder, recorded sessions and traces on the left, what is chosen on the right."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.worker import get_current_worker

from tuiprof.errors import TuiprofError
from tuiprof.tui.library.session_shelf import SessionShelf
from tuiprof.tui.widgets.choices import Choices
from tuiprof.tui.widgets.key_bar import KeyBar
from tuiprof.tui.widgets.lines import Row
from tuiprof.tui.widgets.painted import Heading, Painted

if TYPE_CHECKING:
    from textual.widgets import Input

    from tuiprof.tui.library.items import Shelf
    from tuiprof.tui.library.launch_form import LaunchWish

#: Seconds between two looks at the folder of sessions: runs come and go.
_LOOK_S: Final = 2.0
#: Seconds until the first one.
_FIRST_LOOK_S: Final = 0.05


class LibraryScreen(SessionShelf):
    """What there is to run, to watch, to replay and to read."""

    CSS_PATH = "library.tcss"
    HORIZONTAL_BREAKPOINTS = [(0, "-thin"), (70, "-narrow"), (110, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-tall")]  # noqa: RUF012
    HELP = (
        "Ladders are published optimisation stories, one variant a change. `published` is the publication's\n"
        "figure on its own hardware; `here` is the median step time of the newest ladder or finished run on this\n"
        "machine, `syncs/step` what its trace tells. space marks sessions, c compares two of them.\n"
        "● runs now · ✓ finished · ✗ failed · ■ stopped · ◌ interrupted"
    )

    def __init__(self) -> None:
        super().__init__()
        self._filter = ""
        self._reading = ""
        self._fit_terminal()

    def _fit_terminal(self) -> None:
        """Take the classes of the terminal's size at once; with the first resize every style would change again."""
        width, height = self.app.size
        for size, steps in ((width, self.HORIZONTAL_BREAKPOINTS), (height, self.VERTICAL_BREAKPOINTS)):
            self.add_class([name for least, name in steps if size >= least][-1])

    def compose(self) -> ComposeResult:
        """Two columns."""
        head = Painted(id="head")
        head.paint(self._head)
        yield head
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
        self.query_one("#items", Choices).focus()
        # Not before the first picture is out: what the threads import would hold it up.
        self.call_after_refresh(self.set_timer, _FIRST_LOOK_S, self._begin)

    def _begin(self) -> None:
        self.look_again()
        self._ask_interpreter()
        self.set_interval(_LOOK_S, self.look_again)

    def on_screen_resume(self) -> None:
        """Look again when coming back from another screen."""
        if self._shelf is not None:
            self.look_again()

    # -- what is found, in threads that touch no widget --------------------------------------------------

    def look_again(self) -> None:
        """Look at the folder of sessions."""
        self._look()

    @work(thread=True, exclusive=True, exit_on_error=False, group="look")
    def _look(self) -> None:
        """Read the headers of the scenarios and the folder of sessions."""
        try:
            shelf = self.library.look()
        except TuiprofError as error:
            from tuiprof.tui.library.items import Shelf

            shelf = Shelf(problems=(str(error),))
        if not get_current_worker().is_cancelled:
            self.app.call_from_thread(self._found, shelf)

    @work(thread=True, exclusive=True, exit_on_error=False, group="interpreter")
    def _ask_interpreter(self) -> None:
        """Ask the interpreter that scenarios run in what it has; takes a second or two."""
        try:
            self.library.ask_interpreter()
        except TuiprofError as error:
            self.app.call_from_thread(self.app.notify, str(error), severity="warning")
        if not get_current_worker().is_cancelled:
            self.app.call_from_thread(self.look_again)

    def _read_traces(self, ladder: str) -> None:
        """Read the traces of a ladder's variants that were not read yet, one after the other."""
        if self._reading != ladder:
            self._reading = ladder
            self._read_next(ladder)

    @work(thread=True, exclusive=True, exit_on_error=False, group="traces")
    def _read_next(self, ladder: str) -> None:
        """Read one trace, in another process; it takes seconds."""
        worker = get_current_worker()

        def cancelled() -> bool:
            return worker.is_cancelled

        while self._reading == ladder and not cancelled() and self.library.read_trace(ladder, cancelled):
            if not cancelled():  # the screen may be gone
                self.app.call_from_thread(self.look_again)
        if self._reading == ladder:
            self._reading = ""

    def _found(self, shelf: Shelf) -> None:
        """Show what was found."""
        if shelf == self._shelf:
            return
        self._shelf = shelf
        self.show_again()

    # -- what is shown -----------------------------------------------------------------------------------

    def _head(self, width: int, _height: int) -> list[Row]:
        if self._shelf is None:
            return [[(" tuiprof", "accent")]]
        from tuiprof.tui.library.words import head

        return [head(self._shelf, width)]

    def show_again(self) -> None:
        """Draw the list and the detail from what is known."""
        self._list()
        self._show_detail()

    def _list(self) -> None:
        from tuiprof.tui.library import words

        self.query_one("#head", Painted).paint(self._head)
        self.query_one("#items", Choices).show(words.items(self.shelf, self._filter, self.marked))

    def _show_detail(self) -> None:
        """Show what the cursor of the list is on."""
        from tuiprof.tui.library import table as library_table
        from tuiprof.tui.library import words

        kind, _, name = self.current.partition(":")
        variants = self.query_one("#variants", Choices)
        variants.display = kind == "ladder"
        about, note = self.query_one("#about", Painted), self.query_one("#note", Painted)
        about.set_class(kind == "ladder", "ladder")
        shelf = self.shelf
        if kind == "ladder" and (ladder := shelf.ladder(name)) is not None:
            about.paint(lambda width, _: words.about_ladder(ladder, width))
            variants.show(library_table.variants(ladder))
            self._note_variant()
            self._read_traces(name)
        elif kind == "session" and (session := shelf.session(name)) is not None:
            errors = self.library.last_errors(session)
            about.paint(lambda width, _: words.about_session(shelf, session, errors, width))
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
        from tuiprof.tui.library import words

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
        from tuiprof.tui.library.launch_form import LaunchForm

        if self._shelf is None:  # asked for before the shelf was filled
            self._shelf = self.library.look()
        ladder = self.shelf.ladder(ladder_name)
        variant = ladder.variant(variant_name) if ladder is not None else None
        if ladder is None or variant is None:
            return
        if variant.runnable is False:
            self.app.notify(variant.why, title="cannot run here", severity="warning", timeout=10)
            return

        def answered(wish: LaunchWish | None) -> None:
            if wish is not None:
                self.app.notify(f"starting {ladder_name}:{variant_name} …", timeout=2)
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
            )
        else:
            self.app.call_from_thread(self.app.open_session, session.path)

    def action_ladder(self) -> None:
        """Measure the whole ladder, or see what was measured."""
        if (ladder := self.shelf.ladder(self.current.partition(":")[2])) is not None:
            self.app.open_ladder(ladder.name)

    def action_source(self) -> None:
        """Read the script, at the variant under the cursor."""
        from tuiprof.tui.dialogs.source import SourceScreen

        if (ladder := self.shelf.ladder(self.current.partition(":")[2])) is not None:
            variants = self.query_one("#variants", Choices)
            self.app.push_screen(SourceScreen(ladder.script, variants.current if variants.has_focus else ""))

    def action_open_file(self) -> None:
        """Ask for a path and open it."""
        from tuiprof.tui.dialogs.path_form import PathForm

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
        self.set_focus(self.query_one("#filter"))

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
        self.show_again()

    def action_quit(self) -> None:
        """Close the dashboard."""
        self.app.leave()
