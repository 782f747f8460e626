"""What there is to say of a run in a line or two: what goes wrong, what its newest trace says, what can be done."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from textual import work
from textual.worker import get_current_worker

from tuiprof.session.live.alerts import Alert
from tuiprof.session.live.fold import Fold
from tuiprof.session.live.replay import Replay
from tuiprof.session.live.stats import NO_STATS, StepStats
from tuiprof.session.live.writer_state import WriterState
from tuiprof.session.store.folders import Session
from tuiprof.session.store.labels import read_labels
from tuiprof.session.store.storage import lost_output
from tuiprof.session.store.viewing import store_viewing
from tuiprof.tui.live import words as live_words
from tuiprof.tui.live.output_pane import OutputPane
from tuiprof.tui.live.rows import alert_row, armed_row, overhead_row, step_row
from tuiprof.tui.live.run_screen import RunScreen
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.widgets.lines import Row, fit, row_width, spread
from tuiprof.tui.widgets.wrap import wrap_row

if TYPE_CHECKING:
    from tuiprof.headline.trace import Gist

#: So long a capture that failed is told.
_FAILURE_NS: Final = 30_000_000_000
#: What tuiprof costs is worked out anew after so many seconds.
_MEASURE_S: Final = 5.0


class RunVerdict(RunScreen):
    """A run and what is said of it at the bottom of the screen.

    Args:
        session: It.
        replay_speed: Replay it from the beginning at this speed; None = follow it as it is written.

    Attributes:
        stats: Statistics of the steps in view.
        alerts: What goes wrong, the worst first.
    """

    def __init__(self, session: Session, *, replay_speed: float | None = None) -> None:
        super().__init__(session, replay_speed=replay_speed)
        self.stats: StepStats = NO_STATS
        self.alerts: list[Alert] = []
        self._gists: dict[Path, Gist | None] = {}  # by trace; None = it is being worked out
        self._overhead: Row = []
        self._spent = self._began = (time.monotonic(), time.process_time())

    def store_costs(self) -> None:
        """Leave in the session what watching the run cost, where it ran meanwhile and for more than a glance."""
        began_s, spent_s = self._began
        wall_s, cpu_s = time.monotonic() - began_s, time.process_time() - spent_s
        if self.watched and wall_s >= _MEASURE_S:
            store_viewing(self.session.path, wall_s, cpu_s)

    def measure_screen(self, rank: WriterState | None, fold: Fold) -> None:
        """Work out anew what tuiprof costs, every few seconds.

        Args:
            rank: The rank shown.
            fold: The state.
        """
        before, spent_s = self._spent
        now, cpu_s = time.monotonic(), time.process_time()
        if now - before >= _MEASURE_S and self.running:
            self._spent = now, cpu_s
            self._overhead = overhead_row(rank, fold, (cpu_s - spent_s) / (now - before))
        elif not self._overhead or not self.running:  # a replay goes on to another moment
            self._overhead = overhead_row(rank, fold, None)

    def bottom(self, width: int, _height: int) -> list[Row]:
        """Return the lines at the bottom: what goes wrong, and what to say; one where there is little room.

        Args:
            width: Cells.
        """
        said = self._what_to_say(width)
        if row_width(said) > width and not self.has_class("-tiny"):
            return self._lines_of(wrap_row(said, width, 2, indent=3), width)
        armed = armed_row(self.armed)
        right = [*armed, *self._overhead]
        if row_width(said) + row_width(right) + 2 > width:
            right = armed
        if said and right:  # that something is armed must be seen
            said = spread(fit(said, max(width // 3, width - row_width(right) - 2)), right, width)
        return self._lines_of([said] if said else [], width)

    def _lines_of(self, said: list[Row], width: int) -> list[Row]:
        """Return what goes wrong and what is said; one of them where there is little room."""
        wrong = [alert_row(self.alerts, width)] if self.alerts else []
        if not self.has_class("-tall"):
            urgent = bool(wrong) and self.selected is None and self.asked is None and not self.ready()
            return wrong if urgent and (self.alerts[0].level == "bad" or not said) else said or [[]]
        return [*wrong, *said]

    def _what_to_say(self, width: int) -> Row:
        """Return a sentence: the selected step, a capture, how it ended, what its trace says, what stands out."""
        place = self.selected_row()
        if place is not None and self.rank is not None:
            covered = self.trace_of_step() is not None
            return step_row(self.rank.steps, place, self.stats, covered, self.can_arm(), width)
        gist = None if isinstance(self.base, Replay) else self._gist()
        newest = self.newest_capture()
        if newest is not None and self.base is not self.replay:
            if newest.state == "written" and newest.id not in self.seen_captures:
                return live_words.gist_row(gist, fresh=True) if gist else live_words.capture_row(newest)
            if newest.state in ("armed", "started") and self.running:
                return live_words.capture_row(newest)
            if newest.state == "failed" and self.now_ns() - newest.t_ns < _FAILURE_NS:
                return live_words.capture_row(newest)
        if self.asked is not None and self.running:
            name, at = self.asked
            if newest is not None and newest.id == name:
                self.asked = None
            elif time.monotonic() - at < 10:
                return [(f" {glyphs.FLAG} ", "capture"), ("capture asked for …", "text")]
            else:
                text = "no answer to the capture yet: the script answers at the end of a step"
                return [(f" {glyphs.FLAG} ", "warn"), (text, "text")]
        if self.status.over and self.replay is None:
            errors = self.query_one(OutputPane).last_errors(1)
            short = newest.shortfall(over=True) if newest is not None else ""
            missing = [said for said in (lost_output(self.session), short) if said]
            row = live_words.over_row(self.status, errors, self.feed.fold.now_ns, missing)
            return [*row, ("  ", "text"), *live_words.gist_row(gist, fresh=False)[1:]] if gist else row
        if gist is not None:
            return live_words.gist_row(gist, fresh=False)
        if self.alerts:
            return [] if self.has_class("-tall") else alert_row(self.alerts, width)
        if self.stats.count:
            return [(f" {glyphs.FLAG} ", "good"), ("nothing stands out; a capture shows more", "dim")]
        return []

    def slow_ns(self) -> float | None:
        """Return from which time on a step is slow: halfway from the median to the selected one, else an outlier."""
        place, stats = self.selected_row(), self.stats
        if place is not None and self.rank is not None and stats.count:
            dur_ns = float(self.rank.steps.rows["dur_ns"][place])
            if dur_ns > 1.05 * stats.median_ns:
                return (stats.median_ns + dur_ns) / 2
        above_ns = stats.outlier_above_ns
        if self.rank is not None and self.rank.steps.slowdown is not None:
            above_ns = self.rank.steps.outliers_above_ns()
        return above_ns if math.isfinite(above_ns) else None

    def action_alerts(self) -> None:
        """Show what goes wrong by which rule, and the notes on the run."""
        from tuiprof.tui.dialogs.reading import ReadingScreen
        from tuiprof.tui.live.rows import alert_paragraphs

        labels = read_labels(self.session.path)
        paragraphs = alert_paragraphs(self.alerts, labels, list(self.feed.fold.notes))
        self.app.push_screen(ReadingScreen("alerts and notes", paragraphs, opened_by="alerts"))

    # -- the newest trace --------------------------------------------------------------------------------

    def _gist(self) -> Gist | None:
        """Return what the newest trace says first; None = there is none, or it is being worked out."""
        newest = self.newest_capture()
        written = newest is not None and newest.state == "written" and bool(newest.paths)
        if newest is not None and written:
            path = self.session.path / newest.paths[0]
            if path not in self.traces:
                self.traces = self.session.traces()
        elif self.traces:
            path = self.traces[-1]
        else:
            return None
        if path not in self._gists:
            self._gists[path] = None
            self._work_out_gist(path)
        found = self._gists[path]
        return found if found is not None and found.line else None

    @work(thread=True, exit_on_error=False, group="gist")
    def _work_out_gist(self, path: Path) -> None:
        """Read a trace in another process, and tell what it says."""
        from tuiprof.headline.trace import ask

        worker = get_current_worker()
        found = ask(path, lambda: worker.is_cancelled)
        if not worker.is_cancelled:
            self.app.call_from_thread(self._set_gist, path, found)

    def _set_gist(self, path: Path, found: Gist) -> None:
        self._gists[path] = found
        self.redraw_now()
