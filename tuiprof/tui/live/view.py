"""From the fold of a session to what the live screen draws: pure functions, no widget."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass

import numpy as np

from tuiprof.model.units import format_count, format_ns, format_share
from tuiprof.probe.slowdown import Slowdown
from tuiprof.session.live.fold import DeviceHistory, Fold
from tuiprof.session.live.ownership import device_of
from tuiprof.session.live.stats import StepStats
from tuiprof.session.live.writer_state import StepSeries, WriterState
from tuiprof.session.store.folders import SessionMeta
from tuiprof.telemetry.figures import headline
from tuiprof.tui.live.device_panel import DeviceView
from tuiprof.tui.live.strip_chart import ChartData, Mark
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.widgets.lines import Row, fit, row_width, spread

#: Widths of the time axis, seconds; None = the whole run.
WINDOWS_S: tuple[float | None, ...] = (15.0, 60.0, 300.0, 1800.0, None)
#: So many outliers get a label.
_MOST_MARKS = 4
#: Above this many steps in view the whole run is drawn from its overview instead of step by step.
_MOST_STEPS = 50_000
#: Readings handed to a panel: no terminal is wider.
_HISTORY = 240


@dataclass(frozen=True, slots=True)
class View:
    """The part of a run that is in view.

    Attributes:
        now_ns: Session time at the right edge.
        window_s: Width of the axis; None = from the beginning.
        live: The right edge is the present.
    """

    now_ns: int
    window_s: float | None
    live: bool

    @property
    def span_s(self) -> float:
        """Width of the axis in seconds; of a young run only as much as there is, in quarters of a minute."""
        age_s = max(self.now_ns / 1e9, 1.0)
        if self.window_s is None:
            # Of a run that goes on there is room for more, so that the axis stands still for a while.
            part_s = 2.0 ** math.floor(math.log2(age_s)) / 8
            return math.ceil(age_s / part_s) * part_s if self.live else age_s
        return min(self.window_s, max(1, math.ceil(age_s / 15)) * 15.0)

    @property
    def said(self) -> str:
        """The window in words."""
        if self.window_s is None:
            return "whole run"
        return f"last {self.window_s:g} s" if self.window_s < 100 else f"last {self.window_s / 60:g} min"

    def rows(self, steps: StepSeries) -> slice:
        """Return the kept steps in view.

        Args:
            steps: Steps of one rank.
        """
        found = steps.since(None if self.window_s is None else int(self.window_s * 1e9), self.now_ns)
        if self.live:
            return found
        last = int(np.searchsorted(steps.rows["t_ns"], self.now_ns, side="right"))
        return slice(min(found.start, last), last)


def stats_in_view(steps: StepSeries, view: View) -> StepStats:
    """Return the statistics of the steps in view; of the last ones where none is.

    Args:
        steps: Steps of one rank.
        view: What is in view.
    """
    if view.window_s is None:
        return steps.whole_run()
    stats = steps.stats(view.rows(steps))
    return stats if stats.count else steps.stats(slice(max(0, len(steps.rows) - 50), None))


def slowdown_in_view(steps: StepSeries, view: View) -> Slowdown | None:
    """Return the capture that slowed down steps which are in view; None = none did.

    Args:
        steps: Steps of one rank.
        view: What is in view.
    """
    numbers = steps.rows["n"][view.rows(steps)]
    slowdown = steps.slowdown
    return slowdown if slowdown is not None and len(numbers) and numbers[-1] > slowdown.last else None


def chart_data(
    steps: StepSeries,
    stats: StepStats,
    view: View,
    selected: int | None = None,
    edge_s: float | None = None,
) -> ChartData:
    """Return the strip chart of one rank.

    Args:
        steps: Its steps.
        stats: Statistics of the steps in view.
        view: What is in view.
        selected: Number of the step that is looked at; None = none.
        edge_s: Right edge of the axis; None = the moment in view.
    """
    if view.window_s is None and len(steps) > _MOST_STEPS:
        overview = steps.overview
        known = slice(
            None if view.live else int(np.searchsorted(overview.t_end_ns, view.now_ns, side="right"))
        )
        ends = overview.t_end_ns[known] / 1e9
        return ChartData(
            starts_s=np.append(overview.t_start_ns[:1] / 1e9, ends[:-1])[: len(ends)],
            ends_s=ends,
            low_ms=overview.minimum[known] / 1e6,
            high_ms=overview.maximum[known] / 1e6,
            now_s=view.now_ns / 1e9,
            window_s=view.span_s,
            edge_s=edge_s,
            median_ms=_known(stats.median_ns / 1e6),
            limit_ms=stats.outlier_above_ns / 1e6,
            marks=_longest(steps),
            live=view.live,
            selected=_selected(steps, selected),
        )
    rows = view.rows(steps)
    ends = steps.rows["t_ns"][rows] / 1e9
    dur_ms = steps.rows["dur_ns"][rows] / 1e6
    captured = steps.rows["captured"][rows]
    numbers = steps.rows["n"][rows]
    slow = steps.outliers(rows) - (rows.start or 0)
    slowest = slow[np.argsort(dur_ms[slow])[::-1][:_MOST_MARKS]]
    marks = tuple(
        Mark(float(ends[i]), float(dur_ms[i]), f"step {numbers[i]}  {format_ns(dur_ms[i] * 1e6)}")
        for i in slowest
    )
    edges = np.flatnonzero(np.diff(np.concatenate(([0], captured.astype(np.int8), [0]))))
    spans = tuple(
        (float(ends[first] - dur_ms[first] / 1e3), float(ends[last - 1]))
        for first, last in zip(edges[::2], edges[1::2], strict=True)
    )
    return ChartData(
        starts_s=ends - dur_ms / 1e3,
        ends_s=ends,
        low_ms=dur_ms,
        high_ms=dur_ms,
        now_s=view.now_ns / 1e9,
        window_s=view.span_s,
        edge_s=edge_s,
        median_ms=_known(stats.median_ns / 1e6),
        limit_ms=steps.outliers_above_ns(rows) / 1e6,
        marks=marks,
        captured_s=spans,
        live=view.live,
        selected=_selected(steps, selected),
    )


def _selected(steps: StepSeries, number: int | None) -> Mark | None:
    """Return the mark of the selected step; None = none is, or it is not kept any more."""
    places = np.flatnonzero(steps.rows["n"] == number) if number is not None else np.empty(0, np.int64)
    if not len(places):
        return None
    t_ns, dur_ns = (int(steps.rows[name][int(places[-1])]) for name in ("t_ns", "dur_ns"))
    return Mark(t_ns / 1e9, dur_ns / 1e6, f"step {number}  {format_ns(dur_ns)}")


def _longest(steps: StepSeries) -> tuple[Mark, ...]:
    """Return the mark of the longest step of the run."""
    if steps.longest is None:
        return ()
    number, t_ns, dur_ns = steps.longest
    return (Mark(t_ns / 1e9, dur_ns / 1e6, f"step {number}  {format_ns(dur_ns)}"),)


def _known(value: float) -> float | None:
    """Return None for NaN."""
    return None if value != value else value


def stats_row(
    stats: StepStats,
    view: View,
    width: int,
    *,
    batch: float | None,
    baseline: tuple[str, float] | None,
    read: float = 1.0,
    slowdown: Slowdown | None = None,
) -> list[Row]:
    """Return the line above the chart, in two lines where it is narrow.

    Args:
        stats: Statistics of the steps in view.
        view: What is in view.
        width: Cells.
        batch: Samples a step, where the script tells; None = unknown.
        baseline: Name of the variant to compare with and its median step time in ns; None = none recorded.
        read: Share of the logs that is read; below 1 the figures are of its end.
        slowdown: The capture that slowed down steps in view; None = none did.
    """
    if not stats.count:
        return [[(" step time  ", "dim"), (glyphs.NONE, "dim")]]
    left: Row = [(" step time ", "dim"), (format_ns(stats.median_ns), "strong"), (" median", "dim")]
    parts: list[Row] = [
        [("p95 ", "dim"), (format_ns(stats.p95_ns), "text")],
        [("jitter ", "dim"), (format_share(stats.jitter), "text")],
        [(f"{stats.rate_hz:.3g}", "text"), (" steps/s", "dim")],
    ]
    if batch:
        parts.append([(format_count(round(stats.rate_hz * batch)), "text"), (" samples/s", "dim")])
    right: Row = [(f"{view.said} ", "dim")]
    if slowdown is not None:
        right = [(f"{format_share(slowdown.share)} slower since a capture", "warn"), ("   ", "text"), *right]
    # What the profiler slowed down is no match for another run; the figures of the whole run leave it out.
    if baseline is not None and (slowdown is None or view.window_s is None):
        name, median_ns = baseline
        change = stats.median_ns / median_ns - 1
        word = "slower" if change > 0 else "faster"
        same = abs(change) < 0.005
        text = "same" if same else f"{abs(change) * 100:.1f} % {word}"
        role = "text" if same else "warn" if change > 0 else "good"
        right = [(f"vs {name}: ", "dim"), (text, role), ("   ", "text"), *right]
    if read < 1:
        right = [(f"the end of it; {read:.0%} read", "warn"), ("   ", "text"), *right]
    for name in (" step time ", " step "):
        whole = _dotted([[(name, "dim"), *left[1:]], *parts])
        if row_width(whole) + row_width(right) + 2 <= width:
            return [spread(whole, right, width)]
    if width >= 60:
        return [spread(_dotted([left, *parts[:2]]), right, width), _indented(parts[2:], width)]
    return [fit(_dotted([left, *parts]), width)]


def _dotted(parts: list[Row]) -> Row:
    out: Row = []
    for part in parts:
        out.extend([(glyphs.DOT, "rule"), *part] if out else part)
    return out


def _indented(parts: list[Row], width: int) -> Row:
    return fit([(" " * 11, "text"), *_dotted(parts)], width)


def device_views(
    fold: Fold, meta: SessionMeta, rank: WriterState | None, others: Set[str] = frozenset()
) -> list[DeviceView]:
    """Return the devices of a session as they stand.

    Args:
        fold: The state.
        meta: The session's metadata, which names the devices.
        rank: The rank shown, for the framework's own memory figures.
        others: Keys of the devices that are not the run's.

    Returns:
        The run's accelerators, the host, the accelerators of others.
    """
    known = {device.key: device for device in meta.devices}
    keys = [*known, *(key for key in fold.devices if key not in known)]
    allocators = _allocators(meta, rank, others)
    views = []
    for key in keys:
        device, history = known.get(key), fold.devices.get(key)
        if history is None:
            continue
        kind = device.kind if device else key.rstrip("0123456789")
        memory = device.memory_bytes if device else None
        views.append(
            DeviceView(
                key=key,
                kind=kind,
                name=device.name if device else "",
                memory_bytes=memory or int(history.last.get("mem_total_bytes", 0)) or None,
                details=device.details if device else {},
                latest=history.last,
                words=history.text,
                history=_histories(history, kind),
                allocator=allocators.get(key),
                foreign=key in others,
            )
        )
    # The accelerators come first: they are what is being fed.
    return sorted(views, key=lambda view: (view.foreign, view.kind == "host"))


def _histories(history: DeviceHistory, kind: str) -> dict[str, list[float]]:
    """Return the last readings of the figures that are drawn as history."""
    return {
        name: history.figure(name)[-_HISTORY:].tolist()
        for name in headline(kind, history.last)
        if name not in ("loaders", "loaders_idle", "errors")
    }


def _allocators(
    meta: SessionMeta, rank: WriterState | None, others: Set[str]
) -> dict[str, tuple[int, int, int]]:
    """Return the framework's own memory figures by device key: allocated, reserved and peak bytes.

    A process that does not tell which device an index stands for is taken to count the run's devices as the
    monitor does, where that can be said: all are the run's, or one is.
    """
    own = [device for device in meta.devices if device.kind != "host" and device.key not in others]
    countable = len(own) == 1 or not others
    found = {}
    for index, series in rank.memory.items() if rank is not None else ():
        if rank is not None and index in rank.uses:
            device = device_of(rank.uses[index], meta.devices)
        else:
            device = own[index] if countable and index < len(own) else None
        if device is not None and series.last is not None:
            found[device.key] = series.last.alloc, series.last.reserved, series.last.peak
    return found


def batch_size(steps: StepSeries) -> float | None:
    """Return the samples of a step where the script tells them as a metric; None = it does not.

    Args:
        steps: Steps of one rank.
    """
    for name in ("samples", "batch_size", "batch"):
        if name in steps.metrics and len(values := steps.metric(name)[-20:]):
            return _known(float(np.nanmedian(values))) if not np.isnan(values).all() else None
    return None


def phases(steps: StepSeries, view: View, row: int | None = None) -> dict[str, float]:
    """Return mean host time of each phase of the steps in view, ns; ``other`` is what no phase covers.

    Args:
        steps: Steps of one rank.
        view: What is in view.
        row: Only of this kept step; None = of all in view.
    """
    if row is not None:
        return steps.phase_means(slice(row, row + 1))
    rows = view.rows(steps)
    if rows.start >= rows.stop:
        rows = slice(max(0, len(steps.rows) - 50), len(steps.rows))
    return steps.phase_means(rows)
