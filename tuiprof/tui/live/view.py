"""Content of the live screen, from the fold: figures, rows of styled text and sentences. No Textual here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from tuiprof.model.characters import shell_word
from tuiprof.model.units import format_count, format_ns, format_share, format_speed
from tuiprof.probe.slowdown import Slowdown
from tuiprof.report.sanitize import sanitize
from tuiprof.session.live.alerts import RULES, Alert
from tuiprof.session.live.fold import CaptureState, DeviceHistory, Fold, NoteLine
from tuiprof.session.live.hosts import HostState, Lane
from tuiprof.session.live.replay import Replay
from tuiprof.session.live.series import StepStats
from tuiprof.session.live.sharing import device_of
from tuiprof.session.live.summary import ranges
from tuiprof.session.live.writer_state import StepSeries, WriterState
from tuiprof.session.store.folders import Session
from tuiprof.session.store.meta import DeviceMeta, Labels, SessionMeta, TriggerRequest
from tuiprof.session.store.status import Status
from tuiprof.session.store.summary import Summary
from tuiprof.telemetry.figures import figure, headline
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.widgets.braille import Floats
from tuiprof.tui.widgets.spans import Row, fit, row_width, spread

if TYPE_CHECKING:
    from tuiprof.comparison.headline import Headline

#: Widths of the time axis, seconds; None = the whole run.
WINDOWS_S: tuple[float | None, ...] = (15.0, 60.0, 300.0, 1800.0, None)
#: More ranks than this are summed up in a sentence.
MOST_LANES = 8
#: Width of a host's name on a separate line.
_HOST_WIDTH = 16
#: So many outliers get a label.
_MOST_MARKS = 4
#: Above this many steps in view the whole run is drawn from its overview instead of step by step.
_MOST_STEPS = 50_000
#: Readings handed to a panel: no terminal is wider.
_HISTORY = 240
#: Before this moment of a run most of what its recorder took is its start, which says nothing of the run.
_SETTLED_NS = 10_000_000_000
_EMPTY: Floats = np.empty(0)
_STATES = {
    "running": (glyphs.RUNNING, "good"),
    "finished": (glyphs.DONE, "good"),
    "failed": (glyphs.FAILED, "bad"),
    "stopped": (glyphs.STOPPED, "warn"),
    "interrupted": (glyphs.INTERRUPTED, "warn"),
}


@dataclass(frozen=True, slots=True)
class View:
    """The part of a run that is in view.

    Attributes:
        now_ns: Session time at the right edge.
        window_s: Width of the axis; None = from the beginning.
        live: The right edge is the present.
        begin_ns: Session time at which the first step began: before it there is nothing to draw.
    """

    now_ns: int
    window_s: float | None
    live: bool
    begin_ns: int = 0

    @property
    def age_s(self) -> float:
        """Time since the first step began."""
        return max((self.now_ns - self.begin_ns) / 1e9, 1.0)

    @property
    def span_s(self) -> float:
        """Width of the axis in seconds; while the steps do not fill the window a little more than they take."""
        if self.window_s is None and not self.live:
            return self.age_s
        # Some room is left, so that the axis stays fixed for a while.
        parts = 8 if self.window_s is None else 4
        part_s = 2.0 ** math.floor(math.log2(self.age_s)) / parts
        span_s = math.ceil(self.age_s / part_s) * part_s
        return span_s if self.window_s is None else min(self.window_s, span_s)

    @property
    def young(self) -> bool:
        """Whether the steps do not fill the window yet."""
        return self.window_s is not None and self.age_s < self.window_s

    @property
    def said(self) -> str:
        """The window in words."""
        if self.window_s is None:
            return "whole run"
        return f"last {self.window_s:g} s" if self.window_s < 100 else f"last {self.window_s / 60:g} min"

    def rows(self, steps: StepSeries) -> slice:
        """Return the kept steps in view."""
        found = steps.since(None if self.window_s is None else int(self.window_s * 1e9), self.now_ns)
        if self.live:
            return found
        last = int(np.searchsorted(steps.rows["t_ns"], self.now_ns, side="right"))
        return slice(min(found.start, last), last)


def first_step_ns(rank: WriterState | None) -> int:
    """Return the session time at which the first step of a rank began; 0 = no step yet."""
    if rank is None or not len(rank.steps):
        return 0
    kept = rank.steps.rows
    first_ns = int(kept["t_ns"][0] - kept["dur_ns"][0])
    known = rank.steps.overview.t_start_ns
    return max(0, min(first_ns, int(known[0])) if len(known) else first_ns)


def clock(seconds: float) -> str:
    """Return a length of time as ``00:01:12``."""
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours:02d}:{minute:02d}:{second:02d}"


# -- step times ------------------------------------------------------------------------------------------


def stats_in_view(steps: StepSeries, view: View) -> StepStats:
    """Return the statistics of the steps in view; of the last ones where none is."""
    if view.window_s is None:
        return steps.whole_run()
    stats = steps.stats(view.rows(steps))
    return stats if stats.count else steps.stats(slice(max(0, len(steps.rows) - 50), None))


def slowdown_in_view(steps: StepSeries, view: View) -> Slowdown | None:
    """Return the capture that slowed down steps which are in view; None = none did."""
    numbers = steps.rows["n"][view.rows(steps)]
    slowdown = steps.slowdown
    return slowdown if slowdown is not None and len(numbers) and numbers[-1] > slowdown.last else None


def batch_size(steps: StepSeries) -> float | None:
    """Return the samples of a step where the script logs them as a metric; None = it does not."""
    for name in ("samples", "batch_size", "batch"):
        if name in steps.metrics and len(values := steps.metric(name)[-20:]):
            return _known(float(np.nanmedian(values))) if not np.isnan(values).all() else None
    return None


def phases(steps: StepSeries, view: View, row: int | None = None) -> dict[str, float]:
    """Return host time of each phase of an ordinary step in view, ns; ``other`` is what no phase covers.

    ``row`` limits it to one of the kept steps.
    """
    if row is not None:
        return steps.phase_means(slice(row, row + 1))
    rows = view.rows(steps)
    if rows.start >= rows.stop:
        rows = slice(max(0, len(steps.rows) - 50), len(steps.rows))
    return steps.ordinary_phases(rows)


def stats_row(
    stats: StepStats,
    view: View,
    width: int,
    *,
    batch: float | None,
    baseline: tuple[str, float] | None,
    read: float = 1.0,
    slowdown: Slowdown | None = None,
    steps_are: str = "",
) -> list[Row]:
    """Return the line above the chart, as two lines if it is narrow.

    ``batch`` is the samples of a step; ``baseline`` the name and median step time in ns of the variant to compare
    with; ``read`` the share of the logs that has been read: below 1 the figures are of their end.
    """
    if not stats.count:
        return [[(" step time  ", "dim"), (glyphs.NONE, "dim")]]
    left: Row = [(" step time ", "dim"), (format_ns(stats.median_ns), "strong"), (" median", "dim")]
    if stats.on_device:
        left.append((" on the device", "dim"))
    parts: list[Row] = [
        [("p95 ", "dim"), (format_ns(stats.p95_ns), "text")],
        [("jitter ", "dim"), (format_share(stats.jitter), "text")],
        [(f"{stats.rate_hz:.3g}", "text"), (" steps/s", "dim")],
    ]
    if batch:
        parts.append([(format_count(round(stats.rate_hz * batch)), "text"), (" samples/s", "dim")])
    right: Row = [(f"{view.said} ", "dim")]
    if slowdown is not None:
        right = [(f"{format_speed(1 + slowdown.share)} since a capture", "warn"), ("   ", "text"), *right]
    # Steps slowed by the profiler cannot be compared with another run; figures of the whole run exclude them.
    if baseline is not None and (slowdown is None or view.window_s is None):
        name, median_ns = baseline
        change = stats.median_ns / median_ns - 1
        same = abs(change) < 0.005
        text = "same" if same else format_speed(1 + change)
        role = "text" if same else "warn" if change > 0 else "good"
        right = [(f"vs {name}: ", "dim"), (text, role), ("   ", "text"), *right]
    if read < 1:
        right = [(f"the end of it; {read:.0%} read", "warn"), ("   ", "text"), *right]
    if steps_are:
        described = _dotted(
            [[(" step time ", "dim"), *left[1:]], *parts, [("steps: ", "dim"), (steps_are, "text")]]
        )
        if row_width(described) + row_width(right) + 2 <= width:
            return [spread(described, right, width)]
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


# -- the chart -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mark:
    """A step worth pointing at.

    Attributes:
        at_s: When it ended, on the clock of the chart.
        dur_ms: What it took.
        label: What to write beside it.
    """

    at_s: float
    dur_ms: float
    label: str


@dataclass(frozen=True, slots=True, eq=False)
class ChartData:
    """Content of the chart.

    Attributes:
        starts_s: Start of each step in seconds, ascending, shape ``(n,)``.
        ends_s: Its end, same shape, as are the next two.
        low_ms: What it took; of a bucket of steps the shortest.
        high_ms: The same; of a bucket of steps the longest.
        now_s: The moment shown, on the same clock; nothing is known beyond it.
        window_s: Width of the axis.
        edge_s: Its right edge (see :meth:`StripChart.edge`); None = the moment shown.
        median_ms: Drawn as a dotted line; None = not yet known.
        limit_ms: Steps above this are outliers, which the y axis does not follow.
        marks: Outliers, the most telling first.
        captured_s: Spans of time that ran under the profiler, as ``(start, end)``.
        live: The moment shown is the present (it is then called "now").
        selected: The selected step; None = none.
    """

    starts_s: Floats = field(default_factory=lambda: _EMPTY)
    ends_s: Floats = field(default_factory=lambda: _EMPTY)
    low_ms: Floats = field(default_factory=lambda: _EMPTY)
    high_ms: Floats = field(default_factory=lambda: _EMPTY)
    now_s: float = 0.0
    window_s: float = 60.0
    edge_s: float | None = None
    median_ms: float | None = None
    limit_ms: float = math.inf
    marks: tuple[Mark, ...] = ()
    captured_s: tuple[tuple[float, float], ...] = ()
    live: bool = True
    selected: Mark | None = None


def chart_data(
    steps: StepSeries,
    stats: StepStats,
    view: View,
    selected: int | None = None,
    edge_s: float | None = None,
) -> ChartData:
    """Return the strip chart of one rank: ``selected`` is the number of a step, ``edge_s`` the axis' right edge."""
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
    """Return the mark of the selected step; None = none selected, or no longer kept."""
    rows = np.flatnonzero(steps.rows["n"] == number) if number is not None else np.empty(0, np.int64)
    if not len(rows):
        return None
    t_ns, dur_ns = (int(steps.rows[name][int(rows[-1])]) for name in ("t_ns", "dur_ns"))
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


