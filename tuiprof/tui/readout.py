"""What stands under the cursor of a timeline, in one line."""

from __future__ import annotations

import numpy as np

from tuiprof.model.units import format_ns
from tuiprof.tui.lane_cells import short_name
from tuiprof.tui.lanes import Lane, Lanes, idle_gap


def offset_text(offset_ns: int, precision_ns: int) -> str:
    """Return an instant counted from the begin of the trace, as precise as a column.

    Args:
        offset_ns: ns since the begin.
        precision_ns: What one column stands for, ns.
    """
    scale, unit = next(
        ((s, u) for s, u in ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs")) if abs(offset_ns) >= s),
        (1, "ns"),
    )
    digits = max(0, min(9, len(str(scale // max(precision_ns, 1))) - 1)) if scale > precision_ns else 0
    return f"{offset_ns / scale:.{digits}f} {unit}"


def read_out(lanes: Lanes, visible: list[Lane], instant: int) -> str:
    """Say which step and which events are at an instant.

    Args:
        lanes: All lanes.
        visible: The lanes on the screen.
        instant: ns.

    Returns:
        One line, safe for a terminal.
    """
    trace = lanes.trace
    parts = []
    steps = trace.steps
    if len(steps):
        index = int(np.searchsorted(steps.starts, instant, side="right")) - 1
        inside = index >= 0 and instant < steps.ends[index]
        parts.append(f"step {steps.numbers[index]}" if inside else "outside of steps")
    at = np.array([instant], dtype=np.int64)
    for lane in visible:
        if lane.style == "idle":
            gap = idle_gap(lane.bars, instant, *trace.span)
            if gap:
                parts.append(f"{lane.label.strip()} {format_ns(gap[1] - gap[0])}")
            continue
        index = int(lane.bars.at(at)[0])
        if index >= 0:
            row = int(lane.bars.rows[index])
            name = short_name(trace.name(row))
            name = name if len(name) <= 40 else name[:39] + "…"
            parts.append(f"{name} {format_ns(int(trace.ends[row] - trace.starts[row]))}")
    return " " + " · ".join(parts) if parts else " nothing recorded here"
