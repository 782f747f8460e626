"""The live screen: a run as it goes, as it ended, or replayed by a clock. It polls the fold and draws it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Final

from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.getters import app as getters_app
from textual.screen import Screen
from textual.timer import Timer
from textual.worker import get_current_worker

from tuiprof.session import control, process
from tuiprof.session.replay import Live, Replay
from tuiprof.session.stats import NO_STATS, StepStats
from tuiprof.session.store import Session
from tuiprof.session.writer_state import WriterState
from tuiprof.tui import glyphs, live_words
from tuiprof.tui.app import TuiprofApp
from tuiprof.tui.live_view import (
    WINDOWS_S,
    View,
    batch_size,
    chart_data,
    device_views,
    finding,
    phases,
    stats_in_view,
    stats_row,
)
from tuiprof.tui.screens.confirm import ConfirmScreen
from tuiprof.tui.screens.live_keys import live_keys
from tuiprof.tui.widgets.device_panel import DevicePanel
from tuiprof.tui.widgets.key_bar import KeyBar
from tuiprof.tui.widgets.lines import Row
from tuiprof.tui.widgets.output_pane import OutputPane
from tuiprof.tui.widgets.painted import Heading, Painted
from tuiprof.tui.widgets.phase_bar import PhaseBar
from tuiprof.tui.widgets.strip_chart import StripChart

#: Four pictures a second: faster than one reads numbers, slow enough for an SSH link.
RATE_HZ: Final = 4
#: Every so many of them the slow things are looked at again: status, statistics, phases.
_SLOW: Final = 4
#: Steps of a capture asked for with one key.
CAPTURE_STEPS: Final = 5
#: So long a capture that failed is told.
_FAILURE_NS: Final = 30_000_000_000
_SPEEDS: Final = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_SEEK_NS: Final = 5_000_000_000


class LiveScreen(Screen[None], inherit_bindings=False):
    """One session.

    Args:
        session: It.
        replay_speed: Replay it from the beginning at this speed; None = follow it as it is written.
    """

    app = getters_app(TuiprofApp)
    CSS_PATH = "live.tcss"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-normal"), (132, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (16, "-short"), (34, "-tall")]  # noqa: RUF012
    HELP = (
        "Step times are host times from the end of one step to the end of the next; median, p95, jitter and\n"
        "phases are of the steps in view, captured ones left out. Jitter is the median absolute deviation as a\n"
        "share of the median. ● marks a step far above the median, ▀ steps that ran under the profiler."
    )
    BINDINGS: ClassVar[list[BindingType]] = live_keys(CAPTURE_STEPS)

    def __init__(self, session: Session, *, replay_speed: float | None = None) -> None:
        super().__init__()
        self.session = session
        self.feed: Live | Replay = Live(session) if replay_speed is None else Replay(session, replay_speed)
        self.status = session.status()
        self._window = WINDOWS_S.index(None if self.status.over and replay_speed is None else 60.0)
        self._rank_name = ""
        self._frozen_ns: int | None = None
        self._stats: StepStats = NO_STATS
        self._means: dict[str, float] = {}
        self._ticks = 0
        self._edge_s = -1.0
        self._baseline: tuple[str, float] | None = None
        self._traces: list[Path] = []
        self._seen_captures: set[str] = set()
        self._asked: tuple[str, float] | None = None
        self._shown: tuple[object, ...] = ()
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        """Verdict on top, evidence below, keys at the bottom."""
        yield Painted(id="head")
        yield Heading("", id="rule")
        yield Painted(id="stats")
        yield StripChart(id="chart")
        yield PhaseBar(id="phases")
        with Horizontal(id="lower"):
            with Vertical(id="machine"):
                yield Heading("where a step goes", id="phase-head").add_class("list")
                yield PhaseBar(id="phase-list", tall=True).add_class("list")
                yield Heading("devices")
                yield DevicePanel(id="devices")
            with Vertical(id="printed"):
                yield Heading("output", id="output-head")
                yield OutputPane(id="output")
        yield Painted(id="finding")
        yield KeyBar()

    def on_mount(self) -> None:
        """Begin to follow the session."""
        self.query_one(OutputPane).open(self.session.stdout, self.session.stderr)
        self._traces = self.session.traces()
        self._timer = self.set_interval(1 / RATE_HZ, self.tick)
        self.call_after_refresh(self.tick)
        self._find_baseline()

    def on_unmount(self) -> None:
        """Close the logs."""
        self.feed.close()

    def on_screen_resume(self) -> None:
        """Draw what happened while another screen was in front."""
        self._shown = ()

    def on_resize(self) -> None:
        """Another size has room for other things."""
        self._shown = ()

    # -- what is shown -----------------------------------------------------------------------------------

    @property
    def replay(self) -> Replay | None:
        """The clock of a replay; None = not one."""
        return self.feed if isinstance(self.feed, Replay) else None

    @property
    def rank(self) -> WriterState | None:
        """The rank shown."""
        fold = self.feed.fold
        return fold.writers.get(self._rank_name) or fold.lead

    @property
    def running(self) -> bool:
        """The script runs and this is not a replay."""
        return not self.status.over and self.replay is None

    def now_ns(self) -> int:
        """Return the session time at the right edge of the picture."""
        if self._frozen_ns is not None:
            return self._frozen_ns
        if self.replay is not None:
            return self.replay.position_ns
        if self.status.over:
            return self.feed.fold.now_ns
        meta = self.session.meta
        if meta.boot and meta.boot != process.boot_id():
            return time.time_ns() - meta.unix_ns
        return time.monotonic_ns() - meta.mono_ns

    def tick(self) -> None:
        """Take in what is new and draw what changed; called by the timer."""
        if self._frozen_ns is not None or self.app.screen is not self:
            return
        self.feed.advance()
        slow = self._ticks % _SLOW == 0
        self._ticks += 1
        self.query_one(OutputPane).poll()
        if slow and self.running:
            self.status = self.session.status()
            if not self.session.meta.devices:
                self.session.reload()
        now = self.now_ns()
        state = (self.feed.fold.version, self.status, self._window, self._rank_name, self.size)
        if state == self._shown and not self.running and (self.replay is None or self.replay.over):
            return  # nothing can have changed: draw nothing, send nothing
        fresh = self._shown[1:] != state[1:]
        self._shown = state
        self._draw(now, slow=slow or fresh, fresh=fresh)

    def _draw(self, now_ns: int, *, slow: bool, fresh: bool) -> None:
        """Draw; what is expensive or would only flicker goes at the slow rate."""
        rank = self.rank
        view = View(now_ns, WINDOWS_S[self._window], self.running)
        chart = self.query_one(StripChart)
        if rank is None or not len(rank.steps):
            errors = self.query_one(OutputPane).last_errors(3)
            chart.explain(live_words.no_step_lines(self.status, errors))
            self._stats, self._means = NO_STATS, {}
        else:
            if slow:
                self._stats = stats_in_view(rank.steps, view)
                self._means = phases(rank.steps, view)
            edge_s = chart.edge(now_ns / 1e9, view.span_s, view.live)
            if fresh or edge_s != self._edge_s:
                self._edge_s = edge_s
                chart.show(chart_data(rank.steps, self._stats, replace(view, now_ns=round(edge_s * 1e9))))
        if slow or self._ticks % 2:
            self._draw_head(now_ns, rank)
        if slow:
            self._draw_slow(view, rank)
            self._rebind()

    def _draw_head(self, now_ns: int, rank: WriterState | None) -> None:
        ranks = len(self.feed.fold.ranks)
        if self.replay is not None:
            state = live_words.replay_row(self.replay, rank, ranks)
        else:
            state = live_words.state_row(self.status, now_ns, rank, ranks, self._frozen_ns is not None)
        name, machine = live_words.name_row(self.session), live_words.machine_row(self.session, rank)
        parts = (name, state, machine)
        self.query_one("#head", Painted).paint(
            lambda width, _: [live_words.head_row("tuiprof", parts, width)]
        )

    def _draw_slow(self, view: View, rank: WriterState | None) -> None:
        fold, stats, means = self.feed.fold, self._stats, self._means
        batch = batch_size(rank.steps) if rank is not None else None
        self.query_one("#stats", Painted).paint(
            lambda width, _: stats_row(stats, view, width, batch=batch, baseline=self._baseline)
        )
        why = (
            "no phases recorded: they come with torch hooks, or with tuiprof.phase(…)" if stats.count else ""
        )
        for bar in self.query(PhaseBar):
            bar.show(means, why)
        devices = device_views(fold, self.session.meta, rank)
        panel = self.query_one(DevicePanel)
        panel.compact = self.has_class("-narrow") or self.has_class("-short")
        panel.show(devices, self._device_notes(devices_known=bool(devices)))
        row = self._what_to_say(finding(fold, stats, means, devices))
        self.query_one("#finding", Painted).paint(lambda _width, _height: [row])
        output = self.query_one(OutputPane)
        self.query_one("#output-head", Heading).show(
            "output", [(output.position, "dim")] if output.position else []
        )

    def _device_notes(self, *, devices_known: bool) -> list[str]:
        """Return why hardware is absent, or why there is no reading yet."""
        if not devices_known:
            return ["no readings" if self.status.over else "waiting for the first reading …"]
        return [f"{name}: {why}" for name, why in self.session.meta.absent.items()]

    def _what_to_say(self, found: Row) -> Row:
        """Return the sentence at the bottom: a capture first, then how it ended, then what stands out."""
        captures = sorted(self.feed.fold.captures.values(), key=lambda capture: capture.t_ns)
        newest = captures[-1] if captures else None
        if newest is not None and self.replay is None:
            if newest.state == "written" and newest.id not in self._seen_captures:
                self._traces = self.session.traces()
                return live_words.capture_row(newest)
            if newest.state in ("armed", "started") and self.running:
                return live_words.capture_row(newest)
            if newest.state == "failed" and self.now_ns() - newest.t_ns < _FAILURE_NS:
                return live_words.capture_row(newest)
        if self._asked is not None and self.running:
            name, at = self._asked
            if newest is not None and newest.id == name:
                self._asked = None
            elif time.monotonic() - at < 10:
                return [(f" {glyphs.FLAG} ", "capture"), ("capture asked for …", "text")]
            else:
                text = "no answer to the capture yet: the script answers at the end of a step"
                return [(f" {glyphs.FLAG} ", "warn"), (text, "text")]
        if self.status.over and self.replay is None:
            errors = self.query_one(OutputPane).last_errors(1)
            return live_words.over_row(self.status, errors, self.feed.fold.now_ns)
        if found:
            return found
        if self._stats.count:
            return [(f" {glyphs.FLAG} ", "good"), ("nothing stands out; a capture shows more", "dim")]
        return []

    def on_output_pane_moved(self) -> None:
        """Say where the output stands."""
        position = self.query_one(OutputPane).position
        self.query_one("#output-head", Heading).show("output", [(position, "dim")] if position else [])

    # -- what the keys do --------------------------------------------------------------------------------

    def _ready(self) -> bool:
        """Whether a trace was captured that nobody has opened yet."""
        return any(
            capture.state == "written" and capture.id not in self._seen_captures
            for capture in self.feed.fold.captures.values()
        )

    def _rebind(self) -> None:
        """Show the keys that work now and no others."""
        state = (self.running, bool(self._traces), len(self.feed.fold.ranks), self._ready())
        if state != getattr(self, "_bound", None):
            self._bound = state
            self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Say which keys work now; the others are not shown."""
        if action == "stop":
            return self.running
        if action in ("capture", "capture_form"):
            return self.running and bool(self.feed.fold.ranks)
        if action == "open_trace":
            return bool(self._traces)
        if action == "open_ready":
            return self._ready()
        if action in ("speed", "seek"):
            return self.replay is not None
        if action == "pause":
            return self.running or self.replay is not None
        if action == "rank":
            return len(self.feed.fold.ranks) > 1
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
            self._asked = (name, time.monotonic())
            self._shown = ()

    def action_capture_form(self) -> None:
        """Ask what to profile, then profile it."""
        from tuiprof.tui.screens.capture_form import CaptureForm, CaptureWish

        def answered(wish: CaptureWish | None) -> None:
            if wish is not None:
                self.request_capture(wish.steps, stack=wish.stack, shapes=wish.shapes, memory=wish.memory)

        self.app.push_screen(CaptureForm(CAPTURE_STEPS), answered)

    def action_open_ready(self) -> None:
        """Open the trace that was captured last."""
        newest = max(
            (c for c in self.feed.fold.captures.values() if c.paths), key=lambda c: c.t_ns, default=None
        )
        if newest is not None:
            self._open(self.session.path / newest.paths[0])

    def action_open_trace(self) -> None:
        """Open the only trace, or choose one."""
        self._traces = self.session.traces()
        if len(self._traces) == 1:
            self._open(self._traces[0])
            return
        from tuiprof.tui.screens.pick import PickScreen

        names = [str(path.relative_to(self.session.path / "traces")) for path in self._traces]

        def picked(index: int | None) -> None:
            if index is not None:
                self._open(self._traces[index])

        self.app.push_screen(PickScreen("which trace", names, start=len(names) - 1), picked)

    def _open(self, path: Path) -> None:
        self._seen_captures.update(self.feed.fold.captures)
        self._rebind()
        self.app.open_trace(path)

    def action_pause(self) -> None:
        """Hold the picture, or the clock of the replay."""
        if self.replay is not None:
            self.replay.paused = not self.replay.paused
        elif self._frozen_ns is None:
            now = self.now_ns()
            self._frozen_ns = now
            self._draw_head(now, self.rank)
            return
        else:
            self._frozen_ns = None
        self._redraw_now()

    def action_speed(self, by: int) -> None:
        """Replay faster or slower.

        Args:
            by: Places in the row of speeds.
        """
        if (replay := self.replay) is not None:
            nearest = min(range(len(_SPEEDS)), key=lambda i: abs(_SPEEDS[i] - replay.speed))
            replay.speed = _SPEEDS[min(max(nearest + by, 0), len(_SPEEDS) - 1)]
            self._redraw_now()

    def action_seek(self, by: int) -> None:
        """Move the clock of the replay.

        Args:
            by: Times five seconds.
        """
        if self.replay is not None:
            self.replay.seek(self.replay.position_ns + by * _SEEK_NS)
            self._redraw_now()

    def action_window(self) -> None:
        """Take the next width of the time axis."""
        self._window = (self._window + 1) % len(WINDOWS_S)
        self._redraw_now()

    def action_rank(self, by: int) -> None:
        """Show another rank.

        Args:
            by: 1 or -1.
        """
        names = [rank.name for rank in self.feed.fold.ranks]
        if names:
            shown = self.rank.name if self.rank is not None else names[0]
            self._rank_name = names[(names.index(shown) + by) % len(names)]
            self._redraw_now()

    def _redraw_now(self) -> None:
        """Draw everything at once instead of at the next tick."""
        self._shown, self._ticks = (), 0
        self.tick()

    def action_log(self) -> None:
        """Give the output the whole screen, or take it back."""
        self.toggle_class("-log")
        self.query_one(OutputPane).focus()
        self._redraw_now()

    def action_leave(self) -> None:
        """Leave the screen; what runs goes on, and how to come back is said."""
        if self.has_class("-log"):
            self.action_log()
            return
        code = self.status.code or 0 if self.app.start.launched and self.status.over else 0
        if self.running:
            how = f"tuiprof attach {self.session.id}"
            if len(self.app.screen_stack) > 1:
                self.app.notify(f"{self.session.title} goes on. Come back here, or: {how}", markup=False)
            else:
                self.app.farewell = f"{self.session.title} goes on.\n  watch it again:  {how}"
        self.app.leave(code)

    def action_stop(self) -> None:
        """Stop the script, once confirmed."""
        lines = [
            "The script gets an interrupt (as Ctrl+C), then SIGTERM, then SIGKILL if it does not end.",
            "What was recorded stays.",
        ]

        def answered(yes: bool | None) -> None:
            if yes:
                with self.app.telling_errors():
                    control.request_stop(self.session)
                    self.app.notify("asked the script to stop", markup=False)

        self.app.push_screen(
            ConfirmScreen(f"Stop {self.session.title}?", lines, yes="stop it", no="let it run"), answered
        )

    @work(thread=True, exclusive=True, exit_on_error=False, group="baseline")
    def _find_baseline(self) -> None:
        """Look up the newest run of the ladder's baseline, to say how this variant compares."""
        from tuiprof.tui.history import baseline_of

        found = baseline_of(self.session)
        if found is not None and not get_current_worker().is_cancelled:
            self.app.call_from_thread(self._set_baseline, found)

    def _set_baseline(self, found: tuple[str, float]) -> None:
        self._baseline = found
        self._shown = ()
