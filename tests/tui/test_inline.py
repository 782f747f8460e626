"""A run under the prompt: seen in a real terminal, which is left as it was found."""

from __future__ import annotations

import io
import sys
import termios
from pathlib import Path

import pyte
import pytest
from synthetic import Synthetic
from terminals import InTerminal, in_terminal

from tuiprof.report import Terminal
from tuiprof.session.live.replay import read_fold
from tuiprof.session.run.control import request_stop
from tuiprof.session.run.launch import wait
from tuiprof.session.store.folders import Session, session_dirs
from tuiprof.tui.app.inline import Strip, strip_rows
from tuiprof.tui.widgets.lines import Row, row_width

_TRAIN = """
import sys, time, tuiprof
for n in range(int(sys.argv[1])):
    with tuiprof.phase("forward"):
        time.sleep(0.01)
    tuiprof.step(loss=1.0)
    if n % 20 == 0:
        print("loss of", n, "\\x1b[2J\\x1b]0;mine\\x07", flush=True)
print("trained")
sys.exit(3)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(_TRAIN)
    return path


def command(tmp_path: Path, script: Path, steps: int) -> list[str]:
    verb = ["run", "--inline", "--no-capture", "--", "python", str(script), str(steps)]
    return [sys.executable, "-m", "tuiprof", "--sessions", str(tmp_path / "s"), *verb]


def only_session(tmp_path: Path) -> Session:
    (path,) = session_dirs(tmp_path / "s")
    return Session(path)


def settings(terminal: InTerminal) -> list[object]:
    return termios.tcgetattr(terminal.fd)[:4]


def test_a_run_to_its_end(tmp_path: Path, script: Path) -> None:
    with in_terminal(command(tmp_path, script, 150)) as terminal:
        before = settings(terminal)
        terminal.until_shown("● running", "step time", "forward", "q leave it running")
        assert "loss of 0" in terminal.text()
        assert terminal.until_over() == 3
        shown = terminal.text()
        assert "trained\n\nSession" in shown
        assert "✗ train failed" in shown.replace("exit status 3", "")
        assert "150 steps" in shown
        assert "where a step goes" not in shown, "the strip must be gone"
        assert "q leave" not in shown
        assert settings(terminal) == before
        assert not terminal.screen.cursor.hidden
        for code in (b"\x1b[?1049h", b"\x1b[?1000h", b"\x1b[2J", b"\x1b]0;"):
            assert code not in terminal.received


@pytest.mark.parametrize("key", ["\x03", "q"])
def test_leaving_leaves_it_running(tmp_path: Path, script: Path, key: str) -> None:
    with in_terminal(command(tmp_path, script, 100_000)) as terminal:
        terminal.until_shown("● running", "step time")
        terminal.press(key)
        assert terminal.until_over() == 0
        assert "train continues to run." in terminal.text()
        assert "step time" not in terminal.text()
    session = only_session(tmp_path)
    assert not session.status().over
    request_stop(session, firm=True)
    assert wait(session, 20).over


def test_it_can_be_stopped(tmp_path: Path, script: Path) -> None:
    with in_terminal(command(tmp_path, script, 100_000)) as terminal:
        terminal.until_shown("● running", "step time")
        terminal.press("Q")
        assert terminal.until_over() == 130
        assert "stopped" in terminal.text() or "interrupted" in terminal.text()
    assert only_session(tmp_path).status().over


def test_without_a_terminal_it_says_what_to_use(tmp_path: Path, script: Path) -> None:
    import subprocess

    done = subprocess.run(command(tmp_path, script, 1), capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "tuiprof record" in done.stderr


@pytest.mark.parametrize("width", [40, 79, 200])
def test_the_lines_fit_and_are_few(tmp_path: Path, width: int) -> None:
    made = Synthetic(tmp_path, gpus=4).ran(20)
    rows = strip_rows(made.session, read_fold(made.session), made.session.status(), made.t_ns, width)
    assert 4 <= len(rows) <= 6
    assert all(row_width(row) <= width for row in rows)


def test_drawing_again_sends_what_changed_and_a_narrower_terminal_is_wiped() -> None:
    out = io.StringIO()
    strip = Strip(out, Terminal("none"))
    screen = pyte.Screen(40, 12)
    stream = pyte.Stream(screen)

    def show(rows: list[Row], above: list[str], width: int = 40) -> int:
        strip.show(rows, above, width)
        sent = out.getvalue()
        out.seek(0)
        out.truncate()
        stream.feed(sent.replace("\n", "\r\n"))
        return len(sent)

    def shown() -> list[str]:
        return [line.rstrip() for line in screen.display if line.strip()]

    show([[("one", "text")], [("two", "bad")]], ["printed"])
    assert shown() == ["printed", "one", "two"]
    assert show([[("ONE", "text")], [("two", "bad")]], []) < 20
    assert shown() == ["printed", "ONE", "two"]
    assert show([[("ONE", "text")], [("two", "bad")]], []) == 0
    show([[("a" * 38, "text")], [("b" * 38, "text")]], ["more"])
    assert shown() == ["printed", "more", "a" * 38, "b" * 38]
    strip.clear(40)
    stream.feed(out.getvalue())
    assert shown() == ["printed", "more"]


def test_ascii_and_no_colour() -> None:
    strip = Strip(io.StringIO(), Terminal("none", plain=True))
    painted = strip.painted([("● läuft ", "good"), ("▁▄█", "history")])
    assert painted == "* lauft .:#"
    assert "\x1b[32m" in Strip(io.StringIO(), Terminal("16")).painted([("● x", "good")])
