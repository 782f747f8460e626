"""The state of a timeline, without a widget."""

from __future__ import annotations

from made_traces import MS, small_trace

from tuiprof.tui.timeline import lanes as lane_builder
from tuiprof.tui.timeline.lanes import sketch
from tuiprof.tui.timeline.state import Search, TimelineState


def shown(columns: int = 88, lines: int = 8) -> tuple[TimelineState, list[None]]:
    """A state that shows the small trace, and its changes from now on."""
    changes: list[None] = []
    state = TimelineState(lambda: changes.append(None))
    state.resize(columns, lines)
    state.show(lane_builder.build(small_trace()))
    changes.clear()
    return state, changes


def test_every_change_is_reported_once_and_complete() -> None:
    state, changes = shown()
    seen: list[tuple[int, int]] = []
    state._on_change = lambda: seen.append((state.cursor, state.view.low))
    state.zoom(8)
    state.go_to(21 * MS)
    assert len(seen) == 2
    cursor, low = seen[-1]
    assert cursor == 21 * MS
    assert low > 0  # the view had moved along when the change was reported
    assert not changes


def test_lanes_that_fit_follow_the_size_and_the_chosen_one_stays_chosen() -> None:
    state, _ = shown(lines=8)
    assert [lane.label for lane in state.visible_lanes] == ["main", "runtime", "stream 7", "idle"]
    assert state.has_nested
    state.show_nested(True)
    assert [lane.label.strip() for lane in state.visible_lanes] == [
        "main",
        "ops",
        "runtime",
        "stream 7",
        "idle",
    ]
    state.choose_lane(2)
    state.resize(88, 6)
    assert [lane.label for lane in state.visible_lanes] == ["main", "runtime", "stream 7", "idle"]
    assert state.lane is not None
    assert state.lane.label == "runtime"
    state.zoom(4)  # the map of the whole takes a line
    assert (state.map_lines, len(state.visible_lanes)) == (1, 3)
    assert state.lane_at(0) is None
    assert state.lane_at(1) == 0


def test_a_selection_grows_from_where_it_began_and_ends_with_select() -> None:
    state, _ = shown()
    state.go_to(5 * MS)
    state.select_to(9 * MS)
    state.select_to(3 * MS)
    assert state.chosen_range == state.selection == (3 * MS, 5 * MS)
    state.select_to(5 * MS)
    assert state.selection is None
    state.select_to(8 * MS)
    assert state.selection == (5 * MS, 8 * MS)
    state.select(None)
    state.select_to(12 * MS)
    assert state.selection == (8 * MS, 12 * MS)


def test_measuring_counts_where_nothing_is_selected() -> None:
    state, _ = shown()
    state.go_to(4 * MS)
    state.toggle_mark()
    assert state.chosen_range is None
    state.go_to(2 * MS)
    assert state.chosen_range == (2 * MS, 4 * MS)
    state.select((6 * MS, 7 * MS))
    assert state.chosen_range == (6 * MS, 7 * MS)
    state.clear_range()
    assert (state.chosen_range, state.mark) == (None, None)


def test_what_was_measured_stays_until_it_is_cleared_or_measured_anew() -> None:
    state, _ = shown()
    state.go_to(4 * MS)
    state.toggle_mark()
    state.go_to(9 * MS)
    state.toggle_mark()
    state.go_to(20 * MS)
    assert (state.mark, state.chosen_range) == (None, (4 * MS, 9 * MS))
    state.toggle_mark()
    state.go_to(21 * MS)
    assert state.chosen_range == (20 * MS, 21 * MS)
    state.toggle_mark()
    state.clear_range()
    assert state.chosen_range is None


def test_a_second_bookmark_in_a_column_removes_the_first() -> None:
    state, _ = shown()
    for at in (9 * MS, 3 * MS, 9 * MS + 1):
        state.go_to(at)
        state.toggle_bookmark()
    assert state.bookmarks == [3 * MS]


def test_a_cursor_out_of_view_moves_to_the_edge_it_is_nearer_to() -> None:
    state, _ = shown()
    state.zoom(4)
    state.set_view(state.view.panned(2))
    assert state.view.column_of(state.cursor) < 0
    assert state.instant_beside(1) == state.view.instant_of(0)
    state.go_to(state.instant_beside(1))
    assert state.view.column_of(state.instant_beside(3)) == 3


def test_more_of_a_trace_keeps_what_was_put_over_it_and_ends_the_search() -> None:
    state, _ = shown()
    assert state.lanes is not None
    row = int(state.lanes.syncs.rows[0])
    state.mark_event(row)
    assert {link.way for link in state.links} == {"waited for", "delayed"}
    state.toggle_bookmark()
    state.set_search(Search.of(state.lanes, "sum"))
    state.zoom(4)
    span, cursor = state.view.span, state.cursor
    state.replace(lane_builder.build(small_trace()), MS)
    assert (state.view.span, state.cursor, state.bookmarks) == (span, cursor + MS, [cursor + MS])
    assert (state.event, state.search) == (row, None)
    assert len(state.links) == 2


def test_steps_of_a_sketch_are_those_of_the_whole_trace() -> None:
    trace = small_trace()
    lanes = lane_builder.build(trace)
    assert lanes.source is trace
    rough = sketch(trace)
    assert rough.trace is not trace
    assert rough.source is trace