# -- what runs, its state, captures, how it ended -------------------------------------------------------


def capture_words(capture: CaptureState) -> str:
    """Return the description of a capture: when it was made, of which steps, and why."""
    firsts = [record.first for record in capture.by_writer.values() if record.first is not None]
    lasts = [record.last for record in capture.by_writer.values() if record.last is not None]
    steps = f"steps {format_count(min(firsts))} to {format_count(max(lasts))}" if firsts and lasts else ""
    return glyphs.DOT.join(part for part in (clock(capture.t_ns / 1e9), steps, capture.cause) if part)


def name_row(session: Session) -> Row:
    """Return what runs: ``metrics ▸ naive · paper``, or the script."""
    scenario = session.meta.scenario
    if scenario is None:
        return [(sanitize(session.title), "title")]
    row: Row = [(sanitize(scenario.name), "title")]
    if scenario.variant:
        row.extend([(f" {glyphs.INTO} ", "dim"), (sanitize(scenario.variant), "title")])
    if scenario.preset:
        row.append((f"{glyphs.DOT}{sanitize(scenario.preset)}", "dim"))
    return row


def state_row(status: Status, now_ns: int, rank: WriterState | None, ranks: int, frozen: bool) -> Row:
    """Return the state of the run: ``● running 00:01:12 · step 214 · rank 0/1``."""
    glyph, role = _STATES[status.state]
    row: Row = [(f"{glyph} ", role), (f"{status} ", role), (clock(now_ns / 1e9), "text")]
    if frozen:
        row.append((f"{glyphs.DOT}{glyphs.PAUSED} view paused", "accent"))
    return [*row, *_place(rank, ranks)]


