"""Measurements over time in bounded memory, and statistics of step times.

Recent measurements are kept in full, those of the whole run in a fixed number of buckets.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Array = npt.NDArray[Any]

_NOTHING: Final[dict[str, Array]] = {}


#: Buffers of at least this size have pages of their own; with smaller ones, thousands of ranks would need too many
#: mappings.
_OWN_PAGES: Final = 64 << 10


def _buffer(rows: int, dtype: Any, missing: Any) -> Array:
    """Return an array filled with ``missing``.

    Large arrays are allocated outside of the heap. There they would occupy holes left by the temporary arrays of a
    frame, which need them again for the next frame, so that the heap would grow for hours.
    """
    size = rows * np.dtype(dtype).itemsize
    if size < _OWN_PAGES:
        return np.full(rows, missing, dtype)
    values: Array = np.frombuffer(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype)
    values.fill(missing)
    return values


def column(records: Sequence[object], name: str, dtype: Any) -> Array:
    """Return a field of records as an array, without a Python call per record: there may be millions."""
    return np.fromiter(map(attrgetter(name), records), dtype, len(records))


class Series:
    """Columns of equal length to which rows are appended; only the last ``keep`` rows are kept.

    The content does not depend on how appended rows are split into calls.
    """

    def __init__(self, keep: int, columns: Mapping[str, tuple[Any, Any]]) -> None:
        self.keep = keep
        self.total = 0
        self._types = dict(columns)
        self._data: dict[str, Array] = {
            name: _buffer(64, dtype, missing) for name, (dtype, missing) in columns.items()
        }
        self._size = 0  # rows in the buffers

    def __len__(self) -> int:
        """Return the number of kept rows."""
        return min(self._size, self.keep)

    def __contains__(self, name: str) -> bool:
        """Return whether there is a column of this name."""
        return name in self._data

    @property
    def names(self) -> list[str]:
        """Names of the columns, in order of appearance."""
        return list(self._data)

    def __getitem__(self, name: str) -> Array:
        """Return the kept rows of a column, oldest first, as a read-only view that later changes do not affect."""
        view = self._data[name][self._size - len(self) : self._size]
        view.flags.writeable = False
        return view

    def add_column(self, name: str, dtype: Any, missing: Any) -> None:
        """Add a column; existing rows get ``missing``."""
        capacity = len(next(iter(self._data.values()))) if self._data else 64
        self._types[name] = (dtype, missing)
        self._data[name] = _buffer(capacity, dtype, missing)

    def extend(self, rows: int, columns: Mapping[str, Array] = _NOTHING) -> None:
        """Append rows."""
        self.total += rows
        if rows > self.keep:  # only the last of them will be visible
            columns = {name: values[rows - self.keep :] for name, values in columns.items()}
            rows = self.keep
        self._make_room(rows)
        for name, values in columns.items():
            self._data[name][self._size : self._size + rows] = values
        self._size += rows

    def put(self, name: str, positions: Ints, values: Array) -> None:
        """Overwrite cells."""
        self._data[name][self._size - len(self) + positions] = values

    def _make_room(self, rows: int) -> None:
        capacity = len(next(iter(self._data.values())))
        if self._size + rows <= capacity:
            return
        # Use new buffers, because views of the old ones may exist.
        kept = min(self._size, self.keep)
        # Double the capacity while growing; then leave a quarter of slack, so that a row is copied at most four times.
        capacity = min(max(2 * (kept + rows), 64), self.keep + max(rows, self.keep // 4))
        for name, (dtype, missing) in self._types.items():
            old = self._data[name]
            new = self._data[name] = _buffer(capacity, dtype, missing)
            new[:kept] = old[self._size - kept : self._size]
        self._size = kept


class Overview:
    """Samples of a whole run in at most ``buckets`` (even) rows, each of which aggregates ``width`` successive samples.

    Sums, counts and extremes are exact. When the rows run out, neighbours are merged and ``width`` doubles.
    """

    def __init__(self, buckets: int = 2048) -> None:
        self.buckets = buckets
        self.width = 1  # samples per full row
        self.total = 0  # samples so far
        self._start = np.zeros(buckets, np.int64)
        self._end = np.zeros(buckets, np.int64)
        self._count = np.zeros(buckets, np.int64)
        self._sum = np.zeros(buckets, np.float64)
        self._low = np.full(buckets, np.inf)
        self._high = np.full(buckets, -np.inf)

    def __len__(self) -> int:
        """Return the number of rows."""
        return -(-self.total // self.width)

    @property
    def t_start_ns(self) -> Ints:
        """Time of each row's first sample, ns."""
        return self._start[: len(self)]

    @property
    def t_end_ns(self) -> Ints:
        """Time of each row's last sample, ns."""
        return self._end[: len(self)]

    @property
    def count(self) -> Ints:
        """Number of samples with a value in each row."""
        return self._count[: len(self)]

    @property
    def minimum(self) -> Floats:
        """Minimum of each row; NaN = no value."""
        return np.where(self.count > 0, self._low[: len(self)], np.nan)

    @property
    def maximum(self) -> Floats:
        """Maximum of each row; NaN = no value."""
        return np.where(self.count > 0, self._high[: len(self)], np.nan)

    @property
    def mean(self) -> Floats:
        """Mean of each row; NaN = no value."""
        count = self.count
        return np.where(count > 0, self._sum[: len(self)] / np.maximum(count, 1), np.nan)

    @property
    def overall_mean(self) -> float:
        """Mean of all samples with a value; NaN = there are none."""
        count = int(self._count.sum())
        return float(self._sum.sum()) / count if count else float("nan")

    def extend(self, t_ns: Ints, values: Array) -> None:
        """Append samples: times in ns, and values of the same shape; NaN = no value."""
        if not len(t_ns):
            return
        while -(-(self.total + len(t_ns)) // self.width) > self.buckets:
            self._merge()
        if len(t_ns) == 1:  # the usual case in a live view, where array operations would cost more
            self._append(int(t_ns[0]), float(values[0]))
            return
        row = np.arange(self.total, self.total + len(t_ns)) // self.width
        first = np.append(0, np.flatnonzero(np.diff(row)) + 1)
        last = np.append(first[1:], len(row)) - 1
        rows = row[first]
        if self.total % self.width == 0:
            self._start[rows] = t_ns[first]
        else:
            self._start[rows[1:]] = t_ns[first[1:]]
        self._end[rows] = t_ns[last]
        number = np.asarray(values, np.float64)
        known = ~np.isnan(number)
        self._count[rows] += np.add.reduceat(known.astype(np.int64), first)
        self._sum[rows] += np.add.reduceat(np.where(known, number, 0.0), first)
        self._low[rows] = np.fmin(self._low[rows], np.fmin.reduceat(number, first))
        self._high[rows] = np.fmax(self._high[rows], np.fmax.reduceat(number, first))
        self.total += len(t_ns)

    def _append(self, t_ns: int, value: float) -> None:
        row = self.total // self.width
        if self.total % self.width == 0:
            self._start[row] = t_ns
        self._end[row] = t_ns
        if value == value:
            self._count[row] += 1
            self._sum[row] += value
            self._low[row] = min(self._low[row], value)
            self._high[row] = max(self._high[row], value)
        self.total += 1

    def _merge(self) -> None:
        used = len(self)
        half = self.buckets // 2
        left, right = slice(0, None, 2), slice(1, None, 2)
        filled = np.arange(half) < -(-used // 2)
        has_right = np.arange(half) * 2 + 1 < used
        self._start[:half] = self._start[left]
        self._end[:half] = np.where(has_right, self._end[right], self._end[left])
        for column in (self._count, self._sum):
            column[:half] = column[left] + column[right]
            column[half:] = 0
        self._low[:half] = np.minimum(self._low[left], self._low[right])
        self._high[:half] = np.maximum(self._high[left], self._high[right])
        self._low[half:] = np.inf
        self._high[half:] = -np.inf
        self._start[:half] *= filled
        self._end[:half] *= filled
        self.width *= 2


class Histogram:
    """Counts of positive values in logarithmic bins, 256 per power of two, for quantiles with an error below 0.2 %."""

    _BINS: Final = 64 * 256

    def __init__(self) -> None:
        self.count = 0
        self._bins = np.zeros(self._BINS, np.int64)

    def add(self, values: Ints) -> None:
        """Count integers; those below 1 count as 1."""
        mantissa, exponent = np.frexp(np.maximum(values, 1).astype(np.float64))
        bins = (exponent.astype(np.int64) - 1) * 256 + ((mantissa * 2 - 1) * 256).astype(np.int64)
        self._bins += np.bincount(np.minimum(bins, self._BINS - 1), minlength=self._BINS)
        self.count += len(values)

    def quantile(self, share: float) -> float:
        """Return a quantile (0 to 1), rounded to the middle of its bin; NaN = no values."""
        if not self.count:
            return float("nan")
        bin_ = int(np.searchsorted(np.cumsum(self._bins), max(1.0, share * self.count)))
        exponent, part = divmod(bin_, 256)
        return float(2.0**exponent * (1 + (part + 0.5) / 256))


#: An outlier exceeds the median by this many robust standard deviations and by this share.
OUTLIER_SIGMAS: Final = 5.0
OUTLIER_SHARE: Final = 0.10
#: Minimum number of steps for outliers: the median of fewer is unreliable.
OUTLIER_MIN_STEPS: Final = 8
OUTLIER_RULE: Final = (
    f"slower than the median by more than {OUTLIER_SIGMAS:.0f} robust standard deviations "
    f"(1.4826 × median absolute deviation) and by more than {OUTLIER_SHARE:.0%}; "
    f"captured steps are left out"
)
JITTER_RULE: Final = "median absolute deviation of the step time, as a share of its median"
#: The host runs ahead if the median device step is longer than the median host step by this share.
AHEAD_SHARE: Final = 0.05
#: The first step is excluded from the rate if it takes longer than this multiple of the median.
_FIRST_TIMES: Final = 2
RATE_RULE: Final = (
    "By the wall clock: evaluations and checkpoints between steps are in it, captured steps are not, nor is the first "
    f"step of the run where it took more than {_FIRST_TIMES} times the median (compiling, workers that start)."
)
#: Minimum number of device-timed steps to tell whether the host runs ahead.
_AHEAD_MIN_STEPS: Final = 8
#: A mean step this much longer than the median is not explained by it.
_UNEVEN: Final = 0.1
AHEAD_RULE: Final = (
    f"where the median device time of the steps, from end to end, exceeds their median host time by more than "
    f"{AHEAD_SHARE:.0%}, the host runs ahead, and the step time is the device time"
)
_ROBUST: Final = 1.4826  # makes the median absolute deviation of a normal distribution its standard deviation


@dataclass(frozen=True, slots=True)
class StepStats:
    """Statistics of step times without captured steps; NaN if there are no steps."""

    count: int  # number of steps
    median_ns: float
    p95_ns: float
    mean_ns: float
    jitter: float  # see :data:`JITTER_RULE`
    rate_hz: float  # steps per second by the wall clock, see :data:`RATE_RULE`
    #: Host time above which a step is an outlier (:data:`OUTLIER_RULE`); inf = too few steps
    outlier_above_ns: float
    #: Whether the times are device times, because the host runs ahead (:data:`AHEAD_RULE`)
    on_device: bool = False

    @property
    def uneven(self) -> bool:
        """Whether the median does not explain the steps per second, so that the mean is to be said beside it."""
        return self.mean_ns > (1 + _UNEVEN) * self.median_ns


_NAN: Final = float("nan")
_NOT_TIMED: Final[Ints] = np.zeros(0, np.int64)
NO_STATS: Final = StepStats(0, _NAN, _NAN, _NAN, _NAN, _NAN, float("inf"))


def step_stats(
    dur_ns: Ints, device_ns: Ints | None = None, wall_ns: float = _NAN, first_ns: float = 0.0
) -> StepStats:
    """Return the statistics of steps, without captured ones, from their times on the host and the device, ns, shape
    ``(n,)``.

    A negative device time = not timed there. ``wall_ns`` is the total wall-clock time of the steps, NaN = the sum of
    the host times; ``first_ns`` that of the run's first step, which is the first of these; 0 = it is not.
    """
    count = len(dur_ns)
    if not count:
        return NO_STATS
    median, deviation = _middle(dur_ns)
    above = _above(median, deviation, count)
    if math.isnan(wall_ns):
        wall_ns = float(dur_ns.sum())
    mean = mean_ns(count, float(dur_ns.sum()), float(dur_ns[0]) if first_ns else 0.0, median)
    timed_ns = _timed(device_ns) if device_ns is not None else _NOT_TIMED
    # All host steps of the same stretch: those that are timed may fall on every second one that logs, and waits.
    on_device = bool(len(timed_ns)) and np.median(timed_ns) > (1 + AHEAD_SHARE) * np.median(
        dur_ns[: len(timed_ns)]
    )
    if on_device:
        dur_ns, mean = timed_ns, float(timed_ns.mean())
        median, deviation = _middle(timed_ns)
    return StepStats(
        count=count,
        median_ns=median,
        p95_ns=float(np.percentile(dur_ns, 95)),
        mean_ns=mean,
        jitter=deviation / median if median > 0 else _NAN,
        rate_hz=rate_hz(count, wall_ns, first_ns, median),
        outlier_above_ns=above,
        on_device=bool(on_device),
    )


def timed_steps(device_ns: Ints) -> tuple[Ints, Ints]:
    """Return the positions of the steps that were timed on the device (the others are negative), and how many steps
    each stands for.

    The share of timed steps may change during a run, so each stands for those since the one before.
    """
    timed = np.flatnonzero(device_ns >= 0)
    return timed, np.diff(timed, prepend=-1)


def on_device_ns(device_ns: Ints) -> Ints:
    """Return the times on the device of the steps that the timed ones stand for, ns."""
    timed, stands_for = timed_steps(device_ns)
    return np.repeat(device_ns[timed], stands_for)


def _timed(device_ns: Ints) -> Ints:
    """Return the times on the device of all steps up to the last that was timed there; none if those are too few."""
    return on_device_ns(device_ns) if (device_ns >= 0).sum() >= _AHEAD_MIN_STEPS else _NOT_TIMED


def rate_hz(count: int, wall_ns: float, first_ns: float, median_ns: float) -> float:
    """Return steps per second by :data:`RATE_RULE`; NaN = no time has passed."""
    each_ns = mean_ns(count, wall_ns, first_ns, median_ns)
    return 1e9 / each_ns if each_ns > 0 else _NAN


def mean_ns(count: int, total_ns: float, first_ns: float, median_ns: float) -> float:
    """Return the mean time of steps, without a first one that takes as long as :data:`RATE_RULE` says."""
    if count > 2 and first_ns > _FIRST_TIMES * median_ns:
        count, total_ns = count - 1, total_ns - first_ns
    return total_ns / count


def outliers_above_ns(dur_ns: Ints) -> float:
    """Return the time above which a step is an outlier; infinite = there are too few steps."""
    return _above(*_middle(dur_ns), len(dur_ns)) if len(dur_ns) else float("inf")


def _above(median: float, deviation: float, count: int) -> float:
    if count < OUTLIER_MIN_STEPS:
        return float("inf")
    return median + max(OUTLIER_SIGMAS * _ROBUST * deviation, OUTLIER_SHARE * median)


def _middle(times_ns: Ints) -> tuple[float, float]:
    """Return the median and the median absolute deviation."""
    median = float(np.median(times_ns))
    return median, float(np.median(np.abs(times_ns - median)))
