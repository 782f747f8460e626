"""The process that writes what a script prints into its session; started by :mod:`tuiprof.session.run.output_pipes`.

It reads two pipes until their other ends are closed, and never stops reading for long. Output that cannot be written
waits in memory, up to :data:`MOST_WAITING` bytes of each pipe; beyond, the oldest half is given up and counted, and a
line in the file says so where it is missing.

It is run by its path with the standard library alone, so that it starts at once and takes few megabytes. It is handed
descriptors, no paths, so that it does not matter where the session is moved, or whether it is deleted.

Arguments: five descriptors, of the reading ends of the pipes for standard output and standard error, of the files for
them, and of the file of counts (:class:`tuiprof.session.store.output.Counts`).
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from collections import deque
from contextlib import suppress

#: Bytes of a stream that are kept in memory while they cannot be written.
MOST_WAITING = 4 << 20
#: Bytes read at a time; a pipe holds no more.
BLOCK = 1 << 20
#: Pause after a small read, so that line-by-line output does not wake the process for each line.
PAUSE_S = 0.02
#: Pause before a write that failed is tried again.
RETRY_S = 0.2
#: A file that blocks for this long (for example an unresponsive network mount) counts as unwritable.
STUCK_S = 2.0
#: How long writing what waits is tried after the last byte was read.
LAST_S = 1.0
#: Size of the file of counts from the beginning. The counts overwrite it in place, which works on a full disk, too; all
#: but the first bytes is space kept for the last lines of output.
COUNTS_BYTES = 4096
RESERVE_BYTES = 64 << 10


class Stream:
    """One of the two outputs on its way from its pipe to its file.

    Attributes:
        pipe: Where it is read.
        file: Where it is written.
        open: Somebody may still print.
        lost: Bytes given up so far.
        why: Why nothing can be written at the moment; empty = it can.
        why_lost: Why bytes were given up.
        moved_s: When a byte was last written, or none waited; monotonic.
    """

    def __init__(self, pipe: int, file: int, lost: int) -> None:
        self.pipe = pipe
        self.file = file
        self.open = True
        self.lost = lost
        self.why = self.why_lost = ""
        self.moved_s = time.monotonic()
        self._lock = threading.Lock()
        self._waiting: deque[bytes] = deque()
        self._size = 0  # of them
        self._writing = b""  # what is being written; only the writing thread touches it
        self._telling = 0  # the data being written reports this many dropped bytes; 0 = it is output
        self._in_line = False  # the last line that was written is not complete
        self._missing = 0  # dropped bytes between the data being written and the waiting data

    @property
    def waiting(self) -> int:
        """Bytes not yet written."""
        return self._size + len(self._writing)

    @property
    def stuck(self) -> bool:
        """Whether nothing can be written, or nothing was for a long time."""
        return bool(self.why) or time.monotonic() - self.moved_s > STUCK_S

    def read(self) -> int:
        """Take in what was printed; return its size. A script that prints faster than the disk writes waits for it."""
        if self._size >= MOST_WAITING and not self.stuck:
            return 0
        try:
            block = os.read(self.pipe, BLOCK)
        except BlockingIOError:
            return 0
        if not block:
            self.open = False
            return 0
        with self._lock:
            if not self.waiting:
                self.moved_s = time.monotonic()
            self._waiting.append(block)
            self._size += len(block)
        if self._size > MOST_WAITING and self.stuck:
            self.keep_newest(MOST_WAITING // 2)
        return len(block)

    def keep_newest(self, size: int) -> None:
        """Drop the oldest waiting output but ``size`` bytes, in whole lines if possible."""
        with self._lock:
            before = self._size
            if before <= size:
                return
            kept = b"".join(self._waiting)[before - size :]
            kept = kept[kept.find(b"\n") + 1 :]
            self._waiting = deque((kept,) if kept else ())
            self._size = len(kept)
            self._missing += before - len(kept)
            self.lost += before - len(kept)
            self.why_lost = self.why or "the disk does not answer"

    def write_newest(self, size: int) -> None:
        """Write the newest ``size`` bytes of what waits, at the very end; what cannot be written is given up."""
        self._put_back()
        self.keep_newest(size)
        if not self.write():
            self._put_back()
            self.keep_newest(0)

    def write(self) -> bool:
        """Write waiting output as far as possible; return whether none is left."""
        while self._writing or self._take():
            try:
                # Without the lock, so that reading continues during a slow write.
                written = os.write(self.file, self._writing)
            except OSError as error:
                self.why = (error.strerror or str(error))[:100]
                return False
            self._in_line = self._writing[written - 1 : written] != b"\n"
            self._writing = self._writing[written:]
            self.moved_s = time.monotonic()
        self.why = ""
        return True

    def _put_back(self) -> None:
        """Put the data being written back into the queue."""
        with self._lock:
            if self._telling:
                self._missing += self._telling
            elif self._writing:
                self._waiting.appendleft(self._writing)
                self._size += len(self._writing)
            self._writing, self._telling = b"", 0

    def _take(self) -> bool:
        """Take the next data to write; return whether there is any."""
        with self._lock:
            if self._missing:
                line = f"[tuiprof: {self._missing} bytes of output are missing here: {self.why_lost}]\n"
                self._writing = b"\n" * self._in_line + line.encode("utf-8", "replace")
                self._telling, self._missing = self._missing, 0
            elif self._waiting:
                self._writing, self._telling = self._waiting.popleft(), 0
                self._size -= len(self._writing)
        return bool(self._writing)


class OutputWriter:
    """Both streams, read by the main thread and written by another."""

    def __init__(self, streams: tuple[Stream, Stream], counts: int) -> None:
        self._streams = streams
        self._counts = counts
        self._counted = b""
        self._wake = threading.Event()
        self._all_read = False
        self._thread = threading.Thread(target=self._write, name="writing", daemon=True)

    def run(self) -> None:
        """Work until no process can print any more, and all output is written or dropped."""
        self._thread.start()
        while still := [stream for stream in self._streams if stream.open]:
            select.select([stream.pipe for stream in still], [], [])
            came = sum(stream.read() for stream in still)
            self._wake.set()
            if came < BLOCK // 4:
                time.sleep(PAUSE_S)
        self._all_read = True
        self._wake.set()
        # A disk that is slow gets its time; one that does not answer must not keep this process.
        while self._thread.is_alive():
            self._thread.join(RETRY_S)
            if any(stream.waiting and stream.stuck and not stream.why for stream in self._streams):
                return

    def _write(self) -> None:
        """Write what was read as it comes; the thread."""
        last_s = None
        while True:
            self._wake.wait(RETRY_S if any(stream.waiting for stream in self._streams) else None)
            self._wake.clear()
            all_read = self._all_read  # before the last check of what waits
            done = [stream.write() for stream in self._streams]
            self._count()
            if not all_read:
                continue
            if all(done):
                return
            last_s = last_s or time.monotonic() + LAST_S
            if time.monotonic() > last_s:
                self._write_last()
                return

    def _write_last(self) -> None:
        """Write the newest lines into the space that was kept for them."""
        with suppress(OSError):
            os.ftruncate(self._counts, COUNTS_BYTES)
        for stream in reversed(self._streams):  # why a script failed is the last thing on its standard error
            stream.write_newest(RESERVE_BYTES // 4)
        self._count()

    def _count(self) -> None:
        """Store the counts where they changed; at the very beginning they are all zero."""
        content = {
            "lost": [stream.lost for stream in self._streams],
            "waiting": [stream.waiting if stream.why else 0 for stream in self._streams],
            "why": next((stream.why for stream in self._streams if stream.why), ""),
            "why_lost": next((stream.why_lost for stream in self._streams if stream.why_lost), ""),
        }
        line = json.dumps(content).ljust(COUNTS_BYTES - 1).encode("ascii") + b"\n"
        if line != self._counted:
            with suppress(OSError):  # a file system that writes nothing in place; the next change tries again
                os.pwrite(self._counts, line, 0)
                self._counted = line


def main(pipes: tuple[int, int], files: tuple[int, int], counts: int) -> None:
    """Write what comes out of the pipes into the files."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends when all writing ends are closed
    try:
        lost = json.loads(os.pread(counts, COUNTS_BYTES, 0))["lost"]  # by one before this, which was killed
    except (OSError, ValueError, KeyError):
        lost = [0, 0]
    out, err = (Stream(*ends) for ends in zip(pipes, files, lost, strict=True))
    OutputWriter((out, err), counts).run()
    with suppress(OSError):
        os.ftruncate(counts, COUNTS_BYTES)  # nothing is left to keep space for
    os._exit(0)  # a write that hangs would hold up the ordinary way


if __name__ == "__main__":
    _out, _err, _out_file, _err_file, _counts = map(int, sys.argv[1:])
    main((_out, _err), (_out_file, _err_file), _counts)
