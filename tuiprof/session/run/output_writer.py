"""The process that writes the script's output to its session; started by :mod:`tuiprof.session.run.output_pipes`.

It reads two pipes until their write ends are closed. Output that cannot be written is buffered in memory, up to
:data:`MAX_WAITING` bytes per pipe; beyond that, the oldest half is dropped and counted, and a line in the file marks
the gap.

It is run by its path and uses only the standard library, so that it starts fast and needs little memory. It gets
descriptors, not paths, so that the session may be moved or deleted.

Arguments: five descriptors: the read ends of the pipes for standard output and standard error, the two files, and the
file of counts (:class:`tuiprof.session.store.output.Counts`).
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

#: Maximum number of bytes of a stream that are buffered while they cannot be written.
MAX_WAITING = 4 << 20
#: Bytes to read at a time; the capacity of a pipe.
BLOCK = 1 << 20
#: Pause after a small read, so that line-by-line output does not wake the process for each line.
PAUSE_S = 0.02
#: Pause before a failed write is retried.
RETRY_S = 0.2
#: A write that blocks for this long (for example on an unresponsive network mount) counts as failed.
STUCK_S = 2.0
#: How long writing is retried after the last byte was read.
LAST_S = 1.0
#: The counts are overwritten in place, which works on a full disk too. The file is larger than the counts: the rest is
#: reserved disk space for the last lines of output.
COUNTS_BYTES = 4096
RESERVE_BYTES = 64 << 10


class Stream:
    """One of the two outputs, copied from a pipe to a file."""

    def __init__(self, pipe: int, file: int, lost: int) -> None:
        self.pipe = pipe  # descriptor to read
        self.file = file  # descriptor to write
        self.open = True  # whether the pipe has a write end
        self.lost = lost  # bytes dropped so far
        self.why = ""  # why nothing can be written at the moment; empty = writing works
        self.why_lost = ""  # why bytes were dropped
        self.moved_s = time.monotonic()  # when a byte was last written, or the buffer was empty
        self._lock = threading.Lock()
        self._waiting: deque[bytes] = deque()
        self._size = 0  # of the waiting data
        self._writing = b""  # data being written; only the writing thread uses it
        self._marking = 0  # the data being written marks a gap of this many bytes; 0 = it is output
        self._in_line = False  # the last line that was written is not complete
        self._missing = 0  # dropped bytes between the data being written and the waiting data

    @property
    def waiting(self) -> int:
        """Bytes not yet written."""
        return self._size + len(self._writing)

    @property
    def stuck(self) -> bool:
        """Whether writing fails or blocks."""
        return bool(self.why) or time.monotonic() - self.moved_s > STUCK_S

    def read(self) -> int:
        """Read from the pipe into the buffer; return the number of bytes.

        If the buffer is full while writing works, nothing is read, and the script blocks until the disk catches up.
        """
        if self._size >= MAX_WAITING and not self.stuck:
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
        if self._size > MAX_WAITING and self.stuck:
            self.keep_newest(MAX_WAITING // 2)
        return len(block)

    def keep_newest(self, size: int) -> None:
        """Drop all waiting output but the newest ``size`` bytes, at a line boundary if possible."""
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
        """Write the newest ``size`` bytes of the waiting output, and drop the rest."""
        self._put_back()
        self.keep_newest(size)
        if not self.write():
            self._put_back()
            self.keep_newest(0)

    def write(self) -> bool:
        """Write waiting output; return whether all of it was written."""
        while self._writing or self._take():
            try:
                # Not under the lock, so that reading continues during a slow write.
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
            if self._marking:
                self._missing += self._marking
            elif self._writing:
                self._waiting.appendleft(self._writing)
                self._size += len(self._writing)
            self._writing, self._marking = b"", 0

    def _take(self) -> bool:
        """Take the next data to write; return whether there is any."""
        with self._lock:
            if self._missing:
                line = f"[tuiprof: {self._missing} bytes of output are missing here: {self.why_lost}]\n"
                self._writing = b"\n" * self._in_line + line.encode("utf-8", "replace")
                self._marking, self._missing = self._missing, 0
            elif self._waiting:
                self._writing, self._marking = self._waiting.popleft(), 0
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
        """Run until no process can print any more, and all output is written or dropped."""
        self._thread.start()
        while streams := [stream for stream in self._streams if stream.open]:
            select.select([stream.pipe for stream in streams], [], [])
            size = sum(stream.read() for stream in streams)
            self._wake.set()
            if size < BLOCK // 4:
                time.sleep(PAUSE_S)
        self._all_read = True
        self._wake.set()
        # Wait for a slow disk, but not for one that does not respond.
        while self._thread.is_alive():
            self._thread.join(RETRY_S)
            if any(stream.waiting and stream.stuck and not stream.why for stream in self._streams):
                return

    def _write(self) -> None:
        """In the writing thread: write until everything was read and written."""
        last_s = None
        while True:
            self._wake.wait(RETRY_S if any(stream.waiting for stream in self._streams) else None)
            self._wake.clear()
            all_read = self._all_read  # read before writing, which then includes the last data
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
        """Write the newest lines to a full disk, into the reserved space."""
        with suppress(OSError):
            os.ftruncate(self._counts, COUNTS_BYTES)
        for stream in reversed(self._streams):  # standard error first: its end says why the script failed
            stream.write_newest(RESERVE_BYTES // 4)
        self._count()

    def _count(self) -> None:
        """Store the counts if they changed."""
        content = {
            "lost": [stream.lost for stream in self._streams],
            "waiting": [stream.waiting if stream.why else 0 for stream in self._streams],
            "why": next((stream.why for stream in self._streams if stream.why), ""),
            "why_lost": next((stream.why_lost for stream in self._streams if stream.why_lost), ""),
        }
        line = json.dumps(content).ljust(COUNTS_BYTES - 1).encode("ascii") + b"\n"
        if line != self._counted:
            with suppress(OSError):  # a file system that cannot write in place; the next change tries again
                os.pwrite(self._counts, line, 0)
                self._counted = line


def main(pipes: tuple[int, int], files: tuple[int, int], counts: int) -> None:
    """Copy the pipes to the files until all write ends are closed."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        lost = json.loads(os.pread(counts, COUNTS_BYTES, 0))["lost"]  # by a previous writer, which was killed
    except (OSError, ValueError, KeyError):
        lost = [0, 0]
    out, err = (Stream(*ends) for ends in zip(pipes, files, lost, strict=True))
    OutputWriter((out, err), counts).run()
    with suppress(OSError):
        os.ftruncate(counts, COUNTS_BYTES)  # release the reserved space
    os._exit(0)  # a normal exit would wait for a blocked write


if __name__ == "__main__":
    _out, _err, _out_file, _err_file, _counts = map(int, sys.argv[1:])
    main((_out, _err), (_out_file, _err_file), _counts)
