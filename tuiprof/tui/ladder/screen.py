"""A ladder: every rung with what was published, what it takes here, and why; measured in the background."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.getters import app as getters_app
from textual.screen import Screen
from textual.worker import get_current_worker

from tuiprof.errors import TuiprofError, UsageProblem
from tuiprof.ladder.report import report
from tuiprof.ladder.runner import last_words, pending, plan, runner_of, start_in_background, stop_runner
from tuiprof.ladder.scenarios import find_ladder
from tuiprof.ladder.state import LadderRun, create, list_ladders
from tuiprof.report import Style, render
from tuiprof.report.sanitize import as_stem, sanitize, sanitize_lines
from tuiprof.session.run.interpreter import facts
from tuiprof.session.store.folders import sessions_root
from tuiprof.system.files import typed_path
from tuiprof.telemetry import find_hardware
from tuiprof.tui.dialogs.dialog import SourceScreen
from tuiprof.tui.dialogs.form import PRESET_LABEL, Form, OneOf, Text, TextForm, form_keys, optional, whole
from tuiprof.tui.ladder.view import (
    LadderView,
    RungRow,
    about_rung,
    head_row,
    rung_choices,
    state_rows,
    view_of,
    with_report,
)
from tuiprof.tui.terminal.guest import TerminalApp
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.widgets.bars import KeyBar
from tuiprof.tui.widgets.choices import Choices
from tuiprof.tui.widgets.lines import Heading, Painted
from tuiprof.tui.widgets.spans import wrap

if TYPE_CHECKING:
    import subprocess

    from tuiprof.ladder.state import LadderMeta
    from tuiprof.tui.start import Start


@dataclass(frozen=True, slots=True)
class LadderWish:
    """How the user wants it measured."""

    preset: str = "fit"  # name of a preset, or ``fit``
    rounds: int = 5  # timing trials a variant
    steps: int | None = None  # steps a trial; None = the preset's


class LadderForm(Form[LadderWish], inherit_bindings=False):
    """Asks how to measure a ladder."""

    BINDINGS: ClassVar[list[BindingType]] = form_keys(
        "measure", "Measure", "measure", "Start measuring", "Cancel"
    )

    def __init__(self, name: str, presets: Sequence[str]) -> None:
        rounds = whole("rounds must be a whole number from 1 to 1000", 1, 1000)
        steps = optional(whole("steps must be a whole number above 1", 2))
        fields = (
            OneOf("preset", PRESET_LABEL, presets),
            Text(
                "rounds", "rounds — trials per variant, timed in turns; a ratio needs two", "5", parse=rounds
            ),
            Text("steps", "steps per trial", placeholder="from the preset", parse=steps),
        )
        super().__init__(f"measure {name}", fields, LadderWish)


#: Seconds between two looks at a ladder that runs.
_LOOK_S: Final = 1.0
_key = partial(key, group="Ladder")
_FORMATS: Final = {".md": "md", ".csv": "csv", ".json": "json", ".txt": "text", ".html": "html"}


class LadderShelf:
    """The ladders of one name, in folders; used in threads."""

    def __init__(self, name: str, start: Start) -> None:
        self._name = name
        self._start = start

    @property
    def root(self) -> Path:
        """Folder of the sessions."""
        return sessions_root(self._start.sessions)

    def folders(self) -> list[Path]:
        """Return the ladders of this name that were begun, the newest first."""
        return [
            one.path
            for one in list_ladders(self.root)
            if isinstance(one, LadderRun) and one.meta.ladder == self._name
        ]

    def read(self, folder: Path) -> LadderView:
        """Return the state of a started ladder, without its traces.

        Raises:
            TuiprofError: Its folder cannot be read.
        """
        meta = LadderRun(folder).meta
        running = runner_of(folder) is not None
        view = view_of(meta, folder, running=running)
        stopped = view.done < view.total and not running
        return replace(view, problem=last_words(folder)) if stopped else view

    def presets(self) -> list[str]:
        """Return the names of the ladder's presets, the one that suits the machine (``fit``) first.

        Raises:
            TuiprofError: There is no such ladder.
        """
        found = find_ladder(self._name, self._start.scenarios)
        return ["fit", *(name for name in found.presets if name != "fit")]

    def planned(self, *, rounds: int = 5, preset: str = "fit", steps: int | None = None) -> LadderMeta:
        """Plan the ladder; asks the interpreter, which takes a second or two.

        Raises:
            TuiprofError: There is no such ladder or preset, or the interpreter does not answer.
        """
        found = find_ladder(self._name, self._start.scenarios)
        known = facts(self._start.python)
        return plan(found, known, find_hardware().all, rounds=rounds, preset=preset, steps=steps)

    def begin(self, meta: LadderMeta) -> LadderRun:
        """Make the folder of a planned ladder.

        Raises:
            TuiprofError: Nothing of it can run here, or the folder cannot be made.
        """
        if not pending(meta):
            raise UsageProblem(
                "no variant of this ladder can run here", "the list says of each why, and what to do"
            )
        return create(self.root, meta)


class LadderScreen(Screen[None], inherit_bindings=False):
    """One ladder: as measured in a folder, else the newest of its name, else what could be measured."""

    app = getters_app(TerminalApp)
    CSS_PATH = "screen.tcss"
    VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-tall")]  # noqa: RUF012
    HELP = (
        "Each rung changes one thing. Every trial is a fresh process: first the results of each variant are checked\n"
        "and some of its steps captured, then all variants are timed in turns (A B C A B C …). `ratio` is the step\n"
        "time relative to the rung's baseline, with its 95 % interval. If there is room it is also drawn, on a log\n"
        "scale: left of the baseline is faster, and an interval that crosses the baseline shows no difference.\n"
        "`published` is the publication's figure on its own hardware. Measuring continues when the dashboard is\n"
        "closed, and can be stopped and resumed."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        _key("r", "run", "measure", "Measure the ladder, or resume", id="ladder.run"),
        _key("N", "new", "measure again", "Measure again from the start", id="ladder.new", show=False),
        _key("S", "stop", "stop", "Stop after this trial; press again to stop now", id="ladder.stop"),
        _key("w", "watch", "watch", "Watch the running trial", id="ladder.watch"),
        _key("c", "compare", "compare", "Compare the rung with its baseline", id="ladder.compare"),
        _key("s", "source", "source", "Show the script", id="ladder.source"),
        _key(
            "e",
            "export",
            "export",
            "Write the table as Markdown, CSV, JSON, text or HTML",
            id="ladder.export",
        ),
        _key(
            "left_square_bracket", "measured(1)", "older", "Show the previous measurement", id="ladder.older"
        ),
        _key("right_square_bracket", "measured(-1)", "newer", "Show the next measurement", id="ladder.newer"),
        _key(
            "q,escape",
            "leave",
            "back",
            "Back to the library; measuring continues",
            id="ladder.leave",
            display="q",
        ),
    ]

    def __init__(self, name: str, folder: Path | None = None) -> None:
        super().__init__()
        self._ladder = name
        self._shelf = LadderShelf(name, self.app.start)
        self._folders: list[Path] = [folder] if folder is not None else []
        self._at = 0
        self._view: LadderView | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._asked = 0
        self._seen: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        """Its state on top, then the rungs, then details of the one under the cursor."""
        yield Painted(id="head")
        yield Heading("")
        yield Painted(id="state")
        yield Choices(id="rungs", empty="looking …")
        yield Heading("", id="rung-head")
        yield Painted(id="rung")
        yield KeyBar()

    def on_mount(self) -> None:
        """Begin to look."""
        self._draw()
        self.query_one("#rungs", Choices).focus()
        self._look(first=True)
        self.set_interval(_LOOK_S, self._poll)

    # -- what there is, in threads that touch no widget ---------------------------------------------------

    @property
    def _folder(self) -> Path | None:
        return self._folders[self._at] if self._folders else None

    def _poll(self) -> None:
        """Look again at a ladder that runs, or that just ended."""
        if self._child is not None and self._child.poll() is not None:
            self._child, self._asked = None, 0
            self._look()
        elif self._child is not None or (self._view is not None and self._view.running):
            self._look()

    @work(thread=True, exclusive=True, exit_on_error=False, group="look")
    def _look(self, *, first: bool = False) -> None:
        """Read the state of the ladder; of one that does not run, its traces as well."""
        worker = get_current_worker()

        def show(view: LadderView) -> None:
            if not worker.is_cancelled:
                self.app.call_from_thread(self._found, view)

        try:
            if first:
                self._folders = self._folders or self._shelf.folders()
            folder = self._folder
            if folder is None:
                show(view_of(self._shelf.planned(), None))
                return
            view = self._shelf.read(folder)
            show(view)
            if view.running or worker.is_cancelled:
                return

            show(with_report(view, report(LadderRun(folder, view.meta))))
        except TuiprofError as error:
            if not worker.is_cancelled:
                self.app.call_from_thread(self._failed, error)

    def _found(self, view: LadderView) -> None:
        kept = self._view
        # The table keeps what the traces showed until they are read again.
        if kept is not None and kept.folder == view.folder and view.report is None:
            same = view.running or len(kept.meta.trials) == len(view.meta.trials)
            if kept.report is not None and same:
                view = with_report(view, kept.report)
        self._view = view
        self._draw()

    def _failed(self, error: TuiprofError) -> None:
        self.app.notify(str(error), title="that failed", severity="error", timeout=12)
        self.query_one("#state", Painted).paint(
            lambda width, _height: [
                [(f" {line}", "warn")] for line in wrap(sanitize_lines(error.message), width - 1)
            ]
        )

    # -- what is shown -----------------------------------------------------------------------------------

    def _draw(self) -> None:
        view = self._view
        place = f"{self._at + 1} of {len(self._folders)}" if len(self._folders) > 1 else ""
        self.query_one("#head", Painted).paint(lambda width, _: [head_row(view, self._ladder, place, width)])
        if view is None:
            return
        self.query_one("#state", Painted).paint(lambda width, _: state_rows(view, width))
        self.query_one("#rungs", Choices).show(rung_choices(view))
        self._draw_rung()
        self.refresh_bindings()

    @property
    def _rung(self) -> RungRow | None:
        return self._view.row(self.query_one("#rungs", Choices).current) if self._view is not None else None

    def _draw_rung(self) -> None:
        view, rung = self._view, self._rung
        if view is not None:
            self.query_one("#rung-head", Heading).show(sanitize(rung.name) if rung is not None else "")
            self.query_one("#rung", Painted).paint(lambda width, _: about_rung(view, rung, width))

    @on(Choices.Moved, "#rungs")
    def _moved(self) -> None:
        self._draw_rung()
        self.refresh_bindings()

    # -- what the keys do --------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return whether a key works now."""
        view = self._view
        running = view is not None and view.running
        if action in ("run", "new"):
            return view is not None and not running and self._child is None
        if action == "stop":
            return running
        if action == "watch":
            return view is not None and view.trial is not None
        if action == "compare":
            return self._pair() is not None
        if action == "export":
            return view is not None and view.report is not None
        if action == "measured":
            by = parameters[0]
            return isinstance(by, int) and 0 <= self._at + by < len(self._folders)
        return True

    def action_run(self) -> None:
        """Resume what was stopped; else ask how to measure, and measure."""
        view = self._view
        if view is not None and view.folder is not None and view.done < view.total:
            self._resume(view.folder)
        else:
            self.action_new()

    def action_new(self) -> None:
        """Ask how to measure, and measure from the beginning."""

        def answered(wish: LadderWish | None) -> None:
            if wish is not None:
                self.app.notify("asking the interpreter …", timeout=3)
                self._begin(wish)

        with self.app.notify_errors():
            self.app.push_screen(LadderForm(self._ladder, self._shelf.presets()), answered)

    @work(thread=True, exclusive=True, exit_on_error=False, group="begin")
    def _begin(self, wish: LadderWish) -> None:
        try:
            meta: LadderMeta = self._shelf.planned(rounds=wish.rounds, preset=wish.preset, steps=wish.steps)
            folder = self._shelf.begin(meta).path
        except TuiprofError as error:
            self.app.call_from_thread(self._failed, error)
            return
        self.app.call_from_thread(self._begun, folder)

    def _begun(self, folder: Path) -> None:
        self._folders.insert(0, folder)
        self._at = 0
        self._resume(folder)

    def _resume(self, folder: Path) -> None:
        with self.app.notify_errors():
            self._child = start_in_background(LadderRun(folder))
            self._asked = 0
            self._look()

    def action_stop(self) -> None:
        """Stop after the current trial; the second time, immediately."""
        folder = self._folder
        if folder is not None and stop_runner(folder):
            self._asked += 1
            text = "stops after this trial; press again to stop now" if self._asked == 1 else "stopping"
            self.app.notify(text, timeout=4)
            self._look()

    def action_watch(self) -> None:
        """Watch the trial that runs."""
        view = self._view
        if view is not None and view.folder is not None and view.trial is not None and view.trial.session:
            self.app.go.session(LadderRun(view.folder, view.meta).session_path(view.trial))

    @on(Choices.Chosen, "#rungs")
    def _chosen(self) -> None:
        rung = self._rung
        if rung is not None and rung.trace is not None:
            self.app.go.trace(rung.trace)
        elif rung is not None:
            why = rung.why or "no trace of it yet"
            self.app.notify(why, title=rung.name, timeout=6)

    def _pair(self) -> tuple[str, str] | None:
        """Return the one that the rung under the cursor builds on, and that rung, as a comparison names them."""
        view, rung = self._view, self._rung
        before = view.row(rung.against) if view is not None and rung is not None else None
        if view is None or rung is None or before is None:
            return None
        timed = rung.step_ns is not None and before.step_ns is not None
        traced = rung.trace is not None and before.trace is not None
        return (f"{view.folder}:{before.name}", f"{view.folder}:{rung.name}") if timed or traced else None

    def action_compare(self) -> None:
        """Compare the rung with its baseline: by their timing trials, and by their traces."""
        if (pair := self._pair()) is not None:
            self.app.go.compare(*pair)

    def action_source(self) -> None:
        """Read the script, at the variant under the cursor."""
        if self._view is not None:
            rung = self._rung
            self.app.push_screen(SourceScreen(Path(self._view.meta.script), rung.name if rung else ""))

    def action_export(self) -> None:
        """Write the table to a file."""

        def answered(text: str | None) -> None:
            if text:
                with self.app.notify_errors():
                    self._write(typed_path(text))

        hint = f"the file name extension sets the format: {', '.join(_FORMATS)}"
        self.app.push_screen(
            TextForm("export to", value=f"ladder-{as_stem(self._ladder, 'report')}.md", hint=hint), answered
        )

    def _write(self, path: Path) -> None:
        report = self._view.report if self._view is not None else None
        if report is None:
            return
        if path.suffix not in _FORMATS:
            raise UsageProblem(f"{path.name}: no such format", f"the endings are {', '.join(_FORMATS)}")
        text = render(report, _FORMATS[path.suffix], style=Style(rows=None, details=True))
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageProblem(
                f"{path} cannot be written: {error.strerror}", "choose another file"
            ) from error
        self.app.notify(f"written: {path.absolute()}", timeout=6)

    def action_measured(self, by: int) -> None:
        """Show an older (1) or a newer (−1) measurement."""
        self._at += by
        self._view = None
        self.query_one("#rungs", Choices).show([])
        self._look()

    def action_leave(self) -> None:
        """Go back; the measurement continues."""
        if self._view is not None and self._view.running:
            self.app.notify(
                f"Measuring {self._ladder} continues. Come back here, or: tuiprof ladder --resume last"
            )
        self.app.go.back()
