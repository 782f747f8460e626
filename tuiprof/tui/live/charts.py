"""The chart of step times over time: its data, computed from the fold, and the widget that draws it in braille dots."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from tuiprof.model.intervals import Floats, Ints
from tuiprof.model.units import format_ns
from tuiprof.session.live.series import StepStats
from tuiprof.session.live.step_series import StepSeries
from tuiprof.tui.live.view import View, clock
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.terminal.glyphs import BRAILLE_BASE, BRAILLE_BITS
from tuiprof.tui.widgets.lines import Lines, Row, Span
from tuiprof.tui.widgets.spans import wrap

#: How many outliers get a label.
_MAX_MARKS = 4
#: With more steps than this, the whole run is drawn from its downsampled overview instead of step by step.
_MAX_STEPS = 50_000
Codes = npt.NDArray[np.uint32]
_WEIGHTS = np.array(BRAILLE_BITS, dtype=np.uint32)
_EMPTY: Floats = np.empty(0)


@dataclass(frozen=True, slots=True)
class Mark:
    """A step marked in the chart."""

    at_s: float  # end of the step, in the chart's time
    dur_ms: float
    label: str  # text beside the mark

    @classmethod
    def of(cls, number: int, t_ns: int, dur_ns: int) -> Mark:
        return cls(t_ns / 1e9, dur_ns / 1e6, f"step {number}  {format_ns(dur_ns)}")


@dataclass(frozen=True, slots=True, eq=False)
class ChartData:
    """Data of the chart; times in seconds of the session."""

    #: Start of each step, or of each bucket of steps, ascending, shape ``(n,)``.
    starts_s: Floats = field(default_factory=lambda: _EMPTY)
    ends_s: Floats = field(default_factory=lambda: _EMPTY)  # end of each; same shape, as are the next two
    low_ms: Floats = field(default_factory=lambda: _EMPTY)  # step time; for a bucket the shortest
    high_ms: Floats = field(default_factory=lambda: _EMPTY)  # step time; for a bucket the longest
    now_s: float = 0.0  # the moment shown; there is no data after it
    window_s: float = 60.0  # width of the axis
    edge_s: float | None = None  # right edge of the axis (see :meth:`StripChart.edge`); None = ``now_s``
    median_ms: float | None = None  # drawn as a dotted line; None = unknown
    limit_ms: float = math.inf  # steps above this are outliers, ignored in scaling the y axis
    marks: tuple[Mark, ...] = ()  # outliers, the slowest first
    #: Intervals that ran under the profiler, as ``(start, end)``.
    captured_s: tuple[tuple[float, float], ...] = ()
    live: bool = True  # the moment shown is the present, labelled "now"
    selected: Mark | None = None  # the selected step


def chart_data(
    steps: StepSeries, stats: StepStats, view: View, selected: int | None = None, edge_s: float | None = None
) -> ChartData:
    """Return the chart of one rank: ``selected`` is a step number, ``edge_s`` the right edge of the time axis."""
    chart = partial(
        ChartData,
        now_s=view.now_ns / 1e9,
        window_s=view.span_s,
        edge_s=edge_s,
        median_ms=None if math.isnan(stats.median_ns) else stats.median_ns / 1e6,
        live=view.live,
        selected=_selected(steps, selected),
    )
    if view.window_s is None and len(steps) > _MAX_STEPS:
        overview = steps.overview
        known = slice(
            None if view.live else int(np.searchsorted(overview.t_end_ns, view.now_ns, side="right"))
        )
        ends = overview.t_end_ns[known] / 1e9
        return chart(
            starts_s=np.append(overview.t_start_ns[:1] / 1e9, ends[:-1])[: len(ends)],
            ends_s=ends,
            low_ms=overview.minimum[known] / 1e6,
            high_ms=overview.maximum[known] / 1e6,
            limit_ms=stats.outlier_above_ns / 1e6,
            marks=() if steps.longest is None else (Mark.of(*steps.longest),),
        )
    rows = view.rows(steps)
    ends = steps.rows["t_ns"][rows] / 1e9
    dur_ms = steps.rows["dur_ns"][rows] / 1e6
    captured = steps.rows["captured"][rows]
    slow = steps.outliers(rows)
    slowest = slow[np.argsort(steps.rows["dur_ns"][slow])[::-1][:_MAX_MARKS]].tolist()
    edges = np.flatnonzero(np.diff(np.concatenate(([0], captured.astype(np.int8), [0]))))
    spans = tuple(
        (float(ends[first] - dur_ms[first] / 1e3), float(ends[last - 1]))
        for first, last in zip(edges[::2], edges[1::2], strict=True)
    )
    return chart(
        starts_s=ends - dur_ms / 1e3,
        ends_s=ends,
        low_ms=dur_ms,
        high_ms=dur_ms,
        limit_ms=steps.outliers_above_ns(rows) / 1e6,
        marks=tuple(_mark(steps, row) for row in slowest),
        captured_s=spans,
    )


def _selected(steps: StepSeries, number: int | None) -> Mark | None:
    """Return the mark of the selected step; None = no step is selected, or it is no longer in memory."""
    rows = [] if number is None else np.flatnonzero(steps.rows["n"] == number).tolist()
    return _mark(steps, rows[-1]) if rows else None


def _mark(steps: StepSeries, row: int) -> Mark:
    rows = steps.rows
    return Mark.of(int(rows["n"][row]), int(rows["t_ns"][row]), int(rows["dur_ns"][row]))


# -- a canvas of braille dots --------------------------------------------------------------------------


def column_ranges(
    starts: Floats, ends: Floats, lows: Floats, highs: Floats, edges: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return the least, mean and greatest value within each column of a time axis; NaN in columns without a value.

    A value counts in every column that its interval overlaps: a long step appears in all columns it covers, and every
    one of many short steps in a column contributes. Starts and ends ascend, as do the edges, shape ``(columns + 1,)``.
    ``lows`` and ``highs`` are the values, or their ends where each represents several.
    """
    least, mean, greatest = (np.full(len(edges) - 1, np.nan) for _ in range(3))
    first = np.searchsorted(ends, edges[:-1], side="right")
    last = np.searchsorted(starts, edges[1:], side="left")
    filled = np.flatnonzero(last > first)
    if len(filled):
        # reduceat reduces between consecutive bounds: every second result is a requested range.
        bounds = np.column_stack((first[filled], last[filled])).ravel()
        least[filled] = np.fmin.reduceat(np.append(lows, np.inf), bounds)[::2]
        greatest[filled] = np.fmax.reduceat(np.append(highs, -np.inf), bounds)[::2]
        sums = np.concatenate(([0.0], np.cumsum((lows + highs) / 2)))
        mean[filled] = (sums[last[filled]] - sums[first[filled]]) / (last - first)[filled]
    return least, mean, greatest


