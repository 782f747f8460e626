from __future__ import annotations

import re
import threading

import numpy as np
import polars as pl
import pytest
from made_traces import HOSTILE
from on_screen import running, until, workers_done
from textual.app import App, ComposeResult

from tuiprof.model import Column
from tuiprof.tui.widgets import frame_rows
from tuiprof.tui.widgets.bars import ScrollLine
from tuiprof.tui.widgets.frame_rows import FrameRows, column_widths
from tuiprof.tui.widgets.table import VirtualTable

COLUMNS = (
    Column("name", "name"),
    Column("dur_ns", "duration", "ns"),
    Column("share", "share", "share"),
    Column("event", "event", "count", hidden=True),
)


def frame() -> pl.DataFrame:
    return pl.DataFrame(
        {
            "name": pl.Series(["mm", "Add", "copy", None], dtype=pl.Enum(["mm", "Add", "copy"])),
            "dur_ns": [2_000_000, 500, None, 30_000],
            "share": [0.5, float("nan"), 0.25, 0.1],
            "event": [0, 1, 2, 3],
        }
    )


class TableApp(App[None]):
    def __init__(self, rows: FrameRows, empty: str = "") -> None:
        super().__init__()
        self.rows, self.empty = rows, empty
        self.opened: list[int] = []

    def compose(self) -> ComposeResult:
        yield VirtualTable()

    def on_mount(self) -> None:
        self.table.load(self.rows, empty=self.empty)
        self.table.focus()

    @property
    def table(self) -> VirtualTable:
        return self.query_one(VirtualTable)

    def on_virtual_table_selected(self, message: VirtualTable.Selected) -> None:
        self.opened.append(message.source)

    def line(self, y: int) -> str:
        return self.table.render_line(y).text


def order(rows: FrameRows) -> list[int]:
    return [rows.source(i) for i in range(len(rows))]


def test_cells_show_units_and_unknown_values_as_a_dash() -> None:
    rows = FrameRows(frame(), COLUMNS)
    assert [h.label for h in rows.headings] == ["name", "duration", "share"]
    assert [rows.text(0, i) for i in range(3)] == ["mm", "2.00 ms", "50.0 %"]
    assert (rows.text(3, 0), rows.text(2, 1), rows.text(1, 2)) == ("–", "–", "–")


@pytest.mark.parametrize(
    ("column", "ascending", "descending"),
    [
        (0, [1, 2, 0, 3], [0, 2, 1, 3]),  # by the text, not by its code; null last either way
        (1, [1, 3, 0, 2], [0, 3, 1, 2]),
        (2, [3, 2, 0, 1], [0, 2, 3, 1]),  # NaN is unknown: last
    ],
)
def test_sorting_puts_unknown_values_last(column: int, ascending: list[int], descending: list[int]) -> None:
    rows = FrameRows(frame(), COLUMNS)
    rows.sort(column)
    assert order(rows) == ascending
    rows.sort(column, descending=True)
    assert order(rows) == descending
    rows.sort(None)
    assert order(rows) == [0, 1, 2, 3]


def test_sorting_integers_is_stable_whatever_their_range() -> None:
    for top in (5, 1 << 62):
        values = np.array([3, top, 3, -1, 3], dtype=np.int64)
        rows = FrameRows(pl.DataFrame({"v": values}), [Column("v", "v", "count")])
        rows.sort(0)
        assert order(rows) == [3, 0, 2, 4, 1]


@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(0).normal(size=5000),
        np.array([0.1, -0.0, 0.0, -1e300, 1e-300, 0.1 + 1e-16, np.inf, -np.inf]),
        np.random.default_rng(1).integers(-(1 << 63), (1 << 63) - 1, 5000),
        np.array([1 << 63, 3, (1 << 64) - 1], dtype=np.uint64),
        np.array([True, False, True]),
    ],
)
def test_sorting_agrees_with_a_stable_sort(values: np.ndarray) -> None:
    rows = FrameRows(pl.DataFrame({"v": values}), [Column("v", "v", "number")])
    rows.sort(0)
    assert values[order(rows)].tolist() == values[np.argsort(values, kind="stable")].tolist()


def test_filter_and_order_go_together() -> None:
    rows = FrameRows(frame(), COLUMNS)
    rows.sort(1)
    rows.filter("C")
    assert order(rows) == [2]  # ignoring case; "c" of "copy" alone
    rows.filter("(")  # a text, not a pattern
    assert (len(rows), rows.total) == (0, 4)
    rows.filter("")
    assert order(rows) == [1, 3, 0, 2]
    assert rows.position(3) == 1


