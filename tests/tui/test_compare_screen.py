from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from made_traces import MS, small_trace, trace_of
from on_screen import press, running, screen_text, until, until_shown
from textual.pilot import Pilot

from tuiprof.resources import shipped
from tuiprof.tui import Start
from tuiprof.tui.app.app import TuiprofApp
from tuiprof.tui.compare.charts import StepPair, column_heights
from tuiprof.tui.compare.screen import CompareScreen
from tuiprof.tui.compare.view import counterpart, shift_between
from tuiprof.tui.compare.widget import CompareView
from tuiprof.tui.dialogs.dialog import PickScreen, ReadingScreen
from tuiprof.tui.dialogs.export import ExportScreen
from tuiprof.tui.dialogs.form import TextForm
from tuiprof.tui.trace.screen import beside

STEPS = 5


def kineto_file(path: Path, kernel_us: int, *, sync: bool) -> Path:
    """A trace of five steps: two kernels each, of which the second takes so long; and a sync, or none."""
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "python"}},
    ]
    period = 1000 + kernel_us
    for step in range(STEPS):
        at = 100 + step * period

        def span(cat: str, name: str, start: int, dur: int, **args: object) -> None:
            device = cat == "kernel"
            pid, tid = (0, 7) if device else (1, 1)
            events.append(
                {
                    "ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": dur,
                    "args": {**args, **({"device": 0, "stream": 7} if device else {})},
                }
            )  # fmt: skip

        span("user_annotation", f"ProfilerStep#{step}", at, period - 10)
        for nth, (name, dur) in enumerate((("gemm", 300), ("softmax", kernel_us))):
            correlation = step * 10 + nth + 1
            span("cpu_op", f"aten::{name}", at + 10 + nth * 100, 50)
            span("cuda_runtime", "cudaLaunchKernel", at + 20 + nth * 100, 20, correlation=correlation)
            span("kernel", name, at + 200 + nth * 400, dur, correlation=correlation)
        if sync:
            span(
                "cuda_runtime", "cudaStreamSynchronize", at + 300, kernel_us + 400, correlation=step * 10 + 9
            )
    device = {"id": 0, "name": "NVIDIA H200"}
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [device], "traceEvents": events}))
    return path


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    monkeypatch.setenv("TUIPROF_CONFIG", str(tmp_path / "none.toml"))
    monkeypatch.setenv("TUIPROF_SESSIONS", str(tmp_path / "sessions"))
    return (
        kineto_file(tmp_path / "slow.json", 900, sync=True),
        kineto_file(tmp_path / "fast.json", 400, sync=False),
    )


def app_of(pair: tuple[Path, Path]) -> TuiprofApp:
    return TuiprofApp(Start("compare", compared=(str(pair[0]), str(pair[1]))))


def view_of(pilot: Pilot[int]) -> CompareView:
    return pilot.app.screen_stack[0].query_one(CompareView)


async def shown(pilot: Pilot[int]) -> CompareView:
    await until_shown(pilot, "a step is", "before slow.json", "after fast.json")
    return view_of(pilot)


async def test_the_verdict_the_steps_and_both_timelines_stand_above_the_tables(
    pair: tuple[Path, Path],
) -> None:
    async with (app := app_of(pair)).run_test(size=(140, 48)) as pilot:
        view = await shown(pilot)
        text = screen_text(app)
        assert "under the profiler, a step is 1.36× faster: 1.89 ms before, 1.39 ms after" in text
        assert "1.89 ms median" in text
        assert "1.39 ms median" in text
        assert text.count("stream 7") == 2
        before, after = view.pair.both
        assert before.state.view.span == after.state.view.span  # one scale, though one trace is longer
        assert "What changed in the traces" in text


async def test_every_tab_ranks_by_the_change(pair: tuple[Path, Path]) -> None:
    async with (app := app_of(pair)).run_test(size=(140, 48)) as pilot:
        view = await shown(pilot)
        seen = []
        for number in range(1, len(view.tabs) + 1):
            await pilot.press(str(number))
            await pilot.pause()
            seen.append(view.current)
        assert seen == view.tabs
        await pilot.press("less_than_sign")
        assert view.current == view.tabs[-2]
        await pilot.press("greater_than_sign")
        assert view.current == view.tabs[-1]
        view.open_tab("kernels")
        await until(pilot, lambda: "−500 µs 900 µs 400 µs" in " ".join(screen_text(app).split()))
        view.open_tab("syncs")
        await until_shown(pilot, "−1.30 ms")
        view.open_tab("kernels")
        await press(pilot, "slash", *"name ~ gemm", "enter", shows="1 of 2 rows")
        await pilot.press("escape")
        await pilot.pause()
        assert "1 of 2 rows" not in screen_text(app)