def dot_rows(values: Floats, low: float, high: float, dots: int) -> Ints:
    """Return the dot row of each value, 0 at the top; values out of range are clipped, NaN gives -1."""
    shown = ~np.isnan(values)
    at = np.clip((high - np.where(shown, values, low)) / max(high - low, 1e-12) * dots, 0, dots - 1)
    return np.where(shown, at.astype(np.int64), -1)


def joined(rows: Ints) -> tuple[Ints, Ints]:
    """Return the top and bottom dot (inclusive) of each column that connect a line to the column before.

    ``rows`` is the dot row of the line in each column, -1 for a gap. In a gap the top returned lies below the bottom.
    """
    top, bottom = rows.copy(), rows.copy()
    both = (rows[1:] >= 0) & (rows[:-1] >= 0)
    top[1:] = np.where(both & (rows[:-1] < rows[1:]), rows[:-1] + 1, rows[1:])
    bottom[1:] = np.where(both & (rows[:-1] > rows[1:]), rows[:-1] - 1, rows[1:])
    return np.where(rows < 0, 1, top), np.where(rows < 0, 0, bottom)


def cells(top: Ints, bottom: Ints, height: int) -> Codes:
    """Return the braille bits of ``height`` lines of text, four dots each, 0 = blank, shape ``(height, width)``.

    ``top`` and ``bottom`` are the ends of each column of dots, shape ``(2 × width,)``; a column whose top lies below
    its bottom is empty.
    """
    rows = np.arange(height * 4)[:, None]
    on = (rows >= top) & (rows <= bottom)
    dots = on.reshape(height, 4, len(top) // 2, 2).transpose(0, 2, 1, 3)
    bits: Codes = (dots * _WEIGHTS).sum(axis=(2, 3), dtype=np.uint32)
    return bits


def text_of(bits: Codes) -> str:
    """Return one line of cells, given by their braille bits, as text."""
    return np.where(bits == 0, 0x20, bits + BRAILLE_BASE).astype("<u4").tobytes().decode("utf-32-le")


def nice_step(span: float, max_parts: int) -> float:
    """Return a round step (1, 2 or 5 times a power of ten) that divides a positive span into ``max_parts`` or fewer."""
    raw = span / max(1, max_parts)
    power = 10.0 ** math.floor(math.log10(raw))
    return next((factor * power for factor in (1, 2, 5) if factor * power >= raw * 0.999), 10 * power)


# -- the widget ----------------------------------------------------------------------------------------

#: A full axis scrolls by its width divided by this.
_MOVE_PARTS = 8
#: Until the time axis scrolls, the bulk of the steps may exceed the y axis by this share of its range.
_SLACK = 0.2
#: Minimum share of the y axis that the bulk must fill, when the time axis has scrolled and before; below it the
#: y axis is scaled again (the first steps are often slow and would set too large a scale).
_MIN_MOVED, _MIN_FILLED = 0.35, 0.15
#: In text lines of which the mean line fills more than this share, the paler range is left out: it would show
#: only between the line's dots, and every change of colour is 40 bytes on the wire.
_BUSY = 0.2
#: Possible intervals of the time labels below the plot, s, and their minimum distance, cells.
_TICKS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400)
_TICK_CELLS = 16
#: Minimum width of a gap in which the median is drawn, cells.
_GAP = 4


