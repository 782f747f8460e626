"""What a step is, changed while the script runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from installed import needs
from waiting import running, until

from tuiprof.cli import cli
from tuiprof.errors import UsageProblem
from tuiprof.session.asking import change_request
from tuiprof.session.live.replay import read_fold
from tuiprof.session.store.folders import Session, find_session

needs("torch")

SCRIPT = """
import os, time, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def micro():
    model(torch.ones(2, 8)).sum().backward()
    time.sleep(0.002)
class Last:
    @staticmethod
    def still(value): return value
    def told(self, value): return value
last = Last()
count = 0
while not os.path.exists("stop"):
    for _ in range(4):
        micro()
    optimizer.step()
    count += last.told(last.still(1))
print("steps", count)
"""


OPTIMIZER = next(n for n, line in enumerate(SCRIPT.splitlines(), 1) if "optimizer.step" in line)


@contextmanager
def recorded(
    folder: Path, script: str, *command: str, begun: str = "sessions/*/log/rank0.jsonl"
) -> Iterator[Session]:
    """Record ``train.py`` as long as the block lasts: at its end the script is asked to stop, and has to."""
    (folder / "train.py").write_text(script)
    verb = [sys.executable, "-m", "tuiprof", "record", "-q", "--no-capture", *command, "train.py"]
    with running(verb, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL) as recorder:
        try:
            until(lambda: any(folder.glob(begun)), begun)
            yield find_session(folder / "sessions", "last")
        finally:
            (folder / "stop").touch()
            assert recorder.wait(60) == 0, "the script went on to its end"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TUIPROF_SESSIONS", str(tmp_path / "sessions"))
    return tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a run that the tests share: each leaves it with the steps of the optimizer."""
    folder = tmp_path_factory.mktemp("trained")
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as there:
            there.chdir(folder)
            there.setenv("TUIPROF_SESSIONS", str(folder / "sessions"))
            stack.enter_context(recorded(folder, SCRIPT, "--", sys.executable))
        yield folder


@pytest.fixture
def session(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.chdir(trained)
    monkeypatch.setenv("TUIPROF_SESSIONS", str(trained / "sessions"))
    return find_session(trained / "sessions", "last")


def until_steps(session: Session, above: int, source: str = "") -> None:
    """Wait for more than some steps, of any source or of one."""

    def made() -> bool:
        what, steps = source_and_steps(session)
        return steps > above and source in ("", what)

    until(made, lambda: f"more than {above} steps, but {source_and_steps(session)}")


def source_and_steps(session: Session) -> tuple[str, int]:
    rank = read_fold(session).lead
    if rank is None:
        return "", 0
    return (rank.step_source.what if rank.step_source else "", len(rank.steps))


def steps(*options: str) -> str:
    done = CliRunner().invoke(cli, ["steps", "last", *options])
    return done.output or str(done.exception)


def test_another_source_a_function_and_back(session: Session) -> None:
    until_steps(session, 2)
    assert f"optimizer steps at train.py:{OPTIMIZER}" in steps()
    assert "backward passes" in steps("--by", "backward")
    until_steps(session, 8, "backward passes")
    assert "steps: backward passes at train.py:6" in steps()
    rank = read_fold(session).lead
    assert rank is not None
    first_ns, others_ns = rank.steps.rows["dur_ns"][0], rank.steps.whole_run().median_ns
    assert first_ns < 50 * others_ns, "the first backward pass after the change ends step 0"
    assert "named line or function" in steps("--function", "__main__:micro")
    until_steps(session, 8)
    assert "optimizer steps" in steps("--by", "optimizer")
    until_steps(session, 2)
    notes = [note.text for note in read_fold(session).notes]
    assert any("counted by optimizer steps before are withdrawn" in text for text in notes), notes


LINES = """
import os, time
def inner():
    time.sleep(0.002)
def outer():
    for _ in range(4):
        inner()
while not os.path.exists("stop"):
    outer()
"""
PYTHONS = sorted((Path.home() / ".pyenv" / "versions").glob("3.1[2-9].*/bin/python"))


@pytest.mark.parametrize("python", PYTHONS or [None], ids=lambda path: path.parts[-3] if path else "none")
def test_a_line(python: Path | None, folder: Path) -> None:
    if python is None:
        pytest.skip("lines of a running script need Python 3.12")
    options = ("--python", str(python), "--step-at", "train.py:9", "--", "python")
    with recorded(folder, LINES, *options) as session:
        until_steps(session, 2)
        assert "named line or function at train.py:7" in steps("--at", "train.py:7")
        until_steps(session, 40)
        inner = read_fold(session).lead
        assert "no code loaded by the script starts a line at train.py:10" in steps("--at", "train.py:10")
        assert "train.py:9" in steps("--at", "train.py:9")
        until_steps(session, 10)
        outer = read_fold(session).lead
        assert inner is not None
        assert outer is not None
        assert outer.steps.whole_run().median_ns > 2 * inner.steps.whole_run().median_ns, "four times as long"
        assert "__main__:inner" not in steps("--function", "__main__:inner")
        until(lambda: (read_fold(session).lead or inner).steps.whole_run().count > 40, "more than 40 steps")


@pytest.mark.parametrize("name", ["Last.still", "last.told"], ids=["static", "of an object"])
def test_a_method_is_counted(session: Session, name: str) -> None:
    until_steps(session, 2)
    assert "named line or function" in steps("--function", f"__main__:{name}")
    until_steps(session, 8, "executions of the named line or function")
    assert "optimizer steps" in steps("--by", "optimizer")


def test_what_ran_before_the_first_step_can_be_counted(folder: Path) -> None:
    script = SCRIPT.replace("count = 0", "def never(): pass\ncount = 0")
    script = script.replace("count +=", "open('trains', 'w').close(); count +=")
    options = ("--step-function", "__main__:never", "--", sys.executable)
    with recorded(folder, script, *options, begun="trains") as session:
        assert "available: optimizer, backward, a " in steps("--by", "loader")
        assert "backward passes" in steps("--by", "backward")
        until_steps(session, 2)


def test_what_cannot_be_counted_is_refused_and_changes_nothing(session: Session) -> None:
    until_steps(session, 2)
    assert "not changed: __main__ has no function nope" in steps("--function", "__main__:nope")
    refused = steps("--by", "jit")
    assert "not changed: no jitted function of Flax NNX or Equinox is in use" in refused
    assert "available: optimizer, backward, a " in refused
    assert steps("--by", "jit") == refused, "each request is answered"
    assert "no DataLoader has returned a batch" in steps("--by", "loader")
    said = steps("--at", "train.py:3000")
    assert "--at: train.py has" in said
    if sys.version_info < (3, 12):
        assert "requires Python 3.12" in steps("--at", "train.py:10")
    assert f"optimizer steps at train.py:{OPTIMIZER}" in steps()
    counted = source_and_steps(session)[1]
    until_steps(session, counted, "optimizer steps")
    with pytest.raises(UsageProblem):
        change_request(session, at="train.py:10", by="backward")