def replay_row(replay: Replay, rank: WriterState | None, ranks: int, *, back: bool = False) -> Row:
    """Return the position of a replay: ``▶ replay 4× 00:00:17 of 00:00:40 · step 214``."""
    glyph = glyphs.PAUSED if replay.paused else glyphs.PLAYING
    where = f"{clock(replay.position_ns / 1e9)} of {clock(replay.duration_ns / 1e9)}"
    said = "paused" if back and replay.paused else f"replay {replay.speed:g}×"
    row: Row = [(f"{glyph} ", "accent"), (f"{said} ", "accent"), (where, "text")]
    return [*row, *_place(rank, ranks)]


def _place(rank: WriterState | None, ranks: int) -> Row:
    """Return the step and, if there are several, the rank."""
    row: Row = []
    if rank is not None and rank.steps.last_n is not None:
        row.append((f"{glyphs.DOT}step {format_count(rank.steps.last_n)}", "text"))
    if rank is not None and rank.rank is not None and ranks > 1:
        world = rank.head.world if rank.head and rank.head.world else ranks
        where = f" {rank.host}" if rank.host else ""
        row.append((f"{glyphs.DOT}rank {rank.rank}/{world}{where}", "text"))
    return row


def machine_row(session: Session, rank: WriterState | None, others: Set[str]) -> Row:
    """Return where the rank runs: ``H200, 1 of 4 · torch 2.11 · overhead 0.1 %``."""
    devices = [device for device in devices_of(session, rank) if device.kind != "host"]
    there = Counter(device.name.removeprefix("NVIDIA ") for device in devices)
    own = Counter(device.name.removeprefix("NVIDIA ") for device in devices if device.key not in others)
    words = []
    for name, count in own.items():
        of = f", {count} of {there[name]}" if count < there[name] else f" ×{count}" if count > 1 else ""
        words.append(f"{sanitize(name)}{of}")
    if not words and devices_of(session, rank):
        words = ["CPU"]
    if rank is not None and rank.head is not None:
        words.extend(
            f"{sanitize(name)} {sanitize(version.partition('+')[0])}"
            for name, version in list(rank.head.versions.items())[:2]
        )
    if rank is not None and (share := rank.cost_share) is not None:
        words.append(f"overhead {format_share(share)}")
    return [(glyphs.DOT.join(words), "dim")]


