"""Scripts as people write them: the steps are theirs, and so is the result."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import survey

PAGE = """before
<!-- survey -->
By hand.

Python 3.11:

| script | a |
|---|---|
| `ddp` | 1 |
<!-- /survey -->
between
<!-- survey: gpu -->
By hand.

| script |
|---|
| ddp |
<!-- /survey: gpu -->
after
"""


#: Frameworks with a loop of their own, as installed: importing one takes longer than most tests.
FRAMEWORKS = ("hf-evaluate", "accelerate", "lightning")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=() if case.cheap else pytest.mark.slow)
        for case in survey.CASES
        if case.cheap or case.name in FRAMEWORKS
    ],
)
def test_steps_and_result(case: survey.Case, tmp_path: Path) -> None:
    if lacking := survey.missing(case):
        pytest.skip(f"{', '.join(lacking)} not installed")
    found = survey.survey(case, tmp_path)
    assert found.same, "the script's result changed"
    assert found.steps is not None
    missing = found.own_steps - found.steps
    assert 0 <= missing <= (2 if case.late else 0), found.said
    assert found.captured.startswith("steps 30"), found.said
    assert (found.clocked is None) == (found.steps == 0), "the script's clock did not run"


STEPPING = """import time
for step in range(60):
    time.sleep(0.008)
    pass  # the clock: tick()
print("steps", 60)
print("loss", 0.5)
"""


def test_median_is_that_of_the_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(STEPPING)
    found = survey.survey(
        survey.Case("script", str(script), "", (), options=("--step-at", "script.py:3")), tmp_path
    )
    assert (found.right, found.same) == ("yes", True)
    assert found.steps_are.endswith("script.py:3"), "not the line that was asked for"
    assert found.clocked is not None
    assert found.clocked.own_ns >= 8e6, "the clock's steps are shorter than what the script sleeps in each"
    assert abs(found.clocked.off) <= survey.CLOCKS_AGREE


@pytest.mark.parametrize("script", sorted({case.script for case in survey.CASES} - {"jax_scan.py"}))
def test_clock_is_all_that_a_copy_adds(script: str, tmp_path: Path) -> None:
    original = (survey.HERE / script).read_text()
    copy = survey.clocked(survey.HERE / script, tmp_path / "clocked").read_text()
    pairs = list(zip(original.splitlines(), copy.splitlines(), strict=True))
    [(before, after)] = [pair for pair in pairs if pair[0] != pair[1]]
    assert after.startswith(before.partition("  # the clock: ")[0] + "; ")
    compile(copy, script, "exec")


def test_clocks_that_disagree() -> None:
    cells = [survey.row(outcome("ddp", clocked=survey.Clocked(1e6, ours_ns))) for ours_ns in (1.04e6, 0.94e6)]
    assert "1 ms, 1.04 ms (+4.0%)" in cells[0]
    assert "1 ms, 0.94 ms (**−6.0%**)" in cells[1]


def outcome(name: str, **changes: object) -> survey.Outcome:
    case = next(case for case in survey.CASES if case.name == name)
    found = survey.Outcome(
        case, 60, 60, "optimizer steps", 1e6, "–", "–", True, 2e3, "", None, 1.5e6, 1234, "a | b", 1.0, 2.0
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def test_rows_of_earlier_calls_stay() -> None:
    page = survey.written(PAGE, "Python 3.12, GPU:", [outcome("nanogpt"), outcome("ddp")], on_gpu=True)
    assert page.startswith(PAGE[: PAGE.index("<!-- survey: gpu -->")]), "the block of the CPU changed"
    assert page.count("By hand.") == 1, "what was written by hand is replaced by the first rows"
    assert "| a &#124; b |" in page
    again = survey.written(page, "Python 3.12, GPU:", [outcome("nanogpt", steps=59)], on_gpu=True)
    assert again == page.replace("yes (60 of 60)", "**no** (59 of 60)", 1)
    other = survey.written(again, "Python 3.13, GPU:", [outcome("ddp")], on_gpu=True)
    assert [line[:8] for line in other.splitlines() if line.startswith("| `")] == [
        "| `ddp` ",
        "| `nanog",
        "| `ddp` ",
        "| `ddp` ",
    ]
    assert other.endswith("<!-- /survey: gpu -->\nafter\n")


def test_rows_from_before_a_column_stay_below_their_titles() -> None:
    page = survey.written(PAGE.replace("| a |", "| capture |"), "Python 3.11:", [outcome("nanogpt")])
    titles, _, *rows = [line.split(" | ") for line in page.splitlines() if line.startswith("|")][:4]
    assert len(rows) == 2
    [earlier] = [row for row in rows if "`ddp`" in row[0]]
    assert dict(zip(titles, earlier, strict=True))["capture"] == "1"
    assert earlier[titles.index("idiom")] == "–"


def test_rows_below_another_heading_stay() -> None:
    page = survey.written(PAGE, "Python 3.12:", [outcome("ddp")])
    assert PAGE[: PAGE.index("<!-- /survey -->")] in page
    assert page.endswith(PAGE[PAGE.index("<!-- /survey -->") :])


def test_bare_runs_that_differ() -> None:
    assert "the bare runs differ by themselves" in survey.row(outcome("ddp", same=None))
    assert "**no**" in survey.row(outcome("ddp", same=False))


def test_what_is_late_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "GRACE_S", 1.0)  # the nested script holds the pipe until it is killed
    scripts = survey.Scripts(time.monotonic() + 1.0)
    nested = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)', sys.argv[1]])"
    mark = f"late-{time.monotonic_ns()}"
    with pytest.raises(survey.NotDoneError, match="the time was up"):
        scripts.run([sys.executable, "-c", nested, mark], {})
    assert (
        mark not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    )
    with pytest.raises(survey.NotDoneError, match="the time was up"):
        scripts.run([sys.executable, "-c", "pass"], {})


@pytest.mark.parametrize(
    ("loss", "same"),
    [
        ("time.monotonic_ns()", None),
        ("'TUIPROF_SESSION' in os.environ or any('tuiprof' in name for name in sys.modules)", False),
        ("0.5", True),
    ],
    ids=["differs by itself", "changed by the recording", "equal"],
)
def test_result(loss: str, same: bool | None, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import os, sys, time\nprint('steps', 3)\nprint('loss', {loss})\n")
    found = survey.survey(survey.Case("script", str(script), "", ()), tmp_path)
    assert found.same is same
    assert found.right == "none, said so"
