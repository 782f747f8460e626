"""The panes of the live screen: they draw the moment that is shown."""

from __future__ import annotations

from typing import Final

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from tuiprof.report.sanitize import sanitize
from tuiprof.session.live.hosts import lanes
from tuiprof.session.live.step_source import counted, likely
from tuiprof.session.store.summary import Summary
from tuiprof.tui.live import view as live_view
from tuiprof.tui.live.device_panel import DevicePanel
from tuiprof.tui.live.figures import Figures
from tuiprof.tui.live.moment import Moment
from tuiprof.tui.live.output_pane import OutputBox
from tuiprof.tui.live.phase_bar import PhaseBar
from tuiprof.tui.live.strip_chart import StripChart
from tuiprof.tui.live.verdict import Verdict
from tuiprof.tui.live.view import View
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.widgets.lines import Heading, Painted

#: Minimum interval of looking up a script's activity before its first step, which scans all processes.
_ASK_AGAIN_NS: Final = 1_000_000_000


class RunPanes(Vertical):
    """The state of the run on top, its figures below, the verdict at the bottom.

    Attributes:
        baseline: Name of the variant to compare with and its median step time in ns; None = none is known.
    """

    def __init__(self, moment: Moment, figures: Figures, verdict: Verdict) -> None:
        super().__init__()
        self._moment, self._figures, self._verdict = moment, figures, verdict
        self.baseline: tuple[str, float] | None = None
        self._least = 0
        self._waiting, self._doing, self._asked_ns = "", "", -_ASK_AGAIN_NS

    def compose(self) -> ComposeResult:
        """Everything but the line of keys."""
        session = self._moment.session
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
                yield Heading("devices", id="device-head")
                yield DevicePanel(id="devices")
            yield OutputBox(session.stdout, session.stderr, id="printed")
        yield Painted(id="finding")

    def draw(self, now_ns: int, *, slow: bool) -> None:
        """Draw; costly or flickering parts only if ``slow`` is set."""
        moment = self._moment
        view = moment.view_at(now_ns)
        if slow:
            self._figures.update(view)
            self._waiting = self._activity(now_ns)
        self._draw_chart(view)
        self._draw_head(now_ns)
        if slow:
            self._draw_figures(view)
            self._draw_ranks(now_ns)
            self._draw_devices()
            self.query_one("#finding", Painted).paint(
                lambda width, _: self._verdict.rows(
                    width, tall=self.screen.has_class("-tall"), tiny=self.screen.has_class("-tiny")
                )
            )
            self.query_one(OutputBox).show_position()

    def show_runs(self, runs: list[Summary]) -> None:
        """Show the active runs if there are several."""
        box, shown = self.query_one("#runs", Painted), self._moment.session.id
        box.paint(lambda width, _: [live_view.runs_row(runs, shown, width)])
        _display(box, len(runs) > 1)

    def _activity(self, now_ns: int) -> str:
        """Return the activity of a run before its first step; empty = unknown, or it has made one."""
        from tuiprof.session.live.step_source import activity

        rank = self._moment.rank
        if not self._moment.following or (rank is not None and len(rank.steps)):
            return ""
        if now_ns - self._asked_ns >= _ASK_AGAIN_NS:
            self._asked_ns, self._doing = now_ns, activity(self._moment.session)
        return self._doing

    def _draw_chart(self, view: View) -> None:
        moment, chart = self._moment, self.query_one(StripChart)
        rank, charted, replay = moment.rank, moment.charted, moment.replay
        if rank is None or charted is None or not len(rank.steps):
            errors = self.query_one(OutputBox).pane.last_errors(3)
            replayed = replay is not None and not replay.over
            named = likely(moment.feed.fold, moment.session.meta.cwd)
            since = f"{live_view.clock(view.now_ns / 1e9)} since the start"
            waiting = f"{self._waiting} · {since}" if self._waiting else ""
            chart.explain(
                live_view.no_step_lines(
                    moment.status, errors, replayed=replayed, waiting=waiting, likely=named
                )
            )
            return
        goes_on = moment.following or (replay is not None and not replay.over)
        still = goes_on or view.young
        edge_s = chart.edge(view.now_ns / 1e9, view.span_s, view.begin_ns / 1e9) if still else None
        chart.show(live_view.chart_data(charted.steps, self._figures.stats, view, moment.selected, edge_s))

    def _draw_head(self, now_ns: int) -> None:
        """Draw the first line, and below it the moment shown as a part of the run."""
        moment = self._moment
        rank, replay, session = moment.rank, moment.replay, moment.session
        ranks = len(moment.feed.fold.ranks)
        if replay is not None:
            state = live_view.replay_row(replay, rank, ranks, back=moment.past is not None)
        else:
            frozen = moment.frozen_ns is not None
            state = live_view.state_row(moment.status, now_ns, rank, ranks, frozen)
        machine = live_view.machine_row(session, rank, self._figures.others)
        parts = (live_view.name_row(session), state, machine)
        self.query_one("#head", Painted).paint(lambda width, _: [live_view.head_row("tuiprof", parts, width)])
        fold = moment.run.fold if moment.past is not None else moment.feed.fold
        until_ns = max(now_ns, replay.duration_ns, fold.now_ns) if replay is not None else 0
        self.query_one("#rule", Painted).paint(
            lambda width, _: [
                live_view.time_row(now_ns, until_ns, fold, width)
                if until_ns
                else [(glyphs.RULE * width, "rule")]
            ]
        )

    def _draw_figures(self, view: View) -> None:
        """Draw the line above the chart, and the phases."""
        moment, stats, rank = self._moment, self._figures.stats, self._moment.rank
        batch = live_view.batch_size(rank.steps) if rank is not None else None
        slowdown = live_view.slowdown_in_view(rank.steps, view) if rank is not None else None
        read, baseline = moment.read_share, self.baseline
        self.query_one("#stats", Painted).paint(
            lambda width, _: live_view.stats_row(
                stats,
                view,
                width,
                batch=batch,
                baseline=baseline,
                read=read,
                slowdown=slowdown,
                steps_are=sanitize(counted(rank)),
            )
        )
        why = "no phases recorded: they come with torch hooks, or with tuiprof.phase(…)"
        for bar in self.query(PhaseBar):
            bar.show(self._figures.phases, why if stats.count else "no step yet")
        heading = self.query_one("#phase-head", Heading)
        if heading.display:
            selected = moment.selected
            heading.show(f"where step {selected} went" if selected is not None else "where a step goes")

    def _draw_ranks(self, now_ns: int) -> None:
        """Draw the ranks side by side if there are several."""
        box, ranks, rank = self.query_one("#ranks", Painted), self._moment.feed.fold.ranks, self._moment.rank
        found = lanes(ranks, now_ns) if len(ranks) > 1 else []
        most = live_view.MOST_LANES if self.screen.has_class("-tall") else 4
        shown = rank.name if rank is not None else ""
        hosts = self._moment.hosts
        box.paint(
            lambda width, _: [
                *([live_view.hosts_row(hosts, width)] if hosts else []),
                *live_view.rank_rows(found, shown, width, most),
            ]
        )
        _display(box, bool(found or hosts))

    def _draw_devices(self) -> None:
        moment, meta = self._moment, self._moment.session.meta
        known = live_view.devices_of(moment.session, moment.rank)
        if moment.rank is not None and moment.rank.host:
            self.query_one("#device-head", Heading).show(f"devices of {moment.rank.host}")
        over = moment.status.over and (moment.replay is None or moment.replay.over)
        devices = live_view.device_views(
            moment.feed.fold, known, moment.rank, self._figures.others, over=over
        )
        panel = self.query_one(DevicePanel)
        panel.compact = self.screen.has_class("-narrow") or self.screen.has_class("-short")
        panel.show(devices, live_view.device_notes(meta, known=bool(devices), over=moment.status.over))
        # Stacked, one line per device is kept, even if little is left for the output.
        least = min(panel.height_for(0), 10) + 1 if panel.compact else 0
        if least != self._least:  # even setting a style to its present value redraws the whole screen
            self._least = least
            self.query_one("#lower").styles.min_height = least


def _display(box: Painted, shown: bool) -> None:
    """Show or hide a box; setting the style to its present value would redraw the screen."""
    if box.display != shown:
        box.display = shown
