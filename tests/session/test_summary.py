"""What a summary says beside its figures: why a run failed, what other programs did, what its shares are of."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from session.session_logs import append, head, line, new_session, step, written

from tuiprof.cli import main
from tuiprof.cli.answering import page, session_answer
from tuiprof.cli.targets import Selection
from tuiprof.comparison.sides import compare_targets
from tuiprof.model.units import format_ns
from tuiprof.report import Style
from tuiprof.report.answer import to_text
from tuiprof.resources import shipped
from tuiprof.session.live.listing import summary_of
from tuiprof.session.live.summary import listing, summarise
from tuiprof.session.store.folders import Session


def recorded(
    root: Path, name: str, *, util: float = 0.5, own_cores: float = 1.0, dur: int = 1_000_000
) -> Session:
    """Make a run of sixty steady steps on a host with two cores."""
    session = written(root, *(step(n, dur + n % 3 * 1000) for n in range(60)), name=name)
    figures = {"util": util, "tree_cpu": own_cores, "core0_util": util, "core1_util": util}
    readings = (line("tele", at=1_000 + n * 1_000_000, dev="host", m=figures) for n in range(10))
    append(session, "recorder", head(session, "recorder", rank=None), *readings)
    return session


def end(session: Session, code: int) -> None:
    append(session, "recorder", line("end", at=100_000_000, code=code, signal=None, why="exit"))


@pytest.mark.parametrize(
    ("util", "own_cores", "said"),
    [
        (1.0, 0.5, True),  # a quarter of the machine is the run's
        (1.0, 1.8, False),  # it is the run itself that fills it
        (0.6, 0.1, False),  # there was room
    ],
)
def test_a_crowded_machine_is_said(
    tmp_path: Path, util: float, own_cores: float, said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    session = recorded(tmp_path, "train", util=util, own_cores=own_cores)
    assert any("other programs kept the machine busy" in note for note in summarise(session).notes) == said
    for command in (["why"], ["why", "--json"], ["report"], ["report", "-f", "md"]):
        assert main([*command, str(session.path)]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert out.count("other programs kept the machine busy") == said, command


def test_steps_that_were_all_captured_were_detected(tmp_path: Path) -> None:
    """A script that ends soon after a long start, while a timed capture records."""
    session = written(tmp_path, *(step(n, 1_000_000, cap=True) for n in range(3)))
    end(session, 0)
    sentence = summarise(session).verdict.sentence
    assert "only 3 steps, while capturing" in sentence
    assert "detected" not in sentence


@pytest.mark.parametrize(("seconds", "setup"), [(3, True), (90, False)])
def test_a_run_that_was_stopped_during_its_setup_is_not_said_to_have_hidden_steps(
    tmp_path: Path, seconds: int, setup: bool
) -> None:
    session = written(tmp_path)
    stop = line("end", at=seconds * 1_000_000_000, code=130, signal=2, why="stopped")
    append(session, "recorder", head(session, "recorder", rank=None), stop)
    sentence = summarise(session).verdict.sentence
    assert ("no step in its first 3.00 s; if there were some, name the line" in sentence) == setup
    assert ("no training steps were detected" in sentence) == (not setup)
    assert "--step-at FILE:LINE" in sentence


def test_a_comparison_with_a_crowded_run_is_not_sure(tmp_path: Path) -> None:
    recorded(tmp_path, "before", dur=2_000_000)
    recorded(tmp_path, "after")
    recorded(tmp_path, "crowded", util=1.0, own_cores=0.5)
    assert compare_targets("before", "after", root=tmp_path).fact("sure") == "yes"
    report = compare_targets("before", "crowded", root=tmp_path)
    assert "not sure: other programs kept the machine busy" in report.verdict.sentence
    assert report.verdict.level == "info"
    assert any(
        note.startswith("crowded: other programs kept the machine busy: 100 %") for note in report.notes
    )


def test_a_script_that_failed_after_some_steps_is_quoted(tmp_path: Path) -> None:
    session = recorded(tmp_path, "train")
    session.stderr.write_text("Traceback (most recent call last):\nValueError: loss is bad\n")
    end(session, 1)
    report = summarise(session)
    assert "failed (exit 1): 60 steps" in report.verdict.sentence
    assert "the last line of its stderr: ValueError: loss is bad" in report.notes


def test_a_run_without_the_probe_is_told_from_one_without_steps(tmp_path: Path) -> None:
    alone, stepless = new_session(tmp_path, "alone"), new_session(tmp_path, "stepless")
    append(alone, "recorder", head(alone, "recorder", rank=None))
    append(stepless, "recorder", head(stepless, "recorder", rank=None))
    append(stepless, "rank0", head(stepless))
    for session in (alone, stepless):
        end(session, 0)
    assert "no process with the probe imported" in summarise(alone).verdict.sentence
    assert "tuiprof record --step-at FILE:LINE -- python train.py" in summarise(stepless).verdict.sentence


def test_a_large_rest_of_the_step_is_explained(tmp_path: Path) -> None:
    for name, forward in (("named", 900_000), ("unnamed", 400_000)):
        session = written(tmp_path, *(step(n, ph={"forward": forward}) for n in range(20)), name=name)
        note = summarise(session).table("phases").note
        assert ("time outside of all phases" in note) == (name == "unnamed")


@pytest.mark.parametrize(
    ("durations", "said"),
    [
        ([40_000] * 60 + [12_000_000] * 40, True),  # JAX launches sixty steps, then waits for each
        ([40_000] * 40 + [12_000_000] * 60, False),  # the median is a usual step
        ([1_000_000] * 95 + [90_000_000] * 5, False),  # rare long steps
        ([1_000_000] * 50 + [1_500_000] * 50, False),
        ([40_000] * 5 + [12_000_000] * 3, False),  # too few
    ],
)
def test_a_median_that_is_no_usual_step_is_said(durations: list[int], said: bool, tmp_path: Path) -> None:
    session = written(tmp_path, *(step(n, dur) for n, dur in enumerate(durations)))
    report = summarise(session)
    notes = [note for note in report.notes if "more than twice the median" in note]
    assert bool(notes) == said
    assert not said or ("40.0 % of the steps" in notes[0] and "(mean 4.82 ms, " in report.verdict.sentence)


def test_a_first_step_that_compiles_is_neither_in_the_mean_nor_in_the_rate(tmp_path: Path) -> None:
    durations = [1_470_000_000, *[40_000_000] * 25, *[160_000_000] * 3]
    report = summarise(written(tmp_path, *(step(n, dur) for n, dur in enumerate(durations))))
    mean_ns = sum(durations[1:]) / 28
    assert report.fact("step_mean_ns") == pytest.approx(mean_ns)
    assert report.fact("steps_per_s") == pytest.approx(1e9 / mean_ns)
    assert f"(mean {format_ns(mean_ns)}, " in report.verdict.sentence


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_running_ahead_is_named_as_a_cause_only_where_it_can_happen(framework: str, tmp_path: Path) -> None:
    session = new_session(tmp_path)
    durations = [40_000] * 60 + [12_000_000] * 40
    began = head(session, versions={framework: "1.0"})
    append(session, "rank0", began, *(step(n, dur) for n, dur in enumerate(durations)))
    [note] = summarise(session).notes
    assert ("the host launches several steps" in note) == (framework == "jax")
    assert note.endswith("compare the mean or steps/s")


def test_the_table_of_lines_is_referred_to_only_if_there_is_one(tmp_path: Path) -> None:
    for samples in (5, 50):
        lines = line("lines", at=30_000_000, samples=samples, top=[["/train.py", 8, samples]])
        steps = (step(n, ph={"forward": 400_000}) for n in range(20))
        session = written(tmp_path, *steps, lines, name=f"train-{samples}")
        assert ("see the table of lines" in summarise(session).table("phases").note) == (samples == 50)


def test_phases_of_the_one_line_that_runs_everything_are_not_listed_twice(tmp_path: Path) -> None:
    for name, second, listed in (("trainer", 8, False), ("loop", 9, True)):
        top = [["/train.py", 8, 30], ["/train.py", second, 20]]
        lines = line("lines", at=30_000_000, samples=50, top=top, doing=["forward", "backward"])
        steps = (step(n, ph={"forward": 400_000}) for n in range(20))
        session = written(tmp_path, *steps, lines, name=name)
        assert any(table.key == "lines" for table in summarise(session).tables) == listed


def test_waiting_for_data_is_the_share_that_the_table_has(tmp_path: Path) -> None:
    usual = [step(n, ph={"data": 300_000, "forward": 700_000}) for n in range(40)]
    rare = step(40, 20_000_000, ph={"data": 19_000_000, "forward": 700_000})
    phases = summarise(written(tmp_path, *usual, rare)).table("phases")
    assert phases.rows.filter(pl.col("phase") == "data")["share"].item() == pytest.approx(0.3)
    assert "waits for data 30.0 % of the time" in phases.note


def test_a_capture_that_lacked_steps_says_nothing_new_of_a_run_without_any(tmp_path: Path) -> None:
    failed = line("capture", at=2_000, id="start", state="failed", why="no steps were detected in the script")
    for name, steps in (("stepless", []), ("stepping", [step(n) for n in range(9)])):
        session = written(tmp_path, *steps, failed, name=name)
        end(session, 0)
        assert any("capture 'start' failed" in note for note in summarise(session).notes) == bool(steps)


def test_sampling_is_a_share_of_the_time_since_the_run_began(tmp_path: Path) -> None:
    session = new_session(tmp_path)
    # A script without steps: its log is opened as it ends.
    began = head(
        session, mono_ns=session.meta.mono_ns + 4_000_000_000, unix_ns=session.meta.unix_ns + 4_000_000_000
    )
    seen = line("lines", at=4_000_001_000, samples=40, top=[["/serve.py", 8, 40]], ns=4_000_000)
    append(session, "rank0", began, seen)
    assert "Sampling took 0.1 % of a core" in summarise(session).table("lines").note


def test_many_steps_a_second_are_counted_without_an_exponent(tmp_path: Path) -> None:
    at = (1_000 + n * 48_000 for n in range(1, 101))
    session = written(tmp_path, *(line("step", n=n, at=t, dur=48_000) for n, t in enumerate(at)))
    assert "20 833 steps/s" in summarise(session).verdict.sentence


@pytest.mark.parametrize("long", [False, True])
def test_savings_of_a_step_unlike_the_mean_of_the_run_are_said_to_be(long: bool, tmp_path: Path) -> None:
    source = shipped("traces") / "session-metrics-naive"
    copy = shutil.copytree(source, tmp_path / source.name)
    for log in (copy / "log").glob("rank*.jsonl"):
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        for number, row in enumerate(lines):
            if long and row["t"] == "step" and number % 3 == 0:  # the median stays
                row["dur"] *= 4
        log.write_text("".join(json.dumps(row) + "\n" for row in lines))
    found = session_answer(Session(copy), Selection())
    assert found.changes
    said = [note for note in found.run_notes if note.startswith("savings refer to a step of ")]
    assert len(said) == long, found.run_notes


def test_an_evaluation_now_and_then_is_said_beside_the_phases_and_not_drawn(tmp_path: Path) -> None:
    usual = {"forward": 400_000, "backward": 600_000}
    rare = {"dur": 3_000_000, "ph": {**usual, "evaluation": 2_000_000}}
    session = written(tmp_path, *(step(n, **(rare if n % 10 == 9 else {"ph": usual})) for n in range(20)))
    end(session, 0)
    shown = page(session, "", "text", Style(), Selection())
    assert "between steps: evaluation 16.7 % of the time" in " ".join(shown.split())
    assert "  backward" in shown
    assert "  evaluation" not in shown


def test_a_model_in_evaluation_mode_in_every_step_is_explained(tmp_path: Path) -> None:
    for name, phases in (("teacher", {"backward": 500_000}), ("inference", {"forward": 500_000})):
        steps = (step(n, ph={"evaluation": 400_000, **phases}) for n in range(20))
        note = summarise(written(tmp_path, *steps, name=name)).table("phases").note
        assert ("for example a teacher" in note) == (name == "teacher")


@pytest.mark.parametrize(("ns", "fix"), [(3_000_000, "persistent_workers"), (100_000, "more loader workers")])
def test_what_to_do_about_waiting_for_data_depends_on_why(tmp_path: Path, ns: int, fix: str) -> None:
    steps = (step(n, ph={"data": 250_000, "backward": 500_000}) for n in range(20))
    workers = line("workers", at=1, n=16, workers=4, starts=8, ns=ns, waited_ns=0)
    note = summarise(written(tmp_path, *steps, workers)).table("phases").note
    assert "waits for data 25.0 %" in note
    assert fix in note
    assert ("4 workers again 8 times" in note) == (fix == "persistent_workers")


def test_the_answer_of_a_run_without_a_trace_is_about_its_steps(tmp_path: Path) -> None:
    session = written(tmp_path, *(step(n) for n in range(1_200)))
    first, *rest = to_text(session_answer(session, Selection()), Style()).splitlines()
    assert first == "run · 1 200 steps · 1.00 ms a step"
    assert "" not in rest[:1]
    assert rest.count("") == 1
    assert "no trace was captured; capture one: tuiprof record" in rest[-1]
    failed = line(
        "capture", at=4_000, id="start", state="failed", why="the script ended at step 9, before step 30"
    )
    append(session, "rank0", failed)
    text = to_text(session_answer(session, Selection()), Style(width=None))
    assert "no advice: no trace was captured: the script ended at step 9, before step 30\n" in text
    without = session_answer(written(tmp_path / "other", failed), Selection())
    assert "no trace was captured, as no step was detected" in to_text(without, Style())


@pytest.mark.parametrize(
    ("operators", "long_ms", "every", "weighted"),
    [(100, 100, 16, True), (20, 100, 16, False), (100, 11, 8, True)],
)
def test_a_long_step_in_a_capture_is_weighted_if_it_is_of_another_kind(
    tmp_path: Path, operators: int, long_ms: int, every: int, weighted: bool
) -> None:
    """A rollout before several updates calls more operators; a step that is only slow is said to be rare."""
    session, events, at = new_session(tmp_path), list[dict[str, Any]](), 0
    for number, count in ((30, 20), (31, 20), (32, operators)):
        took = 1_000 * long_ms if number == 32 else 4_000
        events.append(kineto(f"ProfilerStep#{number}", at, took, "user_annotation"))
        events += [kineto("aten::mm", at + n * took // count, took // count // 2) for n in range(count)]
        at += took
    path = session.path / "traces" / "rank0.pt.trace.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    rows = (
        step(n, 1_000_000 * long_ms if n % every == 0 else 4_000_000, cap=30 <= n <= 32) for n in range(320)
    )
    where = {"id": "start", "first": 30, "last": 32, "path": "traces/rank0.pt.trace.json"}
    append(session, "rank0", head(session), *rows, line("capture", at=4_000, state="written", **where))
    text = to_text(session_answer(session, Selection()), Style(width=None))
    assert ("step 32 took 100 ms while captured" not in text) == weighted, text
    assert (" ms a step, mean of 210 steps of the session\n" in text) == weighted, text


@pytest.mark.parametrize(("every", "said"), [(8, True), (800, False)])
def test_a_capture_without_the_steps_that_take_most_of_the_time_does_not_say_that_all_is_well(
    tmp_path: Path, every: int, said: bool
) -> None:
    session, events = new_session(tmp_path), list[dict[str, Any]]()
    for number in range(30, 33):
        at = 1_000 * number
        events.append(kineto(f"ProfilerStep#{number}", at, 1_000, "user_annotation"))
        events.append(kineto("aten::mm", at, 990))
    path = session.path / "traces" / "rank0.pt.trace.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    rows = (step(n, 900_000_000 if n % every == 5 else 1_000_000, cap=30 <= n <= 32) for n in range(320))
    where = {"id": "start", "first": 30, "last": 32, "path": "traces/rank0.pt.trace.json"}
    append(session, "rank0", head(session), *rows, line("capture", at=4_000, state="written", **where))
    text = to_text(session_answer(session, Selection()), Style(width=None))
    assert ("no advice: 12.6 % of the steps take about 900 ms" in text) == said, text
    assert ("nothing to change" in text) == (not said), text
    whole = page(session, "train", "text", Style(width=None), Selection())
    assert "\ncapture of steps 30 to 32 · 3 steps" in whole


def kineto(name: str, at: int, took: int, category: str = "cpu_op") -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": at, "dur": took, "pid": 1, "tid": 1, "args": {}}


def ahead(session: Session) -> list[bytes]:
    """Steps that the host launches in a tenth of the time that they take on the device."""
    steps = [step(n, 100_000) for n in range(30)]
    return [head(session), *steps, *(line("dev", n=n, dur=1_000_000) for n in range(30))]


def evaluating(session: Session) -> list[bytes]:
    """Every fifth step has an evaluation in it, and they get slower."""
    phases = {"evaluation": 4_000_000}
    return [
        head(session),
        *(
            step(
                n, 1_000_000 + n * 10_000 + (4_000_000 if n % 5 == 0 else 0), ph=phases if n % 5 == 0 else {}
            )
            for n in range(40)
        ),
    ]


def withdrawn(session: Session) -> list[bytes]:
    """Batches were counted until the first optimizer step."""
    steps = (line("step", n=n, at=90_000_000 + n * 1_000_000, dur=1_000_000) for n in range(10))
    source = line("source", at=80_000_000, what="optimizer steps", withdrawn=60)
    return [head(session), *(step(n, 10_000) for n in range(60)), source, *steps]


@pytest.mark.parametrize("log", [ahead, evaluating, withdrawn])
def test_a_list_has_the_step_time_of_the_report(
    tmp_path: Path, log: Callable[[Session], list[bytes]]
) -> None:
    session = new_session(tmp_path)
    append(session, "rank0", *log(session))
    report = summarise(session)
    assert summary_of(session).median_ns == report.fact("step_median_ns")
    assert summary_of(session).steps == report.fact("steps")


@pytest.mark.parametrize("captured", [False, True])
def test_the_chart_says_that_it_has_captured_steps_if_there_are_any(tmp_path: Path, captured: bool) -> None:
    session = written(tmp_path, *(step(n) for n in range(60)))
    if captured:
        where = {"id": "start", "first": 30, "last": 32, "path": "t.json"}
        append(session, "rank0", line("capture", at=40_000, state="written", **where))
    assert summarise(session).table("step_time").note == ("captured steps included" if captured else "")


def test_a_list_says_that_a_median_is_of_the_last_steps(tmp_path: Path) -> None:
    for count, said in ((50, ""), (5_000, "of long runs, the median of the last steps")):
        session = written(tmp_path, *(step(n) for n in range(count)), name=f"train-{count}")
        assert listing(tmp_path, [summary_of(session)]).tables[0].note == said
