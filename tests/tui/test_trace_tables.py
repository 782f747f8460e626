from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from made_traces import HOSTILE
from on_screen import screen_text, until
from trace_app import app_of, only, settle, settled, typed

from tuiprof.model import Column, Report, Table, Verdict
from tuiprof.tui.answers.view import default_columns
from tuiprof.tui.dialogs.dialog import ColumnsScreen, ReadingScreen
from tuiprof.tui.widgets.bars import TabBar
from tuiprof.tui.widgets.filter import FilterLine

pytestmark = pytest.mark.usefixtures("made_analyses")


async def test_tables_filters_rules_and_trust_by_key() -> None:
    async with settled(app_of()) as (app, pilot):
        await typed(pilot, "1", "/", *"forward")
        assert "2 of 16 rows  filter: forward" in app.text("#answer-title")
        await typed(pilot, "escape")
        assert "16 rows" in app.text("#answer-title")
        assert app.focused is app.table
        await typed(pilot, "2", "t")
        assert "no kinds: this is a made analysis" in app.text("VirtualTable")
        await typed(pilot, "r")
        assert isinstance(app.screen, ReadingScreen)
        assert "The host stands for more than 0 ns." in app.text()
        assert "Number of waits" in app.text()
        await typed(pilot, "escape", "i")
        assert "no Python frames: source lines cannot be named" in app.text()
        assert "→ record with" in app.text()
        await pilot.press("escape")
        await pilot.click(TabBar, offset=(5, 0))
        assert app.view.current == "names"


async def test_a_tab_is_found_as_it_was_left() -> None:
    async with settled(app_of()) as (app, pilot):
        await typed(pilot, "1")
        await typed(pilot, "down", "down", "s", "2")
        await typed(pilot, "1")
        assert app.table.current == 2
        assert app.table.sorted_by == 0


async def test_hostile_names_are_shown_verbatim_everywhere() -> None:
    async with settled(app_of(), size=(160, 48)) as (app, pilot):
        await typed(pilot, "/", *"evil", "enter")
        await typed(pilot, "5", "/", *"evil", "enter")
        await typed(pilot, "enter")
        text = app.text()
        assert "[red]evil[/red] ␛[31mcolour␛[0m ␛]0;title␇ $(reboot)" in text
        assert text.replace("\n", "").isprintable()
        assert HOSTILE not in text


async def test_a_filter_expression_compares_figures_and_points_at_what_is_wrong() -> None:
    async with settled(app_of()) as (app, pilot):
        await pilot.press("5", "/")
        await pilot.pause()
        assert "columns: start · duration · category · name" in app.text()
        await pilot.press(*"duration >= 5")
        await pilot.pause()
        line = next(line for line in app.text().splitlines() if "missing unit" in line)
        filtered = next(line for line in app.text().splitlines() if "duration >= 5" in line)
        assert line.index("^") == filtered.index("duration >= 5") + len("duration >= 5")
        assert "16 rows" in app.text("#answer-title")  # what is no filter leaves the rows alone
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.focused, FilterLine)
        await typed(pilot, *"ms and category ~ kernel", "enter")
        assert app.focused is app.table
        assert "2 of 16 rows  filter: duration >= 5ms and category ~ kernel" in app.text("#answer-title")
        await pilot.press("/", "escape")
        await pilot.pause()
        assert "16 rows" in app.text("#answer-title")


async def test_columns_that_cannot_be_kept_leave_no_file_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUIPROF_CONFIG", str(tmp_path / "tuiprof" / "config.toml"))
    (tmp_path / "tuiprof" / "columns.json").mkdir(parents=True)
    async with settled(app_of(), notifications=True) as (app, pilot):
        await pilot.press("5", "s", "v")
        await pilot.pause()
        await typed(pilot, "space", "enter")
        assert "the choice is not kept" in [notice.message for notice in app._notifications][-1]
    assert [path.name for path in (tmp_path / "tuiprof").iterdir()] == ["columns.json"]


async def test_columns_are_chosen_ordered_and_kept() -> None:
    async with settled(app_of()) as (app, pilot):
        await pilot.press("5", "s", "v")
        await pilot.pause()
        assert isinstance(app.screen, ColumnsScreen)
        assert "[x] duration" in app.text()
        await typed(pilot, "space", "down", "K", "K", "down", "down", "x", "J", "enter")
        # "start" is hidden, "duration" moved before it, "category" hidden and moved behind the name.
        assert [heading.label for heading in app.table.rows.headings] == ["duration", "name", "step", "track"]
    async with settled(app_of()) as (again, pilot):
        await typed(pilot, "5")
        assert [heading.label for heading in again.table.rows.headings] == [
            "duration",
            "name",
            "step",
            "track",
        ]
        await typed(pilot, "v", "escape", "v", "r")
        assert again.table.rows.headings[0].label == "start"
        await pilot.press("v", *["space", "down"] * 5)
        assert "enter apply" in screen_text(again)
        assert "esc cancel" in screen_text(again)
        await typed(pilot, "q")
        assert len(again.table.rows.headings) == 6


