"""What is known of one writer of a session: the steps, memory and cost of one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final

import numpy as np

from tuiprof.session.records import Cost, DeviceStep, End, Head, Memory, Step, Uses
from tuiprof.session.series import Array, Floats, Histogram, Ints, Overview, Series
from tuiprof.session.stats import NO_STATS, StepStats, step_stats

#: Steps kept whole, a rank: at least a minute at a millisecond a step. About 130 bytes a step with six phases
#: and three metrics, so eight ranks take 70 MB.
KEEP_STEPS: Final = 1 << 16
#: Readings of allocator memory kept whole, a device of a rank: half an hour at one a second.
KEEP_MEMORY: Final = 1 << 11
#: Different phases and metrics kept; a script that makes up names without end must not fill memory.
MOST_NAMES: Final = 24
_MISSING_NS: Final = -1


def _column(records: Sequence[object], name: str, dtype: Any) -> Array:
    """Return a field of records as an array; without a Python frame a record, as there are millions of them."""
    return np.fromiter(map(attrgetter(name), records), dtype, len(records))


def _spread(given: Sequence[Mapping[str, Any]], dtype: Any, missing: Any) -> dict[str, Array]:
    """Return mappings as columns by key; a mapping without a key gets ``missing``."""
    shapes = dict.fromkeys(map(tuple, given))
    if len(shapes) == 1:  # nearly always all steps use the same names, in the same order
        [names] = shapes
        values = chain.from_iterable(mapping.values() for mapping in given)
        table = np.fromiter(values, dtype, len(given) * len(names)).reshape(len(given), len(names))
        return {name: table[:, index] for index, name in enumerate(names)}
    names = tuple(dict.fromkeys(chain.from_iterable(shapes)))
    return {name: np.array([mapping.get(name, missing) for mapping in given], dtype) for name in names}


class StepSeries:
    """The steps of one rank: the last :data:`KEEP_STEPS` whole, all of them in overview.

    Attributes:
        rows: Columns ``n`` (step number), ``t_ns`` (end, session time), ``dur_ns`` (host time), ``device_ns``
            (device time, -1 = not known), ``captured`` (bool), one ``ph:<name>`` a phase (ns, -1 = not in
            this step) and one ``v:<name>`` a metric (NaN = not given).
        overview: Step times of the whole run, ns.
        metrics: Each metric over the whole run.
        phases: Names of the phases seen, in order of appearance.
        captured: Steps that ran under the profiler.
        device_every: One step in so many is timed on the device at the end of what was read; the others have no
            device time.
        longest: The longest uncaptured step so far as ``(n, t_ns, dur_ns)``; None = no step.
        dropped_names: Phases and metrics beyond :data:`MOST_NAMES`, not kept.
    """

    def __init__(self, keep: int = KEEP_STEPS) -> None:
        self.rows = Series(
            keep,
            {
                "n": (np.int64, -1),
                "t_ns": (np.int64, 0),
                "dur_ns": (np.int64, 0),
                "device_ns": (np.int64, _MISSING_NS),
                "captured": (np.bool_, False),
            },
        )
        self.overview = Overview()
        self.metrics: dict[str, Overview] = {}
        self.phases: list[str] = []
        self.captured = 0
        self.device_every = 1
        self.longest: tuple[int, int, int] | None = None
        self.dropped_names: set[str] = set()
        self._histogram = Histogram()  # of uncaptured steps, as is the next
        self._plain_ns = 0
        self._early: dict[int, int] = {}  # device times that came before their step
        self._segment = 0  # rows ever appended when the process (re)started; step numbers ascend from there

    def __len__(self) -> int:
        """Number of steps so far, the forgotten ones counted."""
        return self.rows.total

    @property
    def last_n(self) -> int | None:
        """Number of the last step; None = no step yet."""
        return int(self.rows["n"][-1]) if len(self.rows) else None

    def since(self, window_ns: int | None, now_ns: int | None = None) -> slice:
        """Return the kept rows of the last part of the run.

        Args:
            window_ns: Length of that part; None = all kept rows.
            now_ns: Its end in session time; None = the end of the last step.
        """
        t_ns = self.rows["t_ns"]
        if window_ns is None or not len(t_ns):
            return slice(0, len(t_ns))
        now_ns = int(t_ns[-1]) if now_ns is None else now_ns
        return slice(int(np.searchsorted(t_ns, now_ns - window_ns, side="left")), len(t_ns))

    def stats(self, rows: slice | None = None) -> StepStats:
        """Return the statistics of kept steps, captured ones left out.

        Args:
            rows: Which (see :meth:`since`); None = all kept ones.
        """
        rows = slice(None) if rows is None else rows
        return step_stats(self.rows["dur_ns"][rows][~self.rows["captured"][rows]])

    def whole_run(self) -> StepStats:
        """Return the statistics of all steps of the run, captured ones left out.

        Beyond :data:`KEEP_STEPS` steps median and 95th percentile come from a histogram (error up to 0.2 %),
        jitter and the outlier threshold from the kept steps; the rest stays exact.
        """
        if len(self) == len(self.rows):
            return self.stats()
        recent = self.stats()
        count = self._histogram.count
        if not count:
            return NO_STATS
        mean = self._plain_ns / count
        return StepStats(
            count=count,
            median_ns=self._histogram.quantile(0.5),
            p95_ns=self._histogram.quantile(0.95),
            mean_ns=mean,
            jitter=recent.jitter,
            rate_hz=1e9 / mean if mean > 0 else float("nan"),
            outlier_above_ns=recent.outlier_above_ns,
        )

    def outliers(self, rows: slice | None = None) -> Ints:
        """Return which kept steps are outliers by :data:`tuiprof.session.stats.OUTLIER_RULE`.

        Args:
            rows: Which to look at; None = all kept ones.

        Returns:
            Positions among the kept rows, ascending.
        """
        rows = slice(None) if rows is None else rows
        start = rows.start or 0
        slow = self.rows["dur_ns"][rows] > self.stats(rows).outlier_above_ns
        found: Ints = start + np.flatnonzero(slow & ~self.rows["captured"][rows])
        return found

    def phase_means(self, rows: slice | None = None) -> dict[str, float]:
        """Return the mean time a step spends in each phase, ns; means, because they add up.

        Args:
            rows: Which kept steps; None = all. Captured ones are left out unless there are no others.

        Returns:
            Phases in order of appearance, then ``"other"``: what no phase covers. A phase that a step does
            not have counts as 0.
        """
        rows = slice(None) if rows is None else rows
        plain = ~self.rows["captured"][rows]
        if not plain.any():
            plain = ~plain
        if not self.phases or not plain.any():
            return {}
        means = {
            name: float(np.maximum(self.rows[f"ph:{name}"][rows][plain], 0).mean()) for name in self.phases
        }
        mean = float(self.rows["dur_ns"][rows][plain].mean())
        return {**means, "other": max(0.0, mean - sum(means.values()))}

    def metric(self, name: str) -> Floats:
        """Return a metric of the kept steps; NaN = not given.

        Args:
            name: Its name.
        """
        return self.rows[f"v:{name}"]

    def restart(self) -> None:
        """The process started anew and counts its steps from 0 again."""
        self._segment = self.rows.total
        self._early.clear()

    def extend(self, steps: Sequence[Step], offset_ns: int) -> None:
        """Append steps.

        Args:
            steps: They, in the order written.
            offset_ns: What to add to ``at`` to get session time.
        """
        if not steps:
            return
        rows = len(steps)
        t_ns = _column(steps, "at", np.int64) + offset_ns
        dur_ns = _column(steps, "dur", np.int64)
        captured = _column(steps, "cap", np.bool_)
        numbers = _column(steps, "n", np.int64)
        columns: dict[str, Array] = {"n": numbers, "t_ns": t_ns, "dur_ns": dur_ns, "captured": captured}
        phases = _spread([step.ph for step in steps], np.int64, _MISSING_NS)
        for name in self._kept(phases, "ph:", np.int64, _MISSING_NS):
            columns[f"ph:{name}"] = phases[name]
        metrics = _spread([step.v for step in steps], np.float64, np.nan)
        for name in self._kept(metrics, "v:", np.float64, np.nan):
            columns[f"v:{name}"] = metrics[name]
            given = ~np.isnan(metrics[name])
            self.metrics.setdefault(name, Overview(1024)).extend(t_ns[given], metrics[name][given])
        self.rows.extend(rows, columns)
        self.overview.extend(t_ns, dur_ns)
        self.captured += int(captured.sum())
        plain = np.flatnonzero(~captured)
        if len(plain):
            plain_dur = dur_ns[plain]
            self._histogram.add(plain_dur)
            self._plain_ns += int(plain_dur.sum())
            longest = int(plain[int(plain_dur.argmax())])
            if self.longest is None or dur_ns[longest] > self.longest[2]:
                self.longest = (int(numbers[longest]), int(t_ns[longest]), int(dur_ns[longest]))
        if self._early:
            found = [(n, self._early.pop(n)) for n in numbers.tolist() if n in self._early]
            self.add_device_times([DeviceStep(n, dur) for n, dur in found])

    def add_device_times(self, times: Sequence[DeviceStep]) -> None:
        """Fill in device times, which are known some steps after their step.

        Args:
            times: They.
        """
        if not times:
            return
        self.device_every = times[-1].every
        wanted, dur_ns = _column(times, "n", np.int64), _column(times, "dur", np.int64)
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
        """Return the names among these that are kept, adding columns for new ones."""
        kept = []
        for name in seen:
            if f"{prefix}{name}" not in self.rows:
                if sum(column.startswith(prefix) for column in self.rows.names) >= MOST_NAMES:
                    if len(self.dropped_names) < 100:
                        self.dropped_names.add(name)
                    continue
                self.rows.add_column(f"{prefix}{name}", dtype, missing)
                if prefix == "ph:":
                    self.phases.append(name)
            kept.append(name)
        return kept


class MemorySeries:
    """The framework allocator's view of one device of one rank.

    Attributes:
        rows: Columns ``t_ns``, ``alloc``, ``reserved``, ``peak`` (bytes), the last :data:`KEEP_MEMORY` of them.
        overview: ``alloc`` over the whole run.
        last: The newest reading.
    """

    def __init__(self) -> None:
        kinds = dict.fromkeys(("t_ns", "alloc", "reserved", "peak"), (np.int64, 0))
        self.rows = Series(KEEP_MEMORY, kinds)
        self.overview = Overview(1024)
        self.last: Memory | None = None

    def extend(self, readings: Sequence[Memory], offset_ns: int) -> None:
        """Append readings.

        Args:
            readings: They, in the order written.
            offset_ns: What to add to ``at`` to get session time.
        """
        columns = {name: _column(readings, name, np.int64) for name in ("alloc", "reserved", "peak")}
        t_ns = _column(readings, "at", np.int64) + offset_ns
        self.rows.extend(len(readings), {"t_ns": t_ns, **columns})
        self.overview.extend(t_ns, columns["alloc"])
        self.last = readings[-1]


class WriterState:
    """One writer of a session: a rank of the script, or the recorder.

    Attributes:
        name: ``rank0``, ``recorder``, …
        head: Its head; None = not read.
        offset_ns: What to add to its ``at`` to get session time.
        steps: Its steps.
        memory: Allocator memory by device index.
        uses: Which accelerator a device index stands for, of those that it uses; empty = it does not tell.
        cost: What its hooks cost so far (for the recorder: CPU time of sampling); None = not told.
        end: How it ended; None = it goes on, or died.
        restarts: How often the process behind it was started anew.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.head: Head | None = None
        self.offset_ns = 0
        self.steps = StepSeries()
        self.memory: dict[int, MemorySeries] = {}
        self.uses: dict[int, Uses] = {}
        self.cost: Cost | None = None
        self.end: End | None = None
        self.restarts = 0

    @property
    def rank(self) -> int | None:
        """Its rank; None for others, such as the recorder."""
        return self.head.rank if self.head else None

    @property
    def last_step_ns(self) -> int:
        """Session time of its last step; -1 = no step yet."""
        return int(self.steps.rows["t_ns"][-1]) if len(self.steps) else -1

    @property
    def cost_per_step_ns(self) -> float | None:
        """What the probe's hooks cost a step, ns; None = not told."""
        return self.cost.ns / self.cost.steps if self.cost and self.cost.steps else None

    @property
    def cost_share(self) -> float | None:
        """Share of time that tuiprof itself took (0..1); None = not told.

        Of a rank: cost a step over the mean time of the kept steps. Of the recorder: CPU time of sampling
        over the time since it began.
        """
        if self.cost is None:
            return None
        if len(self.steps):
            mean = float(self.steps.rows["dur_ns"].mean())
            return self.cost_per_step_ns / mean if self.cost_per_step_ns is not None and mean > 0 else None
        if self.head is None or self.cost.at <= self.head.mono_ns:
            return None
        return self.cost.ns / (self.cost.at - self.head.mono_ns)
