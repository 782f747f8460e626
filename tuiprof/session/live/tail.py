"""Reads the logs of a session while they grow, for live view, replay and lists.

Writers never wait for readers and may die at any time. Therefore a last line may be partial (it is kept until the rest
arrives), lines may be damaged (they are counted), and files may appear at any time.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from tuiprof.session.log import Record, decoder
from tuiprof.session.store.folders import Session
from tuiprof.session.store.hosts import Log
from tuiprof.session.store.meta import Clock
from tuiprof.system.files import UNDECODABLE, open_regular, read_at_most, size_of

#: Bytes to read from one file at a time.
BLOCK: Final = 4 << 20
#: A longer line is damage (zeros after a power failure), not a record that is still being written.
LONGEST_LINE: Final = 8 << 20

#: Size of the parts in which new lines are decoded, bytes.
_PART: Final = 32 << 10
#: From this size on, lines are decoded together, which is faster.
_MUCH: Final = 1 << 20

#: Precision of the search for an offset in a log, bytes.
_PRECISION: Final = 64 << 10

_KNOWN: Final = frozenset(
    (b"head", b"step", b"dev", b"mem", b"cost", b"capture", b"tele", b"out", b"note", b"end")
)


@dataclass(slots=True)
class Batch:
    """Successive records of one writer."""

    writer: str  # ``rank0``, ``recorder``, …
    records: list[Record]  # in the order written
    log: Log | None = None  # their log; None = a log with the session's clock


class LogFile:
    """Reads one log file while it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.writer = path.stem
        self.malformed = 0  # number of damaged lines
        self.unreadable = ""  # why the file cannot be read; empty = it can
        self._file: BinaryIO | None = None
        self.position = 0  # of the first byte not yet decoded
        self._partial = b""

    @property
    def behind(self) -> int:
        """Bytes not yet read; incomplete lines and unreadable data count as read."""
        if self.unreadable:
            return 0
        return max(0, size_of(self.path) - self.position - len(self._partial))

    def read(self, max_bytes: int = BLOCK) -> list[Record]:
        """Return the records in the next ``max_bytes`` at most, up to the last complete line."""
        return self._decode(self._read_lines(max_bytes))

    def read_parts(self, max_bytes: int = BLOCK) -> Iterator[list[Record]]:
        """Yield the same records in small parts, except when a large part of the log is read.

        After a delay, a screen then needs no more memory than for any other frame. Python can return hardly any of such
        a peak to the system.
        """
        lines = self._read_lines(max_bytes)
        size = _PART if len(lines) < _MUCH else len(lines)
        start = 0
        while start < len(lines):
            end = lines.find(b"\n", start + size) + 1 or len(lines)
            yield self._decode(lines[start:end])
            start = end

    def _read_lines(self, max_bytes: int) -> bytes:
        """Return the next complete lines."""
        if self._file is None:
            try:
                self._file = open_regular(self.path)
            except OSError as error:
                self.unreadable = error.strerror or str(error)
                return b""
            self.unreadable = ""
            self._file.seek(self.position)
        block = self._partial + read_at_most(self._file, max_bytes)
        cut = block.rfind(b"\n") + 1
        self._partial = block[cut:]
        self.position += cut
        if len(self._partial) > LONGEST_LINE:
            self.position += len(self._partial)
            if not self._partial.strip(b"\0"):  # a hole in a sparse file, which may be very large
                self.position = _data_after(self.path, self.position)
                self._file.seek(self.position)
            self._partial = b""
            self.malformed += 1
        return block[:cut]

    def skip_to_end(self, keep_bytes: int) -> list[Record]:
        """Skip to the end of a huge log before the first read; return the first line (the head) if it skipped any."""
        if self.behind <= keep_bytes + BLOCK:
            return []
        return self._skip(-keep_bytes, os.SEEK_END)

    def skip_to(self, at: int, keep_bytes: int) -> list[Record]:
        """Skip to a time before the first read; return the first line (the head) if it skipped any."""
        first = self.position_of(at) - keep_bytes
        return self._skip(first, os.SEEK_SET) if first > BLOCK else []

    def _skip(self, offset: int, whence: int) -> list[Record]:
        try:
            with open_regular(self.path) as file:
                head = file.readline(LONGEST_LINE)
                file.seek(offset, whence)
                file.readline()  # the partial line at the cut
                self.position = file.tell()
        except OSError as error:
            self.unreadable = error.strerror or str(error)
            return []
        return self._decode(head)

    def position_of(self, at: int) -> int:
        """Return an offset before which every record is older than ``at`` (the writer's clock, ns).

        It is at most :data:`_PRECISION` bytes too early. Lines are in order of time.
        """
        try:
            file = open_regular(self.path)
        except OSError:
            return 0
        with file:
            low, high = 0, file.seek(0, 2)
            while high - low > _PRECISION:
                middle = (low + high) // 2
                file.seek(middle)
                file.readline()
                found = next(
                    (one for one in map(_time_of, file.readlines(_PRECISION // 2)) if one is not None), None
                )
                if found is None or found > at:
                    high = middle
                else:
                    low = middle
        return low

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._partial = b""  # read again if the file is opened again

    def _decode(self, block: bytes) -> list[Record]:
        try:
            return decoder.decode_lines(block)
        except UNDECODABLE:
            # Decode line by line to skip invalid ones.
            return [record for line in block.split(b"\n") if (record := self._decode_line(line)) is not None]

    def _decode_line(self, line: bytes) -> Record | None:
        if not line.strip():
            return None
        try:
            record: Record = decoder.decode(line)
            return record
        except UNDECODABLE:
            pass
        try:
            # Python's JSON may contain NaN and Infinity, for example as a loss, which strict JSON does not allow.
            content = json.loads(line)
            if isinstance(content, dict) and str(content.get("t")).encode() not in _KNOWN:
                return None  # of another version
            converted: Record = msgspec.convert(content, Record)
            return converted
        except (ValueError, *UNDECODABLE):
            self.malformed += 1
            return None


def _data_after(path: Path, position: int) -> int:
    """Return the offset of the next allocated bytes of a sparse file, at most the end."""
    try:
        # In a separate handle, because seeking would break the buffering of the other one.
        with open_regular(path) as file:
            try:
                return os.lseek(file.fileno(), position, os.SEEK_DATA)
            except OSError as error:
                return file.seek(0, os.SEEK_END) if error.errno == errno.ENXIO else position
    except OSError:
        return position


class _Timed(msgspec.Struct):
    """A record of any type with a time."""

    at: int | None = None


_timed: Final = msgspec.json.Decoder(_Timed)


def _time_of(line: bytes) -> int | None:
    try:
        return _timed.decode(line).at
    except UNDECODABLE:  # counted when it is read
        return None


class LogReader:
    """Reads all logs of a session while they grow, from the start or the last ``tail_bytes`` of each."""

    def __init__(self, session: Session, tail_bytes: int | None = None) -> None:
        self.session = session
        self.clock = Clock(session.meta)
        self._tail_bytes = tail_bytes
        self._files: dict[str, LogFile] = {}
        self._logs: dict[str, Log] = {}
        self._heads: dict[str, list[Record]] = {}  # of logs read from their end; not returned yet

    @property
    def problems(self) -> list[str]:
        """What could not be read so far, one sentence per file."""
        problems = []
        for name, file in self._files.items():
            if file.unreadable:
                problems.append(f"log/{name}.jsonl cannot be read: {file.unreadable}")
            if file.malformed:
                lines = "1 line" if file.malformed == 1 else f"{file.malformed} lines"
                problems.append(f"{lines} of log/{name}.jsonl cannot be read and are skipped")
        return problems

    @property
    def has_lost_logs(self) -> bool:
        """Whether a log that was read has been deleted."""
        return any(file.position and not os.path.exists(file.path) for file in self._files.values())

    @property
    def behind(self) -> int:
        """Bytes written but not yet read."""
        self._find()
        return sum(file.behind for file in self._files.values())

    def poll_batches(self, max_bytes: int = BLOCK) -> Iterator[Batch]:
        """Yield new records by writer, reading at most ``max_bytes`` of each file."""
        self._find()
        for writer, file in self._files.items():
            for records in chain([self._heads.pop(writer, [])], file.read_parts(max_bytes)):
                if records:
                    yield Batch(writer, records, self._logs[writer])

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def _find(self) -> None:
        for log in self.session.logs():
            if log.writer not in self._files:
                file = self._files[log.writer] = LogFile(log.path)
                self._logs[log.writer] = log
                if self._tail_bytes is not None:
                    self._heads[log.writer] = file.skip_to_end(self._tail_bytes)