def test_long_texts_give_way_before_numbers() -> None:
    widths = column_widths([4, 8, 5], [60, 9, 90], [False, True, False], 60)
    assert widths[1] >= 9
    assert sum(widths) + 2 * 3 <= 60
    assert min(widths[0], widths[2]) >= 12


async def test_keys_move_sort_copy_and_open() -> None:
    async with running(TableApp(FrameRows(frame(), COLUMNS)), size=(60, 12)) as (app, pilot):
        await pilot.press("down", "down")
        assert app.table.current == 2
        await pilot.press("end")
        assert app.table.current == 3
        await pilot.press("home", "right", "s")
        assert app.line(0).split()[:3] == ["name", "duration", "▼"]
        assert app.table.current == 0  # the cursor stayed on its row, now the first
        assert [app.line(y).split()[0] for y in (1, 2, 3, 4)] == ["mm", "–", "Add", "copy"]
        await pilot.press("s")
        assert "▲" in app.line(0)
        await pilot.press("s")
        assert not set("▲▼") & set(app.line(0))
        await pilot.press("y")
        assert app.clipboard == "mm\t2.00 ms\t50.0 %"
        await pilot.press("down", "enter")
        assert app.opened == [1]


async def test_mouse_sorts_by_heading_and_opens_by_double_click() -> None:
    async with running(TableApp(FrameRows(frame(), COLUMNS)), size=(60, 12)) as (app, pilot):
        at = app.line(0).index("duration") + 2
        await pilot.click(VirtualTable, offset=(at, 0))
        assert (app.table.sorted_by, app.table.descending) == (1, True)
        await pilot.click(VirtualTable, offset=(3, 3))
        assert (app.table.cursor, app.opened) == (2, [])
        await pilot.double_click(VirtualTable, offset=(3, 3))
        assert app.opened == [app.table.rows.source(2)]


async def test_a_million_rows_show_the_right_row_wherever_one_goes() -> None:
    count = 1_000_000
    values = np.random.default_rng(1).permutation(count)
    data = pl.DataFrame({"row": np.arange(count), "value_ns": values})
    app = TableApp(FrameRows(data, [Column("row", "row", "number"), Column("value_ns", "value", "count")]))
    async with app.run_test(size=(60, 20)) as pilot:
        await pilot.press("end")
        assert app.table.current == count - 1
        page = app.table.size.height - 1
        assert app.line(page).split() == [*f"{count - 1:,}".split(","), *f"{values[-1]:,}".split(",")]
        await pilot.press("right", "s")
        await until(pilot, lambda: app.table.sorted_by == 1)
        await pilot.press("home")
        assert app.table.current == int(np.argmax(values))
        await pilot.press("pagedown")
        assert values[app.table.current] == count - 1 - app.table.cursor
        app.table.refilter("no text column, so nothing matches")
        await pilot.pause()
        assert "filter" in app.line(1)


async def test_hostile_text_is_shown_and_never_obeyed() -> None:
    data = pl.DataFrame({"name": [HOSTILE, "two\nlines"]})
    async with running(TableApp(FrameRows(data, [Column("name", "[b]name[/b]")])), size=(120, 8)) as (app, _):
        assert "[b]name[/b]" in app.line(0)
        assert app.line(1).strip().startswith("[red]evil[/red] ␛[31mcolour␛[0m ␛]0;title␇ $(reboot)")
        assert app.line(2).strip() == "two␊lines"
        everything = "".join(app.line(y) for y in range(8))
        assert everything.isprintable()


async def test_every_segment_has_a_style_and_lines_fill_the_width() -> None:
    wide = pl.DataFrame({f"c{i}": [i * 1000] for i in range(30)} | {"数": ["広い" * 40]})
    columns = [*(Column(f"c{i}", f"column {i}", "ns") for i in range(30)), Column("数", "数")]
    async with running(TableApp(FrameRows(wide, columns)), size=(50, 6)) as (app, pilot):
        for _ in range(31):
            for y in range(4):
                strip = app.table.render_line(y)
                assert all(segment.style is not None for segment in strip)
                assert strip.cell_length == app.table.size.width
            await pilot.press("right")
        assert "数" in app.line(0)  # the last column was scrolled into view


async def test_no_figure_is_cut_by_an_edge() -> None:
    values = {f"figure {n}": [123_456_000 + n, 789_000] for n in range(9)}
    rows = FrameRows(pl.DataFrame(values), [Column(name, name, "ns") for name in values])
    whole = {rows.text(row, column) for row in range(2) for column in range(9)}
    for width in (30, 37, 44, 51, 58):
        async with running(TableApp(rows), size=(width, 6)) as (app, pilot):
            await pilot.pause()
            for _ in range(2):
                for y in (1, 2):
                    line = app.line(y)
                    assert len(line) == app.table.size.width
                    shown = re.findall(r"\S+ \S+", line)
                    assert shown
                    assert set(shown) <= whole
                await pilot.press("end" if width % 2 else "right", "right", "right", "right", "right")
                await pilot.pause()


