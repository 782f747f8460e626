"""Session directories: made, listed, found; what is wrong with them is said."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from session_logs import append, head, line, new_session, step, written

from tuiprof.errors import SessionError, UsageProblem
from tuiprof.session.live.listing import list_sessions
from tuiprof.session.live.replay import Live, read_fold
from tuiprof.session.run.control import request_stop
from tuiprof.session.store.folders import (
    RecorderLock,
    Session,
    create,
    find_session,
    sessions_root,
)
from tuiprof.session.store.meta import LABELS_FILE, Labels, add_note, read_labels, set_tags
from tuiprof.system import process
from tuiprof.system.process import Processes, ProcessId


def test_root_is_option_then_variable_then_user_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUIPROF_SESSIONS", str(tmp_path / "variable"))
    assert sessions_root(tmp_path / "option") == tmp_path / "option"
    assert sessions_root() == tmp_path / "variable"
    monkeypatch.delenv("TUIPROF_SESSIONS")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert sessions_root() == tmp_path / "data" / "tuiprof" / "sessions"


def test_sessions_of_one_second_get_directories_of_their_own(tmp_path: Path) -> None:
    first = new_session(tmp_path, "a name/with: odd \x1b[31m parts")
    second = create(tmp_path, first.meta)
    assert first.path != second.path
    assert second.id.startswith(first.id)
    assert set(first.id) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._")
    assert first.meta == Session(first.path).meta


def test_newer_schema_is_named(tmp_path: Path) -> None:
    session = new_session(tmp_path)
    content = msgspec.json.decode((session.path / "session.json").read_bytes())
    (session.path / "session.json").write_bytes(msgspec.json.encode({**content, "v": 99, "argv": {"new": 1}}))
    with pytest.raises(SessionError, match=r"newer tuiprof \(session schema 99, this one reads 1\).*upgrade"):
        Session(session.path)
    [listed] = list_sessions(tmp_path)
    assert listed.state == "unreadable"
    assert "newer tuiprof" in listed.detail


DEEP = b"[" * 100_000


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"v": 1}', b'{"v": "x"}', b"\xff", DEEP])
def test_damaged_metadata_is_named(tmp_path: Path, content: bytes) -> None:
    session = new_session(tmp_path)
    (session.path / "session.json").write_bytes(content)
    with pytest.raises(SessionError, match=r"session\.json is damaged"):
        Session(session.path)


@pytest.mark.parametrize(("field", "value"), [("unix_ns", 10**30), ("unix_ns", -1), ("mono_ns", 1 << 63)])
def test_numbers_beyond_any_clock_are_damage(tmp_path: Path, field: str, value: int) -> None:
    session = new_session(tmp_path)
    content = json.loads((session.path / "session.json").read_bytes())
    (session.path / "session.json").write_text(json.dumps({**content, field: value}))
    with pytest.raises(SessionError, match=rf"session\.json is damaged: .*{field}"):
        Session(session.path)


def test_a_pipe_and_a_device_hold_nobody_up(tmp_path: Path) -> None:
    session = new_session(tmp_path)
    for path in (session.log / "rank0.jsonl", session.log / "recorder.jsonl", session.path / "labels.json"):
        os.mkfifo(path)
    assert [summary.state for summary in list_sessions(tmp_path)] == ["running"]
    assert len(read_fold(session).writers) == 0
    assert read_labels(session.path) == Labels()
    (session.path / "session.json").unlink()
    (session.path / "session.json").symlink_to("/dev/zero")
    with pytest.raises(SessionError, match="not a regular file"):
        Session(session.path)


def test_a_session_is_its_users_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        session = new_session(tmp_path)
    finally:
        os.umask(before)
    assert session.path.stat().st_mode & 0o777 == 0o700


def test_traces_are_those_that_are_there(tmp_path: Path) -> None:
    session = new_session(tmp_path)
    (session.path / "traces" / "gone.pt.trace.json").symlink_to("nowhere")
    whole = session.path / "traces" / "rank0.1.pt.trace.json"
    whole.touch()
    assert session.traces() == [whole]


def test_traces_that_are_written_twice_count_once(tmp_path: Path) -> None:
    session = new_session(tmp_path)
    folder = session.path / "traces" / "plugins" / "profile" / "2026_11_26"
    folder.mkdir(parents=True)
    names = (
        "vm.xplane.pb",
        "vm.trace.json.gz",
        "other.trace.json.gz",
        "rank0.pt.trace.json",
        "rank0.pt.trace.json.gz",
    )
    for name in names:
        (folder / name).touch()
    assert {path.name for path in session.traces()} == {names[0], names[2], names[3]}


def test_unknown_fields_are_ignored(tmp_path: Path) -> None:
    session = new_session(tmp_path)
    content = msgspec.json.decode((session.path / "session.json").read_bytes())
    (session.path / "session.json").write_bytes(msgspec.json.encode({**content, "mood": "good"}))
    assert Session(session.path).meta == session.meta


def test_not_a_session(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="is not a tuiprof session"):
        Session(tmp_path)


def test_root_without_permission(tmp_path: Path) -> None:
    # A file where a directory is needed fails for root too, who may write anywhere.
    (tmp_path / "file").write_text("")
    with pytest.raises(SessionError, match="cannot create"):
        new_session(tmp_path / "file" / "sessions")
    tmp_path.chmod(0o500)
    if os.geteuid() != 0:
        with pytest.raises(SessionError, match="no permission to create"):
            new_session(tmp_path / "sessions")
        return
    # As somebody else, in a process of its own.
    code = (
        "import os, sys; from pathlib import Path; from session_logs import new_session\n"
        "os.setuid(65534); new_session(Path(sys.argv[1]))"
    )
    run = [sys.executable, "-c", code, str(tmp_path / "sessions")]
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    said = subprocess.run(run, capture_output=True, text=True, check=False, env=here).stderr
    assert "no permission to create" in said
    assert "--sessions" in said


def test_two_recorders_are_refused_across_processes(tmp_path: Path) -> None:
    session = new_session(tmp_path)
    lock = RecorderLock(session.control)
    code = (
        "import sys; from pathlib import Path; from tuiprof.session.store.folders import RecorderLock\n"
        "RecorderLock(Path(sys.argv[1]))"
    )
    run = [sys.executable, "-c", code, str(session.control)]
    assert (
        "is already being recorded" in subprocess.run(run, capture_output=True, text=True, check=False).stderr
    )
    lock.release()
    assert subprocess.run(run, check=False).returncode == 0


def _ran_by(session: Session, supervisor: ProcessId, script: ProcessId | None) -> None:
    who = Processes(supervisor, script, process.pid_namespace())
    (session.control / "process.json").write_bytes(msgspec.json.encode(who))


def test_status_is_not_fooled_by_a_reused_process_number(tmp_path: Path) -> None:
    session = new_session(tmp_path)
    own = process.identify(os.getpid())
    assert own is not None
    _ran_by(session, own, None)
    assert str(session.status()) == "running"
    _ran_by(session, ProcessId(own.pid, "1"), None)
    assert session.status().state == "interrupted"
    _ran_by(session, ProcessId(own.pid, "1"), own)
    assert str(session.status()) == "running (recorder lost)"


@pytest.mark.parametrize("gone", ["control/process.json", "log/recorder.jsonl", "log/rank0.jsonl", "."])
def test_status_of_a_run_amid_the_deletion_of_its_session(tmp_path: Path, gone: str) -> None:
    session = new_session(tmp_path, age_s=60)
    for writer in ("recorder", "rank0"):
        append(session, writer, head(session, writer))
    own = process.identify(os.getpid())
    assert own is not None
    _ran_by(session, own, own)
    with closing(Live(session)) as live, open(session.log / "recorder.jsonl", "ab") as log:
        live.advance()
        assert str(live.status()) == "running"
        if gone == ".":
            shutil.rmtree(session.path)
        else:
            (session.path / gone).unlink()
        assert str(live.status()) == "running (the session was deleted)"
        log.write(line("end", at=2_000, code=7, why="exit"))
        log.flush()
        assert live.status().code == 7


def test_the_run_of_another_user_that_lost_its_recorder_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = new_session(tmp_path)
    own = process.identify(os.getpid())
    assert own is not None
    _ran_by(session, ProcessId(own.pid, "1"), own)

    def refused(group: int, number: int) -> None:
        assert group == own.pid
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "killpg", refused)
    with pytest.raises(SessionError, match="another user"):
        request_stop(session)


def test_whom_to_signal_is_not_read_outside_of_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = new_session(tmp_path)
    own = process.identify(os.getpid())
    assert own is not None
    _ran_by(session, own, own)
    session.control.rename(tmp_path / "elsewhere")
    session.control.symlink_to(tmp_path / "elsewhere")
    sent: list[object] = []
    monkeypatch.setattr(os, "kill", lambda *what: sent.append(what))
    monkeypatch.setattr(os, "killpg", lambda *what: sent.append(what))
    for firm in (False, True):
        with pytest.raises(SessionError):
            request_stop(session, firm=firm)
    assert sent == []


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ({"code": 0}, "finished"),
        ({"code": 3}, "failed (exit 3)"),
        ({"signal": 9}, "failed (SIGKILL)"),
        ({"signal": 2, "why": "stopped"}, "stopped"),
        ({"code": 0, "why": "stopped"}, "stopped"),
    ],
)
def test_status_tells_how_it_ended(tmp_path: Path, end: dict[str, object], expected: str) -> None:
    session = new_session(tmp_path, age_s=100)
    append(session, "recorder", head(session, "recorder"), line("end", at=5, **end))
    assert str(session.status()) == expected


def test_without_a_recorder_the_probe_tells_how_it_ended(tmp_path: Path) -> None:
    session = new_session(tmp_path, age_s=100)
    _ran_by(session, ProcessId(1, "0"), ProcessId(1, "0"))
    append(session, "recorder", head(session, "recorder"))
    append(session, "rank0", head(session), step(0), line("end", at=5))
    assert str(session.status()) == "finished (recorder lost)"
    append(session, "rank1", head(session, "rank1"), step(0))
    assert session.status().state == "interrupted"
    append(session, "rank1", line("end", at=5, code=1, why="ValueError: x"))
    assert str(session.status()) == "failed (exit 1, ValueError: x, recorder lost)"


def test_list_and_find(tmp_path: Path) -> None:
    assert list_sessions(tmp_path / "nowhere") == []
    with pytest.raises(UsageProblem, match="there are no sessions"):
        find_session(tmp_path, "last")
    old = new_session(tmp_path, "metrics-naive", age_s=3600)
    steps = (step(n, 1_000_000 + n) for n in range(5))
    new = written(tmp_path, *steps, step(5, 9_000_000, cap=True), name="train", age_s=60)
    (tmp_path / "a file").write_text("")
    (tmp_path / "a folder").mkdir()
    listed = list_sessions(tmp_path)
    assert [summary.id for summary in listed] == [new.id, old.id]
    assert (listed[0].steps, listed[0].median_ns, listed[0].duration_ns) == (6, 1_000_002, 6_000_000)
    assert [summary.state for summary in listed] == ["interrupted", "interrupted"]
    assert list_sessions(tmp_path, known={new.id: listed[0]})[0] is listed[0]
    for text in (str(new.path), new.id, new.id[:18], "train", "last"):
        assert find_session(tmp_path, text).path == new.path
    assert find_session(tmp_path, "last~0").path == new.path
    assert find_session(tmp_path, "last~1").path == old.path
    with pytest.raises(UsageProblem, match=r"no session 'last~2'.* contains 2"):
        find_session(tmp_path, "last~2")
    with pytest.raises(UsageProblem, match="did you mean 'metrics-naive'"):
        find_session(tmp_path, "metrics-niave")
    with pytest.raises(UsageProblem, match="2 sessions begin with"):
        find_session(tmp_path, "2")


def test_a_thousand_sessions_are_listed_at_once(tmp_path: Path) -> None:
    text = b"".join(step(n) for n in range(300))
    for index in range(100):
        session = written(tmp_path, text, age_s=index * 60)
        append(session, "recorder", head(session, "recorder"), line("end", at=5, code=0))
    before = time.process_time()
    listed = list_sessions(tmp_path)
    each_s = (time.process_time() - before) / 100
    assert all(summary.state == "finished" and summary.steps == 300 for summary in listed)
    assert each_s < 0.005  # a thousand in a second or two even on a busy machine


def test_tags_and_notes_are_kept_apart_from_what_was_recorded(tmp_path: Path) -> None:
    session = new_session(tmp_path)
    before = (session.path / "session.json").read_bytes()
    assert read_labels(session.path) == Labels()
    set_tags(session.path, "#baseline, h200  baseline")
    add_note(session.path, " the loader was on NFS ", step=12)
    labels = add_note(session.path, "second")
    assert labels == read_labels(session.path)
    assert labels.tags == ("baseline", "h200")
    assert [note.text for note in labels.notes] == ["the loader was on NFS", "second"]
    assert labels.notes[0].step == 12
    assert "#h200" in labels.words
    assert "NFS" in labels.words
    assert set_tags(session.path, "").tags == ()
    assert (session.path / "session.json").read_bytes() == before


def test_what_is_no_tag_or_note_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    session = new_session(tmp_path)
    set_tags(session.path, "kept")
    with pytest.raises(UsageProblem, match="is not a valid tag"):
        set_tags(session.path, "a/b")
    with pytest.raises(UsageProblem):
        add_note(session.path, "  ")
    assert read_labels(session.path).tags == ("kept",)


def test_a_damaged_file_hides_nothing_else(tmp_path: Path) -> None:
    session = new_session(tmp_path)
    (session.path / LABELS_FILE).write_text("{")
    assert read_labels(session.path) == Labels()
    with pytest.raises(SessionError, match="is damaged — repair it"):
        add_note(session.path, "would take the place of what can still be mended")
    assert (session.path / LABELS_FILE).read_text() == "{"
