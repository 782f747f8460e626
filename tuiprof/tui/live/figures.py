"""Figures and problems of the visible steps: too costly to compute for every frame."""

from __future__ import annotations

import math
from collections.abc import Set

from tuiprof.session.live.alerts import Alert, alerts
from tuiprof.session.live.series import NO_STATS, StepStats
from tuiprof.session.live.sharing import of_others
from tuiprof.session.store.output import trouble
from tuiprof.tui.live.moment import Moment
from tuiprof.tui.live.view import View, phases, stats_in_view


class Figures:
    """The figures of the moment that is shown.

    Attributes:
        stats: Statistics of the steps in view.
        phases: Mean host time of each phase of the steps in view, or of the selected step, ns.
        alerts: What goes wrong, the worst first.
        others: Keys of the devices that the run does not use.
    """

    def __init__(self, moment: Moment) -> None:
        self._moment = moment
        self.stats: StepStats = NO_STATS
        self.phases: dict[str, float] = {}
        self.alerts: list[Alert] = []
        self.others: Set[str] = frozenset()

    def update(self, view: View) -> None:
        """Compute the figures of the visible range."""
        moment = self._moment
        rank, fold, session = moment.rank, moment.feed.fold, moment.session
        if rank is None or not len(rank.steps):
            self.stats, self.phases = NO_STATS, {}
        else:
            self.stats = stats_in_view(rank.steps, view)
            self.phases = phases(rank.steps, view, moment.selected_row())
        self.others = of_others(fold, session)
        if moment.status.over and moment.replay is None:
            self.alerts = []
        else:
            unrecorded = trouble(session) if moment.running else ""
            self.alerts = alerts(fold, rank, view.now_ns, self.others, unrecorded, moment.hosts)

    def slow_ns(self) -> float | None:
        """Return from which time on a step is slow: halfway from the median to the selected one, else an outlier."""
        moment, stats = self._moment, self.stats
        row = moment.selected_row()
        if row is not None and moment.rank is not None and stats.count:
            dur_ns = float(moment.rank.steps.rows["dur_ns"][row])
            if dur_ns > 1.05 * stats.median_ns:
                return (stats.median_ns + dur_ns) / 2
        above_ns = stats.outlier_above_ns
        if moment.rank is not None and moment.rank.steps.slowdown is not None:
            above_ns = moment.rank.steps.outliers_above_ns()
        return above_ns if math.isfinite(above_ns) else None
