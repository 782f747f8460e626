"""The steps of one rank, with statistics of their times and phases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tuiprof.probe.slowdown import Slowdown, SlowdownWatch
from tuiprof.session import log
from tuiprof.session.live.series import (
    NO_STATS,
    Array,
    Floats,
    Histogram,
    Ints,
    Overview,
    Series,
    StepStats,
    column,
    mean_ns,
    on_device_ns,
    outliers_above_ns,
    rate_hz,
    step_stats,
)

#: Steps kept in full per rank: at least a minute at one millisecond per step. A step with six phases and three metrics
#: takes about 130 bytes, so eight ranks take 70 MB.
KEEP_STEPS: Final = 1 << 16
#: Steps kept in full for all ranks together (half a gigabyte), and the minimum per rank.
KEEP_STEPS_OF_ALL: Final = 1 << 22
MIN_KEPT_STEPS: Final = 1 << 10
#: Maximum number of phase and metric names, so that a script that generates names cannot fill the memory.
MAX_NAMES: Final = 24
_MISSING_NS: Final = -1
_ALL: Final = slice(None)  # all kept rows
#: Phases that are excluded from step times if at most this share of steps have them.
_APART: Final = ("evaluation", "checkpoint")
_APART_SHARE: Final = 0.25
#: Pseudo-phase: excess of the device step over the host step if the host runs ahead.
AHEAD: Final = "host ahead of the device"


def _spread(given: Sequence[Mapping[str, Any]], dtype: Any, missing: Any) -> dict[str, Array]:
    """Return mappings as columns by key, with ``missing`` for mappings without the key."""
    shapes = dict.fromkeys(map(tuple, given))
    if len(shapes) == 1:  # the usual case: all steps have the same names in the same order
        [names] = shapes
        values = chain.from_iterable(mapping.values() for mapping in given)
        table = np.fromiter(values, dtype, len(given) * len(names)).reshape(len(given), len(names))
        return {name: table[:, index] for index, name in enumerate(names)}
    names = tuple(dict.fromkeys(chain.from_iterable(shapes)))
    return {name: np.array([mapping.get(name, missing) for mapping in given], dtype) for name in names}


def steps_kept(world: int) -> int:
    """Return the number of steps per rank to keep in full; the number of ranks is untrusted."""
    return min(KEEP_STEPS, max(MIN_KEPT_STEPS, KEEP_STEPS_OF_ALL // max(1, world)))


class StepSeries:
    """The steps of one rank: the last :data:`KEEP_STEPS` in full, all of them downsampled.

    Statistics never include captured steps. If a capture has slowed later steps down (:attr:`slowdown`), they never mix
    steps before and after it: :meth:`comparable` selects the steps to use.
    """

    def __init__(self, keep: int = KEEP_STEPS) -> None:
        #: Columns ``n`` (step number), ``t_ns`` (end, session time), ``dur_ns`` (host time without ``apart_ns``),
        #: ``apart_ns`` (occasional evaluations and checkpoints), ``wall_ns`` (since the end of the previous step),
        #: ``device_ns`` (device time, -1 = unknown), ``captured`` (bool), ``ph:<name>`` for each phase (ns, -1 = not in
        #: this step) and ``v:<name>`` for each metric (NaN = no value).
        self.rows = Series(
            keep,
            {
                "n": (np.int64, -1),
                "t_ns": (np.int64, 0),
                "dur_ns": (np.int64, 0),
                "apart_ns": (np.int64, 0),
                "wall_ns": (np.int64, 0),
                "device_ns": (np.int64, _MISSING_NS),
                "captured": (np.bool_, False),
            },
        )
        self.overview = Overview()  # step times of the whole run, ns
        self.metrics: dict[str, Overview] = {}  # of each metric over the whole run
        self.phases: list[str] = []  # names, in order of appearance
        self.captured = 0  # number of captured steps
        self.device_every = 1  # currently, every n-th step has a device time
        #: ``(n, t_ns, dur_ns)`` of the longest uncaptured step so far
        self.longest: tuple[int, int, int] | None = None
        self.dropped_names: set[str] = set()  # phases and metrics beyond :data:`MAX_NAMES`
        self._histogram = Histogram()  # of uncaptured steps, like the sums
        self._plain_ns = self._plain_wall_ns = self._first_ns = self._first_wall_ns = 0
        self._having = dict.fromkeys(_APART, 0)  # number of steps with each of these
        self.watch = SlowdownWatch()  # for captures that slow later steps down
        self._on_device = False
        self._before = NO_STATS  # statistics and phases (mean, ordinary) before the last capture
        self._phases_before: tuple[dict[str, float], dict[str, float]] = {}, {}
        self._early: dict[int, int] = {}  # device times that arrived before their step
        self._segment = 0  # total of rows when the process (re)started; step numbers ascend from there

    def __len__(self) -> int:
        """Return the number of steps so far, including those that are no longer kept."""
        return self.rows.total

    @property
    def last_n(self) -> int | None:
        """Number of the last step; None = no steps."""
        return int(self.rows["n"][-1]) if len(self.rows) else None

    def since(self, window_ns: int | None, now_ns: int | None = None) -> slice:
        """Return the kept rows (None = all) in a window of session time that ends now, else with the last step."""
        t_ns = self.rows["t_ns"]
        if window_ns is None or not len(t_ns):
            return slice(0, len(t_ns))
        now_ns = int(t_ns[-1]) if now_ns is None else now_ns
        return slice(int(np.searchsorted(t_ns, now_ns - window_ns, side="left")), len(t_ns))

    @property
    def slowdown(self) -> Slowdown | None:
        """The capture since which steps take longer; None = there is none, or it is not known yet."""
        return self.watch.found if self._on_device else None

    def comparable(self, rows: slice = _ALL) -> npt.NDArray[np.bool_]:
        """Return which kept steps statistics may use.

        These are the uncaptured steps and, if a capture slowed later steps down, of them those before it (if there are
        any).
        """
        plain: npt.NDArray[np.bool_] = ~self.rows["captured"][rows]
        before = plain & self._is_before(rows)
        return before if before.any() else plain

    def _is_before(self, rows: slice) -> npt.NDArray[np.bool_]:
        """Return which kept steps come before the capture that slowed later ones down; without one, all."""
        kept = len(self.rows)
        slowdown = self.slowdown
        last = kept if slowdown is None else max(0, slowdown.index - (self.rows.total - kept))
        return np.arange(kept)[rows] < last

    def stats(self, rows: slice = _ALL) -> StepStats:
        """Return the statistics of the :meth:`comparable` steps among these rows."""
        counted = self.comparable(rows)
        wall_ns = self.rows["wall_ns"][rows][counted]
        has_first = len(wall_ns) and self.rows["n"][rows][counted][0] == 0
        return step_stats(
            self.rows["dur_ns"][rows][counted],
            self.rows["device_ns"][rows][counted],
            float(wall_ns.sum()),
            float(wall_ns[0]) if has_first else 0.0,
        )

    def times_ns(self) -> Ints:
        """Return the times of the :meth:`comparable` kept steps, ns; on the device if the host runs ahead."""
        counted = self.comparable()
        dur_ns, device_ns = self.rows["dur_ns"][counted], self.rows["device_ns"][counted]
        return on_device_ns(device_ns) if self.stats().on_device else dur_ns

    def whole_run(self) -> StepStats:
        """Return the statistics of all :meth:`comparable` steps of the run.

        If not all steps are kept, median and 95th percentile come from a histogram (error below 0.2 %), jitter and the
        outlier threshold from the kept steps; the rest is exact.
        """
        if self.slowdown is not None:
            return self._before
        if len(self) == len(self.rows):
            return self.stats()
        recent = self.stats()
        count = self._histogram.count
        if not count:
            return NO_STATS
        hz = rate_hz(count, self._plain_wall_ns, self._first_wall_ns, recent.median_ns)
        if recent.on_device:
            return replace(recent, count=count, rate_hz=hz)
        return replace(
            recent,
            count=count,
            median_ns=self._histogram.quantile(0.5),
            p95_ns=self._histogram.quantile(0.95),
            mean_ns=mean_ns(count, self._plain_ns, self._first_ns, recent.median_ns),
            rate_hz=hz,
        )

    @property
    def mean_wall_ns(self) -> float:
        """Mean wall-clock time per uncaptured step of the whole run; 0 = there are none."""
        return self._plain_wall_ns / self._histogram.count if self._histogram.count else 0.0

    def outliers(self, rows: slice = _ALL) -> Ints:
        """Return the positions of outliers (:data:`tuiprof.session.live.series.OUTLIER_RULE`) among the kept rows.

        Steps after a capture that slowed them down are compared with each other.
        """
        dur_ns = self.rows["dur_ns"][rows]
        slow = np.zeros(len(dur_ns), np.bool_)
        for side in self._sides(rows):
            slow |= side & (dur_ns > outliers_above_ns(dur_ns[side]))
        found: Ints = (rows.start or 0) + np.flatnonzero(slow)
        return found

    def outliers_above_ns(self, rows: slice = _ALL) -> float:
        """Return the time above which every kept step is an outlier."""
        dur_ns = self.rows["dur_ns"][rows]
        return max(
            (outliers_above_ns(dur_ns[side]) for side in self._sides(rows) if side.any()), default=np.inf
        )

    def _sides(self, rows: slice) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Return which uncaptured steps come before the capture that slowed others down, and which after."""
        plain, before = ~self.rows["captured"][rows], self._is_before(rows)
        return plain & before, plain & ~before

    def phase_means(self, rows: slice | None = None) -> dict[str, float]:
        """Return the mean time per step of each phase, in order of appearance, then ``"other"`` (outside all phases).

        Of the kept rows (None = the whole run) the :meth:`comparable` steps are used, else the captured ones.
        """
        if rows is None and self.slowdown is not None:
            return self._phases_before[0]
        return self._mean_phases(*self._counted(rows))

    def ordinary_phases(self, rows: slice | None = None) -> dict[str, float]:
        """Return the time of an ordinary step in each phase; the times add up to the median step time.

        Ordinary steps are the half whose duration is nearest to the median, among those without occasional evaluations
        and checkpoints. If the host runs ahead, :data:`AHEAD` is the excess of the device step.
        """
        if rows is None and self.slowdown is not None:
            return self._phases_before[1]
        rows, counted = self._counted(rows)
        if not counted.any():
            return {}
        dur_ns = self.rows["dur_ns"][rows]
        median_ns = float(np.median(dur_ns[counted]))
        plain = counted & (self.rows["apart_ns"][rows] == 0)
        distance = np.abs(dur_ns - median_ns)
        plain = plain & (distance <= np.median(distance[plain])) if plain.any() else counted
        found = self._mean_phases(rows, plain)
        total = sum(found.values())
        if not total:
            return {}
        stats = self.stats(rows)
        ahead = {AHEAD: stats.median_ns - median_ns} if stats.on_device else {}
        return {name: ns * median_ns / total for name, ns in found.items() if ns or name == "other"} | ahead

    def _counted(self, rows: slice | None) -> tuple[slice, npt.NDArray[np.bool_]]:
        """Return which kept steps to use for phases: the comparable ones, else the captured ones."""
        rows = _ALL if rows is None else rows
        counted = self.comparable(rows)
        return rows, counted if counted.any() else ~counted

    def _mean_phases(self, rows: slice, counted: npt.NDArray[np.bool_]) -> dict[str, float]:
        if not self.phases or not counted.any():
            return {}
        means = {
            name: float(np.maximum(self.rows[f"ph:{name}"][rows][counted], 0).mean()) for name in self.phases
        }
        mean = float((self.rows["dur_ns"][rows] + self.rows["apart_ns"][rows])[counted].mean())
        return {**means, "other": max(0.0, mean - sum(means.values()))}

    def metric(self, name: str) -> Floats:
        """Return a metric of the kept steps; NaN = no value."""
        return self.rows[f"v:{name}"]

    def restart(self) -> None:
        """Note that the process was restarted, and counts its steps from 0 again."""
        self._segment = self.rows.total
        self._early.clear()

    def extend(self, steps: Sequence[log.Step], offset_ns: int) -> None:
        """Append steps."""
        if not steps:
            return
        t_ns = column(steps, "at", np.int64) + offset_ns
        dur_ns = column(steps, "dur", np.int64)
        captured = column(steps, "cap", np.bool_)
        numbers = column(steps, "n", np.int64)
        phases = _spread([step.ph for step in steps], np.int64, _MISSING_NS)
        wall_ns = self._since_last(t_ns, numbers, captured, dur_ns)
        apart_ns = self._apart(phases, dur_ns)
        dur_ns = dur_ns - apart_ns
        columns: dict[str, Array] = {"n": numbers, "t_ns": t_ns, "dur_ns": dur_ns, "captured": captured}
        columns |= {"apart_ns": apart_ns, "wall_ns": wall_ns}
        for name in self._kept(phases, "ph:", np.int64, _MISSING_NS):
            columns[f"ph:{name}"] = phases[name]
        metrics = _spread([step.v for step in steps], np.float64, np.nan)
        for name in self._kept(metrics, "v:", np.float64, np.nan):
            columns[f"v:{name}"] = metrics[name]
            given = ~np.isnan(metrics[name])
            self.metrics.setdefault(name, Overview(1024)).extend(t_ns[given], metrics[name][given])
        self._append(columns)
        self.overview.extend(t_ns, dur_ns)
        self.captured += int(captured.sum())
        plain = np.flatnonzero(~captured)
        if len(plain):
            longest = int(plain[int(dur_ns[plain].argmax())])
            if self.longest is None or dur_ns[longest] > self.longest[2]:
                self.longest = (int(numbers[longest]), int(t_ns[longest]), int(dur_ns[longest]))
        if self._early:
            found = [(n, self._early.pop(n)) for n in numbers.tolist() if n in self._early]
            self.add_device_times([log.DeviceStep(n, dur) for n, dur in found])

    def _since_last(self, t_ns: Ints, n: Ints, captured: npt.NDArray[np.bool_], dur_ns: Ints) -> Ints:
        """Return the time since the previous step; next to a capture, or if unknown, the step time."""
        rows = self.rows
        known = len(rows) > 0
        before_t = np.concatenate((rows["t_ns"][-1:] if known else t_ns[:1], t_ns[:-1]))
        before_n = np.concatenate((rows["n"][-1:] if known else n[:1], n[:-1]))
        before_captured = np.concatenate((rows["captured"][-1:] if known else captured[:1], captured[:-1]))
        follows = (n == before_n + 1) & ~before_captured
        return np.where(follows, np.maximum(t_ns - before_t, dur_ns), dur_ns)

    def _apart(self, phases: Mapping[str, Array], dur_ns: Ints) -> Ints:
        """Return the time of each step in occasional evaluations and checkpoints."""
        apart = np.zeros(len(dur_ns), np.int64)
        for name in _APART:
            if name in phases:
                took = np.maximum(phases[name], 0)
                having = self._having[name] + np.cumsum(took > 0)
                rare = having <= _APART_SHARE * (len(self) + 1 + np.arange(len(took)))
                apart += np.where(rare, took, 0)
                self._having[name] = int(having[-1])
        return np.minimum(apart, dur_ns)

    def _append(self, columns: Mapping[str, Array]) -> None:
        """Append rows, and check whether captures slow steps down."""
        captured = columns["captured"]
        edges = [0, *(np.flatnonzero(np.diff(captured)) + 1).tolist(), len(captured)]
        for low, high in pairwise(edges):
            if captured[low]:
                if self.watch.captured(columns["n"][low:high].tolist()):
                    self._before = self.whole_run()
                    self._phases_before = self.phase_means(), self.ordinary_phases()
            else:
                dur_ns = columns["dur_ns"][low:high]
                self.watch.plain(dur_ns.tolist())
                self._histogram.add(dur_ns)
                self._plain_ns += int(dur_ns.sum())
                self._plain_wall_ns += int(columns["wall_ns"][low:high].sum())
                if not self.rows.total and columns["n"][low] == 0:
                    self._first_ns, self._first_wall_ns = int(dur_ns[0]), int(columns["wall_ns"][low])
            self.rows.extend(high - low, {name: values[low:high] for name, values in columns.items()})

    def add_device_times(self, times: Sequence[log.DeviceStep]) -> None:
        """Store device times, which arrive some steps after their step."""
        if not times:
            return
        self._on_device = True
        self.device_every = times[-1].every
        wanted, dur_ns = column(times, "n", np.int64), column(times, "dur", np.int64)
        forgotten = self.rows.total - len(self.rows)
        first = max(0, self._segment - forgotten)
        numbers = self.rows["n"][first:]
        position = np.searchsorted(numbers, wanted)
        inside = position < len(numbers)
        found = inside & (numbers[np.where(inside, position, 0)] == wanted) if len(numbers) else inside
        self.rows.put("device_ns", position[found] + first, dur_ns[found])
        for index in np.flatnonzero(~inside).tolist():
            if len(self._early) < 1024:
                self._early[int(wanted[index])] = int(dur_ns[index])

    def _kept(self, seen: Mapping[str, Array], prefix: str, dtype: Any, missing: Any) -> list[str]:
        """Return the names to keep, adding columns for new ones."""
        kept = []
        for name in seen:
            if f"{prefix}{name}" not in self.rows:
                if sum(known.startswith(prefix) for known in self.rows.names) >= MAX_NAMES:
                    if len(self.dropped_names) < 100:
                        self.dropped_names.add(name)
                    continue
                self.rows.add_column(f"{prefix}{name}", dtype, missing)
                if prefix == "ph:":
                    self.phases.append(name)
            kept.append(name)
        return kept
