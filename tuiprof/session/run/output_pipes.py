"""Pipes for the script's output, so that recording it can never make the script fail.

Printing to a file fails on a full disk. Printing to a pipe fails if its read end is closed (SIGPIPE), and blocks if
nobody reads. Therefore:

- The script prints to two pipes, and a separate process (:mod:`~tuiprof.session.run.output_writer`) copies them to
  files. It is not the supervisor: no line is lost if the supervisor is killed, and processes left behind by the script
  can print after the supervisor has ended.
- The supervisor also holds the read ends open, without reading. It restarts a writer that was killed and continues one
  that was stopped; meanwhile a pipe buffers 1 MiB.
- On Linux, the script's ends are open for reading too, like a terminal. Even if supervisor and writer are both killed,
  printing raises neither a signal nor an error; it blocks once the pipe is full.
- If the pipes or the process cannot be created, the script prints directly to the files.

Programs buffer and colour output to pipes as they do to files. Unlike with files, lines longer than 4096 bytes that
several processes print at the same time may be interleaved.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import psutil

from tuiprof.errors import SessionError
from tuiprof.session.run import output_writer
from tuiprof.session.store.output import Counts
from tuiprof.system.files import explain, write_atomic

if TYPE_CHECKING:
    from tuiprof.session.store.folders import Session

_PIPE_BYTES: Final = 1 << 20
#: Minimum interval between starts of a writer.
_RESTART_S: Final = 1.0
_TICK_S: Final = 0.01
_WRITER: Final = Path(output_writer.__file__).resolve()


class OutputPipes:
    """The pipes of one script, and the process that reads them.

    ``out`` and ``err`` are descriptors for the script, which :meth:`close_script_ends` closes here.

    Raises:
        SessionError: The files cannot be opened.
    """

    def __init__(self, session: Session) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            self._files = [os.open(path, flags, 0o644) for path in (session.stdout, session.stderr)]
        except OSError as error:
            raise explain(error, session.stdout, "write") from error
        self._pipes: list[int] = []
        self._counts = -1
        self.pid: int | None = None  # process id of the writer; None = not running
        self._killed = False
        self._restart_s = 0.0  # earliest time of the next start
        self.problem = ""  # why the script prints directly to the files; empty = it prints to the pipes
        try:
            self._counts = _counts_file(session.control / "output.json")
            ends = [_pipe() for _ in self._files]
            self._pipes, (self.out, self.err) = [reading for reading, _ in ends], (end for _, end in ends)
            self._start()
        except OSError as error:
            self.problem = f"{error.strerror or error}"
            self.out, self.err = self._files

    def close_script_ends(self) -> None:
        """Close the script's ends in this process, after the script was started or failed to start."""
        os.close(self.out)
        os.close(self.err)

    @property
    def cpu_ns(self) -> int:
        """CPU time of the writer so far, ns."""
        with contextlib.suppress(psutil.Error):
            if self.pid is not None:
                times = psutil.Process(self.pid).cpu_times()
                return round((times.user + times.system) * 1e9)
        return 0

    def check(self, now_s: float) -> None:
        """Restart the writer if it was killed, and continue it if it was stopped."""
        if self.pid is None:
            return
        if not self._killed:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if not pid:
                return
            if os.WIFSTOPPED(status):
                os.kill(pid, signal.SIGCONT)
                return
            if os.waitstatus_to_exitcode(status) == 0:  # all write ends are closed
                self.pid = None
                return
            self._killed = True
        if now_s >= self._restart_s:
            self._restart_s = now_s + _RESTART_S
            with contextlib.suppress(OSError):  # the process limit is reached; try again later
                self._start()

    def finish(self, deadline_s: float) -> None:
        """Wait until all output is written, or until the deadline: leftover processes may print longer."""
        while True:
            self.check(time.monotonic())
            if self.pid is None or time.monotonic() >= deadline_s:
                return
            time.sleep(_TICK_S)

    def _start(self) -> None:
        descriptors = (*self._pipes, *self._files, self._counts)
        command = [sys.executable, "-I", "-S", str(_WRITER), *map(str, descriptors)]
        # In a session of its own, so that signals to the supervisor's process group do not reach it.
        writer = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=descriptors,
            start_new_session=True,
        )
        writer.returncode = 0  # :meth:`check` waits for it instead, because it must also notice a stop
        self.pid, self._killed = writer.pid, False


def _counts_file(path: Path) -> int:
    """Create the file of counts; return its descriptor."""
    content = msgspec.json.encode(Counts()).ljust(output_writer.RESERVE_BYTES - 1) + b"\n"
    try:
        with contextlib.suppress(SessionError):  # the disk is full
            write_atomic(path, content)
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)


def _pipe() -> tuple[int, int]:
    """Create a pipe; return its non-blocking read end, and the descriptor for the script."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # the user's limit of pipe buffers is reached
            fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    try:
        both = os.open(f"/proc/self/fd/{writing}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # not Linux, or no /proc
        return reading, writing
    os.close(writing)
    return reading, both
