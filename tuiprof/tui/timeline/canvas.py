"""Draws a timeline: lanes, and on top of them cursor, selection, window, links, search hits and bookmarks."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntFlag
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from tuiprof.model.intervals import Ints
from tuiprof.model.steps import Steps
from tuiprof.model.trace import Trace
from tuiprof.report.sanitize import sanitize
from tuiprof.tui.terminal import glyphs
from tuiprof.tui.timeline.lanes import Lane, Lanes
from tuiprof.tui.timeline.state import TimelineState, Viewport
from tuiprof.tui.timeline.view import Cells, Kind, legend, link_cells, offset_text, overview, paint, readout
from tuiprof.tui.widgets.spans import fit_text

_COMPONENTS = {kind: f"timeline--{kind.name.lower().replace('_', '-')}" for kind in Kind}
_KINDS = 32
_LABEL, _LABEL_CHOSEN = "timeline--label", "timeline--label-chosen"
_AXIS, _STEP, _READOUT = "timeline--axis", "timeline--step", "timeline--readout"

Flags = np.ndarray[tuple[int], np.dtype[np.int64]]


class Overlay(IntFlag):
    """What is drawn on top of a cell; each flag has a style."""

    OUTSIDE = 1
    SELECTION = 2
    HIT = 4
    LINK = 8
    EVENT = 16
    CURSOR = 32


_OVERLAYS = {flag: f"timeline--{flag.name.lower()}" for flag in Overlay if flag.name}
#: Names of all component styles.
STYLES = {*_COMPONENTS.values(), *_OVERLAYS.values(), _LABEL, _LABEL_CHOSEN, _AXIS, _READOUT}


def label_cells(width: int) -> int:
    """Return the number of cells for labels, given the width of the timeline."""
    return 11 if width < 110 else 13 if width < 140 else 18


class Canvas:
    """Draws a timeline line by line. Cells of lanes, map and links are cached until their inputs change."""

    def __init__(self, state: TimelineState, component_style: Callable[..., Style]) -> None:
        self._state = state
        self._component_style = component_style
        self._styles: dict[tuple[int, int], Style] = {}
        self._painted: tuple[object, ...] = ()
        self._cells: list[Cells] = []
        self._mapped: tuple[object, ...] = ()
        self._map = Cells([], np.zeros(0, dtype=np.uint8))
        self._laid_over: tuple[object, ...] = ()
        self._flags: list[Flags] = []
        self._signs: list[dict[int, str]] = []

    def line(self, y: int, width: int, background: Style, *, focused: bool) -> Strip:
        """Draw one line: the map, a lane, the axis, or the last one; blank below that and without a trace.

        The last line is the readout while the timeline has the focus or a selection, else the legend.
        """
        state = self._state
        if state.lanes is None:
            return Strip.blank(width, background)
        label = label_cells(width) - 2
        y -= state.map_lines
        if y < 0:
            return self._map_line(state.lanes, label, background)
        if y < len(state.visible_lanes):
            return self._lane_line(state.lanes, y, label, background, focused=focused)
        if y == len(state.visible_lanes):
            return self._axis_line(label)
        if y == len(state.visible_lanes) + 1 and not (focused or state.has_readout):
            return self._legend_line(state.lanes, width) if state.legend else Strip.blank(width, background)
        if y == len(state.visible_lanes) + 1:
            text = fit_text(readout(state, state.lanes), width)
            return Strip([Segment(text, self._component_style(_READOUT))], width)
        return Strip.blank(width, background)

    # -- styles --------------------------------------------------------------------------------------------

    def forget_styles(self) -> None:
        """Invalidate cached styles after a change of the theme."""
        self._styles.clear()

    def style(self, kind: int, over: int) -> Style:
        """Return the style of a cell of a :class:`Kind` under :class:`Overlay` flags."""
        key = (kind, over)
        if key not in self._styles:
            style = self._component_style(_COMPONENTS[Kind(kind)])
            for flag, name in _OVERLAYS.items():
                if over & flag:
                    style += self._component_style(name, partial=True)
            self._styles[key] = style
        return self._styles[key]

    # -- cells ---------------------------------------------------------------------------------------------

    def _paint_lanes(self, lanes: Lanes) -> None:
        state = self._state
        key = (lanes, state.view, state.visible_lanes)
        if self._painted == key:
            return
        self._cells = [
            self._painted_lane(lanes, lane, first=not i) for i, lane in enumerate(state.visible_lanes)
        ]
        self._painted = key

    def _painted_lane(self, lanes: Lanes, lane: Lane, *, first: bool) -> Cells:
        """Draw a lane; the first one, and every lane with its own steps, shows step boundaries."""
        view = self._state.view
        marked = lane.style == "ranges" and (first or lane.steps is not None)
        marks = self._step_marks(lane.steps or lanes.trace.steps) if marked else []
        taken = np.zeros(view.columns, dtype=bool)
        for column, label in marks:
            taken[column : column + len(label)] = True
        cells = paint(lanes.trace, lane, view.edges, taken)
        for column, label in marks:
            cells.chars[column : column + len(label)] = label
            cells.kinds[column : column + len(label)] = Kind.STEP
        return cells

    def _step_marks(self, steps: Steps) -> list[tuple[int, str]]:
        """Return column and label (``▏2`` for step 2) of the step boundaries."""
        view = self._state.view
        low, high = np.searchsorted(steps.starts, [view.low, view.high]).tolist()
        marks: list[tuple[int, str]] = []
        free_from = 0
        # Look at no more than one step per column.
        for index in range(low, high, max(1, (high - low) // view.columns)):
            column = view.column_of(int(steps.starts[index]))
            label = f"▏{steps.numbers[index]} "
            if column >= free_from and column + len(label) <= view.columns:
                marks.append((column, label))
                free_from = column + len(label)
        return marks

    def _lay_over(self, lanes: Lanes) -> None:
        """Compute the overlays that do not depend on cursor and ranges: links, the event, search hits."""
        self._paint_lanes(lanes)
        state = self._state
        key = (*self._painted, state.event, state.links, state.search)
        if self._laid_over == key:
            return
        self._laid_over = key
        columns, edges, trace = state.view.columns, state.view.edges, lanes.trace
        self._flags = [np.zeros(columns, dtype=np.int64) for _ in state.visible_lanes]
        self._signs = [{} for _ in state.visible_lanes]
        if state.search is not None:
            for flags, lane in zip(self._flags, state.visible_lanes, strict=True):
                flags[state.search.columns(lane, edges)] |= Overlay.HIT
        if state.event is None:
            return
        lines = {row: state.line_of(row) for row in (state.event, *(link.row for link in state.links))}
        for row, line in lines.items():
            if line is not None:
                start, end = int(trace.starts[row]), max(int(trace.ends[row]), int(trace.starts[row]) + 1)
                self._flags[line][(edges[1:] > start) & (edges[:-1] < end)] |= Overlay.EVENT
        for link in state.links:
            call, work = link.call_and_work(state.event)
            above, below = lines[call], lines[work]
            if above is None or below is None or above == below:
                continue
            left, at = (state.view.column_of(instant) for instant in link.instants(trace, state.event))
            for (y, x), (sign, over) in link_cells((above, left), (below, at), columns).items():
                if self._flags[y][x] & Overlay.EVENT:
                    continue
                # Keep existing content: in the colour of the link it would look like a part of it.
                if over or self._cells[y].kinds[x] == Kind.BLANK:
                    self._flags[y][x] |= Overlay.LINK
                    self._signs[y][x] = sign

    # -- lines ---------------------------------------------------------------------------------------------

    def _map_line(self, lanes: Lanes, label: int, background: Style) -> Strip:
        """Draw the overview of the whole trace, with brackets around the view, and bookmarks."""
        view, columns = self._state.view, self._state.view.columns
        whole = Viewport.over(view.first, view.last, columns)
        if self._mapped != (lanes, whole):
            self._map, self._mapped = overview(lanes, whole), (lanes, whole)
        chars, over = list(self._map.chars), np.zeros(columns, dtype=np.int64)
        start = max(0, min(whole.column_of(view.low), columns - 1))
        end = max(start, min(whole.column_of(view.high - 1), columns - 1))
        over[start : end + 1] |= Overlay.SELECTION
        over[(self._map.kinds == Kind.IDLE) & _outside_steps(lanes.trace, whole.edges)] |= Overlay.OUTSIDE
        for at in self._state.bookmarks:
            column = max(0, min(whole.column_of(at), columns - 1))
            chars[column] = glyphs.FLAG
            over[column] |= Overlay.LINK
        if start:
            chars[start - 1] = "["
        if end < columns - 1:
            chars[end + 1] = "]"
        head = self._label("all", _LABEL, label, background)
        return self._strip(head, chars, self._map.kinds, over)

    def _lane_line(self, lanes: Lanes, y: int, label: int, background: Style, *, focused: bool) -> Strip:
        state, view = self._state, self._state.view
        self._lay_over(lanes)
        edges, lane, cells = view.edges, state.visible_lanes[y], self._cells[y]
        over = self._flags[y].copy()
        cursor = view.column_of(state.cursor)
        if 0 <= cursor < view.columns:
            over[cursor] |= Overlay.CURSOR
        if (selected := state.chosen_range) is not None:
            low, high = selected
            over[(edges[1:] > low) & (edges[:-1] < high)] |= Overlay.SELECTION
        if not state.window.whole:
            low, high = lanes.trace.bounds(state.window)
            over[(edges[1:] <= low) | (edges[:-1] >= high)] |= Overlay.OUTSIDE
        elif lane.style == "idle":
            over[_outside_steps(lanes.trace, edges)] |= Overlay.OUTSIDE
        chars, signs = cells.chars, self._signs[y]
        if signs:
            chars = [signs.get(x, char) for x, char in enumerate(chars)]
        style = _LABEL_CHOSEN if focused and y == state.chosen else _LABEL
        head = self._label(sanitize(lane.label.rstrip()), style, label, background)
        return self._strip(head, chars, cells.kinds, over)

    def _label(self, text: str, style: str, cells: int, background: Style) -> list[Segment]:
        if len(text) > cells:  # keep the number
            text = text.replace("stream ", "str ")
        return [Segment(" " + fit_text(text, cells), self._component_style(style)), Segment(" ", background)]

    def _strip(
        self,
        head: list[Segment],
        chars: list[str],
        kinds: np.ndarray[tuple[int], np.dtype[np.uint8]],
        over: Flags,
    ) -> Strip:
        """Join label and cells; adjacent cells of the same style become one segment."""
        styled = over * _KINDS + kinds
        cuts = [0, *(np.flatnonzero(np.diff(styled)) + 1).tolist(), len(chars)]
        segments = list(head)
        for start, end in pairwise(cuts):
            flags, kind = divmod(int(styled[start]), _KINDS)
            segments.append(Segment("".join(chars[start:end]), self.style(kind, flags)))
        return Strip(segments, sum(segment.cell_length for segment in head) + len(chars))

    def _legend_line(self, lanes: Lanes, width: int) -> Strip:
        """Draw as much of the legend as fits."""
        state = self._state
        self._paint_lanes(lanes)
        cells = np.concatenate([cells.kinds for cells in (self._map, *self._cells)])
        drawn = set(np.unique(cells).tolist()) if state.legend == "drawn" else set(Kind)
        row = legend(
            state.visible_lanes,
            drawn,
            simulated=lanes.meaning if lanes.replayed is not None else (),
            nested=state.nested,
            has_nested=state.has_nested,
        )
        segments = [Segment(" ", self._component_style(_READOUT))]
        left = width - 1
        for sign, kind, meaning in row:
            text = f" {meaning}   "
            if len(sign) + len(text.rstrip()) > left:
                break
            segments += [Segment(sign, self.style(kind, 0)), Segment(text, self._component_style(_AXIS))]
            left -= len(sign) + len(text)
        return Strip(segments).adjust_cell_length(width, self._component_style(_AXIS))

    def _axis_line(self, label: int) -> Strip:
        """Draw ticks, bookmarks, the start of a measurement, and the cursor with its time."""
        state, view = self._state, self._state.view
        columns, cursor = view.columns, view.column_of(state.cursor)
        text, start = "", columns
        if 0 <= cursor < columns:
            text = f"▲ {offset_text(state.cursor - view.first, view.span // columns)}"[:columns]
            start = cursor
            if cursor + len(text) > columns:  # no room on the right of the mark
                text = f"{text[2:]} ▲"
                start = max(0, cursor - len(text) + 1)
        chars = [" "] * columns
        for column, text_at in view.ticks():
            tick = f"╵{text_at} "
            clear = column + len(tick) <= start or column >= start + len(text)
            if column >= 0 and column + len(tick) <= columns + 1 and clear:
                chars[column : column + len(tick)] = tick
        signs = [(at, glyphs.FLAG) for at in state.bookmarks]
        for at, sign in [*signs, *([] if state.mark is None else [(state.mark, "◆")])]:
            column = view.column_of(at)
            if 0 <= column < columns:
                chars[column] = sign
        axis = self._component_style(_AXIS)
        segments = [
            Segment(f" {fit_text(state.caption, label)} ", self._component_style(_STEP)),
            Segment("".join(chars[:start]), axis),
            Segment(text, self._component_style(_STEP)),
            Segment("".join(chars[start + len(text) : columns]), axis),
        ]
        return Strip([segment for segment in segments if segment.text], label + 2 + columns)


def _outside_steps(trace: Trace, edges: Ints) -> npt.NDArray[np.bool_]:
    """Return which columns are before the first or after the last step, where idle time does not matter."""
    steps = trace.steps
    outside = np.zeros(len(edges) - 1, dtype=np.bool_)
    if len(steps):
        outside |= (edges[1:] <= int(steps.starts[0])) | (edges[:-1] >= int(steps.ends[-1]))
    return outside
