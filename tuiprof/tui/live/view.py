"""Content of the live screen, computed from the fold: figures, rows of styled text, sentences. Without Textual."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from tuiprof.model.units import format_count, format_ns, format_share, format_speed, format_value, plural
from tuiprof.probe.slowdown import Slowdown
from tuiprof.report.sanitize import sanitize
from tuiprof.session.live.alerts import RULES, Alert
from tuiprof.session.live.fold import CaptureState, Fold, NoteLine, WriterState
from tuiprof.session.live.hosts import HostState, RankTimes
from tuiprof.session.live.listing import Summary
from tuiprof.session.live.replay import Replay
from tuiprof.session.live.series import StepStats
from tuiprof.session.live.step_series import StepSeries
from tuiprof.session.live.summary import ranges
from tuiprof.session.store.folders import Session
from tuiprof.session.store.meta import DeviceMeta, Labels, TriggerRequest
from tuiprof.session.store.status import Status
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.widgets.spans import Row, Span, change_span, fit, join, row_width, spread, wrap_row

if TYPE_CHECKING:
    from tuiprof.comparison.headline import Headline
    from tuiprof.model.report import Report

#: Widths of the time axis, seconds; None = the whole run.
WINDOWS_S: tuple[float | None, ...] = (15.0, 60.0, 300.0, 1800.0, None)
PHASES_TITLE = "where a step goes"
#: With more phases than this, the last ones are added up as "… more".
_MAX_PHASES = 7
#: Ranks beyond this many are summarized in one line.
MAX_LANES = 8
#: Maximum width of a host's name.
_HOST_WIDTH = 16
#: If no step is in view, the figures are those of this many steps before.
_FALLBACK = 50
#: Before this time in a run, the recorder's cost is mostly that of its start.
_SETTLED_NS = 10_000_000_000
_SEPARATOR: Span = (glyphs.DOT, "rule")


@dataclass(frozen=True, slots=True)
class View:
    """The part of a run that is in view."""

    now_ns: int  # session time at the right edge
    window_s: float | None  # width of the axis; None = from the beginning
    live: bool  # the right edge is the present
    begin_ns: int = 0  # session time at which the first step began

    @property
    def age_s(self) -> float:
        """Time since the first step began."""
        return max((self.now_ns - self.begin_ns) / 1e9, 1.0)

    @property
    def span_s(self) -> float:
        """Width of the axis in seconds; while the steps do not fill the window, a little more than they need."""
        if self.window_s is None and not self.live:
            return self.age_s
        # Leave some room, so that the axis stays fixed for a while.
        parts = 8 if self.window_s is None else 4
        part_s = 2.0 ** math.floor(math.log2(self.age_s)) / parts
        span_s = math.ceil(self.age_s / part_s) * part_s
        return span_s if self.window_s is None else min(self.window_s, span_s)

    @property
    def young(self) -> bool:
        """Whether the steps do not fill the window yet."""
        return self.window_s is not None and self.age_s < self.window_s

    @property
    def label(self) -> str:
        """The window in words: ``last 15 s``."""
        if self.window_s is None:
            return "whole run"
        return f"last {self.window_s:g} s" if self.window_s < 100 else f"last {self.window_s / 60:g} min"

    def rows(self, steps: StepSeries) -> slice:
        found = steps.since(None if self.window_s is None else int(self.window_s * 1e9), self.now_ns)
        if self.live:
            return found
        last = int(np.searchsorted(steps.rows["t_ns"], self.now_ns, side="right"))
        return slice(min(found.start, last), last)

    def holds(self, steps: StepSeries) -> bool:
        """Whether a step ended in view."""
        rows = self.rows(steps)
        return bool(rows.start < rows.stop)


def first_step_ns(rank: WriterState | None) -> int:
    """Return the session time at which the first step of a rank began; 0 = no step yet."""
    if rank is None or not len(rank.steps):
        return 0
    kept = rank.steps.rows
    first_ns = int(kept["t_ns"][0] - kept["dur_ns"][0])
    known = rank.steps.overview.t_start_ns
    return max(0, min(first_ns, int(known[0])) if len(known) else first_ns)


def clock(seconds: float) -> str:
    """Format a duration as ``00:01:12``."""
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours:02d}:{minute:02d}:{second:02d}"


# -- step times ------------------------------------------------------------------------------------------


def stats_in_view(steps: StepSeries, view: View) -> StepStats:
    """Return the statistics of the steps in view; if there are none, of the last 50 steps."""
    if view.window_s is None:
        return steps.whole_run()
    stats = steps.stats(view.rows(steps))
    return stats if stats.count else steps.stats(slice(max(0, len(steps.rows) - _FALLBACK), None))


def stats_label(steps: StepSeries, view: View) -> str:
    """Return which steps :func:`stats_in_view` is about: ``last 60 s``, or ``last 50 steps`` if there are none then."""
    if view.window_s is None or view.holds(steps):
        return view.label
    return f"last {plural(min(len(steps.rows), _FALLBACK), 'step')}"


def slowdown_in_view(steps: StepSeries, view: View) -> Slowdown | None:
    """Return the capture after which the steps in view are slower; None = no such capture."""
    numbers = steps.rows["n"][view.rows(steps)]
    slowdown = steps.slowdown
    return slowdown if slowdown is not None and len(numbers) and numbers[-1] > slowdown.last else None


def batch_size(steps: StepSeries) -> float | None:
    """Return the recent median of samples per step; None = the script does not log them as a metric."""
    for name in ("samples", "batch_size", "batch"):
        if name in steps.metrics and len(values := steps.metric(name)[-20:]):
            return None if np.isnan(values).all() else float(np.nanmedian(values))
    return None


def phases(steps: StepSeries, view: View, row: int | None = None) -> dict[str, float]:
    """Return the mean host time of each phase of the steps in view, ns; ``other`` is time outside all phases.

    Captured steps are left out. With ``row``, return the phases of that step alone.
    """
    if row is not None:
        return steps.phase_means(slice(row, row + 1))
    rows = view.rows(steps)
    if rows.start >= rows.stop:
        rows = slice(max(0, len(steps.rows) - _FALLBACK), len(steps.rows))
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
    label: str = "",
) -> list[Row]:
    """Return the line above the chart, as two lines if it is narrow.

    ``batch`` is the number of samples per step; ``baseline`` the name and median step time in ns of the variant to
    compare with; ``read`` the share of the logs read so far (below 1, the figures cover only their end);
    ``steps_are`` what counts as a step; ``label`` which steps they are (default: those in view).
    """
    if not stats.count:
        return [[(" step time  ", "dim"), (glyphs.NONE, "dim")]]
    median: Row = [(format_ns(stats.median_ns), "strong"), (" median", "dim")]
    if stats.on_device:
        median.append((" on the device", "dim"))
    parts: list[Row] = [
        median,
        *([[("mean ", "dim"), (format_ns(stats.mean_ns), "text")]] if stats.uneven else []),
        [("p95 ", "dim"), (format_ns(stats.p95_ns), "text")],
        *([] if stats.uneven else [[("jitter ", "dim"), (format_share(stats.jitter), "text")]]),
        [(format_value(stats.rate_hz, "number"), "text"), (" steps/s", "dim")],
    ]
    if batch:
        parts.append([(format_count(round(stats.rate_hz * batch)), "text"), (" samples/s", "dim")])
    right: Row = [(f"{label or view.label} ", "dim")]
    if slowdown is not None:
        right = [(f"{format_speed(1 + slowdown.share)} since a capture", "warn"), ("   ", "text"), *right]
    # Steps slowed by the profiler cannot be compared with another run; figures of the whole run exclude them.
    if baseline is not None and (slowdown is None or view.window_s is None):
        name, median_ns = baseline
        right = [
            (f"vs {name}: ", "dim"),
            change_span(stats.median_ns / median_ns - 1),
            ("   ", "text"),
            *right,
        ]
    if read < 1:
        right = [(f"end of the run; {100 * read:.0f} % read", "warn"), ("   ", "text"), *right]
    described: list[Row] = [*parts, [("steps: ", "dim"), (steps_are, "text")]]
    title: Span = (" step time ", "dim")
    for whole in (
        [title, *join(described, _SEPARATOR)] if steps_are else [],
        [title, *join(parts, _SEPARATOR)],
        [(" step ", "dim"), *join(parts, _SEPARATOR)],
    ):
        if whole and row_width(whole) + row_width(right) + 2 <= width:
            return [spread(whole, right, width)]
    if width < 60:
        return [fit([title, *join(parts, _SEPARATOR)], width)]
    first: Row = [title, *join(parts[:3], _SEPARATOR)]
    second: Row = [(" " * 11, "text"), *join(parts[3:], _SEPARATOR)]
    if row_width(first) + row_width(right) + 2 <= width:
        return [spread(first, right, width), fit(second, width)]
    return [fit(first, width), spread(second, right, width)]


# -- the phases of a step -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a step."""

    name: str  # as the script or the probe calls it; untrusted
    dur_ns: float  # mean host time per step; means, because they add up
    role: str  # colour role


