"""The ladder screen: published and measured step time of every rung; measures in a background process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.getters import app as getters_app
from textual.screen import Screen
from textual.worker import get_current_worker

from tuiprof.errors import TuiprofError, UsageProblem
from tuiprof.ladder.background import last_words, runner_of, start_in_background, stop_runner
from tuiprof.ladder.plan import pending, plan
from tuiprof.ladder.report import report
from tuiprof.ladder.scenarios import find_ladder
from tuiprof.ladder.state import LadderRun, create, list_runs
from tuiprof.report import Style, render
from tuiprof.report.sanitize import as_stem, sanitize, sanitize_lines
from tuiprof.session.run.interpreter import facts
from tuiprof.session.store.folders import sessions_root
from tuiprof.system.files import typed_path
from tuiprof.telemetry import find_hardware
from tuiprof.tui.dialogs.dialog import SourceScreen
from tuiprof.tui.dialogs.export import SUFFIXES, write
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
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.terminal.terminal_app import TerminalApp
from tuiprof.tui.widgets.bars import KeyBar
from tuiprof.tui.widgets.choices import Choices
from tuiprof.tui.widgets.lines import Heading, Painted
from tuiprof.tui.widgets.spans import wrap

if TYPE_CHECKING:
    import subprocess

    from tuiprof.ladder.state import LadderMeta


class LadderForm(Form[dict[str, Any]], inherit_bindings=False):
    """Asks how to measure a ladder, and returns the arguments of :func:`~tuiprof.ladder.plan.plan`."""

    BINDINGS: ClassVar[list[BindingType]] = form_keys("measure", "Measure", "measure", "Start measuring")

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
        super().__init__(f"measure {name}", fields, dict)


#: Seconds between two reads of a running ladder's state.
_POLL_S: Final = 1.0
_key = partial(key, group="Ladder")
#: Format by file name extension.
_FORMATS: Final = {suffix: name for name, suffix in SUFFIXES.items()}


class LadderScreen(Screen[None], inherit_bindings=False):
    """Shows a ladder: the measurement in a folder, else the newest one of that name, else what could be measured."""

    app = getters_app(TerminalApp)
    CSS_PATH = "screen.tcss"
    VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-tall")]  # noqa: RUF012
    HELP = (
        "Each rung changes one thing. Every trial is a fresh process: first the results of each variant are checked\n"
        "and some of its steps captured, then all variants are timed in turns (A B C A B C …). `ratio` is the step\n"
        "time relative to the rung's baseline, with its 95 % interval. If there is room it is also drawn, on a log\n"
        "scale: left of the baseline is faster, and an interval that crosses the baseline shows no difference.\n"
        "`published` is the publication's figure on its own hardware. Measuring continues when the dashboard is\n"
        "closed; it can be stopped and resumed."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        _key("r", "run", "measure", "Measure the ladder, or resume measuring", id="ladder.run"),
        _key("N", "new", "measure again", "Measure again from the start", id="ladder.new", show=False),
        _key("S", "stop", "stop", "Stop after this trial; press again to stop now", id="ladder.stop"),
        _key("w", "watch", "watch", "Watch the running trial", id="ladder.watch"),
        _key("c", "compare", "compare", "Compare the rung with its baseline", id="ladder.compare"),
        _key("s", "source", "source", "Show the script", id="ladder.source"),
        _key("e", "export", "export", "Write the table as Markdown, CSV, JSON, text or HTML", id="ladder.export"),
        _key("left_square_bracket", "measured(1)", "older", "Show the previous measurement", id="ladder.older"),
        _key("right_square_bracket", "measured(-1)", "newer", "Show the next measurement", id="ladder.newer"),
        _key("q,escape", "leave", "back", "Back to the library; measuring continues", id="ladder.leave",
             display="q"),
    ]  # fmt: skip

    def __init__(self, name: str, folder: Path | None = None) -> None:
        super().__init__()
        self._ladder = name
        self._start = self.app.start
        self._folders: list[Path] = [folder] if folder is not None else []  # measurements, newest first
        self._index = 0  # of the measurement that is shown
        self._view: LadderView | None = None
        self._runner: subprocess.Popen[bytes] | None = None  # started by this screen
        self._stop_requests = 0

    def compose(self) -> ComposeResult:
        yield Painted(id="head")
        yield Heading("")
        yield Painted(id="state")
        yield Choices(id="rungs", empty="reading …")
        yield Heading("", id="rung-head")
        yield Painted(id="rung")
        yield KeyBar()

    def on_mount(self) -> None:
        self._draw()
        self.query_one("#rungs", Choices).focus()
        self._read(first=True)
        self.set_interval(_POLL_S, self._poll)

    # -- reading the state, in threads that touch no widget -----------------------------------------------

    @property
    def _folder(self) -> Path | None:
        return self._folders[self._index] if self._folders else None

    def _poll(self) -> None:
        ended = self._runner is not None and self._runner.poll() is not None
        if self._runner is not None or (self._view is not None and self._view.running):
            self._read()
        if ended:
            self._runner, self._stop_requests = None, 0

    @work(thread=True, exclusive=True, exit_on_error=False, group="read")
    def _read(self, *, first: bool = False) -> None:
        """Read the state of the measurement and, if it is not running, its traces."""
        worker = get_current_worker()

        def show(view: LadderView) -> None:
            if not worker.is_cancelled:
                self.app.call_from_thread(self._show, view)

        try:
            if first and not self._folders:
                self._folders = [
                    found.path
                    for found in list_runs(sessions_root(self._start.sessions))
                    if isinstance(found, LadderRun) and found.meta.ladder == self._ladder
                ]
            folder = self._folder
            if folder is None:
                show(view_of(self._plan()))
                return
            running = runner_of(folder) is not None
            meta = LadderRun(folder).meta
            view = view_of(meta, folder, running=running, problem="" if running else last_words(folder))
            show(view)
            if not running and not worker.is_cancelled:
                show(with_report(view, report(LadderRun(folder, meta))))
        except TuiprofError as error:
            if not worker.is_cancelled:
                self.app.call_from_thread(self._fail, error)

    def _plan(self, **options: Any) -> LadderMeta:
        """Plan a measurement; starts the scenarios' interpreter, which takes a second or two.

        Raises:
            TuiprofError: There is no such ladder or preset, or the interpreter does not answer.
        """
        return plan(
            find_ladder(self._ladder, self._start.scenarios),
            facts(self._start.python),
            find_hardware().all,
            **options,
        )

    def _show(self, view: LadderView) -> None:
        old = self._view
        # Reading the traces takes seconds: until then the table keeps their previous results.
        if (
            view.report is None
            and old is not None
            and old.report is not None
            and old.folder == view.folder
            and (view.running or len(old.meta.trials) == len(view.meta.trials))
        ):
            view = with_report(view, old.report)
        self._view = view
        self._draw()

    def _fail(self, error: TuiprofError) -> None:
        self.app.notify(str(error), title="Ladder", severity="error", timeout=12)
        self.query_one("#state", Painted).paint(
            lambda width, _height: [
                [(f" {line}", "warn")] for line in wrap(sanitize_lines(error.message), width - 1)
            ]
        )

    # -- drawing -----------------------------------------------------------------------------------------

    def _draw(self) -> None:
        view = self._view
        position = f"{self._index + 1} of {len(self._folders)}" if len(self._folders) > 1 else ""
        self.query_one("#head", Painted).paint(
            lambda width, _: [head_row(view, self._ladder, position, width)]
        )
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

    # -- actions -----------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        view = self._view
        running = view is not None and view.running
        if action in ("run", "new"):
            return view is not None and not running and self._runner is None
        if action == "stop":
            return running
        if action == "watch":
            return view is not None and view.trial is not None
        if action == "compare":
            return self._targets() is not None
        if action == "export":
            return view is not None and view.report is not None
        if action == "measured":
            by = parameters[0]
            return isinstance(by, int) and 0 <= self._index + by < len(self._folders)
        return True

    def action_run(self) -> None:
        """Resume a stopped measurement, else start a new one."""
        view = self._view
        if view is not None and view.folder is not None and view.done < view.total:
            self._resume(view.folder)
        else:
            self.action_new()

    def action_new(self) -> None:
        def create(options: dict[str, Any]) -> None:
            self.app.notify("checking the interpreter …", timeout=3)
            self._create(options)

        with self.app.notify_errors():
            presets = find_ladder(self._ladder, self._start.scenarios).presets
            names = ["fit", *(name for name in presets if name != "fit")]
            self.app.ask(LadderForm(self._ladder, names), create)

    @work(thread=True, exclusive=True, exit_on_error=False, group="create")
    def _create(self, options: dict[str, Any]) -> None:
        def started(folder: Path) -> None:
            self._folders.insert(0, folder)
            self._index = 0
            self._resume(folder)

        try:
            meta = self._plan(**options)
            if not pending(meta):
                raise UsageProblem(
                    "no variant of this ladder can run here", "the list gives each one's reason and remedy"
                )
            folder = create(sessions_root(self._start.sessions), meta).path
        except TuiprofError as error:
            self.app.call_from_thread(self._fail, error)
        else:
            self.app.call_from_thread(started, folder)

    def _resume(self, folder: Path) -> None:
        with self.app.notify_errors():
            self._runner = start_in_background(LadderRun(folder))
            self._stop_requests = 0
            self._read()

    def action_stop(self) -> None:
        """Stop after the current trial; the second time, immediately."""
        folder = self._folder
        if folder is not None and stop_runner(folder):
            self._stop_requests += 1
            first = self._stop_requests == 1
            self.app.notify(
                "stops after this trial; press again to stop now" if first else "stopping", timeout=4
            )
            self._read()

    def action_watch(self) -> None:
        view = self._view
        if view is not None and view.folder is not None and view.trial is not None and view.trial.session:
            self.app.go.session(LadderRun(view.folder, view.meta).session_path(view.trial))

    @on(Choices.Chosen, "#rungs")
    def _chosen(self) -> None:
        rung = self._rung
        if rung is not None and rung.trace is not None:
            self.app.go.trace(rung.trace)
        elif rung is not None:
            unfit = rung.verdict in ("wrong", "failed", "unavailable")
            why = rung.why if unfit else "no trace was captured"
            self.app.notify(why if unfit or rung.step_ns is not None else "not measured yet", title=rung.name)

    def _targets(self) -> tuple[str, str] | None:
        """Return the rung under the cursor and the one it builds on (first) as targets of a comparison."""
        view, rung = self._view, self._rung
        before = view.row(rung.against) if view is not None and rung is not None else None
        if view is None or rung is None or before is None:
            return None
        timed = rung.step_ns is not None and before.step_ns is not None
        traced = rung.trace is not None and before.trace is not None
        return (f"{view.folder}:{before.name}", f"{view.folder}:{rung.name}") if timed or traced else None

    def action_compare(self) -> None:
        if (targets := self._targets()) is not None:
            self.app.go.compare(*targets)

    def action_source(self) -> None:
        if self._view is not None:
            rung = self._rung
            self.app.push_screen(SourceScreen(Path(self._view.meta.script), rung.name if rung else ""))

    def action_export(self) -> None:
        hint = f"the file name extension sets the format: {', '.join(_FORMATS)}"
        form = TextForm("export to", value=f"ladder-{as_stem(self._ladder, 'report')}.md", hint=hint)
        self.app.ask(form, lambda text: self._write(typed_path(text)) if text else None)

    def _write(self, path: Path) -> None:
        report = self._view.report if self._view is not None else None
        if report is None:
            return
        if path.suffix not in _FORMATS:
            raise UsageProblem(
                f"{path.name}: unknown file name extension", f"use one of {', '.join(_FORMATS)}"
            )
        text = render(report, _FORMATS[path.suffix], style=Style(rows=None, details=True))
        write(path, text, replace=True)
        self.app.notify(f"written to {path.absolute()}", timeout=6)

    def action_measured(self, by: int) -> None:
        """Show an older (1) or a newer (−1) measurement."""
        self._index += by
        self._view = None
        self.query_one("#rungs", Choices).show([])
        self._read()

    def action_leave(self) -> None:
        """Go back; measuring continues."""
        if self._view is not None and self._view.running:
            self.app.notify(
                f"Measuring {self._ladder} continues. Come back here, or: tuiprof ladder --resume last"
            )
        self.app.go.back()
