"""The script's output, passed through unchanged or as sanitized lines; and output that could not be stored."""

from __future__ import annotations

import os
import re
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import msgspec

from tuiprof.model.characters import UNSAFE
from tuiprof.model.units import format_bytes
from tuiprof.system.files import open_regular, read_small_json

if TYPE_CHECKING:
    from tuiprof.session.store.folders import Session

#: Maximum length of a line in characters; longer ones are cut.
LONGEST_LINE: Final = 2000
#: Number of bytes of existing output to read first.
TAIL_BYTES: Final = 64 << 10

#: Marks that Kineto (PyTorch's profiler) writes to stderr for tracers at the start and end of a capture. No setting
#: disables them without disabling error messages.
_PROFILER_MARK: Final = re.compile(
    rb"USDT:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \d+:\d+ \w+\.cpp:\d+\] profiler_\w+[ \r]*\n"
)

#: The end of a line after which the cursor is on the line above, and the begin of one that writes over another:
#: together, the states of a progress bar below another one (tqdm with ``position=1``).
_MOVES_UP: Final = re.compile(rb"\x1b\[1?A[\r ]*\Z")
_OVERWRITES: Final = b"\r"

#: Escape sequences: CSI, OSC and other strings (also unfinished ones), and two-character escapes, in their 7-bit form
#: and in the 8-bit form as decoded text.
_ESCAPES: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)


def safe_line(raw: bytes) -> str:
    """Return a line of output as sanitized text.

    Text overwritten after a carriage return (a progress bar), escape sequences and blanks at the end are removed, other
    control characters and invalid UTF-8 are replaced, tabs become spaces, and a very long line is cut.
    """
    text = raw.rstrip(b"\r").rpartition(b"\r")[2][: LONGEST_LINE * 8].decode("utf-8", "replace")
    text = UNSAFE.sub("\ufffd", _ESCAPES.sub("", text).expandtabs(8)).rstrip(" ")
    return text if len(text) <= LONGEST_LINE else text[:LONGEST_LINE] + " … (cut)"


class OutputReader:
    """Reads the lines at the end of a growing output file: of the existing output, the last ``tail_bytes``."""

    def __init__(self, path: Path, tail_bytes: int = TAIL_BYTES) -> None:
        self._path = path
        self._tail_bytes = tail_bytes
        self._file: BinaryIO | None = None
        self._partial = b""

    @property
    def unfinished(self) -> str:
        """The last line if it has no newline yet: a prompt, or the current state of a progress bar."""
        return safe_line(self._partial) if self._partial else ""

    def poll(self, max_bytes: int = 1 << 20, until: int | None = None) -> list[str]:
        """Return the complete lines written since the last call, sanitized, without the profiler's marks.

        Nothing beyond the offset ``until`` is read; of more than ``max_bytes``, only the end.
        """
        if self._file is None and not self._open(until):
            return []
        assert self._file is not None
        start = self._file.tell()
        end = self._file.seek(0, os.SEEK_END)
        end = end if until is None else min(end, until)
        if end <= start:
            self._file.seek(start)
            return []
        if end - start > max_bytes:
            self._skip(end - max_bytes)
        else:
            self._file.seek(start)
        block = self._partial + self._file.read(min(max_bytes, end - self._file.tell()))
        # A mark may follow the state of a progress bar, which goes on after it.
        *lines, self._partial = _PROFILER_MARK.sub(b"", block).split(b"\n")
        shown = [
            safe_line(line)
            for line, below in pairwise([*lines, self._partial])
            if not (below.startswith(_OVERWRITES) and _MOVES_UP.search(line))
        ]
        # A progress bar may write megabytes to one line; only the end is needed.
        self._partial = self._partial[-(LONGEST_LINE * 8) :]
        return shown

    @property
    def position(self) -> int:
        """Offset of the first byte not yet read."""
        return self._file.tell() if self._file is not None else 0

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, until: int | None) -> bool:
        try:
            self._file = open_regular(self._path)
        except OSError:
            return False
        size = self._file.seek(0, os.SEEK_END)
        size = size if until is None else min(size, until)
        self._file.seek(0)
        if size > self._tail_bytes:
            self._skip(size - self._tail_bytes)
        return True

    def _skip(self, to: int) -> None:
        """Seek to an offset, then to the next line unless the current one is very long."""
        assert self._file is not None
        self._partial = b""
        self._file.seek(to)
        self._file.readline(LONGEST_LINE * 8)


def last_lines(path: Path, count: int = 1) -> list[str]:
    """Return the last non-empty lines of an output file, sanitized."""
    with closing(OutputReader(path, tail_bytes=8 << 10)) as reader:
        return [line for line in [*reader.poll(), reader.unfinished] if line.strip()][-count:]


class Tee:
    """Copies the script's standard output and standard error to the streams ``out`` and ``err``, unchanged."""

    def __init__(self, session: Session, out: BinaryIO, err: BinaryIO) -> None:
        self._pairs = ((session.stdout, out), (session.stderr, err))
        self._files: dict[Path, BinaryIO] = {}

    def pump(self) -> bool:
        """Copy new output; return whether there was any."""
        copied = False
        for path, stream in self._pairs:
            if path not in self._files:
                try:
                    self._files[path] = open_regular(path)
                except OSError:
                    continue
            while block := self._files[path].read(1 << 16):
                stream.write(block)
                copied = True
            stream.flush()
        return copied

    def close(self) -> None:
        """Close the files; the streams stay open."""
        for file in self._files.values():
            file.close()


#: With less free space than this, the disk counts as full: file systems reserve some.
MIN_FREE_BYTES: Final = 16 << 10


class Counts(msgspec.Struct, frozen=True):
    """``control/output.json``: output that is not in the files."""

    lost: tuple[int, int] = (0, 0)  # bytes of standard output and standard error that could not be stored
    #: Bytes of each held in memory because they cannot be stored at the moment
    waiting: tuple[int, int] = (0, 0)
    why: str = ""  # why they cannot be stored; empty = nothing is held in memory
    why_lost: str = ""  # why the last lost bytes could not be stored


def read_counts(session: Session) -> Counts:
    """Return the counts of a session; all zero if there is no file."""
    return read_small_json(session.control / "output.json", Counts) or Counts()


def lost_output(session: Session) -> str:
    """Return how much output was lost, and why; empty = none."""
    counts = read_counts(session)
    lost = sum(counts.lost)
    return f"{format_bytes(lost)} of the output lost ({counts.why_lost})" if lost else ""


def recording_problem(session: Session) -> str:
    """Return why a running script cannot be recorded at the moment; empty = there is no problem."""
    counts = read_counts(session)
    if counts.why:
        lost = f", {format_bytes(sum(counts.lost))} is lost" if any(counts.lost) else ""
        held = f"{format_bytes(sum(counts.waiting))} of output is held in memory"
        return f"{counts.why}: {held}{lost}; the script keeps running ({session.path})"
    try:
        disk = os.statvfs(session.path)
    except FileNotFoundError:
        return f"the session was deleted: nothing more is recorded; the script keeps running ({session.path})"
    except OSError:  # an unresponsive mount
        return ""
    # Some network file systems report no blocks.
    if disk.f_blocks and disk.f_bavail * disk.f_frsize < MIN_FREE_BYTES:
        return f"no space left: nothing more is recorded; the script keeps running ({session.path})"
    return ""
