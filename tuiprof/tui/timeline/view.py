"""Content of a timeline, without colours and widgets.

Lanes, the map and links are turned into characters with a :class:`Kind`; the readout describes a time, an event with
its links, or a range.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Final

import numpy as np
from rich.cells import cell_len

from tuiprof.model.intervals import Floats, Ints, Mask
from tuiprof.model.trace import CATEGORIES, Trace
from tuiprof.model.units import format_count, format_ns, format_share
from tuiprof.report.sanitize import clip, sanitize
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.timeline.lanes import Bars, Lane, Lanes, Lost, Samples, idle_gap
from tuiprof.tui.timeline.state import Link, TimelineState, Viewport
from tuiprof.tui.widgets.spans import fit_text

#: Minimum widths in cells: of an event to have a label, of a label that is cut, of a step to label its lost time.
_MIN_LABELLED, _MIN_CUT_LABEL, _MIN_COST_LABELLED = 3, 6, 12
#: Minimum shares of a column: of waits to be marked in the map, of lost time to be drawn.
_MIN_WAIT, _MIN_LOST = 0.05, 0.004
#: Characters of idle time, and the idle shares of a column from which the next one is used.
_SHADES, _IDLE_SHADES = " ·░▒▓", (0.02, 0.25, 0.6, 0.95)
_NOT_REPLAYED = "later steps are not simulated"


class Kind(IntEnum):
    """Content of a cell, which selects its style; characters differ too, so that no meaning depends on colour."""

    BLANK = 0
    KERNEL = 1
    COPY = 2
    FILL = 3
    COLLECTIVE = 4
    LAUNCH = 5
    SYNC = 6
    CALL = 7
    IDLE = 8
    RANGE_A = 9
    RANGE_B = 10
    RANGE_C = 11
    RANGE_D = 12
    RANGE_E = 13
    RANGE_F = 14
    STEP = 15
    COUNTER = 16
    LOST_BAD = 17
    LOST_WARN = 18
    NOTE = 19


_KIND_OF_CATEGORY = np.full(len(CATEGORIES), Kind.KERNEL, dtype=np.uint8)
for _category, _kind in (("memcpy", Kind.COPY), ("memset", Kind.FILL), ("collective", Kind.COLLECTIVE)):
    _KIND_OF_CATEGORY[CATEGORIES.index(_category)] = _kind
_FRAME = re.compile(r"[^()]+\(\d+\): ")
_SIGNS: Final = (
    ("L", Kind.LAUNCH, "launch"),
    ("S", Kind.SYNC, "host waits"),
    ("▇", Kind.KERNEL, "busy"),
)
_LETTERS: Final = (
    ("c", Kind.COPY, "copy"),
    ("f", Kind.FILL, "fill"),
    ("C", Kind.COLLECTIVE, "collective"),
)
_RANGES = (Kind.RANGE_A, Kind.RANGE_B, Kind.RANGE_C, Kind.RANGE_D, Kind.RANGE_E, Kind.RANGE_F)


@dataclass(slots=True)
class Cells:
    """The cells of one line."""

    chars: list[str]  # one character per column, each one cell wide
    kinds: np.ndarray[tuple[int], np.dtype[np.uint8]]  # a :class:`Kind` per column


def paint(trace: Trace, lane: Lane, edges: Ints, taken: Mask | None = None) -> Cells:
    """Draw a lane; labels are not written into columns that are ``taken``."""
    if lane.style == "idle":
        return _idle(trace, lane.bars, edges)
    if lane.lost is not None:
        return _lost(trace, lane.lost, edges)
    if lane.samples is not None:
        return _counter(lane.samples, edges)
    if lane.style == "calls":
        return _calls(trace, lane, edges)
    if lane.style == "device":
        return _device(trace, lane.bars, edges)
    return _ranges(trace, lane.bars, edges, taken)


def _ranges(trace: Trace, bars: Bars, edges: Ints, taken: Mask | None) -> Cells:
    """Draw named ranges: label and fill, in a colour chosen by the name."""
    picked, shares = bars.within(edges), bars.shares(edges)
    chars = np.where(picked < 0, " ", np.where(shares < 0.5, "░", "▒")).tolist()
    codes = trace.name_codes[bars.rows[np.maximum(picked, 0)]] if len(bars) else np.zeros_like(picked)
    kinds = np.where(picked < 0, Kind.BLANK, np.asarray(_RANGES)[codes % len(_RANGES)]).astype(np.uint8)
    _label_runs(trace, bars, picked if taken is None else np.where(taken, -1, picked), chars)
    return Cells(chars, kinds)


def _device(trace: Trace, bars: Bars, edges: Ints) -> Cells:
    """Draw the work of a stream: the height of a cell is the busy share of its column."""
    picked, shares = bars.within(edges), bars.shares(edges)
    # The least work is visible, and only full columns look full.
    height = np.where(picked >= 0, np.clip(np.floor(shares * 8.08), 1, 8), 0).astype(np.int64)
    chars = [glyphs.EIGHTHS_UP[level] for level in height.tolist()]
    if not len(bars):
        return Cells(chars, np.zeros(len(chars), dtype=np.uint8))
    kinds = _KIND_OF_CATEGORY[trace.category_codes[bars.rows[np.maximum(picked, 0)]]]
    kinds = np.where(picked < 0, np.uint8(Kind.BLANK), kinds).astype(np.uint8)
    for letter, kind, _ in _LETTERS:
        for column in np.flatnonzero(kinds == kind).tolist():
            chars[column] = letter
    _label_runs(trace, bars, picked, chars, shortest=6)
    return Cells(chars, kinds)


def _calls(trace: Trace, lane: Lane, edges: Ints) -> Cells:
    """Draw calls of the device API: S for host waits, L for launches, a dot for others."""
    picked = lane.bars.within(edges)
    chars = np.where(picked >= 0, "·", " ").tolist()
    kinds = np.where(picked >= 0, Kind.CALL, Kind.BLANK).astype(np.uint8)
    for marked, kind, letter in ((lane.launches, Kind.LAUNCH, "L"), (lane.syncs, Kind.SYNC, "S")):
        if marked is None or not len(marked):
            continue
        found = marked.within(edges)
        for column in np.flatnonzero(found >= 0).tolist():
            chars[column] = letter
        kinds[found >= 0] = kind
        _label_runs(trace, marked, found, chars, shortest=8, lead=f"{letter} ")
    return Cells(chars, kinds)


def _idle(trace: Trace, bars: Bars, edges: Ints) -> Cells:
    """Draw the idle share of each column, over all streams of a device."""
    shade = np.digitize(_idle_shares(trace, bars, edges), _IDLE_SHADES)
    chars = [_SHADES[level] for level in shade.tolist()]
    return Cells(chars, np.where(shade > 0, Kind.IDLE, Kind.BLANK).astype(np.uint8))


def _idle_shares(trace: Trace, bars: Bars, edges: Ints) -> Floats:
    low, high = trace.span
    inside = (edges[1:] > low) & (edges[:-1] < high)
    return np.where(inside, 1 - bars.shares(edges), 0.0)


def _lost(trace: Trace, lost: Lost, edges: Ints) -> Cells:
    """Draw the time that a finding costs: a cell's height is the lost share of its column; steps show their sum."""
    columns = len(edges) - 1
    if isinstance(lost.losses, str):
        text = fit_text(f"unknown: {sanitize(lost.losses)}", columns)
        return Cells(list(text), np.full(columns, Kind.NOTE, dtype=np.uint8))
    ns = np.diff(lost.up_to(edges))
    share = ns / np.maximum(np.diff(edges), 1)
    level = np.where(share > _MIN_LOST, np.clip(np.ceil(share * 8), 1, 8), 0).astype(np.int64)
    chars = [glyphs.EIGHTHS_UP[height] for height in level.tolist()]
    kinds = np.where(level > 0, Kind.LOST_BAD if lost.bad else Kind.LOST_WARN, Kind.BLANK).astype(np.uint8)
    for start, end, cost_ns in _cost_of_steps(trace, lost, edges):
        label = f" {format_ns(cost_ns)} "
        column = _blank(level[start:end], len(label)) if cost_ns >= 1 else None
        if column is not None:
            chars[start + column : start + column + len(label)] = label
            kinds[start + column : start + column + len(label)] = Kind.NOTE
    # Only the first steps of a long trace are simulated: blank cells after them do not mean that no time is lost.
    later = trace.steps.ends > lost.losses.high
    start = int(np.searchsorted(edges, lost.losses.high)) + 1
    if later.any() and start + len(_NOT_REPLAYED) <= columns and not level[start:].any():
        chars[start : start + len(_NOT_REPLAYED)] = _NOT_REPLAYED
        kinds[start : start + len(_NOT_REPLAYED)] = Kind.NOTE
    return Cells(chars, kinds)


