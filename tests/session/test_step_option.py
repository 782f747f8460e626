"""What can be typed for steps and captures, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuiprof.errors import UsageProblem
from tuiprof.session.run.launch import STEP_AT, STEP_FUNCTION, parse_capture, step_environment


def test_captures_by_the_clock() -> None:
    timed = parse_capture("3s@20s", stack=True)
    assert (timed.seconds, timed.after_s, timed.stack) == (3.0, 20.0, True)
    assert parse_capture("0.5s").seconds == 0.5
    steps = parse_capture("5@20")
    assert (steps.steps, steps.at, steps.seconds) == (5, 20, None)


@pytest.mark.parametrize("text", ["3s@20", "3@20s", "0s", "100s", "s", "-1s", "3s@"])
def test_captures_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UsageProblem):
        parse_capture(text)


def test_where_steps_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("a = 1\nb = 2\n")
    monkeypatch.chdir(tmp_path)
    assert step_environment("train.py:2", None) == {STEP_AT: f"{tmp_path.resolve() / 'train.py'}:2"}
    assert step_environment(None, "lib.loop:Trainer.step") == {STEP_FUNCTION: "lib.loop:Trainer.step"}
    assert step_environment(None, None) == {}


@pytest.mark.parametrize(
    ("at", "function", "said"),
    [
        ("train.py", None, "is not FILE:LINE"),
        ("train.py:0", None, "is not FILE:LINE"),
        ("train.py:9", None, "has 3 lines"),
        ("other.py:1", None, "there is no file other.py"),
        (None, "train_step", "is not MODULE:NAME"),
        (None, "lib:a b", "is not MODULE:NAME"),
        ("train.py:1", "lib:f", "cannot be used with"),
    ],
)
def test_what_is_wrong_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str | None, function: str | None, said: str
) -> None:
    (tmp_path / "train.py").write_text("a = 1\nb = 2\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageProblem, match=said):
        step_environment(at, function)
