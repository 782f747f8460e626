"""Captures of a run (requested, armed, written, opened), and the most important message, shown at the bottom."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tuiprof.comparison.headline import Headline
from tuiprof.session.live.fold import CaptureState
from tuiprof.session.live.hosts import common_step
from tuiprof.session.live.replay import Live
from tuiprof.session.live.step_source import missed_steps, refusal
from tuiprof.session.run import control
from tuiprof.session.store.folders import Session
from tuiprof.session.store.meta import TriggerRequest
from tuiprof.session.store.output import lost_output
from tuiprof.tui.live import view
from tuiprof.tui.live.moment import Figures, Moment, Overhead
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.widgets.spans import Row, fit, row_width, spread, wrap_row


class RunCaptures:
    """Past and pending captures of the shown run."""

    def __init__(self, moment: Moment) -> None:
        self._moment = moment
        self.traces: list[Path] = []  # traces of the session
        self.armed: list[TriggerRequest] = []  # triggers of automatic captures
        #: Ids of the captures that existed when a trace was last opened; they are not offered again.
        self.seen: set[str] = set()
        #: Id and time (monotonic s) of the capture requested here, until the script answers.
        self.requested: tuple[str, float] | None = None

    @property
    def _session(self) -> Session:
        return self._moment.session

    @property
    def _all(self) -> dict[str, CaptureState]:
        return self._moment.run.fold.captures

    @property
    def newest(self) -> CaptureState | None:
        """The last requested capture."""
        return max(self._all.values(), key=lambda capture: capture.t_ns, default=None)

    @property
    def ready(self) -> bool:
        """Whether a capture has written a trace that has not been offered yet."""
        return any(
            capture.state == "written" and capture.id not in self.seen for capture in self._all.values()
        )

    @property
    def can_arm(self) -> bool:
        """Whether the script is making steps, so that a slow one can be captured."""
        rank = self._moment.rank
        return self._moment.running and rank is not None and len(rank.steps) > 0

    def trace_of_step(self) -> Path | None:
        """Return the trace that covers the selected step; None = no trace does, or no step is selected."""
        rank, selected = self._moment.rank, self._moment.selected
        if selected is None or rank is None:
            return None
        for capture in self._all.values():
            record = capture.by_writer.get(rank.name)
            if record is None or not record.path or record.first is None or record.last is None:
                continue
            if record.first <= selected <= record.last:
                return self.file(record.path)
        return None

    def newest_trace(self) -> Path | None:
        written = (capture for capture in self._all.values() if capture.paths)
        newest = max(written, key=lambda capture: capture.t_ns, default=None)
        return self.file(newest.paths[0]) if newest is not None else None

    def file(self, path: str) -> Path:
        """Resolve a path relative to the session, without following links; ``..`` leads to another host's session."""
        return Path(os.path.normpath(self._session.path / path))

    def titles(self) -> dict[Path, str]:
        """Return the time, steps and cause of each trace's capture."""
        return {
            self.file(path): view.capture_words(capture)
            for capture in self._all.values()
            for path in capture.paths
        }

    def find_traces(self) -> None:
        self.traces = self._session.all_traces()

    def mark_seen(self) -> None:
        """Do not offer the present captures again."""
        self.seen.update(self._all)

    def request(self, steps: int, *, stack: bool = False, shapes: bool = False, memory: bool = False) -> None:
        """Ask the script for a capture of its next steps; raises SessionError if the request cannot be made."""
        first = common_step(self._session, self._moment.run.fold)
        name = control.request_capture(self._session, steps, first, stack=stack, shapes=shapes, memory=memory)
        self.requested = name, time.monotonic()

    def update_armed(self) -> None:
        """Read the armed triggers; another viewer may have changed them."""
        self.armed = control.armed(self._session) if self._moment.running else []

    @property
    def armed_slow(self) -> TriggerRequest | None:
        return next((trigger for trigger in self.armed if trigger.every is None), None)

    @property
    def armed_every(self) -> TriggerRequest | None:
        return next((trigger for trigger in self.armed if trigger.every is not None), None)

    def arm_slow(self, limit_ns: float) -> None:
        """Capture after each step slower than this; raises SessionError if the request cannot be written."""
        control.arm(self._session, TriggerRequest(control.SLOW, above_ns=round(limit_ns)))

    def disarm_slow(self) -> None:
        if self.armed_slow is not None:
            control.disarm(self._session, self.armed_slow.id)

    def arm_only(self, requests: Sequence[TriggerRequest]) -> None:
        """Replace the armed triggers with these; raises SessionError if a request cannot be written."""
        for trigger in self.armed:
            control.disarm(self._session, trigger.id)
        for request in requests:
            control.arm(self._session, request)


#: How long a failed capture is shown.
_FAILURE_NS: Final = 30_000_000_000
#: Timeout for an answer to a capture request.
_ANSWER_S: Final = 10


