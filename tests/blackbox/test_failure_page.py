"""How a run ended that failed, on one page; and what was kept of it."""

from __future__ import annotations

import json
import os
import pickle
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tuiprof.blackbox.session import asked, failure_report
from tuiprof.cli import main
from tuiprof.model.units import format_bytes
from tuiprof.session import ptrace
from tuiprof.session.live.alerts import alerts
from tuiprof.session.live.replay import read_fold
from tuiprof.session.log import SCHEMA_VERSION
from tuiprof.session.store.folders import Session, create
from tuiprof.session.store.meta import SessionMeta
from tuiprof.session.store.status import PROCESS_FILE
from tuiprof.system import process

MS = 1_000_000


def _session(root: Path) -> Session:
    meta = SessionMeta(
        v=SCHEMA_VERSION,
        name="train",
        argv=["python", "train.py"],
        cwd="/",
        unix_ns=time.time_ns() - 600_000_000_000,
        mono_ns=0,
        boot=process.boot_id(),
    )
    return create(root, meta)


def _log(session: Session, writer: str, *records: dict[str, Any], rank: int | None = 0) -> None:
    head = {"t": "head", "v": 1, "writer": writer, "pid": 1, "unix_ns": session.meta.unix_ns, "mono_ns": 0}
    lines = [head | ({"rank": rank} if rank is not None else {}), *records]
    (session.log / f"{writer}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _steps(count: int) -> list[dict[str, Any]]:
    phases = {"forward": 4 * MS, "backward": 5 * MS}
    return [
        {
            "t": "step",
            "n": n,
            "at": (n + 1) * 10 * MS,
            "dur": 10 * MS,
            "ph": phases,
            "v": {"loss": 2.0 / (n + 1)},
        }
        for n in range(count)
    ]


def _failed(root: Path, code: int | None = 1, **recorder: Any) -> Session:
    session = _session(root)
    frames = [["/env/site-packages/torch/nn/functional.py", 9, "linear"], ["/home/u/train.py", 81, "train"]]
    thread = {"frames": frames, "main": True}
    _log(
        session,
        "rank0",
        *_steps(20),
        {"t": "mem", "at": 150 * MS, "dev": 0, "alloc": 5 << 30, "reserved": 6 << 30, "peak": 7 << 30},
        {"t": "capture", "at": 160 * MS, "id": "c1", "state": "started", "first": 18, "last": 22},
        {"t": "nan", "at": 170 * MS, "n": 17, "what": "gradient of head.weight", "value": "inf"},
        {
            "t": "oom",
            "at": 201 * MS,
            "n": 20,
            "dev": 0,
            "wanted": 3 << 30,
            "free": 1,
            "path": "memory/oom.pickle",
        },
        {
            "t": "stacks",
            "at": 202 * MS,
            "id": "end",
            "n": 20,
            "cause": "ended by ValueError",
            "threads": [thread],
        },
        {"t": "end", "at": 203 * MS, "code": 1, "why": "ValueError: boom \x1b[2J"},
    )
    _log(
        session,
        "rank1",
        *_steps(19),
        {"t": "end", "at": 303 * MS, "code": 1, "why": "RuntimeError: peer"},
        rank=1,
    )
    _log(session, "recorder", {"t": "end", "at": 400 * MS, "code": code, **recorder}, rank=None)
    session.stdout.write_text("epoch 1\n")
    session.stderr.write_text(
        "Traceback (most recent call last):\n    train(x)\n    ~~~~~^^^\nValueError: boom\n"
    )
    return session


def test_the_page_of_a_failed_run(tmp_path: Path) -> None:
    session = _failed(tmp_path)
    report = failure_report(session, read_fold(session), session.status())
    assert report is not None
    assert report.verdict.sentence.startswith("train failed (exit 1) in step 20: rank0: ValueError: boom")
    assert report.verdict.sentence.endswith(", at …/home/u/train.py:81 (train) in linear")
    assert report.table("raised_at").rows["line"].to_list() == [
        "torch/nn/functional.py:9",
        "…/home/u/train.py:81",
    ]
    steps = report.table("last_steps").rows
    assert steps["n"].to_list() == list(range(12, 20))
    assert steps["ph:backward"].to_list() == [5 * MS] * 8
    assert steps["v:loss"].to_list()[-1] == 0.1
    assert report.table("output").rows["line"].to_list()[-2:] == ["    train(x)", "ValueError: boom"]
    assert report.fact("peak_bytes_0") == 7 << 30
    said = "\n".join(report.notes)
    assert "rank1 failed 100 ms later: RuntimeError: peer" in said
    assert "capture 'c1' of steps 18 to 22 was being recorded when the run ended" in said
    assert "gradient of head.weight was inf in step 17" in said
    assert f"device 0 could not allocate {format_bytes(3 << 30)} in step 20" in said


def test_the_report_of_the_session_has_the_page_and_the_snapshot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = _failed(tmp_path)
    block = {"size": 1 << 30, "state": "active_allocated", "frames": []}
    (session.path / "memory").mkdir()
    snapshot = {"segments": [{"address": 0, "total_size": 1 << 30, "blocks": [block]}]}
    (session.path / "memory" / "oom.pickle").write_bytes(pickle.dumps(snapshot))
    assert main(["report", str(session.path)]) == 0
    out = capsys.readouterr().out
    assert " ".join(out.split()).count("capture 'c1' of steps 18 to 22 was being recorded") == 1
    for title in (
        "How ",
        "Where the exception came from",
        "Last steps of rank0",
        "Last output",
        "Where memory ran out",
    ):
        assert title in out, title
    assert "\x1b" not in out


@pytest.mark.parametrize("fmt", ["text", "html"])
def test_a_run_that_failed_before_its_first_step_says_its_error_once(
    fmt: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = _session(tmp_path)
    held = {"t": "tele", "at": 300 * MS, "dev": "host", "m": {"tree_rss_bytes": 3 << 30}}
    _log(session, "recorder", held, {"t": "end", "at": 400 * MS, "code": 1}, rank=None)
    session.stderr.write_text("Traceback (most recent call last):\n  import torchh\nImportError: no torchh\n")
    assert main(["report", str(session.path), "-f", fmt]) == 0
    out = capsys.readouterr().out
    assert out.count("train failed (exit 1)") == 1
    assert out.count("ImportError: no torchh") == 2  # the verdict, and the last line of the output
    assert "import torchh" in out
    assert "RSS of the run" in out, "what ran out may be memory"


def test_a_killed_run_says_by_which_signal(tmp_path: Path) -> None:
    session = _session(tmp_path)
    _log(session, "rank0", *_steps(3))
    _log(session, "recorder", {"t": "end", "at": 400 * MS, "signal": 9}, rank=None)
    report = failure_report(session, read_fold(session), session.status())
    assert report is not None
    assert report.verdict.sentence == "train failed (SIGKILL) in step 3 or later", "once"
    (note,) = [note for note in report.notes if "rank0 ended without a final record" in note]
    assert "steps of the last 0.1 s or so may be missing" in note


@pytest.mark.parametrize(
    ("stderr", "said"),
    [
        ("warn at 75\nmedian 0.116 ms\n", ""),
        ("ValueError: boom\nbye\n", ": ValueError: boom"),
        ("fatal: no data\n", ": fatal: no data"),
    ],
)
def test_a_script_that_exits_with_a_status_did_so_after_its_steps(
    stderr: str, said: str, tmp_path: Path
) -> None:
    session = _session(tmp_path)
    _log(session, "rank0", *_steps(3), {"t": "end", "at": 40 * MS, "code": None, "why": "exit"})
    _log(session, "recorder", {"t": "end", "at": 400 * MS, "code": 3}, rank=None)
    session.stderr.write_text(stderr)
    report = failure_report(session, read_fold(session), session.status())
    assert report is not None
    assert report.verdict.sentence == f"train failed (exit 3) after 3 steps{said}"


def test_a_run_that_finished_has_no_such_page(tmp_path: Path) -> None:
    session = _session(tmp_path)
    _log(session, "rank0", *_steps(3), {"t": "end", "at": 40 * MS, "code": None, "why": "exit"})
    _log(session, "recorder", {"t": "end", "at": 400 * MS, "code": 0}, rank=None)
    assert failure_report(session, read_fold(session), session.status()) is None


def test_a_path_that_leads_out_of_the_session_is_not_followed(tmp_path: Path) -> None:
    session = _session(tmp_path)
    oom = {"t": "oom", "at": 1, "n": 0, "dev": 0, "wanted": 1, "path": "../../etc/passwd"}
    flight = {"t": "flight", "at": 1, "id": "a", "path": "/etc/passwd"}
    _log(session, "rank0", oom, flight)
    fold = read_fold(session)
    assert [getattr(it.record, "path", None) for it in fold.troubles] == [""]
    assert not fold.stacks["a"].flights


def test_alerts_of_the_black_box(tmp_path: Path) -> None:
    session = _session(tmp_path)
    _log(
        session,
        "rank0",
        *_steps(20),
        {"t": "nan", "at": 170 * MS, "n": 17, "what": "metric loss", "value": "nan"},
        {"t": "oom", "at": 180 * MS, "n": 18, "dev": 1, "wanted": 3 << 30},
    )
    fold = read_fold(session)
    soon, late = 20_000 * MS, 31_000 * MS
    texts = [alert.text for alert in alerts(fold, fold.lead, soon)]
    assert "rank0 could not allocate 3.00 GiB on device 1 at step 18" in texts
    assert "loss is NaN since step 17, 170 ms into the run" in texts
    assert not [text for text in texts if text.startswith("no step")]
    texts = [alert.text for alert in alerts(fold, fold.lead, late)]
    assert (
        "no step for 30.8 s; the median step takes 10.0 ms; the stacks show where the process waits" in texts
    )


def test_stacks_that_were_kept_are_shown_after_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = _session(tmp_path)
    _log(session, "recorder", {"t": "end", "at": 1, "signal": 15}, rank=None)
    assert main(["stacks", str(session.path)]) == 0, "the session can be read"
    out = " ".join(capsys.readouterr().out.split())
    assert "has ended: failed (SIGTERM), and no stacks were recorded" in out
    assert "with tuiprof stacks during the run" in out
    assert main(["stacks", "-f", "json", str(session.path)]) == 0
    assert json.loads(capsys.readouterr().out)["reports"][0]["available"] is False
    thread = {"frames": [["/home/u/train.py", 9, "wait"]], "main": True}
    _log(
        session,
        "rank0",
        {"t": "stacks", "at": 5, "id": "stall-1", "cause": "no step for 31 s", "threads": [thread]},
    )
    assert main(["stacks", str(session.path)]) == 0
    assert "no step for 31 s: rank 0 in wait at …/home/u/train.py:9" in capsys.readouterr().out


def test_stacks_of_a_script_that_has_just_ended_are_not_those_of_one_without_steps(tmp_path: Path) -> None:
    session = _session(tmp_path)
    _log(session, "rank0", *_steps(3), {"t": "end", "at": 40 * MS, "code": 0})
    assert asked(session).notes == ("the script has ended",)


def test_a_script_that_goes_on_after_its_last_process_with_steps_is_read_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = _session(tmp_path)
    _log(session, "rank0", *_steps(3), {"t": "end", "at": 40 * MS, "code": 0})
    this = process.identify(os.getpid())
    assert this is not None
    who = process.Processes(this, this, process.pid_namespace())
    (session.control / PROCESS_FILE).write_bytes(msgspec.json.encode(who))
    asked_pids: list[int] = []
    monkeypatch.setattr(ptrace, "stacks_of", lambda pid, *, children: asked_pids.append(pid) or {})
    assert asked(session).notes == (
        "all processes with steps have ended: the script's stacks are read by py-spy",
    )
    assert asked_pids == [os.getpid()]
