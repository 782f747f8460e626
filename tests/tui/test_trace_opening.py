from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import polars as pl
import pytest
from made_traces import MS, small_trace, trace_of
from make_trace import make
from on_screen import press, running, until, until_shown
from trace_app import TraceApp, app_of, settle, settled
from waiting import came

from tuiprof import formats
from tuiprof.errors import TraceError
from tuiprof.formats import kineto
from tuiprof.model import Trace, Window
from tuiprof.tui.answers.answer_pane import AnswerPane
from tuiprof.tui.opening.loading import LoadingPanel, Opening
from tuiprof.tui.timeline.lanes import Lanes
from tuiprof.tui.timeline.state import Search
from tuiprof.tui.trace.screen import TraceScreen
from tuiprof.tui.trace.widget import TraceView

pytestmark = pytest.mark.usefixtures("made_analyses")


async def test_opening_shows_progress_and_can_be_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go_on, stopped = threading.Event(), threading.Event(), threading.Event()

    def slow(
        path: Path, *, progress: Callable[[int, int], None], cancelled: Callable[[], bool], **_options: object
    ) -> Trace:
        progress(30, 120)
        entered.set()
        go_on.wait(60)
        progress(120, 120)
        assert came(cancelled, 60), "nobody cancelled it"
        stopped.set()
        raise formats.Cancelled("stopped")

    monkeypatch.setattr(formats, "open_trace", slow)
    async with running(TraceApp(lambda: TraceScreen(tmp_path / "big.json")), size=(80, 24)) as (app, pilot):
        await until(pilot, entered.is_set)
        await until(pilot, lambda: "25 %" in app.text())
        assert "reading · 30" in app.text()
        assert "big.json" in app.text()
        go_on.set()
        await until(pilot, lambda: "analysing · 120" in app.text())
        assert "cancel" in app.text("KeyBar")
        await pilot.press("escape")
    assert stopped.wait(10)


async def test_what_cannot_be_opened_says_why_and_what_to_do(tmp_path: Path) -> None:
    bad = tmp_path / "[red]bad.json"
    bad.write_text("this is no trace")
    async with settled(TraceApp(lambda: TraceScreen(bad)), size=(100, 24)) as (app, pilot):
        panel = app.screen.query_one(LoadingPanel)
        assert isinstance(panel.error, TraceError)
        assert "✗ " in app.text()
        assert "[red]bad.json" in app.text()
        await pilot.press("q")


async def test_an_error_of_several_lines_is_shown_in_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: Path, **options: object) -> Trace:
        raise TraceError("the converter failed:\n  first \x1b[31mline\n  second line\n", "upgrade it\nor ask")

    monkeypatch.setattr(formats, "open_trace", broken)
    async with settled(TraceApp(lambda: TraceScreen(tmp_path / "odd.json")), size=(100, 24)) as (app, _):
        lines = [line.strip() for line in app.text("LoadingPanel").splitlines()]
        at = lines.index("✗ the converter failed:")
        assert lines[at : at + 6] == [
            "✗ the converter failed:", "first ␛[31mline", "second line", "", "→ upgrade it", "or ask",
        ]  # fmt: skip


async def test_a_bug_of_a_decoder_is_told_and_does_not_end_the_dashboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: Path, **options: object) -> Trace:
        raise KeyError("pid")

    monkeypatch.setattr(formats, "open_trace", broken)
    async with settled(TraceApp(lambda: TraceScreen(tmp_path / "odd.json")), size=(100, 24)) as (app, _):
        assert "could not be read: KeyError: 'pid'" in app.words()


async def test_a_bug_in_a_worker_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from tuiprof.tui.timeline import lanes

    def broken(trace: Trace) -> lanes.Lanes:
        raise IndexError("off by one")

    monkeypatch.setattr(lanes, "build", broken)
    async with running(app_of(), size=(100, 24), notifications=True) as (app, pilot):
        await until(pilot, lambda: "IndexError: off by one" in app.words())


def test_the_screen_itself_imports_nothing_heavy() -> None:

    code = "import sys, tuiprof.tui.trace.screen; print([m for m in ('polars', 'numpy', 'torch') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )


def part_of(trace: Trace, count: int) -> Trace:
    """What a reader has after so many events of the file, counted from the first of them."""
    events = trace.events.filter(pl.col("ordinal") < count)
    return Trace(events.with_columns(pl.col("ts") - events["ts"].min()), trace.tracks, trace.info)


