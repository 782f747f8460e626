"""The ladder runner: what is planned, in which order it runs, what it measures, and that it can be stopped at will."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tuiprof.errors import SessionError, UsageProblem
from tuiprof.ladder.background import RUNNER_LOG, start_in_background
from tuiprof.ladder.plan import pending, plan, schedule
from tuiprof.ladder.runner import Progress, run
from tuiprof.ladder.scenarios import find_ladder
from tuiprof.ladder.state import (
    KernelFigures,
    LadderMeta,
    LadderRun,
    create,
    find_run,
    list_runs,
)
from tuiprof.ladder.statistics import judge
from tuiprof.ladder.trial import begin, conclude
from tuiprof.session.live.listing import list_sessions
from tuiprof.session.run.interpreter import facts
from tuiprof.session.run.launch import wait
from tuiprof.session.store.folders import find_session

SCRIPT = """
import argparse, json, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--variant")
parser.add_argument("--steps", type=int, default=24)
parser.add_argument("--check", action="store_true")
options = parser.parse_args()
PAUSE_S = {"slow": 0.008, "quick": 0.002, "wrong": 0.0, "crash": 0.001, "late": 0.001}
if options.check:
    off = 0.5 if options.variant == "wrong" else 0.0
    compared = [{"what": "loss", "relative_error": off, "tolerance": 1e-4}]
    print(json.dumps({"tuiprof_result": {"check": {"ok": not off, "baseline": "slow", "compared": compared}}}))
    sys.exit(3 if off else 0)
if options.variant == "crash":
    sys.exit("no such luck")
if options.variant == "late":
    print(json.dumps({"tuiprof_result": {"unavailable": [{"reason": "no luck", "remedy": "find some"}]}}))
    sys.exit(77)
import tuiprof
for n in range(options.steps):
    time.sleep(PAUSE_S[options.variant] + 0.04 * (n < 3))  # a slow beginning, as with a compiler
    tuiprof.step()
