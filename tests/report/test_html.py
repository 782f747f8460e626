"""Reports as a page: it says what the other formats say, needs nothing else, and runs nothing of anybody's."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest
from browsing import open_page

from tuiprof.model import Chart, Column, Report, Series, Table, Unavailable, Verdict
from tuiprof.report import Style, render_all

EVIL = "</script><img src=x onerror=alert(1)>\" onload='a' \x1b[2J\u202e &lt;b&gt;"


def report_of(rows: pl.DataFrame, *columns: Column, chart: Chart | None = None) -> Report:
    return Report("x", "X", Verdict("v"), tables=(Table("t", "T", columns, rows, chart=chart),))


class Page(HTMLParser):
    """What a browser would make of a document: elements with their attributes, and text by element."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if self._open:
            self.text.setdefault(self._open[-1], []).append(data)


@pytest.fixture(scope="module")
def sample() -> list[Report | Unavailable]:
    from tuiprof.analyses import available, run
    from tuiprof.formats import open_trace
    from tuiprof.resources import shipped

    trace = open_trace(shipped("traces") / "metrics-naive.pt.trace.json.gz")
    return [run(name, trace) for name in available()]


def test_the_page_says_all_the_reports_say_and_is_well_formed(sample: list[Report | Unavailable]) -> None:
    page = Page(render_all(sample, "html", trust="trust: complete", style=Style(title="a trace")))
    said = " ".join(text for texts in page.text.values() for text in texts)
    assert page.text["h1"] == ["a trace"]
    for answer in sample:
        if isinstance(answer, Unavailable):
            assert answer.reason in said
            continue
        assert answer.verdict.sentence in said
        for fact in answer.facts:
            assert fact.value is None or fact.text in page.text["dd"]
        for table in answer.tables:
            shown = [column for column in table.columns if not column.hidden]
            for column in shown if not table.prose else ():
                for value in table.rows[column.key].head(1000).to_list():
                    text = column.text(value)
                    assert not text or text in page.text["td"], (answer.analysis, table.key, column.key)


