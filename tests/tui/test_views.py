"""What the trace view and the comparison say, without a screen."""

from __future__ import annotations

import polars as pl
import pytest
from made_traces import MS, small_trace

from tuiprof.analyses import Analysis
from tuiprof.model import Column, Fact, Report, Table, Unavailable, Verdict, Window
from tuiprof.model.report import Level, most_important
from tuiprof.tui.compare.view import head_row, matched_row, why_rows
from tuiprof.tui.compare.view import tabs_of as compare_tabs
from tuiprof.tui.trace import view
from tuiprof.tui.trace.work import Results


def report(name: str, level: Level, *, facts: tuple[Fact, ...] = ()) -> Report:
    return Report(name, name.title(), Verdict(f"{name} says so", level), facts=facts)


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> Results:
    answers = {
        "fine": report("fine", "good"),
        "bad": report("bad", "bad", facts=(Fact("straggler", "straggler", 3, "count", ""),)),
        "none": Unavailable("none", "nothing recorded", "record it"),
    }
    found = {
        name: Analysis(name, f"\x1b{name}", f"Is it {name}?", lambda _t, _w, a=answer: a)
        for name, answer in answers.items()
    }
    monkeypatch.setattr("tuiprof.analyses.available", lambda: found)
    monkeypatch.setattr("tuiprof.analyses.run", lambda name, _trace, _window: answers[name])
    return Results(small_trace(), list(found))


def test_the_headline_is_the_worst_verdict_and_points_to_its_tab(results: Results) -> None:
    whole = Window()
    assert view.headline(results, whole, "fine", None).sentence.startswith("analysing")
    results.compute("fine", whole)
    assert view.headline(results, whole, "fine", None) == view.Headline("fine says so", "good", "", True)
    results.compute("bad", whole)
    assert view.headline(results, whole, "fine", None) == view.Headline("bad says so", "bad", "2", False)
    assert view.headline(results, whole, "bad", 0.4) == view.Headline(
        "so far, 40 % read: bad says so", "bad", "", True
    )