class SlowFile:
    """Stands for a large file: hands out parts when told to, and all of it at the end."""

    def __init__(self, *parts: Trace) -> None:
        self.parts = parts
        self.go_on = threading.Semaphore(0)
        self.error: TraceError | None = None

    def open(
        self,
        path: Path,
        *,
        progress: Callable[[int, int], None],
        cancelled: Callable[[], bool],
        partial: Callable[[Trace], None],
    ) -> Trace:
        for number, part in enumerate(self.parts[:-1], 1):
            progress(number * 20 << 20, 100 << 20)
            partial(part)
            self.go_on.acquire(timeout=20)
            progress(number * 20 + 10 << 20, 100 << 20)
        if self.error is not None:
            raise self.error
        return self.parts[-1]


#: Begins to read a trace: takes it whole, and after how many of its events a part of it is handed out.
ReadSlowly = Callable[..., tuple[SlowFile, TraceApp]]


@pytest.fixture
def read_slowly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReadSlowly:
    def begin(whole: Trace, *counts: int) -> tuple[SlowFile, TraceApp]:
        file = SlowFile(*(part_of(whole, count) for count in counts), whole)
        monkeypatch.setattr(formats, "open_trace", file.open)
        return file, TraceApp(lambda: TraceScreen(tmp_path / "big.json"))

    return begin


