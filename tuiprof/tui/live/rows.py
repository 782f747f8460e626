"""The lines of the live screen that are there only at times: other runs, ranks, a moment gone by, a selected step."""

from __future__ import annotations

from collections.abc import Sequence

from tuiprof.model.units import format_count, format_ns, format_share
from tuiprof.report.sanitize import sanitize
from tuiprof.session.live.alerts import RULES, Alert
from tuiprof.session.live.fold import Fold, NoteLine
from tuiprof.session.live.stats import StepStats
from tuiprof.session.live.straggler import Lane
from tuiprof.session.live.writer_state import StepSeries, WriterState
from tuiprof.session.store.glance import Summary
from tuiprof.session.store.labels import Labels
from tuiprof.session.store.meta import TriggerRequest
from tuiprof.tui.live.words import clock
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.widgets.lines import Row, fit, row_width, spread

#: Before this moment of a run most of what its recorder took is its start, which says nothing of the run.
_SETTLED_NS = 10_000_000_000
#: More ranks than this are told in a sentence.
MOST_LANES = 8


def runs_row(runs: Sequence[Summary], shown: str, width: int) -> Row:
    """Return the runs that go on in one line, the one shown marked.

    Args:
        runs: They, the oldest first.
        shown: Id of the one shown.
        width: Cells.
    """
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
    """Return one line a rank: step time, recent step times, and which one holds up the others.

    Args:
        lanes: The ranks.
        shown: Writer whose steps the chart shows.
        width: Cells.
        most: So many lines; beyond, the straggler and the one shown stay.
    """
    kept = list(lanes)
    if len(kept) > most:
        first = [lane for lane in kept if lane.straggles or lane.name == shown]
        rest = [lane for lane in kept if lane not in first]
        kept = sorted((first + rest)[: max(1, most - 1)], key=lanes.index)
    times = [value for lane in lanes for value in lane.recent_ns]
    ordered = sorted(times)
    low, high = (ordered[len(ordered) // 50], ordered[-1 - len(ordered) // 50]) if ordered else (0, 1)
    rows = [_lane(lane, lane.name == shown, low, high, width) for lane in kept]
    if len(kept) < len(lanes) and most > 1:
        hidden = [lane for lane in lanes if lane not in kept]
        steps = [lane.step_ns for lane in hidden if lane.step_ns == lane.step_ns]
        said = f": {format_ns(min(steps))} to {format_ns(max(steps))}" if steps else ""
        rows.append([(f"  and {len(hidden)} more ranks{said}", "dim")])
    return rows


def _lane(lane: Lane, here: bool, low: int, high: int, width: int) -> Row:
    name = f"rank {lane.rank}" if lane.rank is not None else sanitize(lane.name)
    row: Row = [
        (f"{glyphs.CURSOR if here else ' '}", "accent"),
        (f"{name:<9}", "title" if here else "text"),
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
    """Return the run as a bar with the moment shown on it, and where steps were captured.

    Args:
        at_ns: The moment, session time.
        until_ns: End of the bar, session time.
        fold: What tells of captures.
        width: Cells.
    """
    left, right = f" {clock(at_ns / 1e9)} ", f" {clock(until_ns / 1e9)} "
    cells = width - len(left) - len(right)
    if cells < 10 or until_ns <= 0:
        return [(left, "accent")]
    bar = [glyphs.RULE] * cells
    for capture in fold.captures.values():
        bar[min(cells - 1, max(0, int(capture.t_ns / until_ns * cells)))] = glyphs.CAPTURED
    place = min(cells - 1, int(at_ns / until_ns * cells))
    before, after = "".join(bar[:place]), "".join(bar[place + 1 :])
    return [
        (left, "accent"),
        (before.replace(glyphs.RULE, glyphs.BAR), "accent"),
        (glyphs.OUTLIER, "accent"),
        (after, "rule"),
        (right, "dim"),
    ]


def step_row(
    steps: StepSeries, place: int, stats: StepStats, covered: bool, can_arm: bool, width: int
) -> Row:
    """Return what there is to say of the selected step, and what can be done about it.

    Args:
        steps: Steps of its rank.
        place: Its place among the kept ones.
        stats: Statistics of the steps in view.
        covered: A captured trace holds it.
        can_arm: A capture of the next slow step can be asked for.
        width: Cells.
    """
    number, dur_ns = int(steps.rows["n"][place]), int(steps.rows["dur_ns"][place])
    row: Row = [
        (f" {glyphs.OUTLIER} ", "accent"),
        (f"step {format_count(number)}  ", "strong"),
        (format_ns(dur_ns), "strong"),
    ]
    if stats.count and stats.median_ns > 0:
        row.append((f"  {dur_ns / stats.median_ns:.2f}× the median", "text"))
    if (part := _lost_in(steps, place, dur_ns, stats)) is not None:
        row.append((f", most of it in {part}", "text"))
    if covered:
        do = "enter opens it in its trace"
    elif can_arm:
        do = "t captures the next one as slow"
    else:
        do = "no capture covers it"
    return spread(row, [(f"{do} ", "key" if covered or can_arm else "dim")], width)


def _lost_in(steps: StepSeries, place: int, dur_ns: int, stats: StepStats) -> str | None:
    """Return the phase in which a slow step lost more than half of what it took too long, and how much."""
    lost_ns = dur_ns - stats.median_ns
    if not stats.count or lost_ns < 0.05 * stats.median_ns:
        return None
    here, usual = (
        steps.phase_means(slice(place, place + 1)),
        steps.phase_means(slice(max(0, place - 50), place)),
    )
    for name, value in here.items():
        if value - usual.get(name, 0.0) > 0.5 * lost_ns:
            return f"{sanitize(name)} (+{format_ns(value - usual.get(name, 0.0))})"
    return None


def alert_row(alerts: Sequence[Alert], width: int) -> Row:
    """Return the worst alert with its rule, and how many more there are.

    Args:
        alerts: They, the worst first.
        width: Cells.
    """
    first = alerts[0]
    row: Row = [(f" {glyphs.FLAG} ", first.level), (sanitize(first.text), "text")]
    more: Row = [(f"  a: {len(alerts) - 1} more ", "key")] if len(alerts) > 1 else []
    rule: Row = [(f"  ({sanitize(first.rule)})", "dim")]
    room = width - row_width(more)
    return spread([*row, *rule] if row_width([*row, *rule]) + 2 <= room else fit(row, room - 2), more, width)


def overhead_row(rank: WriterState | None, fold: Fold, screen_share: float | None) -> Row:
    """Return what tuiprof itself costs: its hooks in the script, its recorder, this screen.

    Args:
        rank: The rank shown.
        fold: The state.
        screen_share: CPU share of this process (1 = one core); None = not measured yet.
    """
    parts = []
    if rank is not None and rank.cost_per_step_ns is not None:
        share = f" {format_share(rank.cost_share)}" if rank.cost_share is not None else ""
        parts.append(f"probe {format_ns(rank.cost_per_step_ns)}/step{share}")
    if fold.recorder_share is not None and fold.now_ns >= _SETTLED_NS:
        parts.append(f"recorder {format_share(fold.recorder_share)}")
    if screen_share is not None:
        parts.append(f"screen {format_share(screen_share)}")
    return [(f"costs: {glyphs.DOT.join(parts)} ", "dim")] if parts else []


def armed_row(armed: Sequence[TriggerRequest]) -> Row:
    """Return what makes captures by itself: ``armed: after steps > 35.0 ms · every 500 steps``.

    Args:
        armed: It.
    """
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
    """Return what goes wrong by which rule, a person's notes, and what the run's own processes noted.

    Args:
        alerts: What goes wrong, the worst first.
        labels: Tags and notes of the session.
        noted: What the probe and the recorder noted, in order.
    """
    out: list[tuple[str, str]] = []
    for alert in alerts:
        out += [("", "text")] * bool(out)
        out += [(f"{glyphs.FLAG} {sanitize(alert.text)}", alert.level)]
        out += [(f"    rule of {alert.name}: {sanitize(alert.rule)}", "dim")]
    if not alerts:
        out += [("nothing goes wrong by these rules", "text"), ("", "text")]
        out += [(f"    {name}: {rule}", "dim") for name, rule in RULES]
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
