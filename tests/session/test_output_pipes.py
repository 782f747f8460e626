"""What a script prints reaches its session, and never fails it: full disks, killed processes, deleted folders."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from small_disk import small_disk
from waiting import running, until

from tuiprof.session.live.listing import summary_of
from tuiprof.session.live.replay import read_fold
from tuiprof.session.live.summary import summarise
from tuiprof.session.run import output_writer
from tuiprof.session.run.launch import LaunchSpec, start, wait
from tuiprof.session.store.folders import Session
from tuiprof.session.store.output import Counts, lost_output, read_counts, recording_problem
from tuiprof.session.store.status import Status, processes
from tuiprof.system.process import alive

Run = Callable[..., Session]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Start a script given as text, which waits for a file ``go`` where it calls ``told(name)``."""
    started: list[Session] = []

    def launch_text(source: str, root: Path | None = None) -> Session:
        script = tmp_path / "train.py"
        head = """
        import os, sys, time
        def told(name):
            while not os.path.exists(os.path.join(os.path.dirname(__file__), name)):
                time.sleep(0.01)
        """
        script.write_text(textwrap.dedent(head) + textwrap.dedent(source))
        started.append(start(LaunchSpec((str(script),), python=sys.executable, root=root or tmp_path / "s")))
        return started[-1]

    yield launch_text
    for session in started:
        who = processes(session)
        if who is not None and who.script is not None and alive(who.script):
            os.killpg(who.script.pid, signal.SIGKILL)


def both(session: Session) -> tuple[psutil.Process, psutil.Process]:
    """Return the supervisor and the script."""
    who = processes(session)
    assert who is not None
    assert who.script is not None
    return psutil.Process(who.supervisor.pid), psutil.Process(who.script.pid)


def writer_of(session: Session) -> psutil.Process:
    """Return the process that writes a session's output: it has its file open."""
    path = str(session.stdout)
    found: list[psutil.Process] = []

    def look() -> bool:
        found.extend(
            process
            for process in psutil.process_iter(["cmdline"])
            if output_writer.__file__ in (process.info["cmdline"] or ()) and path in _open_files(process)
        )
        return bool(found)

    until(look, "a process that writes the output")
    return found[0]


