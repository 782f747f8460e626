"""The live screen: a run as it goes, as it ended, or replayed by a clock. It polls the fold and draws it."""

from __future__ import annotations

import contextlib
import math
import time
from typing import TYPE_CHECKING, Final

from textual import work
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.worker import get_current_worker

from tuiprof.errors import SessionError
from tuiprof.session.live.alerts import alerts
from tuiprof.session.live.fold import Fold
from tuiprof.session.live.ownership import of_others
from tuiprof.session.live.replay import Live, Replay
from tuiprof.session.live.stats import NO_STATS
from tuiprof.session.live.straggler import lanes
from tuiprof.session.live.writer_state import WriterState
from tuiprof.session.store.folders import Session
from tuiprof.session.store.glance import Summary
from tuiprof.session.store.storage import trouble
from tuiprof.system.memory import return_freed
from tuiprof.tui.live import words as live_words
from tuiprof.tui.live.device_panel import DevicePanel
from tuiprof.tui.live.output_pane import OutputPane
from tuiprof.tui.live.phase_bar import PhaseBar
from tuiprof.tui.live.rows import (
    MOST_LANES,
    rank_rows,
    runs_row,
    time_row,
)
from tuiprof.tui.live.run_verdict import RunVerdict
from tuiprof.tui.live.strip_chart import StripChart
from tuiprof.tui.live.view import (
    WINDOWS_S,
    View,
    batch_size,
    chart_data,
    device_views,
    phases,
    slowdown_in_view,
    stats_in_view,
    stats_row,
)
from tuiprof.tui.live.words import absent_word
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.widgets.key_bar import KeyBar
from tuiprof.tui.widgets.painted import Heading, Painted

if TYPE_CHECKING:
    pass

#: So often it is looked for what is new: what comes after a silence is seen at once.
RATE_HZ: Final = 4
#: Seconds between two pictures in a stream of steps: most of what a picture costs it costs whatever is in it.
_PICTURE_S: Final = 0.5
#: Seconds after which the slow things are looked at again: status, statistics, phases, devices.
_SLOW_S: Final = 1.0
#: Timers come a little early and late.
_EARLY_S: Final = 0.1
#: Seconds after which memory that pictures left behind is given back.
_RETURN_S: Final = 60.0
#: Seconds between two looks for other runs.
_LOOK_S: Final = 3.0