def devices_of(session: Session, rank: WriterState | None) -> list[DeviceMeta]:
    """Return the devices of the host of a rank, under their keys in the run."""
    for host in session.others:
        if rank is not None and rank.host == host.name:
            return [replace(it, key=f"{it.key}@{host.name}") for it in host.session.meta.devices]
    return session.meta.devices


def hosts_row(hosts: Sequence[HostState], width: int) -> Row:
    """Return the hosts of a run in one line, those first of which something is wrong."""
    told = sorted(hosts, key=lambda host: not (host.lost or host.status.state == "failed"))
    row: Row = [(" hosts ", "dim")]
    for number, host in enumerate(told):
        glyph, role = _STATES["interrupted" if host.lost else host.status.state]
        ranks = ranges([rank.rank for rank in host.ranks if rank.rank is not None]) or host.waits
        part: Row = [(f" {glyph} ", role), (host.name[:_HOST_WIDTH], "text"), (f" {ranks} ", "dim")]
        if host.lost:
            part.append((f"{'' if host.left else 'lost: '}{sanitize(host.lost)} ", "warn"))
        elif host.clock is not None and host.clock.worth_saying:
            part.append((f"clock {host.clock} ", "warn"))
        elif (
            host.lead is not None
            and host.clock is not None
            and host.clock.spread_ns is None
            and not host.clock.same
        ):
            part.append(("clock not compared ", "dim"))
        left = len(told) - number
        more = f" and {left} more"
        if row_width(row) + row_width(part) + (len(more) if left > 1 else 0) > width and number:
            return [*row, (more, "dim")]
        row.extend(part)
    return fit(row, width)


def head_row(brand: str, parts: tuple[Row, Row, Row], width: int) -> Row:
    """Return the first line of the screen from what runs, its state and its machine; the last goes first."""
    name, state, machine = parts
    left: Row = [(f" {brand}  ", "accent"), *name]
    if row_width(left) + row_width(state) + 3 > width:
        left = [(" ", "text"), *name]
    while row_width(left) + row_width(state) + 3 > width and len(state) > 3:
        # Words behind the clock first, then the word that the sign in front says already.
        state = state[:-1] if len(state) > 4 else [state[0], *state[2:]]
    room = width - row_width(left) - row_width(state)
    if room < 3:
        return fit([*state, ("  ", "text"), *left], width)
    spare = room - row_width(machine) - 1
    if spare < 6:
        return [*left, (" " * (room - 1), "text"), *state]
    gap = spare // 2
    return [*left, (" " * gap, "text"), *state, (" " * (spare - gap), "text"), *machine]


def no_step_lines(
    status: Status, errors: list[str], *, replayed: bool = False, waiting: str = "", likely: str = ""
) -> list[str]:
    """Return why there is no step time to draw, with a remedy.

    ``waiting`` is what the script does meanwhile, ``likely`` the line that probably ends a step.
    """
    how = _HOW_TO_MARK
    if likely:
        how = [
            f"no step seen: the script is in the loop at {sanitize(likely)}, which Python 3.12 and newer would count",
            f"to count its iterations: tuiprof run --step-at {sanitize(shell_word(likely))} -- …",
        ]
    if replayed:
        return ["no step yet at this point of the run: → skips ahead, > plays faster"]
    if status.over:
        lines = [f"{status}, and no step was marked", *errors]
        return lines if status.state == "failed" else [*lines, *how]
    if status.detail == "starting":
        return ["starting …"]
    return [f"no step yet{f': {sanitize(waiting)}' if waiting else ''}", *how]