def _cost_of_steps(trace: Trace, lost: Lost, edges: Ints) -> list[tuple[int, int, float]]:
    """Return first column, end column and lost ns of each step that is completely visible."""
    steps = trace.steps
    first, last = np.searchsorted(edges, steps.starts), np.searchsorted(edges, steps.ends)
    whole = (steps.starts >= edges[0]) & (steps.ends <= edges[-1]) & (last - first >= _MIN_COST_LABELLED)
    return [
        (
            int(first[i]),
            min(int(last[i]), len(edges) - 1),
            lost.between(int(steps.starts[i]), int(steps.ends[i])),
        )
        for i in np.flatnonzero(whole)[: len(edges)].tolist()
    ]


def _blank(level: Ints, cells: int) -> int | None:
    """Return the position to center text in the longest run of blank cells; None = it fits in none."""
    found, start = None, 0
    for index, height in enumerate([*level.tolist(), 1]):
        if height:
            if index - start >= cells and (found is None or index - start > found[1]):
                found = start, index - start
            start = index + 1
    return None if found is None else found[0] + (found[1] - cells) // 2


def _counter(samples: Samples, edges: Ints) -> Cells:
    """Draw a counter: the height of a cell is the column's maximum relative to the peak."""
    values = samples.highest(edges)
    level = np.ceil(np.clip(values / (samples.peak or 1.0), 0.0, 1.0) * 8).astype(np.int64)
    return Cells(
        [glyphs.EIGHTHS_UP[height] for height in level.tolist()],
        np.where(level > 0, Kind.COUNTER, Kind.BLANK).astype(np.uint8),
    )


