"""The whole trace in one line: where the device idles, where the host waits, and which part is in view."""

from __future__ import annotations

import numpy as np

from tuiprof.tui.timeline.lane_cells import Cells, Kind
from tuiprof.tui.timeline.lanes import Lanes
from tuiprof.tui.timeline.viewport import Viewport

#: From this share of a column on its waits are worth a sign.
_LEAST_WAIT = 0.05


def overview(lanes: Lanes, whole: Viewport) -> Cells:
    """Draw the whole trace.

    A cell is ``S`` where the host waits for longer than the devices idle, else the shade of their idleness.

    Args:
        lanes: Its lanes.
        whole: All that can come into view.
    """
    edges, columns = whole.edges, whole.columns
    low, high = lanes.trace.span
    inside = (edges[1:] > low) & (edges[:-1] < high)
    idle_lanes = [lane for lane in lanes.lanes if lane.style == "idle"]
    idle = (
        inside * np.mean([1 - lane.bars.shares(edges) for lane in idle_lanes], axis=0)
        if idle_lanes
        else np.zeros(columns)
    )
    waits = lanes.syncs.shares(edges) if len(lanes.syncs) else np.zeros(columns)
    waiting = (waits >= _LEAST_WAIT) & (waits > idle)
    shade = np.digitize(idle, (0.02, 0.25, 0.6, 0.95))
    chars = [
        "S" if wait else " ·░▒▓"[level] for wait, level in zip(waiting.tolist(), shade.tolist(), strict=True)
    ]
    kinds = np.where(waiting, Kind.SYNC, np.where(shade > 0, Kind.IDLE, Kind.BLANK))
    return Cells(chars, kinds.astype(np.uint8))