@pytest.mark.parametrize(("level", "opened"), [("warn", "kernels"), ("good", "")])
def test_advice_without_findings_opens_what_it_is_about(
    level: Level, opened: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {"advice": report("advice", level), "kernels": report("kernels", "good")}
    monkeypatch.setattr("tuiprof.analyses.run", lambda name, _trace, _window: answers[name])
    results = Results(small_trace(), list(answers))
    for name in answers:
        results.compute(name, Window())
    assert view.tab_to_open(results, Window()) == opened


def test_of_verdicts_of_one_weight_the_one_with_evidence_comes_first() -> None:
    columns = (Column("what", "what"),)
    nothing, something = (
        Report(name, name, Verdict(f"{name} says so"), tables=(Table("t", "T", columns, rows),))
        for name, rows in (("syncs", pl.DataFrame({"what": []})), ("kernels", pl.DataFrame({"what": ["mm"]})))
    )
    assert most_important([nothing, something]) is something
    bad, plain = report("bad", "bad"), report("plain", "info")
    assert most_important([nothing, something, bad]) is bad
    assert most_important([plain, something]) is plain, "it has no tables at all"


def test_a_bad_verdict_without_a_finding_says_that_no_rule_names_a_fix(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    results.compute("bad", Window())
    advised = report("advice", "good")
    found = results.get
    monkeypatch.setattr(
        results, "get", lambda name, window: advised if name == "advice" else found(name, window)
    )
    said = view.headline(results, Window(), "bad", None).sentence
    assert said == "bad says so; no rule names a fix"


def test_without_any_report_it_says_so(results: Results) -> None:
    only = Results(results.trace, ["none"])
    for name in only.names:
        only.compute(name, Window())
    assert view.headline(only, Window(), "none", None).sentence == "no analysis applies to this trace"


def test_tabs_are_marked_by_weight_and_titles_are_safe(results: Results) -> None:
    for name in ("fine", "bad", "none"):
        results.compute(name, Window())
    tabs, apart = view.tabs_of(results, Window(), "fine")
    assert [(tab.key, tab.name, tab.mark) for tab in tabs] == [
        ("1", "fine", "✓"),
        ("2", "bad", "✗"),
        ("4", "events", "…"),
    ]
    assert apart == ["none"]
    tabs, apart = view.tabs_of(results, Window(), "none")  # what is open is in the line of tabs
    assert [tab.mark for tab in tabs] == ["✓", "✗", "–", "…"]
    assert not apart
    assert all(tab.title.isprintable() for tab in tabs)
    assert (view.question_of("bad"), view.question_of("events")) == ("Is it bad?", "")


def test_a_window_is_called_by_its_label_or_its_range() -> None:
    trace = small_trace()
    assert view.window_text(trace, Window()) == ""
    assert view.window_text(trace, trace.steps.window(1)) == "window: step 1"
    assert view.window_text(trace, Window(13 * MS, 21 * MS)) == "window: 13.0 ms to 21.0 ms"


def test_the_straggler_is_that_of_the_window_else_of_the_whole_trace(results: Results) -> None:
    answers = {"ranks": report("ranks", "warn", facts=(Fact("straggler", "straggler", 3, "count", ""),))}
    assert results.straggler(Window()) is None
    results._answers["ranks", Window()] = answers["ranks"]
    assert results.straggler(Window(1, 2)) == 3


def test_what_was_read_is_said() -> None:
    assert "45 % read · results cover the first 20 %" in view.reading_text(0.2, 0.45, failed=False)
    assert (
        view.reading_text(0.2, 0.45, failed=True) == "✗ results cover the first 20 %: the rest cannot be read"
    )


@pytest.mark.parametrize(("height", "lanes", "lines"), [(10, 9, 4), (24, 9, 7), (24, 3, 5), (33, 9, 11)])
def test_the_timeline_gets_its_share_of_the_lines(height: int, lanes: int, lines: int) -> None:
    assert view.timeline_lines(height, lanes) == lines


def text(row: list[tuple[str, str]]) -> str:
    return "".join(part for part, _role in row)


def test_a_comparison_names_both_and_keeps_the_end_of_a_long_name() -> None:
    assert text(head_row("slow.json", "fast.json", 60)).split() == [
        "before",
        "slow.json",
        "after",
        "fast.json",
    ]
    line = text(head_row("x" * 80 + "end.json", "\x1b[31mfast", 60))
    assert "…" in line
    assert "end.json" in line
    assert line.isprintable()


def test_one_event_before_and_after() -> None:
    trace = small_trace()
    kernel = next(row for row in range(len(trace)) if "sum_kernel" in trace.name(row))
    sync = next(row for row in range(len(trace)) if "Synchronize" in trace.name(row))
    assert "5.00 ms before → 3.00 ms after  1.67× faster" in text(matched_row((trace, trace), (kernel, sync)))
    assert "has no counterpart after in this step" in text(matched_row((trace, trace), (kernel, None)))
    assert "has no counterpart before in this step" in text(matched_row((trace, trace), (None, kernel)))


def test_tables_of_a_comparison_have_tabs_and_step_times_none() -> None:
    from tuiprof.analyses.shared.changes import STEP_PAIR
    from tuiprof.comparison.sides import CHANGED

    some, none = pl.DataFrame({"name": ["a"]}), pl.DataFrame({"name": []})
    columns = (Column("name", "name"),)
    tables = (Table("kernels", "By kernel", columns, some), Table(STEP_PAIR, "Steps", columns, some))
    changed = Fact(CHANGED, "changed", "batch 8 instead of 4 " * 8, "text", "")
    compared = Report(
        "compare", "Compare", Verdict("faster", "good"), facts=(changed,),
        tables=(*tables, Table("other", "Other", columns, none)),
    )  # fmt: skip
    assert [(tab.title, tab.mark) for tab in compare_tabs(compared)] == [("Kernels", ""), ("Other", "–")]
    rows = why_rows(compared, 60, 2)
    assert len(rows) == 2
    assert text(rows[0]).startswith(" in the traces batch 8")
    assert why_rows(report("compare", "good"), 60, 2) == []
