"""Captures that the probe asks for by itself, in real processes under PyTorch on the CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forked import ForkedPython
from installed import needs
from probe_runs import Run, new_session, run_script

from tuiprof.probe.requests import Requests, Trigger, Triggers
from tuiprof.session import log as records

# Steps of 5 ms; those named in the arguments take half a second.
SCRIPT = """
import sys, time, torch
steps, slow = int(sys.argv[1]), set(map(int, sys.argv[2:]))
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(steps):
    time.sleep(0.5 if step in slow else 0.005)
    optimizer.zero_grad(); model(torch.randn(8, 16)).sum().backward(); optimizer.step()
"""


def ends(run: Run) -> dict[str, records.Capture]:
    """The last record of each capture that was made."""
    return {record.id: record for record in run.of(records.Capture) if record.state in ("written", "failed")}


def notes(run: Run) -> list[str]:
    return [note.text for note in run.of(records.Note) if note.level == "warn"]


@pytest.fixture(scope="module")
def triggered(tmp_path_factory: pytest.TempPathFactory, forked: ForkedPython) -> Run:
    """A run with two triggers: after slow steps, and every so many steps."""
    needs("torch")
    slow = {"id": "slow", "times": 25, "steps": 2, "cooldown_s": 1.5, "stack": True}
    every = {"id": "every", "every": 150, "steps": 2, "cooldown_s": 0}
    folder = tmp_path_factory.mktemp("triggered")
    return run_script(folder, SCRIPT, "440", "3", "60", "110", "390", triggers=[slow, every], forked=forked)


def test_the_steps_after_a_slow_one_are_captured(triggered: Run) -> None:
    made = [end for end in ends(triggered).values() if end.id.startswith("slow")]
    assert [(end.id, end.state) for end in made] == [("slow-1", "written"), ("slow-2", "written")]
    # 3 is in the warm-up, 110 in the cool-down.
    for end, slow_step in zip(made, (60, 390), strict=True):
        assert end.cause.startswith(f"step {slow_step} took ")
        assert "25 × the median of" in end.cause
        assert end.first is not None
        assert slow_step < end.first == (end.last or 0) - 1, "the slow step is over"
        assert (triggered.session / end.path).is_file()


def test_every_so_many_steps(triggered: Run) -> None:
    made = {name: (end.first, end.last) for name, end in ends(triggered).items() if end.state == "written"}
    assert {name: at for name, at in made.items() if name.startswith("every")} == {
        "every-1": (150, 151),
        "every-2": (300, 301),
    }
    assert all(capture.state != "failed" for capture in triggered.of(records.Capture)), (
        "the next one is at 450"
    )


def test_a_spent_budget_ends_it_with_a_reason(run_forked: Callable[..., Run]) -> None:
    needs("torch")
    slow = {"id": "slow", "above_ns": 300_000_000, "steps": 1, "cooldown_s": 0, "budget_bytes": 100}
    done = run_forked(SCRIPT, "250", "40", "140", "200", triggers=[slow])
    first = next(iter(ends(done).values()))
    assert first.state == "written"
    assert (done.session / first.path).stat().st_size > 100
    assert len(ends(done)) == 1
    (note,) = notes(done)
    assert "have stopped" in note
    assert "budget" in note


def test_a_trigger_that_cannot_be_read_is_named(run: Callable[..., Run]) -> None:
    script = (
        "import os, pathlib, time, tuiprof\n"
        "for _ in range(3): tuiprof.step()\n"
        "log, end = pathlib.Path(os.environ['TUIPROF_SESSION'], 'log', 'rank0.jsonl'), time.monotonic() + 30\n"
        "while time.monotonic() < end and not (log.exists() and b'trigger' in log.read_bytes()): time.sleep(0.02)\n"
    )
    (note,) = notes(run(script, triggers=[{"id": "both", "every": 3, "times": 2}]))
    assert "control/trigger-both.json" in note
    assert "exactly one" in note


def make(session: Path, world: int = 1) -> tuple[Triggers, list[str]]:
    told: list[str] = []
    return Triggers(str(session), lambda _, text: told.append(text), lambda: world == 1), told


def steps(numbers: range, slow: int = -1) -> list[Any]:
    return [(n, n, 90_000_000 if n == slow else 10_000_000, 0, [], None, False) for n in numbers]


def requests(session: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in session.glob("control/capture-*.json")}


def test_ranks_agree_on_a_step_that_all_of_them_reach(tmp_path: Path) -> None:
    session = new_session(tmp_path / "session")
    slow = Trigger("slow", above_ns=50e6, options=("shapes",))
    ranks = [make(session, world=2)[0] for _ in range(2)]
    for number, rank in enumerate(ranks):
        rank.arm([slow])
        rank.look(steps(range(60)))
        rank.look(steps(range(60, 70), slow=65 + number))
    (request,) = requests(session).values()
    assert request["id"] == "slow-1"
    assert request["cause"].startswith("step 65 "), "the first one wins"
    assert request["at"] > 69 + 20, "the other rank looks for requests only every 100 ms"
    assert request["shapes"]
    for number, rank in enumerate(ranks):
        rank.ended("slow-1", written=True)
        rank.look(steps(range(100, 110), slow=105 + number))
    assert len(requests(session)) == 1, "the cool-down"
    assert not list(session.glob("control/.*")), "nothing temporary is left"


def test_what_is_disarmed_or_armed_anew(tmp_path: Path) -> None:
    session = new_session(tmp_path / "session", triggers=[{"id": "slow", "above_ns": 50_000_000}])
    folder = Requests(str(session / "control"))
    triggers, _ = make(session)
    _, found = folder.new()
    assert found is not None
    triggers.arm(found)
    assert folder.new()[1] is None, "nothing has changed"
    (session / "control" / "trigger-slow.json").unlink()
    found = folder.new()[1]
    assert found == []
    triggers.arm(found)
    triggers.look(steps(range(30)))
    triggers.look(steps(range(30, 40), slow=35))
    assert not requests(session)
    triggers.arm([Trigger("slow", times=5)])
    triggers.look(steps(range(40, 50), slow=45))
    assert list(requests(session)) == ["capture-slow-1"]


def test_captures_that_fail_again_and_again_end_it(tmp_path: Path) -> None:
    session = new_session(tmp_path / "session")
    triggers, told = make(session)
    triggers.arm([Trigger("slow", above_ns=50e6, cooldown_s=0)])
    for turn in range(5):
        first = 20 + 10 * turn
        triggers.look(steps(range(first, first + 10), slow=first + 5))
        triggers.ended(f"slow-{turn + 1}", written=False)
    assert len(requests(session)) == 3
    assert told == ["triggered captures (slow) have stopped: 3 captures in a row failed"]