async def test_an_empty_table_says_why() -> None:
    app = TableApp(FrameRows(frame().clear(), COLUMNS), empty="no syncs: the host never waits")
    async with app.run_test(size=(60, 6)) as pilot:
        assert "no syncs: the host never waits" in app.line(0)  # there are no headings
        await pilot.press("enter", "s", "y", "down")
        assert app.opened == []


class HeldSort:
    """Holds up the sorting of rows that are many enough to be sorted in a worker."""

    def __init__(self, rows: FrameRows, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on = threading.Event()
        self.threads: list[threading.Thread] = []
        self._rows = rows
        monkeypatch.setattr(frame_rows, "_SLOW_ROWS", 2)
        monkeypatch.setattr(rows, "prepare_sort", self._prepare)

    def _prepare(self, column: int) -> None:
        self.threads.append(threading.current_thread())
        self.go_on.wait(20)
        FrameRows.prepare_sort(self._rows, column)


async def test_many_rows_are_sorted_away_from_the_screen_while_the_old_order_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = FrameRows(frame(), COLUMNS)
    held = HeldSort(rows, monkeypatch)
    async with running(TableApp(rows), size=(60, 10)) as (app, pilot):
        await pilot.press("right", "s")
        await pilot.pause()
        assert "duration …" in app.line(0)
        assert order(rows) == [0, 1, 2, 3]
        await pilot.press("down")  # keys go on working
        assert app.table.cursor == 1
        held.go_on.set()
        await workers_done(pilot)
        assert order(rows) == [0, 3, 1, 2]
        assert "duration ▼" in app.line(0)
        assert app.table.current == 1  # the cursor stays on its row
        await pilot.press("s")
        await pilot.pause()
        assert order(rows) == [1, 3, 0, 2]
        assert held.threads != [threading.main_thread()]
        assert len(held.threads) == 1  # the other way round is known then


async def test_an_order_that_comes_too_late_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, others = FrameRows(frame(), COLUMNS), FrameRows(frame(), COLUMNS)
    held = HeldSort(rows, monkeypatch)
    async with running(TableApp(rows), size=(60, 10)) as (app, pilot):
        await pilot.press("right", "s")
        app.table.load(others)
        held.go_on.set()
        await workers_done(pilot)
        assert app.table.sorted_by is None
        assert order(others) == [0, 1, 2, 3]
        assert "…" not in app.line(0)


@pytest.mark.parametrize("vertical", [True, False])
def test_a_scroll_line_stands_at_an_end_only_where_what_is_scrolled_does(vertical: bool) -> None:
    for position in range(81):
        bar = ScrollLine.render_bar(20, 100, 20, position, vertical=vertical)
        cells = "".join(segment.text for segment in bar.segments).rstrip("\n")
        line = ScrollLine.VERTICAL if vertical else ScrollLine.HORIZONTAL
        assert len(cells) == 20
        assert cells.count(line) == 4
        assert cells.startswith(line) == (position == 0)
        assert cells.endswith(line) == (position == 80)
    everything = ScrollLine.render_bar(20, 20, 0, 0, vertical=vertical)
    assert "".join(segment.text for segment in everything.segments).isspace()


async def test_the_column_that_ranks_the_rows_is_marked_from_the_start_and_tinted_by_size() -> None:
    frame = pl.DataFrame({"name": ["a", "b", "c"], "size": [3, 9, 1], "total": [90_000, 50_000, 100]})
    rows = FrameRows(
        frame, [Column("name", "name"), Column("size", "size", "count"), Column("total", "total", "ns")]
    )
    assert rows.ranked == (2, True)
    assert [round(rows.heat(position, 2), 2) for position in range(3)] == [1.0, 0.56, 0.0]
    async with running(TableApp(rows), size=(60, 6)) as (app, pilot):
        await pilot.pause()
        assert "total ▼" in app.line(0)
        await pilot.press("right", "s")  # what a person sorts by takes the mark
        await pilot.pause()
        assert "size ▼" in app.line(0) or "size ▲" in app.line(0)
        assert "total ▼" not in app.line(0)
    unordered = FrameRows(
        frame.reverse().sort("name"), [Column("name", "name"), Column("size", "size", "count")]
    )
    assert unordered.ranked is None
