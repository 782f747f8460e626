from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from made_traces import MS, small_trace, trace_of
from on_screen import running, until
from textual.pilot import Pilot
from trace_app import app_of, settle, settled, typed

from tuiprof import analyses
from tuiprof.formats import open_trace
from tuiprof.model import Report, Trace, Unavailable, Window
from tuiprof.model.trace import DeviceInfo
from tuiprof.model.trust import Remark, Trust
from tuiprof.resources import shipped
from tuiprof.tui.answers.evidence import DetailPane
from tuiprof.tui.trace.head import FindingHead, TraceHead
from tuiprof.tui.trace.view import Headline, trace_facts
from tuiprof.tui.trace.widget import TraceView
from tuiprof.tui.widgets.table import VirtualTable

pytestmark = pytest.mark.usefixtures("made_analyses")


async def test_the_verdict_that_matters_most_stands_on_top() -> None:
    async with settled(app_of()) as (app, pilot):
        assert app.view.current == "waits"  # the tab that has its evidence
        await typed(pilot, "1")
        assert "✗ 2 waits hold the host" in app.text("#trace-verdict")
        assert "NVIDIA H200 · 2 steps · 16 events · 10.0 ms a step" in app.text("#trace-head")
        assert "trust" in app.text("#trace-head")
        tabs = app.text("TabBar")
        for title in ("1 Names ✓", "2 Waits ✗", "5 Events", "M more 2"):
            assert title in tabs
        assert "Memory" not in tabs  # what is not available is listed apart
        await typed(pilot, "2")
        assert app.text("#trace-verdict").strip() == "▌✗ 2 waits hold the host"
        assert app.text("Evidence").count("waits hold the host") == 0  # said once, on top
        assert "nothing excluded" in app.text("#answer-note")
        assert "rule" not in app.text("Evidence")
        await pilot.press("r")  # figures and rules are a key away
        await settle(pilot)
        assert "The host stands for more than 0 ns." in app.words()
        assert "waits: 2" in app.words()


