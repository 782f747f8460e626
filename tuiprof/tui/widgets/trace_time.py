"""Moving in the time of a trace: what the keys of a trace view do with its timeline."""

from __future__ import annotations

import numpy as np
from textual.containers import Vertical

from tuiprof.model.trace import Trace
from tuiprof.model.window import Window
from tuiprof.tui.widgets.timeline import Timeline


class TraceTime(Vertical):
    """The part of a trace view that moves in time.

    Attributes:
        trace: The trace.
        window: The part that the analyses look at.
    """

    trace: Trace
    window: Window

    @property
    def timeline(self) -> Timeline:
        """The timeline."""
        return self.query_one(Timeline)

    def set_window(self, window: Window) -> None:
        """Look at a part of the trace in all analyses.

        Args:
            window: The part.
        """
        raise NotImplementedError

    def action_zoom(self, factor: float) -> None:
        """Zoom the timeline around its cursor."""
        self.timeline.zoom(factor)

    def action_fit(self) -> None:
        """Show the whole trace."""
        self.timeline.fit()

    def action_zoom_to(self) -> None:
        """Zoom to the selection, else the window, else the step under the cursor."""
        chosen = self.timeline.selection or (None if self.window.whole else self.trace.bounds(self.window))
        if chosen is None and (index := self._step_at_cursor()) is not None:
            chosen = int(self.trace.steps.starts[index]), int(self.trace.steps.ends[index])
        if chosen is None:
            self.notify("select with shift+← →, or put the cursor into a step", timeout=3)
        else:
            self.timeline.fit(*chosen)

    def action_sync(self, forward: bool) -> None:
        """Go to the next or the previous host wait."""
        lanes = self.timeline.lanes
        if lanes is None:
            return
        if self.timeline.go_to_event(lanes.syncs, forward) is None:
            where = "after" if forward else "before"
            self.notify(
                f"no host wait {where} the cursor" if len(lanes.syncs) else "no host waits in this trace",
                timeout=3,
            )
        else:
            self.timeline.choose("calls")

    def action_step(self, forward: bool) -> None:
        """Go to the next or the previous step."""
        starts = self.trace.steps.starts
        cursor = self.timeline.cursor
        place = int(np.searchsorted(starts, cursor, side="right" if forward else "left")) - (not forward)
        if 0 <= place < len(starts):
            self.timeline.go_to(int(starts[place]))
        elif not len(starts):
            self.notify("this trace marks no steps", timeout=3)

    def _step_at_cursor(self) -> int | None:
        steps, cursor = self.trace.steps, self.timeline.cursor
        index = int(np.searchsorted(steps.starts, cursor, side="right")) - 1
        return index if index >= 0 and cursor < steps.ends[index] else None

    def action_window(self) -> None:
        """Make the selection the window of all analyses; without one the step at the cursor, or all again."""
        if self.timeline.selection is not None:
            low, high = self.timeline.selection
            self.timeline.select(None)
            self.set_window(Window(low, high))
        elif not self.window.whole:
            self.set_window(Window())
        elif (index := self._step_at_cursor()) is not None:
            self.set_window(self.trace.steps.window(index))
        else:
            self.notify("select with shift+← → or by dragging, or put the cursor into a step", timeout=4)
