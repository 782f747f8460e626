"""The process that runs a ladder in the background and outlives the one that started it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Final

import msgspec

from tuiprof.errors import SessionError
from tuiprof.ladder.resuming import must_be_own
from tuiprof.ladder.state import LadderRun
from tuiprof.system import process
from tuiprof.system.files import explain, is_own, read_end, read_small_json, write_inside
from tuiprof.system.own_process import module_command, module_environment

#: In ``control``: the process that runs the ladder.
RUNNER_FILE: Final = "runner.json"
#: What it printed, should it fail; the last line is shown.
RUNNER_LOG: Final = "runner.log"
_LAST_BYTES: Final = 8192


class Runner(msgspec.Struct, frozen=True):
    """``control/runner.json``."""

    who: process.ProcessId  # the process
    #: Where its process number is valid (:func:`tuiprof.system.process.pid_namespace`).
    pid_namespace: str = msgspec.field(name="place")


def note_runner(ladder: LadderRun, pid: int | None = None) -> None:
    """Store which process runs a ladder."""
    who = process.identify(os.getpid() if pid is None else pid)
    if who is not None:
        runner = Runner(who, process.pid_namespace())
        with contextlib.suppress(SessionError):  # then it cannot be stopped from another terminal
            write_inside(ladder.path / "control", RUNNER_FILE, msgspec.json.encode(runner))


def runner_of(ladder: Path) -> Runner | None:
    """Return the process that runs a ladder now; None = none, as far as this machine knows."""
    runner = read_small_json(ladder / "control" / RUNNER_FILE, Runner)
    if runner is None or runner.pid_namespace != process.pid_namespace() or not process.alive(runner.who):
        return None
    return runner


def start_in_background(ladder: LadderRun) -> subprocess.Popen[bytes]:
    """Run the remaining trials of a ladder in the background.

    Returns:
        The process; it goes on when this one ends.

    Raises:
        SessionError: It cannot be started, or may belong to another user.
    """
    must_be_own(ladder)
    command = module_command("tuiprof", "ladder", "--resume", str(ladder.path), "--quiet", "-o", os.devnull)
    log = ladder.path / "control" / RUNNER_LOG
    try:
        with open(log, "wb") as out:
            child = subprocess.Popen(
                command,
                cwd=ladder.meta.cwd,
                env=module_environment(),  # not what this process alone was given for its own libraries
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise explain(error, log, "write") from error
    note_runner(ladder, child.pid)  # as it will itself, once it has begun
    # The screen that started it may be closed when it ends; the thread reaps the process.
    threading.Thread(target=child.wait, name="ladder-runner", daemon=True).start()
    return child


def stop_runner(ladder: Path) -> bool:
    """Ask what runs a ladder to stop (once = after the current trial, twice = at once); return whether it ran."""
    runner = runner_of(ladder)
    if runner is None or not is_own(ladder / "control" / RUNNER_FILE):
        return False
    try:
        os.kill(runner.who.pid, signal.SIGINT)
    except OSError:  # it has just ended
        return False
    return True


def last_words(ladder: Path) -> str:
    """Return the last line that the process printed; empty = none."""
    text = read_end(ladder / "control" / RUNNER_LOG, _LAST_BYTES).decode(errors="replace")
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
