"""A real terminal that others write to, that changes its size, and that the shell takes and gives back."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from terminals import InTerminal, in_terminal

from tests import real_traces
from tuiprof.session.run.control import request_stop
from tuiprof.session.run.launch import wait
from tuiprof.session.store.folders import Session, session_dirs

TRACE = real_traces.SMALL
CTRL_L, CTRL_Z = "\x0c", "\x1a"
#: What programs leave behind: text in the way, a part that scrolls, inserting, line drawing for letters, wrapping.
MESS = (
    "\x1b[5;5Hmessage to all\x1b[1;4r\x1b[44m\x1b[2;1H"
    + "x" * 500
    + "\n" * 6
    + "\x1b[4h\x1b[?7h\x1b(0\x1b[?25h"
)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "tuiprof", *map(str, arguments)]


@contextmanager
def trace(columns: int, lines: int, **env: str) -> Iterator[InTerminal]:
    with in_terminal(command("open", TRACE), columns, lines, **env) as terminal:
        settle(terminal, "By operator", "stream 7", "lost to this finding", "M more")
        yield terminal


@pytest.fixture(scope="module")
def opened() -> Iterator[InTerminal]:
    """A trace on the screen; each test leaves it as it was."""
    with trace(120, 36) as terminal:
        yield terminal


def settle(terminal: InTerminal, *texts: str) -> None:
    """Wait until texts are shown and nothing more is written, but for a cursor that blinks."""
    terminal.until_shown(*texts)

    def quiet() -> bool:
        before = len(terminal.received)
        terminal.pump(0.4)
        return len(terminal.received) - before <= 200

    terminal.until(quiet)


def draw_anew(terminal: InTerminal) -> None:
    """Ask for everything to be drawn anew, and wait until that begins."""
    before = len(terminal.received)
    terminal.press(CTRL_L)
    terminal.until(lambda: len(terminal.received) - before > 100)


def picture(terminal: InTerminal) -> list[object]:
    screen = terminal.screen
    return [[screen.buffer[y][x] for x in range(screen.columns)] for y in range(screen.lines)]


def disturb(terminal: InTerminal) -> None:
    """Write to the terminal from another process, as ``wall`` does."""
    other_end = subprocess.check_output(["ps", "-o", "tty=", "-p", str(terminal.pid)], text=True).strip()
    assert other_end.strip("?")  # else a file of that name would be written
    subprocess.run(["sh", "-c", f'printf %s "$1" > /dev/{other_end}', "sh", MESS], check=True)
    terminal.until(lambda: not terminal.screen.cursor.hidden)  # the end of it


@pytest.mark.parametrize(
    ("keys", "shows"),
    [
        ("", "stream 7"),
        ("/", "text to search for"),  # a text field
        ("?", "esc closes"),  # a dialog over the screen
        ("\x10", "Search for commands"),  # the palette: a text field in a dialog
    ],
    ids=["screen", "text field", "dialog", "palette"],
)
def test_ctrl_l_draws_everything_anew(opened: InTerminal, keys: str, shows: str) -> None:
    fresh = picture(opened)
    if keys:
        opened.press(keys)
        settle(opened, shows)
    before = picture(opened)
    disturb(opened)
    opened.press(CTRL_L)
    opened.until(lambda: picture(opened) == before)
    assert opened.screen.margins is None
    assert not {4, 7 << 5} & set(opened.screen.mode)
    assert opened.screen.cursor.hidden
    if keys:
        opened.press("\x1b")
        opened.until(lambda: picture(opened) == fresh)


def test_a_key_of_the_configuration_draws_anew(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[keys]\n"app.draw_anew" = "f5"\n')
    with trace(100, 30, TUIPROF_CONFIG=str(config)) as terminal:
        before = picture(terminal)
        disturb(terminal)
        terminal.press("\x1b[15~")
        terminal.until(lambda: picture(terminal) == before)


def test_another_size_and_back_is_as_a_fresh_start() -> None:
    with trace(160, 48) as terminal:
        fresh = picture(terminal)
        terminal.resize(80, 24)
        settle(terminal, "By operator")
        with trace(80, 24) as other:
            other.until(lambda: terminal.pump(0.01) and picture(terminal) == picture(other))
        terminal.resize(160, 48)
        terminal.until(lambda: picture(terminal) == fresh)
        # Faster than anybody looks: what the terminal cut away on the way comes back.
        os.kill(terminal.pid, signal.SIGSTOP)
        terminal.resize(60, 20)
        terminal.resize(160, 48)
        os.kill(terminal.pid, signal.SIGCONT)
        terminal.until(lambda: picture(terminal) == fresh)


def test_what_goes_on_while_the_size_changes_leaves_nothing_behind(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import time, tuiprof\n"
        "for n in range(100_000):\n"
        "    time.sleep(0.005 + n % 7 / 500)\n"
        "    tuiprof.step(loss=1.0)\n"
        "    print('loss', n)\n"
    )
    run = command("--sessions", tmp_path / "s", "run", "--no-capture", "--", "python", script)
    with in_terminal(run, 160, 48) as terminal:
        terminal.until_shown("● running", "step time", "loss")
        for columns, lines in ((80, 24), (160, 48), (100, 30), (50, 16), (120, 36)) * 2:
            before = len(terminal.received)
            terminal.resize(columns, lines)
            terminal.until(lambda before=before: len(terminal.received) > before)  # type: ignore[misc]
        terminal.press(" ")
        settle(terminal, "paused")
        settle(terminal)  # what was under way when it was paused comes later on a crowded machine
        shown = picture(terminal)
        draw_anew(terminal)
        terminal.until(lambda: picture(terminal) == shown)
    (path,) = session_dirs(tmp_path / "s")
    request_stop(Session(path), firm=True)
    assert wait(Session(path), 30).over


def modes(terminal: InTerminal) -> list[object]:
    return termios.tcgetattr(terminal.fd)[:4]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[InTerminal]:
    """A shell that can put a job into the background."""
    with in_terminal(["bash", "--norc", "--noprofile", "-i"], 120, 36, PS1="prompt> ") as terminal:
        terminal.until_shown("prompt>")
        yield terminal


def test_to_the_shell_and_back(shell: InTerminal) -> None:
    own = modes(shell)
    shell.press(" ".join(command("open", TRACE)) + "\n")
    settle(shell, "By operator", "stream 7")
    before, as_set = picture(shell), modes(shell)
    shell.press(CTRL_Z)
    shell.until_shown("Stopped")
    shell.press("stty sane; clear; fg\n")
    shell.until(lambda: picture(shell) == before)
    assert modes(shell)[3] == as_set[3]  # neither echo nor lines
    shell.press("q")
    shell.until(lambda: modes(shell)[3] == own[3])
    shell.press("echo still  here\n")
    shell.until_shown("still here")


def test_stopped_without_a_word_and_gone_on(shell: InTerminal) -> None:
    own = modes(shell)
    shell.press(" ".join(command("open", TRACE)) + "\n")
    settle(shell, "By operator", "stream 7")
    before = picture(shell)
    job = os.tcgetpgrp(shell.fd)
    os.kill(job, signal.SIGSTOP)
    shell.until_shown("Stopped")
    shell.press("fg\n")
    shell.until(lambda: picture(shell) == before)
    shell.press("?")  # each key once, whole
    shell.until_shown("esc closes")
    shell.press("\x1b")
    shell.until(lambda: "esc closes" not in shell.text())
    shell.press("q")
    shell.until(lambda: modes(shell) == own)


#: It is told to go on while it hands something to the thread that writes.
_WRITING: Final = """
import os, signal
from textual.widgets import Static
from tuiprof.tui.terminal.terminal_app import TerminalApp

