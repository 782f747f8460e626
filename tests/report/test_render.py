"""Reports as text, JSON, CSV, Markdown and HTML: they fit, they are safe, and they say the same."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from analyses.made import report

from tests import real_traces
from tuiprof.advice.answer import answer
from tuiprof.analyses import run
from tuiprof.analyses.shared.replay import opening
from tuiprof.errors import UsageProblem
from tuiprof.formats import open_trace
from tuiprof.model import Chart, Column, Fact, Report, Rule, Series, Table, Unavailable, Verdict
from tuiprof.model.report import Answer, Change, Level, Line
from tuiprof.model.trust import Remark, Trust
from tuiprof.report import Style, formats, html, render, render_all
from tuiprof.report.answer import opening_text, step_time, to_markdown, to_text
from tuiprof.report.sanitize import clip, sanitize, width
from tuiprof.resources import shipped

EVIL = "kern\x1b[31mel\x1b]0;title\x07 \u202egnp.exe [bold]x[/] \x9b2J\r\nnew <b>*|"

REPORT = Report(
    "sync_events",
    "Syncs",
    Verdict(f"2 syncs a step hold the host 16.3 ms: {EVIL}", "bad"),
    (Fact("device_empty_ns_per_step", "empty", 740_000.0, "ns"), Fact("unknown", "unknown", None, "ns")),
    (
        Table(
            "groups",
            "By place",
            (
                Column("empty_ns", "empty", "ns"),
                Column("count", "n", "count"),
                Column("where", "where", "text"),
                Column("event", "event", "count", hidden=True),
            ),
            pl.DataFrame(
                {
                    "empty_ns": [730_000, 10],
                    "count": [1, 31_204],
                    "where": [EVIL, "=HYPERLINK()"],
                    "event": [7, 9],
                }
            ),
            note="excluded: 1 made by the profiler",
        ),
        Table(
            "apart", "Apart", (Column("why", "why"),), pl.DataFrame({"why": pl.Series([], dtype=pl.String)})
        ),
    ),
    (Rule("sync", "the host stands"),),
    ("a note",),
)
GONE = Unavailable("memory", "no memory events", "record with --memory")


@pytest.mark.parametrize("fmt", sorted(formats()))
def test_no_renderer_lets_a_name_reach_the_terminal_as_code(fmt: str) -> None:
    text = render_all([REPORT, GONE], fmt, trust=f"trust: {EVIL}")
    assert not [c for c in text if (ord(c) < 0x20 and c != "\n") or 0x7F <= ord(c) < 0xA0 or c == "\u202e"]
    assert "no memory events" in text


def test_every_format_is_found_by_name() -> None:
    assert set(formats()) == {"text", "json", "csv", "md", "html"}
    with pytest.raises(UsageProblem, match="no output format 'xml'"):
        render(REPORT, "xml")


@pytest.mark.parametrize("cells", [40, 60, 80, 120, 200])
def test_text_fits_the_width_with_the_verdict_first(cells: int) -> None:
    lines = render(REPORT, "text", style=Style(width=cells)).splitlines()
    assert max(width(line) for line in lines) <= cells
    assert lines[1].startswith("✗ 2 syncs a step hold the host")


def test_numbers_are_right_aligned_with_units_and_hidden_columns_stay_hidden() -> None:
    text = render(REPORT, "text", style=Style(width=120))
    head, first, second = (
        line for line in text.splitlines() if line.startswith("  ") and "  " in line.strip()
    )
    assert head.split() == ["empty", "n", "where"]
    assert (
        first.index("730 µs") + len("730 µs")
        == second.index("10.0 ns" if "10.0 ns" in second else "10 ns") + 5
    )
    assert "31 204" in second
    assert "unknown" not in text


def test_colour_only_where_asked_for() -> None:
    assert "\x1b[31m" in render(REPORT, "text", style=Style(colour=True))
    assert "\x1b" not in render(REPORT, "text", style=Style(colour=False))


def test_json_is_whole_and_keeps_names_as_they_are() -> None:
    document = json.loads(render_all([REPORT, GONE], "json"))
    report, gone = document["reports"]
    assert document["tuiprof"] == 1
    assert report["verdict"] == {"sentence": REPORT.verdict.sentence, "level": "bad"}
    assert report["facts"] == {"device_empty_ns_per_step": 740_000.0, "unknown": None}
    assert report["tables"][0]["rows"][0] == {"empty_ns": 730_000, "count": 1, "where": EVIL, "event": 7}
    assert gone == {"analysis": "memory", "available": False, "reason": GONE.reason, "remedy": GONE.remedy}


def test_csv_has_every_row_and_runs_no_formula() -> None:
    rows = list(csv.reader(io.StringIO(render(REPORT, "csv"))))
    at = rows.index(["empty_ns", "count", "where", "event"])
    assert rows[at + 2] == ["10", "31204", "'=HYPERLINK()", "9"]


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_a_quote_in_a_comment_of_csv_begins_no_cell(delimiter: str) -> None:
    rows = pl.DataFrame({"name": ["x,=1+1", "x;=1+1"]})
    table = Table("t", "T", (Column("name", "name", "text"),), rows)
    text = render(Report("x", "X", Verdict('x,"=2+2","+3'), tables=(table,)), "csv")
    cells = [cell for row in csv.reader(io.StringIO(text), delimiter=delimiter) for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "+"))]


def test_markdown_escapes_what_would_be_markup() -> None:
    text = render(REPORT, "md")
    assert r"\<b\>\*\|" in text
    assert "| 730 µs | 1 |" in text


def test_long_tables_say_what_they_leave_out() -> None:
    table = Table("t", "Long", (Column("n", "n", "count"),), pl.DataFrame({"n": range(1000)}))
    text = render(Report("x", "X", Verdict("v"), tables=(table,)), "text", style=Style(rows=10))
    assert "… 990 more rows" in text


def test_a_table_with_a_row_a_name_does_not_fill_the_disk() -> None:
    rows = pl.DataFrame({"n": range(300_000)})
    long = Report("x", "X", Verdict("v"), tables=(Table("t", "Long", (Column("n", "n", "count"),), rows),))
    (table,) = json.loads(render(long, "json"))["reports"][0]["tables"]
    assert (len(table["rows"]), table["rows_left_out"]) == (10_000, 290_000)
    document = render(long, "csv")
    assert document.count("\n") < 10_020
    assert "# 290000 more rows are left out" in document
    assert "… 299990 more rows; the first 10000 with --format csv or json" in render(
        long, style=Style(rows=10)
    )


@pytest.mark.parametrize(
    ("text", "cells", "shown"),
    [("kernel", 10, "kernel"), ("abcdefghij", 5, "ab…ij"), ("カーネル", 5, "カ…ル"), ("abc", 1, "…")],
)
def test_clip_keeps_both_ends(text: str, cells: int, shown: str) -> None:
    assert clip(text, cells) == shown
    assert width(shown) <= cells


def test_clip_cuts_where_it_is_told_to() -> None:
    assert clip("/srv/site-packages/metrics.py:93", 14, "start") == "…metrics.py:93"
    assert clip("カーネル", 5, "start") == "…ネル"
    assert clip("kernel<float, 4>", 8, "end") == "kernel<…"


@pytest.mark.parametrize("cells", [40, 70, 200])
def test_a_place_keeps_its_line_when_the_table_is_narrow(cells: int) -> None:
    columns = (
        Column("ns", "lost", "ns"),
        Column("where", "where", elide="start"),
        Column("through", "through"),
        Column("in", "in"),
    )
    row = {"ns": 5, "where": "torchmetrics/functional/aggregation.py:93", "through": "a" * 60, "in": "b" * 60}
    report = Report("x", "X", Verdict("v"), tables=(Table("t", "T", columns, pl.DataFrame([row])),))
    text = render(report, "text", style=Style(width=cells))
    assert "/aggregation.py:93" in text
    assert ("columns left out for lack of width" in text) == (cells < 200)
    assert max(width(line) for line in text.splitlines()) <= cells


def test_sanitize_shows_what_it_replaces() -> None:
    assert sanitize("a\x1b[0m\x9b\u202e") == "a␛[0m<U+009B><U+202E>"


def test_what_cannot_be_told_comes_last_and_once() -> None:
    other = Unavailable("ranks", "one rank", "")
    text = render_all([GONE, other, REPORT, GONE], "text", style=Style(width=80))
    assert text.count("memory: unavailable") == 1
    assert text.index(REPORT.title) < text.index("Not available here") < text.index("memory: unavailable")
    assert render_all([GONE], "text").startswith("– memory")


def test_a_report_gives_every_remark_of_the_trust_line_with_what_to_do() -> None:
    trust = Trust(1, (Remark("a", "cut off", "copy again", "bad"), Remark("b", "no frames", "use --stack")))
    assert trust.line == "trust: cut off (+1 more)"
    assert trust.text == "trust: cut off (copy again) · no frames (use --stack)"
    assert Trust(1).text == Trust(1).line


GOLDENS = Path(__file__).parents[1] / "data" / "goldens"


@pytest.mark.parametrize(
    ("name", "analysis"),
    [
        ("pytorchbench-a100-memcpy-sync.json", "sync_events"),
        ("torchtutorial-h100-stack-steps.pt.trace.json.gz", "kernel_launches"),
        ("tracelens-h100-bert-small.json.gz", "sync_events"),
        ("hta-event-sync-a100.json.gz", "device_idle"),
        ("kineto-gpu-metrics-input.json", "kernels"),
        ("dtu-cpu-memory-events.json.gz", "kernels"),
        ("dtu-cpu-memory-events.json.gz", "sync_events"),
    ],
)
def test_goldens(name: str, analysis: str) -> None:
    """Run with TUIPROF_UPDATE_GOLDENS=1 to write them anew, and read the difference."""
    from tuiprof.formats import open_trace

    trace = open_trace(real_traces.path(name))
    text = render(run(analysis, trace), "text", trust=trace.trust.text, style=Style(width=100))
    golden = GOLDENS / f"{name.split('.')[0]}.{analysis}.txt"
    if os.environ.get("TUIPROF_UPDATE_GOLDENS"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("cells", [40, 100])
def test_a_series_is_drawn_to_scale_and_keeps_what_sticks_out(cells: int) -> None:
    values = [10_000_000] * 200
    values[137] = 40_000_000
    chart = Chart("Time of every step", (Series("step_ns"),))
    columns = (Column("step_ns", "time", "ns"),)
    table = Table("steps", "Every step", columns, pl.DataFrame({"step_ns": values}), chart=chart)
    text = render(Report("steps", "Steps", Verdict("v"), tables=(table,)), "text", style=Style(width=cells))
    lines = text.splitlines()
    # The scale ends at three times what is usual, and says what is beyond.
    top = next(i for i, line in enumerate(lines) if "30.0 ms ┤" in line)
    bottom = next(i for i, line in enumerate(lines) if "0 ns ┤" in line)
    assert "1 beyond" in lines[top - 1]
    drawn = [line.partition("┤")[2].strip() for line in lines[top : bottom + 1]]
    assert 1 <= len(drawn[0]) <= 3
    assert drawn[0] in lines[top][int(cells * 0.6) :]
    # A third of 24 dots is at the foot of the fourth line.
    assert [len(line) > cells / 2 for line in drawn] == [False, False, False, True, False, False]
    assert bottom - top + 2 <= 8
    assert max(width(line) for line in lines) <= cells


def test_a_chart_has_the_size_asked_for_whatever_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("LINES", "3")
    columns = (
        Column("phase", "phase"),
        Column("ns", "a step", "ns"),
        Column("low", "low", "ns", hidden=True),
    )
    columns += (Column("high", "high", "ns", hidden=True),)
    rows = pl.DataFrame(
        {
            "phase": ["forward", "衣\x1b[31m"],
            "ns": [40_000_000, 10_000_000],
            "low": [3e7, None],
            "high": [5e7, None],
        }
    )
    chart = Chart("Phases", (Series("ns", "low", "high"),), at="phase", form="bars")
    table = Table("phases", "Phases", columns, rows, chart=chart)
    report = Report("steps", "Steps", Verdict("v"), tables=(table,))
    for format_ in ("text", "md"):
        text = render(report, format_, style=Style(width=80))
        assert "\x1b" not in text
        bars = [line for line in text.splitlines() if "█" in line]
        full, less = (width(line.partition(" ms  ")[2]) for line in bars)
        assert max(map(width, bars)) == 80
        # The interval ends at the right edge, and the bar of 10 ms is a fifth of 50 ms.
        assert bars[0].endswith("┤")
        assert less == pytest.approx(full / 5, abs=1)
        assert width(bars[0].partition("40")[0]) == width(bars[1].partition("10")[0])
        assert "█" not in render(report, format_, style=Style(width=80, charts=False))


def test_marked_rows_are_marked() -> None:
    columns = (Column("step_ns", "time", "ns"), Column("captured", "captured", "count", hidden=True))
    marks = [40 <= i < 45 for i in range(60)]
    rows = pl.DataFrame({"step_ns": [10_000_000] * 60, "captured": marks}).cast({"captured": pl.Int64})
    for marked, lines in (("captured", 2), ("", 0)):
        chart = Chart("Time of every step", (Series("step_ns"),), marked=marked)
        report = Report("s", "S", Verdict("v"), tables=(Table("t", "T", columns, rows, chart=chart),))
        text = render(report, "text", style=Style(width=80))
        bottom = next(line for line in text.splitlines() if "0 ns ┤" in line)
        assert bottom.count("│") == lines
        assert ("│ captured" in text) == bool(marked)
        if marked:
            places = [i / len(bottom.rstrip()) for i, sign in enumerate(bottom) if sign == "│"]
            assert all(0.6 < place <= 1 for place in places)


def test_plain_text_is_ascii_and_no_wider() -> None:
    values = [10_000_000 + i * 50_000 for i in range(60)]
    chart = Chart("Time of every step", (Series("step_ns"),))
    columns = (Column("step_ns", "time", "ns"),)
    table = Table("steps", "Every step", columns, pl.DataFrame({"step_ns": values}), chart=chart)
    report = Report("steps", "Schritte · größer", Verdict("✗ → µs"), tables=(table,))
    rich = render(report, "text", style=Style(width=60, colour=True))
    plain = render(report, "text", style=Style(width=60, colour=True, plain=True))
    assert plain.isascii()
    # Dots of a line are fewer cells than its stars, the canvas is one.
    assert len(plain.splitlines()) == len(rich.splitlines())
    assert max(map(len, plain.splitlines())) == max(map(len, rich.splitlines()))


@pytest.mark.parametrize("style", [Style(), Style(colour=True), Style(plain=True, width=60)])
def test_a_page_begins_with_what_is_known_first(style: Style) -> None:
    trace = open_trace(shipped("traces") / "metrics-naive.pt.trace.json.gz")
    first, whole = opening_text(opening(trace, "a trace"), style), to_text(answer(trace, "a trace"), style)
    assert "4 steps" in first
    assert "27.1 ms a step" in " ".join(first.split())
    assert whole.startswith(first)
    assert "saves about" in whole.removeprefix(first)


@pytest.mark.parametrize("width", [40, 60, 80, 100, None])
def test_a_page_is_no_wider_than_the_terminal(width: int | None) -> None:
    change = Change("rule", "a cost", "train.py:7", "a fix", "", "high", 36.5e6, 18e6, 50.5e6, 0.248)
    page = Answer("t", "", 3, 147e6, 157e6, 36.5e6, None, "trust: complete", True, (change,), ())
    lines = to_text(page, Style(width=width)).splitlines()
    assert all(len(line) <= (width or 200) for line in lines)
    [head] = [line for line in lines if "saves about" in line]
    assert head.startswith("✗ saves about 25 %")
    if width is None or width >= 80:
        assert head.endswith("36.5 ms (18.0 ms to 50.5 ms) of 147 ms")
    cells = len(re.findall("[█░]", head))
    assert cells == (28 if width in (100, None) else cells)
    assert (cells >= 6) == (width is None or width >= 80)
    assert len(re.findall("█", head)) == round(0.248 * cells)


def test_what_findings_have_in_common_is_said_once() -> None:
    found = [
        ("a read", "f.py:1", "read later"),
        ("a read", "f.py:2", "read later"),
        ("a copy", "", "read later"),
    ]
    changes = tuple(Change("rule", what, where, fix, "", "high") for what, where, fix in found)
    page = Answer("t", "", 1, 1e6, 1e6, None, None, "trust: complete", True, changes, ())
    text = to_text(page, Style())
    assert text.count("a read") == text.count("read later") == 1
    assert "the same at f.py:2" in text
    assert "a copy → the same fix" in text


def test_findings_that_a_short_page_leaves_out_are_counted() -> None:
    changes = tuple(Change("rule", f"cost {n}", "", f"fix {n}", "", "high", 1e5) for n in range(5))
    page = Answer("t", "", 1, 1e6, 1e6, 7e5, 4e5, "trust: complete", True, changes, ())
    short = to_text(page, Style(), most=2)
    assert "… 3 more: tuiprof report -v" in short
    assert "cost 1" in short
    assert "cost 2" not in short
    assert "all 5 together save 400 µs (40 %) · device work alone takes 700 µs without these changes" in short
    host = to_text(replace(page, device_work_ns=5e5), Style())
    assert host.splitlines()[-1].endswith("device work alone takes 500 µs"), "what is left is no shorter"
    assert "… 1 more: tuiprof report -v" in to_text(page, Style())
    assert "device work takes the whole step" in to_text(replace(page, device_work_ns=1.01e6), Style())


@pytest.mark.parametrize(
    ("level", "sentence"),
    [
        ("bad", "! no rule names a first change: see Idle below"),
        ("warn", "! no rule found a cost in this trace; see Idle below"),
        ("good", "✓ nothing to change:"),
    ],
)
def test_a_page_without_findings_is_not_all_well_where_a_line_is_not(level: Level, sentence: str) -> None:
    line = Line("device_idle", "Idle", level, "the GPU idles 84 % of the time")
    page = Answer("t", "", 0, None, None, None, None, "trust: complete", True, (), (line,))
    for text in (to_text(page, Style()), to_markdown(page)):
        assert sentence in text


@pytest.mark.parametrize(("works_ns", "sign"), [(1_000.0, "!"), (9_000.0, "✓"), (None, "✓")])
def test_a_page_without_findings_is_not_all_well_where_the_device_hardly_works(
    works_ns: float | None, sign: str
) -> None:
    page = Answer("t", "", 1, 10_000.0, 10_000.0, works_ns, None, "trust: complete", True, (), ())
    for text in (to_text(page, Style()), to_markdown(page)):
        assert ("works for only 1.00 µs of 10.0 µs" in text) == (sign == "!")
        assert ("✓ nothing to change:" in text) == (sign == "✓")
    section = html.page(page)
    assert ("works for only 1.00 µs of 10.0 µs" in section) == (sign == "!")
    assert ('class="verdict good"' in section) == ("Nothing to change" in section) == (sign == "✓")


def test_a_trace_without_events_is_not_said_to_need_no_change(tmp_path: Path) -> None:
    path = tmp_path / "empty.pt.trace.json"
    path.write_text('{"schemaVersion": 1, "traceEvents": []}')
    text = to_text(answer(open_trace(path), "t"), Style())
    assert "trust: the trace has no events" in text
    assert "nothing to change" not in text


def test_a_trace_that_could_be_read_in_part_is_not_said_to_need_no_change(tmp_path: Path) -> None:
    whole = (shipped("traces") / "metrics-naive.pt.trace.json.gz").read_bytes()
    path = tmp_path / "cut.pt.trace.json.gz"
    path.write_bytes(whole[:20_000])
    trace = open_trace(path)
    page = answer(trace, "t")
    assert not page.changes
    for text in (to_text(page, Style()), to_markdown(page)):
        assert "! no rule found a cost in what could be read of this trace" in text
    found = report("advice", trace)
    assert found.verdict.level == "warn"


def test_what_a_trace_cannot_tell_does_not_push_its_findings_off_the_screen() -> None:
    trust = "trust: " + " · ".join(f"remark {n} of a profiler that has much to say" for n in range(30))
    page = Answer("t", "", 0, None, None, None, None, trust, False, (), (), ())
    lines = opening_text(page, Style(width=80)).splitlines()
    assert len(lines) == 6
    assert "remark 0" in lines[1]
    assert lines[-1].strip() == "… see all with tuiprof report -v"
    whole = opening_text(page, Style(width=None))  # as a file is written
    assert "remark 29" in whole


@pytest.mark.parametrize(
    ("steps", "step_ns", "captured_ns", "step_is", "said"),
    [
        (
            *(4, 27e6, 29.2e6, "median of 24 steps before the capture"),
            "27.0 ms a step, median of 24 steps before the capture (median 29.2 ms while captured)",
        ),
        (
            3,
            53e6,
            52e6,
            "median of 8 steps before the capture",
            "53.0 ms a step, median of 8 steps before the capture",
        ),
        (
            3,
            53e6,
            54e6,
            "without the profiler",
            "53.0 ms a step without the profiler (median 54.0 ms while captured)",
        ),
        (2, 201e6, 201e6, "", "201 ms a step"),
        (0, 2e9, None, "", "2.00 s"),
    ],
)
def test_a_page_says_which_steps_its_step_time_is_of(
    steps: int, step_ns: float, captured_ns: float | None, step_is: str, said: str
) -> None:
    none = (None, None, "", True, (), (), ())
    assert (
        step_time(
            Answer("a trace", "", steps, step_ns, captured_ns, *none, step_is=step_is, captured_is="median")
        )
        == said
    )