_HOW_TO_MARK = [
    "steps are found by themselves in PyTorch, torch_xla, Keras and, from Python 3.12 on, in any loop",
    "else name the line that ends one: tuiprof run --step-at FILE:LINE; or call tuiprof.step() there",
]


def capture_row(capture: CaptureState) -> Row:
    """Return the state of the newest capture."""
    first, last = capture.first, capture.last
    steps = f"steps {first}–{last}" if first is not None and last is not None else "the next steps"
    if capture.state == "written":
        return [
            (f" {glyphs.FLAG} ", "good"),
            ("trace ready", "good"),
            (f" — press enter to open it ({steps})", "text"),
        ]
    if capture.state == "failed":
        return [
            (f" {glyphs.FLAG} ", "bad"),
            (f"capture failed: {sanitize(capture.why) or 'no reason given'}", "text"),
        ]
    if capture.state == "started":
        return [(f" {glyphs.FLAG} ", "capture"), (f"profiling {steps} …", "text")]
    return [(f" {glyphs.FLAG} ", "capture"), (f"capture armed: {steps}", "text")]


def headline_row(headline: Headline, *, fresh: bool) -> Row:
    """Return what the newest trace says first."""
    role = headline.level if headline.level in ("good", "warn", "bad") else "info"
    row: Row = [(f" {glyphs.FLAG} ", role), (sanitize(headline.line), "text")]
    return [*row, (" — enter opens it", "dim")] if fresh else row


def over_row(status: Status, errors: list[str], now_ns: int, missing: Sequence[str] = ()) -> Row:
    """Return how the run ended, with the last thing it said on standard error."""
    glyph, role = _STATES[status.state]
    said = {
        "finished": f"finished after {format_ns(now_ns)}",
        "failed": f"{status} after {format_ns(now_ns)}",
        "stopped": f"stopped after {format_ns(now_ns)}",
        "interrupted": f"{status}: what was recorded until then is all here",
    }.get(status.state, str(status))
    row: Row = [(f" {glyph} ", role), (said, "text")]
    row.extend((f"{glyphs.DOT}{sanitize(what)}", "warn") for what in missing)
    if status.state == "failed" and errors:
        row.extend([(" — ", "dim"), (errors[-1].strip(), "bad")])
    return row


# -- other runs, ranks, a moment gone by, the selected step, alerts ---------------------------------------


def runs_row(runs: Sequence[Summary], shown: str, width: int) -> Row:
    """Return the runs that go on in one line, the one shown marked."""
    row: Row = [(" runs  ", "dim")]
    for number, run in enumerate(runs, 1):
        here = run.id == shown
        glyph, role = (glyphs.RUNNING, "good") if run.state == "running" else (glyphs.DONE, "dim")
        said = f" {format_ns(run.median_ns)}" if run.median_ns is not None else ""
        part: Row = [
            (f"{glyphs.CURSOR if here else ' '}{number} ", "accent" if here else "dim"),
            (f"{glyph} ", role),
            (sanitize(run.title), "strong" if here else "text"),
            (f"{said}  ", "dim"),
        ]
        left = len(runs) - number
        more = f" {left + 1} more"
        if row_width(row) + row_width(part) + (len(more) if left else 0) > width and not here:
            return [*row, (more, "dim")]
        row.extend(part)
    return fit(row, width)