def phases_of(means: dict[str, float]) -> list[Phase]:
    """Return the phases to show; beyond :data:`_MAX_PHASES` the last ones are added up."""
    named = [(name, dur) for name, dur in means.items() if name != "other"]
    shown = named if len(named) <= _MAX_PHASES else named[: _MAX_PHASES - 1]
    found = [Phase(sanitize(name), dur, f"phase{1 + index % 6}") for index, (name, dur) in enumerate(shown)]
    if len(shown) < len(named):
        rest = sum(dur for _, dur in named[len(shown) :])
        found.append(Phase(f"{len(named) - len(shown)} more", rest, "dim"))
    if means.get("other", 0.0) > 0.005 * sum(means.values()):
        found.append(Phase("rest of the step", means["other"], "dim"))
    return found


def phase_line(phases: list[Phase], width: int) -> Row:
    """Return all phases in one line; bars fill the free width, and if there is none the smallest phases are dropped."""
    separator = (f" {glyphs.AXIS} ", "rule")
    title: Row = [(f" {PHASES_TITLE}  ", "dim")]
    parts: list[Row] = [[(f"{phase.name} ", "dim"), (format_ns(phase.dur_ns), "strong")] for phase in phases]
    room = width - row_width(title) - row_width(join(parts, separator)) - 1
    if room < 0:
        # Too narrow: name the unit once for all.
        largest = max(phase.dur_ns for phase in phases)
        unit_ns, unit = next(
            ((ns, unit) for ns, unit in ((1e9, "s"), (1e6, "ms")) if largest >= ns), (1e3, "µs")
        )
        title = [(f" {unit} a step  ", "dim")]
        parts = [[(f"{phase.name} ", "dim"), (f"{phase.dur_ns / unit_ns:.1f}", "strong")] for phase in phases]
        order = sorted(range(len(parts)), key=lambda index: -phases[index].dur_ns)
        while len(order) > 1 and row_width(title) + row_width(join(parts, separator)) > width:
            parts[order.pop()] = []
        return fit([*title, *join(parts, separator)], width)
    if room >= len(parts) * 2:
        total = sum(phase.dur_ns for phase in phases) or 1
        for part, phase in zip(parts, phases, strict=True):
            if size := int((room - len(parts)) * phase.dur_ns / total):
                part.append((" " + glyphs.BAR * size, phase.role))
    return [*title, *join(parts, separator)]


