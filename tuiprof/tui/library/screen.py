"""The first screen: actions, recorded sessions, ladders and sample traces on the left, details on the right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.getters import app as getters_app
from textual.screen import Screen
from textual.widgets import Input
from textual.worker import get_current_worker

from tuiprof.errors import TuiprofError
from tuiprof.tui.library import view
from tuiprof.tui.library.data import Library
from tuiprof.tui.library.view import LadderItem, Listing, PastCommand, cannot_run, session_name
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.terminal.terminal_app import TerminalApp
from tuiprof.tui.widgets.bars import KeyBar
from tuiprof.tui.widgets.choices import Choices
from tuiprof.tui.widgets.lines import Heading, Painted

if TYPE_CHECKING:
    from collections.abc import Callable

    from tuiprof.session.live.listing import Summary
    from tuiprof.session.store.folders import Session


class LibraryPanes(Vertical):
    """The list and the details."""

    def compose(self) -> ComposeResult:
        head = Painted(id="head")
        head.paint(lambda width, _: [view.head(Listing(), width)])
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
        return self.query_one("#items", Choices)

    @property
    def variants(self) -> Choices:
        """The table on the right: variants of a ladder, or recent commands."""
        return self.query_one("#variants", Choices)

    def show_list(
        self, listing: Listing, contains: str, marked: Sequence[str], *, all_sessions: bool
    ) -> None:
        self.query_one("#head", Painted).paint(lambda width, _: [view.head(listing, width)])
        self.items.show(view.items(listing, contains, marked, all_sessions=all_sessions))

    def show_ladder(self, ladder: LadderItem, python: str) -> None:
        self.query_one("#about", Painted).paint(lambda width, _: view.about_ladder(ladder, width))
        self.variants.show(view.variants(ladder))
        self.show_variant(ladder, python)
        self._show_table(shown=True, beside_story=True)

    def show_variant(self, ladder: LadderItem, python: str) -> None:
        """Describe the variant under the cursor below the table."""
        variant = ladder.variant(self.variants.current)
        self.query_one("#note", Painted).paint(
            lambda width, _: view.about_variant(ladder, variant, width, python)
        )

    def show_other(self, listing: Listing, current: str, contains: str, errors: list[str]) -> None:
        """Show the details of an item that is not a ladder, or why the list is empty."""
        kind, _, name = current.partition(":")
        about = self.query_one("#about", Painted)
        if kind == "session" and (session := listing.session(name)) is not None:
            about.paint(lambda width, _: view.about_session(listing, session, errors, width))
        elif current == "do:run":
            about.paint(lambda width, _: view.about_run(listing, width))
        elif current == "do:open":
            about.paint(lambda width, _: view.about_open(width))
        elif current == "do:example":
            about.paint(lambda width, _: view.about_example(listing, width))
        elif kind == "trace":
            about.paint(lambda width, _: view.about_trace(Path(name), width))
        else:
            about.paint(lambda width, _: view.about_nothing(listing, contains, width))
        self.query_one("#note", Painted).paint(lambda _width, _height: [])
        commands = view.past_commands(listing) if current == "do:run" else []
        self.variants.show(commands)
        self._show_table(shown=bool(commands))

    def _show_table(self, *, shown: bool, beside_story: bool = False) -> None:
        """Show or hide the table; ``beside_story`` limits the height of a ladder's description above it."""
        self.variants.display = shown
        self.query_one("#about", Painted).set_class(beside_story, "ladder")


_library = partial(key, group="Library")
_sessions = partial(key, group="Sessions")

#: Interval at which scenarios and sessions are scanned, s.
_SCAN_S: Final = 2.0
#: Delay of the first scan, s.
_FIRST_SCAN_S: Final = 0.05


