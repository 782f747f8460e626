"""Products of which few rows are used, on tiny traces with shapes."""

from __future__ import annotations

import pytest
from analyses.made import BACKWARD
from hypothesis import given
from hypothesis import strategies as st

from tests.advice.findings import finding, found
from tests.advice.host_ahead import Steps
from tests.advice.products.one_step import ELEMENTWISE, GEMM, Call, step_of

BATCH, LENGTH, WORDS = 64, 128, 32_000
SCORES = [BATCH, LENGTH, WORDS]
HEAD: Call = ("linear", [[BATCH, LENGTH, 256], [WORDS, 256], []], [], 1000)
LAST: Call = ("select", [SCORES, [], []], ["", "1", "-1"], 0)
LOSS: Call = ("cross_entropy_loss", [[BATCH, WORDS], [BATCH]], [], 50)


def test_scores_of_all_words_are_needed_where_they_are_read() -> None:
    row = found(step_of(HEAD, LAST, LOSS), "unused-rows")
    assert "computes 8 192 rows of 32 000 values, of which 64 are used (select), every step" in row["what"]
    assert "head(x[:, -1])" in row["instead"]
    assert row["wins_ns"] == pytest.approx(1e6 * (1 - (64 + 150) / 8192), rel=0.02)
    assert 0 < row["wins_low_ns"] < row["wins_ns"] < row["wins_high_ns"]


@given(st.sampled_from((256, 1024, 8192)), st.integers(1, 8), st.integers(1, 8))
def test_the_saving_follows_from_the_rows(rows: int, parts: int, picks: int) -> None:
    """Rows that are picked are subtracted, however many times rows are picked."""
    scores, used = [parts, rows, WORDS], picks * rows
    head: Call = ("linear", [[parts, rows, 64], [WORDS, 64]], [], 1000)
    takes: list[Call] = [("select", [scores, [], []], ["", "0", str(at)], 0) for at in range(picks)]
    row = finding(step_of(head, *takes, ("relu", [[rows, WORDS]], [], 10)), "unused-rows")
    stays = (used + 150) / (parts * rows)
    if used > 0.5 * parts * rows or stays >= 1:
        assert row is None
    elif stays < 0.95:
        assert row is not None
        assert row["wins_ns"] == pytest.approx(1e6 * (1 - stays), rel=0.02)


@pytest.mark.parametrize(
    ("calls", "used"),
    [
        pytest.param(
            [("slice", [SCORES], ["", "1", "-1", str(2**63 - 1), "1"], 0), LOSS], 64, id="the last one"
        ),
        pytest.param([("slice", [SCORES], ["", "1", "100", "128", "1"], 0), LOSS], 28 * 64, id="the answer"),
        pytest.param([("narrow", [SCORES], ["", "1", "3", "2"], 0), LOSS], 128, id="narrow"),
        pytest.param(
            [("index", [SCORES, []], [], 9), ("nll_loss", [[900, WORDS], [900]], [], 9)], 900, id="a mask"
        ),
        pytest.param([("_to_copy", [SCORES], [], 100), LAST, LOSS], 64, id="in another type"),
        pytest.param([("div", [SCORES, []], [], 100), LAST, LOSS], 64, id="a temperature"),
        pytest.param([("log_softmax", [SCORES, []], ["", "2", ""], 100), LAST, LOSS], 64, id="probabilities"),
        pytest.param(
            [
                ("view", [SCORES, []], [], 0),
                ("index_select", [[BATCH * LENGTH, WORDS], [], [77]], [], 9),
                ("argmax", [[77, WORDS]], [], 9),
            ],
            77,
            id="rows by number",
        ),
    ],
)
def test_rows_are_picked_in_many_ways(calls: list[Call], used: int) -> None:
    row = found(step_of(HEAD, *calls), "unused-rows")
    assert f"of which {used:,} are used".replace(",", " ") in row["what"].replace("\u202f", " ").replace(
        "\xa0", " "
    )


def test_only_shapes_that_count_rows_are_sure() -> None:
    """A mask has an element for each row, and what follows may be made of something else."""
    flat = [BATCH * LENGTH, WORDS]
    view: Call = ("view", [SCORES, []], [], 0)
    soon: Call = ("argmax", [[78, WORDS]], [], 9)
    masked: Call = ("index", [flat, [[BATCH * LENGTH]]], [], 9)
    assert found(step_of(HEAD, view, masked, soon), "unused-rows")["sure"] == "medium"
    assert found(step_of(HEAD, LAST, LOSS), "unused-rows")["sure"] == "high"
    numbered = [("index_select", [flat, [], [count]], [], 9) for count in (77, 78)]
    assert finding(step_of(HEAD, view, numbered[0], soon), "unused-rows") is None, "not of these rows"
    assert found(step_of(HEAD, view, numbered[1], soon), "unused-rows")["sure"] == "high"