# -- name and state of the run, captures, end of the run -------------------------------------------------


def capture_words(capture: CaptureState) -> str:
    """Describe a capture: its time, steps and cause."""
    firsts = [record.first for record in capture.by_writer.values() if record.first is not None]
    lasts = [record.last for record in capture.by_writer.values() if record.last is not None]
    steps = f"steps {format_count(min(firsts))} to {format_count(max(lasts))}" if firsts and lasts else ""
    return glyphs.DOT.join(part for part in (clock(capture.t_ns / 1e9), steps, capture.cause) if part)


def name_row(session: Session) -> Row:
    """Return the name of the run: ``metrics ▸ naive · paper``, or the script."""
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
    glyph, role = glyphs.STATES[status.state]
    row: Row = [(f"{glyph} ", role), (f"{status} ", role), (clock(now_ns / 1e9), "text")]
    if frozen:
        row.append((f"{glyphs.DOT}{glyphs.PAUSED} view paused", "accent"))
    return [*row, *_step_and_rank(rank, ranks)]


def replay_row(replay: Replay, rank: WriterState | None, ranks: int, *, back: bool = False) -> Row:
    """Return the position of a replay: ``▶ replay 4× 00:00:17 of 00:00:40 · step 214``."""
    glyph = glyphs.PAUSED if replay.paused else glyphs.PLAYING
    where = f"{clock(replay.position_ns / 1e9)} of {clock(replay.duration_ns / 1e9)}"
    mode = "paused" if back and replay.paused else f"replay {replay.speed:g}×"
    row: Row = [(f"{glyph} ", "accent"), (f"{mode} ", "accent"), (where, "text")]
    return [*row, *_step_and_rank(rank, ranks)]


