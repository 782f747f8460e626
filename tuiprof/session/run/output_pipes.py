"""The output of a script on its way into the session, which must never make the script fail.

Printing to a file fails on a full disk, and with it the script. Printing into a pipe fails if its reading end is
closed (SIGPIPE), and blocks if it is not read. So:

- The script prints into two pipes. A process of its own (:mod:`~tuiprof.session.run.output_writer`) reads them and
  writes the files. It is not the supervisor, so that the supervisor may be killed without a line being lost, and so
  that processes left behind by the script can continue to print after the supervisor has ended.
- The supervisor keeps the reading ends, too, and never reads: while one of the two processes lives there is a reader.
  It starts another writer when one was killed, and wakes one that was stopped; a pipe holds a mebibyte meanwhile.
- Where Linux allows it, the script itself has its pipes open for reading as well as for writing, as a terminal is. Even
  with supervisor and writer both killed, printing raises no signal and no error. It waits once the pipe is full.
- Where the pipes or the process cannot be created, the script prints into the files themselves.

Neither a pipe nor a file is a terminal, so that programs buffer and colour their output alike. Unlike with a file, what
several processes print at the same moment may mix within a line that is longer than 4096 bytes, as in any pipeline.
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
#: A writer that ends again and again is started no more often than this.
_AGAIN_S: Final = 1.0
_TICK_S: Final = 0.01
_WRITER: Final = Path(output_writer.__file__).resolve()


class OutputPipes:
    """The pipes of one script, and the process that empties them.

    Attributes:
        out: What the script is given as its standard output; :meth:`handed_over` closes it here.
        err: The same for its standard error.
        problem: Why the script prints straight into the files; empty = it does not.

    Raises:
        SessionError: Not even the files can be opened.
    """

    def __init__(self, session: Session) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            self._files = [os.open(path, flags, 0o644) for path in (session.stdout, session.stderr)]
        except OSError as error:
            raise explain(error, session.stdout, "write") from error
        self._pipes: list[int] = []
        self._counts = -1
        self.pid: int | None = None  # process id of the writer; None = it has ended, or there is none
        self._killed = False
        self._again_s = 0.0  # not before then is another writer started
        self.problem = ""
        try:
            self._counts = _counts_file(session.control / "output.json")
            ends = [_pipe() for _ in self._files]
            self._pipes, (self.out, self.err) = [reading for reading, _ in ends], (end for _, end in ends)
            self._start()
        except OSError as error:
            self.problem = f"{error.strerror or error}"
            self.out, self.err = self._files

    def handed_over(self) -> None:
        """Close the script's ends here: once it has them, or is not started at all."""
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

    def tend(self, now_s: float) -> None:
        """Start another writer when it was killed, and wake it when it was stopped."""
        if self.pid is None:
            return
        if not self._killed:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if not pid:
                return
            if os.WIFSTOPPED(status):
                os.kill(pid, signal.SIGCONT)
                return
            if os.waitstatus_to_exitcode(status) == 0:  # all writing ends are closed
                self.pid = None
                return
            self._killed = True
        if now_s >= self._again_s:
            self._again_s = now_s + _AGAIN_S
            with contextlib.suppress(OSError):  # no more processes are allowed: tried again
                self._start()

    def finish(self, deadline_s: float) -> None:
        """Wait until all output is written, at most until a monotonic time: leftover processes may still print."""
        while True:
            self.tend(time.monotonic())
            if self.pid is None or time.monotonic() >= deadline_s:
                return
            time.sleep(_TICK_S)

    def _start(self) -> None:
        handed = (*self._pipes, *self._files, self._counts)
        command = [sys.executable, "-I", "-S", str(_WRITER), *map(str, handed)]
        # A separate session, so that signals to the supervisor's process group do not reach it.
        writer = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=handed,
            start_new_session=True,
        )
        writer.returncode = 0  # waited for by its number, to hear of a stop as well
        self.pid, self._killed = writer.pid, False


def _counts_file(path: Path) -> int:
    """Make the file of counts; return its descriptor."""
    content = msgspec.json.encode(Counts()).ljust(output_writer.RESERVE_BYTES - 1) + b"\n"
    try:
        with contextlib.suppress(SessionError):  # fails on a full disk
            write_atomic(path, content)
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)


def _pipe() -> tuple[int, int]:
    """Make a pipe; return its reading end, which never waits, and what a script can print into."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # the user has many large pipes already
            fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    try:
        both = os.open(f"/proc/self/fd/{writing}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # not Linux, or no /proc
        return reading, writing
    os.close(writing)
    return reading, both