class LiveScreen(RunVerdict):
    """One session.

    Args:
        session: It.
        replay_speed: Replay it from the beginning at this speed; None = follow it as it is written.
    """

    CSS_PATH = "live.tcss"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-normal"), (132, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (16, "-short"), (34, "-tall")]  # noqa: RUF012
    HELP = (
        "Step times are host times from the end of one step to the end of the next; median, p95, jitter and\n"
        "phases are of the steps in view, captured ones left out. Jitter is the median absolute deviation as a\n"
        "share of the median. ● marks a step far above the median, ▀ steps that ran under the profiler.\n\n"
        "← → go back and on in time, end returns to the present; n N select slow steps, comma and full stop any\n"
        "step: enter then opens it in its trace where a capture covers it. Where several ranks run, `own` is the\n"
        "time of a step outside of backward and optimizer, in which ranks wait for one another."
    )

    def __init__(self, session: Session, *, replay_speed: float | None = None) -> None:
        super().__init__(session, replay_speed=replay_speed)
        self._means: dict[str, float] = {}
        self._drawn_at = self._slow_at = -math.inf  # monotonic s
        self._baseline: tuple[str, float] | None = None
        self._shown: tuple[object, ...] = ()
        self._bound: tuple[object, ...] = ()
        self._least = 0
        self._printed_at = -math.inf
        self._trouble = ""  # what keeps the run from being recorded

    def compose(self) -> ComposeResult:
        """Verdict on top, evidence below, keys at the bottom."""
        yield Painted(id="runs")
        yield Painted(id="head")
        yield Painted(id="rule")
        yield Painted(id="stats")
        yield StripChart(id="chart")
        yield PhaseBar(id="phases")
        yield Painted(id="ranks")
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
        self.traces = self.session.traces()
        self.set_interval(1 / RATE_HZ, self.tick)
        self.set_interval(_RETURN_S, return_freed)
        self.call_after_refresh(self.tick)
        self._find_baseline()
        if isinstance(self.base, Live):
            self.set_interval(_LOOK_S, self._look_around)

    def _look_around(self) -> None:
        """See whether other runs go on, while this screen is looked at."""
        if self.app.screen is self and not self.status.over:
            self.look_for_runs()

    def on_unmount(self) -> None:
        """Close the logs."""
        self.store_costs()
        self.base.close()
        if self.past is not None:
            self.past.close()

    def on_screen_resume(self) -> None:
        """Draw what happened while another screen was in front."""
        self._shown = ()

    def on_resize(self) -> None:
        """Another size has room for other things."""
        self._shown = ()

    def tick(self, *, asked: bool = False) -> None:
        """Take in what is new and draw what changed; called by the timer.

        Args:
            asked: A key was pressed: also a picture that stands still is drawn.
        """
        if self.app.screen is not self or (self.frozen_ns is not None and not asked):
            return
        at = time.monotonic()
        if not asked and at - self._drawn_at < _PICTURE_S - _EARLY_S:
            return
        self.feed.advance()
        slow = asked or at - self._slow_at >= _SLOW_S - _EARLY_S
        if slow:
            self._slow_at = at
            self._look_at_run()
        self._poll_output()
        now = self.now_ns()
        fold = self.feed.fold
        read = int(100 * self.base.read_share) if isinstance(self.base, Live) else 100
        shown = (self.status, self.window, self.rank_name, self.selected, self.size, id(fold), read // 5)
        state = (fold.version, *shown)
        moves = self.following or (self.replay is not None and not self._stands(self.replay))
        if state == self._shown and not (slow and moves):
            return  # nothing can have changed, or nothing but the clock: draw nothing, send nothing
        fresh = self._shown[1:] != state[1:]
        self._shown = state
        self._drawn_at = at
        self._draw(now, slow=slow or fresh)

    def _look_at_run(self) -> None:
        """See how the run stands."""
        if self.past is not None:
            self.base.advance()  # so that the present is there when it is wanted
        if isinstance(self.base, Live) and self.running:
            self.status = self.base.status()
            self.look_armed()
            self._trouble = trouble(self.session)
            if not self.session.meta.devices:
                with contextlib.suppress(SessionError):  # it was deleted
                    self.session.reload()

    @staticmethod
    def _stands(replay: Replay) -> bool:
        return replay.paused or replay.over

    def _poll_output(self) -> None:
        """Show what was printed: at once after a silence, once a second in a stream of lines."""
        pane, replay = self.query_one(OutputPane), self.replay
        # Of a session whose recorder told no times, all that was printed is shown.
        if replay is None or not replay.tells_output or replay.over:
            pane.show_until(None)
        else:
            pane.show_until(replay.fold.printed or (0, 0))
        now = time.monotonic()
        if now - self._printed_at >= 1.0 and pane.poll():
            self._printed_at = now

    def _draw(self, now_ns: int, *, slow: bool) -> None:
        """Draw; what is expensive or would only flicker goes at the slow rate."""
        rank, charted = self.rank, self.charted
        view = View(now_ns, WINDOWS_S[self.window], self.following)
        chart = self.query_one(StripChart)
        if rank is None or charted is None or not len(rank.steps):
            errors = self.query_one(OutputPane).last_errors(3)
            replayed = self.replay is not None and not self.replay.over
            chart.explain(live_words.no_step_lines(self.status, errors, replayed=replayed))
            self.stats, self._means = NO_STATS, {}
        else:
            if slow:
                self.stats = stats_in_view(rank.steps, view)
                self._means = phases(rank.steps, view, self.selected_row())
            goes_on = self.following or (self.replay is not None and not self.replay.over)
            edge_s = chart.edge(now_ns / 1e9, view.span_s) if goes_on else None
            chart.show(chart_data(charted.steps, self.stats, view, self.selected, edge_s))
        self.draw_head(now_ns)
        if slow:
            self._draw_slow(view, rank)
            self._rebind()

    def draw_head(self, now_ns: int) -> None:
        """Draw the first line, and the moment shown below it.

        Args:
            now_ns: Session time shown.
        """
        rank, replay = self.rank, self.replay
        ranks = len(self.feed.fold.ranks)
        if replay is not None:
            state = live_words.replay_row(replay, rank, ranks, back=self.past is not None)
        else:
            state = live_words.state_row(self.status, now_ns, rank, ranks, self.frozen_ns is not None)
        others = of_others(self.feed.fold, self.session.meta)
        machine = live_words.machine_row(self.session, rank, others)
        parts = (live_words.name_row(self.session), state, machine)
        self.query_one("#head", Painted).paint(
            lambda width, _: [live_words.head_row("tuiprof", parts, width)]
        )
        fold = self.base.fold if self.past is not None else self.feed.fold
        until_ns = max(now_ns, replay.duration_ns, fold.now_ns) if replay is not None else 0
        self.query_one("#rule", Painted).paint(
            lambda width, _: [
                time_row(now_ns, until_ns, fold, width) if until_ns else [(glyphs.RULE * width, "rule")]
            ]
        )

    def _draw_slow(self, view: View, rank: WriterState | None) -> None:
        fold, stats, means = self.feed.fold, self.stats, self._means
        batch = batch_size(rank.steps) if rank is not None else None
        read = self.base.read_share if isinstance(self.base, Live) else 1.0
        slowdown = slowdown_in_view(rank.steps, view) if rank is not None else None
        self.query_one("#stats", Painted).paint(
            lambda width, _: stats_row(
                stats, view, width, batch=batch, baseline=self._baseline, read=read, slowdown=slowdown
            )
        )
        why = "no phases recorded: they come with torch hooks, or with tuiprof.phase(…)"
        why = why if stats.count else "no step yet"
        for bar in self.query(PhaseBar):
            bar.show(means, why)
        if self.query_one("#phase-head", Heading).display:
            step = f"where step {self.selected} went" if self.selected is not None else "where a step goes"
            self.query_one("#phase-head", Heading).show(step)
        self._draw_ranks(fold, rank, view.now_ns)
        others = of_others(fold, self.session.meta)
        devices = device_views(fold, self.session.meta, rank, others)
        panel = self.query_one(DevicePanel)
        panel.compact = self.has_class("-narrow") or self.has_class("-short")
        panel.show(devices, self._device_notes(devices_known=bool(devices)))
        # Stacked, one line a device is kept, whatever that leaves for the output.
        least = min(panel.height_for(0), 10) + 1 if panel.compact else 0
        if least != self._least:  # even setting a style to what it was draws the whole screen anew
            self._least = least
            self.query_one("#lower").styles.min_height = least
        over = self.status.over and self.replay is None
        self.alerts = [] if over else alerts(fold, rank, view.now_ns, others, self._trouble)
        self.measure_screen(rank, fold)
        self.query_one("#finding", Painted).paint(self.bottom)
        self.on_output_pane_moved()

    def _draw_ranks(self, fold: Fold, rank: WriterState | None, now_ns: int) -> None:
        """Draw the ranks side by side, where there are several."""
        box, ranks = self.query_one("#ranks", Painted), fold.ranks
        found = lanes(ranks, now_ns) if len(ranks) > 1 else []
        most = MOST_LANES if self.has_class("-tall") else 4
        shown = rank.name if rank is not None else ""
        box.paint(lambda width, _: rank_rows(found, shown, width, most))
        if box.display != bool(found):
            box.display = bool(found)

    def _device_notes(self, *, devices_known: bool) -> list[str]:
        """Return which hardware is absent, or why there is no reading yet; of a run without any the reasons."""
        meta = self.session.meta
        if not devices_known:
            return ["no readings" if self.status.over else "waiting for the first reading …"]
        if any(device.kind != "host" for device in meta.devices):
            missing = [absent_word(name) for name in meta.absent]
            return [f"also looked for, not here: {', '.join(missing)}"] if missing else []
        return [f"{name}: {why}" for name, why in meta.absent.items()]

    # -- other things that come by themselves ------------------------------------------------------------

    def show_runs(self, runs: list[Summary]) -> None:
        """Show which runs go on, where there are several.

        Args:
            runs: They and this one.
        """
        super().show_runs(runs)
        box = self.query_one("#runs", Painted)
        box.paint(lambda width, _: [runs_row(runs, self.session.id, width)])
        if box.display != (len(runs) > 1):
            box.display = len(runs) > 1
            self._rebind()

    def on_output_pane_moved(self) -> None:
        """Say where the output stands."""
        remark = self.query_one(OutputPane).position
        if not remark and self.replay is not None and not self.replay.tells_output:
            remark = "all of it: this session tells no times of its output"
        self.query_one("#output-head", Heading).show("output", [(remark, "dim")] if remark else [])

    def _rebind(self) -> None:
        """Show the keys that work now and no others."""
        state = (
            self.running,
            bool(self.traces),
            len(self.feed.fold.ranks),
            self.ready(),
            self.replay is None,
            self.selected,
            len(self.runs) > 1,
            self.can_arm(),
        )
        if state != self._bound:
            self._bound = state
            self.refresh_bindings()

    def redraw_now(self) -> None:
        """Draw everything at once instead of at the next tick."""
        self._shown, self._printed_at = (), -math.inf
        self.tick(asked=True)

    @work(thread=True, exclusive=True, exit_on_error=False, group="baseline")
    def _find_baseline(self) -> None:
        """Look up the newest run of the ladder's baseline, to say how this variant compares."""
        from tuiprof.tui.live.history import baseline_of

        found = baseline_of(self.session)
        if found is not None and not get_current_worker().is_cancelled:
            self.app.call_from_thread(self._set_baseline, found)

    def _set_baseline(self, found: tuple[str, float]) -> None:
        self._baseline = found
        self._shown = ()