def _open_files(process: psutil.Process) -> list[str]:
    with suppress(OSError):
        return [os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{process.pid}/fd")]
    return []


def gone(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "1m") as disk:
        yield disk


def test_a_full_disk_fails_no_print_and_is_named(run: Run, tiny_disk: Path, tmp_path: Path) -> None:
    session = run(
        """
        print("the first line")
        for n in range(120_000):  # 12 MB
            print(f"{n:100}")
        print("all printed", file=sys.stderr)
        told("go")
        sys.exit(7)
        """,
        root=tiny_disk,
    )
    until(lambda: read_counts(session).waiting[1], "the end of what is printed")
    assert "No space left on device" in recording_problem(session)
    assert "No space left on device" in summary_of(session).detail
    (tmp_path / "go").touch()
    status = wait(session, 30)
    assert (status.state, status.code) == ("failed", 7)
    lost = read_counts(session).lost
    assert lost[0] > 8 << 20
    assert session.stdout.read_bytes().startswith(b"the first line\n")
    stdout = session.stdout.read_text()
    missing = re.findall(
        r"^\[tuiprof: (\d+) bytes of output are missing here: No space left", stdout, re.MULTILINE
    )
    assert sum(map(int, missing)) == lost[0]
    assert stdout.endswith(f"{119_999:100}\n"), "the newest lines are worth the most"
    assert session.stderr.read_text() == "all printed\n"
    assert "MiB of the output lost (No space left on device)" in lost_output(session)
    assert "of the output lost" in summary_of(session).detail
    assert any("of the output lost" in note for note in summarise(session).notes)
    assert read_fold(session).end is not None


def test_a_disk_that_was_full_for_a_while_loses_nothing(run: Run, tiny_disk: Path, tmp_path: Path) -> None:
    (tiny_disk / "filler").write_bytes(bytes(500 << 10))
    session = run(
        """
        for n in range(15_000):
            print(f"{n:99}")
        told("go")
        """,
        root=tiny_disk,
    )
    until(lambda: read_counts(session).why, "a full disk")
    (tiny_disk / "filler").unlink()
    grown = tiny_disk / "more"
    subprocess.run(("mount", "-o", "remount,size=8m", str(tiny_disk)), check=True)
    until(lambda: session.stdout.stat().st_size == 1_500_000, "all of the output")
    assert not grown.exists()
    assert read_counts(session) == Counts()
    assert recording_problem(session) == lost_output(session) == ""
    (tmp_path / "go").touch()
    assert wait(session, 30) == Status("finished", 0)
    assert session.stdout.read_text().splitlines() == [f"{n:99}" for n in range(15_000)]


_PRINTS = """
for n in range(900):
    print(n)
    if n == 300:
        print("ready", file=sys.stderr)
        told("go")
    time.sleep(0.0005)
"""


def test_the_writer_killed_or_stopped(run: Run, tmp_path: Path) -> None:
    session = run(_PRINTS)
    until(lambda: "ready" in session.stderr.read_text(), "half of the output")
    until(lambda: session.stdout.read_bytes().endswith(b"\n300\n"), "that half written")
    writer = writer_of(session)
    writer.suspend()
    until(lambda: writer.status() != psutil.STATUS_STOPPED, "a writer that goes on")
    writer.kill()
    (tmp_path / "go").touch()
    assert wait(session, 30) == Status("finished", 0)
    assert session.stdout.read_text().split() == [str(n) for n in range(900)]
    assert gone(writer)


def test_the_supervisor_killed(run: Run, tmp_path: Path) -> None:
    session = run(_PRINTS)
    until(lambda: "ready" in session.stderr.read_text(), "half of the output")
    supervisor, script = both(session)
    writer = writer_of(session)
    supervisor.kill()
    (tmp_path / "go").touch()
    until(lambda: gone(script), "the end of the script")
    until(lambda: gone(writer), "the end of the writer", 5.0)
    assert session.stdout.read_text().split() == [str(n) for n in range(900)]


@pytest.mark.skipif(sys.platform != "linux", reason="the script's own reading end needs Linux")
def test_supervisor_and_writer_killed_raise_nothing_in_the_script(run: Run, tmp_path: Path) -> None:
    done = tmp_path / "done"
    session = run(f"{_PRINTS}\nopen({str(done)!r}, 'w').write('trained')")
    until(lambda: "ready" in session.stderr.read_text(), "half of the output")
    supervisor, _ = both(session)
    writer = writer_of(session)
    supervisor.suspend()  # so that it starts no other
    writer.kill()
    supervisor.kill()
    (tmp_path / "go").touch()
    until(lambda: done.exists() and done.read_text() == "trained", "the end of the script")


def test_what_is_left_behind_goes_on_to_print(run: Run, tmp_path: Path) -> None:
    session = run(
        """
        if os.fork() == 0:
            told("go")
            print("from behind")
            os._exit(0)
        """
    )
    assert wait(session, 30) == Status("finished", 0)
    writer = writer_of(session)
    (tmp_path / "go").touch()
    until(lambda: session.stdout.read_text() == "from behind\n", "the line of the process left behind")
    until(lambda: gone(writer), "the end of the writer", 5.0)


def test_the_folder_deleted_underneath(run: Run, tmp_path: Path) -> None:
    session = run(_PRINTS)
    until(lambda: "ready" in session.stderr.read_text(), "half of the output")
    supervisor, script = both(session)
    shutil.rmtree(session.path)
    assert "was deleted" in recording_problem(session)
    (tmp_path / "go").touch()
    until(lambda: gone(script), "the end of the script")
    until(lambda: gone(supervisor), "the end of the supervisor", 5.0)
    assert not session.path.exists()


def test_a_disk_that_does_not_answer_holds_nobody_up(tmp_path: Path) -> None:
    # A pipe that nobody reads stands for it: a write to it never returns.
    ends = [os.pipe() for _ in range(4)]
    (out, into), (err, into_err), (_, stuck), (_, stuck_err) = ends
    counts = os.open(tmp_path / "counts", os.O_RDWR | os.O_CREAT)
    handed = (out, err, stuck, stuck_err, counts)
    os.set_blocking(out, False)
    os.set_blocking(err, False)
    command = [sys.executable, "-I", "-S", output_writer.__file__, *map(str, handed)]
    with running(command, pass_fds=handed) as writer:
        for number in (*handed, into_err):
            os.close(number)
        line = b"x" * 999 + b"\n"
        for _ in range(12_000):  # 12 MB, three times what waits in memory
            os.write(into, line)
        os.close(into)
        assert writer.wait(20) == 0


def test_standard_streams_are_no_terminals_and_can_be_opened_by_name(run: Run) -> None:
    session = run(
        """
        print(sys.stdout.isatty(), sys.stderr.isatty())
        with open("/dev/stdout", "w") as again:
            print("by name", file=again)
        """
    )
    assert wait(session, 30) == Status("finished", 0)
    assert session.stdout.read_text() == "False False\nby name\n"
