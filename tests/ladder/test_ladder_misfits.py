"""Scripts of a ladder that hang, are killed, or say what is no number: each is told for that, the others go on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from tuiprof.errors import SessionError
from tuiprof.ladder import runner
from tuiprof.ladder.plan import pending, plan
from tuiprof.ladder.runner import run
from tuiprof.ladder.scenarios import find_ladder
from tuiprof.ladder.state import LadderRun, Trial, create
from tuiprof.session.run.interpreter import facts

SCRIPT = """
import json, os, signal, sys, time
def say(**said): print(json.dumps({"tuiprof_result": said}))
match sys.argv[1]:
    case "nan-loss":
        compared = [{"what": "loss", "relative_error": float("nan"), "tolerance": 1e-4}]
        say(check={"ok": False, "baseline": "good", "compared": compared})
        sys.exit(3)
    case "nan-time": say(step_ms=float("nan"))
    case "some-nan": say(step_ms=2.0, samples_per_s=float("inf"), ranges_ms={"loss": float("nan"), "rest": 1.0})
    case "beyond-float":
        said = {"step_ms": 2.0, "ranges_ms": {"loss": "HUGE", "rest": 1.0}}
        kernel = {name: {"median": "HUGE"} for name in ("cold_ms", "warm_ms")} | {"host_ms": {"median": 3.0}}
        print(json.dumps({"tuiprof_result": {**said, "kernel": kernel}}).replace('"HUGE"', "1e999"))
    case "endless": time.sleep(3600)
    case "killed": os.kill(os.getpid(), signal.SIGKILL)
    case _: say(step_ms=1.0)
"""
HEADER = """
[tool.tuiprof]
name = "misfits"
command = [["{variant}"]]
variants = [{name = "good"}, {name = "nan-loss"}, {name = "nan-time"}, {name = "some-nan"}, {name = "beyond-float"},
  {name = "endless"}, {name = "killed"}]
"""


@pytest.fixture
def misfits(tmp_path: Path) -> Path:
    (tmp_path / "misfits.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "misfits.toml").write_text(HEADER, encoding="utf-8")
    return tmp_path


def begun(folder: Path, *variants: str) -> LadderRun:
    meta = plan(find_ladder("misfits", [folder]), facts(), variants=variants, rounds=1, cwd=folder)
    return create(folder / "sessions", meta)


def test_each_is_told_for_what_it_is_and_the_others_go_on(misfits: Path) -> None:
    ladder = begun(misfits)
    for _ in run(ladder, limit_s=3):
        pass
    last: dict[str, Trial] = {trial.variant: trial for trial in LadderRun(ladder.path).meta.trials}
    assert not pending(ladder.meta)
    assert last["good"].state == "done"
    assert last["nan-loss"].state == "wrong"
    assert last["nan-loss"].why == "loss differs from good (the difference is not a number)"
    assert last["nan-time"].state == "failed"
    assert last["nan-time"].why.startswith("nothing to time")
    figures = last["some-nan"].figures
    assert figures is not None
    assert (figures.median_ns, figures.samples_per_s, figures.ranges_ns) == (2e6, None, {"rest": 1e6})
    figures = last["beyond-float"].figures
    assert figures is not None
    assert figures.ranges_ns == {"rest": 1e6}
    assert figures.kernel is not None
    assert figures.kernel.times_ns == {"host": 3e6}
    assert (last["endless"].state, last["endless"].why) == ("failed", "not finished after 3 s")
    assert (last["killed"].state, last["killed"].why) == ("failed", "SIGKILL")
    assert "memory" in last["killed"].remedy


def test_what_failed_on_a_full_disk_is_run_again(misfits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage(NamedTuple):
        free: int

    ladder = begun(misfits, "killed")
    with monkeypatch.context() as full:
        full.setattr(runner.shutil, "disk_usage", lambda path: Usage(0))
        with pytest.raises(SessionError, match="the disk is full") as refused:
            list(run(ladder))
    last = ladder.meta.trials[-1]
    assert "--resume" in refused.value.remedy
    assert (last.variant, last.state) == ("killed", "stopped")
    assert last.why == "failed as the disk was full: SIGKILL"
    assert ("trace", 0, "killed") in pending(ladder.meta)
    assert shutil.disk_usage(misfits).free > 0