async def test_a_row_and_an_event_are_shown_in_both_timelines(pair: tuple[Path, Path]) -> None:
    async with app_of(pair).run_test(size=(140, 48)) as pilot:
        view = await shown(pilot)
        view.open_tab("kernels")
        await pilot.pause()
        await press(pilot, "enter", shows="softmax  900 µs before → 400 µs after  2.25× faster")
        before, after = view.pair.both
        assert before.state.event is not None
        assert after.state.event is not None
        assert [line.state.lanes.trace.name(line.state.event) for line in (before, after)] == ["softmax"] * 2
        columns = [
            t.state.view.column_of(int(t.state.lanes.trace.starts[t.state.event])) for t in (before, after)
        ]
        assert columns[0] == columns[1]
        await press(pilot, "escape", shows="the first steps are aligned")
        assert before.state.event is None
        after.focus()
        await pilot.press("n")  # the trace after has no sync
        before.focus()
        await press(pilot, "home", "n", shows="cudaStreamSynchronize  has no counterpart after in this step")
        await pilot.press(
            "f", "m", "m", "b", "apostrophe", "right_curly_bracket", "left_curly_bracket", "z", "0"
        )


async def test_enter_is_offered_only_where_rows_have_events(pair: tuple[Path, Path]) -> None:
    async with app_of(pair).run_test(size=(140, 48)) as pilot:
        view = await shown(pilot)
        assert view.current == "metrics"
        assert "enter open" not in screen_text(pilot.app)
        await press(pilot, str(view.tabs.index("kernels") + 1), shows="enter open")
        await pilot.press("1")
        await until(pilot, lambda: "enter open" not in screen_text(pilot.app))


async def test_both_timelines_move_together(pair: tuple[Path, Path]) -> None:
    async with app_of(pair).run_test(size=(140, 48)) as pilot:
        view = await shown(pilot)
        before, after = view.pair.both
        await pilot.press("t")
        assert before.has_focus
        await pilot.press("end", "plus", "plus", "plus", "left")
        await pilot.pause()
        by = view.pair.shift
        assert before.state.view.span < before.state.view.last - before.state.view.first
        assert (after.state.view.low, after.state.view.high) == (
            before.state.view.low + by,
            before.state.view.high + by,
        )
        assert after.state.cursor == before.state.cursor + by
        after.focus()
        await pilot.press("minus", "home")
        await pilot.pause()
        assert (after.state.view.low, after.state.view.high) == (
            before.state.view.low + by,
            before.state.view.high + by,
        )
        await pilot.press("t")
        assert view.pane.has_focus_within


async def test_at_24_lines_the_timelines_take_the_place_of_the_table(pair: tuple[Path, Path]) -> None:
    async with (app := app_of(pair)).run_test(size=(80, 24)) as pilot:
        view = await shown(pilot)
        assert "What changed in the traces" in screen_text(app)
        assert "stream 7" not in screen_text(app)
        await pilot.press("t")
        await until(pilot, lambda: screen_text(app).count("stream 7") == 2)
        assert "What changed in the traces" not in screen_text(app)
        await press(pilot, "escape", shows="What changed in the traces")
        view.open_tab("kernels")
        await pilot.pause()
        await press(pilot, "enter", shows="softmax  900 µs before → 400 µs after")
        _before, after = view.pair.both
        assert after.has_focus
        span = after.state.view.span
        await pilot.press("plus")
        assert after.state.view.span < span


