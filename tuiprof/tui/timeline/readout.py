"""Status line of a timeline: the instant under the cursor, an event and its links, a range."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tuiprof.model.intervals import Ints
from tuiprof.model.trace import Trace
from tuiprof.model.units import format_count, format_ns, format_share
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.timeline.lane_cells import short_name
from tuiprof.tui.timeline.lanes import Lane, Lanes, idle_gap
from tuiprof.tui.timeline.links import Link
from tuiprof.tui.timeline.state import TimelineState


def offset_text(offset_ns: int, precision_ns: int) -> str:
    """Return an instant counted from the begin of the trace, as precise as a column.

    Args:
        offset_ns: ns since the begin.
        precision_ns: Duration of one column, ns.
    """
    scale, unit = next(
        ((s, u) for s, u in ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs")) if abs(offset_ns) >= s),
        (1, "ns"),
    )
    digits = max(0, min(9, len(str(scale // max(precision_ns, 1))) - 1)) if scale > precision_ns else 0
    return f"{offset_ns / scale:.{digits}f} {unit}"


def readout(state: TimelineState, lanes: Lanes) -> str:
    """Return the line below the axis: the measurement, else the selected event, else the item under the cursor."""
    if lanes.stride > 1:
        every = format_count(lanes.stride)
        return f" a sketch from one of {every} events: the exact picture is being worked out"
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
    """Say which step and which events are at an instant.

    Returns:
        One line, safe for a terminal.
    """
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
    """Say what an event is, and what it is linked with.

    Returns:
        One line, safe for a terminal.
    """
    said = f" {_short(trace, row)} {format_ns(int(trace.ends[row] - trace.starts[row]))}"
    parts = [said]
    for position, link in enumerate(links):
        key = "f: " if not position else "F: " if link is links[-1] else ""
        parts.append(key + link_words(trace, row, link))
    return " · ".join(parts)


def link_words(trace: Trace, row: int, link: Link) -> str:
    """Say what an event is linked with, and how much time is between.

    Returns:
        Some words, safe for a terminal.
    """
    call, work = link.call_and_work(row)
    other = _short(trace, link.row, 24)
    if link.way in ("launches", "launched by"):
        several = ""
        if link.way == "launches":
            count = int(trace.links.work_count[np.searchsorted(trace.links.launches, row)])
            several = f" and {format_count(count - 1)} more" if count > 1 else ""
        latency = format_ns(int(trace.starts[work] - trace.ends[call]))
        return f"{link.way} {other}{several}, {latency} between"
    if link.way in ("waited for", "waited for by"):
        return (
            f"{link.way} {other}, done {format_ns(int(trace.ends[call] - trace.ends[work]))} before its end"
        )
    return f"{link.way} {other}, {format_ns(int(trace.starts[work] - trace.ends[call]))} after it"


def range_words(lanes: Lanes, low: int, high: int) -> str:
    """Say how long a range is and what lies in it.

    Returns:
        One line, safe for a terminal.
    """
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


def _short(trace: Trace, row: int, most: int = 40) -> str:
    name = short_name(trace.name(row))
    return name if len(name) <= most else name[: most - 1] + "…"