def _label_runs(
    trace: Trace,
    bars: Bars,
    picked: Ints,
    chars: list[str],
    shortest: int = _MIN_LABELLED,
    lead: str = "",
) -> None:
    """Write the names of events into their columns, if there is room."""
    cuts = np.flatnonzero(np.diff(picked)) + 1
    starts = np.concatenate(([0], cuts)).tolist()
    ends = np.concatenate((cuts, [len(picked)])).tolist()
    for start, end in zip(starts, ends, strict=True):
        index = int(picked[start])
        room = end - start - 1  # one cell separates adjacent events
        if index < 0 or room < shortest - 1:
            continue
        label = lead + short_name(trace.name(int(bars.rows[index])))
        if room < min(len(label), _MIN_CUT_LABEL):
            continue
        label = label if len(label) <= room else label[: room - 1] + "…"
        chars[start : start + len(label)] = label
        if len(label) < room:
            chars[start + len(label)] = " "


def legend(
    lanes: list[Lane], drawn: Collection[int], *, simulated: Sequence[str], nested: bool, has_nested: bool
) -> list[tuple[str, Kind, str]]:
    """Return symbol, style and meaning of each entry of the legend, for visible lanes and drawn cells.

    ``simulated`` says what the lanes of a simulated step without and with a fix show; empty = it is the capture.
    """
    styles = {lane.style for lane in lanes}
    found: list[tuple[str, Kind, str]] = []
    if simulated:
        signs = ("now", "fix", "p")
        found += [
            (sign, Kind.STEP, text)
            for sign, text in zip(signs, (*simulated, "back to the capture"), strict=True)
        ]
    found += [sign for sign in _SIGNS if sign[1] in drawn]
    for lane in lanes:
        if lane.lost is not None and not isinstance(lane.lost.losses, str):
            found.append(("▇", Kind.LOST_BAD if lane.lost.bad else Kind.LOST_WARN, "lost to this finding"))
    if "idle" in styles:
        found.append(("░▓", Kind.IDLE, "idle"))
    if has_nested:
        found.append(("d", Kind.STEP, "closes operators, Python" if nested else "operators, Python"))
    return [*found, *(sign for sign in _LETTERS if sign[1] in drawn)]