def _step_and_rank(rank: WriterState | None, ranks: int) -> Row:
    """Return the newest step and, if there are several ranks, the rank."""
    row: Row = []
    if rank is not None and rank.steps.last_n is not None:
        row.append((f"{glyphs.DOT}step {format_count(rank.steps.last_n)}", "text"))
    if rank is not None and rank.rank is not None and ranks > 1:
        world = rank.head.world if rank.head and rank.head.world else ranks
        where = f" {rank.host}" if rank.host else ""
        row.append((f"{glyphs.DOT}rank {rank.rank}/{world}{where}", "text"))
    return row


def machine_row(session: Session, rank: WriterState | None, others: Set[str]) -> Row:
    """Return the rank's devices, versions and overhead: ``H200, 1 of 4 · torch 2.11 · overhead 0.1 %``."""
    devices = [device for device in devices_of(session, rank) if device.kind != "host"]
    total = Counter(device.name.removeprefix("NVIDIA ") for device in devices)
    own = Counter(device.name.removeprefix("NVIDIA ") for device in devices if device.key not in others)
    words = []
    for name, count in own.items():
        suffix = f", {count} of {total[name]}" if count < total[name] else f" ×{count}" if count > 1 else ""
        words.append(f"{sanitize(name)}{suffix}")
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
    """Return the devices of a rank's host, with their keys in the run (``gpu0@host``)."""
    for host in session.others:
        if rank is not None and rank.host == host.name:
            return [replace(it, key=f"{it.key}@{host.name}") for it in host.session.meta.devices]
    return session.meta.devices


def hosts_row(hosts: Sequence[HostState], width: int) -> Row:
    """Return the hosts of a run in one line, those with a problem first."""
    ordered = sorted(hosts, key=lambda host: not (host.lost or host.status.state == "failed"))
    row: Row = [(" hosts ", "dim")]
    for number, host in enumerate(ordered):
        glyph, role = glyphs.STATES["interrupted" if host.lost else host.status.state]
        ranks = ranges([rank.rank for rank in host.ranks if rank.rank is not None]) or host.waits
        part: Row = [(f" {glyph} ", role), (host.name[:_HOST_WIDTH], "text"), (f" {ranks} ", "dim")]
        if host.lost:
            part.append((f"{'' if host.left else 'lost: '}{sanitize(host.lost)} ", "warn"))
        elif host.clock is not None and host.clock.is_significant:
            part.append((f"clock {host.clock} ", "warn"))
        elif (
            host.lead is not None
            and host.clock is not None
            and host.clock.spread_ns is None
            and not host.clock.same
        ):
            part.append(("clock not compared ", "dim"))
        left = len(ordered) - number
        more = f" and {left} more"
        if row_width(row) + row_width(part) + (len(more) if left > 1 else 0) > width and number:
            return [*row, (more, "dim")]
        row.extend(part)
    return fit(row, width)