@pytest.mark.parametrize("elsewhere", [0, 30])
def test_calls_of_other_threads_hide_no_use(elsewhere: int) -> None:
    steps = Steps()
    for _ in steps.each():
        steps.op("aten::linear", ((GEMM, 1000),), dims=HEAD[1])
        steps.op("aten::select", dims=LAST[1], values=LAST[2])
        for _ in range(elsewhere):
            steps.op("aten::add", dims=[[4], [4]], track=BACKWARD)
        steps.op("aten::exp", ((ELEMENTWISE, 100),), dims=[SCORES])
    assert finding(steps.trace(), "unused-rows") is None


def test_its_backward_pass_goes_with_it() -> None:
    row = found(step_of(HEAD, LAST, LOSS, trained=True), "unused-rows")
    assert row["wins_ns"] == pytest.approx(1.2e6 * (1 - (64 + 150) / 8192), rel=0.02)


def test_a_head_of_two_layers_is_not_needed_either() -> None:
    first: Call = ("linear", [[BATCH, LENGTH, 96], [256, 96], [256]], [], 500)
    hidden: list[Call] = [
        ("gelu", [[BATCH, LENGTH, 256]], [], 100),
        ("layer_norm", [[BATCH, LENGTH, 256]], [], 100),
    ]
    row = found(step_of(first, *hidden, HEAD, LAST, LOSS), "unused-rows")
    assert row["wins_ns"] == pytest.approx(1.7e6 * (1 - (64 + 150) / 8192), rel=0.02)
    # What a second head reads is needed.
    second: Call = ("linear", [[BATCH, LENGTH, 256], [2, 256]], [], 10)
    row = found(step_of(first, *hidden, HEAD, LAST, LOSS, second), "unused-rows")
    assert row["wins_ns"] == pytest.approx(1e6 * (1 - (64 + 150) / 8192), rel=0.02)


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param(
            [HEAD, ("slice", [SCORES], ["", "1", "0", "127", "1"], 0), LOSS], id="all but the last one"
        ),
        pytest.param([HEAD, ("slice", [SCORES], ["", "2", "0", "10", "1"], 0), LOSS], id="some columns"),
        pytest.param([HEAD, LAST, LOSS, ("cross_entropy_loss", [SCORES], [], 100)], id="all used as well"),
        pytest.param([HEAD, LAST, *[LOSS] * 200, ("mean", [SCORES], [], 9)], id="all used much later"),
        pytest.param([HEAD, ("cross_entropy_loss", [SCORES], [], 100), LAST, LOSS], id="all used before"),
        pytest.param([HEAD, ("slice", [SCORES], ["", "1", "0", "9", "0"], 0), LOSS], id="a step of nothing"),
        pytest.param([HEAD, ("softmax", [SCORES, []], ["", "1", ""], 9), LAST, LOSS], id="over the places"),
        pytest.param([HEAD, ("add", [SCORES, SCORES], [], 9), LAST, LOSS], id="added to others"),
        pytest.param(
            [
                HEAD,
                ("view", [SCORES], [], 0),
                ("select", [[3, BATCH, LENGTH, WORDS // 3]], ["", "0", "0"], 0),
            ],
            id="other columns in rows",
        ),
        pytest.param(
            [HEAD, ("index", [SCORES, []], [], 9), ("sum", [[12]], [], 9)], id="how many is unknown"
        ),
        pytest.param([HEAD, LOSS], id="nothing picked"),
        pytest.param([HEAD, ("select", [SCORES], ["", "x", "-1"], 0), LOSS], id="damaged"),
        pytest.param(
            [
                ("linear", [[8, 16, 64], [WORDS, 64]], [], 1000),
                ("select", [[8, 16, WORDS]], ["", "1", "0"], 0),
                LOSS,
            ],
            id="as few as the weights take",
        ),
    ],
)
def test_others_are_none(calls: list[Call]) -> None:
    assert finding(step_of(*calls), "unused-rows") is None


def test_without_shapes_nothing_is_advised() -> None:
    assert finding(step_of(HEAD, LAST, LOSS, shapes=False), "unused-rows") is None
