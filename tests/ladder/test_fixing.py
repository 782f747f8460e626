"""Trials of what the environment alone can change."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tuiprof.errors import SessionError
from tuiprof.ladder.fixing import attempt
from tuiprof.session.run.launch import LaunchSpec, start, wait
from tuiprof.session.store.folders import Session

SCRIPT = """
import os, time, tuiprof
fast = os.environ.get("FAST") == "1"
for n in range(24):
    time.sleep(0.002 if fast else 0.02)
    tuiprof.step(loss=float(os.environ.get("LOSS", "1.0")) / (n + 1))
"""


def recorded(folder: Path, script: str = SCRIPT) -> Session:
    path = folder / "train.py"
    path.write_text(script)
    session = start(
        LaunchSpec((sys.executable, str(path)), cwd=folder, capture=None, root=folder / "sessions")
    )
    wait(session)
    return session


def test_a_change_of_the_environment_is_tried_in_turns_and_leaves_the_script_alone(tmp_path: Path) -> None:
    session, seen = recorded(tmp_path), []
    # Three rounds: the interval of two pairs is so wide that a busy machine makes a factor of ten "undecided".
    tried = attempt(session, {"FAST": "1"}, 3, on_trial=seen.append, root=tmp_path / "sessions")
    assert [trial.changed for trial in tried.trials] == [False, True, True, False, False, True]
    assert seen == list(tried.trials)
    assert tried.word == "faster"
    assert tried.ratio is not None
    assert tried.ratio.high < 0.9
    assert tried.trials[0].numbers == {"loss": pytest.approx(1 / 24)}
    assert not tried.differing
    assert (tmp_path / "train.py").read_text() == SCRIPT
    other = attempt(session, {"LOSS": "1.5"}, 2, root=tmp_path / "sessions")
    assert other.differing == {"loss": (pytest.approx(1 / 24), pytest.approx(1.5 / 24))}
    assert other.word in ("no difference", "undecided")


def test_a_trial_that_fails_or_has_no_steps_says_so(tmp_path: Path) -> None:
    broken = recorded(
        tmp_path,
        "import os; assert 'FAST' not in os.environ; import tuiprof\nfor _ in range(4): tuiprof.step()",
    )
    with pytest.raises(SessionError, match="failed"):
        attempt(broken, {"FAST": "1"}, 2, root=tmp_path / "sessions")
    with pytest.raises(SessionError, match="marks no steps"):
        attempt(recorded(tmp_path, "print('nothing')"), {}, 2, root=tmp_path / "sessions")


def test_who_interrupts_the_trials_stops_the_one_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = recorded(tmp_path)
    (tmp_path / "train.py").write_text("import time\ntime.sleep(600)\n")

    def interrupted(_session: Session) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tuiprof.ladder.fixing.wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        attempt(session, {}, 2, root=tmp_path / "sessions")
    [trial] = [path for path in (tmp_path / "sessions").iterdir() if path != session.path]
    assert wait(Session(trial), 60).state == "stopped"
