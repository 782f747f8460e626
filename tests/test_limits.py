"""Limits on figures, as ``tuiprof check`` tests them."""

from __future__ import annotations

import pytest

from tuiprof.comparison.limits import check, parse
from tuiprof.errors import UsageProblem
from tuiprof.model import Fact, Report, Unavailable, Verdict


def report(**facts: float | None) -> Report:
    return Report(
        "sync_events", "Syncs", Verdict("two syncs"), tuple(Fact(k, k, v) for k, v in facts.items())
    )


def outcomes(
    limits: list[str], now: list[Report | Unavailable], base: list[Report] | None = None
) -> list[str]:
    return [r.outcome for r in check([parse(text, "max") for text in limits], now, base)]


def test_a_figure_at_its_limit_passes_and_beyond_it_fails() -> None:
    assert outcomes(["syncs_per_step=2", "syncs_per_step=1.9"], [report(syncs_per_step=2)]) == [
        "passed",
        "failed",
    ]


def test_minimum() -> None:
    limits = [parse("steps=10", "min"), parse("steps=12", "min")]
    assert [r.outcome for r in check(limits, [report(steps=11)])] == ["passed", "failed"]


def test_times_may_be_given_in_another_unit() -> None:
    now = [report(device_empty_ns_per_step=500_000)]
    assert outcomes(["device_empty_ms_per_step=0.5", "device_empty_us_per_step=499"], now) == [
        "passed",
        "failed",
    ]


def test_relative_to_a_baseline() -> None:
    result = check(
        [parse("step_median_ms=+5%", "max")], [report(step_median_ns=1.06e6)], [report(step_median_ns=1e6)]
    )
    assert result[0].outcome == "failed"
    assert result[0].bound == pytest.approx(1.05)
    assert "baseline 1" in result[0].sentence


def test_numbers_may_be_typed_as_they_are_shown() -> None:
    assert parse("a=−10%", "min") == parse("a=-10%", "min")
    assert parse("a=−1 234.5", "max").value == -1234.5


def test_rounding_decides_nothing() -> None:
    # 3 × 0.9 is 2.7000000000000002 in floating point, 0.1 + 0.2 is 0.30000000000000004.
    assert check([parse("a=-10%", "min")], [report(a=2.7)], [report(a=3)])[0].outcome == "passed"
    assert outcomes(["a=0.3", "a=0.2999999"], [report(a=0.1 + 0.2)]) == ["passed", "failed"]
    assert outcomes(["a=0"], [report(a=1e-12)]) == ["failed"]


def test_what_is_beyond_by_little_shows_that_it_is() -> None:
    result = check([parse("a=1234567", "max")], [report(a=1234568)])[0]
    assert result.sentence == "a is 1 234 568, allowed ≤ 1 234 567"


def test_figures_are_shown_with_their_units_and_more_digits_where_they_look_alike() -> None:
    step = Fact("step_median_ns", "step", 16_300_400, "ns")
    now = Report("steps", "Steps", Verdict("so long"), (step, Fact("jitter_share", "jitter", 0.072, "share")))
    said = [
        (result.sentence, result.measured, result.kind, result.unit)
        for result in check(
            [
                parse("step_median_ns=1e7", "max"),
                parse("step_median_us=16300", "max"),
                parse("step_median_ns=16300399", "max"),
                parse("jitter_share=0.05", "max"),
            ],
            [now],
        )
    ]
    assert said == [
        ("step_median_ns is 16.3 ms, allowed ≤ 10.0 ms", 16_300_400, "ns", ""),
        ("step_median_us is 16300.4 µs, allowed ≤ 16300 µs", 16_300.4, "number", "us"),
        ("step_median_ns is 16300400 ns, allowed ≤ 16300399 ns", 16_300_400, "ns", ""),
        ("jitter_share is 7.2 %, allowed ≤ 5.0 %", 0.072, "share", ""),
    ]


def test_a_share_of_a_negative_baseline() -> None:
    now, base = [report(a=-98)], [report(a=-100)]
    assert outcomes(["a=+5%", "a=+1%", "a=-5%"], now, base) == ["passed", "failed", "failed"]


def test_what_cannot_be_told_is_no_pass() -> None:
    assert outcomes(["syncs_per_step=2"], [report(syncs_per_step=None)]) == ["unknown"]
    gone = Unavailable("sync_events", "a CPU-only trace")
    result = check([parse("syncs_per_step=2", "max")], [gone])[0]
    assert result.outcome == "unknown"
    assert "CPU-only" in result.sentence
    assert outcomes(["a=+5%"], [report(a=1)], [report(b=1)]) == ["unknown"]


@pytest.mark.parametrize(
    "text", ["syncs", "=3", "syncs=many", "syncs=5%", "syncs=1 2", "syncs=nan", "syncs=inf"]
)
def test_a_limit_that_is_none(text: str) -> None:
    with pytest.raises(UsageProblem, match="KEY=VALUE"):
        parse(text, "max")


def test_an_unknown_figure_suggests_the_known() -> None:
    with pytest.raises(UsageProblem, match="syncs_per_step"):
        check([parse("sync_per_step=0", "max")], [report(syncs_per_step=0)])


def test_a_typo_is_named_even_where_something_cannot_be_told() -> None:
    gone = Unavailable("memory", "no memory events")
    result = check([parse("sync_per_step=0", "max")], [report(syncs_per_step=0), gone])[0]
    assert result.outcome == "unknown"
    assert "did you mean syncs_per_step?" in result.sentence
    assert result.sentence.endswith("; unavailable here: no memory events")


def test_a_figure_of_an_unavailable_analysis_says_why_of_that_one_alone() -> None:
    missing = [Unavailable("sync_events", "a CPU-only trace"), Unavailable("compile", "nothing was compiled")]
    result = check([parse("syncs_per_step=0", "max")], [report(self_ns_per_step=1), *missing])[0]
    assert result.sentence == "syncs_per_step: sync_events is unavailable: a CPU-only trace"


def test_relative_without_a_baseline() -> None:
    with pytest.raises(UsageProblem, match="baseline"):
        check([parse("steps=+5%", "max")], [report(steps=0)])