class Verdict:
    """Selects the most important message about the shown moment: an alert, a capture, a finding.

    ``read_headline`` starts reading a trace's headline, which takes seconds; the result goes to :meth:`set_headline`.
    ``last_error`` returns the last line of the script's standard error.
    """

    def __init__(
        self,
        moment: Moment,
        captures: RunCaptures,
        figures: Figures,
        overhead: Overhead,
        *,
        read_headline: Callable[[Path], object],
        last_error: Callable[[], str],
    ) -> None:
        self._moment, self._captures, self._figures, self._overhead = moment, captures, figures, overhead
        self._read_headline, self._last_error = read_headline, last_error
        self._headlines: dict[Path, Headline | None] = {}  # None = still being read
        #: Traces of refused captures that were read after the end of the run, as its last steps may say more of them.
        self._read_at_end = set[Path]()

    def rows(self, width: int, *, tall: bool, tiny: bool) -> list[Row]:
        """Return the worst alert and the most important message; only one of them unless the screen is tall."""
        sentence = self._sentence(width, tall)
        if row_width(sentence) > width and not tiny:
            return self._with_alert(wrap_row(sentence, width, 2, indent=3), width, tall=tall, tiny=tiny)
        armed = view.armed_row(self._captures.armed)
        right = [*armed, *self._overhead.row]
        if row_width(sentence) + row_width(right) + 2 > width:
            right = armed
        if sentence and right:  # armed triggers stay visible: the sentence is cut instead
            sentence = spread(fit(sentence, max(width // 3, width - row_width(right) - 2)), right, width)
        return self._with_alert([sentence] if sentence else [], width, tall=tall, tiny=tiny)

    def _with_alert(self, sentence: list[Row], width: int, *, tall: bool, tiny: bool) -> list[Row]:
        found = self._figures.alerts
        alert = view.alert_rows(found, width, 1 if tall or tiny else 2) if found else []
        if tall:
            return [*alert, *sentence]
        awaited = self._moment.selected is not None or self._captures.requested is not None
        # A trace that is ready stays in the key bar, and a run that is stuck or out of memory does not wait for it.
        bad = bool(alert) and found[0].level == "bad"
        urgent = bool(alert) and not awaited and (bad or not sentence)
        return alert if urgent else sentence or [[]]

    def _sentence(self, width: int, tall: bool) -> Row:
        """Return the first that applies: the selected step, a capture, how the run ended, a finding."""
        moment, captures, stats = self._moment, self._captures, self._figures.stats
        row = moment.selected_row()
        if row is not None and moment.rank is not None:
            covered = captures.trace_of_step() is not None
            return view.step_row(moment.rank.steps, row, stats, covered, captures.can_arm, width)
        headline = self._headline()
        over = moment.status.over and moment.replay is None
        capture = self._capture(headline)
        if capture and not (over and moment.status.state == "failed"):
            return capture
        if over:
            newest = captures.newest
            # A run that failed has a reason that matters more than that of its capture.
            both = newest is not None and newest.state == moment.status.state == "failed"
            short = moment.feed.fold.shortfall(newest, over=True) if newest is not None and not both else ""
            missing = [text for text in (lost_output(moment.session), short) if text]
            end = view.over_row(moment.status, self._last_error(), moment.feed.fold.now_ns, missing)
            found = view.headline_row(headline) if headline else [] if both else capture
            return [*end, (glyphs.DOT, "dim"), *found[1:]] if found else end
        if headline is not None:
            return view.headline_row(headline)
        if self._figures.alerts:
            return [] if tall else view.alert_row(self._figures.alerts, width)
        if stats.count:
            more = "" if captures.traces else "; a capture shows more"
            return [(f" {glyphs.FLAG} ", "good"), (f"nothing stands out{more}", "dim")]
        return []

    def _capture(self, headline: Headline | None) -> Row:
        """Return the state of the newest or the requested capture; empty = neither needs a message."""
        moment, captures = self._moment, self._captures
        newest = captures.newest
        if newest is not None and isinstance(moment.run, Live):
            if newest.state == "written" and newest.id not in captures.seen:
                return view.headline_row(headline) if headline else view.capture_row(newest)
            if newest.state in ("armed", "started") and moment.running:
                return view.capture_row(newest)
            shown = headline is not None and moment.status.over  # time stands still then
            fresh = moment.now_ns() - newest.t_ns < _FAILURE_NS and not shown
            if newest.state == "failed" and fresh and moment.feed.fold.shortfall(newest, over=True):
                return view.capture_row(newest)
        if captures.requested is None or not moment.running:
            return []
        name, at_s = captures.requested
        if newest is not None and newest.id == name:
            captures.requested = None
            return []
        if time.monotonic() - at_s < _ANSWER_S:
            return [(f" {glyphs.FLAG} ", "capture"), ("capture requested …", "text")]
        text = "no answer to the capture request yet: the script answers when its step ends"
        return [(f" {glyphs.FLAG} ", "warn"), (text, "text")]

    def _headline(self) -> Headline | None:
        """Return the main finding of the newest trace; None = no trace, or still being read."""
        captures, newest, fold = self._captures, self._captures.newest, self._moment.feed.fold
        if newest is not None and newest.state == "written" and newest.paths:
            path = captures.file(newest.paths[0])
            if path not in captures.traces:
                captures.find_traces()
        elif captures.traces and isinstance(self._moment.run, Live):
            path = captures.traces[-1]  # not in a replay, whose moment may precede the trace
        else:
            return None
        why = refusal(newest, fold) if newest is not None and newest.state == "written" else ""
        if why and not self._moment.status.over:
            return Headline(why, "warn")
        if path not in self._headlines or (why and path not in self._read_at_end):
            if why:
                self._read_at_end.add(path)
            self._headlines[path] = None
            self._read_headline(path)
        found = self._headlines[path]
        if why and not (found is not None and found.of_last_steps):
            return Headline(why, "warn")
        if found is None or not found.line:
            return None
        explained = found.analysis == "advice" or found.awaits_others
        if newest is not None and not explained and (missed := missed_steps(newest, fold)):
            return Headline(str(missed), "warn")
        return found

    def set_headline(self, path: Path, headline: Headline) -> None:
        self._headlines[path] = headline