def head_row(brand: str, parts: tuple[Row, Row, Row], width: int) -> Row:
    """Return the first line of the screen from name, state and machine; if it is too wide, the machine is dropped."""
    name, state, machine = parts
    left: Row = [(f" {brand}  ", "accent"), *name]
    if row_width(left) + row_width(state) + 3 > width:
        left = [(" ", "text"), *name]
    while row_width(left) + row_width(state) + 3 > width and len(state) > 3:
        # Drop the words after the clock first, then the word that repeats the glyph.
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
    status: Status,
    *,
    replayed: bool = False,
    waiting: str = "",
    likely: str = "",
    again: str = "",
    can_ask: bool = False,
) -> list[str]:
    """Return the reason why there is no step time to draw, and a remedy.

    ``waiting`` is the script's present activity, ``likely`` the line that probably ends a step, ``again`` the command
    that runs the script with it, ``can_ask`` whether the script can be asked to count steps.
    """
    now = "S, " if can_ask else ""
    how = [
        "steps are detected in PyTorch, torch_xla, Keras and, with Python 3.12 or newer, in any loop; "
        f"otherwise say what ends one: {now}tuiprof run --step-at FILE:LINE, or tuiprof.step() in the script"
    ]
    if likely:
        how = [
            f"the script runs the loop at {sanitize(likely)}; to count its iterations:",
            f"{now}{sanitize(again)}",
        ]
    if replayed:
        return ["no step yet at this point of the run: → skips ahead, > plays faster"]
    if status.over:
        # If it failed, its error is below, in its output and in the line that says how it ended.
        return [f"{status}, and no step was detected", *(how if status.state != "failed" else [])]
    if status.detail == "starting":
        return ["starting …"]
    return [f"no step yet{f': {sanitize(waiting)}' if waiting else ''}", *how]