def overview(lanes: Lanes, whole: Viewport) -> Cells:
    """Draw a whole trace in one line: ``S`` where host waits outweigh idle time, else shades for idle time."""
    edges, columns = whole.edges, whole.columns
    shares = [_idle_shares(lanes.trace, lane.bars, edges) for lane in lanes.lanes if lane.style == "idle"]
    idle = np.mean(shares, axis=0) if shares else np.zeros(columns)
    waits = lanes.syncs.shares(edges) if len(lanes.syncs) else np.zeros(columns)
    waiting = (waits >= _MIN_WAIT) & (waits > idle)
    shade = np.digitize(idle, _IDLE_SHADES)
    chars = ["S" if wait else _SHADES[level] for wait, level in zip(waiting, shade, strict=True)]
    kinds = np.where(waiting, Kind.SYNC, np.where(shade > 0, Kind.IDLE, Kind.BLANK))
    return Cells(chars, kinds.astype(np.uint8))


def link_cells(
    source: tuple[int, int], target: tuple[int, int], columns: int
) -> dict[tuple[int, int], tuple[str, bool]]:
    """Draw the link from a call to its work; by (line, column): a character, and whether it may cover other content."""
    (y1, x1), (y2, x2) = source, target
    down = 1 if y2 > y1 else -1
    cells: dict[tuple[int, int], tuple[str, bool]] = {}
    for y in range(y1 + down, y2, down):
        cells[y, x1] = ("│", True)
    if x1 != x2:
        on = 1 if x2 > x1 else -1
        for x in range(max(min(x1, x2), -1) + 1, min(max(x1, x2), columns)):
            cells[y2, x] = ("─", False)
        corner = {(1, 1): "╰", (1, -1): "╯", (-1, 1): "╭", (-1, -1): "╮"}[down, on]
        cells[y2, x1] = (corner, True)
        head = min(max(x2 - on, 0), columns - 1)
        if head != x1:
            cells[y2, head] = ("▸" if on > 0 else "◂", True)
    return {cell: sign for cell, sign in cells.items() if 0 <= cell[1] < columns}


@lru_cache(maxsize=4096)
def short_name(name: str) -> str:
    """Return the distinctive part of an untrusted name, one cell per character.

    Kernel names lose return type, namespaces, template arguments and parameters; Python frames lose their file.
    """
    _, frame, function = name.partition("): ")
    if frame and _FRAME.match(name):
        name = function
    text = name.removeprefix("void ").replace("(anonymous namespace)::", "").strip()
    if "::" in text or "<" in text:
        head = text.partition("<")[0].partition("(")[0]
        text = head.split("::")[-1] or head or text
    safe = sanitize(text)
    return "".join(c if cell_len(c) == 1 else "·" for c in safe)


