"""A real terminal for tests: a pseudo-terminal with a program in it, and an emulator that keeps its screen."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyte


class InTerminal:
    """A program in a pseudo-terminal.

    Args:
        command: What to run.
        columns: Width, cells.
        lines: Height, cells.
        env: Environment variables on top of this process's.
        cwd: Where to run it; None = here.

    Attributes:
        screen: What the terminal shows.
        received: All bytes the program wrote.
        status: Its exit status, once it is over.
        bytes_per_s: No faster than this is read from the program, which then has to wait; infinite = at once.
    """

    def __init__(
        self, command: Sequence[str], columns: int = 100, lines: int = 30, cwd: Path | None = None, **env: str
    ) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.received = b""
        self.status: int | None = None
        self.bytes_per_s = float("inf")
        self._credit, self._credited_at = 0.0, time.monotonic()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(cwd or ".")
            os.environ.update({"TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8", **env})
            for name in ("NO_COLOR", "COLUMNS", "LINES"):  # the terminal itself knows its size
                os.environ.pop(name, None)
            # Not as the C library has it: readline, which pytest imports, puts a size of its own there.
            os.execvpe(command[0], command, dict(os.environ))
        self.resize(columns, lines)

    def resize(self, columns: int, lines: int) -> None:
        """Change the size, as a user who drags a corner."""
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen.resize(lines, columns)

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self.fd, keys.encode())

    def text(self) -> str:
        """Return what is shown."""
        return "\n".join(line.rstrip() for line in self.screen.display)

    def pump(self, seconds: float) -> bool:
        """Take in what the program writes; False once it is over."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and self.status is None:
            if not select.select([self.fd], [], [], min(left, 0.05))[0]:
                continue
            if (most := self._most()) < 1:
                time.sleep(0.005)
                continue
            try:
                data = os.read(self.fd, most)
            except OSError:
                data = b""
            if not data:
                self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
                return False
            self.received += data
            self._credit -= len(data)
            # The emulator does not know some requests that programs send, and needs not.
            with contextlib.suppress(TypeError):
                self._stream.feed(data)
        return self.status is None

    def _most(self) -> int:
        """Return how many bytes the link takes now."""
        now = time.monotonic()
        self._credit = min(
            self._credit + (now - self._credited_at) * self.bytes_per_s, self.bytes_per_s * 0.05, 65536
        )
        self._credited_at = now
        return int(self._credit)

    def until(self, true: Callable[[], bool], seconds: float = 30.0) -> None:
        """Wait for something; fail with what the screen shows when it does not come."""
        deadline = time.monotonic() + seconds
        while not true():
            alive = self.pump(0.05)
            if time.monotonic() > deadline or not (alive or true()):
                raise AssertionError(
                    f"it never came (status {self.status}); the screen shows:\n{self.text()}"
                )

    def until_shown(self, *texts: str, seconds: float = 30.0) -> None:
        """Wait until the screen shows all texts."""
        self.until(lambda: all(text in self.text() for text in texts), seconds)

    def until_over(self, seconds: float = 30.0) -> int:
        """Wait for the end; return the exit status."""
        self.until(lambda: self.status is not None, seconds)
        assert self.status is not None
        return self.status

    def close(self) -> None:
        """End the program if it goes on."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


@contextlib.contextmanager
def in_terminal(
    command: Sequence[str], columns: int = 100, lines: int = 30, cwd: Path | None = None, **env: str
) -> Iterator[InTerminal]:
    """Run a program in a terminal as long as the block lasts."""
    terminal = InTerminal(command, columns, lines, cwd, **env)
    try:
        yield terminal
    finally:
        terminal.close()
