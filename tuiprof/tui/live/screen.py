"""The live screen: a run while it is recorded, after it ended, or replayed. Polls the fold, draws it, handles keys."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.getters import app as getters_app
from textual.screen import Screen
from textual.worker import get_current_worker

from tuiprof.comparison.headline import ask
from tuiprof.model.characters import shell_word
from tuiprof.model.units import format_ns
from tuiprof.session.live.hosts import outdated, read_statuses, unreached_hosts
from tuiprof.session.live.replay import Live
from tuiprof.session.live.step_source import counted
from tuiprof.session.run import control
from tuiprof.session.store.folders import Session, run_of, sessions_root
from tuiprof.session.store.meta import DEFAULT_BUDGET, TriggerRequest, add_note, read_labels
from tuiprof.system.own_process import map_arrays, return_freed
from tuiprof.tui.dialogs.dialog import ConfirmScreen, ReadingScreen
from tuiprof.tui.live.captures import RunCaptures, Verdict
from tuiprof.tui.live.moment import Figures, Moment, OtherRuns, Overhead, baseline_of, read_stacks
from tuiprof.tui.live.panes import OutputBox, RunPanes
from tuiprof.tui.live.view import alert_paragraphs
from tuiprof.tui.terminal.keys import key
from tuiprof.tui.terminal.terminal_app import TerminalApp
from tuiprof.tui.widgets.bars import KeyBar

if TYPE_CHECKING:
    from tuiprof.comparison.headline import Headline
    from tuiprof.session.live.listing import Summary
    from tuiprof.tui.opening.captures import Captures, TraceSummary

_run = partial(key, group="Run")
_view = partial(key, group="View")
_time = partial(key, group="Time")
_steps = partial(key, group="Steps")

T = TypeVar("T")

#: Number of steps of a capture requested with one key.
CAPTURE_STEPS: Final = 5
#: How often new records are read; the first ones after a pause are drawn at once.
RATE_HZ: Final = 4
#: Minimum interval between frames, s; most of the cost of a frame is independent of its content.
_FRAME_S: Final = 0.5
#: Interval between updates of slow parts (status, statistics, phases, devices), s.
_SLOW_S: Final = 1.0
#: Tolerance for timers that fire early, s.
_EARLY_S: Final = 0.1
#: Interval at which memory freed by frames is returned to the system, s.
_RETURN_S: Final = 10.0
#: Interval between searches for other runs, s.
_RUNS_S: Final = 3.0
#: Interval between comparisons of the hosts' clocks once all ranks have been found, s.
_HOSTS_S: Final = 600.0


class LiveScreen(Screen[None], inherit_bindings=False):
    """One session, followed as it is written or, with ``replay_speed``, replayed from its beginning."""

    app = getters_app(TerminalApp)
    BINDINGS: ClassVar[list[BindingType]] = [
        _run("enter", "open_ready", "open it", "Open the trace of the selected step, or the newest",
             id="live.open_ready"),
        _run("p", "capture", "capture", f"Capture the next {CAPTURE_STEPS} steps with the profiler",
             id="live.capture"),
        _run("P", "capture_form", "capture …", "Choose what to capture", id="live.capture_form", show=False),
        _run("t", "arm", "when slow", "Capture after each slow step; press again to stop", id="live.arm"),
        _run("T", "arm_form", "capture when …", "Choose when to capture automatically", id="live.arm_form",
             show=False),
        _run("o", "open_trace", "open trace", "Open a captured trace", id="live.open"),
        _view("space", "pause", "pause", "Pause the display or the replay", id="live.pause"),
        _time("end", "now", "now", "Go to the present, or to the end of the run", id="live.now"),
        _time("left", "seek(-1)", "back", "Show an earlier moment", id="live.back", show=False),
        _time("right", "seek(1)", "on", "Show a later moment", id="live.on", show=False),
        _time("less_than_sign", "speed(-1)", "slower", "Replay slower", id="live.slower"),
        _time("greater_than_sign", "speed(1)", "faster", "Replay faster", id="live.faster"),
        _steps("N,shift+left", "step(-1, True)", "previous slow step", "Select the previous slow step",
               id="live.outlier_before", show=False),
        _steps("n,shift+right", "step(1, True)", "next slow step", "Select the next slow step",
               id="live.outlier_next", show=False),
        _steps("comma", "step(-1)", "previous step", "Select the previous step", id="live.step_before",
               show=False),
        _steps("full_stop", "step(1)", "next step", "Select the next step", id="live.step_next", show=False),
        _run("S", "steps_form", "steps are …", "Choose what counts as a step", id="live.steps_form", show=False),
        _run("s", "stacks", "stacks", "Show the stack of every thread of every rank", id="live.stacks"),
        _view("z", "window", "zoom", "Change the time range", id="live.window"),
        _view("left_square_bracket", "rank(-1)", "rank −", "Show the previous rank", id="live.rank_before"),
        _view("right_square_bracket", "rank(1)", "rank +", "Show the next rank", id="live.rank_next"),
        _view("tab", "run(1)", "next run", "Show the next running run", id="live.run_next"),
        _view("shift+tab", "run(-1)", "previous run", "Show the previous run", id="live.run_before", show=False),
        _view("l", "log", "log", "Show the script's output full screen, or beside the charts", id="live.log"),
        # handled before the keys typed next, which belong to the field
        _view("slash", "search", "search", "Search the output", id="live.search", show=False, display="/",
              priority=True),
        _view("a", "alerts", "alerts", "Show alerts and notes", id="live.alerts"),
        _run("m", "note", "note", "Write a note on this run", id="live.note", show=False),
        _run("q", "leave", "leave", "Close this screen; the run continues", id="live.leave"),
        _run("escape", "escape", "undo", "Return to the present, or close this screen", id="live.escape",
             show=False),
        _run("Q", "stop", "stop", "Stop the script (asks first)", id="live.stop"),
    ]  # fmt: skip
    CSS_PATH = "screen.tcss"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-normal"), (132, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (16, "-short"), (34, "-tall")]  # noqa: RUF012
    HELP = (
        "A step time is host time from the end of one step to the end of the next. Median, p95, jitter and phases\n"
        "cover the steps in view, without captured ones. Jitter is the median absolute deviation as a share of the\n"
        "median. ● marks a step far above the median, ▀ steps that ran under the profiler.\n\n"
        "← and → move through time, end returns to the present. n and N select slow steps, full stop and comma any\n"
        "step; enter then opens the step in its trace if a capture covers it. With several ranks, `own` is the time\n"
        "of a step outside of backward and optimizer, where ranks wait for each other."
    )

    def __init__(self, session: Session, *, replay_speed: float | None = None) -> None:
        super().__init__()
        self.moment = Moment(session, replay_speed=replay_speed)
        self.captures = RunCaptures(self.moment)
        self.figures = Figures(self.moment)
        self.runs = OtherRuns(session)  # other active runs
        self._overhead = Overhead(self.moment)
        self._verdict = Verdict(
            self.moment,
            self.captures,
            self.figures,
            self._overhead,
            read_headline=self._read_headline,
            last_error=lambda: self.query_one(OutputBox).pane.last_error,
        )
        self._trace_figures: dict[Path, TraceSummary | None] = {}  # cache for the dialog of captures
        self._drawn_at = self._slow_at = -math.inf  # monotonic s
        self._shown: tuple[object, ...] = ()
        self._figures_shown: tuple[object, ...] = ()  # the same when figures were drawn last
        self._bound: tuple[object, ...] = ()
        self._labels: dict[str, str] = {}  # labels of keys that depend on the state
        self._hosts_at_s = 0.0  # monotonic s of the next search for hosts

    @property
    def session(self) -> Session:
        """The run, with the hosts known so far."""
        return self.moment.session

    def compose(self) -> ComposeResult:
        yield RunPanes(self.moment, self.figures, self._verdict)
        yield KeyBar(self._labels)

    def on_mount(self) -> None:
        map_arrays()
        self.captures.find_traces()
        self.set_interval(1 / RATE_HZ, self.tick)
        self.set_interval(_RETURN_S, self._return_freed)
        self.call_after_refresh(self.tick)
        self._read("baseline", lambda _: baseline_of(self.session), self._compare_with)
        if isinstance(self.moment.run, Live):
            self.set_interval(_RUNS_S, self._find_runs)

    def on_unmount(self) -> None:
        self._overhead.store()
        self.moment.close()

    @on(events.ScreenResume)
    @on(events.Resize)
    def draw_at_next_tick(self) -> None:
        """Force a redraw at the next tick: after another screen was shown, or the size changed."""
        self._shown = ()

    @on(events.ScreenResume)
    def _map_arrays(self) -> None:
        """Return large arrays to the system again; a trace screen, which may have been open, keeps freed memory."""
        map_arrays()

    # -- drawing -----------------------------------------------------------------------------------------

    def tick(self, *, asked: bool = False) -> None:
        """Read new records and draw changes. Called by the timer; with ``asked``, after a key."""
        moment = self.moment
        # The answer of a dialog may still be on its way here when the dashboard exits.
        if moment.closed or self.app.screen is not self or (moment.frozen_ns is not None and not asked):
            return
        at = time.monotonic()
        if not asked and at - self._drawn_at < _FRAME_S - _EARLY_S:
            return
        moment.feed.advance()
        slow = asked or at - self._slow_at >= _SLOW_S - _EARLY_S
        if slow:
            self._slow_at = at
            moment.update()
            self.captures.update_armed()
        self.query_one(OutputBox).poll(moment.replay, at_once=asked)
        fold = moment.feed.fold
        state = (
            fold.version,
            moment.status,
            moment.window,
            moment.rank_name,
            moment.selected,
            self.size,
            id(fold),
            int(100 * moment.read_share) // 5,
            moment.replay is not None and moment.replay.over,
        )
        # Figures are drawn less often, so those of the last change may be missing.
        if state == self._shown and not (slow and (moment.advances or state != self._figures_shown)):
            return  # nothing has changed except possibly the clock
        slow = slow or self._shown[1:] != state[1:]
        self._shown = state
        self._drawn_at = at
        if slow:
            self._figures_shown = state
            self._overhead.update()
        self.query_one(RunPanes).draw(moment.now_ns(), slow=slow)
        if slow:
            self._rebind()

    def redraw_now(self) -> None:
        """Draw everything now instead of at the next tick."""
        self.draw_at_next_tick()
        self.tick(asked=True)

    def _rebind(self) -> None:
        """Update the key bar if the set of active keys or their labels changed."""
        moment, captures = self.moment, self.captures
        state = (
            moment.running,
            bool(captures.traces),
            len(moment.feed.fold.ranks),
            captures.ready,
            moment.replay is None,
            moment.can_pause,
            moment.selected,
            len(self.runs.shown) > 1,
            captures.can_arm,
            moment.paused,
            bool(captures.armed_slow),
        )
        if state != self._bound:
            self._bound = state
            self._labels["live.arm"] = "not when slow" if captures.armed_slow else "when slow"
            self._labels["live.leave"] = "leave" if moment.running else "close"
            self._labels["live.pause"] = "resume" if moment.paused else "pause"
            self._labels["live.now"] = "now" if moment.running else "last moment"
            self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return whether an action is available; the keys of others are hidden."""
        moment, captures = self.moment, self.captures
        match action:
            case "search":
                return self.focused is None or self.focused.id != "search"
            case "stop":
                return moment.running
            case "capture" | "capture_form" | "steps_form":
                return moment.running and bool(moment.run.fold.ranks)
            case "arm" | "arm_form":
                return captures.can_arm
            case "open_trace":
                return bool(captures.traces)
            case "stacks":
                return moment.running or moment.run.fold.newest_stacks is not None
            case "open_ready":
                return captures.ready if moment.selected is None else captures.trace_of_step() is not None
            case "speed" | "now":
                return moment.replay is not None
            case "pause":
                return moment.can_pause
            case "rank":
                return len(moment.feed.fold.ranks) > 1
            case "run":
                return len(self.runs.shown) > 1
            case _:
                return True

    def _read(
        self,
        group: str,
        read: Callable[[Callable[[], bool]], T],
        show: Callable[[T], object],
        *,
        exclusive: bool = True,
    ) -> None:
        """Call ``read`` in a thread, then ``show`` with its result; ``read`` can ask whether it was cancelled."""

        def work() -> None:
            worker = get_current_worker()
            found = read(lambda: worker.is_cancelled)
            if not worker.is_cancelled:
                self.app.call_from_thread(show, found)

        self.run_worker(work, thread=True, exclusive=exclusive, exit_on_error=False, group=group)

    # -- time --------------------------------------------------------------------------------------------

    def action_pause(self) -> None:
        self.moment.pause()
        self.redraw_now()

    def action_speed(self, by: int) -> None:
        self.moment.change_speed(by)
        self.redraw_now()

    def action_seek(self, by: int) -> None:
        self.moment.seek(by)
        self.redraw_now()

    def action_now(self) -> None:
        self.moment.go_to_end()
        self.redraw_now()

    def action_window(self) -> None:
        self.moment.next_window()
        self.redraw_now()

    def action_rank(self, by: int) -> None:
        self.moment.next_rank(by)
        self.redraw_now()

    def action_step(self, by: int, outliers: bool = False) -> None:
        if not self.moment.select(by, outliers=outliers):
            kind = "slow step" if outliers else "step"
            self.notify(f"no {'earlier' if by < 0 else 'later'} {kind} in memory", timeout=2)
        self.redraw_now()

    # -- captures ----------------------------------------------------------------------------------------

    def action_capture(self) -> None:
        self._request_capture(CAPTURE_STEPS)

    def action_capture_form(self) -> None:
        from tuiprof.tui.live.forms import CaptureForm

        self.app.ask(CaptureForm(CAPTURE_STEPS), lambda chosen: self._request_capture(**chosen))

    def _request_capture(self, steps: int, **options: bool) -> None:
        with self.app.notify_errors():
            self.captures.request(steps, **options)
            if missed := unreached_hosts(self.session):
                self.app.notify(f"not requested on {'; '.join(missed)}", severity="warning", timeout=10)
            self.redraw_now()

    def action_arm(self) -> None:
        if self.captures.armed_slow is not None and self.moment.selected is None:
            self.captures.disarm_slow()
            self.app.notify("no more captures after slow steps", timeout=3)
        elif (limit_ns := self.figures.slow_ns()) is None:
            self.app.notify("too few steps to tell which are slow; T sets a limit", timeout=3)
        else:
            with self.app.notify_errors():
                self.captures.arm_slow(limit_ns)
                text = f"captures follow each step slower than {format_ns(limit_ns)}; T changes the limit"
                self.app.notify(text, timeout=5)
        self.redraw_now()

    def action_arm_form(self) -> None:
        from tuiprof.tui.live.forms import ArmForm

        def arm(triggers: tuple[TriggerRequest, ...]) -> None:
            self.captures.arm_only(triggers)
            self.redraw_now()

        slow, every = self.captures.armed_slow, self.captures.armed_every
        budget = next((trigger.budget_bytes for trigger in self.captures.armed), DEFAULT_BUDGET)
        limit_ns = self.figures.slow_ns()
        text = f"{limit_ns / 1e6:.4g} ms" if limit_ns is not None and not self.captures.armed else ""
        if slow is not None:
            text = f"{slow.times:g}x" if slow.times is not None else f"{(slow.above_ns or 0) / 1e6:.4g} ms"
        self.app.ask(ArmForm(text, str(every.every) if every is not None else "", budget), arm)

    # -- traces ------------------------------------------------------------------------------------------

    def action_open_ready(self) -> None:
        """Open the trace that covers the selected step, at that step; else the newest trace."""
        if (path := self.captures.trace_of_step()) is not None:
            self._open(path, step=self.moment.selected)
        elif (path := self.captures.newest_trace()) is not None:
            self._open(path)

    def action_open_trace(self) -> None:
        """Open the only trace, or choose one."""
        from tuiprof.tui.opening.captures import captures_of

        self.captures.find_traces()
        if len(self.captures.traces) == 1:
            self._open(self.captures.traces[0])
        else:
            newest = self.captures.traces[-1]
            self._read("captures", lambda _: captures_of(newest), self._choose_trace)

    def _choose_trace(self, found: Captures) -> None:
        from tuiprof.tui.opening.captures import CapturesScreen

        if self.is_current:
            dialog = CapturesScreen(found, self._trace_figures, None, self.captures.titles())
            self.app.ask(dialog, self._open)

    def _open(self, path: Path, *, step: int | None = None) -> None:
        self.captures.mark_seen()
        self.refresh_bindings()
        self.app.go.trace(path, step=step)

    def _read_headline(self, path: Path) -> None:
        """Read the main finding of a trace in a subprocess."""

        def show(headline: Headline) -> None:
            self._verdict.set_headline(path, headline)
            self.redraw_now()

        self._read("headline", lambda cancelled: ask(path, cancelled), show, exclusive=False)

    def action_stacks(self) -> None:
        """Show the stacks of all threads, or for a finished run those recorded last."""
        running, fold = self.moment.running, self.moment.run.fold
        if running:
            self.app.notify("reading the stacks of all processes …", timeout=2)

        def show(found: tuple[str, list[tuple[str, str]]]) -> None:
            if self.app.screen is self:
                self.app.push_screen(ReadingScreen(*found, opened_by="stacks"))

        self._read("stacks", lambda _: read_stacks(self.session, fold, running=running), show)

    def action_steps_form(self) -> None:
        from tuiprof.session.asking import change_request, request_change
        from tuiprof.tui.live.forms import StepsForm

        def parse(kind: str, text: str) -> dict[str, str]:
            return change_request(self.session, **{kind: text})

        def request(wanted: dict[str, str]) -> None:
            request_change(self.session, wanted)
            self.app.notify("asked the script to count steps this way; see its answer in the notes (a)")

        rank = self.moment.rank
        python = rank.head.python if rank is not None and rank.head is not None else ""
        self.app.ask(StepsForm(counted(rank), parse, python), request)

    # -- other runs --------------------------------------------------------------------------------------

    def _return_freed(self) -> None:
        """Return freed memory to the system, unless a trace is open above this screen, which reuses it."""
        if self.is_current:
            return_freed()

    def _find_runs(self) -> None:
        """Search for other active runs and for hosts, while this screen is on top."""
        if self.app.screen is self and not self.moment.status.over:
            self._read("runs", lambda _: self.runs.find(), self._show_runs)
            self._read("hosts", lambda _: self._find_hosts(), self._show_hosts)

    def _find_hosts(self) -> Session:
        """Return the run with the hosts that record it now. Reads files of each host: call it in a thread."""
        if self.session.others:
            self.moment.watch.statuses = read_statuses(self.session)
        at_s = time.monotonic()
        if at_s < self._hosts_at_s:
            return self.session
        found = run_of(Session(self.session.path))
        self._hosts_at_s = at_s + (_HOSTS_S if self.session.complete else 0.0)
        return found

    def _show_hosts(self, found: Session) -> None:
        """Reload the run if hosts were added or their clocks became known."""
        if self.moment.following and self.is_current and outdated(self.session, found):
            if found.path != self.session.path:
                self.query_one(OutputBox).follow(found.stdout, found.stderr)
            self.moment.replace_session(found, keep_rank=self.app.start.launched)
            self.runs = OtherRuns(found)
            self.captures.find_traces()
            self.draw_at_next_tick()

    def _show_runs(self, found: list[Summary]) -> None:
        self.runs.shown = found
        self.query_one(RunPanes).show_runs(found)
        self._rebind()

    def action_run(self, by: int) -> None:
        if (other := self.runs.neighbour(by)) is not None:
            self.app.go.switch(other, self.session.path)

    def _compare_with(self, baseline: tuple[str, float] | None) -> None:
        self.query_one(RunPanes).baseline = baseline
        self.draw_at_next_tick()

    # -- the rest ----------------------------------------------------------------------------------------

    def action_alerts(self) -> None:
        labels, noted = read_labels(self.session.path), list(self.moment.feed.fold.notes)
        past = self.moment.status.over and self.moment.replay is None
        paragraphs = alert_paragraphs(self.figures.alerts, labels, noted, past=past)
        self.app.push_screen(ReadingScreen("alerts and notes", paragraphs, opened_by="alerts"))

    def action_note(self) -> None:
        from tuiprof.tui.dialogs.form import TextForm

        moment, step = self.moment, self.moment.selected
        of_the_run = step is None and moment.status.over and moment.replay is None
        now_ns = None if of_the_run else moment.now_ns()

        def note(text: str) -> None:
            if text:
                add_note(self.session.path, text, t_ns=now_ns, step=step)
                self.app.notify("noted; a shows all notes", timeout=3)

        about = f"step {step}" if step is not None else "the run"
        self.app.ask(TextForm(f"a note on {about}", placeholder="what to remember"), note)

    async def action_search(self) -> None:
        await self.query_one(OutputBox).ask_for_text()

    def action_log(self) -> None:
        self.toggle_class("-log")
        self.query_one(OutputBox).pane.focus()
        self.redraw_now()

    def action_escape(self) -> None:
        """Undo one state: the search field, the output full screen, the selected step or past moment; else leave."""
        if self.query_one(OutputBox).close_field():
            return
        moment = self.moment
        if not self.has_class("-log") and (moment.past is not None or moment.selected is not None):
            self.action_now()
        else:
            self.action_leave()

    def action_leave(self) -> None:
        """Leave the screen. The run continues; a message names the command that returns to it."""
        if self.has_class("-log"):
            self.action_log()
            return
        running, status = self.moment.running, self.moment.status
        if running and len(self.app.screen_stack) > 1:
            self.app.notify(f"{_fate(self.session)} Come back here, or: {_attach_command(self.session)}")
        elif running:
            self.app.farewell = self.farewell()
        launched = self.app.start.path if self.app.start.launched else None
        ours = status if self.session.path == launched else None
        for host in self.moment.hosts:
            ours = host.status if host.session.path == launched else ours
        self.app.go.back(ours.code or 0 if ours is not None and ours.over else 0)

    def farewell(self) -> str:
        """Return the state of a run whose screen is closed, and the command that returns to it."""
        return f"{_fate(self.session)}\n  watch it again:  {_attach_command(self.session)}"

    def action_stop(self) -> None:
        """Stop the script after confirmation; detach from a process that tuiprof did not start."""
        attached = self.session.meta.attached
        lines = [
            "The script gets an interrupt (as Ctrl+C), then SIGTERM, then SIGKILL if it does not end.",
            "What was recorded is kept.",
        ]
        if attached:
            goes = "continues" if len(attached) == 1 else "continue"
            lines[0] = f"Process {', '.join(map(str, attached))} {goes} to run."

        def stop(_: bool) -> None:
            run = self.moment.run
            control.request_stop(self.session, known=run.processes() if isinstance(run, Live) else None)
            self.app.notify("leaving the process" if attached else "asked the script to stop")

        dialog = (
            ConfirmScreen(f"Detach from {self.session.title}?", lines, yes="detach", no="stay")
            if attached
            else ConfirmScreen(f"Stop {self.session.title}?", lines, yes="stop it", no="let it run")
        )
        self.app.ask(dialog, stop)


def _fate(session: Session) -> str:
    stopping = control.read_stop(session) is not None
    return (
        f"{session.title} {'was asked to stop, and has not ended yet' if stopping else 'continues to run'}."
    )


def _attach_command(session: Session) -> str:
    known = session.path.parent == sessions_root()
    return f"tuiprof attach {shell_word(session.id if known else str(session.path))}"
