"""Appends records to a log without torn lines, even on a temporarily full disk."""

from __future__ import annotations

import errno
import math
import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import Final

import msgspec

from tuiprof.session.log.records import Note, Record
from tuiprof.system.files import explain

#: Lines kept in memory while the disk is full: 20 minutes of one device. Beyond that, the oldest are dropped.
MOST_WAITING: Final = 4096
#: Prefixes of lines that are not readings.
_WORDS: Final = tuple(b'{"t":"%s"' % kind for kind in (b"head", b"note", b"end"))
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class LogWriter:
    """One append-only log file; safe for several threads.

    While the disk is full, lines wait in memory and are written, in order, once there is space again, with a note,
    including the number of dropped lines if it took too long. A partially written line is completed first, so no line
    is torn.

    Raises:
        SessionError: It cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._encoder = msgspec.json.Encoder()
        self._waiting: deque[bytes] = deque()
        self._lock = threading.Lock()
        self._lost = 0
        self._stuck_since: int | None = None
        self._why = ""
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise explain(error, path, "write") from error

    @property
    def waiting(self) -> int:
        """Lines not yet on disk."""
        return len(self._waiting)

    def write(self, record: Record) -> bool:
        """Append a record; return whether everything so far is on disk."""
        with self._lock:
            self._waiting.append(self._encoder.encode(record) + b"\n")
            if len(self._waiting) > MOST_WAITING:
                del self._waiting[1]  # the first may be half written
                self._lost += 1
            return self._flush()

    def give_up_readings(self) -> None:
        """Drop waiting readings, so that the last lines fit into little space."""
        with self._lock:
            first, others = list(self._waiting)[:1], list(self._waiting)[1:]  # the first may be half written
            kept = [line for line in others if line.startswith(_WORDS)]
            self._lost += len(others) - len(kept)
            self._waiting = deque((*first, *kept))

    def flush(self) -> bool:
        """Try to write waiting lines; return whether everything is on disk."""
        with self._lock:
            return self._flush()

    def close(self) -> None:
        """Close the file; lines still waiting are lost."""
        os.close(self._file)

    def _flush(self) -> bool:
        while self._waiting:
            line = self._waiting[0]
            try:
                written = os.write(self._file, line)
            except OSError as error:
                if self._stuck_since is None:
                    self._stuck_since = time.monotonic_ns()
                    self._why = "the disk is full" if error.errno in _FULL else str(error.strerror or error)
                return False
            if written < len(line):
                self._waiting[0] = line[written:]
            else:
                self._waiting.popleft()
            if not self._waiting and self._stuck_since is not None:
                self._waiting.append(self._encoder.encode(self._told()) + b"\n")
        return True

    def _told(self) -> Note:
        """Return and clear the note about waiting lines."""
        now = time.monotonic_ns()
        waited_s = math.ceil((now - (self._stuck_since or now)) / 1e9)
        lost = f"; {self._lost} readings were dropped" if self._lost else "; nothing was lost"
        note = Note(now, "warn", f"the recorder could not write for {waited_s} s: {self._why}{lost}")
        self._stuck_since, self._lost = None, 0
        return note
