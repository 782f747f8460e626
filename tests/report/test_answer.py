"""The page on a trace can be begun before its findings are known."""

from __future__ import annotations

import pytest

from tuiprof.advice.answer import answer
from tuiprof.analyses.shared.replay import opening
from tuiprof.formats import open_trace
from tuiprof.model.report import Answer, Level, Line
from tuiprof.report import Style
from tuiprof.report.answer import opening_text, to_markdown, to_text
from tuiprof.resources import shipped


@pytest.mark.parametrize("style", [Style(), Style(colour=True), Style(plain=True, width=60)])
def test_a_page_begins_with_what_is_known_first(style: Style) -> None:
    trace = open_trace(shipped("traces") / "metrics-naive.pt.trace.json.gz")
    first, whole = opening_text(opening(trace, "a trace"), style), to_text(answer(trace, "a trace"), style)
    assert "4 steps" in first
    assert "27.1 ms a step" in " ".join(first.split())
    assert whole.startswith(first)
    assert "saves about" in whole.removeprefix(first)


@pytest.mark.parametrize(
    ("level", "sentence"),
    [("bad", "! no rule names a first change: see Idle below"), ("warn", "✓ nothing to change:")],
)
def test_a_page_without_findings_is_not_all_well_where_a_line_is_bad(level: Level, sentence: str) -> None:
    line = Line("device_idle", "Idle", level, "the GPU idles 84 % of the time")
    page = Answer("t", "", 0, None, None, None, None, "trust: complete", True, (), (line,))
    for text in (to_text(page, Style()), to_markdown(page)):
        assert sentence in text


def test_what_a_trace_cannot_tell_does_not_push_its_findings_off_the_screen() -> None:
    trust = "trust: " + " · ".join(f"remark {n} of a profiler that has much to say" for n in range(30))
    page = Answer("t", "", 0, None, None, None, None, trust, False, (), (), ())
    lines = opening_text(page, Style(width=80)).splitlines()
    assert len(lines) == 6
    assert "remark 0" in lines[1]
    assert lines[-1].strip() == "… see all with tuiprof report -v"
    whole = opening_text(page, Style(width=None))  # as a file is written
    assert "remark 29" in whole