def test_nothing_is_fetched_and_only_its_own_script_may_run(sample: list[Report | Unavailable]) -> None:
    document = render_all(sample, "html")
    page = Page(document)
    for tag, attributes in page.elements:
        assert tag not in ("link", "img", "iframe", "object", "base", "form"), tag
        assert "src" not in attributes
        assert attributes.get("href", "#").startswith("#")
        assert not [name for name in attributes if name.startswith("on")]
    (script,) = re.findall(r"<script>(.*?)</script>", document, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [a["content"] for tag, a in page.elements if "http-equiv" in a]
    assert policy is not None
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")


def test_names_stay_names_wherever_they_stand() -> None:
    rows = pl.DataFrame({"name": [EVIL, "b"], "share": [0.6, 0.4], "step_ns": [1, 2], "step": [EVIL, "2"]})
    columns = (
        Column("name", EVIL, help=EVIL),
        Column("share", "share", "share"),
        Column("step", "step"),
        Column("step_ns", "time", "ns"),
    )
    chart = Chart(EVIL, (Series("step_ns"),), at="step")
    table = Table("steps", EVIL, columns, rows, note=EVIL, chart=chart)
    parts = Table("parts", EVIL, columns[:2], rows, prose=True)
    whole = Table("whole", EVIL, columns[:2], rows)
    report = Report("x", EVIL, Verdict(EVIL, "bad"), tables=(table, parts, whole), notes=(EVIL,))
    document = render_all([report, Unavailable("y", EVIL, EVIL)], "html", trust=EVIL, style=Style(title=EVIL))
    page = Page(document)
    assert "img" not in {tag for tag, _ in page.elements}
    assert document.count("<script>") == 1
    assert not [a for _, a in page.elements if "onload" in a or "onerror" in a]
    assert "alert(1)" in "".join(page.text["td"])


def test_a_series_is_drawn_and_what_sticks_out_is_cut_but_named() -> None:
    values = [10_000_000] * 100
    values[0] = 900_000_000
    rows = pl.DataFrame({"step": [str(i) for i in range(100)], "step_ns": values})
    columns = (Column("step", "step"), Column("step_ns", "time", "ns"))
    document = render_all(
        [report_of(rows, *columns, chart=Chart("Steps", (Series("step_ns"),), at="step"))], "html"
    )
    assert "1 beyond the scale" in document
    assert "highest 900 ms" in document
    assert ">30.0 ms</span>" in document  # the top of the scale
    assert "<title>step 0: 900 ms</title>" in document


@pytest.mark.parametrize(
    ("shares", "drawn"), [([0.7, 0.2, 0.1], True), ([0.7, 0.2, 0.4], False), ([0.1, 0.2], False)]
)
def test_shares_are_one_bar_where_they_are_a_whole(shares: list[float], drawn: bool) -> None:
    rows = pl.DataFrame({"what": ["a", "b", "c"][: len(shares)], "share": shares})
    document = render_all(
        [report_of(rows, Column("what", "what"), Column("share", "share", "share"))], "html"
    )
    assert ('class="parts"' in document) == drawn
    assert (">A</b> a <span>70.0 %" in document) == drawn


def test_a_long_table_says_what_it_leaves_out() -> None:
    document = render_all([report_of(pl.DataFrame({"n": range(3000)}), Column("n", "n", "count"))], "html")
    assert "… 2000 more rows" in document


def test_tables_sort_by_a_click_in_a_browser(tmp_path: Path, sample: list[Report | Unavailable]) -> None:
    path = tmp_path / "r.html"
    path.write_text(render_all(sample, "html"))
    with open_page(width=390, height=844) as page:
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text))
        page.goto(path.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        table = page.locator("h3:has-text('By kernel') + .scroll")
        visible = table.locator("tbody tr:visible")
        assert visible.count() == 12
        # On a narrow screen each figure stands beside its heading, and the row of headings is not there.
        page.set_viewport_size({"width": 1280, "height": 844})
        head = table.locator("th", has_text="device/step")
        column = head.evaluate("cell => cell.cellIndex")

        def figures() -> list[float]:
            cells = table.locator(f"tbody tr td:nth-child({column + 1})")
            return [float(value) for value in cells.evaluate_all("all => all.map(c => c.dataset.v)")]

        head.click()
        assert figures() == sorted(figures(), reverse=True)
        assert head.get_attribute("aria-sort") == "descending"
        head.press("Enter")
        assert figures() == sorted(figures())
        table.locator("+ button").click()
        assert visible.count() == 72
        assert problems == []


def test_a_page_of_a_trace_opens_with_what_to_change_and_the_timeline(
    sample: list[Report | Unavailable],
) -> None:
    from tuiprof.advice.answer import answer, picture
    from tuiprof.formats import open_trace
    from tuiprof.report.html import document
    from tuiprof.resources import shipped

    trace = open_trace(shipped("traces") / "metrics-naive.pt.trace.json.gz")
    first, drawn = answer(trace, "naive"), picture(trace)
    assert drawn is not None
    written = document(sample, "", Style(title="naive"), first, drawn)
    said = Page(written).text
    assert said["h3"][: len(first.changes[:4])] == [change.what for change in first.changes[:4]]
    assert written.index('id="first"') < written.index('id="timeline"') < written.index('class="glance"')
    # What the lanes show is what the analyses say: the device's idle share within the steps.
    lanes = {lane.label: lane for lane in drawn.lanes}
    assert [one.label for one in lanes["steps"].ranges] == ["step 20", "step 21", "step 22", "step 23"]
    assert {"forward", "metrics"} <= {one.label for one in lanes["host"].ranges}
    idle, busy = (sum(lanes[name].shares) / len(lanes[name].shares) for name in ("idle", "device"))
    assert idle + busy == pytest.approx(1, abs=1e-6)
    steps = next(one for one in sample if one.analysis == "device_idle")
    assert isinstance(steps, Report)
    assert idle == pytest.approx(float(steps.fact("idle_share") or 0), abs=0.01)


def test_names_in_the_opening_stay_names() -> None:
    from tuiprof.model.report import Answer, Change, Lane, Picture, Range
    from tuiprof.report.html import document

    change = Change(EVIL, EVIL, EVIL, EVIL, EVIL, "high", 1e6, 5e5, 2e6, 0.5, prove=EVIL)
    first = Answer(EVIL, EVIL, 2, 2e6, 3e6, None, None, EVIL, True, (change,), ())
    drawn = Picture(
        EVIL, 10, (Lane(EVIL, "ranges", (Range(0.0, 1.0, EVIL, 10),)), Lane(EVIL, "busy", shares=(1.0,)))
    )
    written = document([], "", Style(title="t"), first, drawn)
    page = Page(written)
    assert "img" not in {tag for tag, _ in page.elements}
    assert written.count("<script>") == 1
    assert not [a for _, a in page.elements if "onload" in a or "onerror" in a]
    assert "\x1b" not in written
