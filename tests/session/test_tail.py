"""Logs read while they grow, damaged, or written by others."""

from __future__ import annotations

import math
import os
from contextlib import closing
from pathlib import Path

from session_logs import append, head, line, new_session, step, written

from tuiprof.session.live.replay import read_fold
from tuiprof.session.live.summary import summarise
from tuiprof.session.live.tail import LogReader
from tuiprof.session.log import Head, Record, Step
from tuiprof.session.store.output import OutputReader


def poll(reader: LogReader, max_bytes: int = 1 << 20) -> list[tuple[str, Record]]:
    return [(batch.writer, record) for batch in reader.poll_batches(max_bytes) for record in batch.records]


STEP = b'{"t":"step","n":%d,"at":5000,"dur":1000000,"ph":{"forward":300000,"backward":500000}}\n'


def test_partial_last_lines_wait_for_their_rest(tmp_path: Path) -> None:
    session = new_session(tmp_path)
    whole = head(session) + step(0) + step(1)
    with closing(LogReader(session)) as reader:
        assert poll(reader) == []
        seen = []
        for cut in range(0, len(whole), 7):
            append(session, "rank0", whole[cut : cut + 7])
            seen += poll(reader)
        assert [type(record) for _, record in seen] == [Head, Step, Step]
        assert reader.behind == 0
        append(session, "rank0", step(2)[:-3])  # a writer killed within a line
        assert poll(reader) == []
        assert reader.behind == 0
        append(session, "recorder", head(session, "recorder"))  # a writer that appears later
        assert [writer for writer, _ in poll(reader)] == ["recorder"]
        assert not reader.problems


def test_records_of_a_delayed_frame_come_in_batches_of_the_usual_size(tmp_path: Path) -> None:
    session = written(tmp_path, *map(step, range(8000)), b'{"t":"step","n":')
    with closing(LogReader(session)) as reader:
        batches = [batch.records for batch in reader.poll_batches()]
        assert max(map(len, batches)) < 1000
        assert [record.n for records in batches for record in records if isinstance(record, Step)] == list(
            range(8000)
        )
        assert (reader.behind, reader.problems) == (0, [])


def test_foreign_and_damaged_lines_are_counted_and_the_rest_read(tmp_path: Path) -> None:
    session = new_session(tmp_path)
    lines = (
        head(session),
        step(0, future="field"),
        line("hologram", at=3),
        b'{"no": "type"}\n',
        b"\xff\xfe not text\n",
        b"\x00" * 100 + b"\n",
        b'{"t":"step","n":"one","at":2,"dur":3}\n',
        b"[" * 5000 + b"\n",
        b"\n",
        line("step", n=1, at=2, dur=3, v={"loss": math.nan, "lr": math.inf}),
    )
    append(session, "rank0", *lines)
    with closing(LogReader(session)) as reader:
        records = [record for _, record in poll(reader)]
        assert len(records) == 3
        assert reader.problems == ["4 lines of log/rank0.jsonl cannot be read and are skipped"]
        last = records[-1]
        assert isinstance(last, Step)
        assert math.isnan(last.v["loss"])
        assert math.isinf(last.v["lr"])


def test_what_cannot_be_read_is_said_and_holds_nobody_up(tmp_path: Path) -> None:
    session = written(tmp_path, step(0), b"damaged\n", step(1), b"damaged, too\n", age_s=60)
    (session.log / "rank1.jsonl").mkdir()
    os.mkfifo(session.log / "rank2.jsonl")
    (session.log / "rank3.jsonl").symlink_to("/dev/zero")
    for output in (session.stdout, session.stderr):
        output.unlink(missing_ok=True)
        os.mkfifo(output)
        reader = OutputReader(output)
        assert reader.poll() == []
        reader.close()
    fold = read_fold(session)
    assert fold.lead is not None
    assert len(fold.lead.steps) == 2
    assert fold.problems == [
        "2 lines of log/rank0.jsonl cannot be read and are skipped",
        "log/rank1.jsonl cannot be read: Is a directory",
        "log/rank2.jsonl cannot be read: it is not a regular file",
        "log/rank3.jsonl cannot be read: it is not a regular file",
    ]
    assert set(fold.problems) <= set(summarise(session).notes)


def test_reading_in_small_pieces_gives_the_same(tmp_path: Path) -> None:
    session = written(tmp_path, *(step(n) for n in range(200)))
    with closing(LogReader(session)) as whole, closing(LogReader(session)) as pieces:
        expected = poll(whole)
        found = []
        while got := poll(pieces, 100) or pieces.behind:
            found += got if isinstance(got, list) else []
        assert found == expected


def test_the_end_of_a_huge_log_comes_first(tmp_path: Path) -> None:
    session = written(tmp_path, b"".join(STEP % n for n in range(60_000)))
    with closing(LogReader(session, tail_bytes=10_000)) as reader:
        records = [record for _, record in poll(reader)]
    numbers = [record.n for record in records if isinstance(record, Step)]
    assert isinstance(records[0], Head)
    assert numbers == list(range(numbers[0], 60_000))
    assert 80 < len(numbers) < 200


def test_a_wall_clock_that_jumps_disorders_nothing(tmp_path: Path) -> None:
    session = new_session(tmp_path)
    meta = session.meta
    jumped = meta.unix_ns - 3600_000_000_000
    with closing(LogReader(session)) as reader:
        same = Head(1, "rank0", 1, unix_ns=jumped, mono_ns=meta.mono_ns + 5, boot=meta.boot)
        assert reader.clock.offset_ns(same) == -meta.mono_ns
        # Another machine has another monotonic clock; only the wall clock is common.
        other = Head(1, "rank8", 1, unix_ns=meta.unix_ns + 50, mono_ns=7_000_000, boot="elsewhere")
        assert other.mono_ns + reader.clock.offset_ns(other) == 50
