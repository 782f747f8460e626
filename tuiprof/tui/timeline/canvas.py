"""Draws lanes under a viewport, and over them cursor, selection, window, links, hits of a search and bookmarks."""

from __future__ import annotations

from enum import IntFlag
from itertools import pairwise
from typing import ClassVar

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from tuiprof.model.units import format_count
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.timeline.lane_cells import Cells, Kind, paint
from tuiprof.tui.timeline.marks import link_cells
from tuiprof.tui.timeline.minimap import overview
from tuiprof.tui.timeline.readout import event_words, offset_text, range_words, read_out
from tuiprof.tui.timeline.state import TimelineState
from tuiprof.tui.timeline.viewport import Viewport
from tuiprof.tui.widgets.rows import fit_text

_COMPONENTS = {kind: f"timeline--{kind.name.lower().replace('_', '-')}" for kind in Kind}
_KINDS = 32


class _Over(IntFlag):
    """What is laid over a cell; each has a style of its own."""

    OUTSIDE = 1
    SELECTION = 2
    HIT = 4
    LINK = 8
    EVENT = 16
    CURSOR = 32


_OVER = {flag: f"timeline--{flag.name.lower()}" for flag in _Over if flag.name}


class TimelineCanvas(TimelineState):
    """Lanes of a trace over time; shows anything only after :meth:`show`."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *_COMPONENTS.values(),
        *_OVER.values(),
        "timeline--label",
        "timeline--label-chosen",
        "timeline--axis",
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
        & > .timeline--idle { color: $lane-idle; }
        & > .timeline--counter { color: $lane-counter; }
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
        & > .timeline--outside { color: $lane-outside; text-style: $lane-outside-style; }
        & > .timeline--hit { text-style: underline bold; color: $accent; }
        & > .timeline--link { color: $accent; text-style: bold; }
        & > .timeline--event { text-style: reverse bold; }
        & > .timeline--readout { color: $foreground; }
    }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self.caption = ""  # stands beside the axis; safe for a terminal
        self._painted: tuple[Viewport, int] | None = None
        self._cells: list[Cells] = []
        self._map: Cells | None = None
        self._over: dict[tuple[int, int], str] = {}
        self._flags: dict[int, np.ndarray[tuple[int], np.dtype[np.int64]]] = {}
        self._styles: dict[tuple[int, int], Style] = {}

    def _redraw_all(self) -> None:
        self._painted = self._map = None
        self.refresh()

    def relay(self) -> None:
        """Draw anew what is laid over the lanes."""
        self._over, self._flags = {}, {}
        self.refresh()

    def notify_style_update(self) -> None:
        """Forget the old colours."""
        super().notify_style_update()
        self._styles.clear()

    # -- drawing -------------------------------------------------------------------------------------------

    def _paint(self) -> None:
        """Draw the lanes' cells once a viewport; what is laid over them is kept apart."""
        room = max(self.size.height - 2 - self.map_lines, 1)
        if self.lanes is None or self._painted == (self.view, room):
            return
        label = self.visible_lanes[self.chosen].label if self.chosen < len(self.visible_lanes) else ""
        self.visible_lanes = self.lanes.choose(room)
        labels = [lane.label for lane in self.visible_lanes]
        last = max(len(labels) - 1, 0)
        self.chosen = labels.index(label) if label in labels else min(self.chosen, last)
        edges = self.view.edges
        marks = self._step_marks()
        taken = np.zeros(self.view.columns, dtype=bool)
        for column, label in marks:
            taken[column : column + len(label)] = True
        first = self.visible_lanes[0] if self.visible_lanes else None
        self._cells = [
            paint(self.lanes.trace, lane, edges, taken if lane is first else None)
            for lane in self.visible_lanes
        ]
        for column, label in marks if first is not None and first.style == "ranges" else []:
            self._cells[0].chars[column : column + len(label)] = label
            self._cells[0].kinds[column : column + len(label)] = Kind.STEP
        if self._map is None or len(self._map.chars) != self.view.columns:
            self._map = overview(
                self.lanes, Viewport.over(self.view.first, self.view.last, self.view.columns)
            )
        self._painted = (self.view, room)
        self._over, self._flags = {}, {}

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
        """Draw the map, a lane, the axis, or the readout.

        Args:
            y: Line within the widget.
        """
        width = self.size.width
        if self.lanes is None:
            return Strip.blank(width, self.rich_style)
        self._paint()
        if y < self.map_lines:
            return self._map_line()
        y -= self.map_lines
        if y < len(self.visible_lanes):
            return self._lane_line(y)
        if y == len(self.visible_lanes):
            return self._axis_line()
        if y == len(self.visible_lanes) + 1:
            style = self.get_component_rich_style("timeline--readout")
            return Strip([Segment(fit_text(self._readout(), width), style)], width)
        return Strip.blank(width, self.rich_style)

    def _readout(self) -> str:
        """Say what is measured, else what the chosen event is, else what is under the cursor."""
        assert self.lanes is not None
        if self.lanes.stride > 1:
            every = format_count(self.lanes.stride)
            return f" a sketch from one of {every} events: the exact picture is being worked out"
        trace = self.lanes.trace
        found = ""
        if self.search is not None:
            place = self.search.place(self.event)
            of = f"{place + 1} of " if place is not None else ""
            found = f" /{sanitize(self.search.needle)} {of}{format_count(len(self.search.hits))} ·"
        if (chosen := self.chosen_range) is not None:
            return found + range_words(self.lanes, *chosen)
        if self.event is not None and trace.starts[self.event] <= self.cursor <= trace.ends[self.event]:
            return found + event_words(trace, self.event, self.links)
        return found + read_out(self.lanes, self.visible_lanes, self.cursor)

    def _style(self, kind: int, over: int) -> Style:
        key = (kind, over)
        if key not in self._styles:
            style = self.get_component_rich_style(_COMPONENTS[Kind(kind)])
            for flag, name in _OVER.items():
                if over & flag:
                    style += self.get_component_rich_style(name, partial=True)
            self._styles[key] = style
        return self._styles[key]

    def _lay_over(self) -> None:
        """Work out what is laid over the lanes, cursor and selection apart: the links, the event, the hits."""
        if self._flags or self.lanes is None:
            return
        columns, edges, trace = self.view.columns, self.view.edges, self.lanes.trace
        self._flags = {y: np.zeros(columns, dtype=np.int64) for y in range(len(self.visible_lanes))}
        if self.search is not None:
            for y, lane in enumerate(self.visible_lanes):
                self._flags[y][self.search.columns(lane, edges)] |= _Over.HIT
        if self.event is None:
            return
        lines = {row: self.line_of(row) for row in (self.event, *(link.row for link in self.links))}
        for row, line in lines.items():
            if line is not None:
                begin, end = int(trace.starts[row]), max(int(trace.ends[row]), int(trace.starts[row]) + 1)
                self._flags[line][(edges[1:] > begin) & (edges[:-1] < end)] |= _Over.EVENT
        for link in self.links:
            call, work = link.call_and_work(self.event)
            above, below = lines[call], lines[work]
            if above is None or below is None or above == below:
                continue
            left, at = (self.view.column_of(instant) for instant in link.instants(trace, self.event))
            for (y, x), (sign, over) in link_cells((above, left), (below, at), columns).items():
                if self._flags[y][x] & _Over.EVENT:
                    continue
                # What is drawn there stays as it is: in the colour of the link it would look like part of it.
                if over or self._cells[y].kinds[x] == Kind.BLANK:
                    self._flags[y][x] |= _Over.LINK
                    self._over[y, x] = sign

    def _map_line(self) -> Strip:
        """Draw the whole trace, brackets around the part in view, and the bookmarks."""
        assert self._map is not None
        columns, view = self.view.columns, self.view
        whole = Viewport.over(view.first, view.last, columns)
        chars, over = list(self._map.chars), np.zeros(columns, dtype=np.int64)
        begin = max(0, min(whole.column_of(view.low), columns - 1))
        end = max(begin, min(whole.column_of(view.high - 1), columns - 1))
        over[begin : end + 1] |= _Over.SELECTION
        for at in self.bookmarks:
            column = max(0, min(whole.column_of(at), columns - 1))
            chars[column] = glyphs.FLAG
            over[column] |= _Over.LINK
        if begin:
            chars[begin - 1] = "["
        if end < columns - 1:
            chars[end + 1] = "]"
        return self._strip("all", "timeline--label", chars, self._map.kinds, over)

    def _lane_line(self, y: int) -> Strip:
        lane, cells = self.visible_lanes[y], self._cells[y]
        chosen = y == self.chosen and self.has_focus
        self._lay_over()
        edges = self.view.edges
        over = self._flags[y].copy()
        cursor = self.view.column_of(self.cursor)
        if 0 <= cursor < self.view.columns:
            over[cursor] |= _Over.CURSOR
        if (selected := self.chosen_range) is not None:
            low, high = selected
            over[(edges[1:] > low) & (edges[:-1] < high)] |= _Over.SELECTION
        if not self.window.whole:
            low, high = self.lanes.trace.bounds(self.window) if self.lanes else (0, 0)
            over[(edges[1:] <= low) | (edges[:-1] >= high)] |= _Over.OUTSIDE
        chars = cells.chars
        signs = {x: sign for (line, x), sign in self._over.items() if line == y}
        if signs:
            chars = [signs.get(x, char) for x, char in enumerate(chars)]
        name = "timeline--label-chosen" if chosen else "timeline--label"
        return self._strip(sanitize(lane.label.rstrip()), name, chars, cells.kinds, over)

    def _strip(
        self,
        label: str,
        label_style: str,
        chars: list[str],
        kinds: np.ndarray[tuple[int], np.dtype[np.uint8]],
        over: np.ndarray[tuple[int], np.dtype[np.int64]],
    ) -> Strip:
        """Put a label and cells together; neighbours that look alike become one segment."""
        segments = [
            Segment(" " + fit_text(label, self.label_cells - 2), self.get_component_rich_style(label_style)),
            Segment(" ", self.rich_style),
        ]
        look = over * _KINDS + kinds
        cuts = [0, *(np.flatnonzero(np.diff(look)) + 1).tolist(), len(chars)]
        for begin, end in pairwise(cuts):
            flags, kind = divmod(int(look[begin]), _KINDS)
            segments.append(Segment("".join(chars[begin:end]), self._style(kind, flags)))
        return Strip(segments, self.size.width)

    def _axis_line(self) -> Strip:
        """Draw round instants, bookmarks, the begin of what is measured, and the cursor among them."""
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
        signs = [(at, glyphs.FLAG) for at in self.bookmarks]
        for at, sign in [*signs, *([] if self.mark is None else [(self.mark, "◆")])]:
            column = self.view.column_of(at)
            if 0 <= column < columns:
                chars[column] = sign
        axis = self.get_component_rich_style("timeline--axis")
        segments = [
            Segment(
                f" {fit_text(self.caption, self.label_cells - 2)} ",
                self.get_component_rich_style("timeline--step"),
            ),
            Segment("".join(chars[:begin]), axis),
            Segment(text, self.get_component_rich_style("timeline--step")),
            Segment("".join(chars[begin + len(text) : columns]), axis),
        ]
        return Strip([segment for segment in segments if segment.text], self.size.width)