print(json.dumps({"tuiprof_result": {"warmup": 3, "batch": 4, "peak_memory_bytes": 1 << 20, "preset": "tiny"}}))
"""
HEADER = """
dependencies = []
[tool.tuiprof]
name = "toy"
baseline = "slow"
variants = [
  { name = "slow" },
  { name = "quick", builds_on = "slow", published = [{ text = "4×" }] },
  { name = "wrong" },
  { name = "crash" },
  { name = "late" },
  { name = "absent", needs = { packages = ["no-such-package>=2"] } },
]
"""


@pytest.fixture
def toys(tmp_path: Path) -> Path:
    folder = tmp_path / "toys"
    folder.mkdir()
    (folder / "toy.py").write_text(SCRIPT, encoding="utf-8")
    (folder / "toy.toml").write_text(HEADER, encoding="utf-8")
    return folder


def planned(toys: Path, **options: Any) -> LadderMeta:
    return plan(find_ladder("toy", [toys]), facts(), cwd=toys, **options)


def slots(meta: LadderMeta) -> list[str]:
    return [f"{kind}{number or ''} {name}" for kind, number, name in schedule(meta)]


def test_trials_are_interleaved_and_the_baseline_is_always_among_them(toys: Path) -> None:
    meta = planned(toys, variants=["quick", "absent"], rounds=2, steps=9)
    assert [rung.name for rung in meta.rungs] == ["slow", "quick", "absent"]
    assert meta.rung("absent").reason == "no-such-package is not installed"
    assert meta.rung("absent").remedy.startswith("pip install 'no-such-package>=2', or uv run --with ")
    assert slots(meta) == [
        *("check slow", "check quick", "trace slow", "trace quick"),
        *("timing1 slow", "timing1 quick", "timing2 slow", "timing2 quick"),
    ]
    assert meta.rung("quick").command[1:] == ("--variant", "quick", "--steps", "9")
    assert meta.rung("quick").check == ("--check", "--steps", "0")
    with pytest.raises(UsageProblem, match="did you mean quick"):
        planned(toys, variants=["quik"])


def test_checks_run_beside_each_other_and_what_is_timed_runs_alone(toys: Path, tmp_path: Path) -> None:
    ladder = create(tmp_path / "sessions", planned(toys, variants=["slow", "quick", "wrong"], rounds=1))
    at_once: dict[str, int] = {}
    for progress in run(ladder, checks_at_once=3):
        kinds = [trial.kind for trial in ladder.meta.trials if trial.state == "running"]
        at_once[progress.trial.kind] = max(at_once.get(progress.trial.kind, 0), len(kinds))
        assert len(set(kinds)) <= 1
    assert at_once.pop("check") > 1
    assert at_once == {"trace": 1, "timing": 1}
    states = {(trial.kind, trial.variant): trial.state for trial in LadderRun(ladder.path).meta.trials}
    assert states[("check", "wrong")] == "wrong"
    assert ("timing", "wrong") not in states
    assert states[("timing", "quick")] == "done"


ROOM_FOR_ONE = """
import json, os, sys, time
if "--check" in sys.argv:
    try:
        os.close(os.open("taken", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        open("refused", "w").close()
        sys.exit("out of memory")
    for _ in range(2000):  # until it has been in another's way, once
        if os.path.exists("refused"): break
        time.sleep(0.01)
    os.remove("taken")
print(json.dumps({"tuiprof_result": {"step_ms": 1.0, "check": {"ok": True}}}))
"""


def test_a_check_that_fails_beside_others_is_repeated_alone(toys: Path, tmp_path: Path) -> None:
    (toys / "toy.py").write_text(ROOM_FOR_ONE, encoding="utf-8")
    ladder = create(tmp_path / "sessions", planned(toys, variants=["slow", "quick", "late"], rounds=1))
    list(run(ladder, checks_at_once=3))
    checks = [trial for trial in LadderRun(ladder.path).meta.trials if trial.kind == "check"]
    assert sorted(trial.variant for trial in checks if trial.state == "done") == ["late", "quick", "slow"]
    repeated = [trial.why for trial in checks if trial.state == "stopped"]
    assert repeated
    assert all(
        "failed next to other checks, repeated alone: exit 1: out of memory" in why for why in repeated
    )
    assert pending(ladder.meta) == []


def test_a_ladder_from_beginning_to_end(toys: Path, tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    ladder = create(root, planned(toys, rounds=3))
    seen = list(run(ladder))
    assert pending(ladder.meta) == []
    assert [progress.done for progress in seen] == sorted(progress.done for progress in seen)
    assert seen[-1].done == seen[-1].total == len(schedule(ladder.meta))
    judged = {one.name: one for one in judge(LadderRun(ladder.path).meta)}  # as read back from the disk
    assert {name: one.word for name, one in judged.items()} == {
        "slow": "baseline",
        "quick": "faster",
        "wrong": "wrong",
        "crash": "failed",
        "late": "unavailable",
        "absent": "unavailable",
    }
    assert "loss: relative error 0.5 to slow, tolerance 1e-04" in judged["wrong"].why
    assert "exit 1: no such luck" in judged["crash"].why
    assert (judged["late"].why, judged["late"].remedy) == ("no luck", "find some")
    assert judged["quick"].ratio is not None
    assert judged["quick"].ratio.value < 0.8
    assert judged["wrong"].step_ns is None
    # Warm-up is left out of the step time, and told apart from the start.
    figures = judged["slow"].trials[1]
    assert (figures.clock, figures.warmup, figures.steps, figures.preset) == ("probe", 3, 21, "tiny")
    assert 8e6 < figures.median_ns < 40e6
    assert figures.start_ns is not None
    assert figures.start_ns > 40e6
    assert figures.warmup_ns is not None
    assert figures.warmup_ns > 80e6
    assert figures.samples_per_s == pytest.approx(4 / (figures.median_ns / 1e9), rel=0.5)
    # Only the first round captures; what is out is not run again.
    kinds = [(trial.kind, trial.round) for trial in ladder.meta.trials if trial.variant == "slow"]
    assert kinds == [("check", 0), ("trace", 0), ("timing", 1), ("timing", 2), ("timing", 3)]
    captures = {t.kind: ladder.session(t).meta.capture for t in ladder.meta.trials if t.variant == "slow"}
    assert captures["trace"] is not None
    assert captures["timing"] is None
    assert [t.kind for t in ladder.meta.trials if t.variant == "wrong"] == ["check"]
    assert [t.kind for t in ladder.meta.trials if t.variant == "late"] == ["check", "trace"]
    # The folder is no session, yet its trials are.
    assert list_sessions(root) == []
    assert [found.id for found in list_runs(root) if isinstance(found, LadderRun)] == [ladder.id]
    assert find_run(root, "toy").path == find_run(root, "last").path == ladder.path
    inner = f"{ladder.id}/trials/{ladder.meta.trials[0].session}"
    assert find_session(root, inner).meta.scenario == ladder.session(ladder.meta.trials[0]).meta.scenario
    # Running a complete one does nothing, not even when the script has changed since.
    (toys / "toy.py").write_text(SCRIPT + "\n", encoding="utf-8")
    assert list(run(ladder)) == []


def test_it_stops_after_a_trial_and_goes_on_where_it_was(toys: Path, tmp_path: Path) -> None:
    script = SCRIPT.replace('"slow": 0.008', '"slow": 0.003')
    (toys / "toy.py").write_text(script, encoding="utf-8")
    meta = planned(toys, variants=["slow", "quick"], rounds=1, steps=300)  # long enough to be stopped
    ladder = create(tmp_path, msgspec.structs.replace(meta, rungs=tuple(_unchecked(meta))))
    asked: list[Progress] = []
    for progress in run(ladder, lambda: len(asked)):
        asked.extend([progress] * progress.ended)
    assert [trial.state for trial in ladder.meta.trials] == ["done"]
    assert len(pending(ladder.meta)) == 3
    # Asked twice, it stops the trial itself, which is then repeated.
    again = LadderRun(ladder.path)
    (toys / "toy.py").write_text(script.replace("0.003", "3"), encoding="utf-8")
    with pytest.raises(SessionError, match="has changed, since"):
        list(run(again))
    (toys / "toy.py").write_text(script, encoding="utf-8")
    asked.clear()
    for progress in run(again, lambda: len(asked)):
        asked.extend([progress, progress])
    assert [trial.state for trial in again.meta.trials][:2] == ["done", "stopped"]
    # A runner that died leaves a trial that goes on by itself: it is waited for, not started twice.
    third = LadderRun(ladder.path)
    orphan = begin(third, "trace", 0, third.meta.rung("quick"))
    third.put(orphan)
    resumed = LadderRun(ladder.path)
    states = [progress.trial for progress in run(resumed) if progress.ended]
    assert states[0].session == orphan.session
    assert [(trial.kind, trial.variant, trial.state) for trial in resumed.meta.trials] == [
        ("trace", "slow", "done"),
        ("trace", "quick", "stopped"),
        ("trace", "quick", "done"),
        ("timing", "slow", "done"),
        ("timing", "quick", "done"),
    ]
    judged = {one.name: one for one in judge(resumed.meta)}
    assert judged["quick"].word == "undecided"
    assert "one round" in judged["quick"].why
    assert "were not compared" in judged["quick"].why


def _unchecked(meta: LadderMeta) -> list[Any]:
    return [msgspec.structs.replace(rung, check=None) for rung in meta.rungs]


@pytest.mark.parametrize(
    ("body", "state", "why"),
    [
        ('print(\'{"tuiprof_result": {"step_ms": "quick"}}\')', "failed", "result line cannot be read"),
        ("print('no steps at all')", "failed", "nothing to time"),
        (
            'print(\'{"tuiprof_result": {"step_ms": 2.5, "check": {"ok": false}}}\')',
            "wrong",
            "differ from the reference",
        ),
        ('print(\'[0] {"tuiprof_result": {"step_ms": 2.5, "steps": 7}}\')', "done", ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "failed", "SIGKILL"),
    ],
    ids=["broken line", "no steps", "wrong in passing", "own clock", "killed"],
)
def test_what_a_script_says_at_its_end(toys: Path, tmp_path: Path, body: str, state: str, why: str) -> None:
    (toys / "toy.py").write_text(f"{body}\n", encoding="utf-8")
    ladder = create(tmp_path, planned(toys, variants=["slow"], rounds=1))
    trial = begin(ladder, "timing", 1, ladder.meta.rung("slow"))
    session = ladder.session(trial)
    told = conclude(trial, session, wait(session, 30))
    assert told.state == state
    assert why in told.why
    if state == "done":
        assert told.figures is not None
        assert (told.figures.median_ns, told.figures.steps, told.figures.clock) == (2.5e6, 7, "script")


def test_what_a_script_says_of_a_kernel_and_of_parts_of_the_step(toys: Path, tmp_path: Path) -> None:
    timed = {"median": 0.5, "low": 0.4, "high": 0.6, "calls": 20}
    result = {
        "step_ms": 0.5,
        "ranges_ms": {"calc loss": 0.25},
        "kernel": {"moved_bytes": 12, "operations": 34, "arithmetic": "int8", "warm_ms": timed, "new": 1},
    }
    line = json.dumps({"tuiprof_result": result})
    (toys / "toy.py").write_text(f"print({line!r})\n", encoding="utf-8")
    ladder = create(tmp_path, planned(toys, variants=["slow"], rounds=1))
    trial = begin(ladder, "timing", 1, ladder.meta.rung("slow"))
    session = ladder.session(trial)
    ladder.put(conclude(trial, session, wait(session, 30)))
    figures = LadderRun(ladder.path).meta.trials[-1].figures  # as it was stored
    assert figures is not None
    assert figures.ranges_ns == {"calc loss": 250e3}
    assert figures.kernel == KernelFigures(12, 34, "int8", {"warm": 500e3})


def test_a_script_without_a_check_is_timed_but_said_to_be_unchecked(toys: Path, tmp_path: Path) -> None:
    script = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--variant')\n"
    script += "parser.parse_args()\n"
    (toys / "toy.py").write_text(script, encoding="utf-8")
    ladder = create(tmp_path, planned(toys, variants=["slow"], rounds=1))
    trial = begin(ladder, "check", 0, ladder.meta.rung("slow"))
    session = ladder.session(trial)
    told = conclude(trial, session, wait(session, 30))
    assert (told.state, told.equal) == ("done", None)
    assert "unrecognized arguments: --check" in told.why


def test_two_runners_do_not_share_a_ladder(toys: Path, tmp_path: Path) -> None:
    ladder = create(tmp_path, planned(toys, variants=["slow"], rounds=1))
    first = run(ladder)
    next(first)
    with pytest.raises(SessionError, match="is being measured by another tuiprof"):
        next(run(LadderRun(ladder.path)))
    assert len(list(first)) > 0


@pytest.mark.parametrize(
    ("content", "what"), [("{", "damaged"), ('{"v": 99}', "newer tuiprof"), ('{"v": 1}', "damaged")]
)
def test_a_damaged_ladder_says_so_and_hides_no_other(
    toys: Path, tmp_path: Path, content: str, what: str
) -> None:
    root = tmp_path / "sessions"
    good, bad = (create(root, planned(toys, variants=["slow"])) for _ in range(2))
    (bad.path / "ladder.json").write_text(content, encoding="utf-8")
    told = list_runs(root)
    assert [isinstance(one, LadderRun) for one in told] == [False, True]
    assert what in str(told[0])
    assert find_run(root, good.id).id == good.id
    with pytest.raises(UsageProblem, match="no ladder 'zzz'"):
        find_run(root, "zzz")


def test_a_ladder_in_the_background_gets_the_users_environment(
    toys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ladder = create(tmp_path, planned(toys, variants=["slow"], rounds=1))
    interpreter = tmp_path / "interpreter"
    interpreter.write_text("#!/bin/sh\nexec env\n")
    interpreter.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    monkeypatch.setenv("MINE", "mine")
    os.putenv("POLARS_MAX_THREADS_HERE", "8")  # as this process alone has it for its own libraries
    try:
        start_in_background(ladder).wait()
    finally:
        os.unsetenv("POLARS_MAX_THREADS_HERE")
    given = (ladder.path / "control" / RUNNER_LOG).read_text()
    assert "MINE=mine" in given.splitlines()
    assert "POLARS_MAX_THREADS_HERE" not in given