def offset_text(offset_ns: int, precision_ns: int) -> str:
    """Return a time since the start of the trace, with enough digits for a precision of one column."""
    scale, unit = next(
        ((s, u) for s, u in ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs")) if abs(offset_ns) >= s),
        (1, "ns"),
    )
    digits = max(0, min(9, len(str(scale // max(precision_ns, 1))) - 1)) if scale > precision_ns else 0
    return f"{offset_ns / scale:.{digits}f} {unit}"


def readout(state: TimelineState, lanes: Lanes) -> str:
    """Return the line below the axis: about the range, else the selected event, else the cursor's position."""
    if lanes.stride > 1:
        return (
            f" preview from 1 in {format_count(lanes.stride)} events, while all of them are being processed"
        )
    trace, found = lanes.trace, ""
    if state.search is not None:
        position = state.search.position(state.event)
        of = f"{position + 1} of " if position is not None else ""
        found = f" /{sanitize(state.search.needle)} {of}{format_count(len(state.search.hits))} ·"
    if (chosen := state.chosen_range) is not None:
        return found + range_words(lanes, *chosen)
    if state.event is not None and trace.starts[state.event] <= state.cursor <= trace.ends[state.event]:
        return found + event_words(trace, state.event, state.links)
    return found + instant_words(lanes, state.visible_lanes, state.cursor)


def instant_words(lanes: Lanes, visible: list[Lane], instant: int) -> str:
    """Return the step and the events at an instant, as one sanitized line."""
    trace = lanes.trace
    parts = []
    steps = lanes.steps
    if len(steps):
        index = int(np.searchsorted(steps.starts, instant, side="right")) - 1
        inside = index >= 0 and instant < steps.ends[index]
        parts.append(f"step {steps.numbers[index]}" if inside else "outside of steps")
    at = np.array([instant], dtype=np.int64)
    for lane in visible:
        if lane.samples is not None:
            value = lane.samples.at_instant(instant)
            if value is not None:
                parts.append(f"{sanitize(lane.label.strip())} {lane.samples.format(value)}")
            continue
        if lane.style == "idle":
            gap = idle_gap(lane.bars, instant, *trace.span)
            if gap:
                parts.append(f"{lane.label.strip()} {format_ns(gap[1] - gap[0])}")
            continue
        if lane.lost is not None:
            continue
        index = int(lane.bars.at(at)[0])
        if index >= 0:
            row = int(lane.bars.rows[index])
            parts.append(
                f"{_short(trace, row)} {format_ns(int(lane.bars.ends[index] - lane.bars.starts[index]))}"
            )
    return " " + " · ".join(parts) if parts else " nothing recorded here"


def event_words(trace: Trace, row: int, links: Sequence[Link]) -> str:
    """Return name, duration and links of an event, as one sanitized line."""
    parts = [f" {_short(trace, row)} {format_ns(trace.length(row))}"]
    for position, link in enumerate(links):
        key = "f: " if not position else "F: " if link is links[-1] else ""
        parts.append(key + link_words(trace, row, link))
    return " · ".join(parts)


def link_words(trace: Trace, row: int, link: Link) -> str:
    """Return a link and the time between both events as sanitized text."""
    call, work = link.call_and_work(row)
    other = _short(trace, link.row, 24)
    if link.relation in ("launches", "launched by"):
        several = ""
        if link.relation == "launches":
            count = trace.links.count_of(row)
            several = f" and {format_count(count - 1)} more" if count > 1 else ""
        latency = format_ns(int(trace.starts[work] - trace.ends[call]))
        return f"{link.relation} {other}{several}, {latency} between"
    if link.relation in ("waited for", "waited for by"):
        early = format_ns(int(trace.ends[call] - trace.ends[work]))
        return f"{link.relation} {other}, done {early} before its end"
    return f"{link.relation} {other}, {format_ns(int(trace.starts[work] - trace.ends[call]))} after it"


def range_words(lanes: Lanes, low: int, high: int) -> str:
    """Return length and content of a range, as one sanitized line."""
    length = high - low
    parts = [f" Δ {format_ns(length)}"]
    for lane in lanes.lanes:
        if lane.lost is not None and (lost := lane.lost.between(low, high)):
            parts.append(f"lost {format_ns(lost)}")
        if lane.style == "idle":
            busy = int(lane.bars.covered.between(low, high))
            device = lane.label.removesuffix("idle")
            share = format_share(busy / length) if length else "–"
            parts.append(f"{device}busy {format_ns(busy)} ({share}), idle {format_ns(length - busy)}")
            parts.append(f"{_count(lane.bars.starts, low, high)} works")
    waits = lanes.syncs
    if len(waits):
        waited = format_ns(int(waits.covered.between(low, high)))
        parts.append(f"waits {_count(waits.starts, low, high)}, {waited}")
    launches = [lane.launches for lane in lanes.lanes if lane.launches is not None]
    parts.extend(f"launches {_count(bars.starts, low, high)}" for bars in launches)
    steps = lanes.steps
    if len(steps):
        parts.append(f"steps {_count(steps.starts, low, high)}")
    return " · ".join(parts)


def _count(starts: Ints, low: int, high: int) -> str:
    first, last = np.searchsorted(starts, [low, high])
    return format_count(int(last - first))


def _short(trace: Trace, row: int, max_cells: int = 40) -> str:
    return clip(short_name(trace.name(row)), max_cells, "end")
