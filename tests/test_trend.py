"""Figures over many runs: where they change, what the newest may be, and what is told to CI."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from tuiprof.cli import main
from tuiprof.comparison.trend import MIN_RUNS, Point, course, grouped, report
from tuiprof.model import Report
from tuiprof.resources import shipped

DAY_NS = 86_400 * 10**9


def points(values: list[float], key: str = "step_ns", commits: list[str] | None = None) -> list[Point]:
    return [
        Point(f"run{n}", n * DAY_NS // 4, commits[n] if commits else "", {key: value})
        for n, value in enumerate(values)
    ]


def noisy(levels: list[tuple[int, float]], noise: float) -> list[float]:
    random = np.random.default_rng(18)
    return [float(random.normal(level, noise)) for count, level in levels for _ in range(count)]


def test_a_change_for_good_is_found_and_noise_is_none() -> None:
    pytest.importorskip("ruptures")
    steady = course(points(noisy([(30, 100e6)], 1e6)), "step_ns")
    assert steady is not None
    assert steady.changes == ()
    assert not steady.exceeded
    risen = course(points(noisy([(12, 100e6), (10, 106e6)], 1e6)), "step_ns")
    assert risen is not None
    assert risen.changes == (12,)
    assert not risen.exceeded  # it rose long ago


def test_counts_without_noise_change_by_one() -> None:
    pytest.importorskip("ruptures")
    found = course(points([4.0] * 8 + [5.0] * 6, "syncs_per_step"), "syncs_per_step")
    assert found is not None
    assert found.changes == (8,)


@pytest.mark.parametrize(("newest", "exceeded"), [(101e6, False), (103e6, False), (112e6, True)])
def test_the_newest_run_is_held_to_the_noise_of_those_before(newest: float, exceeded: bool) -> None:
    found = course(points([*noisy([(12, 100e6)], 1e6), newest]), "step_ns")
    assert found is not None
    assert found.exceeded is exceeded
    assert found.result.outcome == ("failed" if exceeded else "passed")


def test_few_runs_allow_no_verdict() -> None:
    found = course(points([100e6] * (MIN_RUNS - 1)), "step_ns")
    assert found is not None
    assert found.result.outcome == "unknown"
    assert course(points([1.0]), "peak_bytes") is None


def test_runs_of_a_commit_or_a_day_are_one_point() -> None:
    runs = points([10.0, 12.0, 20.0, 22.0, 30.0], commits=["a" * 40, "a" * 40, "b" * 40, "b" * 40, ""])
    by_commit = grouped(runs, "commit")
    assert [(one.name, one.runs, one.figures["step_ns"]) for one in by_commit] == [
        ("a" * 10, 2, 11.0),
        ("b" * 10, 2, 21.0),
        ("run4", 1, 30.0),
    ]
    assert [(one.name, one.runs) for one in grouped(runs, "day")] == [("1970-01-01", 4), ("1970-01-02", 1)]
    assert [one.name for one in grouped(list(reversed(runs)), "run")] == [f"run{n}" for n in range(5)]


def test_the_report_says_with_which_run_it_changed() -> None:
    pytest.importorskip("ruptures")
    (found,) = report(points(noisy([(12, 100e6), (10, 106e6)], 1e6)))
    assert isinstance(found, Report)
    assert "with run12" in found.verdict.sentence
    assert found.table("runs").rows.filter(changed=1)["run"].to_list() == ["run12"]
    levels = found.table("levels").rows
    assert levels["since"].to_list() == ["run0", "run12"]
    assert levels["points"].to_list() == [12, 10]
    assert levels["change"].to_list() == [None, pytest.approx(0.06, abs=0.01)]


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    """Six runs of the shipped session, the newest of which took twice as long a step."""
    source = shipped("traces") / "session-metrics-naive"
    for n in range(6):
        folder = tmp_path / "sessions" / f"run{n}"
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns("traces", "*.log"))
        meta = json.loads((folder / "session.json").read_text())
        meta["unix_ns"] += n * DAY_NS
        (folder / "session.json").write_text(json.dumps(meta))
        if n == 5:
            for log in (folder / "log").glob("rank*.jsonl"):
                lines = [json.loads(line) for line in log.read_text().splitlines()]
                for line in lines:
                    if "dur" in line:
                        line["dur"] *= 2
                log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path / "sessions"


def test_of_a_folder_the_runs_of_the_newest_ones_script_count(
    sessions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for n in (1, 3):
        path = sessions / f"run{n}" / "session.json"
        meta = json.loads(path.read_text())
        path.write_text(json.dumps(meta | {"scenario": None, "source": {"script": "other.py"}}))
    assert main(["trend", str(sessions), "-f", "json"]) == 0
    said = capsys.readouterr()
    assert "left out: 2 runs of other scripts than metrics:naive" in said.err
    assert not {"run1", "run3"} & set(said.out.split('"'))
    assert {"run0", "run2", "run4", "run5"} <= set(said.out.split('"'))
    assert main(["trend", str(sessions), str(sessions / "run1"), "-f", "json"]) == 0
    assert "run1" in capsys.readouterr().out.split('"')


def test_of_one_run_neither_noise_nor_changes_are_known(
    sessions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trend", str(sessions / "run0"), "-f", "json"]) == 0
    text = capsys.readouterr().out
    assert "in the newest of 1 run; changes are told from noise from 5 runs on" in text
    assert main(["trend", str(sessions / "run0")]) == 0
    assert "noise 0" not in capsys.readouterr().out


def test_trials_of_a_fix_are_no_runs_of_a_script(sessions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = sessions / "run5" / "session.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"trial": True}))
    assert main(["trend", str(sessions), "--check"]) == 0
    assert "left out: 1 trial of tuiprof fix" in capsys.readouterr().err
    assert main(["trend", str(sessions), str(sessions / "run5"), "--check"]) == 1, "it is named"


def test_the_verb_fails_where_the_newest_run_is_slower(
    sessions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trend", str(sessions), "--check"]) == 1
    assert "is beyond" in capsys.readouterr().out
    shutil.rmtree(sessions / "run5")
    assert main(["trend", str(sessions), "--check"]) == 0
    capsys.readouterr()
    shutil.rmtree(sessions / "run4")
    assert main(["trend", str(sessions), "--check"]) == 2
    assert main(["trend", str(sessions)]) == 0


def test_what_ci_reads(sessions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trend", str(sessions), "-f", "junit"]) == 0
    suite = ElementTree.fromstring(capsys.readouterr().out)
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    assert main(["--sessions", str(sessions), "trend", "--by", "day", "-f", "md"]) == 0
    assert "| day |" in capsys.readouterr().out


def test_a_place_without_runs_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trend", str(tmp_path)]) == 3
    assert "contains no trace" in capsys.readouterr().err


def test_the_action_runs_as_github_would(sessions: Path, tmp_path: Path) -> None:
    """Its steps as a shell runs them, with the inputs' defaults; installing is left out."""
    yaml = pytest.importorskip("yaml")
    action = yaml.safe_load((Path(__file__).parents[1] / "action.yml").read_text())
    step = action["runs"]["steps"][-1]
    given = {name: one.get("default", "") for name, one in action["inputs"].items()}
    given |= {"targets": str(sessions), "junit": str(tmp_path / "junit.xml")}
    names = {key: value.removeprefix("${{ inputs.").removesuffix(" }}") for key, value in step["env"].items()}
    environment = {
        **os.environ,
        **{key: given[name] for key, name in names.items()},
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(["bash", "-e", "-c", step["run"]], env=environment, check=False)
    assert done.returncode == 1
    assert (tmp_path / "output").read_text() == "status=1\n"
    assert "is beyond" in (tmp_path / "summary.md").read_text()
    assert ElementTree.parse(tmp_path / "junit.xml").getroot().get("failures") == "1"
    shutil.rmtree(sessions / "run5")
    shutil.rmtree(sessions / "run4")
    done = subprocess.run(["bash", "-e", "-c", step["run"]], env=environment, check=False)
    assert done.returncode == 0
    assert (tmp_path / "output").read_text().endswith("status=2\n")
