"""The sentences of a comparison: which two, and how one event changed."""

from __future__ import annotations

from tuiprof.model.trace import Trace
from tuiprof.model.units import format_ns, format_speed
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.timeline.lane_cells import short_name
from tuiprof.tui.widgets.lines import Row, fit


def head_row(before: str, after: str, width: int) -> Row:
    """Say which two are compared; of a long name the end is kept.

    Args:
        before: The baseline; untrusted.
        after: What is judged; untrusted.
        width: Cells.
    """
    room = max((width - 22) // 2, 8)
    names = [sanitize(name) for name in (before, after)]
    old, new = (name if len(name) <= room else "…" + name[-room + 1 :] for name in names)
    return fit([(" before ", "dim"), (old, "title"), ("   after ", "dim"), (new, "title")], width)


def matched_row(traces: tuple[Trace, Trace], events: tuple[int | None, int | None]) -> Row:
    """Say how one event changed.

    Args:
        traces: Before and after.
        events: Its row in each; None = it is not there. One at least is there.
    """
    times = [
        None if event is None else int(trace.ends[event] - trace.starts[event])
        for trace, event in zip(traces, events, strict=True)
    ]
    name = next(
        short_name(trace.name(event))
        for trace, event in zip(traces, events, strict=True)
        if event is not None
    )
    old, new = times
    if old is None or new is None:
        side = "before" if old is None else "after"
        return [(f" {name}", "strong"), (f"  has no counterpart {side} in this step", "warn")]
    change = format_speed(new / old) if old else ""
    role = "good" if new < old else "bad" if new > old else "dim"
    return [
        (f" {name}", "strong"),
        (f"  {format_ns(old)} before → {format_ns(new)} after  ", "text"),
        (change, role),
        ("  both stand below one another; esc aligns the first steps again", "dim"),
    ]
