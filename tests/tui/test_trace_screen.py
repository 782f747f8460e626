from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from made_traces import HOSTILE, MS, small_trace, trace_of
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input

import tuiprof.tui.app
from tuiprof import analyses
from tuiprof.analyses import Analysis
from tuiprof.errors import TraceError
from tuiprof.model import Column, Fact, Report, Rule, Table, Trace, Unavailable, Verdict, Window
from tuiprof.tui.app import TuiprofApp
from tuiprof.tui.screens.export import ExportScreen, write
from tuiprof.tui.screens.reading import ReadingScreen
from tuiprof.tui.screens.trace import TraceScreen
from tuiprof.tui.start import Start
from tuiprof.tui.widgets.detail import DetailPane
from tuiprof.tui.widgets.loading_panel import LoadingPanel
from tuiprof.tui.widgets.tab_bar import TabBar
from tuiprof.tui.widgets.table import VirtualTable
from tuiprof.tui.widgets.timeline import Timeline
from tuiprof.tui.widgets.trace_view import TraceView
from tuiprof.tui.widgets.verdict import VerdictLine


class TraceApp(TuiprofApp):
    """The dashboard with one trace screen in front."""

    CSS_PATH = str(Path(tuiprof.tui.app.__file__).with_name("app.tcss"))

    def __init__(self, make: Callable[[], TraceScreen]) -> None:
        super().__init__(Start.library())
        self._make = make

    def first_screen(self) -> Screen[Any]:
        return self._make()

    @property
    def view(self) -> TraceView:
        return self.screen_stack[0].query_one(TraceView)

    @property
    def table(self) -> VirtualTable:
        return self.view.query_one(VirtualTable)

    @property
    def timeline(self) -> Timeline:
        return self.view.query_one(Timeline)

    def text(self, selector: str = "*") -> str:
        """What stands on the screen in front, or in one widget of it."""
        strips = self.screen._compositor.render_strips()
        lines = [strip.text for strip in strips]
        if selector == "*":
            return "\n".join(lines)
        region = self.screen.query_one(selector).region
        return "\n".join(line[region.x : region.right] for line in lines[region.y : region.bottom])

    def words(self) -> str:
        """What stands on the screen in front, without its line breaks."""
        return " ".join(self.text().split())


def _waits(trace: Trace, window: Window) -> Report | Unavailable:
    rows = [
        int(row) for row in trace.host_calls if "Sync" in trace.name(row) and trace.in_window(window)[row]
    ]
    frame = pl.DataFrame(
        {
            "where": ["train.py:7 update"] * len(rows),
            "waited_ns": [int(trace.ends[row] - trace.starts[row]) for row in rows],
            "event": rows,
        }
    )
    columns = (
        Column("where", "where"),
        Column("waited_ns", "waited", "ns"),
        Column("event", "event", hidden=True),
    )
    return Report(
        "waits",
        "Waits",
        Verdict(f"{len(rows)} waits hold the host", "bad"),
        facts=(Fact("n", "waits", len(rows), "count", "Number of waits"),),
        tables=(
            Table("waits", "Waits by place", columns, frame, note="nothing excluded"),
            Table(
                "other", "Waits by kind", columns, frame.clear(), empty="no kinds: this is a made analysis"
            ),
        ),
        rules=(Rule("wait", "The host stands for more than 0 ns."),),
        window=window,
    )


def _names(trace: Trace, window: Window) -> Report | Unavailable:
    frame = pl.DataFrame({"name": [trace.name(row) for row in range(len(trace))]})
    table = Table("names", "Names", (Column("name", "name"),), frame)
    return Report("names", "Names", Verdict("all names are fine", "good"), tables=(table,), window=window)


def _lacking(trace: Trace, window: Window) -> Report | Unavailable:
    return Unavailable("lacking", "no memory events in this trace", "record with `--memory`")


def _broken(trace: Trace, window: Window) -> Report | Unavailable:
    raise ZeroDivisionError("a bug")


