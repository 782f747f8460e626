"""Numbers as people read them say what the numbers are."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuiprof.model.report import Kind
from tuiprof.model.units import (
    MINUS,
    format_change,
    format_ns,
    format_ns_range,
    format_ns_span,
    format_points,
    format_rough_share,
    format_share,
    format_speed,
    format_speed_range,
    format_value,
)

_UNITS = {
    "ns": 1,
    "µs": 1e3,
    "ms": 1e6,
    "s": 1e9,
    "%": 0.01,
    "B": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}


@given(
    st.floats(-5e10, 5e10) | st.floats(-1, 1) | st.integers(-(10**10), 10**10),
    st.sampled_from(["ns", "bytes", "share", "number", "count"]),
)
def test_what_is_shown_is_the_number_to_a_percent(value: float, kind: str) -> None:
    text = format_value(value, kind)
    assert "-" not in text
    text = text.replace(MINUS, "-")
    if "<" in text:
        assert 0 < abs(value) < 1
        return
    found = re.fullmatch(r"(-?[\d\u202f\u2009\xa0 ]+?(?:\.\d+)?)(?: (\D+))?", text)
    assert found, text
    shown = float(re.sub(r"[^\d.-]", "", found[1])) * _UNITS.get(found[2], 1)
    least = 0.5 if kind in ("ns", "bytes") else 0
    assert shown == pytest.approx(value, rel=0.055 if abs(value) < 1 else 0.0051, abs=least)


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0 %"),
        (1e-9, "<0.001 %"),
        (-1e-9, "−<0.001 %"),
        (0.0004, "0.04 %"),
        (0.00999, "1.0 %"),
        (1, "100 %"),
    ],
)
def test_shares(share: float, text: str) -> None:
    assert format_share(share) == text


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (1.31e6, "ns", "+1.31 ms"),
        (-2e6, "ns", "−2.00 ms"),
        (0.0, "ns", "0 ns"),
        (0.0069, "share", "+0.69 %"),
        (12, "count", "+12"),
        (None, "ns", "–"),
    ],
)
def test_changes_have_a_sign(value: float | None, kind: Kind, text: str) -> None:
    assert format_change(value, kind) == text


def test_the_difference_of_shares_is_in_points() -> None:
    assert [format_points(value) for value in (-0.115, 0.012, 0.0, None)] == [
        "−11.5 pp",
        "+1.2 pp",
        "0 pp",
        "–",
    ]


def test_a_range_says_its_unit_once() -> None:
    assert format_ns_range(25.8e6, 26.7e6) == "25.8 … 26.7 ms"
    assert format_ns_range(998e3, 1.02e6) == "998 µs … 1.02 ms"
    assert format_ns_range(72e9, 75e9) == "1 min 12 s … 1 min 15 s"


def test_little_is_not_nothing() -> None:
    assert [format_value(v, "count") for v in (0, 0.0001, 0.004, 0.05)] == ["0", "<0.001", "0.004", "0.05"]
    assert [format_ns(v) for v in (0, 0.4, 1, 99_960)] == ["0 ns", "<1 ns", "1 ns", "100 µs"]


def test_nothing_has_no_sign() -> None:
    assert (format_ns(-0.0), format_ns(-3.0)) == ("0 ns", "−3 ns")


def test_a_count_of_many_figures_is_exact() -> None:
    assert format_value(2**60 + 1, "count") == "1 152 921 504 606 846 977"


@pytest.mark.parametrize(
    ("ns", "shown"),
    [
        (999_600, "1.00 ms"),
        (999_400, "999 µs"),
        (999.6, "1.00 µs"),
        (999_600_000, "1.00 s"),
        (59_999_000_000, "60.0 s"),
    ],
)
def test_a_duration_that_rounds_to_a_thousand_moves_up_a_unit(ns: float, shown: str) -> None:
    assert format_ns(ns) == shown


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0.957, "1.045× faster"),
        (1.045, "1.045× slower"),
        (0.5, "2.00× faster"),
        (3.214, "3.21× slower"),
        (1 / 17428, "17 400× faster"),
        (1.0998, "1.10× slower"),
        (0.99999, "the same"),
        (0.0, "–"),
    ],
)
def test_a_ratio_of_times_says_how_many_times_and_which_way(ratio: float, text: str) -> None:
    assert format_speed(ratio) == text


def test_an_interval_of_ratios_says_its_word_once() -> None:
    assert format_speed_range(0.8, 0.9) == "1.11 … 1.25× faster"
    assert format_speed_range(2.0, 2.5) == "2.00 … 2.50× slower"
    assert format_speed_range(0.98, 1.02) == "1.020× faster … 1.020× slower"


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.1996, "20 %"), (0.175, "18 %"), (0.0996, "10 %"), (0.0292, "2.9 %"), (0.0046, "0.46 %"), (None, "–")],
)
def test_an_estimated_share_has_two_figures(share: float | None, text: str) -> None:
    assert format_rough_share(share) == text


def test_a_span_from_nothing_is_said_by_its_end() -> None:
    assert format_ns_span(1_100_000, 1_700_000) == "1.10 ms to 1.70 ms"
    assert format_ns_span(0.0, 762_000) == "up to 762 µs"