def none_in_view_lines(steps: StepSeries, view: View, *, running: bool) -> list[str]:
    """Return why the chart is empty although there are steps: none ended in view."""
    ends = steps.rows["t_ns"]
    before = int(np.searchsorted(ends, view.now_ns, side="right"))
    if not before:
        return ["no step yet at this point of the run"]
    number, ago = int(steps.rows["n"][before - 1]), format_ns(view.now_ns - int(ends[before - 1]))
    last = f"step {format_count(number)} ended {ago} {'ago' if view.live and running else 'before'}"
    return [
        f"no step in the {view.label}: {last}",
        "z shows a longer time" + ("; s shows where each thread is" if running else ""),
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
    return [
        (f" {glyphs.FLAG} ", "capture"),
        ("a capture is planned" if first is None else f"to be captured: {steps}", "text"),
    ]


def headline_row(headline: Headline) -> Row:
    """Return the main finding of the newest trace."""
    role = headline.level if headline.level in ("good", "warn", "bad") else "info"
    return [(f" {glyphs.FLAG} ", role), (sanitize(headline.line), "text")]


def over_row(status: Status, error: str, now_ns: int, missing: Sequence[str]) -> Row:
    """Return how the run ended, what is missing and, if it failed, the last line of standard error."""
    glyph, role = glyphs.STATES[status.state]
    text = {
        "finished": f"finished after {format_ns(now_ns)}",
        "failed": f"{status} after {format_ns(now_ns)}",
        "stopped": f"stopped after {format_ns(now_ns)}",
        "interrupted": f"{status}: everything recorded until then was kept",
    }.get(status.state, str(status))
    row: Row = [(f" {glyph} ", role), (text, "text")]
    row.extend((f"{glyphs.DOT}{sanitize(what)}", "warn") for what in missing)
    if status.state == "failed" and error:
        row.extend([(" — ", "dim"), (error.strip(), "bad")])
    return row


# -- other runs, ranks, past moments, the selected step, alerts -------------------------------------------


def runs_row(runs: Sequence[Summary], shown: str, width: int) -> Row:
    """Return the active runs in one line, with the shown run marked."""
    parts: list[Row] = []
    for number, run in enumerate(runs, 1):
        here = run.id == shown
        glyph, role = glyphs.STATES[run.state]
        median = f" {format_ns(run.median_ns)}" if run.median_ns is not None else ""
        parts.append(
            [
                (f"{glyphs.CURSOR if here else ' '}{number} ", "accent" if here else "dim"),
                (f"{glyph} ", role),
                (sanitize(run.title), "strong" if here else "text"),
                (f"{median}  ", "dim"),
            ]
        )
    title: Row = [(" runs  ", "dim")]
    if row_width(title) + sum(map(row_width, parts)) <= width:
        return [*title, *(span for part in parts for span in part)]
    at = next((index for index, run in enumerate(runs) if run.id == shown), 0)
    room = width - row_width(title) - row_width(parts[at]) - len(f" {len(runs)} more")
    kept = {at}
    for index in sorted(range(len(runs)), key=lambda index: (abs(index - at), index)):
        if index != at and row_width(parts[index]) <= room:
            room -= row_width(parts[index])
            kept.add(index)
    row = [*title, *(span for index in sorted(kept) for span in parts[index])]
    return fit([*row, (f" {len(runs) - len(kept)} more", "dim")], width)


def rank_rows(ranks: Sequence[RankTimes], shown: str, width: int, max_rows: int) -> list[Row]:
    """Return one line per rank: step time, recent step times, and whether it is a straggler.

    Of more than ``max_rows``, the stragglers, the shown rank and the slowest of the others are listed.
    """
    kept = list(ranks)
    if len(kept) > max_rows:
        first = [rank for rank in kept if rank.straggles or rank.name == shown]
        rest = [rank for rank in kept if rank not in first]
        rest.sort(key=lambda rank: rank.step_ns if rank.step_ns == rank.step_ns else 0.0, reverse=True)
        kept = sorted((first + rest)[: max(1, max_rows - 1)], key=ranks.index)
    ordered = sorted(value for rank in ranks for value in rank.recent_ns)
    low, high = (ordered[len(ordered) // 50], ordered[-1 - len(ordered) // 50]) if ordered else (0, 1)
    wide = max((len(_rank_name(rank)) for rank in kept), default=0)
    rows = [_rank_row(rank, rank.name == shown, low, high, width, wide) for rank in kept]
    if len(kept) < len(ranks) and max_rows > 1:
        hidden = [rank for rank in ranks if rank not in kept]
        steps = [rank.step_ns for rank in hidden if rank.step_ns == rank.step_ns]
        span = f": {format_ns(min(steps))} to {format_ns(max(steps))}" if steps else ""
        rows.append([(f"  and {len(hidden)} more ranks{span}", "dim")])
    return rows


def _rank_name(rank: RankTimes) -> str:
    name = f"rank {rank.rank}" if rank.rank is not None else sanitize(rank.name)
    return f"{name} {rank.host[:_HOST_WIDTH]}" if rank.host else name


def _rank_row(rank: RankTimes, is_shown: bool, low: int, high: int, width: int, wide: int) -> Row:
    row: Row = [
        (f"{glyphs.CURSOR if is_shown else ' '}", "accent"),
        (_rank_name(rank).ljust(max(9, wide)), "title" if is_shown else "text"),
        (format_ns(rank.step_ns if rank.step_ns == rank.step_ns else None).rjust(9), "strong"),
    ]
    if rank.own_ns == rank.own_ns:
        row.append((f"  own {format_ns(rank.own_ns):>8}", "dim"))
    straggler: Row = [(f"  {glyphs.FLAG} straggler: {rank.why}", "warn")] if rank.straggles else []
    room = width - row_width(row) - row_width(straggler) - 3
    if room >= 8:
        span = max(1, high - low)
        shares: list[float | None] = [min(1.0, max(0.0, (value - low) / span)) for value in rank.recent_ns]
        row.append(("  " + glyphs.sparkline(shares, min(room, 120)), "history"))
    return fit([*row, *straggler], width)


def time_row(at_ns: int, until_ns: int, fold: Fold, width: int) -> Row:
    """Return the run as a bar, with marks at the shown moment and at the captures."""
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
    """Return time and main phase of the selected step, and the key that opens or captures it."""
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
        hint = "enter opens it in the trace"
    elif can_arm:
        hint = "t captures after slow steps"
    else:
        hint = "not captured"
    return spread(row, [(f"{hint} ", "key" if covered or can_arm else "dim")], width)


def _lost_in(steps: StepSeries, index: int, dur_ns: int, stats: StepStats) -> str | None:
    """Return the phase that explains more than half of a step's excess over the median, and how much; else None."""
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


def alert_rows(alerts: Sequence[Alert], width: int, most: int) -> list[Row]:
    """Return the worst alert in as few rows as hold its text, at most ``most``; the other alerts are counted."""
    more: Row = [(f"  a: {len(alerts) - 1} more ", "key")] if len(alerts) > 1 else []
    text: Row = [(f" {glyphs.FLAG} ", alerts[0].level), (sanitize(alerts[0].text), "text")]
    if most == 1 or row_width(text) + row_width(more) + 2 <= width:
        return [alert_row(alerts, width)]
    return wrap_row([*text, *more], width, most, indent=3)


def overhead_row(rank: WriterState | None, fold: Fold, screen_share: float | None) -> Row:
    """Return the overhead of tuiprof: probe, recorder and this screen."""
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
    """Return the triggers of automatic captures: ``captures: after steps > 35.0 ms · every 500 steps``."""
    parts = []
    for trigger in armed:
        if trigger.every is not None:
            parts.append(f"every {format_count(trigger.every)} steps")
        elif trigger.times is not None:
            parts.append(f"after steps > {trigger.times:g}× the median")
        else:
            parts.append(f"after steps > {format_ns(trigger.above_ns)}")
    return [(f"{glyphs.FLAG} captures: {glyphs.DOT.join(parts)}  ", "capture")] if parts else []


def alert_paragraphs(
    alerts: Sequence[Alert], labels: Labels, noted: Sequence[NoteLine], *, past: bool
) -> list[tuple[str, str]]:
    """Return the alerts with their rules, the user's tags and notes, and the notes of the run's processes.

    ``past``: the run is over and not replayed, so that there are no alerts.
    """
    out: list[tuple[str, str]] = []
    for alert in alerts:
        out += [("", "text")] * bool(out)
        out += [(f"{glyphs.FLAG} {sanitize(alert.text)}", alert.level)]
        rule = f"rule of {alert.name}: " if alert.name in RULES else ""
        out += [(f"    {rule}{sanitize(alert.rule)}", "dim")]
    if past:
        out.append(("The run is over: tuiprof replay shows the alerts it had.", "dim"))
    elif not alerts:
        out.append(("no alerts", "text"))
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
    if not alerts and not past:
        out += [("", "text"), ("what raises an alert", "title")]
        out += [(f"  {name}: {rule}", "dim") for name, rule in RULES.items()]
    return out


def stack_paragraphs(report: Report) -> list[tuple[str, str]]:
    """Return a report of stacks as paragraphs: an overview, then each stack."""
    level = report.verdict.level
    out: list[tuple[str, str]] = [
        (f"{glyphs.FLAG} {sanitize(report.verdict.sentence)}", "text" if level == "info" else level)
    ]
    out += [(f"  {sanitize(note)}", "text") for note in report.notes]
    for table in report.tables:
        if not table.key.startswith("stack_"):
            continue
        out += [("", "text"), (sanitize(table.title), "title")]
        lines = table.rows.select("line", "function").iter_rows()
        out += [(f"    {sanitize(line)}  {sanitize(function)}", "text") for line, function in lines]
        if table.note:
            out.append((f"    {sanitize(table.note)}", "dim"))
    return out
