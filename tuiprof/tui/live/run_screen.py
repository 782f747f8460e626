"""A run and what its keys do to it: capture, open, annotate, go to another run, leave, stop."""

from __future__ import annotations

import time
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from textual import work
from textual.worker import get_current_worker

from tuiprof.errors import SessionError
from tuiprof.model.characters import shell_word
from tuiprof.model.units import format_ns
from tuiprof.session.live.fold import CaptureState
from tuiprof.session.live.replay import Live
from tuiprof.session.run import control
from tuiprof.session.store.folders import Session, list_sessions, sessions_root
from tuiprof.session.store.glance import Summary
from tuiprof.session.store.meta import DEFAULT_BUDGET, TriggerRequest
from tuiprof.tui.dialogs.confirm import ConfirmScreen
from tuiprof.tui.live.output_pane import OutputPane
from tuiprof.tui.live.run_clock import CAPTURE_STEPS, RunClock
from tuiprof.tui.live.words import capture_words

if TYPE_CHECKING:
    from textual.widgets import Input

    from tuiprof.tui.opening.captures import Captures, Figures

#: Among so many of the newest sessions others that run are looked for.
_LOOK_AT = 40


class RunScreen(RunClock):
    """One session, without its picture: the live screen draws it.

    Args:
        session: It.
        replay_speed: Replay it from the beginning at this speed; None = follow it as it is written.

    Attributes:
        traces: Traces captured so far.
        seen_captures: Captures whose trace was opened, so that it is not offered again.
        asked: A capture asked for and when (monotonic s), until the script answers.
        runs: The runs that go on beside this one and this one, the oldest first.
        armed: What makes captures by itself.
    """

    def __init__(self, session: Session, *, replay_speed: float | None = None) -> None:
        super().__init__(session, replay_speed=replay_speed)
        self.traces: list[Path] = []
        self.seen_captures: set[str] = set()
        self.asked: tuple[str, float] | None = None
        self.runs: list[Summary] = []
        self.armed: list[TriggerRequest] = []
        self._summaries: dict[str, Summary] = {}
        self._figures: dict[Path, Figures | None] = {}  # what is known of the traces

    def newest_capture(self) -> CaptureState | None:
        """Return the capture that was asked for last; None = none was."""
        return max(self.base.fold.captures.values(), key=lambda capture: capture.t_ns, default=None)

    def ready(self) -> bool:
        """Whether a trace was captured that nobody has opened yet."""
        return any(
            capture.state == "written" and capture.id not in self.seen_captures
            for capture in self.base.fold.captures.values()
        )

    def trace_of_step(self) -> Path | None:
        """Return the trace that covers the selected step; None = none does, or none is selected."""
        rank = self.rank
        if self.selected is None or rank is None:
            return None
        for capture in self.base.fold.captures.values():
            record = capture.by_writer.get(rank.name)
            if record is None or not record.path or record.first is None or record.last is None:
                continue
            if record.first <= self.selected <= record.last:
                return self.session.path / record.path
        return None

    def can_arm(self) -> bool:
        """Whether captures can be made by themselves: steps are made."""
        return self.running and self.rank is not None and len(self.rank.steps) > 0

    @abstractmethod
    def slow_ns(self) -> float | None:
        """Return from which time on a step is slow: halfway from the median to the selected one, else an outlier."""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Say which keys work now; the others are not shown."""
        if action == "search":
            return self.focused is None or self.focused.id != "search"
        if action == "stop":
            return self.running
        if action in ("capture", "capture_form"):
            return self.running and bool(self.base.fold.ranks)
        if action in ("arm", "arm_form"):
            return self.can_arm()
        if action == "open_trace":
            return bool(self.traces)
        if action == "stacks":
            return self.running or bool(self.base.fold.stacks)
        if action == "open_ready":
            return self.ready() if self.selected is None else self.trace_of_step() is not None
        if action in ("speed", "now"):
            return self.replay is not None
        if action == "pause":
            return self.running or self.replay is not None
        if action == "rank":
            return len(self.feed.fold.ranks) > 1
        if action == "run":
            return len(self.runs) > 1
        return True

    def action_capture(self) -> None:
        """Profile the next steps."""
        self.request_capture(CAPTURE_STEPS)

    def request_capture(
        self, steps: int, *, stack: bool = False, shapes: bool = False, memory: bool = False
    ) -> None:
        """Ask the script for a capture.

        Args:
            steps: How many steps.
            stack: With Python stacks.
            shapes: With operator input shapes.
            memory: With allocations.
        """
        with self.app.telling_errors():
            name = control.request_capture(self.session, steps, stack=stack, shapes=shapes, memory=memory)
            self.asked = (name, time.monotonic())
            self.redraw_now()

    def action_stacks(self) -> None:
        """Show where every thread is; of a run that is over, where they were when that was kept last."""
        if self.running:
            self.app.notify("asking the processes where they are …", timeout=2)
        self._take_stacks(running=self.running)

    @work(thread=True, exclusive=True, exit_on_error=False, group="stacks")
    def _take_stacks(self, *, running: bool) -> None:
        """Ask for stacks, and show the answers."""
        from tuiprof.tui.stacks_view import read

        title, paragraphs = read(self.session, self.base.fold, running=running)
        if not get_current_worker().is_cancelled:
            self.app.call_from_thread(self._show_stacks, title, paragraphs)

    def _show_stacks(self, title: str, paragraphs: list[tuple[str, str]]) -> None:
        from tuiprof.tui.dialogs.reading import ReadingScreen

        if self.app.screen is self:
            self.app.push_screen(ReadingScreen(title, paragraphs, opened_by="stacks"))

    def action_capture_form(self) -> None:
        """Ask what to profile, then profile it."""
        from tuiprof.tui.live.capture_form import CaptureForm, CaptureWish

        def answered(wish: CaptureWish | None) -> None:
            if wish is not None:
                self.request_capture(wish.steps, stack=wish.stack, shapes=wish.shapes, memory=wish.memory)

        self.app.push_screen(CaptureForm(CAPTURE_STEPS), answered)

    def action_arm(self) -> None:
        """Capture after the next slow step; where that is armed, disarm it."""
        slow = [trigger for trigger in self.armed if trigger.every is None]
        if slow and self.selected is None:
            control.disarm(self.session, slow[0].id)
            self.app.notify("disarmed: no capture after slow steps", timeout=3)
        elif (limit_ns := self.slow_ns()) is None:
            self.app.notify("too few steps to tell what is slow: T asks", timeout=3)
        else:
            with self.app.telling_errors():
                control.arm(self.session, TriggerRequest(control.SLOW, above_ns=round(limit_ns)))
                said = f"armed: captures after each step slower than {format_ns(limit_ns)}; T changes that"
                self.app.notify(said, timeout=5)
        self.look_armed()
        self.redraw_now()

    def action_arm_form(self) -> None:
        """Ask when to capture by itself."""
        from tuiprof.tui.live.arm_form import ArmForm

        slow = next((trigger for trigger in self.armed if trigger.every is None), None)
        every = next((trigger for trigger in self.armed if trigger.every is not None), None)
        budget = next((trigger.budget_bytes for trigger in self.armed), DEFAULT_BUDGET)

        def answered(wish: tuple[TriggerRequest, ...] | None) -> None:
            if wish is None:
                return
            with self.app.telling_errors():
                for trigger in self.armed:
                    control.disarm(self.session, trigger.id)
                for request in wish:
                    control.arm(self.session, request)
            self.look_armed()
            self.redraw_now()

        limit_ns = self.slow_ns()
        text = f"{limit_ns / 1e6:.4g} ms" if limit_ns is not None and not self.armed else ""
        if slow is not None:
            text = f"{slow.times:g}x" if slow.times is not None else f"{(slow.above_ns or 0) / 1e6:.4g} ms"
        self.app.push_screen(ArmForm(text, str(every.every) if every is not None else "", budget), answered)

    def look_armed(self) -> None:
        """Look what is armed; another viewer may have changed it."""
        self.armed = control.armed(self.session) if self.running else []

    def action_open_ready(self) -> None:
        """Open the trace that covers the selected step, there; without one the trace that was captured last."""
        if (path := self.trace_of_step()) is not None:
            self._open(path, step=self.selected)
            return
        newest = max(
            (c for c in self.base.fold.captures.values() if c.paths), key=lambda c: c.t_ns, default=None
        )
        if newest is not None:
            self._open(self.session.path / newest.paths[0])

    def action_open_trace(self) -> None:
        """Open the only trace, or choose one."""
        self.traces = self.session.traces()
        if len(self.traces) == 1:
            self._open(self.traces[0])
            return
        self._list_traces(self.traces[-1])

    @work(thread=True, exclusive=True, exit_on_error=False, group="captures")
    def _list_traces(self, newest: Path) -> None:
        """Find which traces belong together, and ask for one of them."""
        from tuiprof.tui.opening.captures import captures_of

        found = captures_of(newest)
        if not get_current_worker().is_cancelled:
            self.app.call_from_thread(self._choose_trace, found)

    def _choose_trace(self, captures: Captures) -> None:
        from tuiprof.tui.opening.captures_dialog import CapturesScreen

        told = {
            self.session.path / path: capture_words(capture)
            for capture in self.base.fold.captures.values()
            for path in capture.paths
        }

        def chosen(path: Path | None) -> None:
            if path is not None:
                self._open(path)

        if self.is_current:
            self.app.push_screen(CapturesScreen(captures, self._figures, None, told), chosen)

    def _open(self, path: Path, *, step: int | None = None) -> None:
        self.seen_captures.update(self.base.fold.captures)
        self.refresh_bindings()
        self.app.open_trace(path, step=step)

    # -- other runs --------------------------------------------------------------------------------------

    @work(thread=True, exclusive=True, exit_on_error=False, group="runs")
    def look_for_runs(self) -> None:
        """Look which sessions of the same folder go on."""
        root = self.session.path.parent
        try:
            found = list_sessions(root, limit=_LOOK_AT, known=self._summaries)
        except SessionError:  # the folder was removed: there is no other run to tell of
            return
        self._summaries = {summary.id: summary for summary in found}
        runs = [one for one in reversed(found) if one.state == "running" or one.id == self.session.id]
        if not get_current_worker().is_cancelled:
            self.app.call_from_thread(self.show_runs, runs)

    def show_runs(self, runs: list[Summary]) -> None:
        """Show which runs go on.

        Args:
            runs: They and this one.
        """
        self.runs = runs

    def action_run(self, by: int) -> None:
        """Show another run that goes on.

        Args:
            by: 1 or -1.
        """
        places = [index for index, one in enumerate(self.runs) if one.id == self.session.id]
        if places and len(self.runs) > 1:
            other = self.runs[(places[0] + by) % len(self.runs)]
            self.app.switch_session(Path(other.path), self.session.path)

    # -- notes -------------------------------------------------------------------------------------------

    def action_note(self) -> None:
        """Write a note on the run, at the moment shown or on the selected step."""
        from tuiprof.session.store.labels import add_note
        from tuiprof.tui.dialogs.text_form import TextForm

        now = None if self.selected is None and self.status.over and self.replay is None else self.now_ns()
        about = f"step {self.selected}" if self.selected is not None else "the run"

        def answered(text: str | None) -> None:
            if text:
                with self.app.telling_errors():
                    add_note(self.session.path, text, t_ns=now, step=self.selected)
                    self.app.notify("noted; a shows all notes", timeout=3)

        self.app.push_screen(TextForm(f"a note on {about}", placeholder="what to remember"), answered)

    # -- the output --------------------------------------------------------------------------------------

    async def action_search(self) -> None:
        """Type what to look for in the output."""
        from textual.widgets import Input

        if not self.query("#search"):
            field = Input(placeholder="search the output", id="search", compact=True)
            await self.query_one("#printed").mount(field, before=self.query_one(OutputPane))
        self.set_focus(self.query_one("#search"))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Go to the last line that holds what was typed."""
        text = event.value
        self._end_typing()
        self.query_one(OutputPane).search(text)

    def _end_typing(self) -> None:
        for field in self.query("#search"):
            field.remove()
        self.query_one(OutputPane).focus()

    # -- the screen --------------------------------------------------------------------------------------

    def action_log(self) -> None:
        """Give the output the whole screen, or take it back."""
        self.toggle_class("-log")
        self.query_one(OutputPane).focus()
        self.redraw_now()

    def action_leave(self) -> None:
        """Leave the screen; what runs goes on, and how to come back is said."""
        if self.has_class("-log"):
            self.action_log()
            return
        ours = self.app.start.launched and self.session.path == self.app.start.path
        code = self.status.code or 0 if ours and self.status.over else 0
        if self.running and len(self.app.screen_stack) > 1:
            self.app.notify(f"{self._fate()} Come back here, or: {self._how_to_attach()}")
        elif self.running:
            self.app.farewell = self.farewell()
        self.app.leave(code)

    def farewell(self) -> str:
        """Return what becomes of the run that is left, and how to come back to it."""
        return f"{self._fate()}\n  watch it again:  {self._how_to_attach()}"

    def _fate(self) -> str:
        stopping = control.read_stop(self.session) is not None
        fate = "was asked to stop, and has not ended yet" if stopping else "goes on"
        return f"{self.session.title} {fate}."

    def _how_to_attach(self) -> str:
        known = self.session.path.parent == sessions_root()
        return f"tuiprof attach {self.session.id if known else shell_word(str(self.session.path))}"

    def action_escape(self) -> None:
        """Undo the innermost: a search, the output alone, the selected step, the moment gone by; else leave."""
        if self.query("#search"):
            self._end_typing()
        elif not self.has_class("-log") and (self.past is not None or self.selected is not None):
            self.action_now()
        else:
            self.action_leave()

    def action_stop(self) -> None:
        """Stop the script, once confirmed; a process that tuiprof did not start is left, and goes on."""
        attached = self.session.meta.attached
        lines = [
            "The script gets an interrupt (as Ctrl+C), then SIGTERM, then SIGKILL if it does not end.",
            "What was recorded stays.",
        ]
        if attached:
            goes = "goes" if len(attached) == 1 else "go"
            lines = [
                f"Process {', '.join(map(str, attached))} {goes} on as before.",
                "What was recorded stays.",
            ]

        def answered(yes: bool | None) -> None:
            if yes:
                with self.app.telling_errors():
                    known = self.base.processes() if isinstance(self.base, Live) else None
                    control.request_stop(self.session, known=known)
                    self.app.notify("leaving the process" if attached else "asked the script to stop")

        self.app.push_screen(
            ConfirmScreen(f"Stop {self.session.title}?", lines, yes="stop it", no="let it run")
            if not attached
            else ConfirmScreen(f"Detach from {self.session.title}?", lines, yes="detach", no="stay"),
            answered,
        )
