"""What a rule may read: the analyses it needs, ours or a third party's, and their tables as typed rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import polars as pl
import pytest
from analyses.made import Made
from analyses.test_ranks import rank_trace, together

from tuiprof import advice, analyses, plugins
from tuiprof.advice import AdviceRule, Evidence, Finding, advise
from tuiprof.advice.question import changes
from tuiprof.analyses import Analysis
from tuiprof.analyses.sync_events import WAIT_LOCATIONS
from tuiprof.errors import UsageProblem
from tuiprof.model import Column, Fact, Report, RowsOf, Table, Trace, Unavailable, Verdict, Window
from tuiprof.whatif import Edit

Find = Callable[[Trace, Evidence], Iterable[Finding]]
RULES = SimpleNamespace()  # what the entry points of this module point at
pytestmark = pytest.mark.defects


@dataclass(frozen=True)
class Sample:
    """A row of the third party's table."""

    name: str
    in_: str
    joules: float


SAMPLES = RowsOf("energy", "samples", Sample)


def measure_energy(trace: Trace, window: Window) -> Report | Unavailable:
    """Stand in for a third party's analysis."""
    rows = pl.DataFrame({"joules": [2.5], "in": ["step 1"], "name": ["gemm"]})
    columns = (Column("name", "kernel"), Column("joules", "energy", "number"), Column("in", "in"))
    facts = (Fact("joules", "energy", 2.5),)
    table = Table(SAMPLES.key, "Energy by kernel", columns, rows)
    return Report("energy", "Energy", Verdict("2.5 J", code="thirsty"), facts, (table,))


ENERGY = Analysis("energy", "Energy", "What takes the most energy?", measure_energy)


