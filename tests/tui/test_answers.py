"""What is shown around a table: its row in full, the next tables, and the tab that explains a figure."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest
from on_screen import press, until_shown
from trace_app import app_of, only, settle, settled, typed

from tuiprof import analyses
from tuiprof.formats import open_trace
from tuiprof.model import Column, Report, Table, Verdict
from tuiprof.resources import shipped
from tuiprof.tui import Start
from tuiprof.tui.answers.view import NextTable, describe, field_rows, fields_of, next_tables
from tuiprof.tui.app.app import TuiprofApp
from tuiprof.tui.widgets.frame_rows import GAP, FrameRows, lay_out

STACK = "/site/metric.py:93 check\n/home/me/train.py:7 main"

XLA = Path(__file__).parents[1] / "data/xla"


def places(where: str = "metric.py:93") -> Table:
    rows = pl.DataFrame(
        {
            "cost_ns": [2_000_000, 1000],
            "where": [where, "other.py:1"],
            "through": ["is_nonzero → item", ""],
            "stack": [STACK, ""],
            "bytes": [2048, None],
            "event": [5, 6],
        }
    )
    columns = (
        Column("cost_ns", "cost", "ns"),
        Column("where", "where"),
        Column("through", "through"),
        Column("stack", "stack", help="Python frames.", hidden=True),
        Column("bytes", "bytes", "bytes", help="Moved.", hidden=True),
        Column("event", "event", "count", hidden=True),
    )
    return Table("places", "Syncs by location", columns, rows)


def advice(where: str, event: int) -> Report:
    rows = pl.DataFrame(
        {"where": [where], "instead": ["drop the check"], "because": ["it waits"], "event": [event]}
    )
    columns = (Column("where", "where"), Column("instead", "instead"), Column("because", "because"))
    return Report(
        "advice", "Advice", Verdict("one finding"), tables=(Table("findings", "What", columns, rows),)
    )


def said(table: Table, source: int, whole: set[str], found: Report | None) -> dict[str, tuple[str, ...]]:
    return {field.label: field.lines for field in fields_of(table, source, whole, found)}


def test_a_row_is_spelled_out_with_what_the_table_has_no_room_for() -> None:
    fields = said(places(), 0, {"where"}, None)
    assert fields["also"] == ("cost 2.00 ms",)
    assert fields["stack"] == ("/site/metric.py:93 check", "/home/me/train.py:7 main")
    assert fields["bytes"] == ("2.00 KiB",)
    assert "event" not in fields
    assert "also" not in said(places(), 0, {"cost_ns"}, None)
    assert "stack" not in said(places(), 1, set(), None)


@pytest.mark.parametrize(
    ("where", "event", "matches"),
    [
        ("elsewhere", 5, True),
        ("check, metric.py:93", 99, True),
        ("check, metric.py:9", 99, False),
        ("check, metric.py:931", 99, False),
    ],
)
def test_advice_is_on_the_same_event_or_the_same_line(where: str, event: int, matches: bool) -> None:
    fields = said(places(), 0, set(), advice(where, event))
    assert fields.get("fix") == (("drop the check",) if matches else None)


def test_where_lines_are_few_what_to_do_comes_first_and_the_cut_is_marked() -> None:
    fields = fields_of(places(), 0, {"where"}, advice("", 5))
    lines = ["".join(text for text, _ in row) for row in field_rows(fields, 80, 2)]
    assert lines[0].split() == ["fix", "drop", "the", "check"]
    assert lines[1].endswith("enter shows all")
    whole = ["".join(text for text, _ in row) for row in field_rows(fields, 80, 0)]
    assert len(whole) == 8
    wide = ["".join(text for text, _ in row) for row in field_rows(fields, 160, 0)]
    assert "metric.py:93" in wide[1]
    assert wide[1].split()[2:] == ["why", "it", "waits"]


def waiting(title: str, count: int) -> NextTable:
    return NextTable(
        title, FrameRows(pl.DataFrame({"n": range(count)}), [Column("n", "n", "count")]), "nothing"
    )


def test_as_many_tables_follow_as_fit() -> None:
    tables = [waiting("one", 9), waiting("two", 2), waiting("three", 4)]
    for room in range(40):
        lines = ["".join(text for text, _ in row) for row in next_tables(tables, 60, room)]
        assert len(lines) <= room
    lines = ["".join(text for text, _ in row).strip() for row in next_tables(tables, 60, 13)]
    assert lines[1] == "one  9 rows  t shows it"
    assert lines[2:8] == ["n", "0", "1", "2", "3", "… and 5 more"]
    assert "two  2 rows" in lines
    assert not any("three" in line for line in lines)


async def test_the_room_below_a_table_follows_the_cursor_and_shows_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    second = Table("calls", "By call", (Column("call", "call"),), pl.DataFrame({"call": ["cudaSync"]}))
    long = "torchmetrics/" * 7 + "metric.py:93"
    only(Report("places", "Places", Verdict("two places"), tables=(places(long), second)), monkeypatch)
    async with settled(app_of(), size=(120, 48)) as (app, pilot):
        below = app.text("#answer-prose")
        assert long in below
        assert "/home/me/train.py:7 main" in below
        assert "By call  1 row  t shows it" in below
        await typed(pilot, "down")
        assert "/home/me/train.py:7 main" not in app.text("#answer-prose")
        await typed(pilot, "t")
        assert "By call" in app.text("#answer-title")
        assert "Syncs by location" in app.text("#answer-prose")


async def test_a_table_that_needs_the_room_keeps_it() -> None:
    async with settled(app_of(), size=(120, 30)) as (app, pilot):
        app.view.open_tab("events")
        await settle(pilot)
        assert len(app.table.rows) == 16
        assert app.table.size.height >= 10
        assert not app.screen.query_one("#answer-prose").display


async def test_idle_time_after_syncs_leads_to_the_syncs() -> None:
    app = TuiprofApp(Start("trace", shipped("traces") / "planted-syncs.pt.trace.json.gz"))
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "saves about")
        await press(pilot, "3", shows="Idle time by cause")
        await press(pilot, "/", *"sync", "enter", shows=("more in", "Syncs: enter opens it"))
        await press(pilot, "enter", shows="Syncs by location")


async def test_a_tab_carries_what_its_analysis_saves() -> None:
    app = TuiprofApp(Start("trace", shipped("traces") / "planted-syncs.pt.trace.json.gz"))
    async with app.run_test(size=(200, 50)) as pilot:
        await until_shown(pilot, "saves about")
        text = await press(pilot, "1", shows=("removing all of them saves", "Syncs by location"))
        said = re.search(r"removing all of them saves about [^(]+\(([\d.]+) %\)", text)
        tab = re.search(r"1 Syncs ✗ +(\d+) %", text)
        assert said is not None, text
        assert tab is not None, text
        assert round(float(said[1])) == int(tab[1])


def test_the_details_of_a_kernel_of_jax_have_the_line_and_the_operation() -> None:
    trace = open_trace(XLA / "gru-h200.xplane.pb.gz")
    row = int(trace.device_work[trace.named("^gemm_fusion_dot_6$", trace.device_work)][0])
    fields = dict(describe(trace, row).fields)
    assert fields["line"] == "cell, …/tests/predictions/set20_other_trades.py:731"
    assert fields["operation"] == "jit(update)/transpose(jvp())/while/body/eval_jaxpr/dot_general"
    assert fields["instruction"] == "gemm_fusion_dot.6 of jit_update"


def test_the_lines_of_kernels_are_whole_on_a_terminal_of_80_columns() -> None:
    report = analyses.run("kernels", open_trace(XLA / "gru-h200.xplane.pb.gz"))
    assert isinstance(report, Report)
    table = report.table("kernels")
    rows = FrameRows(table.rows, table.columns)
    layout = lay_out(rows.headings, rows.text, range(len(rows)), 78)
    line = next(index for index, column in enumerate(rows.columns) if column.key == "line")
    at = layout.order.index(line)
    assert layout.widths[at] >= layout.contents[line] > 0
    assert sum(layout.widths[: at + 1]) + GAP * at <= 78
