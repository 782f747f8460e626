"""The script's output: whole when passed through, harmless when shown."""

from __future__ import annotations

import io
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session_logs import new_session

from tuiprof.session.store.output import LONGEST_LINE, OutputReader, Tee, last_lines, safe_line


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"loss 0.1", "loss 0.1"),
        ("größe ▇".encode(), "größe ▇"),
        (b"\x1b[1;31mred\x1b[0m", "red"),
        (b"\x1b]0;title\x07text\x1b]8;;http://x\x1b\\link", "textlink"),
        (b"\x1b]52;c;aGVsbG8=", ""),
        (b" 10%|#   |\r 50%|##  |\r100%|####|\r", "100%|####|"),
        (b"a\tb", "a       b"),
        (b"\x00\x07\xff", "\ufffd\ufffd\ufffd"),
        ("\u202eevil \u009b31m".encode(), "\ufffdevil"),
        (b"[bold]markup[/]", "[bold]markup[/]"),
        (b"Total params: 9.9 K          ", "Total params: 9.9 K"),
    ],
)
def test_safe_line(raw: bytes, shown: str) -> None:
    assert safe_line(raw) == shown


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=200)
    | st.text(alphabet="\x1b\x9b[]m;0P\\\x07\r\u202e\u2028x", max_size=40).map(str.encode)
)
def test_nothing_shown_can_command_a_terminal(raw: bytes) -> None:
    assert not [char for char in safe_line(raw) if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp")]
    assert len(safe_line(raw * 500)) <= LONGEST_LINE + 10


def test_marks_of_the_profiler_are_kept_and_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "stderr.log"
    mark = b"USDT:2026-11-22 03:54:39 21734:21734 SyncActivityProfilerHandler.cpp:52] profiler_start\n"
    path.write_bytes(b"loss\n" + mark + b"USDT:2026 is mine\nlast\n\n" + mark)
    reader = OutputReader(path)
    assert reader.poll() == ["loss", "USDT:2026 is mine", "last", ""]
    reader.close()
    assert last_lines(path) == ["last"]
    assert last_lines(path, 2) == ["USDT:2026 is mine", "last"]
    assert last_lines(tmp_path / "none") == []


def test_of_a_progress_bar_below_another_only_the_last_state_is_shown(tmp_path: Path) -> None:
    """As tqdm writes them: an evaluation (``position=1``) below the bar of the training."""
    path = tmp_path / "stderr.log"
    reader = OutputReader(path)
    up = b"\x1b[A"
    with open(path, "wb", buffering=0) as file:
        file.write(
            b"\r 30%|###| 60/200" + b"".join(b"\n\r%3d%%|#| %d/25" % (4 * n, n) + up for n in range(1, 9))
        )
        assert (reader.poll(), reader.unfinished) == ([" 30%|###| 60/200"], " 32%|#| 8/25")
        file.write(b"\n\r 36%|#| 9/25" + up)
        assert (reader.poll(), reader.unfinished) == ([], " 36%|#| 9/25")
        file.write(b"\r      \r\n\r      \r" + up + b"\r 31%|###| 61/200")
        assert (reader.poll(), reader.unfinished) == ([], " 31%|###| 61/200")
    reader.close()


def test_a_mark_of_the_profiler_within_a_progress_bar_does_not_end_its_line(tmp_path: Path) -> None:
    path = tmp_path / "stderr.log"
    mark = b"USDT:2026-11-22 03:54:39 21734:21734 SyncActivityProfilerHandler.cpp:52] profiler_start\n"
    path.write_bytes(b"\r 13%|#| 26/200" + mark + b"\r 15%|#| 30/200")
    reader = OutputReader(path)
    assert (reader.poll(), reader.unfinished) == ([], " 15%|#| 30/200")
    reader.close()


def test_lines_are_followed(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    reader = OutputReader(path, tail_bytes=1000)
    assert reader.poll() == []
    with open(path, "wb", buffering=0) as file:
        file.write(b"".join(b"old %d\n" % n for n in range(1000)))
        lines = reader.poll()
        assert lines[-1] == "old 999"
        assert 100 < len(lines) < 130
        assert lines[0].startswith("old ")
        file.write(b"epoch 1: 10%\r")
        assert (reader.poll(), reader.unfinished) == ([], "epoch 1: 10%")
        file.write(b"epoch 1: 20%")
        assert (reader.poll(), reader.unfinished) == ([], "epoch 1: 20%")
        file.write(b"\nnext\n")
        assert (reader.poll(), reader.unfinished) == (["epoch 1: 20%", "next"], "")
        file.write(b"x" * 50_000 + b"\n" + b"flood\n" * 100_000 + b"end\n")
        lines = reader.poll(max_bytes=10_000)
        assert (lines[-1], len(lines) < 2000) == ("end", True)
    reader.close()


def test_tee_passes_every_byte(tmp_path: Path) -> None:
    session = new_session(tmp_path)
    out, err = io.BytesIO(), io.BytesIO()
    tee = Tee(session, out, err)
    assert not tee.pump()
    everything = bytes(range(256)) * 1000
    session.stdout.write_bytes(everything)
    assert tee.pump()
    session.stderr.write_bytes(b"oops")
    assert tee.pump()
    assert not tee.pump()
    tee.close()
    assert (out.getvalue(), err.getvalue()) == (everything, b"oops")
