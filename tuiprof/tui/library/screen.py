"""The first screen: what can be done at once, recorded sessions and ladders on the left, details on the right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from textual import events, on, work
from textual.app import ComposeResult
from textual.getters import app as getters_app
from textual.screen import Screen
from textual.worker import get_current_worker

from tuiprof.errors import TuiprofError
from tuiprof.tui.library.data import Library
from tuiprof.tui.library.keys import library_keys
from tuiprof.tui.library.panes import LibraryPanes
from tuiprof.tui.library.session_actions import SessionActions
from tuiprof.tui.library.view import LadderItem, PastCommand, Shelf, cannot_run
from tuiprof.tui.terminal.guest import TerminalApp
from tuiprof.tui.widgets.bars import KeyBar
from tuiprof.tui.widgets.choices import Choices

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.widgets import Input

    from tuiprof.session.store.folders import Session
    from tuiprof.session.store.summary import Summary
    from tuiprof.tui.library.launch_form import LaunchWish, RunWish

#: Seconds between two readings of the folder of sessions: runs come and go.
_LOOK_S: Final = 2.0
#: Seconds until the first one.
_FIRST_LOOK_S: Final = 0.05


class LibraryScreen(Screen[None], inherit_bindings=False):
    """Items to run, watch, replay and read.

    What only an action needs is imported in it: the first picture comes before.

    Attributes:
        library: Finds the items.
        sessions: What can be done with recorded sessions.
        panes: Draw the items.
    """

    app = getters_app(TerminalApp)
    BINDINGS = library_keys()
    CSS_PATH = "screen.tcss"
    HORIZONTAL_BREAKPOINTS = [(0, "-thin"), (70, "-narrow"), (110, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-tall")]  # noqa: RUF012
    HELP = (
        "Learn: a ladder is a published optimisation, measured one change at a time; each variant makes one change.\n"
        "`published` is the published figure on its own hardware; `here` is the median step time of the newest\n"
        "ladder or finished run on this machine, and `syncs/step` is from its trace. space marks a session, c\n"
        "compares the two marked ones.\n\n"
        "● running · ✓ finished · ✗ failed · ■ stopped · ◌ interrupted"
    )

    def __init__(self) -> None:
        super().__init__()
        start = self.app.start
        self.library = Library(start.sessions, start.scenarios, start.python)
        self.sessions = SessionActions(
            self.app, self.library, look_again=self.look_again, show_again=self.show_again
        )
        self.panes = LibraryPanes()
        self._shelf: Shelf | None = None  # None = not searched yet
        self._filter = ""
        self._all_sessions = False
        self._reading = ""  # ladder with traces being read
        # The classes of the terminal's size at once: with the first resize every style would change again.
        width, height = self.app.size
        for size, steps in ((width, self.HORIZONTAL_BREAKPOINTS), (height, self.VERTICAL_BREAKPOINTS)):
            self.add_class([name for least, name in steps if size >= least][-1])

    def compose(self) -> ComposeResult:
        """The panes, and the keys at the bottom."""
        yield self.panes
        yield KeyBar()

    def on_mount(self) -> None:
        """Show the frame at once; items appear as they are found."""
        self.panes.items.focus()
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

    @work(thread=True, exclusive=True, exit_on_error=False, group="look")
    def look_again(self) -> None:
        """Read the headers of the scenarios and the folder of sessions, and show new items."""
        try:
            shelf = self.library.look()
        except TuiprofError as error:
            shelf = Shelf(problems=(str(error),))
        if not get_current_worker().is_cancelled:
            self.app.call_from_thread(self._found, shelf)

    def _found(self, shelf: Shelf) -> None:
        if shelf != self._shelf:
            self._shelf = shelf
            self.show_again()

    @work(thread=True, exclusive=True, exit_on_error=False, group="interpreter")
    def _ask_interpreter(self) -> None:
        """Ask the interpreter that scenarios run in what it has; takes a second or two."""
        try:
            self.library.ask_interpreter()
        except TuiprofError as error:
            self.app.call_from_thread(self.app.notify, str(error), severity="warning")
        if not get_current_worker().is_cancelled:
            self.app.call_from_thread(self.look_again)

    @work(thread=True, exclusive=True, exit_on_error=False, group="example")
    def _read_example(self) -> None:
        """Read what the example says first; it takes seconds the first time."""
        worker = get_current_worker()
        self.library.read_example(lambda: worker.is_cancelled)
        if not worker.is_cancelled:
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

    # -- what is shown -----------------------------------------------------------------------------------

    @property
    def shelf(self) -> Shelf:
        """The listed items; empty until searched."""
        return self._shelf or Shelf()

    @property
    def current(self) -> str:
        """Key of what the cursor is on: ``ladder:…``, ``session:…`` or ``trace:…``."""
        return self.panes.items.current

    @property
    def session(self) -> Summary | None:
        """The session under the cursor; None = it is on something else."""
        kind, _, name = self.current.partition(":")
        return self.shelf.session(name) if kind == "session" else None

    @property
    def ladder(self) -> LadderItem | None:
        """The ladder under the cursor; None = it is on something else."""
        kind, _, name = self.current.partition(":")
        return self.shelf.ladder(name) if kind == "ladder" else None

    def show_again(self) -> None:
        """Draw the list and the detail from the known items."""
        self.panes.show_list(self.shelf, self._filter, self.sessions.marked, all_sessions=self._all_sessions)
        self._show_detail()

    @on(Choices.Moved, "#items")
    def _show_detail(self) -> None:
        """Show what the cursor of the list is on."""
        if (ladder := self.ladder) is not None:
            self.panes.show_ladder(ladder, self.shelf.python)
            self._read_traces(ladder.name)
        else:
            session = self.session
            errors = self.library.last_errors(session) if session is not None else []
            self.panes.show_other(self.shelf, self.current, self._filter, errors)
            if self.current == "do:example" and not self.shelf.example:
                self._read_example()
        self.refresh_bindings()

    @on(Choices.Moved, "#variants")
    def _show_variant(self) -> None:
        if (ladder := self.ladder) is not None:
            self.panes.show_variant(ladder, self.shelf.python)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Say which keys work on what the cursor is on; a slash typed into a field is text."""
        if action == "filter":
            return self.focused is None or self.focused.id != "filter"
        kind = self.current.partition(":")[0] if self.is_mounted else ""
        if action == "into":
            return kind == "ladder" or (
                kind == "do" and self.current == "do:run" and bool(self.shelf.commands)
            )
        if action in ("run", "ladder", "source"):
            return kind == "ladder"
        if action in ("replay", "delete", "mark", "tags", "note"):
            return kind == "session"
        if action == "compare":
            return len(self.sessions.marked) == 2
        if action == "undo":
            return bool(self.sessions.deleted)
        return True

    # -- ladders and their variants ----------------------------------------------------------------------

    @on(Choices.Chosen, "#items")
    def _item_chosen(self, event: Choices.Chosen) -> None:
        kind, _, name = event.key.partition(":")
        if kind == "ladder":
            self.action_into()
        elif kind == "session":
            self.app.go.session(Path(name))
        elif kind == "trace":
            self.app.go.trace(Path(name))
        elif kind == "more":
            self._all_sessions = True
            self.show_again()
        elif event.key == "do:run":
            self._ask_command(next(iter(self.shelf.commands), None))
        elif event.key == "do:open":
            self.action_open_file()
        elif event.key == "do:example":
            self.action_example()

    def action_into(self) -> None:
        """Put the cursor into the table on the right."""
        if self.check_action("into", ()):
            self.panes.variants.focus()

    def action_back(self) -> None:
        """Put the cursor into the list."""
        self.panes.items.focus()

    @on(Choices.Chosen, "#variants")
    def _variant_chosen(self, event: Choices.Chosen) -> None:
        kind, _, number = event.key.partition(":")
        if self.ladder is not None:
            self.action_run()
        elif kind == "command" and int(number) < len(self.shelf.commands):
            self._ask_command(self.shelf.commands[int(number)])

    def action_run(self) -> None:
        """Ask how to run the variant under the cursor, then start it and watch it."""
        if (ladder := self.ladder) is not None:
            self.run_variant(ladder.name, self.panes.variants.current)

    def run_variant(self, ladder_name: str, variant_name: str) -> None:
        """Ask how to run a variant, then start it."""
        from tuiprof.tui.library.launch_form import LaunchForm

        if self._shelf is None:  # requested before the shelf was filled
            self._shelf = self.library.look()
        ladder = self.shelf.ladder(ladder_name)
        variant = ladder.variant(variant_name) if ladder is not None else None
        if ladder is None or variant is None:
            return
        if variant.runnable is False:
            why = cannot_run(variant, self.shelf.python)
            self.app.notify(why, title="cannot run here", severity="warning", timeout=10)
            return

        def answered(wish: LaunchWish | None) -> None:
            if wish is not None:
                self.app.notify(f"starting {ladder_name}:{variant_name} …", timeout=2)
                self._launch(ladder_name, variant_name, wish)

        self.app.push_screen(LaunchForm(ladder, variant), answered)

    @work(thread=True, exclusive=True, exit_on_error=False, group="launch")
    def _launch(self, ladder: str, variant: str, wish: LaunchWish) -> None:
        """Start a scenario; the screen that watches it opens once it runs."""
        self._start(
            lambda: self.library.launch(
                ladder, variant, wish.preset, wish.steps, wish.capture, stack=wish.stack
            )
        )

    def _start(self, launch: Callable[[], Session]) -> None:
        """In a thread: start something and watch it, or say why it did not start."""
        try:
            session = launch()
        except TuiprofError as error:
            title = "it did not start"
            self.app.call_from_thread(self.app.notify, str(error), title=title, severity="error", timeout=12)
        else:
            self.app.call_from_thread(self.app.go.session, session.path)

    # -- a script of the user's, and the Python it runs in -----------------------------------------------

    def _ask_command(self, command: PastCommand | None) -> None:
        """Ask what to run, then start it and watch it."""
        from tuiprof.tui.library.launch_form import RunForm

        def answered(wish: RunWish | None) -> None:
            if wish is not None:
                self.app.notify("starting …", timeout=2)
                self._run(wish)

        self.app.push_screen(RunForm(command, self.shelf.python), answered)

    @work(thread=True, exclusive=True, exit_on_error=False, group="launch")
    def _run(self, wish: RunWish) -> None:
        """Start a command."""
        self._start(lambda: self.library.run(wish.argv, wish.cwd, wish.capture, stack=wish.stack))

    def action_python(self) -> None:
        """Choose the Python that scripts run in, for the whole dashboard."""
        from tuiprof.tui.library.python_dialog import PythonScreen

        def answered(path: Path | None) -> None:
            if path is not None:
                self.app.start = replace(self.app.start, python=path)
                self.library.choose_python(path)
                self.look_again()
                self._ask_interpreter()

        with self.app.telling_errors():
            self.app.push_screen(PythonScreen(self.library.python), answered)

    def action_ladder(self) -> None:
        """Measure the whole ladder, or see what was measured."""
        if (ladder := self.ladder) is not None:
            self.app.go.ladder(ladder.name)

    def action_source(self) -> None:
        """Read the script, at the variant under the cursor."""
        from tuiprof.tui.dialogs.reading import SourceScreen

        if (ladder := self.ladder) is not None:
            variants = self.panes.variants
            self.app.push_screen(SourceScreen(ladder.script, variants.current if variants.has_focus else ""))

    # -- sessions ----------------------------------------------------------------------------------------

    def action_replay(self) -> None:
        """Replay the session."""
        if (session := self.session) is not None:
            self.app.go.session(Path(session.path), replay_speed=1.0)

    def action_mark(self) -> None:
        """Mark the session, to compare two."""
        if (session := self.session) is not None:
            self.sessions.mark(session)

    def action_compare(self) -> None:
        """Compare the two marked sessions."""
        self.sessions.compare()

    def action_tags(self) -> None:
        """Change the tags of the session."""
        if (session := self.session) is not None:
            self.sessions.ask_for_tags(session)

    def action_note(self) -> None:
        """Write a note on the session."""
        if (session := self.session) is not None:
            self.sessions.ask_for_note(session)

    def action_delete(self) -> None:
        """Move the session to the trash folder, once confirmed."""
        if (session := self.session) is not None:
            self.sessions.delete(session)

    def action_undo(self) -> None:
        """Bring back the session that was deleted last."""
        self.sessions.undo_delete()

    # -- the rest ----------------------------------------------------------------------------------------

    def action_open_file(self, text: str = "") -> None:
        """Ask for a path and open it."""
        from tuiprof.tui.dialogs.form import PathForm

        def answered(path: Path | None) -> None:
            if path is not None:
                self.app.go.path(path)

        self.app.push_screen(PathForm(text), answered)

    def on_paste(self, event: events.Paste) -> None:
        """Take a pasted line as the path of what to open."""
        lines = event.text.strip().splitlines()
        if len(lines) == 1 and (self.focused is None or self.focused.id != "filter"):
            self.action_open_file(lines[0].strip().strip("'\""))

    def action_example(self) -> None:
        """Open the example trace."""
        if (path := self.library.example) is not None:
            self.app.go.trace(path)

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
        self.action_back()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show what contains the text typed so far."""
        self._filter_by(event.value.strip())

    def on_input_submitted(self) -> None:
        """Go to what was found."""
        self.action_back()

    def _filter_by(self, text: str) -> None:
        self._filter = text
        self.show_again()

    def action_quit(self) -> None:
        """Close the dashboard."""
        self.app.go.back()
