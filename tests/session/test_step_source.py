"""What a step is, steps that are withdrawn, captures that show other steps, phases of an ordinary step."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from session_logs import append, head, line, step, written
from waiting import until

from tuiprof.cli import main
from tuiprof.session.live.fold import Fold
from tuiprof.session.live.hosts import compare_ranks
from tuiprof.session.live.replay import read_fold
from tuiprof.session.live.step_source import (
    activity,
    by_path,
    counted,
    described,
    likely,
    missed_steps,
    rare_steps,
    refusal,
)
from tuiprof.session.live.summary import summarise
from tuiprof.session.live.tail import Batch
from tuiprof.session.log import Capture, DeviceStep, Head, Record, Step, StepSource
from tuiprof.session.run import control
from tuiprof.session.run.launch import LaunchSpec, start, wait
from tuiprof.session.store.folders import Session
from tuiprof.session.store.meta import Clock, SessionMeta

META = SessionMeta(v=1, name="x", argv=["x"], cwd="/", unix_ns=10**18, mono_ns=1000, boot="here")
MS = 1_000_000


def fold_of(*records: Record, writer: str = "rank0", rank: int = 0) -> Fold:
    return add(Fold(Clock(META)), *records, writer=writer, rank=rank)


def add(fold: Fold, *records: Record, writer: str, rank: int) -> Fold:
    head = Head(1, writer, 1, 10**18, 1000, rank, boot="here")
    fold.feed([Batch(writer, [head, *records])])
    return fold


def steps(count: int, dur: int, first: int = 0, **more: Any) -> list[Step]:
    return [Step(n, at=1000 + (n + 1) * dur, dur=dur, **more) for n in range(first, first + count)]


def test_a_step_is_described_with_its_line() -> None:
    fold = fold_of(StepSource(1000, "iterations of a loop", "/home/a/train.py:88"), *steps(312, MS))
    assert described(fold.lead) == "iterations of the loop at train.py:88"
    assert counted(fold.lead) == "iterations of the loop at train.py:88, 312 counted"
    fold = add(fold, StepSource(9000, "", withdrawn=312), writer="rank0", rank=0)
    assert (described(fold.lead), len(fold.lead.steps)) == ("", 0), "they were no steps"
    assert described(fold_of(*steps(3, MS)).lead) == "", "a log of an older tuiprof does not tell"


def test_the_headline_of_a_run_says_what_a_step_is(tmp_path: Path) -> None:
    source = line("source", at=1_000, what="optimizer steps", where="/a/train.py:88")
    session = written(tmp_path, source, *(step(n) for n in range(312)))
    assert summarise(session).verdict.sentence.endswith("; steps are optimizer steps at train.py:88")


def test_where_no_step_is_found_one_remedy_is_given(tmp_path: Path) -> None:
    session = written(
        tmp_path,
        line("likely", at=2_000, where="/train.py:46"),
        line("note", at=3_000, level="info", text="no step"),
        line("capture", at=4_000, id="start", state="failed", why="no step was found in the script"),
    )
    append(
        session, "recorder", head(session, "recorder", rank=None), line("end", at=5_000, code=0, why="exit")
    )
    report = summarise(session)
    assert " ".join((report.verdict.sentence, *report.notes)).count("--step-at") == 1
    assert report.notes == ("capture 'start' failed: no step was found in the script",)


def test_steps_before_they_were_known_are_said_to_be_missing(tmp_path: Path) -> None:
    source = line(
        "source", at=1_000, what="iterations of a loop", where="/a/train.py:88", missed_ns=2_100 * MS
    )
    ends = (line("step", n=n, at=2_000 + n * MS, dur=MS) for n in range(312))
    session = written(tmp_path, source, *ends)
    fold = read_fold(session)
    assert counted(fold.lead).endswith("312 counted, without those of the loop's first 2.10 s")
    (note,) = [note for note in summarise(session, fold).notes if note.startswith("steps: ")]
    assert note.startswith("steps: those of the loop's first 2.10 s not counted")
    few = fold_of(StepSource(1000, "backward passes", missed=2), *steps(3, MS)).lead
    assert counted(few) == "backward passes, 3 counted, without the first 2"


def test_an_evaluation_after_the_last_step_is_named(tmp_path: Path) -> None:
    ends = (line("step", n=n, at=2_000 + n * MS, dur=MS) for n in range(9))
    end = line("end", at=2_000 + 400 * MS, code=0, ph={"evaluation": 320 * MS})
    session = written(tmp_path, *ends, end)
    notes = summarise(session, read_fold(session)).notes
    assert "after the last step: evaluation 320 ms, not counted in any step" in notes


def test_withdrawn_steps_are_gone_and_their_capture_is_not_representative() -> None:
    fold = fold_of(
        StepSource(1000, "batches of a DataLoader"),
        *steps(38, MS // 10),
        Capture(5000, "start", "written", 30, 32, "traces/a.json"),
        StepSource(6000, "optimizer steps", "", withdrawn=38),
        *steps(12, 20 * MS),
    )
    assert fold.lead is not None
    assert fold.lead.steps.rows["n"].tolist() == list(range(12))
    assert fold.lead.steps.whole_run().median_ns == 20 * MS
    why = by_path(fold, refusal)["traces/a.json"]
    assert "not to be training steps" in why
    assert why.endswith("capture again")


@pytest.mark.parametrize(
    ("state", "remedy"), [("written", "it was repeated as 'start-again'"), ("failed", "capture again")]
)
def test_a_capture_that_was_repeated_need_not_be_made_again(state: str, remedy: str) -> None:
    fold = fold_of(
        *steps(38, MS // 10),
        Capture(5000, "start", "written", 30, 32, "traces/a.json"),
        StepSource(6000, "optimizer steps", "", withdrawn=38),
        *steps(40, MS),
        Capture(7000, "start-again", state, 30, 32, "traces/b.json" if state == "written" else ""),
    )
    refused = by_path(fold, refusal)
    assert list(refused) == ["traces/a.json"]
    assert refused["traces/a.json"].endswith(remedy)


def test_a_capture_that_was_only_asked_for_is_not_withdrawn() -> None:
    fold = fold_of(
        Capture(900, "start", "armed", 30, 32),
        *steps(5, MS // 10),
        StepSource(6000, "optimizer steps", "", withdrawn=5),
        *steps(30, MS),
        *steps(3, MS, 30, cap=True),
        Capture(5000, "start", "written", 30, 32, "traces/a.json"),
    )
    assert by_path(fold, refusal) == {}


@pytest.mark.parametrize(
    ("captured_ns", "refused"), [(MS // 100, True), (8 * MS, False), (30 * MS, False), (500 * MS, True)]
)
def test_captured_steps_must_resemble_the_others(captured_ns: int, refused: bool) -> None:
    fold = fold_of(
        *steps(30, 10 * MS),
        *steps(3, captured_ns, 30, cap=True),
        Capture(5000, "start", "written", 30, 32, "traces/a.json"),
    )
    assert bool(by_path(fold, refusal)) == refused


@pytest.mark.parametrize(
    ("begins", "later", "advised"),
    [
        (200, [200] * 27 + [1] * 2_000, "--capture 3@60"),  # a warm-up that takes until step 60
        (1, [1] * 10, "--capture N@STEP"),  # nothing is known of later steps
    ],
)
def test_a_capture_of_slow_steps_names_others_to_capture(begins: int, later: list[int], advised: str) -> None:
    fold = fold_of(
        *steps(30, begins * MS),
        *steps(3, 200 * MS, 30, cap=True),
        *(Step(n, at=1000 + n * 200 * MS, dur=dur * MS) for n, dur in enumerate(later, 33)),
        Capture(5000, "start", "written", 30, 32, "traces/a.json"),
    )
    assert by_path(fold, refusal)["traces/a.json"].endswith(advised)


@pytest.mark.parametrize(("device_ns", "refused"), [(10 * MS, False), (2 * MS, True)])
def test_the_host_may_run_ahead_in_the_captured_steps(device_ns: int, refused: bool) -> None:
    fold = fold_of(
        *steps(30, 10 * MS),
        *steps(3, 2 * MS, 30, cap=True),
        *(DeviceStep(n, device_ns) for n in range(30, 33)),
        Capture(5000, "start", "written", 30, 32, "traces/a.json"),
    )
    assert bool(by_path(fold, refusal)) == refused


def test_phases_of_an_ordinary_step_add_up_to_the_median() -> None:
    found = [
        Step(n, at=1000 + (n + 1) * MS, dur=10 * MS + n % 3, ph={"forward": 4 * MS, "backward": 5 * MS})
        for n in range(40)
    ]
    for n in (10, 20, 30):
        found[n].dur += 500 * MS
        found[n].ph = found[n].ph | {"evaluation": 500 * MS}
    lead = fold_of(*found).lead
    assert lead is not None
    phases = lead.steps.ordinary_phases()
    assert sum(phases.values()) == pytest.approx(lead.steps.whole_run().median_ns)
    assert phases["forward"] == pytest.approx(4 * MS, rel=1e-3)
    assert "evaluation" not in phases
    assert lead.steps.phase_means()["evaluation"] == pytest.approx(37.5 * MS)


def test_the_lead_is_a_process_that_trains() -> None:
    fold = fold_of(StepSource(1000, "batches of a DataLoader"), *steps(40, MS))
    add(fold, StepSource(1000, "optimizer steps"), *steps(20, 2 * MS), writer="rank0-7", rank=0)
    assert fold.lead is not None
    assert fold.lead.name == "rank0-7"


@pytest.mark.parametrize(("on_device", "flagged"), [(False, True), (True, False)])
def test_a_host_that_runs_ahead_of_its_device_holds_up_nobody(on_device: bool, flagged: bool) -> None:
    fold = Fold(Clock(META))
    for rank in range(3):
        waits = 5 * MS if rank == 1 else 15 * MS
        records: list[Record] = [*steps(60, 20 * MS, ph={"backward": waits})]
        if on_device:
            records += [DeviceStep(n, 20 * MS) for n in range(60)]
        add(fold, *records, writer=f"rank{rank}", rank=rank)
    found = compare_ranks(fold.ranks, 10**12)
    assert [times.straggles for times in found] == [False, flagged, False]


def test_the_line_that_probably_ends_a_step_is_named_where_none_was_seen(tmp_path: Path) -> None:
    session = written(tmp_path, line("likely", at=2_000, where="/scripts/train.py:46"))
    fold = read_fold(session)
    assert likely(fold, "/scripts") == "train.py:46"
    assert likely(fold, "/elsewhere") == "/scripts/train.py:46"
    report = summarise(session, fold)  # of a session that began in /
    assert "no training steps were detected" in report.verdict.sentence
    command = "tuiprof record --step-at scripts/train.py:46 -- python train.py"
    assert command in report.verdict.sentence


def test_the_command_says_how_to_record_the_steps_of_a_run_that_had_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = written(tmp_path, line("likely", at=2_000, where="/scripts/train.py:46"))
    append(session, "recorder", line("end", at=100_000_000, code=0, signal=None, why="exit"))
    assert main(["steps", str(session.path)]) == 0
    assert "tuiprof record --step-at scripts/train.py:46 -- python train.py" in capsys.readouterr().out


def test_a_rank_without_steps_in_a_run_that_is_over_has_none_to_come(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = written(tmp_path, line("source", at=1_000, what="optimizer steps"), step(0))
    append(session, "rank1", head(session, "rank1", rank=1))
    assert main(["steps", str(session.path)]) == 0
    assert "rank1: steps: no steps yet" in capsys.readouterr().out
    append(session, "recorder", line("end", at=100_000_000, code=0, signal=None, why="exit"))
    assert main(["steps", str(session.path)]) == 0
    assert "rank1: steps: no steps were detected" in capsys.readouterr().out
    assert main(["steps", str(session.path), "--by", "backward"]) == 2, "a wrong command for this session"
    assert "has ended: finished, and only a running script can count other steps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("every", "rare"),
    [(32, True), (3, False)],  # a rollout before each 32 updates; one in three steps is long
)
def test_a_rare_long_step_in_a_capture_is_said(every: int, rare: bool) -> None:
    run = [
        Step(n, at=1000 + n, dur=100 * MS if n % every == 0 else 4 * MS, cap=30 <= n <= 32)
        for n in range(320)
    ]
    capture = Capture(2000, "start", "written", first=30, last=32, path="a")
    fold = fold_of(*run, capture)
    said = rare_steps(fold.captures["start"], fold)
    assert said.startswith("step 32 took 100 ms while captured; 2.8 % of the session's steps") == rare, said
    assert bool(said) == rare


def recompiled(every: int, first: int = 5, *, long_ms: int = 900, count: int = 200) -> Fold:
    """Steps of 1 ms, of which one in ``every`` is long; those from 30 to 32 are captured."""
    steps_of_run = [
        Step(n, at=1000 + n, dur=long_ms * MS if n % every == first else MS, cap=30 <= n <= 32)
        for n in range(count)
    ]
    return fold_of(*steps_of_run, Capture(2000, "start", "written", first=30, last=32, path="a"))


def test_long_steps_that_take_most_of_the_time_and_were_not_captured_are_said() -> None:
    fold = recompiled(10)
    missed = missed_steps(fold.captures["start"], fold)
    assert missed is not None
    assert str(missed).startswith(
        "10.1 % of the steps take about 900 ms, 99.0 % of the time, and none of them was"
    )
    assert missed.longer_ns == pytest.approx(899 * MS * 10 / 99)


@pytest.mark.parametrize(
    ("fold", "why"),
    [
        (recompiled(10, long_ms=8), "they take less than half of the time"),
        (recompiled(10, first=0), "step 30 is one of them"),
        (recompiled(150, first=149), "there is one of them"),
        (recompiled(1000, first=3, long_ms=90_000), "it is from the beginning of the run"),
    ],
)
def test_long_steps_that_matter_little_or_are_captured_are_not_said(fold: Fold, why: str) -> None:
    assert missed_steps(fold.captures["start"], fold) is None, why


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Session]:
    """A script that waits until a file is there, then runs a compiler that waits for another one."""
    compiler = tmp_path / "bin" / "cc1plus"
    compiler.parent.mkdir()
    compiler.symlink_to(os.path.realpath(sys.executable))
    (tmp_path / "kernel.cpp").write_text("import sys; sys.stdin.read()\n")
    script = tmp_path / "train.py"
    script.write_text(
        "import os, subprocess, sys, time\n"
        "while not os.path.exists('go'): time.sleep(0.01)\n"
        f"subprocess.run([{str(compiler)!r}, 'kernel.cpp'], stdin=subprocess.PIPE, timeout=60)\n"
    )
    session = start(
        LaunchSpec(
            ("python", "train.py"),
            cwd=tmp_path,
            python=sys.executable,
            capture=None,
            root=tmp_path / "sessions",
            grace_s=(0.2, 0.2),
        )
    )
    yield session
    if not session.status().over:
        control.request_stop(session)
    wait(session, 30)


def until_active(session: Session, text: str) -> None:
    until(lambda: text in activity(session), lambda: f"{text!r}, but {activity(session)!r}")


def test_importing_then_compiling_which_file(run: Session, tmp_path: Path) -> None:
    until_active(run, "no framework is loaded yet")
    (tmp_path / "go").touch()
    until_active(run, "compiling kernel.cpp (cc1plus)")
    control.request_stop(run)
    assert wait(run, 30).over
    assert "compiling" not in activity(run)
