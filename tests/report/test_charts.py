"""Charts: a table says how it is drawn, whatever it is called."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from tuiprof.model import Chart, Column, Report, Series, Table, Verdict
from tuiprof.report import render


def table(chart: Chart | None, key: str = "energy") -> Table:
    rows = pl.DataFrame(
        {"step": range(20), "joules": [*range(19), 40], "high": [*range(1, 20), 40], "other": range(20)}
    )
    columns = [Column("step", "step", "count"), Column("high", "highest", "number", hidden=True)]
    columns += [Column(name, name, "number") for name in ("joules", "other")]
    return Table(key, "Energy", tuple(columns), rows, chart=chart)


def rendered(of: Table, format_: str) -> str:
    return render(Report("energy", "Energy", Verdict("some"), tables=(of,)), format_)


SERIES = Chart("Energy of every step", (Series("joules", high="high"),), at="step")


def test_a_table_of_any_name_is_drawn_as_it_declares() -> None:
    text, page = (rendered(table(SERIES), format_) for format_ in ("text", "html"))
    assert "40.0 ┤" in text
    assert "step 0" in text
    assert "Energy of every step" in page
    assert "step 19: " in page
    two = replace(SERIES, series=(Series("joules"), Series("other")))
    assert 'class="series pair"' in rendered(table(two), "html")


def test_what_is_no_series_is_not_drawn_whatever_its_name() -> None:
    for key in ("steps", "queue_depth"):
        assert "┤" not in rendered(table(None, key), "text")
        assert "<figure" not in rendered(table(None, key), "html")
    assert "┤" not in rendered(table(replace(SERIES, in_text=False)), "text")


def test_a_chart_of_a_column_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="table 'energy' has no column watts"):
        table(Chart("Power", (Series("watts"),)))


def test_a_heat_map_is_as_dark_as_its_values_and_of_bounded_size() -> None:
    from tuiprof.report.charts import heat

    steps = [f"step_{n}" for n in range(600)]
    late = np.zeros((1000, 600))
    late[700, 300] = 8.0
    late[10, :] = 4.0
    table = Table(
        "heat",
        "Heat",
        (Column("rank", "rank", "count"), *(Column(key, key, "ns", hidden=True) for key in steps)),
        pl.DataFrame({"rank": range(1000), **dict(zip(steps, late.T, strict=True))}),
        chart=Chart("Late", tuple(Series(key) for key in steps), at="rank", form="heat"),
    )
    drawn = heat(table, table.chart) if table.chart is not None else ""
    assert len(drawn) < 60_000
    assert drawn.count('<path class="heat"') == 2
    assert 'style="opacity:1"' in drawn
    assert 'style="opacity:0.5"' in drawn
    assert "rank 700: 8 ns, step_300" in drawn


def test_a_row_of_nothing_has_no_bar() -> None:
    rows = pl.DataFrame({"class": ["short", "none", "long"], "count": [3, 0, 6]})
    columns = (Column("class", "class"), Column("count", "n", "count"))
    bars = Chart("Kernels by length", (Series("count"),), at="class", form="bars")
    lines = rendered(Table("lengths", "Lengths", columns, rows, chart=bars), "text").splitlines()
    start = next(at for at, line in enumerate(lines) if "Kernels by length" in line)
    assert ["█" in line for line in lines[start + 1 : start + 4]] == [True, False, True]
