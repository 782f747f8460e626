"""``tuiprof ladder`` as a user meets it: the documented example, Ctrl-C and --resume, exports, exit codes."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tuiprof
from tuiprof.config import scenario_folders
from tuiprof.errors import UsageProblem

DOCS = Path(tuiprof.__file__).resolve().parents[1] / "docs" / "ladders.md"


def run(*args: str, home: Path, rc: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        _argv(*args), env=_env(home), capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == rc, done.stdout + done.stderr
    return done


def _argv(*args: str) -> list[str]:
    return [sys.executable, "-m", "tuiprof", *args]


def _env(home: Path) -> dict[str, str]:
    sessions, config = str(home / "sessions"), str(home / "config.toml")
    # The scripts run in the interpreter of the tests, whatever environment is active around them.
    return {
        **os.environ,
        "NO_COLOR": "1",
        "TUIPROF_SESSIONS": sessions,
        "TUIPROF_CONFIG": config,
        "VIRTUAL_ENV": sys.prefix,
    }


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with the example of the documentation, named in a configuration file."""
    example = re.search(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None
    ladders = tmp_path / "ladders"
    ladders.mkdir()
    (ladders / "primes.py").write_text(example[1], encoding="utf-8")
    (tmp_path / "config.toml").write_text('scenarios = ["ladders"]\n', encoding="utf-8")
    return tmp_path


def test_the_documented_example_stopped_resumed_exported_and_listed(home: Path) -> None:
    command = _argv("ladder", "primes", "--trials", "3")
    with subprocess.Popen(
        command, env=_env(home), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr is not None
        told = [next(line for line in running.stderr if line.startswith("3/10 "))]
        running.send_signal(signal.SIGINT)
        out, told = running.communicate(timeout=60)[0], told
    assert running.returncode == 130
    assert "incomplete" in out
    (folder,) = (home / "sessions").iterdir()
    started = json.loads((folder / "ladder.json").read_text())["trials"]
    assert [trial["state"] for trial in started] == ["done"] * len(started)
    assert 3 <= len(started) <= 5

    resumed = run("ladder", "--resume", "last", "-o", str(home / "primes.json"), home=home)
    assert resumed.stdout == ""
    assert f"{len(started) + 1}/10 " in resumed.stderr
    assert f"{len(started)}/10 " not in resumed.stderr
    document = json.loads((home / "primes.json").read_text())["reports"][0]
    rungs = {row["variant"]: row for row in document["tables"][0]["rows"]}
    assert rungs["sieve"]["verdict"] == "faster"
    assert rungs["sieve"]["ratio_high"] < 1
    assert rungs["sieve"]["numbers_equal"] == rungs["division"]["numbers_equal"] == "yes"
    assert rungs["division"]["verdict"] == "baseline"
    trials = next(table for table in document["tables"] if table["key"] == "trials")["rows"]
    assert [row["variant"] for row in trials if row["kind"] == "timing"] == ["division", "sieve"] * 3

    text = run("ladder", "primes", "--resume", "primes", home=home)
    assert re.search(
        r"✓ sieve (is [\d.]+ times as fast as|takes [\d.]+ % less time than) division", text.stdout
    )
    assert "see it again:" in text.stderr
    run("ladder", "--resume", folder.name, "-o", str(home / "primes.md"), home=home)
    assert re.search(r"^\| sieve \| faster \|", (home / "primes.md").read_text(), re.MULTILINE)
    run("ladder", "--resume", folder.name, "-f", "csv", "-o", str(home / "primes.txt"), home=home)
    lines = list(csv.reader((home / "primes.txt").read_text().splitlines()))
    head = next(line for line in lines if line[:2] == ["variant", "verdict"])
    assert ["sieve", "faster"] in [line[:2] for line in lines]
    assert {"step_low_ns", "ratio_low", "published", "why"} <= set(head)

    listed = run("list", home=home).stdout
    assert folder.name in listed
    assert "complete" in listed
    assert run("list", "--json", home=home).stdout == ""
    trial = json.loads((folder / "ladder.json").read_text())["trials"][-1]["session"]
    assert "primes:sieve finished" in run("report", f"{folder.name}/trials/{trial}", home=home).stdout


def test_wrong_failed_and_absent_are_told_and_change_the_exit_status(home: Path) -> None:
    script = home / "ladders" / "primes.py"
    text = script.read_text()
    text = text.replace("prime[n * n :: n] = ", "prime[n * n :: 2 * n] = ").replace(
        "limit, n)", "limit, 2 * n)"
    )
    more = '# [[tool.tuiprof.variants]]\n# name = "crash"\n# [[tool.tuiprof.variants]]\n# name = "numba"\n'
    more += '# needs = { packages = ["no-such-package>=2"] }\n# ///\n'
    script.write_text(
        text.replace("# ///\n", more).replace("# /// script\n", "# /// script\n", 1), encoding="utf-8"
    )
    done = run("ladder", "primes", "--trials", "1", "--quiet", home=home, rc=1)
    assert done.stderr == ""
    assert "✗ WRONG: sieve; failed: crash; unavailable here: numba" in done.stdout
    assert "KeyError: 'crash'" in done.stdout
    assert "pip install 'no-such-package>=2'" in done.stdout


def test_what_cannot_be_measured_is_said_before_anything_runs(home: Path) -> None:
    assert "which ladder? There are attention" in run("ladder", home=home, rc=2).stderr
    assert "did you mean primes?" in run("ladder", "prime", home=home, rc=2).stderr
    assert "did you mean sieve?" in run("ladder", "primes", "--variants", "siev", home=home, rc=2).stderr
    assert "has no preset 'huge'" in run("ladder", "metrics", "--preset", "huge", home=home, rc=2).stderr
    assert "no ladder 'last'" in run("ladder", "--resume", "last", home=home, rc=2).stderr
    assert "as planned" in run("ladder", "--resume", "last", "--trials", "3", home=home, rc=2).stderr
    script = home / "ladders" / "primes.py"
    script.write_text(script.read_text().replace("dependencies = []", 'dependencies = ["no-such-package"]'))
    out = run("ladder", "primes", home=home, rc=5).stdout
    assert "division, sieve" in out
    assert "no-such-package is not installed" in out
    assert not (home / "sessions").exists()


def test_a_broken_configuration_is_told_and_stops_nothing(home: Path) -> None:
    (home / "config.toml").write_text("scenarios = 3\n", encoding="utf-8")
    done = run("list", home=home)
    assert "scenarios must be a list of folders" in done.stderr
    (home / "config.toml").write_text("scenarios = [", encoding="utf-8")
    with pytest.raises(UsageProblem, match="is not TOML"):
        scenario_folders(home / "config.toml")
    assert scenario_folders(home / "none.toml") == ()
    (home / "config.toml").write_text('scenarios = ["~/a", "b", "/c"]\n', encoding="utf-8")
    assert scenario_folders(home / "config.toml") == (Path.home() / "a", home / "b", Path("/c"))


def test_a_second_signal_stops_the_trial_itself(home: Path) -> None:
    script = home / "ladders" / "primes.py"
    script.write_text(
        script.read_text().replace("count(4000)", "count(4000)\n    import time; time.sleep(1)")
    )
    with subprocess.Popen(
        _argv("ladder", "primes"), env=_env(home), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr is not None
        next(line for line in running.stderr if line.startswith("2/14 "))
        time.sleep(1.0)  # into the captured trial, which would take half a minute
        for _ in range(2):
            running.send_signal(signal.SIGINT)
            time.sleep(0.3)
        _, told = running.communicate(timeout=20)
    assert running.returncode == 130
    assert "once more stops it now" in told
    assert re.search(r"go on:  tuiprof ladder --resume \S+-ladder-primes", told)
    (folder,) = (home / "sessions").iterdir()
    assert json.loads((folder / "ladder.json").read_text())["trials"][-1]["state"] == "stopped"
