"""Going to any moment of a run takes the same short reading in a run of any length."""

from __future__ import annotations

from pathlib import Path

import pytest
from session_logs import append, head, line, new_session, step, written
from waiting import until

from tuiprof.session.live import replay as replay_module
from tuiprof.session.live import tail
from tuiprof.session.live.replay import Live, Replay, read_fold
from tuiprof.session.live.tail import LogFile
from tuiprof.session.store.folders import Session

MS = 1_000_000
STEPS = 40_000


@pytest.fixture
def long_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setattr(replay_module, "KEEP_BYTES", 1 << 18)
    monkeypatch.setattr(replay_module, "BLOCK", 1 << 16)
    monkeypatch.setattr(tail, "BLOCK", 1 << 16)
    return written(tmp_path, *(step(n) for n in range(STEPS)))


def test_a_place_in_a_log_is_found_by_its_time(long_run: Session) -> None:
    file = LogFile(long_run.log / "rank0.jsonl")
    data = file.path.read_bytes()
    for n in (0, 1, 777, 20_000, STEPS - 1, STEPS + 5):
        at = 1_000 + (n + 1) * MS
        place = file.position_of(at)
        assert place <= data.find(b'"n": %d,' % n) or n >= STEPS
        assert place >= 0
    assert file.position_of(0) == 0


def test_a_jump_back_shows_that_moment_and_reads_little(
    long_run: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = Replay(long_run)
    replay.paused = True
    read: list[int] = []
    decode = LogFile._decode
    monkeypatch.setattr(
        LogFile, "_decode", lambda self, block: (read.append(len(block)), decode(self, block))[1]
    )
    for t_ms in (STEPS, 20_000, 35_000, 100, 30_000):
        read.clear()
        replay.seek(t_ms * MS)
        replay.advance(1 << 16)
        lead = replay.fold.lead
        assert lead is not None
        assert lead.steps.last_n == t_ms - 1
        assert sum(read) < 1 << 20
        assert lead.head is not None
    # Small steps forward go on from where it stands.
    fold = replay.fold
    replay.seek(30_100 * MS)
    replay.advance()
    assert replay.fold is fold
    assert fold.lead is not None
    assert fold.lead.steps.last_n == 30_099
    replay.close()


def test_what_was_printed_until_then_is_known(tmp_path: Path) -> None:
    session = new_session(tmp_path)
    append(
        session,
        "recorder",
        head(session, "recorder", rank=None),
        line("out", at=1_000 + 5 * MS, out=100, err=0),
        line("out", at=1_000 + 9 * MS, out=250, err=7),
    )
    assert read_fold(session).printed == (250, 7)
    replay = Replay(session)
    replay.paused = True
    replay.seek(6 * MS)
    replay.advance()
    assert replay.fold.printed == (100, 0)
    replay.seek(2 * MS)
    replay.advance()
    assert replay.fold.printed is None
    replay.close()


def test_a_replay_can_be_extended_by_what_came_since(tmp_path: Path) -> None:
    session = written(tmp_path, *(step(n) for n in range(10)))
    replay = Replay(session)
    assert replay.duration_ns == 10 * MS
    append(session, "rank0", *(step(n) for n in range(10, 20)))
    replay.extend()
    assert replay.duration_ns == 20 * MS


def test_a_huge_log_shows_its_end_first_and_then_all(
    long_run: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_module, "_START_DELAY_S", 0.0)
    live = Live(long_run, tail_bytes=1 << 17)
    assert live.advance()
    lead = live.fold.lead
    assert lead is not None
    assert lead.steps.last_n == STEPS - 1
    assert len(lead.steps) < 5_000  # the end alone

    def all_is_read() -> bool:
        live.advance()
        return live.read_share == 1

    until(all_is_read, "all of the log")
    lead = live.fold.lead
    assert lead is not None
    assert len(lead.steps) == STEPS
    append(long_run, "rank0", step(STEPS))
    assert live.advance()
    assert lead.steps.last_n == STEPS
    live.close()


def test_reading_the_rest_can_be_given_up(long_run: Session) -> None:
    live = Live(long_run, tail_bytes=1 << 17)
    live.advance()
    assert live.read_share < 1
    live.close()


def test_a_small_log_is_read_from_its_beginning(tmp_path: Path) -> None:
    session = written(tmp_path, *(step(n) for n in range(10)))
    live = Live(session, tail_bytes=1 << 17)
    assert live.read_share == 1
    live.advance()
    assert live.fold.lead is not None
    assert len(live.fold.lead.steps) == 10
    live.close()
