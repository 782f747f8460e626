"""Lanes, cells, links and state of a timeline, without a widget."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from made_traces import MS, large_trace, small_trace, trace_of

from tuiprof.advice import edits_of, priorities
from tuiprof.analyses.shared.replay import replayed
from tuiprof.formats import open_trace
from tuiprof.model import Trace, Window
from tuiprof.resources import shipped
from tuiprof.tui.timeline import lanes as lane_builder
from tuiprof.tui.timeline import state as timeline_state
from tuiprof.tui.timeline.lanes import Samples, counter_samples, memory_samples, python_levels, sketch
from tuiprof.tui.timeline.state import Search, TimelineState, Viewport, links_of
from tuiprof.tui.timeline.view import (
    event_words,
    instant_words,
    link_cells,
    overview,
    paint,
    range_words,
    short_name,
)


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
    assert {link.relation for link in state.links} == {"waited for", "delayed"}
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


def drawn(source: tuple[int, int], target: tuple[int, int], columns: int = 12) -> list[str]:
    cells = link_cells(source, target, columns)
    lines = max(source[0], target[0]) + 1
    return [
        "".join(cells.get((y, x), (" ", False))[0] for x in range(columns)).rstrip() for y in range(lines)
    ]


def test_a_link_goes_down_from_the_launch_and_along_to_the_work() -> None:
    assert drawn((0, 2), (3, 7)) == ["", "  │", "  │", "  ╰───▸"]
    assert drawn((0, 7), (1, 2)) == ["", "   ◂───╯"]  # the device's clock is behind
    assert drawn((0, 4), (2, 4)) == ["", "    │", ""]
    assert drawn((2, 3), (0, 5)) == ["   ╭▸", "   │", ""]


def test_a_link_out_of_view_ends_at_the_edge() -> None:
    assert drawn((0, -5), (1, 3)) == ["", "──▸"]
    assert drawn((0, 8), (1, 40)) == ["", "        ╰──▸"]


def linked(trace: Trace, row: int) -> dict[str, int]:
    return {link.relation: link.row for link in links_of(trace, row)}


def rows_of(trace: Trace, name: str) -> list[int]:
    return [row for row in range(len(trace)) if name in trace.name(row)]


def test_launch_and_work_are_linked_both_ways() -> None:
    trace = small_trace()
    for launch, work in zip(rows_of(trace, "cudaLaunchKernel"), rows_of(trace, "sum_kernel"), strict=True):
        assert linked(trace, launch) == {"launches": work}
        assert links_of(trace, work)[0].row == launch


def test_a_sync_is_linked_with_what_it_waited_for_and_what_it_delayed() -> None:
    trace = small_trace()
    first, second = rows_of(trace, "Synchronize")
    done, delayed = rows_of(trace, "sum_kernel")
    assert linked(trace, first) == {"waited for": done, "delayed": delayed}
    assert linked(trace, second) == {"waited for": delayed}  # nothing was launched after it
    assert linked(trace, done)["waited for by"] == first
    assert linked(trace, delayed)["delayed by"] == first
    assert linked(trace, rows_of(trace, "aten::mm")[0]) == {}


def test_a_large_trace_is_not_searched_for_syncs_on_the_screen_before_an_analysis_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timeline_state, "_MAX_EVENTS_AT_ONCE", 3)
    trace = small_trace()
    sync = rows_of(trace, "Synchronize")[0]
    assert links_of(trace, sync) == ()
    assert len(links_of(trace, sync, slow=True)) == 2
    assert len(links_of(trace, sync)) == 2  # now it is known


def test_what_an_event_is_linked_with_is_said_with_the_time_between() -> None:
    trace = small_trace()
    launch, work, sync = (
        rows_of(trace, name)[0] for name in ("cudaLaunchKernel", "sum_kernel", "Synchronize")
    )
    # The launch ends at 2 ms, its kernel runs from 3 to 8 ms, the sync from 6 to 9 ms, the next kernel from 15 ms.
    said = event_words(trace, launch, links_of(trace, launch))
    assert said.endswith("cudaLaunchKernel 1.00 ms · f: launches sum_kernel, 1.00 ms between")
    said = event_words(trace, work, links_of(trace, work))
    assert "sum_kernel 5.00 ms · f: launched by cudaLaunchKernel, 1.00 ms between" in said
    assert "F: waited for by cudaStreamSynchronize, done 1.00 ms before its end" in said
    said = event_words(trace, sync, links_of(trace, sync))
    assert "f: waited for sum_kernel, done 1.00 ms before its end" in said
    assert said.endswith("F: delayed sum_kernel, 6.00 ms after it")


def test_the_way_of_a_sync_leads_from_its_end() -> None:
    trace = small_trace()
    sync = rows_of(trace, "Synchronize")[0]
    awaited, delayed = links_of(trace, sync)
    assert awaited.instants(trace, sync) == (9 * MS - 1, 8 * MS - 1)
    assert delayed.instants(trace, sync) == (9 * MS - 1, 15 * MS)
    back = next(link for link in links_of(trace, delayed.row) if link.relation == "delayed by")
    assert back.instants(trace, delayed.row) == delayed.instants(trace, sync)


def test_a_range_is_measured() -> None:
    lanes = lane_builder.build(small_trace())
    # From 2 to 15 ms: the kernel from 3 to 8 ms, one sync from 6 to 9 ms, the launch and step at 12 ms.
    text = range_words(lanes, 2 * MS, 15 * MS)
    for part in ("Δ 13.0 ms", "busy 5.00 ms (38.5 %), idle 8.00 ms", "1 works"):
        assert part in text
    for part in ("waits 1, 3.00 ms", "launches 1", "steps 1"):
        assert part in text


def test_a_search_goes_around_and_ignores_case() -> None:
    trace = small_trace()
    lanes = lane_builder.build(trace)
    found = Search.of(lanes, "SUM_kernel")
    assert len(found.hits) == 2
    first, second = (int(row) for row in found.hits.rows)
    assert found.step(0, None, True) == 0
    assert found.step(0, None, False) == 1
    assert found.step(5 * MS, None, True) == 1
    assert found.step(0, second, True) == 0
    assert found.step(0, first, False) == 1
    assert Search.of(lanes, "nothing such").step(0, None, True) is None


def test_hits_are_marked_in_the_lane_that_draws_them() -> None:
    lanes = lane_builder.build(small_trace())
    edges = np.arange(0, 23, dtype=np.int64) * MS
    found = Search.of(lanes, "sum_kernel")
    by_label = {lane.label.strip(): found.columns(lane, edges) for lane in lanes.lanes}
    assert np.flatnonzero(by_label["stream 7"]).tolist() == [3, 4, 5, 6, 7, 15, 16, 17, 18, 19]
    assert not by_label["runtime"].any()
    assert not by_label["idle"].any()


def test_the_map_shows_waits_where_they_outweigh_idleness() -> None:
    lanes = lane_builder.build(small_trace())
    cells = overview(lanes, Viewport.over(*lanes.trace.span, 22))  # a column a millisecond
    # Waits are from 6 to 9 ms and 18 to 21 ms; the kernels work until 8 and 20 ms.
    assert "".join(cells.chars) == "▓▓▓   SS▓▓▓▓▓▓▓   SS▓▓"


def test_a_counter_is_drawn_by_its_largest_value_in_each_column() -> None:
    samples = Samples(np.array([2, 4, 5, 9]), np.array([4.0, 8.0, 1.0, 2.0]), is_bytes=True)
    assert samples.highest(np.array([0, 2, 4, 6, 8, 10])).tolist() == [0.0, 4.0, 8.0, 1.0, 2.0]
    assert samples.at_instant(1) is None
    assert samples.at_instant(8) == 1.0


def with_memory(trace: Trace) -> Trace:
    instants = pl.DataFrame(
        {
            "ts": [1 * MS, 10 * MS, 20 * MS, 5 * MS],
            "total_allocated": [1 << 20, 4 << 20, 2 << 20, 77],
            "device": [0, 0, 0, -1],
        }
    )
    counters = pl.DataFrame(
        {"ts": [0, MS], "name": ["q", "q"], "series": ["depth", "depth"], "value": [1.0, 3.0]}
    )
    return Trace(trace.events, trace.tracks, trace.info, instants=instants, counters=counters)


def test_memory_and_counters_get_lanes_where_the_trace_has_them() -> None:
    trace = with_memory(small_trace())
    assert [label for label, _ in memory_samples(trace)] == ["memory", "host mem"]
    assert [label for label, _ in counter_samples(trace)] == ["q depth"]
    lanes = lane_builder.build(trace)
    assert [lane.label for lane in lanes.lanes[-3:]] == ["memory", "host mem", "q depth"]
    memory = lanes.lanes[-3]
    text = "".join(paint(trace, memory, Viewport.over(*trace.span, 22).edges).chars)
    assert text == " " + "▂" * 9 + "█" * 10 + "▄" * 2
    assert "memory 4.00 MiB" in instant_words(lanes, list(lanes.lanes), 12 * MS)
    assert memory_samples(small_trace()) == []
    assert counter_samples(small_trace()) == []


def test_an_optimizer_that_runs_a_closure_is_drawn_after_the_backward_pass_of_it() -> None:
    trace = trace_of(
        [
            ("annotation", "Optimizer.step#Adam.step", 0, 21, 0, None),
            ("annotation", "forward", 1, 5, 0, None),
            ("cpu_op", "autograd::engine::evaluate_function: MulBackward0", 8, 12, 0, None),
            ("annotation", "Optimizer.step#Adam.step", 30, 32, 0, None),
        ]
    )
    lanes = lane_builder.build(trace)
    main = lanes.lanes[0].bars
    names = [trace.name(int(row)).split("#")[0] for row in main.rows]
    assert names == ["forward", "Optimizer.step", "Optimizer.step"]
    assert (main.starts // MS).tolist() == [1, 12, 30]
    assert (main.ends // MS).tolist() == [5, 21, 32]
    assert lanes.lanes[0].holds(int(main.rows[1]))
    found = Search.of(lanes, "o")  # all of them
    edges = np.arange(0, 33, dtype=np.int64) * MS
    hits = found.columns(lanes.lanes[0], edges)
    assert np.flatnonzero(hits).tolist() == [*range(1, 5), *range(12, 21), 30, 31]


def test_python_lanes_show_the_users_functions_by_level() -> None:
    rows: list[tuple[str, str, int, int, int, int | None]] = [
        ("python_function", "train.py(1): <module>", 0, 100, 0, None),
        ("python_function", "train.py(9): step", 10, 40, 0, None),
        ("python_function", "torch/nn/modules/module.py(1): _call_impl", 11, 39, 0, None),
        ("python_function", "model.py(5): forward", 12, 30, 0, None),
        ("python_function", "train.py(9): step", 50, 90, 0, None),
        ("cpu_op", "aten::mm", 12, 20, 0, None),
    ]
    trace = trace_of(rows)
    levels = python_levels(trace, trace.tracks[0])
    named = [[short_name(trace.name(int(row))) for row in level] for level in levels]
    # The module fills the trace, the framework's frame is not the user's.
    assert named == [["step", "step"], ["forward"]]
    labels = [lane.label for lane in lane_builder.build(trace).lanes]
    assert labels == ["main", "python", "  python"]


def test_a_sketch_estimates_what_the_exact_lanes_show() -> None:
    trace = large_trace(1_200_000)
    exact, rough = lane_builder.build(trace), sketch(trace)
    assert rough.stride == 24
    edges = Viewport.over(*trace.span, 40).edges
    for style in ("device", "idle"):
        true = next(lane for lane in exact.lanes if lane.style == style)
        guess = next(lane for lane in rough.lanes if lane.style == style)
        assert guess.bars.shares(edges)[1:-1] == pytest.approx(true.bars.shares(edges)[1:-1], abs=0.1)


def test_what_other_fixes_leave_is_simulated_on_top_of_them() -> None:
    trace = open_trace(shipped("traces") / "planted-syncs.pt.trace.json.gz")
    step, rules = replayed(trace), [item.rule for item in priorities(trace).findings]
    assert not isinstance(step, str)

    def simulated(rule: str) -> lane_builder.Lanes:
        edits = edits_of(trace, Window(), rules.index(rule))
        assert not isinstance(edits, str)
        return lane_builder.build_replayed(trace, step, *edits)

    alone, on_top = simulated("explicit-wait"), simulated("launch-bound")
    assert alone.meaning[0] == "without the fix"
    assert on_top.meaning[0] == "with the other fixes"
    ends = [
        {lane.label: int(lane.bars.ends.max()) for lane in lanes.lanes}["now GPU"]
        for lanes in (alone, on_top)
    ]
    assert ends[1] < ends[0], "the other fixes are there without this one, too"
