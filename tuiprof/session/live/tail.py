"""Reads the logs of a session while they grow: for live view, further viewers, replay and list alike.

A writer never waits for a reader and may die at any moment, so a last line may be partial (it is kept until
the rest arrives), a line may be damaged (it is counted), and files appear by themselves.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from tuiprof.session.log import Record, decoder
from tuiprof.session.store.folders import Session
from tuiprof.session.store.hosts import Log
from tuiprof.session.store.meta import Clock
from tuiprof.system.files import UNDECODABLE, open_regular, read_at_most

#: Bytes read from one file at a time.
BLOCK: Final = 4 << 20
#: A "line" longer than this is damage (a hole of zeros after a power cut), not a record still being written.
LONGEST_LINE: Final = 8 << 20

#: Precision of the search for an offset in a log, bytes.
_CLOSE: Final = 64 << 10

_KNOWN: Final = frozenset(
    (b"head", b"step", b"dev", b"mem", b"cost", b"capture", b"tele", b"out", b"note", b"end"),
)


@dataclass(slots=True)
class Batch:
    """Successive records of one writer."""

    writer: str  # its name: ``rank0``, ``recorder``, …
    records: list[Record]  # its records, in the order written
    log: Log | None = None  # where they come from; None = a log of the session's own clock


class LogFile:
    """One log file, read as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.writer = path.stem  # name of its writer
        self.malformed = 0  # lines that are no JSON record (a truncated line, damage)
        self.unknown = 0  # lines of a type that this version does not know
        self.unreadable = ""  # why it cannot be read; empty = readable
        self._file: BinaryIO | None = None
        self.position = 0  # of the first byte not yet decoded
        self._partial = b""

    @property
    def behind(self) -> int:
        """Bytes not yet read; incomplete lines and unreadable data count as read."""
        if self.unreadable:
            return 0
        try:
            return max(0, self.path.stat().st_size - self.position - len(self._partial))
        except OSError:
            return 0

    def read(self, max_bytes: int = BLOCK) -> list[Record]:
        """Decode at most ``max_bytes`` of what was appended since; return the whole lines among it."""
        if self._file is None:
            try:
                self._file = open_regular(self.path)
            except OSError as error:
                self.unreadable = error.strerror or str(error)
                return []
            self.unreadable = ""
            self._file.seek(self.position)
        block = self._partial + read_at_most(self._file, max_bytes)
        cut = block.rfind(b"\n") + 1
        self._partial = block[cut:]
        self.position += cut
        if len(self._partial) > LONGEST_LINE:
            self.position += len(self._partial)
            if not self._partial.strip(b"\0"):  # a hole may be much larger than the disk
                self.position = _data_after(self.path, self.position)
                self._file.seek(self.position)
            self._partial = b""
            self.malformed += 1
        return self._decode(block[:cut]) if cut else []

    def skip_to_end(self, keep_bytes: int) -> list[Record]:
        """Skip all but the end before reading, for a first frame of a huge log; return the first line (the head),
        needed for the rest.
        """
        if self.behind <= keep_bytes + BLOCK:
            return []
        try:
            with open_regular(self.path) as file:
                first = file.readline(LONGEST_LINE)
                file.seek(-keep_bytes, 2)
                file.readline()  # the partial line at the cut
                self.position = file.tell()
        except OSError as error:
            self.unreadable = error.strerror or str(error)
            return []
        return self._decode(first)

    def skip_to(self, at: int, keep_bytes: int) -> list[Record]:
        """Skip records long before a moment, before reading; return the head (first line) if some were skipped."""
        first = self.position_of(at) - keep_bytes
        if first <= BLOCK:
            return []
        with open_regular(self.path) as file:
            head = file.readline(LONGEST_LINE)
            file.seek(first)
            file.readline()  # the partial line at the cut
            self.position = file.tell()
        return self._decode(head)

    def position_of(self, at: int) -> int:
        """Return an offset in the file before which every record is older than a moment; the lines are in order.

        Args:
            at: The moment, on the writer's clock, ns.

        Returns:
            Bytes from the beginning; at most :data:`_CLOSE` bytes too early.
        """
        try:
            file = open_regular(self.path)
        except OSError:
            return 0
        with file:
            low, high = 0, file.seek(0, 2)
            while high - low > _CLOSE:
                middle = (low + high) // 2
                file.seek(middle)
                file.readline()
                found = next(
                    (one for one in map(_time_of, file.readlines(_CLOSE // 2)) if one is not None), None
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
            self._partial = b""  # it is read again when the file is opened again

    def _decode(self, block: bytes) -> list[Record]:
        try:
            return decoder.decode_lines(block)
        except UNDECODABLE:
            # Some line of the block is invalid: find it line by line.
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
            # Python writes NaN and Infinity, which strict JSON does not allow; a NaN loss must not be dropped.
            content = json.loads(line)
            if isinstance(content, dict) and str(content.get("t")).encode() not in _KNOWN:
                self.unknown += 1
                return None
            converted: Record = msgspec.convert(content, Record)
            return converted
        except (ValueError, *UNDECODABLE):
            self.malformed += 1
            return None


def _data_after(path: Path, position: int) -> int:
    """Return the offset of the next allocated bytes of a sparse file, at most the end."""
    try:
        with open_regular(
            path
        ) as file:  # a separate handle: buffering makes the position of the other one unreliable
            try:
                return os.lseek(file.fileno(), position, os.SEEK_DATA)
            except OSError as error:
                return file.seek(0, os.SEEK_END) if error.errno == errno.ENXIO else position
    except OSError:
        return position


class _Timed(msgspec.Struct):
    """Any line with a time."""

    at: int | None = None


_timed: Final = msgspec.json.Decoder(_Timed)


def _time_of(line: bytes) -> int | None:
    try:
        return _timed.decode(line).at
    except UNDECODABLE:  # damage is counted when it is read
        return None


class LogReader:
    """All logs of a session, followed as they grow.

    Args:
        session: The session.
        tail_bytes: Start with only this many bytes at the end of each log, for a first frame of a huge one.
    """

    def __init__(self, session: Session, tail_bytes: int | None = None) -> None:
        self.session = session
        self.clock = Clock(session.meta)
        self._tail_bytes = tail_bytes
        self._files: dict[str, LogFile] = {}
        self._logs: dict[str, Log] = {}
        self._heads: dict[str, list[Record]] = {}  # of files read from their end, not yet handed on

    def __enter__(self) -> LogReader:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files."""
        self.close()

    @property
    def malformed(self) -> int:
        """Damaged lines so far."""
        return sum(file.malformed for file in self._files.values())

    @property
    def unknown(self) -> int:
        """Lines of types unknown to this version so far."""
        return sum(file.unknown for file in self._files.values())

    @property
    def problems(self) -> list[str]:
        """What could not be read so far, one sentence per file."""
        said = []
        for name, file in self._files.items():
            if file.unreadable:
                said.append(f"log/{name}.jsonl cannot be read: {file.unreadable}")
            if file.malformed:
                lines = "1 line" if file.malformed == 1 else f"{file.malformed} lines"
                said.append(f"{lines} of log/{name}.jsonl cannot be read and are skipped")
        return said

    @property
    def behind(self) -> int:
        """Bytes written but not yet read."""
        self._find()
        return sum(file.behind for file in self._files.values())

    def poll(self, max_bytes: int = BLOCK) -> list[tuple[str, Record]]:
        """Return what was written since the last call, record by record; at most ``max_bytes`` of each file."""
        return [(batch.writer, record) for batch in self.poll_batches(max_bytes) for record in batch.records]

    def poll_batches(self, max_bytes: int = BLOCK) -> Iterator[Batch]:
        """Yield what was written since the last call, writer by writer; the fast way to fill a fold."""
        self._find()
        for writer, file in self._files.items():
            records = self._heads.pop(writer, []) + file.read(max_bytes)
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