async def test_a_cell_and_a_row_are_copied_as_they_show() -> None:
    async with settled(app_of()) as (app, pilot):
        await pilot.press("5", "right", "right", "right", "down", "Y")
        assert app.clipboard == "forward"
        await pilot.press("y")
        assert app.clipboard.split("\t") == [
            "0 ns",
            "4.00 ms",
            "annotation",
            "forward",
            "0",
            "thread 1 (python)",
        ]


async def test_the_table_is_exported_exactly_as_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with settled(app_of()) as (app, pilot):
        await pilot.press("5", "/", *"category ~ runtime", "enter")
        await until(pilot, lambda: len(app.table.rows) == 4)
        await pilot.press("right", "s")
        await until(pilot, lambda: app.table.sorted_by is not None)
        await settle(pilot)
        await pilot.press("e")
        await pilot.pause()
        assert "(●) the table as shown, 4 rows" in app.text()  # of events nothing else can be written
        await pilot.press("down", "up", "tab", "tab", "enter")  # csv
        await settle(pilot)
    lines = (tmp_path / "trace.events.csv").read_text().splitlines()
    shown = [line for line in lines if "cuda" in line]
    assert [("Synchronize" in line) for line in shown] == [True, True, False, False]  # the longest first
    assert len(shown) == 4
    assert not any("forward" in line for line in lines)


def places_report(count: int = 3) -> Report:
    frame = pl.DataFrame(
        {
            **{f"figure{i}_ns": [123_456_789 * (i + 1)] * count for i in range(5)},
            "kind": ["item"] * count,
            "where": [f"package/module_{n}.py:{100 + n}" for n in range(count)],
            "advice": ["Write the value to the log once in a hundred steps, because every read waits. " * 2]
            * count,
        }
    )
    columns = (
        *(Column(f"figure{i}_ns", f"figure {i}/step", "ns") for i in range(5)),
        Column("kind", "kind"),
        Column("where", "where", elide="start"),
        Column("advice", "instead"),
    )
    return Report("only", "Only", Verdict("see below", "warn"), tables=(Table("t", "T", columns, frame),))


@pytest.mark.parametrize("prose", [False, True])
async def test_at_80_columns_the_place_is_in_view(monkeypatch: pytest.MonkeyPatch, prose: bool) -> None:
    report = places_report()
    report = replace(report, tables=(replace(report.tables[0], prose=prose),))
    only(report, monkeypatch)
    async with settled(app_of(), size=(80, 24)) as (app, pilot):
        head, first = app.text("VirtualTable").splitlines()[:2]
        assert head.split()[:3] == ["figure", "0/step", "figure"]
        assert "package/module_0.py:100" in first
        await pilot.press("right", "right", "right", "s")  # columns that were moved sort by what they show
        await settle(pilot)
        assert "figure 4/step" not in app.text("VirtualTable") or app.table.sorted_by is not None


async def test_sentences_stand_whole_below_their_table(monkeypatch: pytest.MonkeyPatch) -> None:
    report = places_report()
    rows = report.tables[0].rows.with_columns(
        pl.Series("advice", [f"Advice number {n}. " * 8 for n in range(3)])
    )
    second = Column("because", "because")
    table = replace(
        report.tables[0],
        columns=(*report.tables[0].columns, second),
        rows=rows.with_columns(pl.lit("Measured on four steps of one run. " * 4).alias("because")),
        prose=True,
    )
    report = replace(report, tables=(table,))
    only(report, monkeypatch)
    async with settled(app_of(), size=(160, 48)) as (app, pilot):
        below = " ".join(app.text("#answer-prose").split())
        assert ("Advice number 0. " * 8).strip() in below
        assert ("Measured on four steps of one run. " * 4).strip() in below
        assert "because" not in app.text("VirtualTable")
        await typed(pilot, "down")
        assert "Advice number 1." in app.text("#answer-prose")


async def test_tabs_are_opened_one_after_the_other() -> None:
    async with settled(app_of()) as (app, pilot):
        await pilot.press("less_than_sign", "less_than_sign")
        assert app.view.current == "events"
        await pilot.press("greater_than_sign", "greater_than_sign")
        assert app.view.current == "waits"


async def test_what_is_not_available_is_behind_more_with_its_reason() -> None:
    async with settled(app_of()) as (app, pilot):
        assert app.view.current == "waits"
        await typed(pilot, "greater_than_sign", "greater_than_sign", "greater_than_sign")
        assert app.view.current == "waits"  # around the ends, past what is not available
        await typed(pilot, "M")
        assert "Memory: no memory events in this trace" in app.words()
        await typed(pilot, "enter")
        assert app.view.current == "lacking"
        assert "record with `--memory`" in app.words()
        assert "3 Memory –" in app.text("TabBar")


def test_a_column_without_any_value_is_left_out() -> None:
    columns = tuple(Column(key, key) for key in ("where", "through", "in", "bytes"))
    frame = pl.DataFrame(
        {"where": ["", ""], "through": ["", None], "in": ["", "train"], "bytes": [None, None]},
        schema_overrides={"bytes": pl.Int64},
    )
    assert default_columns(Table("t", "T", columns, frame)) == ["where", "in"]
    assert len(default_columns(Table("t", "T", columns, frame.clear()))) == 4