@dataclass(frozen=True, slots=True)
class Plot:
    """The area of the chart without its axes."""

    width: int  # cells
    height: int
    left_s: float  # range of the time axis
    right_s: float
    low_ms: float  # range of the y axis
    high_ms: float

    @property
    def label_step_ms(self) -> float:
        """The step between labels of the y axis."""
        return nice_step(self.high_ms - self.low_ms, max(2, self.height // 2))

    def column(self, at_s: float) -> float:
        """Return the column of a time, with fractions."""
        return (at_s - self.left_s) / (self.right_s - self.left_s) * self.width

    def column_of(self, mark: Mark) -> int | None:
        """Return the column of the middle of a marked step; None = outside."""
        column = int(self.column(mark.at_s - mark.dur_ms / 2e3))
        return column if 0 <= column < self.width else None

    def line(self, dur_ms: float) -> int:
        """Return the line of a step time, 0 at the top; what is out of range is at the edge."""
        at = (self.high_ms - dur_ms) / (self.high_ms - self.low_ms) * self.height
        return int(min(max(at, 0), self.height - 1))


class StripChart(Lines):
    """Step times as a line of braille dots, with axes; outliers and captured steps are marked.

    The line is the mean of the steps in each column; the paler area behind it spans the shortest to the longest.
    The y axis covers the bulk of the steps (2nd to 98th percentile without outliers) and changes only when they
    leave it; values beyond it are drawn at the edge.
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - the name Textual uses
        super().__init__(id=id)
        self._data = ChartData()
        self._empty: list[str] = []
        self._range: tuple[float, float] | None = None
        self._right = math.nan  # right edge of the time axis at the last draw

    def edge(self, now_s: float, window_s: float, begin_s: float = 0.0) -> float:
        """Return the right edge of a time axis that scrolls in jumps instead of continuously.

        Steps fill the axis from left to right; when it is full, it scrolls by a fraction of its width, in whole
        cells. Between jumps only the newest cells change, which keeps the chart readable and cheap over a slow link.
        """
        width = max(1, self.size.width - self._margin(self.size.width) - 2)
        move_s = window_s / width * max(1, width // _MOVE_PARTS)
        end_s = begin_s + window_s
        return end_s + max(0, math.ceil((now_s - end_s) / move_s)) * move_s

    @staticmethod
    def _margin(width: int) -> int:
        """Return the width of the y axis labels, cells."""
        return 10 if width >= 50 else 8

    def show(self, data: ChartData) -> None:
        self._data, self._empty = data, []
        self.redraw()

    def explain(self, lines: list[str]) -> None:
        """Show text instead of the chart: why there is no data, and what to do."""
        self._empty = lines
        self.redraw()

    def draw(self, width: int, height: int) -> list[Row]:
        if self._empty or not len(self._data.ends_s):
            return self._draw_empty(width, height)
        margin = self._margin(width)
        plot_width, plot_height = width - margin - 2, height - 1
        if plot_width < 10 or plot_height < 2:
            return []
        data = self._data
        right = data.now_s if data.edge_s is None else data.edge_s
        left = right - data.window_s
        low, high = self._axis(left, right)
        plot = Plot(plot_width, plot_height, left, right, low, high)
        columns = np.linspace(left, right, 2 * plot_width + 1)
        ranges = column_ranges(data.starts_s, data.ends_s, data.low_ms, data.high_ms, columns)
        bottoms, middle, tops = (dot_rows(values, low, high, 4 * plot_height) for values in ranges)
        line = cells(*joined(middle), plot_height)
        spread = cells(np.where(tops < 0, 1, tops), bottoms, plot_height)
        rows = [_layers(a, b) for a, b in zip(line, spread, strict=True)]
        self._draw_median(rows, plot)
        for index, column, spans in self._place_marks(plot):
            rows[index] = _overlay(rows[index], column, spans)
        self._draw_selected(rows, plot)
        labels = self._labels(plot, margin)
        out = [[*label, *row] for label, row in zip(labels, rows, strict=True)]
        start = f"from {_milliseconds(low, plot.label_step_ms).strip()}" if low else ""
        text = start if len(start) <= margin else start.removeprefix("from ")
        out.append([(text.rjust(margin)[:margin] + " ", "dim"), *self._time_axis(plot)])
        return out

    def _axis(self, left: float, right: float) -> tuple[float, float]:
        """Return the range of the y axis; unchanged while the bulk of the steps fits it well."""
        data = self._data
        lows, highs = (
            values[(data.ends_s > left) & (data.starts_s < right) & (data.high_ms <= data.limit_ms)]
            for values in (data.low_ms, data.high_ms)
        )
        if not len(highs):
            lows, highs = data.low_ms[-1:], data.high_ms[-1:]
        bulk_low, bulk_high = float(np.nanpercentile(lows, 2)), float(np.nanpercentile(highs, 98))
        middle = data.median_ms if data.median_ms is not None else (bulk_low + bulk_high) / 2
        # The axis spans at least 12 % of the median, or noise of a steady run would look like variation.
        bulk_low, bulk_high = min(bulk_low, middle * 0.94), max(bulk_high, middle * 1.06)
        moved, self._right = right != self._right, right
        if self._range is not None:
            low, high = self._range
            slack = 0.0 if moved else _SLACK * (high - low)
            inside = low - slack <= bulk_low and high + slack >= bulk_high
            if inside and (bulk_high - bulk_low) > (_MIN_MOVED if moved else _MIN_FILLED) * (high - low):
                return low, high
        pad = (bulk_high - bulk_low) * 0.08
        step = nice_step(bulk_high - bulk_low + 2 * pad, 8)
        low = max(0.0, np.floor((bulk_low - pad) / step) * step)
        self._range = (float(low), float(np.ceil((bulk_high + pad) / step) * step))
        return self._range

    def _draw_median(self, rows: list[Row], plot: Plot) -> None:
        """Draw the median as a dotted line in the gaps of the chart's line, up to the moment shown."""
        median = self._data.median_ms
        if median is None or not plot.low_ms <= median <= plot.high_ms:
            return
        index, known = plot.line(median), math.ceil(plot.column(self._data.now_s))
        out: Row = []
        at = 0
        for text, role in rows[index]:
            for run in filter(None, re.split("( +)", text)):
                dotted = min(len(run), max(0, known - at))
                at += len(run)
                if run.isspace() and dotted >= _GAP:
                    out += [(glyphs.MEDIAN * dotted, "median"), (run[dotted:], role)]
                else:
                    out.append((run, role))
        rows[index] = [span for span in out if span[0]]

    def _place_marks(self, plot: Plot) -> list[tuple[int, int, Row]]:
        """Return line, column and spans of each mark; labels never overlap."""
        placed: list[tuple[int, int, Row]] = []
        taken = self._taken_by_selected(plot)
        for mark in self._data.marks:
            column = plot.column_of(mark)
            if column is None:
                continue
            line = plot.line(mark.dur_ms)
            label = f" {mark.label}"
            start = column
            row: Row = [(glyphs.OUTLIER, "mark"), (label, "dim")]
            if column + 1 + len(label) > plot.width:
                start = column - len(label)
                row = [(f"{mark.label} ", "dim"), (glyphs.OUTLIER, "mark")]
            end = start + 1 + len(label)
            others = taken.setdefault(line, [])
            if start < 0 or any(start < b + 1 and a - 1 < end for a, b in others):
                if any(a <= column < b for a, b in others):
                    continue
                start, end, row = column, column + 1, [(glyphs.OUTLIER, "mark")]
            others.append((start, end))
            placed.append((line, start, row))
        return placed

    def _draw_selected(self, rows: list[Row], plot: Plot) -> None:
        """Draw a vertical line through the selected step, with a label and a mark at its step time."""
        mark = self._data.selected
        column = plot.column_of(mark) if mark is not None else None
        if mark is None or column is None:
            return
        level = plot.line(mark.dur_ms)
        for line in range(plot.height):
            sign = glyphs.OUTLIER if line == level else glyphs.AXIS
            rows[line] = _overlay(rows[line], column, [(sign, "accent")])
        line, start, label = _selected_label(mark, column, plot)
        if label:
            rows[line] = _overlay(rows[line], start, [(label, "accent")])

    def _taken_by_selected(self, plot: Plot) -> dict[int, list[tuple[int, int]]]:
        """Return the cells of each line that the line through the selected step and its label cover."""
        mark = self._data.selected
        column = plot.column_of(mark) if mark is not None else None
        if mark is None or column is None:
            return {}
        taken = {line: [(column, column + 1)] for line in range(plot.height)}
        line, start, label = _selected_label(mark, column, plot)
        if label:
            taken[line].append((start, start + len(label)))
        return taken

    def _labels(self, plot: Plot, margin: int) -> list[Row]:
        """Return the y axis with round numbers; :meth:`draw` writes a lower end other than 0 below it."""
        low, high, height, step = plot.low_ms, plot.high_ms, plot.height, plot.label_step_ms
        texts = [""] * height
        value = np.floor(high / step + 1e-6) * step
        while value >= low - step * 1e-6:
            line = int((high - value) / (high - low) * height)
            if line < height:
                texts[line] = _milliseconds(float(value), step)
            elif not low and not texts[height - 2]:
                # 0 lies on the lower edge; it is left out if the label above is too close.
                texts[height - 1] = _milliseconds(float(value), step)
            value -= step
        return [
            [(text.rjust(margin), "dim"), (glyphs.TICK if text else glyphs.AXIS, "rule")] for text in texts
        ]

    def _time_axis(self, plot: Plot) -> Row:
        """Return the line below the plot: times, and the intervals that ran under the profiler."""
        width = plot.width
        cells = [" "] * width
        here = min(width, max(0, round(plot.column(self._data.now_s))))
        last = "now" if self._data.live else clock(self._data.now_s)
        marks = [
            (max(0, int(plot.column(start))), min(width, int(plot.column(end)) + 1))
            for start, end in self._data.captured_s
        ]
        marks = sorted((first, stop) for first, stop in marks if stop > first)
        last_at = max(0, here - len(last))
        if any(first < last_at + len(last) and stop > last_at for first, stop in marks):
            last_at = max(stop for _, stop in marks) + 1  # to the right of the capture
            last = last if last_at + len(last) <= width else ""
        captured: list[tuple[int, str]] = []
        for i, (first, stop) in enumerate(marks):
            text, word = glyphs.CAPTURED * (stop - first), "captured"
            behind = min([last_at if last_at > stop else width, *(later for later, _ in marks[i + 1 :])])
            before = max([0, *(at + len(said) for at, said in captured)])
            if stop + 1 + len(word) < behind:
                text = f"{text} {word} "
            elif (
                first - len(word) - 1 >= before and not last_at < first < last_at + len(last) + len(word) + 1
            ):
                text, first = f"{word} {text}", first - len(word) - 1
            captured.append((first, text))
        taken = [(last_at, last_at + len(last)), *((first, first + len(text)) for first, text in captured)]
        apart_s = _TICK_CELLS * (plot.right_s - plot.left_s) / width
        step_s = next((step for step in _TICKS_S if step >= apart_s), _TICKS_S[-1])
        for number in range(math.ceil(max(plot.left_s, 0.0) / step_s), math.floor(plot.right_s / step_s) + 1):
            text = clock(number * step_s)
            at = round(plot.column(number * step_s)) - len(text) // 2
            at = max(at, 0) if number == 0 else at
            apart = all(at + len(text) < start or at > stop for start, stop in taken)
            # A tick within the same second as the last label would repeat it.
            if at >= 0 and at + len(text) <= width and apart and text != last:
                cells[at : at + len(text)] = list(text)
        cells[last_at : last_at + len(last)] = list(last)
        row: Row = [("".join(cells), "dim")]
        for first, text in captured:
            row = _overlay(row, first, [(text, "capture")])
        return row

    def _draw_empty(self, width: int, height: int) -> list[Row]:
        rows: list[Row] = [
            [("   " + part, "dim" if index else "text")]
            for index, line in enumerate(self._empty)
            for part in wrap(line, max(width - 4, 8))
        ]
        return [*([[]] * max(0, (height - len(rows)) // 2)), *rows]


def _selected_label(mark: Mark, column: int, plot: Plot) -> tuple[int, int, str]:
    """Return line, first cell and text of the selected step's label; no text if there is no room."""
    label = f" {mark.label} "
    line = 0 if plot.line(mark.dur_ms) else plot.height - 1
    start = column + 1 if column + 1 + len(label) <= plot.width else column - len(label)
    return line, start, label if start >= 0 else ""


def _layers(front: Codes, back: Codes) -> Row:
    """Return one line of cells drawn over another, in as few spans as possible; blanks extend the span before."""
    if np.count_nonzero(front) > _BUSY * len(front):
        back = np.zeros_like(back)
    role = np.where(front > 0, 2, np.where(back > 0, 1, 0))
    filled = np.flatnonzero(role)
    if not len(filled):
        return [(" " * len(front), "spread")]
    text = text_of(np.where(front > 0, front, back))
    turns = filled[np.flatnonzero(np.diff(role[filled])) + 1].tolist()
    roles = role[filled[:1]].tolist() + role[turns].tolist()
    edges = [0, *turns, len(text)]
    return [
        (text[start:end], "line" if kind == 2 else "spread")
        for start, end, kind in zip(edges, edges[1:], roles, strict=False)
    ]


def _overlay(row: Row, column: int, spans: Row) -> Row:
    """Return a row with spans painted over it from a column on; all characters are one cell wide."""
    width = sum(len(text) for text, _ in spans)
    out: list[Span] = []
    at = 0
    for text, role in row:
        end = at + len(text)
        if at < column:
            out.append((text[: max(0, column - at)], role))
        if at <= column < end:
            out.extend(spans)
        if end > column + width:
            out.append((text[max(0, column + width - at) :], role))
        at = end
    return out


def _milliseconds(value: float, step: float) -> str:
    """Return a tick label with the decimals that the step between ticks needs, in µs, ms or s."""
    if step >= 1000:
        value, step, unit = value / 1000, step / 1000, "s"
    elif step < 0.01:
        value, step, unit = value * 1000, step * 1000, "µs"
    else:
        unit = "ms"
    decimals = max(0, -int(np.floor(np.log10(step) + 1e-9)))
    return f"{value:.{decimals}f} {unit} "
