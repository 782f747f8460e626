"""``tuiprof ladder`` as a user meets it: the documented example, Ctrl-C and --resume, exports, exit codes."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import pytest
from waiting import running, until

import tuiprof
from tuiprof.cli import main
from tuiprof.config import scenario_folders
from tuiprof.errors import SessionError, UsageProblem
from tuiprof.ladder.background import start_in_background
from tuiprof.ladder.state import LadderRun

DOCS = Path(tuiprof.__file__).resolve().parents[1] / "docs" / "ladders.md"


class Ran(NamedTuple):
    """What one call of the command line wrote."""

    stdout: str
    stderr: str


class Home:
    """A folder with the example of the documentation, named in a configuration file.

    The scripts run in the interpreter of the tests, whatever environment is active around them.
    """

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path, self.sessions, self._capsys = path, path / "sessions", capsys
        self.script = path / "ladders" / "primes.py"
        self.env = {
            "NO_COLOR": "1",
            "TUIPROF_SESSIONS": str(self.sessions),
            "TUIPROF_CONFIG": str(path / "config.toml"),
            "VIRTUAL_ENV": sys.prefix,
        }

    def run(self, *args: str, rc: int = 0) -> Ran:
        """Call the command line in this process."""
        self._capsys.readouterr()
        status = main(args)
        ran = Ran(*self._capsys.readouterr())
        assert status == rc, ran
        return ran

    def start(self, *args: str) -> AbstractContextManager[subprocess.Popen[str]]:
        """Run the command line as a process of its own, for signals, as long as the block lasts."""
        return running(
            [sys.executable, "-m", "tuiprof", *args],
            env={**os.environ, **self.env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def last_trial(self) -> tuple[str, str]:
        """Kind and state of the trial that the one ladder there is has begun last."""
        (folder,) = self.sessions.iterdir()
        last = json.loads((folder / "ladder.json").read_text())["trials"][-1]
        return last["kind"], last["state"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Home:
    example = re.search(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None
    ladders = tmp_path / "ladders"
    ladders.mkdir()
    (ladders / "primes.py").write_text(example[1], encoding="utf-8")
    (tmp_path / "config.toml").write_text('scenarios = ["ladders"]\n', encoding="utf-8")
    made = Home(tmp_path, capsys)
    for name, value in made.env.items():
        monkeypatch.setenv(name, value)
    return made


def test_the_documented_example_stopped_resumed_exported_and_listed(home: Home) -> None:
    with home.start("ladder", "primes", "--trials", "3") as running:
        assert running.stderr is not None
        next(line for line in running.stderr if line.startswith("3/10 "))
        running.send_signal(signal.SIGINT)
        out, told = running.communicate(timeout=60)
    assert "resume:" in told
    assert running.returncode == 130
    assert "incomplete" in out
    (folder,) = home.sessions.iterdir()
    started = json.loads((folder / "ladder.json").read_text())["trials"]
    assert [trial["state"] for trial in started] == ["done"] * len(started)
    assert 3 <= len(started) < 10

    resumed = home.run("ladder", "--resume", "last", "-o", str(home.path / "primes.json"))
    assert resumed.stdout == ""
    assert f"{len(started) + 1}/10 " in resumed.stderr
    assert f"{len(started)}/10 " not in resumed.stderr
    document = json.loads((home.path / "primes.json").read_text())["reports"][0]
    rungs = {row["variant"]: row for row in document["tables"][0]["rows"]}
    assert rungs["sieve"]["verdict"] == "faster"
    assert rungs["sieve"]["ratio_high"] < 1
    assert rungs["sieve"]["numbers_equal"] == rungs["division"]["numbers_equal"] == "yes"
    assert rungs["division"]["verdict"] == "baseline"
    trials = next(table for table in document["tables"] if table["key"] == "trials")["rows"]
    assert [row["variant"] for row in trials if row["kind"] == "timing"] == ["division", "sieve"] * 3

    text = home.run("ladder", "primes", "--show", "primes")
    assert re.search(r"✓ sieve is [\d.]+× faster than division", text.stdout)
    assert "show it again:" in text.stderr
    home.run("ladder", "--resume", folder.name, "-o", str(home.path / "primes.md"))
    assert re.search(r"^\| sieve \| faster \|", (home.path / "primes.md").read_text(), re.MULTILINE)
    home.run("ladder", "--resume", folder.name, "-f", "csv", "-o", str(home.path / "primes.txt"))
    lines = list(csv.reader((home.path / "primes.txt").read_text().splitlines()))
    head = next(line for line in lines if line[:2] == ["variant", "verdict"])
    assert ["sieve", "faster"] in [line[:2] for line in lines]
    assert {"step_low_ns", "ratio_low", "published", "why"} <= set(head)

    listed = home.run("list").stdout
    assert folder.name in listed
    assert "complete" in listed
    assert home.run("list", "--json").stdout == ""
    trial = json.loads((folder / "ladder.json").read_text())["trials"][-1]["session"]
    assert "primes:sieve finished" in home.run("report", f"{folder.name}/trials/{trial}").stdout


def test_each_variant_is_run_in_one_process_that_checks_and_times_it(home: Home) -> None:
    text = home.script.read_text(encoding="utf-8").replace("sys.exit(0 if ok else 3)", "ok or sys.exit(3)")
    text = text.replace(
        '# baseline = "division"\n', '# baseline = "division"\n# check_and_run = ["--check"]\n', 1
    )
    home.script.write_text(text, encoding="utf-8")
    done = home.run("ladder", "primes", "--once", "-o", str(home.path / "once.md"))
    assert "2/2 running sieve: equal, " in done.stderr, done.stderr
    assert f"wrote {home.path / 'once.md'}" in done.stderr
    (folder,) = home.sessions.iterdir()
    trials = json.loads((folder / "ladder.json").read_text())["trials"]
    assert [(trial["kind"], trial["variant"], trial["equal"]) for trial in trials] == [
        ("once", "division", True),
        ("once", "sieve", True),
    ]
    assert all(trial["figures"]["median_ns"] > 0 for trial in trials)
    told = (home.path / "once.md").read_text()
    assert re.search(r"^\| sieve \| undecided \| [\d.]+ [µm]s \|", told, re.MULTILINE)
    for variant in ("division", "sieve"):
        assert re.search(rf"^\s*{variant} .*█", told, re.MULTILINE), "a bar a variant"

    quiet = home.run("ladder", "--show", "last", "--quiet", "-o", str(home.path / "again.md"))
    assert (quiet.stdout, quiet.stderr) == ("", "")
    both = home.run("ladder", "primes", "--once", "--trials", "2", rc=2)
    assert "--once and --trials cannot be used together" in both.stderr


def test_wrong_failed_and_absent_are_told_and_change_the_exit_status(home: Home) -> None:
    script = home.script
    text = script.read_text()
    text = text.replace("prime[n * n :: n] = ", "prime[n * n :: 2 * n] = ").replace(
        "limit, n)", "limit, 2 * n)"
    )
    more = '# [[tool.tuiprof.variants]]\n# name = "crash"\n# [[tool.tuiprof.variants]]\n# name = "numba"\n'
    more += '# needs = { packages = ["no-such-package>=2"] }\n# ///\n'
    script.write_text(
        text.replace("# ///\n", more).replace("# /// script\n", "# /// script\n", 1), encoding="utf-8"
    )
    done = home.run("ladder", "primes", "--trials", "1", "--quiet", rc=1)
    assert done.stderr == ""
    assert "✗ WRONG: sieve; failed: crash; unavailable here: numba" in done.stdout
    assert "KeyError: 'crash'" in done.stdout
    assert "pip install 'no-such-package>=2'" in done.stdout


def test_what_cannot_be_measured_is_said_before_anything_runs(home: Home) -> None:
    assert "no ladder given; there are attention" in home.run("ladder", rc=2).stderr
    assert "did you mean primes?" in home.run("ladder", "prime", rc=2).stderr
    assert "did you mean sieve?" in home.run("ladder", "primes", "--variants", "siev", rc=2).stderr
    assert "not a finite number" in home.run("ladder", "primes", "--limit", "nan", rc=2).stderr
    assert "has no preset 'huge'" in home.run("ladder", "metrics", "--preset", "huge", rc=2).stderr
    assert "no ladder 'last'" in home.run("ladder", "--resume", "last", rc=2).stderr
    assert "keeps its plan" in home.run("ladder", "--resume", "last", "--trials", "3", rc=2).stderr
    assert "cannot be used together" in home.run("ladder", "--resume", "last", "--show", "last", rc=2).stderr
    script = home.script
    script.write_text(script.read_text().replace("dependencies = []", 'dependencies = ["no-such-package"]'))
    out = home.run("ladder", "primes", rc=5).stdout
    assert "division, sieve" in out
    assert "no-such-package is not installed" in out
    assert not home.sessions.exists()


def test_a_broken_configuration_is_told_and_stops_nothing(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home.path / "config.toml").write_text("scenarios = 3\n", encoding="utf-8")
    done = home.run("list")
    assert "scenarios must be a list of folders" in done.stderr
    (home.path / "config.toml").write_text("scenarios = [", encoding="utf-8")
    monkeypatch.setenv("TUIPROF_CONFIG", str(home.path / "config.toml"))
    with pytest.raises(UsageProblem, match="is not TOML"):
        scenario_folders()
    (home.path / "config.toml").write_text('scenarios = ["~/a", "b", "/c"]\n', encoding="utf-8")
    assert scenario_folders() == (Path.home() / "a", home.path / "b", Path("/c"))
    monkeypatch.setenv("TUIPROF_CONFIG", str(home.path / "none.toml"))
    assert scenario_folders() == ()


def test_a_ladder_of_somebody_else_runs_nothing_unasked(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.run("ladder", "primes", "--trials", "1", "--quiet")
    (own,) = home.sessions.iterdir()
    whole = json.loads((own / "ladder.json").read_text())
    stopped = json.dumps({**whole, "trials": whole["trials"][:-1]})
    (own / "ladder.json").write_text(stopped)
    copy = home.path / "from-a-colleague"
    shutil.copytree(own, copy)

    told = home.run("ladder", "--resume", str(copy), rc=4).stderr
    assert "was not started in this folder" in told
    assert f"tuiprof ladder --resume {copy} --trust" in told
    assert (copy / "ladder.json").read_text() == stopped
    home.run("ladder", "--show", str(copy))
    with pytest.raises(SessionError, match="not started in this folder"):
        start_in_background(LadderRun(copy))
    with monkeypatch.context() as other:
        other.setattr("os.geteuid", lambda: own.stat().st_uid + 1)
        assert "belongs to another user" in home.run("ladder", "--resume", str(own), rc=4).stderr
    home.run("ladder", "--resume", str(copy), "--trust", "--quiet")
    home.run("ladder", "--resume", str(own), "--quiet")
    for folder in (own, copy):
        trials = json.loads((folder / "ladder.json").read_text())["trials"]
        assert [trial["state"] for trial in trials] == ["done"] * len(whole["trials"])


def test_a_signal_says_how_many_trials_it_lets_end(home: Home) -> None:
    home.script.write_text(home.script.read_text().replace("import sys", "import sys, time; time.sleep(5)"))
    with home.start("ladder", "primes", "--checks", "2") as ladder:
        assert ladder.stderr is not None
        until(lambda: list(home.sessions.glob("*/ladder.json")), "the ladder")
        (folder,) = home.sessions.glob("*/ladder.json")
        until(lambda: folder.read_text().count('"running"') == 2, "two trials")
        ladder.send_signal(signal.SIGINT)
        told = next(line for line in ladder.stderr if "stopping" in line)
        ladder.send_signal(signal.SIGINT)
        ladder.communicate(timeout=60)
    assert told.strip() == "stopping after these 2 trials; press Ctrl+C again to stop them now"


def test_a_second_signal_stops_the_trial_itself(home: Home) -> None:
    script = home.script
    script.write_text(
        script.read_text().replace("count(4000)", "count(4000)\n    import time; time.sleep(1)")
    )
    with home.start("ladder", "primes") as ladder:
        assert ladder.stderr is not None
        next(line for line in ladder.stderr if line.startswith("2/14 "))
        until(lambda: home.last_trial() == ("trace", "running"), "the trial")  # it would take half a minute
        ladder.send_signal(signal.SIGINT)
        next(line for line in ladder.stderr if "again to stop it now" in line)
        ladder.send_signal(signal.SIGINT)
        _, told = ladder.communicate(timeout=60)
    assert ladder.returncode == 130
    assert re.search(r"resume:  tuiprof ladder --resume \S+-ladder-primes", told)
    assert home.last_trial() == ("trace", "stopped")
