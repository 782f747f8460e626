"""Draws lanes under a viewport, and over them the cursor, the selection and the window of the analyses."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

from tuiprof.model.window import Window
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.lane_cells import Cells, Kind, paint
from tuiprof.tui.lanes import Lane, Lanes
from tuiprof.tui.readout import offset_text, read_out
from tuiprof.tui.viewport import Viewport
from tuiprof.tui.widgets.rows import fit_text

_COMPONENTS = {kind: f"timeline--{kind.name.lower().replace('_', '-')}" for kind in Kind}


class TimelineCanvas(Widget):
    """Lanes of a trace over time; shows anything only after :meth:`show`."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *_COMPONENTS.values(),
        "timeline--label",
        "timeline--label-chosen",
        "timeline--axis",
        "timeline--cursor",
        "timeline--selection",
        "timeline--outside",
        "timeline--readout",
    }

    DEFAULT_CSS = """
    TimelineCanvas {
        height: 6;
        background: $background;
        color: $foreground;
        & > .timeline--blank { color: $foreground; }
        & > .timeline--kernel { color: $primary; }
        & > .timeline--copy { color: $text-warning; }
        & > .timeline--fill { color: $text-muted; }
        & > .timeline--collective { color: $text-accent; }
        & > .timeline--launch { color: $text-success; }
        & > .timeline--sync { color: $text-error; text-style: bold; }
        & > .timeline--call { color: $text-muted; }
        & > .timeline--idle { color: $text-warning; }
        & > .timeline--range-a { color: $text-primary; }
        & > .timeline--range-b { color: $text-secondary; }
        & > .timeline--range-c { color: $text-accent; }
        & > .timeline--range-d { color: $text-success; }
        & > .timeline--range-e { color: $text-warning; }
        & > .timeline--range-f { color: $foreground; }
        & > .timeline--step { color: $foreground; text-style: bold; }
        & > .timeline--label { color: $text-muted; }
        & > .timeline--label-chosen { color: $block-cursor-foreground; background: $block-cursor-background; }
        & > .timeline--axis { color: $text-muted; }
        & > .timeline--cursor { background: $surface-active; text-style: bold; }
        & > .timeline--selection { background: $primary-muted; }
        & > .timeline--outside { color: $text-disabled; }
        & > .timeline--readout { color: $foreground; }
    }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self.lanes: Lanes | None = None
        self.view = Viewport.over(0, 1, 1)
        self.cursor = 0
        self.selection: tuple[int, int] | None = None
        self.window = Window()
        self.chosen = 0
        self._painted: tuple[Viewport, int] | None = None
        self._visible: list[Lane] = []
        self._cells: list[Cells] = []
        self._styles: dict[tuple[int, bool, bool, bool], Style] = {}

    # -- content -------------------------------------------------------------------------------------------

    def show(self, lanes: Lanes) -> None:
        """Show a trace.

        Args:
            lanes: Its lanes.
        """
        self.lanes = lanes
        first, last = lanes.trace.span
        self.view = Viewport.over(first, last, self.columns)
        self.cursor, self.chosen = first, 0
        self.refresh()

    def replace(self, lanes: Lanes, by: int) -> None:
        """Show more of the same trace, keeping cursor, selection and range where they are.

        Args:
            lanes: Its lanes.
            by: ns by which what shows stands later in it.
        """
        old, first, last = self.view, *lanes.trace.span
        whole = Viewport.over(first, last, self.columns)
        if self.lanes is None or (old.low, old.high) == (old.first, old.last):
            self.view = whole
        else:
            self.view = whole.over_range(old.low + by, old.high + by)
        self.lanes = lanes
        self.cursor += by
        if self.selection is not None:
            self.selection = (self.selection[0] + by, self.selection[1] + by)
        self._painted = None
        self.refresh()

    @property
    def label_cells(self) -> int:
        """Cells in front of the lanes."""
        return 11 if self.size.width < 140 else 18

    @property
    def columns(self) -> int:
        """Number of columns that show time."""
        return max(self.size.width - self.label_cells, 1)

    def set_window(self, window: Window) -> None:
        """Show which part the analyses look at.

        Args:
            window: The window.
        """
        self.window = window
        self.refresh()

    def go_to(self, instant: int, length: int = 0) -> None:
        """Put the cursor on an instant and bring it into view.

        Args:
            instant: ns.
            length: Length of the event there, ns; the view widens when less than all of it would show.
        """
        self.cursor = max(self.view.first, min(instant, self.view.last - 1))
        self.view = self.view.showing(self.cursor)
        if length > self.view.span:
            self.view = self.view.fitted(instant, instant + length)
        self.refresh()

    def zoom(self, factor: float) -> None:
        """Zoom around the cursor, or around the middle when the cursor is out of view.

        Args:
            factor: Above 1 shows less time.
        """
        seen = self.view.low <= self.cursor < self.view.high
        middle = (self.view.low + self.view.high) // 2
        self.view = self.view.zoomed(factor, self.cursor if seen else middle)
        self.refresh()

    def fit(self, low: int | None = None, high: int | None = None) -> None:
        """Show a range, or everything.

        Args:
            low: ns; None = everything.
            high: ns.
        """
        if low is None or high is None:
            self.view = Viewport.over(self.view.first, self.view.last, self.columns)
        else:
            self.view = self.view.fitted(low, high)
        self.refresh()

    def on_resize(self) -> None:
        """Keep the range over the new width."""
        self.view = self.view.resized(self.columns)
        self.refresh()

    def notify_style_update(self) -> None:
        """Forget the old colours."""
        super().notify_style_update()
        self._styles.clear()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return as many lines as there are lanes, and two for axis and readout."""
        return len(self.lanes.lanes) + 2 if self.lanes else 2

    # -- drawing -------------------------------------------------------------------------------------------

    def _paint(self) -> None:
        """Draw the lanes' cells once a viewport; cursor and selection are laid over them."""
        room = max(self.size.height - 2, 1)
        if self.lanes is None or self._painted == (self.view, room):
            return
        self._visible = self.lanes.choose(room)
        self.chosen = min(self.chosen, max(len(self._visible) - 1, 0))
        edges = self.view.edges
        marks = self._step_marks()
        taken = np.zeros(self.view.columns, dtype=bool)
        for column, label in marks:
            taken[column : column + len(label)] = True
        first = self._visible[0] if self._visible else None
        self._cells = [
            paint(self.lanes.trace, lane, edges, taken if lane is first else None) for lane in self._visible
        ]
        for column, label in marks if first is not None and first.style == "ranges" else []:
            self._cells[0].chars[column : column + len(label)] = label
            self._cells[0].kinds[column : column + len(label)] = Kind.STEP
        self._painted = (self.view, room)

    def _step_marks(self) -> list[tuple[int, str]]:
        """Return where the first lane says that a step starts: column, and ``▏2`` for step 2."""
        assert self.lanes is not None
        steps = self.lanes.trace.steps
        low, high = np.searchsorted(steps.starts, [self.view.low, self.view.high]).tolist()
        marks: list[tuple[int, str]] = []
        free_from = 0
        # More marks than columns cannot show: look at a step a column at most.
        for index in range(low, high, max(1, (high - low) // self.view.columns)):
            column = self.view.column_of(int(steps.starts[index]))
            label = f"▏{steps.numbers[index]} "
            if column >= free_from and column + len(label) <= self.view.columns:
                marks.append((column, label))
                free_from = column + len(label)
        return marks

    def render_line(self, y: int) -> Strip:
        """Draw a lane, the axis, or the readout.

        Args:
            y: Line within the widget.
        """
        width = self.size.width
        if self.lanes is None:
            return Strip.blank(width, self.rich_style)
        self._paint()
        if y < len(self._visible):
            return self._lane_line(y)
        if y == len(self._visible):
            return self._axis_line()
        if y == len(self._visible) + 1:
            text = read_out(self.lanes, self._visible, self.cursor)
            style = self.get_component_rich_style("timeline--readout")
            return Strip([Segment(fit_text(text, width), style)], width)
        return Strip.blank(width, self.rich_style)

    def _style(self, kind: int, cursor: bool, selected: bool, outside: bool) -> Style:
        key = (kind, cursor, selected, outside)
        if key not in self._styles:
            style = self.get_component_rich_style(_COMPONENTS[Kind(kind)])
            for name, on in (("outside", outside), ("selection", selected), ("cursor", cursor)):
                if on:
                    style += self.get_component_rich_style(f"timeline--{name}", partial=True)
            self._styles[key] = style
        return self._styles[key]

    def _lane_line(self, y: int) -> Strip:
        lane, cells = self._visible[y], self._cells[y]
        chosen = y == self.chosen and self.has_focus
        name = "timeline--label-chosen" if chosen else "timeline--label"
        label = " " + fit_text(sanitize(lane.label.rstrip()), self.label_cells - 2)
        base = self.rich_style
        segments = [
            Segment(label, self.get_component_rich_style(name)),
            Segment(" ", base),
        ]
        edges = self.view.edges
        columns = self.view.columns
        flags = np.zeros(columns, dtype=np.int64)
        cursor = self.view.column_of(self.cursor)
        if 0 <= cursor < columns:
            flags[cursor] |= 1
        if self.selection is not None:
            low, high = self.selection
            flags[(edges[1:] > low) & (edges[:-1] < high)] |= 2
        if not self.window.whole:
            low, high = self.lanes.trace.bounds(self.window) if self.lanes else (0, 0)
            flags[(edges[1:] <= low) | (edges[:-1] >= high)] |= 4
        look = flags * 32 + cells.kinds
        cuts = [0, *(np.flatnonzero(np.diff(look)) + 1).tolist(), columns]
        for begin, end in pairwise(cuts):
            code, kind = divmod(int(look[begin]), 32)
            style = self._style(kind, bool(code & 1), bool(code & 2), bool(code & 4))
            segments.append(Segment("".join(cells.chars[begin:end]), style))
        return Strip(segments, self.size.width)

    def _axis_line(self) -> Strip:
        """Draw round instants, and the cursor among them."""
        columns = self.view.columns
        cursor = self.view.column_of(self.cursor)
        text, begin = "", columns
        if 0 <= cursor < columns:
            text = f"▲ {offset_text(self.cursor - self.view.first, self.view.span // columns)}"[:columns]
            begin = cursor
            if cursor + len(text) > columns:  # no room on the right: the mark goes behind its text
                text = f"{text[2:]} ▲"
                begin = max(0, cursor - len(text) + 1)
        chars = [" "] * columns
        for column, label in self.view.ticks():
            tick = f"╵{label} "
            clear = column + len(tick) <= begin or column >= begin + len(text)
            if column >= 0 and column + len(tick) <= columns + 1 and clear:
                chars[column : column + len(tick)] = tick
        axis = self.get_component_rich_style("timeline--axis")
        segments = [
            Segment(" " * self.label_cells, self.rich_style),
            Segment("".join(chars[:begin]), axis),
            Segment(text, self.get_component_rich_style("timeline--step")),
            Segment("".join(chars[begin + len(text) : columns]), axis),
        ]
        return Strip([segment for segment in segments if segment.text], self.size.width)
