from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuiprof import analyses
from tuiprof.formats import open_trace
from tuiprof.model import Column, Report
from tuiprof.resources import shipped
from tuiprof.tui.widgets.filter import FilterError, example, find_columns, parse
from tuiprof.tui.widgets.frame_rows import FrameRows

COLUMNS = (
    Column("starved_per_step", "empty/step", "ns"),
    Column("waited_per_step", "waited/step", "ns"),
    Column("count", "n", "count"),
    Column("share", "of step", "share"),
    Column("bytes", "bytes", "bytes"),
    Column("name", "name"),
    Column("where", "where", elide="start"),
    Column("empty_ns", "empty", "ns", hidden=True),
    Column("change_ns", "change", "ns"),
)
FRAME = pl.DataFrame(
    {
        "starved_per_step": [2_000_000, 500_000, None, 0],
        "waited_per_step": [1_000, 2_000, 3_000, 4_000],
        "count": [1, 20, 300, 4000],
        "change_ns": [-10_100_000, 5_810, 0, 2_000],
        "share": [0.5, 0.05, 0.005, 0.0],
        "bytes": [None, 1024, 1 << 20, 1 << 30],
        "name": pl.Series(["ampere_gemm", "vec<4>(int)", "Softmax and more", "gemm_T"], dtype=pl.Enum(
            ["gemm_T", "ampere_gemm", "vec<4>(int)", "Softmax and more"])),
        "where": ["train.py:7 step", "model.py:9", None, "train.py:70 loop"],
        "empty_ns": [8, 7, 6, 5],
    }
)  # fmt: skip


def kept(text: str) -> list[int]:
    rows = FrameRows(FRAME, COLUMNS)
    rows.filter(text)
    return [rows.source(position) for position in range(len(rows))]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("", [0, 1, 2, 3]),
        ("gemm", [0, 3]),
        ("train.py:7 step", [0]),
        ("empty > 1ms", [0]),
        ("empty>=500us and name ~ GEMM", [0]),
        ("empty/step >= 0.5 ms", [0, 1]),
        ("empty = 0", [3]),
        ("empty_ns < 7ns", [2, 3]),
        ("empty != 0", [0, 1, 2]),
        ("n > 1k or n = 20", [1, 3]),
        ("of step >= 5 %", [0, 1]),
        ("bytes < 1MiB", [1]),
        ("bytes >= 1mib", [2, 3]),
        ("name = gemm_t", [3]),
        ("name != gemm_t and name !~ vec", [0, 2]),
        ("name ~ /^(ampere|vec)/", [0, 1]),
        ('name ~ "vec<4>(int)"', [1]),
        ('"vec<4>(int)"', [1]),
        ('"softmax and more"', [2]),
        ("not where ~ train", [1, 2]),
        ("(n = 1 or n = 20) and not (name ~ vec)", [0]),
        ("n = 1 or n = 20 and name ~ softmax", [0]),
        ("gemm and where ~ train.py:70", [3]),
        ("WHERE ~ model AND n = 20", [1]),
        ("change < -10 ms", [0]),
        ("change < −10 ms", [0]),
        ("change>−1ms and change <= +5.81 µs", [1, 2, 3]),
        ("n = 4 000", [3]),
    ],
)
def test_filters_keep_the_rows_they_say(text: str, rows: list[int]) -> None:
    assert kept(text) == rows


@pytest.mark.parametrize(
    ("text", "at", "says"),
    [
        ("empty > 1", 9, "missing unit"),
        ("empty > 1 parsec", 10, "unknown unit 'parsec'"),
        ("empty > much", 8, "expected a time"),
        ("empty >", 7, "after this"),
        ("> 1ms", 0, "expected a column name"),
        ("speed > 1ms", 0, "no column 'speed'; columns: empty/step, waited/step"),
        ("w > 1ms", 0, "ambiguous: waited/step, where"),
        ("name > 1ms", 5, "is text"),
        ("empty ~ 1ms", 6, "is a number"),
        ("n = 1 and", 9, "unexpected end"),
        ("(n = 1", 0, "unclosed bracket"),
        ("n = 1)", 5, "unmatched closing bracket"),
        ('name ~ "vec', 7, "unclosed quote"),
        ("name ~ /(/", 7, "invalid regular expression"),
        ("of step > 5", 11, "missing unit"),
        ("n = 1 (n = 2)", 6, "expected 'and' or 'or'"),
    ],
)
def test_errors_point_at_the_character(text: str, at: int, says: str) -> None:
    with pytest.raises(FilterError, match=f"at character {at + 1}") as caught:
        parse(text, COLUMNS)
    assert caught.value.at == at, caught.value
    assert says in caught.value.message


def test_a_wrong_filter_leaves_the_rows_as_they_are() -> None:
    rows = FrameRows(FRAME, COLUMNS)
    rows.filter("gemm")
    with pytest.raises(FilterError):
        rows.filter("gemm and")
    assert len(rows) == 2


def test_a_name_prefers_what_is_visible_and_exact() -> None:
    assert [column.key for column in find_columns("empty", COLUMNS)] == ["starved_per_step"]
    assert [column.key for column in find_columns("empty_ns", COLUMNS)] == ["empty_ns"]
    assert [column.key for column in find_columns("N", COLUMNS)] == ["count"]
    assert find_columns("zzz", COLUMNS) == []


@given(st.text(st.sampled_from('ab n<>=~!()"/ 1m%andort'), max_size=30))
def test_whatever_is_typed_filters_or_is_explained(text: str) -> None:
    rows, wrong = [], None
    try:
        rows = kept(text)
    except FilterError as error:
        wrong = error
    assert set(rows) <= {0, 1, 2, 3}
    assert wrong is None or (0 <= wrong.at <= len(text) and wrong.message)


@pytest.mark.parametrize("sample", ["metrics-naive.pt.trace.json.gz", "jax-waits.xplane.pb.gz"])
def test_the_example_of_every_table_is_a_filter_of_it(sample: str) -> None:
    trace = open_trace(shipped("traces") / sample)
    for name in analyses.available():
        report = analyses.run(name, trace)
        for table in report.tables if isinstance(report, Report) else ():
            columns = [column for column in table.columns if not column.hidden]
            assert parse(example(columns), columns) is not None, (name, table.key)