class Writing(TerminalApp):
    def compose(self):
        yield Static("ready")

    def key_w(self):
        with self._driver._writer_thread._queue.mutex:
            os.kill(os.getpid(), signal.SIGCONT)
        self.query_one(Static).update("went on")

Writing().run()
"""


def test_going_on_while_it_writes() -> None:
    with in_terminal([sys.executable, "-c", _WRITING]) as terminal:
        terminal.until_shown("ready")
        terminal.press("w")
        terminal.until_shown("went on")


def test_without_a_shell_it_stays(opened: InTerminal) -> None:
    opened.press(CTRL_Z)
    opened.until_shown("tuiprof cannot be suspended")


@pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")
def test_detached_and_attached_at_another_size(tmp_path: Path) -> None:
    socket = tmp_path / "tmux"
    tmux = ["tmux", "-f", "/dev/null", "-S", str(socket)]
    attach = [*tmux, "attach"]
    new = [*tmux, "new-session", *command("open", TRACE)]
    try:
        with in_terminal(new, 160, 48) as terminal:
            settle(terminal, "By operator", "stream 7", "lost to this finding", "M more")
            fresh = terminal.screen.display[:-1]  # the last line is tmux's own, with a clock
            terminal.press("\x02d")
            assert terminal.until_over() == 0
        with in_terminal(attach, 80, 24) as terminal:
            settle(terminal, "By operator")
            shown = terminal.text()
            draw_anew(terminal)
            terminal.until(lambda: terminal.text() == shown)
            terminal.press("\x02d")
            assert terminal.until_over() == 0
        with in_terminal(attach, 160, 48) as terminal:
            terminal.until(lambda: terminal.screen.display[:-1] == fresh)
    finally:
        subprocess.run([*tmux, "kill-server"], check=False, capture_output=True)


def test_ended_from_outside_it_gives_the_terminal_back() -> None:
    with trace(100, 30) as terminal:
        before = len(terminal.received)
        os.kill(terminal.pid, signal.SIGTERM)
        terminal.until(lambda: b"\x1b[?1049l" in terminal.received[before:])
        terminal.until(lambda: b"\x1b[?25h" in terminal.received[before:])
        assert b"\x1b[?1000l" in terminal.received[before:], "the mouse would type into the shell"