@pytest.mark.parametrize(("pressed", "opened"), [("", "waits"), ("down", "names")])
async def test_the_worst_verdict_opens_its_tab_unless_a_person_is_at_work(
    pressed: str, opened: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, run = Event(), analyses.run

    def run_later(name: str, trace: Trace, window: Window) -> Report | Unavailable:
        if name != "names":
            assert go_on.wait(30)
        return run(name, trace, window)

    monkeypatch.setattr(analyses, "run", run_later)
    async with running(app_of()) as (app, pilot):
        await until(pilot, lambda: bool(app.screen.query(TraceView)) and bool(app.screen.query(VirtualTable)))
        await until(pilot, lambda: app.view.pane.has_focus_within)
        assert app.view.current == "names"
        if pressed:
            await pilot.press(pressed)
        go_on.set()
        await settle(pilot)
        assert "2 waits hold the host" in app.text("#trace-verdict")
        assert app.view.current == opened


async def test_the_head_says_what_a_step_takes_where_the_host_runs_ahead() -> None:
    async with settled(app_of(open_trace(shipped("traces") / "jax-async.xplane.pb.gz"))) as (app, _):
        assert "3 steps · 562 events · 2.37 ms a step" in app.text("#trace-head"), (
            "the host's 277 µs are not that"
        )


async def test_what_is_unavailable_says_why_and_what_to_do() -> None:
    async with settled(app_of(), size=(80, 24)) as (app, pilot):
        await typed(pilot, "3")
        assert "Not available: no memory events in this trace" in app.text()
        assert "→ record with `--memory`" in app.text()
        await typed(pilot, "4")
        assert "ZeroDivisionError: a bug" in app.words()
        await typed(pilot, "r")
        assert "What if it breaks?" in app.text()


async def test_a_row_opens_its_details_and_jumps_between_launch_and_work() -> None:
    async with settled(app_of(), size=(160, 60)) as (app, pilot):
        await typed(pilot, "2", "down", "enter")
        text = app.text("DetailPane")
        assert "train.py:7 update" in text
        assert "cudaStreamSynchronize" in text
        assert '{"ordinal": 14, "note": "␛[2Jgone"}' in text  # the raw text, made safe
        assert app.timeline.state.cursor == 18 * MS
        assert isinstance(app.focused, DetailPane)
        await pilot.press("escape")
        assert app.focused is app.table

        await typed(pilot, "5", "/", *"sum_", "enter")
        await typed(pilot, "enter")
        assert "launched by" in app.text("DetailPane")
        assert "f launch ↔ work" in app.text("KeyBar")
        await typed(pilot, "f")
        detail = app.view.query_one(DetailPane)
        assert detail.event is not None
        assert app.view.trace.name(detail.event.row) == "cudaLaunchKernel"
        assert "launched one device event" in app.text("DetailPane")
        await typed(pilot, "u")
        assert app.view.trace.name(detail.event.row) == "aten::mm"
        await typed(pilot, "backspace")
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
    async with settled(app_of(trace), size=(160, 60)) as (app, pilot):
        await typed(pilot, "5", "end", "enter")
        text = app.text("DetailPane")
        assert "aten::item" in text
        assert "▸    20  line_20 = 20" in text
        app.table.focus()
        await pilot.press("up")
        detail = app.view.query_one(DetailPane)
        await until(pilot, lambda: detail.event is not None and trace.name(detail.event.row) == "aten::item")


@pytest.mark.parametrize("size", [(40, 10), (80, 24), (120, 36), (160, 48), (200, 50)])
async def test_every_size_keeps_verdict_tabs_table_and_keys(size: tuple[int, int]) -> None:
    async with settled(app_of(), size=size) as (app, _):
        text = app.text()
        assert "2 waits hold the host" in text
        assert "Names" in app.text("TabBar")
        assert app.table.size.height >= 3
        assert "help" in app.text("KeyBar") or size[0] == 80
        shown = [lane.label.strip() for lane in app.timeline.state.visible_lanes]
        if size[1] >= 24:
            assert shown[:1] == ["main"]
            assert {"runtime", "stream 7", "idle"} <= set(shown)
        assert app.timeline.display == (size[1] >= 15)


async def test_every_binding_has_a_name_and_an_explanation() -> None:
    async with settled(app_of()) as (app, pilot):
        for widget in (app.table, app.timeline, app.view.query_one(DetailPane)):
            widget.focus()
            await pilot.pause()
            bindings = [b.binding for b in app.screen.active_bindings.values() if b.node is not app.screen]
            own = [
                b for b in bindings if (b.id or "").split(".")[0] in ("table", "timeline", "trace", "detail")
            ]
            assert own
            assert all(b.tooltip and b.group for b in own)


async def test_until_something_is_known_the_head_says_so() -> None:
    async with settled(app_of(), size=(80, 24)) as (app, pilot):
        app.view.query_one(FindingHead).show_headline(Headline("analysing …"))
        await pilot.pause()
        assert "analysing" in app.text("#trace-verdict")


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
def test_picture(size: tuple[int, int], snap_compare: Any) -> None:
    """What the screen looks like with a finding open; `pytest --snapshot-update` after a wanted change."""

    async def open_finding(pilot: Pilot[int]) -> None:
        await settle(pilot)
        await typed(pilot, "2", "n", "w")
        if size[0] > 100:
            await pilot.press("enter")
        await settle(pilot)

    assert snap_compare(app_of(), terminal_size=size, run_before=open_finding)


def test_a_trust_line_without_room_keeps_its_first_clause_or_counts_its_remarks() -> None:
    head = TraceHead()
    for text, shown in (
        ("no Python frames: source lines cannot be named", "i trust: no Python frames "),
        ("Neuron says: Missing additional details of the profile", "i trust: 1 remark "),
    ):
        head.show(small_trace(), Trust(16, (Remark("x", text),)), None)
        (row,) = head.draw(84, 1)
        line = "".join(part for part, _ in row)
        assert len(line) == 84
        assert shown in line
        (row,) = head.draw(200, 1)
        assert text in "".join(part for part, _ in row)
    head.show(small_trace(), Trust(16, ()), None)
    (row,) = head.draw(40, 1)
    assert "trust: complete" in "".join(part for part, _ in row)


def test_devices_that_a_number_tells_apart_are_named_once() -> None:
    trace = small_trace()
    for count, said in ((3, "AMD GPU ×3"), (1, "AMD GPU 0")):
        trace.info = replace(trace.info, devices=tuple(DeviceInfo(n, f"AMD GPU {n}") for n in range(count)))
        assert trace_facts(trace, surveyed=True, rank=False)[0] == said
