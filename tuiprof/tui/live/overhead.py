"""Cost of watching a run: the CPU time of this process, beside the figures of probe and recorder."""

from __future__ import annotations

import time
from typing import Final

from tuiprof.session.store.meta import store_viewing
from tuiprof.tui.live.moment import Moment
from tuiprof.tui.live.view import overhead_row
from tuiprof.tui.widgets.spans import Row

#: Seconds over which the CPU time of the screen is measured.
_MEASURE_S: Final = 5.0


class Overhead:
    """The overhead of tuiprof on the run that is shown."""

    def __init__(self, moment: Moment) -> None:
        self._moment = moment
        self._watched = moment.running  # from its beginning here
        self._began = self._measured = (time.monotonic(), time.process_time())
        self.row: Row = []

    def update(self) -> None:
        """Measure again, every few seconds."""
        rank, fold = self._moment.rank, self._moment.feed.fold
        then_s, spent_s = self._measured
        now_s, cpu_s = time.monotonic(), time.process_time()
        if now_s - then_s >= _MEASURE_S and self._moment.running:
            self._measured = now_s, cpu_s
            self.row = overhead_row(rank, fold, (cpu_s - spent_s) / (now_s - then_s))
        elif not self.row or not self._moment.running:  # a replay advances
            self.row = overhead_row(rank, fold, None)

    def store(self) -> None:
        """Record the cost of watching in the session, if the script ran for at least a few seconds meanwhile."""
        began_s, spent_s = self._began
        wall_s, cpu_s = time.monotonic() - began_s, time.process_time() - spent_s
        if self._watched and wall_s >= _MEASURE_S:
            store_viewing(self._moment.session.path, wall_s, cpu_s)