async def test_a_view_that_is_mounted_while_the_application_exits_shows_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Textual then mounts no children, wherever it has got to."""
    monkeypatch.setattr(AnswerPane, "compose", lambda self: iter(()))
    async with running(app_of(small_trace()), size=(80, 24)) as (app, pilot):
        await until(pilot, lambda: bool(app.screen.query(TraceView)))
        assert not app.screen.query_one(TraceView).is_whole


async def test_the_first_part_shows_while_the_rest_is_read(read_slowly: ReadSlowly) -> None:
    file, app = read_slowly(small_trace(), 0, 8)
    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: "20 %" in app.text())
        assert app.screen.query(LoadingPanel)  # a part without events is nothing to look at
        file.go_on.release()
        await until_shown(pilot, "40 % read · results cover the first 40 %", "so far, 40 % read: ")
        await until_shown(pilot, "8 events")
        # Only what is looked at is worked out from a part.
        assert "2 Waits …" in app.text("TabBar")
        await press(pilot, "2", shows="so far, 40 % read: 1 waits hold the host")
        app.timeline.focus()
        await pilot.press("plus", "right", "right")
        cursor, span = app.timeline.state.cursor, app.timeline.state.view.span
        file.go_on.release()
        await settle(pilot)
        text = await until_shown(pilot, "2 waits hold the host", "16 events")
        assert "read" not in app.text("#trace-head")
        assert "so far" not in text
        assert app.view.current == "waits"
        assert (app.timeline.state.cursor, app.timeline.state.view.span) == (cursor, span)
        assert "1 Names ✓" in app.text("TabBar")


async def test_a_table_keeps_its_order_filter_and_row_when_more_is_read(read_slowly: ReadSlowly) -> None:
    file, app = read_slowly(small_trace(), 8)
    async with app.run_test(size=(120, 36)) as pilot:
        await until_shown(pilot, "8 rows")
        await press(pilot, "/", *"m", "enter", "s", "down", shows="filter: m")
        before = app.table.rows.text(app.table.cursor, 0)
        file.go_on.release()
        await until_shown(pilot, "of 16 rows", "filter: m")
        assert app.table.rows.text(app.table.cursor, 0) == before
        assert app.table.sorted_by == 0
        assert "▲" in app.text("VirtualTable")


async def test_search_event_bookmarks_and_details_stay_when_more_is_read(read_slowly: ReadSlowly) -> None:
    """Rows are others then: what is read later begins before what was read first."""
    rows: list[tuple[str, str, int, int, int, int | None]] = [
        ("runtime", "cudaLaunchKernel", 20, 21, 0, 7),
        ("kernel", "gemm one", 22, 24, 1, 7),
        ("cpu_op", "other", 26, 27, 0, None),
        ("runtime", "cudaLaunchKernel", 2, 3, 0, 5),
        ("kernel", "gemm two", 4, 6, 1, 5),
    ]
    file, app = read_slowly(trace_of(rows), 3)
    async with app.run_test(size=(160, 48)) as pilot:
        await until_shown(pilot, "3 events", "gemm")
        timeline = app.timeline
        timeline.focus()
        await press(pilot, "slash", *"GEMM", "enter", shows=("/GEMM 1 of 1", "launched by cudaLaunchKernel"))
        await press(pilot, "b", "plus", "enter", shows="launched by  (f goes there)")
        await until(pilot, lambda: app.view.evidence.detail.has_focus)
        lane, row, span = timeline.state.lane, timeline.state.event, timeline.state.view.span
        assert lane is not None
        assert row is not None
        assert timeline.state.lanes is not None
        name = timeline.state.lanes.trace.name(row)
        file.go_on.release()
        await until_shown(pilot, "5 events", "/GEMM 2 of 2")
        trace = timeline.state.lanes.trace
        assert timeline.state.event is not None
        assert timeline.state.event != row
        assert (trace.name(timeline.state.event), trace.starts[timeline.state.event]) == (name, 22 * MS)
        assert trace.name(timeline.state.links[0].row) == "cudaLaunchKernel"
        assert timeline.state.bookmarks == [22 * MS]
        assert timeline.state.lane is not None
        assert (timeline.state.lane.label, timeline.state.view.span) == (lane.label, span)
        await until(pilot, lambda: (shown := app.view.evidence.detail.event) is not None and shown.row != row)
        assert app.view.evidence.detail_open
        assert app.view.evidence.detail.has_focus
        timeline.focus()
        await pilot.press("n")
        assert timeline.state.event == 1  # around the end of the trace, to the hit that was not known before


async def test_a_search_that_ends_after_more_was_read_is_not_lost(
    read_slowly: ReadSlowly, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, app = read_slowly(small_trace(), 8)
    look_up, may_end = Search.of, threading.Event()

    def slow(lanes: Lanes, needle: str) -> Search:
        if len(lanes.trace) == 8:
            may_end.wait(20)
        return look_up(lanes, needle)

    monkeypatch.setattr(Search, "of", slow)
    async with app.run_test(size=(120, 36)) as pilot:
        await until_shown(pilot, "8 events")
        app.timeline.focus()
        await pilot.press("slash", *"forward", "enter")
        file.go_on.release()
        await until_shown(pilot, "16 events")
        may_end.set()
        await until_shown(pilot, "/forward 1 of 2")


async def test_instants_stay_where_they_are_when_an_earlier_event_is_found(read_slowly: ReadSlowly) -> None:
    """Files are not in order of time: what is read later may begin before what was read first."""
    rows: list[tuple[str, str, int, int, int, int | None]] = [
        ("cpu_op", "later", 10, 12, 0, None),
        ("cpu_op", "last", 14, 18, 0, None),
        ("cpu_op", "first", 0, 5, 0, None),
    ]
    file, app = read_slowly(trace_of(rows), 2)
    async with app.run_test(size=(120, 36)) as pilot:
        await until_shown(pilot, "2 events", "last")
        app.timeline.state.go_to(4 * MS)  # "last", counted from "later"
        app.view.set_window(Window(4 * MS, 8 * MS))
        file.go_on.release()
        await until_shown(pilot, "3 events")
        assert app.timeline.state.cursor == 14 * MS
        assert app.view.window == Window(14 * MS, 18 * MS)


async def test_what_was_read_stays_when_the_rest_cannot_be(read_slowly: ReadSlowly) -> None:
    file, app = read_slowly(small_trace(), 8)
    file.error = TraceError("the disk is gone", "mount it again")
    async with app.run_test(size=(140, 36), notifications=True) as pilot:
        await until_shown(pilot, "8 events")
        file.go_on.release()
        await until_shown(pilot, "results cover the first 20 %: the rest cannot be read", "the disk is gone")
        assert "so far, 20 % read" in app.text()


async def test_a_real_file_is_shown_from_its_first_stretch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the decoder itself, told to hand out early and held until the part was seen."""
    monkeypatch.setattr(kineto, "_FIRST_PARTIAL_S", 0.0)
    monkeypatch.setenv("TUIPROF_TRACE_CACHE", "off")
    seen = threading.Event()
    handed = Opening._show_part

    def hold(self: Opening, trace: Trace) -> None:
        handed(self, trace)
        if len(trace):
            seen.wait(20)

    monkeypatch.setattr(Opening, "_show_part", hold)
    path = tmp_path / "trace.json"
    source = Path(__file__).parents[2] / "traces" / "metrics-naive.pt.trace.json.gz"
    make(source, path, 24)
    async with running(TraceApp(lambda: TraceScreen(path))) as (app, pilot):
        await until_shown(pilot, "results cover the first", "so far")
        part = len(app.view.trace)
        seen.set()
        await until(pilot, lambda: app.view.work.part is None, 60)
        assert len(app.view.trace) > part
        assert "so far" not in app.text()
