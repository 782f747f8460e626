"""Drawing: only lines that changed are repainted, every segment has a style, and rows fit."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from functools import lru_cache

import pytest
from lines_app import Host, text_of_widget
from on_screen import running
from rich.cells import cell_len
from textual._styles_cache import StylesCache
from textual.geometry import Region, Size
from textual.strip import Strip

from tuiprof.tui import Start
from tuiprof.tui.app.app import TuiprofApp, run_app
from tuiprof.tui.live.devices import DevicePanel, DeviceView
from tuiprof.tui.live.panes import PhaseBar
from tuiprof.tui.terminal.terminal_app import free_closed_widgets
from tuiprof.tui.widgets.bars import Tab, TabBar
from tuiprof.tui.widgets.lines import Lines, Painted, Row, fit, row_width, spread
from tuiprof.tui.widgets.spans import wrap, wrap_row


class Words(Lines):
    DEFAULT_CSS = "Words { height: 3; }"

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = []
        self.painted: list[Region] = []

    def draw(self, width: int, height: int) -> list[Row]:
        return self.rows

    def refresh(self, *regions: Region, **options: object) -> Words:
        self.painted.extend(regions)
        return super().refresh(*regions, **options)  # type: ignore[arg-type]


async def test_only_changed_lines_are_repainted() -> None:
    widget = Words()
    widget.rows = [[("step 1", "text"), ("  27.0 ms", "strong")], [("still", "dim")]]
    async with running(Host(widget), size=(40, 5)) as (_, pilot):
        await pilot.pause()
        widget.painted.clear()
        widget.redraw()
        assert widget.painted == []
        widget.rows = [[("step 2", "text"), ("  27.0 ms", "strong")], [("still", "dim")]]
        widget.redraw()
        assert widget.painted == [Region(0, 0, 40, 1)]
        assert text_of_widget(widget)[0].startswith("step 2  27.0 ms")


async def test_a_line_that_changes_for_hours_leaves_nothing_behind() -> None:
    widget = Words()
    async with running(Host(widget), size=(80, 5)) as (_, pilot):

        async def regions_kept(changes: int) -> int:
            for change in range(changes):
                start, end = sorted((change % 80, 7 * change % 81))
                widget.rows = [[("." * start + "#" * (end - start) + "." * (80 - end), "text")]]
                widget.redraw()
                if change % 10 == 0:
                    await pilot.pause()
            widget.painted.clear()
            gc.collect()
            return sum(type(found) is Region for found in gc.get_objects())

        few = await regions_kept(20)
        assert await regions_kept(500) < few + 20


async def test_a_line_that_is_drawn_again_is_freed_without_a_collection() -> None:
    widget = Words()
    async with running(Host(widget), size=(40, 5)) as (_, pilot):

        async def strips_kept(changes: int) -> int:
            for change in range(changes):
                widget.rows = [[(f"step {change}", "text")]]
                widget.redraw()
                await pilot.pause()
            return sum(type(found) is Strip for found in gc.get_objects())

        gc.collect()
        gc.disable()
        try:
            few = await strips_kept(5)
            assert await strips_kept(50) < few + 10
        finally:
            gc.enable()


def test_python_searches_for_cycles_as_before_once_the_dashboard_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, inside = gc.get_threshold(), list[tuple[int, ...]]()
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(TuiprofApp, "run", lambda _: inside.append(gc.get_threshold()))
    gc.set_threshold(700, 10, 10)
    try:
        assert run_app(Start()) == 0
        assert gc.get_threshold() == (700, 10, 10) != inside[0]
    finally:
        gc.set_threshold(*before)


async def test_the_lines_of_widgets_that_are_gone_are_freed() -> None:
    assert isinstance(vars(StylesCache)["get_inner_outer"], staticmethod), (
        "importing the application mends it"
    )
    app, gone = Host(Words()), list[weakref.ref[object]]()
    async with app.run_test(size=(40, 9)) as pilot:
        for _ in range(9):
            widget = Words()
            await app.mount(widget)
            await pilot.pause()
            gone.append(weakref.ref(widget._styles_cache))
            await widget.remove()
        gc.collect()
        assert sum(lines() is not None for lines in gone) <= 1  # the last one


def test_only_a_cached_method_of_textual_is_replaced() -> None:
    class Mended:
        @classmethod
        @lru_cache(1024)
        def get_inner_outer(cls, base: int, background: int) -> int:
            return base + background

    class Static:
        @staticmethod
        @lru_cache(1024)
        def get_inner_outer(base: int, background: int) -> int:
            return base + background

    class Method:
        @lru_cache(1024)  # noqa: B019 - as in Textual 8.2
        def get_inner_outer(self, base: int, background: int) -> int:
            return base + background

    for cache, replaced in ((Mended, False), (Static, False), (Method, True)):
        before = vars(cache)["get_inner_outer"]
        free_closed_widgets(cache)
        assert (vars(cache)["get_inner_outer"] is not before) == replaced
        assert cache().get_inner_outer(1, 2) == 3
    free_closed_widgets(Words)  # a version that has no such function


class Tall(Words):
    """Its content grows at once, what is around it with the next layout."""

    lines = 2

    @property
    def size(self) -> Size:
        return Size(super().size.width, self.lines)


async def test_content_that_grows_before_what_is_around_it_is_drawn_whole() -> None:
    widget = Tall()
    widget.rows = [[(f"line {number}", "text")] for number in range(3)]
    async with Host(widget).run_test(size=(40, 5)) as pilot:
        await pilot.pause()
        assert [line.strip() for line in text_of_widget(widget)] == ["line 0", "line 1"]
        widget.lines = 3
        widget.redraw()
        assert [line.strip() for line in text_of_widget(widget)] == ["line 0", "line 1", "line 2"]


async def test_what_grows_while_a_layout_is_under_way_gets_its_lines() -> None:
    widget = Painted()
    async with running(Host(widget), size=(40, 9)) as (app, pilot):
        widget.styles.height = "auto"
        widget.paint(lambda _width, _height: [[("a line", "text")]])
        await pilot.pause()
        assert widget.size.height == 1
        widget.refresh(layout=True)
        app.screen._clear_arrangement_cache()
        app.screen._refresh_layout()  # the layout asks for the height, and keeps the answer
        widget.paint(lambda _width, _height: [[("a line", "text")]] * 3)
        await pilot.pause()
        assert widget.size.height == 3


async def test_what_is_drawn_during_a_layout_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    widget = Words()
    widget.rows = [[(f"line {number}", "text")] for number in range(3)]
    async with Host(widget).run_test(size=(40, 9)) as pilot:
        widget.styles.height = 3
        await pilot.pause()
        # The size around the content is new, that of the content is still the old one.
        with monkeypatch.context() as under_way:
            under_way.setattr(Words, "size", Size(40, 1))
            widget.notify_style_update()
            widget.render_line(0)
        widget.redraw()
        await pilot.pause()
        assert [line.rstrip() for line in text_of_widget(widget)] == ["line 0", "line 1", "line 2"]


def test_rows_fit_and_spread() -> None:
    assert row_width(fit([("a long sentence", "text")], 6)) == 6
    assert fit([("a long sentence", "text")], 6)[-1][0].endswith("…")
    assert "".join(text for text, _ in spread([("l", "text")], [("r", "text")], 10)) == "l        r"
    assert spread([("left", "text")], [("right", "text")], 8) == [("left", "text")]


async def test_every_segment_has_a_style_and_lines_fill_the_width() -> None:
    panel = DevicePanel()
    async with running(Host(panel), size=(100, 24)) as (_, pilot):
        panel.styles.height = 20
        panel.show([gpu("[red]evil[/]\x1b[31m")], ["nvidia: absent"])
        await pilot.pause()
        for y in range(panel.size.height):
            strip = panel.render_line(y)
            assert strip.cell_length == panel.size.width == sum(cell_len(segment.text) for segment in strip)
            assert all(segment.style is not None and segment.style.color is not None for segment in strip)
        assert any("[red]evil[/]␛[31m" in line for line in text_of_widget(panel))


async def test_lines_of_devices_stand_in_columns() -> None:
    panel = DevicePanel()
    panel.compact = True
    busy, idle = gpu(), replace(gpu(), key="gpu1")
    idle.latest.update(util=0.0, mem_used_bytes=615 * (1 << 20), power_w=78.3)
    async with running(Host(panel), size=(100, 8)) as (_, pilot):
        panel.styles.height = 3
        panel.show([busy, idle], [])
        await pilot.pause()
        first, second = text_of_widget(panel)[:2]
        for mark in (" %", "of 141", " W", "°C"):
            assert first.index(mark) == second.index(mark), mark


def gpu(name: str = "NVIDIA H200") -> DeviceView:
    return DeviceView(
        "gpu0",
        "nvidia",
        name,
        memory_bytes=141 << 30,
        details={"power_limit_w": 700.0},
        latest={"util": 0.94, "mem_used_bytes": 8.9 * (1 << 30), "power_w": 611.0, "temp_c": 58.0},
        words={"throttle": "none"},
        history={"util": [0.5, float("nan"), 1.0], "mem_used_bytes": [1e9, 2e9], "power_w": [350.0, 700.0]},
        allocator=(7 << 30, 8 << 30, 9 << 30),
    )


async def test_devices_give_as_much_detail_as_there_is_room() -> None:
    panel = DevicePanel()
    async with running(Host(panel), size=(100, 24)) as (_, pilot):
        panel.styles.height = 20
        panel.show([gpu()], [])
        await pilot.pause()
        whole = "\n".join(text_of_widget(panel))
        for said in (
            "NVIDIA H200",
            "94.0 %",
            "8.90 of 141 GiB",
            "611 W",
            "58 °C",
            "peak 9.00 GiB",
            "throttle",
        ):
            assert said in whole
        panel.styles.height = 1
        await pilot.pause()
        panel.redraw()
        await pilot.pause()
        [line] = text_of_widget(panel)
        assert line.startswith(" GPU 0 util 94.0 % · mem 8.90 of 141 GiB · 611 W · 58 °C · no throttle")


def hosts_gpus(count: int, own: int) -> list[DeviceView]:
    """Return GPU ``own`` of the run, the host, then the GPUs of others."""
    from dataclasses import replace

    others = [replace(gpu(), key=f"gpu{i}", foreign=True) for i in range(count) if i != own]
    host = DeviceView("host", "host", "CPU", latest={"tree_cpu": 1.0, "util": 0.5})
    return [replace(gpu(), key=f"gpu{own}"), host, *others]


async def test_devices_of_others_take_a_line_each_and_what_room_the_runs_leave() -> None:
    panel = DevicePanel()
    async with running(Host(panel), size=(100, 40)) as (_, pilot):
        panel.styles.height = 30
        panel.show(hosts_gpus(4, own=3), [])
        await pilot.pause()
        lines = text_of_widget(panel)
        assert lines[0].split() == ["GPU", "3", "NVIDIA", "H200"]
        foreign = [line for line in lines if line.startswith((" GPU 0", " GPU 1", " GPU 2"))]
        assert len(foreign) == 3
        assert all("94.0 %" in line and "8.90 of 141 GiB" in line for line in foreign)
        assert all(line.rstrip().endswith("not this run's") for line in foreign)
        panel.styles.width = 58  # too narrow for figures that align with those of the others
        await pilot.pause()
        panel.redraw()
        await pilot.pause()
        foreign = [line for line in text_of_widget(panel) if line.startswith((" GPU 0", " GPU 1", " GPU 2"))]
        assert {line.rstrip()[7:] for line in foreign} == {
            " not this run's  util 94.0 %  mem 8.90 of 141 GiB"
        }
        panel.styles.width = 100
        panel.styles.height = 6  # the run's keep their detail, the others give way
        await pilot.pause()
        panel.redraw()
        await pilot.pause()
        lines = text_of_widget(panel)
        assert sum("not this run's" in line for line in lines) == 1
        assert "not this run's  GPU 0 94.0 % · GPU 1 94.0 % · GPU 2 94.0 %" in "\n".join(lines)
        assert lines[1].split()[0] == "mem", "a line for each figure of the run's, not one for all"


async def test_many_devices_of_others_are_one_line_of_a_narrow_screen() -> None:
    panel = DevicePanel()
    panel.compact = True
    async with running(Host(panel), size=(80, 24)) as (_, pilot):
        panel.styles.height = "auto"
        panel.show(hosts_gpus(8, own=5), [])
        await pilot.pause()
        assert panel.height_for(80) == panel.size.height == 3
        lines = text_of_widget(panel)
        assert lines[0].startswith(" GPU 5 ")
        assert lines[1].startswith(" host ")
        assert lines[2].strip() == "not this run's  7 devices: util 94.0 % to 94.0 %"


async def test_processes_on_a_device_are_listed_where_it_is_shared() -> None:
    from dataclasses import replace

    panel = DevicePanel()
    async with running(Host(panel), size=(100, 24)) as (_, pilot):
        panel.styles.height = 20
        view = gpu()
        shared = {"pid41_mem_used_bytes": 8.0 * (1 << 30), "pid977_mem_used_bytes": 1.0 * (1 << 30)}
        ours = {"tree_mem_used_bytes": 8.0 * (1 << 30)}
        panel.show([replace(view, latest={**view.latest, **shared, **ours})], [])
        await pilot.pause()
        [line] = [line for line in text_of_widget(panel) if "processes" in line]
        words = " ".join(line.split())
        assert words == "processes pid 41 8.00 GiB pid 977 1.00 GiB not this run 1.00 GiB"
        alone = {"pid41_mem_used_bytes": 8.0 * (1 << 30), **ours}
        panel.show([replace(view, latest={**view.latest, **alone})], [])
        await pilot.pause()
        assert not any("processes" in line for line in text_of_widget(panel))


async def test_a_throttled_device_says_so() -> None:
    panel = DevicePanel()
    async with running(Host(panel), size=(120, 5)) as (_, pilot):
        view = gpu()
        panel.show(
            [DeviceView("gpu0", "nvidia", "x", latest=view.latest, words={"throttle": "power cap"})], []
        )
        await pilot.pause()
        assert "throttle: power cap" in text_of_widget(panel)[0]


@pytest.mark.parametrize("width", [40, 80, 120, 160])
async def test_phases_fit_any_width_and_keep_the_largest(width: int) -> None:
    bar = PhaseBar()
    app = Host(bar)
    means = {"data": 4e5, "h2d": 9e5, "forward": 8.1e6, "backward": 15.2e6, "optimizer": 9e5, "other": 1e5}
    async with app.run_test(size=(width, 4)) as pilot:
        bar.show(means, "")
        await pilot.pause()
        [line] = text_of_widget(bar)
        assert "backward 15.2" in line
        assert "forward" in line


async def test_no_phases_say_why() -> None:
    bar = PhaseBar()
    async with running(Host(bar), size=(100, 4)) as (_, pilot):
        bar.show({}, "no phases recorded")
        await pilot.pause()
        assert "no phases recorded" in text_of_widget(bar)[0]


def test_a_line_does_not_end_between_a_number_and_its_unit() -> None:
    text = "1 slow step took 2.90 ms longer, 1 016 of 4 422 events, 44 % of it idle"
    for width in range(12, 40):
        rows = ["".join(part for part, _ in row) for row in wrap_row([(text, "dim")], width, 20)]
        for lines in (wrap(text, width), rows):
            assert " ".join(" ".join(lines).split()) == text
            for parted in ("2.90", "44", "1 slow step took 2.90"):
                assert not any(line.endswith(parted) for line in lines), lines
            assert any("1 016" in line for line in lines)
            assert any("4 422" in line for line in lines)


def test_of_too_many_tabs_those_that_ask_for_action_show() -> None:
    tabs = [
        Tab("syncs", "Syncs", "✗", "bad", "6 %", "1"),
        *(Tab(name, name, "✓", "good", "", "2") for name in ("Launches", "Idle", "Data", "Compile")),
        Tab("kernels", "Kernels", number="20 %", key="4"),
        Tab("memory", "Memory", "!", "warn", "", "7"),
        Tab("advice", "Advice", number="4", key="9", pinned=True),
    ]
    bar = TabBar()
    bar.show(tabs, "kernels", "", ("M", 3))
    (row,) = bar.draw(76, 1)
    line = "".join(text for text, _ in row)
    for title in ("1 Syncs ✗ 6 %", "4 Kernels 20 %", "7 Memory !", "9 Advice 4", "M more 3"):
        assert title in line
    assert "Launches" not in line
    assert len(line) <= 76
    bar.show(tabs, "syncs", "", ("M", 3))
    (row,) = bar.draw(76, 1)
    line = "".join(text for text, _ in row)
    assert "4 Kernels 20 %" in line, "a figure says more than that all is well"
    assert "Launches" not in line