class LibraryScreen(Screen[None], inherit_bindings=False):
    """Lists sessions, ladders and traces to run, watch, replay and open.

    Imports of single actions are local to them, so that they do not delay the first frame.
    """

    app = getters_app(TerminalApp)
    BINDINGS: ClassVar[list[BindingType]] = [
        _library("r", "run", "run", "Run the variant under the cursor", id="library.run"),
        _library("l", "ladder", "ladder", "Measure the whole ladder or show its results", id="library.ladder"),
        _library("s", "source", "source", "Show the script", id="library.source"),
        _sessions("R", "replay", "replay", "Replay the session from the start", id="library.replay"),
        _sessions("space", "mark", "mark", "Mark the session for comparison", id="library.mark"),
        _sessions("c", "compare", "compare", "Compare the two marked sessions", id="library.compare"),
        _sessions("t", "tags", "tags", "Edit the session's tags", id="library.tags", show=False),
        _sessions("m", "note", "note", "Write a note on the session", id="library.note", show=False),
        _library("o", "open_file", "open a file", "Open a trace or session by path", id="library.open_file"),
        _library("e", "example", "example", "Open the example trace", id="library.example"),
        _library("P", "python", "Python", "Choose the Python that scripts run in", id="library.python"),
        # handled before the keys typed next; else the list takes them, and "r" starts a run
        _library("slash", "filter", "filter", "Filter the list by name, tag or note", id="library.filter",
                 display="/", priority=True),
        _sessions("delete", "delete", "delete", "Move the session to the trash (asks first)", id="library.delete",
                  display="del"),
        _sessions("u", "undo", "undo delete", "Restore the last deleted session", id="library.undo"),
        _library("right,tab", "into", "detail", "Go to the variants or the recent commands", id="library.into",
                 show=False),
        _library("left,shift+tab", "back", "list", "Back to the list", id="library.back", show=False),
        _library("escape", "clear", "clear filter", "Clear the filter", id="library.clear"),
        _library("q", "quit", "quit", "Quit tuiprof; runs continue", id="library.quit"),
    ]  # fmt: skip
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
        self.panes = LibraryPanes()
        #: Paths of the sessions to compare, at most two, in the order in which they were marked.
        self.marked: list[str] = []
        #: (Path in the trash, original path) of each folder of each deleted session, the latest last.
        self.deleted: list[list[tuple[Path, Path]]] = []
        self._listing: Listing | None = None  # None = not scanned yet
        self._filter = ""
        self._all_sessions = False
        self._reading = ""  # ladder whose traces are being read
        # Set the size classes now: if the first resize set them, all styles would be computed twice.
        width, height = self.app.size
        for size, steps in ((width, self.HORIZONTAL_BREAKPOINTS), (height, self.VERTICAL_BREAKPOINTS)):
            self.add_class([name for least, name in steps if size >= least][-1])

    def compose(self) -> ComposeResult:
        yield self.panes
        yield KeyBar()

    def on_mount(self) -> None:
        """Draw the empty list first; items appear as they are found."""
        self.panes.items.focus()
        # Start the threads after the first frame: their imports would delay it.
        self.call_after_refresh(self.set_timer, _FIRST_SCAN_S, self._begin)

    def _begin(self) -> None:
        self.rescan()
        self._ask_interpreter()
        self.set_interval(_SCAN_S, self.rescan)

    def on_screen_resume(self) -> None:
        """Scan again on return from another screen."""
        if self._listing is not None:
            self.rescan()

    # -- scans, in threads that use no widgets -----------------------------------------------------------

    @work(thread=True, exclusive=True, exit_on_error=False, group="scan")
    def rescan(self) -> None:
        """Scan the scenarios and the folder of sessions, and show changes."""
        try:
            listing = self.library.scan()
        except TuiprofError as error:
            listing = Listing(problems=(str(error),))
        if not get_current_worker().is_cancelled:
            self.app.call_from_thread(self._found, listing)

    def _found(self, listing: Listing) -> None:
        if listing != self._listing:
            self._listing = listing
            self.redraw()

    @work(thread=True, exclusive=True, exit_on_error=False, group="interpreter")
    def _ask_interpreter(self) -> None:
        """Query the interpreter, which takes a second or two, then scan again."""
        try:
            self.library.ask_interpreter()
        except TuiprofError as error:
            self.app.call_from_thread(self.app.notify, str(error), severity="warning")
        if not get_current_worker().is_cancelled:
            self.app.call_from_thread(self.rescan)

    @work(thread=True, exclusive=True, exit_on_error=False, group="example")
    def _read_example(self) -> None:
        """Read the main finding of the example, which takes seconds the first time."""
        worker = get_current_worker()
        self.library.read_example(lambda: worker.is_cancelled)
        if not worker.is_cancelled:
            self.app.call_from_thread(self.rescan)

    def _read_traces(self, ladder: str) -> None:
        """Read the unread traces of a ladder's variants, one after the other."""
        if self._reading != ladder:
            self._reading = ladder
            self._read_next(ladder)

    @work(thread=True, exclusive=True, exit_on_error=False, group="traces")
    def _read_next(self, ladder: str) -> None:
        """Read traces in a subprocess; each takes seconds."""
        worker = get_current_worker()

        read_one = self.library.measurements.read_one
        while (
            self._reading == ladder
            and not worker.is_cancelled
            and read_one(ladder, lambda: worker.is_cancelled)
        ):
            if not worker.is_cancelled:  # the screen may have been closed
                self.app.call_from_thread(self.rescan)
        if self._reading == ladder:
            self._reading = ""

    # -- drawing -----------------------------------------------------------------------------------------

    @property
    def listing(self) -> Listing:
        """The listed items; empty until the first scan."""
        return self._listing or Listing()

    @property
    def current(self) -> str:
        """Key of the item under the cursor: ``do:…``, ``ladder:…``, ``session:…``, ``trace:…`` and so on."""
        return self.panes.items.current

    @property
    def session(self) -> Summary | None:
        """The session under the cursor; None = another item is selected."""
        kind, _, name = self.current.partition(":")
        return self.listing.session(name) if kind == "session" else None

    @property
    def ladder(self) -> LadderItem | None:
        """The ladder under the cursor; None = another item is selected."""
        kind, _, name = self.current.partition(":")
        return self.listing.ladder(name) if kind == "ladder" else None

    def redraw(self) -> None:
        """Draw the list and the detail from the known items."""
        self.panes.show_list(self.listing, self._filter, self.marked, all_sessions=self._all_sessions)
        self._show_detail()

    @on(Choices.Moved, "#items")
    def _show_detail(self) -> None:
        """Show the details of the item under the cursor."""
        if (ladder := self.ladder) is not None:
            self.panes.show_ladder(ladder, self.listing.python)
            self._read_traces(ladder.name)
        else:
            session = self.session
            errors = self.library.last_errors(session) if session is not None else []
            self.panes.show_other(self.listing, self.current, self._filter, errors)
            if self.current == "do:example" and not self.listing.example:
                self._read_example()
        self.refresh_bindings()

    @on(Choices.Moved, "#variants")
    def _show_variant(self) -> None:
        if (ladder := self.ladder) is not None:
            self.panes.show_variant(ladder, self.listing.python)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return whether an action applies to the item under the cursor; in the filter field, a slash is text."""
        if action == "filter":
            return self.focused is None or self.focused.id != "filter"
        if action == "clear":
            return self.has_class("-filtering")
        kind = self.current.partition(":")[0] if self.is_mounted else ""
        if action == "into":
            return kind == "ladder" or (
                kind == "do" and self.current == "do:run" and bool(self.listing.commands)
            )
        if action in ("run", "ladder", "source"):
            return kind == "ladder"
        if action in ("replay", "delete", "mark", "tags", "note"):
            return kind == "session"
        if action == "compare":
            return len(self.marked) == 2
        if action == "undo":
            return bool(self.deleted)
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
            self.redraw()
        elif event.key == "do:run":
            self._ask_command(next(iter(self.listing.commands), None))
        elif event.key == "do:open":
            self.action_open_file()
        elif event.key == "do:example":
            self.action_example()

    def action_into(self) -> None:
        if self.check_action("into", ()):
            self.panes.variants.focus()

    def action_back(self) -> None:
        self.panes.items.focus()

    @on(Choices.Chosen, "#variants")
    def _variant_chosen(self, event: Choices.Chosen) -> None:
        kind, _, number = event.key.partition(":")
        if self.ladder is not None:
            self.action_run()
        elif kind == "command" and int(number) < len(self.listing.commands):
            self._ask_command(self.listing.commands[int(number)])

    def action_run(self) -> None:
        if (ladder := self.ladder) is not None:
            self.run_variant(ladder.name, self.panes.variants.current)

    def run_variant(self, ladder_name: str, variant_name: str) -> None:
        """Ask how to run a variant, then start it."""
        from tuiprof.tui.library.launch import LaunchForm

        if self._listing is None:  # called before the first scan
            with self.app.notify_errors():
                self._listing = self.library.scan()
        ladder = self.listing.ladder(ladder_name)
        variant = ladder.variant(variant_name) if ladder is not None else None
        if ladder is None or variant is None:
            return
        if variant.runnable is False:
            why = cannot_run(variant, self.listing.python)
            self.app.notify(why, title="cannot run here", severity="warning", timeout=10)
            return

        def launch(chosen: dict[str, Any]) -> None:
            self.app.notify(f"starting {ladder_name}:{variant_name} …", timeout=2)
            self._start(partial(self.library.launch, ladder_name, variant_name, **chosen))

        self.app.ask(LaunchForm(ladder, variant), launch)

    @work(thread=True, exclusive=True, exit_on_error=False, group="launch")
    def _start(self, launch: Callable[[], Session]) -> None:
        """Start a run and watch it, or report why it did not start."""
        try:
            session = launch()
        except TuiprofError as error:
            title = "the run did not start"
            self.app.call_from_thread(self.app.notify, str(error), title=title, severity="error", timeout=12)
        else:
            self.app.call_from_thread(self.app.go.session, session.path)

    # -- the user's script and the Python it runs in -----------------------------------------------------

    def _ask_command(self, command: PastCommand | None) -> None:
        """Ask what to run, then start it and watch it."""
        from tuiprof.tui.library.launch import RunForm

        def run(chosen: dict[str, Any]) -> None:
            self.app.notify("starting …", timeout=2)
            self._start(partial(self.library.run, **chosen))

        self.app.ask(RunForm(command, self.listing.python), run)

    def action_python(self) -> None:
        from tuiprof.tui.library.launch import PythonScreen

        def choose(path: Path) -> None:
            self.app.start = replace(self.app.start, python=path)
            self.library.choose_python(path)
            self.rescan()
            self._ask_interpreter()

        with self.app.notify_errors():
            self.app.ask(PythonScreen(self.library.python), choose)

    def action_ladder(self) -> None:
        """Open the ladder screen, which measures the whole ladder or shows its results."""
        if (ladder := self.ladder) is not None:
            self.app.go.ladder(ladder.name)

    def action_source(self) -> None:
        from tuiprof.tui.dialogs.dialog import SourceScreen

        if (ladder := self.ladder) is not None:
            variants = self.panes.variants
            self.app.push_screen(SourceScreen(ladder.script, variants.current if variants.has_focus else ""))

    # -- sessions ----------------------------------------------------------------------------------------

    def action_replay(self) -> None:
        if (session := self.session) is not None:
            self.app.go.session(Path(session.path), replay_speed=1.0)

    def action_mark(self) -> None:
        """Mark or unmark the session; at most two are marked, and a third replaces the older mark."""
        if (session := self.session) is not None:
            if session.path in self.marked:
                self.marked.remove(session.path)
            else:
                self.marked = [*self.marked[-1:], session.path]
            self.redraw()

    def action_compare(self) -> None:
        """Compare the two marked sessions; the one marked first is the baseline."""
        existing = [path for path in self.marked if Path(path).exists()]
        if existing != self.marked:
            self.marked = existing
            self.redraw()
            self.app.notify("a marked session was deleted; mark another one", severity="warning")
            return
        before, after = self.marked
        self.app.go.compare(before, after)

    def action_tags(self) -> None:
        from tuiprof.session.store.meta import parse_tags, read_labels, set_tags
        from tuiprof.tui.dialogs.form import TextForm

        if (session := self.session) is None:
            return
        path = Path(session.path)

        def tag(text: str) -> None:
            set_tags(path, text)
            self.rescan()

        now = " ".join(read_labels(path).tags)
        hint = "words to find it by, separated by spaces"
        form = TextForm(f"tags of {session_name(session)}", value=now, hint=hint, check=parse_tags)
        self.app.ask(form, tag)

    def action_note(self) -> None:
        from tuiprof.session.store.meta import add_note
        from tuiprof.tui.dialogs.form import TextForm

        if (session := self.session) is None:
            return

        def note(text: str) -> None:
            if text:
                add_note(Path(session.path), text)
                self.rescan()

        self.app.ask(TextForm(f"a note on {session_name(session)}"), note)

    def action_delete(self) -> None:
        """Move the session to the trash after confirmation."""
        from tuiprof.tui.dialogs.dialog import ConfirmScreen

        if (session := self.session) is None:
            return
        if session.state == "running":
            self.app.notify("the session is running: stop it first", severity="warning")
            return

        def delete(_: bool) -> None:
            folders = map(Path, session.folders)
            self.deleted.append([(self.library.move_to_trash(path), path) for path in folders])
            self.marked = [one for one in self.marked if one != session.path]
            self.rescan()

        what = "It is moved" if len(session.folders) == 1 else "What its hosts recorded is moved"
        lines = [f"{what} to {self.library.trash}; u restores it."]
        question = f"Delete {session_name(session)}?"
        self.app.ask(ConfirmScreen(question, lines, yes="delete it", no="keep it"), delete)

    def action_undo(self) -> None:
        if self.deleted:
            for now, path in self.deleted.pop():
                with self.app.notify_errors():
                    self.library.restore(now, path)
                    self.app.notify(f"{path.name} is restored", timeout=3)
            self.rescan()

    # -- the rest ----------------------------------------------------------------------------------------

    def action_open_file(self, text: str = "") -> None:
        from tuiprof.tui.dialogs.form import PathForm

        self.app.ask(PathForm(text), self.app.go.path)

    def on_paste(self, event: events.Paste) -> None:
        lines = event.text.strip().splitlines()
        if len(lines) == 1 and (self.focused is None or self.focused.id != "filter"):
            self.action_open_file(lines[0].strip().strip("'\""))

    def action_example(self) -> None:
        if (path := self.library.example) is not None:
            self.app.go.trace(path)

    async def action_filter(self) -> None:
        if not self.query("#filter"):
            field = Input(placeholder="filter", id="filter", compact=True)
            await self.query_one("#side").mount(field, before=0)
        self.add_class("-filtering")
        self.set_focus(self.query_one("#filter"))

    def action_clear(self) -> None:
        self.remove_class("-filtering")
        self._filter_by("")
        for field in self.query("#filter"):
            field.remove()
        self.action_back()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._filter_by(event.value.strip())

    def on_input_submitted(self) -> None:
        self.action_back()

    def _filter_by(self, text: str) -> None:
        self._filter = text
        self.redraw()

    def action_quit(self) -> None:
        self.app.go.back()