@pytest.fixture(autouse=True)
def made_analyses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Analyses of known answers, so that these tests are about the screen alone."""
    monkeypatch.setenv("TUIPROF_CONFIG", str(tmp_path / "none.toml"))
    found = {
        "names": Analysis("names", "Names", "Which names are there?", _names),
        "waits": Analysis("waits", "Waits", "Who waits?", _waits),
        "lacking": Analysis("lacking", "Memory", "What holds the memory?", _lacking),
        "broken": Analysis("broken", "Broken", "What if it breaks?", _broken),
    }
    monkeypatch.setattr(analyses, "available", lambda: found)


def app_of(trace: Trace | None = None) -> TraceApp:
    return TraceApp(lambda: TraceScreen(trace=trace or small_trace()))


async def settle(pilot: Pilot[int]) -> None:
    """Wait until nothing is loaded, worked out or drawn any more."""
    for _ in range(4):
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()


async def test_the_verdict_that_matters_most_stands_on_top() -> None:
    app = app_of()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        assert "✗ 2▸ 2 waits hold the host" in app.text("#trace-verdict")
        assert "NVIDIA H200 · 2 steps · 16 events · 10.0 ms a step" in app.text("#trace-head")
        assert "trust" in app.text("#trace-head")
        tabs = app.text("TabBar")
        for title in ("1 Names ✓", "2 Waits ✗", "3 Memory –", "4 Broken –", "5 Events"):
            assert title in tabs
        await pilot.press("2")
        await settle(pilot)
        assert app.text("#trace-verdict").strip() == "▌✗ 2 waits hold the host"
        assert app.text("Evidence").count("waits hold the host") == 0  # said once, on top
        assert "rule wait: The host stands for more than 0 ns." in app.text("#answer-note")
        assert "waits 2" in app.text("#answer-facts")


async def test_what_is_unavailable_says_why_and_what_to_do() -> None:
    app = app_of()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("3")
        await settle(pilot)
        assert "Not available: no memory events in this trace" in app.text()
        assert "→ record with `--memory`" in app.text()
        await pilot.press("4")
        await settle(pilot)
        assert "ZeroDivisionError: a bug" in app.words()
        await pilot.press("r")
        await settle(pilot)
        assert "What if it breaks?" in app.text()


async def test_a_row_opens_its_details_and_jumps_between_launch_and_work() -> None:
    app = app_of()
    async with app.run_test(size=(160, 60)) as pilot:
        await settle(pilot)
        await pilot.press("2", "down", "enter")
        await settle(pilot)
        text = app.text("DetailPane")
        assert "train.py:7 update" in text
        assert "cudaStreamSynchronize" in text
        assert '{"ordinal": 14, "note": "␛[2Jgone"}' in text  # the raw text, made safe
        assert app.timeline.cursor == 18 * MS
        assert isinstance(app.focused, DetailPane)
        await pilot.press("escape")
        assert app.focused is app.table

        await pilot.press("5", "/", *"sum_", "enter")
        await settle(pilot)
        await pilot.press("enter")
        await settle(pilot)
        assert "launched by" in app.text("DetailPane")
        await pilot.press("l")
        await settle(pilot)
        detail = app.view.query_one(DetailPane)
        assert detail.event is not None
        assert app.view.trace.name(detail.event.row) == "cudaLaunchKernel"
        assert "launched one device event" in app.text("DetailPane")
        await pilot.press("u")
        await settle(pilot)
        assert app.view.trace.name(detail.event.row) == "aten::mm"
        await pilot.press("backspace")
        await settle(pilot)
        assert app.view.trace.name(detail.event.row) == "cudaLaunchKernel"
        await pilot.press("y")
        assert '"ordinal"' in app.clipboard
        assert app.clipboard.isprintable()


async def test_details_follow_the_cursor_and_show_source_that_is_here(tmp_path: Path) -> None:
    source = tmp_path / "train.py"
    source.write_text("".join(f"line_{n} = {n}\n" for n in range(1, 40)))
    trace = trace_of(
        [
            ("python_function", f"{source}(20): update", 0, 9, 0, None),
            ("cpu_op", "aten::item", 1, 8, 0, None),
            ("runtime", "cudaStreamSynchronize", 2, 7, 0, None),
        ]
    )
    app = app_of(trace)
    async with app.run_test(size=(160, 60)) as pilot:
        await settle(pilot)
        await pilot.press("5", "end", "enter")
        await settle(pilot)
        text = app.text("DetailPane")
        assert "aten::item" in text
        assert "▸    20  line_20 = 20" in text
        app.table.focus()
        await pilot.press("up")
        await pilot.pause(0.2)
        await settle(pilot)
        detail = app.view.query_one(DetailPane)
        assert detail.event is not None
        assert trace.name(detail.event.row) == "aten::item"


async def test_a_window_narrows_every_analysis_and_opens_again() -> None:
    app = app_of()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        await pilot.press("2", "n", "w")  # the first sync is in step 0
        await settle(pilot)
        assert "window: step 0" in app.text("TabBar")
        assert "1 waits hold the host" in app.text("#trace-verdict")
        await pilot.press("w")
        await settle(pilot)
        assert "window" not in app.text("TabBar")
        assert "2 waits hold the host" in app.text("#trace-verdict")
        app.timeline.select((13 * MS, 21 * MS))
        await pilot.press("w")
        await settle(pilot)
        assert "window: 13.0 ms to 21.0 ms" in app.text("TabBar")
        await pilot.press("5")
        await settle(pilot)
        assert "Events  8 rows" in app.text("#answer-title")
        await pilot.press("escape")
        await settle(pilot)
        assert app.view.window.whole


async def test_moving_in_time() -> None:
    app = app_of()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        await pilot.press("n")
        assert app.timeline.cursor == 6 * MS
        await pilot.press("n", "n")
        assert app.timeline.cursor == 18 * MS
        await pilot.press("N")
        assert app.timeline.cursor == 6 * MS
        await pilot.press("right_square_bracket")
        assert app.timeline.cursor == 12 * MS
        await pilot.press("left_square_bracket")
        assert app.timeline.cursor == 0
        whole = app.timeline.view.span
        await pilot.press("z")
        assert app.timeline.view.span == 11 * MS
        await pilot.press("plus", "minus", "minus", "0")
        assert app.timeline.view.span == whole
        app.timeline.focus()
        await pilot.press("down", "full_stop", "enter")
        await settle(pilot)
        assert "cudaLaunchKernel" in app.text("DetailPane") or "aten::mm" in app.text("DetailPane")


async def test_tables_filters_rules_and_trust_by_key() -> None:
    app = app_of()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        await pilot.press("/", *"forward")
        await settle(pilot)
        assert "2 of 16 rows  filter: forward" in app.text("#answer-title")
        await pilot.press("escape")
        await settle(pilot)
        assert "16 rows" in app.text("#answer-title")
        assert app.focused is app.table
        await pilot.press("2", "t")
        await settle(pilot)
        assert "no kinds: this is a made analysis" in app.text("VirtualTable")
        await pilot.press("r")
        await settle(pilot)
        assert isinstance(app.screen, ReadingScreen)
        assert "The host stands for more than 0 ns." in app.text()
        assert "Number of waits" in app.text()
        await pilot.press("escape", "i")
        await settle(pilot)
        assert "no Python frames: source lines cannot be named" in app.text()
        assert "→ record with" in app.text()
        await pilot.press("escape")
        await pilot.click(TabBar, offset=(5, 0))
        assert app.view.current == "names"


async def test_a_tab_is_found_as_it_was_left() -> None:
    app = app_of()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        await pilot.press("down", "down", "s", "2")
        await settle(pilot)
        await pilot.press("1")
        await settle(pilot)
        assert app.table.current == 2
        assert app.table.sorted_by == 0


async def test_hostile_names_are_shown_verbatim_everywhere() -> None:
    app = app_of()
    async with app.run_test(size=(160, 48)) as pilot:
        await settle(pilot)
        await pilot.press("/", *"evil", "enter")
        await settle(pilot)
        await pilot.press("5", "/", *"evil", "enter")
        await settle(pilot)
        await pilot.press("enter")
        await settle(pilot)
        text = app.text()
        assert "[red]evil[/red] ␛[31mcolour␛[0m ␛]0;title␇ $(reboot)" in text
        assert text.replace("\n", "").isprintable()
        assert HOSTILE not in text


@pytest.mark.parametrize(("fmt", "presses"), [("txt", 0), ("json", 1), ("csv", 2), ("md", 3)])
async def test_export_writes_what_the_renderers_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fmt: str, presses: int
) -> None:
    monkeypatch.chdir(tmp_path)
    app = app_of()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        await pilot.press("2", "e", *["tab"] * presses, "enter")
        await settle(pilot)
        assert not isinstance(app.screen, ExportScreen)
    text = (tmp_path / f"trace.waits.{fmt}").read_text()
    assert "train.py:7 update" in text
    if fmt == "json":
        assert [report["analysis"] for report in json.loads(text)["reports"]] == ["waits"]


async def test_export_never_replaces_a_file_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    there = tmp_path / "trace.report.txt"
    there.write_text("precious")
    app = app_of()
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("e", "down", "enter")  # all analyses
        await settle(pilot)
        assert "exists; enter again replaces it" in app.text()
        assert there.read_text() == "precious"
        field = app.screen.query_one(Input)
        await pilot.press("backspace", "t", "enter")  # another edit, the same name: asked again
        await settle(pilot)
        assert there.read_text() == "precious"
        await pilot.press("enter")
        await settle(pilot)
        assert "all names are fine" in there.read_text()
        assert "no memory events" in there.read_text()
        await pilot.press("e")
        field = app.screen.query_one(Input)
        field.value = str(tmp_path / "no" / "folder.txt")
        await pilot.press("enter")
        await settle(pilot)
        assert "No such file or directory" in app.words()
        await pilot.press("escape")
        assert sorted(os.listdir(tmp_path)) == ["trace.report.txt"]


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    write(target, "one", replace=False)
    with pytest.raises(FileExistsError):
        write(target, "two", replace=False)
    write(target, "three", replace=True)
    assert target.read_text() == "three"
    assert os.listdir(tmp_path) == ["a.txt"]


async def test_opening_shows_progress_and_can_be_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    from tuiprof import formats

    entered, stopped = threading.Event(), threading.Event()

    def slow(path: Path, *, progress: Callable[[int, int], None], cancelled: Callable[[], bool]) -> Trace:
        progress(30, 120)
        entered.set()
        while not cancelled():
            stopped.wait(0.01)
        stopped.set()
        raise formats.Cancelled("stopped")

    monkeypatch.setattr(formats, "open_trace", slow)
    app = TraceApp(lambda: TraceScreen(tmp_path / "big.json"))
    async with app.run_test(size=(80, 24)) as pilot:
        assert entered.wait(10)
        await pilot.pause(0.1)
        assert "big.json" in app.text()
        assert "25 %" in app.text()
        assert "cancel" in app.text("KeyBar")
        await pilot.press("escape")
    assert stopped.wait(10)


async def test_what_cannot_be_opened_says_why_and_what_to_do(tmp_path: Path) -> None:
    bad = tmp_path / "[red]bad.json"
    bad.write_text("this is no trace")
    app = TraceApp(lambda: TraceScreen(bad))
    async with app.run_test(size=(100, 24)) as pilot:
        await settle(pilot)
        panel = app.screen.query_one(LoadingPanel)
        assert isinstance(panel._error, TraceError)
        assert "✗ " in app.text()
        assert "[red]bad.json" in app.text()
        await pilot.press("q")


async def test_a_bug_of_a_decoder_is_told_and_does_not_end_the_dashboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tuiprof import formats

    def broken(path: Path, **options: object) -> Trace:
        raise KeyError("pid")

    monkeypatch.setattr(formats, "open_trace", broken)
    app = TraceApp(lambda: TraceScreen(tmp_path / "odd.json"))
    async with app.run_test(size=(100, 24)) as pilot:
        await settle(pilot)
        assert "could not be read: KeyError: 'pid'" in app.words()


@pytest.mark.parametrize("size", [(40, 10), (80, 24), (120, 36), (160, 48), (200, 50)])
async def test_every_size_keeps_verdict_tabs_table_and_keys(size: tuple[int, int]) -> None:
    app = app_of()
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        text = app.text()
        assert "2 waits hold the host" in text
        assert "Names" in app.text("TabBar")
        assert app.table.size.height >= 3
        assert "help" in app.text("KeyBar") or size[0] == 80
        shown = [lane.label.strip() for lane in app.timeline._visible]
        if size[1] >= 24:
            assert shown[:1] == ["main"]
            assert {"runtime", "stream 7", "idle"} <= set(shown)
        assert app.timeline.display == (size[1] >= 15)


async def test_every_binding_has_a_name_and_an_explanation() -> None:
    app = app_of()
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        for widget in (app.table, app.timeline, app.view.query_one(DetailPane)):
            widget.focus()
            await pilot.pause()
            bindings = [b.binding for b in app.screen.active_bindings.values() if b.node is not app.screen]
            own = [
                b for b in bindings if (b.id or "").split(".")[0] in ("table", "timeline", "trace", "detail")
            ]
            assert own
            assert all(b.tooltip and b.group for b in own)


async def test_the_verdict_line_shows_it_is_working() -> None:
    app = app_of()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await settle(pilot)
        line = app.view.query_one("#trace-verdict", VerdictLine)
        line.show("working out what holds this trace back …")
        await pilot.pause()
        assert "working out" in app.text("#trace-verdict")


async def test_a_bug_in_a_worker_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from tuiprof.tui import lanes

    def broken(trace: Trace) -> lanes.Lanes:
        raise IndexError("off by one")

    monkeypatch.setattr(lanes, "build", broken)
    app = app_of()
    async with app.run_test(size=(100, 24), notifications=True) as pilot:
        for _ in range(4):
            await pilot.pause(0.05)
        assert "IndexError: off by one" in app.words()


def test_the_screen_itself_imports_nothing_heavy() -> None:
    import subprocess
    import sys

    code = "import sys, tuiprof.tui.screens.trace; print([m for m in ('polars', 'numpy', 'torch') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
def test_picture(size: tuple[int, int], snap_compare: Any) -> None:
    """What the screen looks like with a finding open; `pytest --snapshot-update` after a wanted change."""

    async def open_finding(pilot: Pilot[int]) -> None:
        await settle(pilot)
        await pilot.press("2", "n", "w")
        await settle(pilot)
        if size[0] > 100:
            await pilot.press("enter")
        await settle(pilot)

    assert snap_compare(app_of(), terminal_size=size, run_before=open_finding)
