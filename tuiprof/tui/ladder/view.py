"""Content of the ladder screen: progress of the measurement, table of rungs, details of one rung."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tuiprof.ladder.plan import left_s, pending, schedule
from tuiprof.ladder.report import activity, between, kernel_words, range_words, time_left
from tuiprof.ladder.statistics import judge
from tuiprof.model.report import Level
from tuiprof.model.units import format_count, format_ns, format_ns_range, format_speed, plural
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.widgets.spans import (
    Choice,
    Row,
    fit,
    fit_text,
    labelled,
    merge,
    row_width,
    spread,
    verdict_rows,
    when,
    wrap,
)

if TYPE_CHECKING:
    from tuiprof.ladder.state import LadderMeta, Trial
    from tuiprof.ladder.statistics import Judged
    from tuiprof.model import Report

#: The scale extends at least from 1/1.02 to 1.02, so that ratios close to 1 do not look far from it.
_MIN_RATIO: Final = 1.02
#: Share of the scale left blank at both ends.
_MARGIN: Final = 0.03

#: A ratio of step times, and the low and high end of its interval.
Ratio = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Scale:
    """A logarithmic scale of ratios."""

    low: float
    high: float

    def column(self, ratio: float, width: int) -> int:
        low, high = math.log(self.low), math.log(self.high)
        share = (math.log(max(ratio, 1e-12)) - low) / (high - low)
        share = _MARGIN + share * (1 - 2 * _MARGIN)
        return max(0, min(width - 1, round(share * (width - 1))))


def scale_of(ratios: Iterable[Ratio]) -> Scale | None:
    """Return a scale that covers 1 and all intervals; None = there are no intervals."""
    ends = [end for _, low, high in ratios for end in (low, high) if end > 0]
    if not ends:
        return None
    return Scale(min(*ends, 1 / _MIN_RATIO), max(*ends, _MIN_RATIO))


def axis_row(scale: Scale, low: str, one: str, high: str, width: int) -> Row:
    """Return the labels of ratio 1 and of both ends; those that do not fit are left out."""
    chars = [" "] * width
    at = min(max(scale.column(1.0, width) - len(one) // 2, 0), max(width - len(one), 0))
    for text, start in ((one, at), (low, 0), (high, width - len(high))):
        around = chars[max(start - 1, 0) : start + len(text) + 1]
        if start >= 0 and not "".join(around).strip():
            chars[start : start + len(text)] = text
    return [("".join(chars), "dim")]


def forest_row(scale: Scale, ratio: Ratio | None, role: str, width: int) -> Row:
    """Draw a ratio and its interval; without a ratio only the line at 1."""
    one = scale.column(1.0, width)
    cells = [(" ", "text")] * width
    cells[one] = (glyphs.AXIS, "rule")
    if ratio is not None:
        value, low, high = (scale.column(end, width) for end in ratio)
        for column in range(low, high + 1):
            cells[column] = (glyphs.RULE, role)
        cells[value] = (glyphs.OUTLIER, role)
    return merge(cells)


_ROLES = {
    "faster": ("good", glyphs.DONE),
    "slower": ("warn", "!"),
    "no difference": ("text", "="),
    "baseline": ("dim", glyphs.NONE),
    "undecided": ("warn", "?"),
    "wrong": ("bad", glyphs.FAILED),
    "failed": ("bad", glyphs.FAILED),
    "unavailable": ("dim", glyphs.NONE),
}
#: Key, heading and width of the columns; where there is no room, later ones are dropped first.
_COLUMNS = (
    ("step", "here", 10),
    ("change", "ratio", 16),
    ("interval", "95 % interval", 19),
    ("published", "published", 22),
    ("syncs", "syncs/step", 12),
    ("spread", "here, 95 %", 21),
    ("launches", "launches/step", 15),
)
_VERDICT_WIDTH = 15
#: Verdicts whose variants show no step time.
_OUT = ("wrong", "failed", "unavailable")
#: Minimum and maximum width of the drawn intervals, and the gap before them.
_MIN_FOREST, _MAX_FOREST, _GAP = 24, 72, 2
#: Cells kept for the reason why a variant cannot run; the column ``published`` grows only beyond that.
_REASON_WIDTH = 40


@dataclass(frozen=True, slots=True)
class RungRow:
    """One rung: a variant and its results."""

    name: str
    against: str  # the variant it builds on, else its baseline; empty = this is the first
    verdict: str  # ``faster``, ``wrong``, …; empty = not timed yet
    published: str = ""  # the publication's results, as text
    step_ns: float | None = None  # median step time; None = not measured
    step_interval: str = ""  # 95 % interval of the step time, as text
    change: str = ""  # step time relative to the baseline's, as text
    change_interval: str = ""  # 95 % interval of the change, as text
    ratio: Ratio | None = None  # step time over the baseline's; None = not measured
    syncs: float | None = None  # per step; None = unknown
    launches: float | None = None  # per step; None = unknown
    note: str = ""  # what the variant changes
    why: str = ""  # why it is wrong, failed, unavailable or undecided
    remedy: str = ""
    changes: str = ""  # differences of its captured steps to those of ``against``; empty = unknown, or none
    kernel: str = ""  # speed of a single kernel relative to the chip's limits, as text; empty = not a kernel
    parts: str = ""  # times of named parts of the step, as text; empty = the script marks none
    trace: Path | None = None


@dataclass(frozen=True, slots=True)
class LadderView:
    """A measurement of a ladder."""

    meta: LadderMeta  # its stored state, or the plan
    folder: Path | None  # None = only planned
    rows: tuple[RungRow, ...]
    verdict: str = ""  # one sentence
    level: Level = "info"
    done: int = 0  # finished trials
    total: int = 0  # trials in all
    left_s: float | None = None  # estimated time left; None = unknown
    running: bool = False  # whether a process is measuring
    problem: str = ""  # last output of the process that measured; empty = none
    report: Report | None = None  # None = the traces are not read yet

    @property
    def trial(self) -> Trial | None:
        """The running trial; None = none is running."""
        trials = self.meta.trials
        return trials[-1] if self.running and trials and trials[-1].state == "running" else None

    def row(self, name: str) -> RungRow | None:
        """Return the row of a variant; None = there is no such variant."""
        return next((row for row in self.rows if row.name == name), None)


def view_of(
    meta: LadderMeta, folder: Path | None = None, *, running: bool = False, problem: str = ""
) -> LadderView:
    """Return a measurement or a plan, without results from traces; see :class:`LadderView` for the arguments."""
    waiting, total = len(pending(meta)), len(schedule(meta))
    return LadderView(
        meta,
        folder,
        tuple(_row(meta, judged) for judged in judge(meta)),
        done=total - waiting,
        total=total,
        left_s=left_s(meta) if waiting else 0.0,
        running=running,
        problem=problem,
    )


def _row(meta: LadderMeta, judged: Judged) -> RungRow:
    rung, step, ratio = meta.rung(judged.name), judged.step_ns, judged.ratio
    return RungRow(
        judged.name,
        rung.builds_on or (rung.baseline if rung.baseline != judged.name else ""),
        "" if judged.word == "undecided" and step is None else judged.word,
        rung.published_beside(meta.sizes(judged.trials.values())),
        step.value if step is not None else None,
        format_ns_range(step.low, step.high) if step is not None and step.low != step.high else "",
        format_speed(ratio.value) if ratio is not None else "",
        between(ratio),
        (ratio.value, ratio.low, ratio.high) if ratio is not None else None,
        note=rung.note,
        why=judged.why,
        remedy=judged.remedy,
    )


def with_report(view: LadderView, report: Report) -> LadderView:
    """Return the view with the results of :func:`tuiprof.ladder.report.report`, which reads the traces."""
    tables = {table.key: table.rows.to_dicts() for table in report.tables}
    measured: Mapping[str, dict[str, Any]] = {row["variant"]: row for row in tables.get("rungs", ())}
    changes = {row["variant"]: row["changes"] for row in tables.get("why", ())}
    kernels = {row["variant"]: kernel_words(row) for row in tables.get("kernels", ())}
    parts = {row["variant"]: range_words(row) for row in tables.get("ranges", ())}
    rows = []
    for row in view.rows:
        found = measured.get(row.name, {})
        trace = found.get("trace")
        rows.append(
            replace(
                row,
                syncs=found.get("syncs_per_step"),
                launches=found.get("launches_per_step"),
                changes=changes.get(row.name, ""),
                kernel=kernels.get(row.name, ""),
                parts=parts.get(row.name, ""),
                trace=Path(trace) if trace else None,
            )
        )
    return replace(
        view, rows=tuple(rows), verdict=report.verdict.sentence, level=report.verdict.level, report=report
    )


def head_row(view: LadderView | None, name: str, position: str, width: int) -> Row:
    """Return the first line: name, time of measurement, and position among the measurements (``2 of 3``)."""
    left: Row = [(" tuiprof  ", "accent"), ("ladder ", "dim"), (sanitize(name), "title")]
    if view is None:
        return left
    meta = view.meta
    how = f"{plural(meta.rounds, 'round')} · {sanitize(meta.preset)}"
    measured = when(meta.unix_ns) if view.folder is not None else "not measured yet"
    right: Row = [(f"{measured} · {how} ", "text"), (f" {position} " if position else "", "dim")]
    title: Row = [(f" — {sanitize(meta.title)}", "dim")]
    if row_width(left) + row_width(title) + row_width(right) + 2 <= width:
        left = [*left, *title]
    return spread(left, right, width)


def state_rows(view: LadderView, width: int) -> list[Row]:
    """Return the progress of a running measurement, why there are no results, or the verdict."""
    if view.running:
        return [_progress(view, width)]
    if view.folder is None:
        return [[(" not measured on this machine yet: ", "text"), ("r ", "key"), ("measures it", "dim")]]
    if view.done < view.total:
        text = f"stopped with {view.total - view.done} of {view.total} trials left: "
        rows: list[Row] = [
            [(f" {glyphs.STOPPED} ", "warn"), (text, "text"), ("r ", "key"), ("resumes", "dim")]
        ]
        if view.problem:
            rows.append([("   last output: ", "dim"), (sanitize(view.problem), "warn")])
        return [fit(row, width) for row in rows]
    if not view.verdict:
        return [[(f" {glyphs.ELLIPSIS} ", "dim"), ("reading the traces …", "dim")]]
    return verdict_rows(wrap(sanitize(view.verdict), max(20, width - 4), 2), view.level)


def _progress(view: LadderView, width: int) -> Row:
    trial = view.trial
    text = sanitize(activity(trial, view.meta.rounds)) if trial is not None else "between two trials"
    left = f" · {time_left(view.left_s)}" if view.left_s is not None else ""
    row: Row = [(f" {glyphs.RUNNING} ", "good"), (f"{text} ", "strong")]
    tail: Row = [(f" {view.done}/{view.total} trials{left} ", "dim")]
    room = width - row_width(row) - row_width(tail)
    if room >= 10 and view.total:
        filled = glyphs.bar(view.done / view.total, min(room, 60))
        row.append((filled.rstrip(), "line"))
        row.append((glyphs.RULE * (len(filled) - len(filled.rstrip())), "rule"))
    return [*row, *tail]


def rung_choices(view: LadderView) -> list[Choice]:
    """Return the table of rungs, its heading first."""
    rows = [Choice("", partial(_head, view))]
    rows.extend(Choice(row.name, partial(_line, view, row)) for row in view.rows)
    return rows


def _columns(view: LadderView, width: int) -> tuple[int, list[tuple[str, str, int]], int]:
    """Return the width of the name, the columns that have content and fit, and the width of the drawn intervals."""
    name = min(max(len("variant"), *(len(sanitize(row.name)) for row in view.rows), 0), 30)
    room = width - name - _VERDICT_WIDTH
    drawn = _MIN_FOREST + _GAP if scale_of(_ratios(view)) is not None else 0
    kept: list[tuple[str, str, int]] = []
    for key, title, cells in _COLUMNS:
        texts = [_cell(row, key) for row in view.rows]
        if key not in ("step", "change") and all(text == glyphs.NONE for text in texts):
            continue
        if key == "interval":
            cells = 2 + max(len(title), *map(len, texts))
        # Drawn intervals take precedence over these two columns.
        if room >= cells + (drawn if key in ("spread", "launches") else 0):
            kept.append((key, title, cells))
            room -= cells
    drawn = drawn if room >= drawn else 0
    keep = max(drawn, _REASON_WIDTH) if any(row.verdict == "unavailable" for row in view.rows) else drawn
    longest = 2 + max((len(_cell(row, "published")) for row in view.rows), default=0)
    wider = [
        (key, title, max(cells, min(longest, cells + room - keep)) if key == "published" else cells)
        for key, title, cells in kept
    ]
    room -= sum(cells for _, _, cells in wider) - sum(cells for _, _, cells in kept)
    order = ["published", "step", "spread", "change", "interval", "syncs", "launches"]
    forest = min(room - _GAP, _MAX_FOREST) if drawn and room >= drawn else 0
    return name, sorted(wider, key=lambda column: order.index(column[0])), forest


def _ratios(view: LadderView) -> list[Ratio]:
    return [row.ratio for row in view.rows if row.ratio is not None and row.verdict not in _OUT]


def _head(view: LadderView, width: int) -> Row:
    name, columns, forest = _columns(view, width)
    row: Row = [("variant".ljust(name), "dim")]
    for key, title, cells in columns:
        row.append((f"  {title:<{cells - 2}}" if key == "published" else title.rjust(cells), "dim"))
    row.append(("  verdict", "dim"))
    scale = scale_of(_ratios(view))
    if not forest or scale is None:
        return row
    gap = " " * (width - forest - row_width(row))
    return [
        *row,
        (gap, "text"),
        *axis_row(scale, format_speed(scale.low), "baseline", format_speed(scale.high), forest),
    ]


def _line(view: LadderView, rung: RungRow, width: int) -> Row:
    name, columns, forest = _columns(view, width)
    out = rung.verdict in _OUT
    row: Row = [(fit_text(sanitize(rung.name), name), "dim" if rung.verdict == "unavailable" else "text")]
    for key, _title, cells in columns:
        text = _cell(rung, key)
        if key == "published":
            row.append(("  " + fit_text(text, cells - 2), "dim"))
        else:
            strong = key == "step" and rung.step_ns is not None and not out
            row.append((text.rjust(cells), "strong" if strong else "dim" if text == glyphs.NONE else "text"))
    role, sign = _ROLES.get(rung.verdict, ("dim", glyphs.NONE))
    trial = view.trial
    if trial is not None and trial.variant == rung.name:
        row.append((f"  {glyphs.RUNNING} {trial.kind}", "good"))
    elif rung.verdict:
        row.append((f"  {sign} {rung.verdict}", role))
    else:
        row.append(("  not timed yet", "dim"))
    room = width - row_width(row)
    scale = scale_of(_ratios(view))
    if rung.verdict == "unavailable" and room >= 16:
        row.append((f"  {sanitize(rung.why)}", "dim"))
    elif forest and scale is not None and room >= forest:
        ratio = None if out else (1.0, 1.0, 1.0) if rung.verdict == "baseline" else rung.ratio
        row.append((" " * (room - forest), "text"))
        row += forest_row(scale, ratio, "text" if rung.verdict == "baseline" else role, forest)
    return fit(row, width)


def _cell(rung: RungRow, key: str) -> str:
    """Return the text of one cell of the table; a dash if there is no value."""
    if rung.verdict in _OUT and key != "published":
        return glyphs.NONE
    text = {
        "step": format_ns(rung.step_ns) if rung.step_ns is not None else "",
        "change": rung.change,
        "interval": rung.change_interval,
        "spread": rung.step_interval,
        "published": sanitize(rung.published.partition("; ")[0].partition(" (")[0].partition(", ")[0]),
        "syncs": format_count(round(rung.syncs, 2)) if rung.syncs is not None else "",
        "launches": format_count(round(rung.launches, 1)) if rung.launches is not None else "",
    }[key]
    return text or glyphs.NONE


def about_rung(view: LadderView, rung: RungRow | None, width: int) -> list[Row]:
    """Return details of a rung: what it changes, its results, why they differ, what is missing."""
    if rung is None:
        return []
    rows: list[Row] = []

    def say(label: str, text: str, role: str = "text") -> None:
        lines = textwrap.wrap(sanitize(text), max(20, width - 12), break_on_hyphens=False)
        rows.extend(labelled(f"{label:<11} ", lines, role))

    if rung.note:
        say("changes", rung.note)
    if rung.published:
        say("published", f"{rung.published}{f', on {view.meta.source}' if view.meta.source else ''}", "dim")
    if rung.step_ns is not None:
        here = format_ns(rung.step_ns) + (f" ({rung.step_interval})" if rung.step_interval else "")
        ratio = f", {rung.change} against {view.meta.rung(rung.name).baseline}" if rung.change else ""
        say("here", f"{here}{ratio}{f' ({rung.change_interval})' if rung.change_interval else ''}")
    if rung.kernel:
        say("kernel", rung.kernel)
    if rung.parts:
        say("parts", rung.parts)
    if rung.changes:
        say("why", f"against {rung.against}: {rung.changes}")
    if rung.why and (rung.step_ns is not None or rung.verdict in ("wrong", "failed", "unavailable")):
        say(rung.verdict if rung.verdict in ("wrong", "failed", "unavailable") else "note", rung.why, "warn")
    if rung.remedy:
        say("remedy", rung.remedy, "dim")
    return rows