@pytest.fixture(autouse=True)
def _found_anew() -> Iterator[None]:
    parts = (analyses.available, analyses.find, advice.available, advice.unavailable)
    for part in parts:
        part.cache_clear()
    yield
    for part in parts:
        part.cache_clear()


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install a rule, and the analysis of energy, as a third party does."""

    def add(find: Find, *needs: str) -> None:
        RULES.theirs = AdviceRule("theirs", find, needs=needs)
        points = {
            "tuiprof.advice": [EntryPoint("theirs", f"{__name__}:RULES.theirs", "tuiprof.advice")],
            "tuiprof.analyses": [EntryPoint("energy", f"{__name__}:ENERGY", "tuiprof.analyses")],
        }
        monkeypatch.setattr(plugins, "entry_points", lambda group: points.get(group, ()))

    return add


def finding(what: str) -> Finding:
    return Finding(what, "", "do otherwise", "high", "it was seen", None)


def waiting() -> Made:
    """Four steps that each wait for the device at one place, so that a rule of ours fires."""
    made = Made()
    for _, at in made.steps(200):
        made.launch("gemm", (at, at + 5), (at + 10, at + 90))
        made.op("aten::nonzero", at + 20, at + 98).call("cudaStreamSynchronize", at + 30, at + 92)
        made.launch("add", (at + 115, at + 120), (at + 122, at + 190))
    return made


def outcome(trace: Trace) -> tuple[dict[str, str], str]:
    """Return what the rules found, by rule, and the notes; the rest of the advice is there either way."""
    report = advise(trace)
    rows = report.table("findings").rows
    assert "size-from-device" in rows["rule"].to_list() or trace.siblings is not None
    return dict(zip(rows["rule"], rows["what"], strict=True)), " ".join(report.notes)


def test_a_rule_reads_an_analysis_and_typed_rows_of_a_third_party(added: Callable[..., None]) -> None:
    def find(_trace: Trace, evidence: Evidence) -> Iterator[Finding]:
        (sample,) = evidence.rows(SAMPLES)
        report = evidence.report("energy")
        assert report is not None
        yield finding(f"{report.verdict.code}: {sample.name} in {sample.in_} takes {sample.joules} J")
        assert evidence.figure("energy", "joules") == 2.5

    added(find, "energy")
    found, notes = outcome(waiting().trace())
    assert found["theirs"] == "thirsty: gemm in step 1 takes 2.5 J"
    assert "unavailable" not in notes


@pytest.mark.parametrize("need", ["memory", "ranks"])
def test_a_rule_reads_any_analysis_that_it_needs(need: str, added: Callable[..., None]) -> None:
    def find(_trace: Trace, evidence: Evidence) -> Iterator[Finding]:
        report = evidence.report(need)
        if report is not None:
            yield finding(report.verdict.sentence)

    added(find, need)
    if need == "ranks":
        trace = together([rank_trace([20] * 4), rank_trace([60] * 4)])
    else:
        trace = waiting().trace()
        trace.instants = pl.DataFrame(
            {
                "ts": [10_000, 30_000],
                "name": ["[memory]"] * 2,
                "category_text": ["cpu_instant_event"] * 2,
                "track": [0, 0],
                "ordinal": [0, 1],
                "bytes": [1 << 20, 1 << 20],
                "address": [1, 2],
                "device": [0, 0],
                "device_type": [1, 1],
                "total_allocated": [1 << 20, 2 << 20],
                "total_reserved": [4 << 20, 4 << 20],
            }
        )
    answer = analyses.run(need, trace)
    assert isinstance(answer, Report), answer
    assert outcome(trace)[0]["theirs"] == answer.verdict.sentence


def test_an_analysis_without_an_answer_for_this_trace_is_nothing_to_read(added: Callable[..., None]) -> None:
    def find(_trace: Trace, evidence: Evidence) -> Iterator[Finding]:
        assert evidence.report("ranks") is None
        assert evidence.figure("ranks", "any") is None
        assert evidence.rows(RowsOf("ranks", "any", Sample)) == []
        yield finding("asked")

    added(find, "ranks")
    assert outcome(waiting().trace())[0]["theirs"] == "asked"


def _report(_trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    evidence.report("memory")
    yield finding("never")


def _table(_trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    evidence.rows(RowsOf("energy", "sampels", Sample))
    yield finding("never")


def _column(_trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    evidence.rows(RowsOf("sync_events", WAIT_LOCATIONS.key, Sample))
    yield finding("never")


def _figure(_trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    evidence.figure("energy", "watts")
    yield finding("never")


@pytest.mark.parametrize(
    ("find", "needs", "why"),
    [
        (_report, ("energy",), "it reads the report of 'memory', which its `needs` lack (it needs energy)"),
        (_table, ("energy",), "no table in the report of energy is called 'sampels'; there are samples"),
        (_column, ("sync_events",), "no column name, joules in table 'groups' of sync_events; there are "),
        (_figure, ("energy",), "no fact in the report of energy is called 'watts'; there are joules"),
        (_report, ("memroy",), "it needs the analysis 'memroy', which does not exist"),
        (_report, ("advice",), "it needs the analysis 'advice', which is built from the rules"),
    ],
)
def test_what_a_rule_gets_wrong_is_said_of_that_rule_alone(
    find: Find, needs: tuple[str, ...], why: str, added: Callable[..., None]
) -> None:
    added(find, *needs)
    found, notes = outcome(waiting().trace())
    assert "theirs" not in found
    assert f"The rule theirs is unavailable: {'it failed' if 'it needs the' not in why else why}" in notes
    assert why in notes


def test_a_rule_whose_analysis_failed_is_unavailable(
    added: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_trace: Trace, _window: Window) -> Report:
        raise ZeroDivisionError

    monkeypatch.setitem(globals(), "ENERGY", Analysis("energy", "Energy", "", fail))
    added(lambda _trace, _evidence: [finding("never")], "energy")
    found, notes = outcome(waiting().trace())
    assert "theirs" not in found
    assert (
        "The rule theirs is unavailable: it needs the analysis 'energy': it failed: ZeroDivisionError"
        in notes
    )


def test_a_change_without_a_finding_is_refused_with_the_reason(added: Callable[..., None]) -> None:
    def raises(_trace: Trace, _evidence: Evidence) -> Iterator[Finding]:
        raise ValueError("broken")

    def finds_little(_trace: Trace, _evidence: Evidence) -> Iterator[Finding]:
        yield replace(finding("a trifle"), edit=Edit())

    def finds_nothing(_trace: Trace, _evidence: Evidence) -> Iterator[Finding]:
        yield from ()

    for find, reason in (
        (raises, "the rule 'theirs' is unavailable: it failed: ValueError: broken"),
        (finds_little, "what 'theirs' finds in this trace saves less than 0.2 % of the step"),
        (finds_nothing, "no finding of 'theirs' in this trace"),
    ):
        added(find)
        advice.available.cache_clear()
        with pytest.raises(UsageProblem) as refused:
            changes(waiting().trace(), without=("theirs",))
        assert reason in refused.value.message
        assert "size-from-device" in refused.value.remedy