def rank_rows(lanes: Sequence[Lane], shown: str, width: int, most: int) -> list[Row]:
    """Return one line a rank: step time, recent step times, and which one holds up the others."""
    kept = list(lanes)
    if len(kept) > most:
        first = [lane for lane in kept if lane.straggles or lane.name == shown]
        rest = [lane for lane in kept if lane not in first]
        kept = sorted((first + rest)[: max(1, most - 1)], key=lanes.index)
    times = [value for lane in lanes for value in lane.recent_ns]
    ordered = sorted(times)
    low, high = (ordered[len(ordered) // 50], ordered[-1 - len(ordered) // 50]) if ordered else (0, 1)
    wide = max((len(_lane_name(lane)) for lane in kept), default=0)
    rows = [_lane(lane, lane.name == shown, low, high, width, wide) for lane in kept]
    if len(kept) < len(lanes) and most > 1:
        hidden = [lane for lane in lanes if lane not in kept]
        steps = [lane.step_ns for lane in hidden if lane.step_ns == lane.step_ns]
        said = f": {format_ns(min(steps))} to {format_ns(max(steps))}" if steps else ""
        rows.append([(f"  and {len(hidden)} more ranks{said}", "dim")])
    return rows


def _lane_name(lane: Lane) -> str:
    name = f"rank {lane.rank}" if lane.rank is not None else sanitize(lane.name)
    return f"{name} {lane.host[:_HOST_WIDTH]}" if lane.host else name


def _lane(lane: Lane, here: bool, low: int, high: int, width: int, wide: int) -> Row:
    name = _lane_name(lane)
    row: Row = [
        (f"{glyphs.CURSOR if here else ' '}", "accent"),
        (name.ljust(max(9, wide)), "title" if here else "text"),
        (format_ns(lane.step_ns if lane.step_ns == lane.step_ns else None).rjust(9), "strong"),
    ]
    if lane.own_ns == lane.own_ns:
        row.append((f"  own {format_ns(lane.own_ns):>8}", "dim"))
    words: Row = [(f"  {glyphs.FLAG} straggler: {lane.why}", "warn")] if lane.straggles else []
    room = width - row_width(row) - row_width(words) - 3
    if room >= 8:
        span = max(1, high - low)
        shares: list[float | None] = [min(1.0, max(0.0, (value - low) / span)) for value in lane.recent_ns]
        row.append(("  " + glyphs.sparkline(shares, min(room, 120)), "history"))
    return fit([*row, *words], width)


def time_row(at_ns: int, until_ns: int, fold: Fold, width: int) -> Row:
    """Return the run as a bar with the moment shown on it, and where steps were captured."""
    left, right = f" {clock(at_ns / 1e9)} ", f" {clock(until_ns / 1e9)} "
    cells = width - len(left) - len(right)
    if cells < 10 or until_ns <= 0:
        return [(left, "accent")]
    bar = [glyphs.RULE] * cells
    for capture in fold.captures.values():
        bar[min(cells - 1, max(0, int(capture.t_ns / until_ns * cells)))] = glyphs.CAPTURED
    cell = min(cells - 1, int(at_ns / until_ns * cells))
    before, after = "".join(bar[:cell]), "".join(bar[cell + 1 :])
    return [
        (left, "accent"),
        (before.replace(glyphs.RULE, glyphs.BAR), "accent"),
        (glyphs.OUTLIER, "accent"),
        (after, "rule"),
        (right, "dim"),
    ]


def step_row(
    steps: StepSeries, index: int, stats: StepStats, covered: bool, can_arm: bool, width: int
) -> Row:
    """Return what there is to say of the selected step, and what can be done about it."""
    number, dur_ns = int(steps.rows["n"][index]), int(steps.rows["dur_ns"][index])
    row: Row = [
        (f" {glyphs.OUTLIER} ", "accent"),
        (f"step {format_count(number)}  ", "strong"),
        (format_ns(dur_ns), "strong"),
    ]
    if stats.count and stats.median_ns > 0:
        row.append((f"  {dur_ns / stats.median_ns:.2f}× the median", "text"))
    if (part := _lost_in(steps, index, dur_ns, stats)) is not None:
        row.append((f", most of it in {part}", "text"))
    if covered:
        do = "enter opens it in the trace"
    elif can_arm:
        do = "t captures the next slow one"
    else:
        do = "not captured"
    return spread(row, [(f"{do} ", "key" if covered or can_arm else "dim")], width)


def _lost_in(steps: StepSeries, index: int, dur_ns: int, stats: StepStats) -> str | None:
    """Return the phase in which a slow step lost more than half of what it took too long, and how much."""
    lost_ns = dur_ns - stats.median_ns
    if not stats.count or lost_ns < 0.05 * stats.median_ns:
        return None
    here, usual = (
        steps.phase_means(slice(index, index + 1)),
        steps.phase_means(slice(max(0, index - 50), index)),
    )
    for name, value in here.items():
        if value - usual.get(name, 0.0) > 0.5 * lost_ns:
            return f"{sanitize(name)} (+{format_ns(value - usual.get(name, 0.0))})"
    return None


def alert_row(alerts: Sequence[Alert], width: int) -> Row:
    """Return the worst alert with its rule, and the number of others."""
    first = alerts[0]
    row: Row = [(f" {glyphs.FLAG} ", first.level), (sanitize(first.text), "text")]
    more: Row = [(f"  a: {len(alerts) - 1} more ", "key")] if len(alerts) > 1 else []
    rule: Row = [(f"  ({sanitize(first.rule)})", "dim")]
    room = width - row_width(more)
    return spread([*row, *rule] if row_width([*row, *rule]) + 2 <= room else fit(row, room - 2), more, width)


def overhead_row(rank: WriterState | None, fold: Fold, screen_share: float | None) -> Row:
    """Return what tuiprof itself costs: its hooks in the script, its recorder, this screen."""
    parts = []
    if rank is not None and rank.cost_per_step_ns is not None:
        share = f" {format_share(rank.cost_share)}" if rank.cost_share is not None else ""
        parts.append(f"probe {format_ns(rank.cost_per_step_ns)}/step{share}")
    if fold.recorder_share is not None and fold.now_ns >= _SETTLED_NS:
        parts.append(f"recorder {format_share(fold.recorder_share)}")
    if screen_share is not None:
        parts.append(f"screen {format_share(screen_share)}")
    return [(f"tuiprof costs: {glyphs.DOT.join(parts)} ", "dim")] if parts else []


def armed_row(armed: Sequence[TriggerRequest]) -> Row:
    """Return the triggers of automatic captures: ``armed: after steps > 35.0 ms · every 500 steps``."""
    parts = []
    for trigger in armed:
        if trigger.every is not None:
            parts.append(f"every {format_count(trigger.every)} steps")
        elif trigger.times is not None:
            parts.append(f"after steps > {trigger.times:g}× the median")
        else:
            parts.append(f"after steps > {format_ns(trigger.above_ns)}")
    return [(f"{glyphs.FLAG} armed: {glyphs.DOT.join(parts)}  ", "capture")] if parts else []


def alert_paragraphs(
    alerts: Sequence[Alert], labels: Labels, noted: Sequence[NoteLine]
) -> list[tuple[str, str]]:
    """Return what goes wrong by which rule, a person's notes, and what the run's own processes noted."""
    out: list[tuple[str, str]] = []
    for alert in alerts:
        out += [("", "text")] * bool(out)
        out += [(f"{glyphs.FLAG} {sanitize(alert.text)}", alert.level)]
        out += [(f"    rule of {alert.name}: {sanitize(alert.rule)}", "dim")]
    if not alerts:
        out += [("no alerts by these rules", "text"), ("", "text")]
        out += [(f"    {name}: {rule}", "dim") for name, rule in RULES.items()]
    if labels.tags:
        out += [("", "text"), ("tags  " + " ".join(f"#{sanitize(tag)}" for tag in labels.tags), "text")]
    if labels.notes:
        out += [("", "text"), ("your notes", "title")]
    for note in labels.notes:
        when = clock(note.t_ns / 1e9) if note.t_ns is not None else "the run"
        step = f", step {format_count(note.step)}" if note.step is not None else ""
        out.append((f"  {when}{step}  {sanitize(note.text)}", "text"))
    if noted:
        out += [("", "text"), ("noted by the run", "title")]
    for line in reversed(noted):
        role = "text" if line.level == "info" else line.level
        out.append((f"  {clock(line.t_ns / 1e9)}  {sanitize(line.writer)}: {sanitize(line.text)}", role))
    return out


# -- devices ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceView:
    """One device, with its last readings.

    Attributes:
        key: Its key in samples.
        kind: ``"host"``, ``"nvidia"``, …
        name: Product name; untrusted.
        memory_bytes: Total memory; None = unknown.
        details: What is fixed (``cores``, ``power_limit_w``, …).
        latest: The last figures.
        words: The last readings that are words (``throttle``).
        history: Past values of the figures that are drawn as history, oldest first.
        allocator: The framework's own view: allocated, reserved and peak bytes; None = not given.
        foreign: The run does not use it: others may.
    """

    key: str
    kind: str
    name: str
    memory_bytes: int | None = None
    details: Mapping[str, str | float | int] = field(default_factory=dict)
    latest: Mapping[str, float] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    history: Mapping[str, Sequence[float]] = field(default_factory=dict)
    allocator: tuple[int, int, int] | None = None
    foreign: bool = False

    @property
    def label(self) -> str:
        """The name of the block: ``GPU 0``, ``host``."""
        key = self.key.partition("@")[0]
        number = "".join(char for char in key if char.isdigit())
        word = {"nvidia": "GPU", "amd": "GPU", "neuron": "core", "tpu": "TPU"}.get(self.kind, "")
        return f"{word} {number}" if word else sanitize(key)

    def limit(self, key: str) -> float | None:
        """Return the value of a figure at which its bar is full."""
        if key == "mem_used_bytes":
            return self.memory_bytes
        if key == "power_w" and (limit := self.details.get("power_limit_w")):
            return float(limit)
        if key == "tree_cpu":
            return float(self.cores) if self.cores else None
        if key == "tree_rss_bytes":
            return self.memory_bytes
        return figure(key).full

    @property
    def cores(self) -> int:
        """Number of cores; 0 = unknown."""
        return int(self.details.get("cores", 0)) or sum(
            key.startswith("core") and key.endswith("_util") for key in self.latest
        )


def device_views(
    fold: Fold,
    devices: Sequence[DeviceMeta],
    rank: WriterState | None,
    others: Set[str] = frozenset(),
    *,
    over: bool = False,
) -> list[DeviceView]:
    """Return the run's accelerators, the host, and the accelerators of others (their keys are ``others``).

    Of a run of several hosts: those of the host of the rank that is shown.

    Of a run that is over the figures are those of its last steps: the last readings are of a machine without it.
    """
    until_ns = max((writer.last_step_ns for writer in fold.ranks), default=0) if over else 0
    known = {device.key: device for device in devices}
    on_host = "".join(rank.name.partition("@")[1:]) if rank is not None else ""
    here = (key for key in fold.devices if "".join(key.partition("@")[1:]) == on_host)
    keys = list(dict.fromkeys((*known, *here)))
    allocators = _allocators(devices, rank, others)
    views = []
    for key in keys:
        device, history = known.get(key), fold.devices.get(key)
        if history is None:
            continue
        kind = device.kind if device else key.partition("@")[0].rstrip("0123456789")
        memory = device.memory_bytes if device else None
        views.append(
            DeviceView(
                key=key,
                kind=kind,
                name=device.name if device else "",
                memory_bytes=memory or int(history.last.get("mem_total_bytes", 0)) or None,
                details=device.details if device else {},
                latest=_readings_at(history, until_ns) if until_ns > 0 else history.last,
                words=history.text,
                history=_histories(history, kind),
                allocator=allocators.get(key),
                foreign=key in others,
            )
        )
    # Accelerators first.
    return sorted(views, key=lambda view: (view.foreign, view.kind == "host"))


def _readings_at(history: DeviceHistory, at_ns: int) -> Mapping[str, float]:
    """Return the last value of each figure at a moment; the newest ones where none is kept from before it."""
    count = int(np.searchsorted(history.t_ns, at_ns, side="right"))
    found = dict(history.last)
    for name in found:
        values = history.figure(name)[:count]
        known = np.flatnonzero(~np.isnan(values))
        if len(known):
            found[name] = float(values[known[-1]])
    return found


def _histories(history: DeviceHistory, kind: str) -> dict[str, list[float]]:
    """Return the last readings of the figures that are drawn as history."""
    return {
        name: history.figure(name)[-_HISTORY:].tolist()
        for name in headline(kind, history.last)
        if name not in ("loaders", "loaders_idle", "errors")
    }


def _allocators(
    devices: Sequence[DeviceMeta], rank: WriterState | None, others: Set[str]
) -> dict[str, tuple[int, int, int]]:
    """Return the framework's own memory figures by device key: allocated, reserved and peak bytes.

    A process that does not say which device an index means is taken to count the run's devices as the
    monitor does, where that can be said: all are the run's, or one is.
    """
    own = [device for device in devices if device.kind != "host" and device.key not in others]
    countable = len(own) == 1 or not others
    found = {}
    for index, series in rank.memory.items() if rank is not None else ():
        if rank is not None and index in rank.uses:
            device = device_of(rank.uses[index], devices)
        else:
            device = own[index] if countable and 0 <= index < len(own) else None
        if device is not None and series.last is not None:
            found[device.key] = series.last.alloc, series.last.reserved, series.last.peak
    return found


def absent_word(backend: str) -> str:
    """Return what people call the hardware that a telemetry backend looks for."""
    words = {"nvidia": "NVIDIA GPU", "amd": "AMD GPU", "neuron": "Neuron", "tpu": "TPU"}
    return words.get(backend, sanitize(backend))


def device_notes(meta: SessionMeta, *, known: bool, over: bool) -> list[str]:
    """Return which hardware is missing, or why there is no reading yet."""
    if not known:
        return ["no readings" if over else "waiting for the first reading …"]
    if any(device.kind != "host" for device in meta.devices):
        missing = [absent_word(name) for name in meta.absent]
        return [f"not found: {', '.join(missing)}"] if missing else []
    names = ", ".join(absent_word(name) for name in meta.absent)
    return [f"no {names} found: tuiprof doctor"] if names else []