async def test_swap_rules_export_and_close(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with running(app_of(pair), size=(140, 48)) as (app, pilot):
        await shown(pilot)
        await press(pilot, "x", shows=("before fast.json", "after slow.json", "slower"))
        await press(pilot, "x", shows=("before slow.json", "faster"))
        await pilot.press("r")
        await pilot.pause()
        assert isinstance(app.screen, ReadingScreen)
        assert "per step" in screen_text(app)
        await pilot.press("escape", "e")
        await pilot.pause()
        assert isinstance(app.screen, ExportScreen)
        await pilot.press("enter")
        await until(pilot, lambda: (tmp_path / "fast.compare.txt").exists())
        assert "1.89 ms before" in (tmp_path / "fast.compare.txt").read_text()
        await until(pilot, lambda: not isinstance(app.screen, ExportScreen))
        await pilot.press("q")
    assert app.return_code in (0, None)


async def test_what_is_in_neither_trace_has_no_tab(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    async with app_of(pair).run_test(size=(140, 36)) as pilot:
        assert "syncs" in (await shown(pilot)).tabs
    both = kineto_file(tmp_path / "slow.json", 900, sync=False), pair[1]
    async with app_of(both).run_test(size=(140, 36)) as pilot:
        view = await shown(pilot)
        assert view.tabs == ["metrics", "kernels", "launches", "operators", "setup"]
        assert "Syncs" not in screen_text(pilot.app)
        assert "5 Setup –" in screen_text(pilot.app), "nothing differs there, which is an answer"


async def test_what_cannot_be_compared_is_said(pair: tuple[Path, Path], tmp_path: Path) -> None:
    app = TuiprofApp(Start("compare", compared=(str(tmp_path / "nothing"), str(pair[0]))))
    async with app.run_test(size=(100, 24)) as pilot:
        await until_shown(pilot, "✗ ")
        await pilot.press("escape", "q")


async def test_c_compares_an_open_trace_with_one_beside_it(pair: tuple[Path, Path]) -> None:
    slow, fast = pair
    assert beside(fast) == [slow]
    async with running(TuiprofApp(Start("trace", fast)), "saves about") as (app, pilot):
        await press(pilot, "c", shows=("baseline for fast.json", "slow.json"))
        assert isinstance(app.screen, PickScreen)
        await press(pilot, "enter", shows=("before slow.json", "after fast.json", "faster"))
        assert isinstance(app.screen, CompareScreen)
        await press(pilot, "q", "c", "end", "enter", shows="compare with")
        assert isinstance(app.screen, TextForm)
        await press(pilot, *str(slow), "enter", shows=("before slow.json", "faster"))


async def test_a_trace_of_a_session_is_called_after_it_wherever_it_is_named(tmp_path: Path) -> None:
    traces = shipped("traces") / "session-metrics-naive" / "traces"
    [trace] = traces.glob("*.gz")
    app = TuiprofApp(Start("trace", trace, sessions=tmp_path))
    async with running(app, "session-metrics-naive", "saves about") as (app, pilot):
        await press(pilot, "c", shows="baseline for session-metrics-naive")
        await press(pilot, "escape", "e", shows="/session_metrics_naive.")
        assert "all 1 analyses" not in screen_text(app)


def test_counterparts_have_the_same_name_step_and_place() -> None:
    trace = small_trace()
    kernels = [row for row in range(len(trace)) if "sum_kernel" in trace.name(row)]
    assert [counterpart(trace, row, trace) for row in kernels] == kernels
    rows: list[tuple[str, str, int, int, int, int | None]] = [
        ("annotation", "ProfilerStep#7", 5, 15, 0, None),
        ("runtime", "cudaLaunchKernel", 6, 7, 0, 1),
        ("kernel", "void at::native::sum_kernel<float>(int)", 8, 9, 1, 1),
    ]
    other = trace_of(rows)
    assert counterpart(trace, kernels[0], other) == 2
    assert counterpart(trace, kernels[1], other) is None  # there is no second step
    sync = next(row for row in range(len(trace)) if "Synchronize" in trace.name(row))
    assert counterpart(trace, sync, other) is None
    assert shift_between(trace, other) == 5 * MS - 0


def test_columns_of_steps_are_medians_on_one_scale() -> None:
    times = np.array([10, 10, 30, 20, 20, 20], dtype=np.int64)
    assert column_heights(times, 3, 6, 30.0, 9).tolist() == [3, 8, 6]
    assert column_heights(times[:2], 3, 6, 30.0, 9).tolist() == [3, 0, 0]


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
def test_picture(size: tuple[int, int], pair: tuple[Path, Path], snap_compare: object) -> None:
    async def open_kernels(pilot: Pilot[int]) -> None:
        view = await shown(pilot)
        view.open_tab("kernels")
        await pilot.pause()
        if size[1] > 30:
            await press(pilot, "enter", shows="2.25× faster")
        await pilot.pause()

    assert snap_compare(app_of(pair), terminal_size=size, run_before=open_kernels)  # type: ignore[operator]


def test_the_bars_of_both_runs_are_apart() -> None:
    pair = StepPair()
    times = np.full(4, 10_000_000, dtype=np.int64)
    pair.show(times, times, "from the traces")
    lines = ["".join(text for text, _ in row) for row in pair.draw(120, 5)]
    assert "scale 0 to 10.0 ms" in lines[2]
    assert [line[9] for line in lines] == ["█", "█", "s", "█", "█"]


def test_traces_whose_names_begin_alike_are_offered_first(tmp_path: Path) -> None:
    names = ["metrics-naive.json", "attention-native.json", "metrics-off.json", "metrics-old.json"]
    for age, name in enumerate(names):
        (tmp_path / name).write_text("[]")
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    found = [path.name for path in beside(tmp_path / "metrics-naive.json")]
    assert found == ["metrics-off.json", "metrics-old.json", "attention-native.json"]
