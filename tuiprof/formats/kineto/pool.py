"""Worker processes that decode stretches in parallel with the reader.

Requests arrive on a worker's standard input as fixed records; results are written to a file in memory, each into the
slot named in its request, and announced on standard output, so that a worker never waits for a busy reader. Both ends
are of the same version and machine, so answers are pickled.
"""

from __future__ import annotations

import os
import pickle
import selectors
import struct
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import tuiprof
from tuiprof.formats.kineto.layout import Stretch
from tuiprof.formats.source import Source
from tuiprof.system.own_process import cores, keep_freed

if TYPE_CHECKING:
    from tuiprof.formats.kineto.decode import Chunk


#: Number of the stretch; slot of its answer; offset of its text in the inherited file; its length.
REQUEST = struct.Struct("<qqqq")
#: Number of the stretch; length of the pickled chunk.
ANSWER = struct.Struct("<qq")


#: Distance of slots in a sparse file, so that a text or an answer of any length fits.
_APART = 1 << 33


def text_offset(slot: int) -> int:
    """Return the offset of a slot's text in the shared file."""
    return 2 * slot * _APART


def answer_offset(slot: int) -> int:
    """Return the offset of a slot's answer in the shared file."""
    return (2 * slot + 1) * _APART


def serve(requests: int, answers: int, file: int, shared: int) -> None:
    """Decode stretches until the requests end."""
    from tuiprof.formats.kineto.decode import ChunkDecoder  # who starts workers has no numpy yet

    keep_freed()
    decoder = ChunkDecoder()
    while len(record := _exactly(requests, REQUEST.size)) == REQUEST.size:
        number, slot, offset, length = REQUEST.unpack(record)
        text = read_at(file, offset, length)
        answer = pickle.dumps(decoder.decode(text), protocol=5)
        write_at(shared, answer, answer_offset(slot))
        try:
            os.write(answers, ANSWER.pack(number, len(answer)))
        except BrokenPipeError:
            return  # the reader has exited


def read_at(file: int, offset: int, length: int) -> bytes:
    """Read a stretch of a file; shorter at its end."""
    text = os.pread(file, length, offset)
    while 0 < len(text) < length and (more := os.pread(file, length - len(text), offset + len(text))):
        text += more
    return text


def _exactly(descriptor: int, size: int) -> bytes:
    parts = b""
    while len(parts) < size and (part := os.read(descriptor, size - len(parts))):
        parts += part
    return parts


def write_at(file: int, data: bytes, offset: int) -> None:
    """Write into a file."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(file, rest, offset)
        rest, offset = rest[written:], offset + written


#: Minimum number of queued stretches per worker, and in total, so that workers continue while the reader imports
#: Polars.
_DEPTH, _TOGETHER = 3, 6
#: Minimum bytes per worker, to offset its startup (about 0.1 s).
_WORTH_A_WORKER = 24 << 20
_MAX_WORKERS = 8
#: Assumed minimum compression ratio of JSON, to decide whether to start workers.
_SHRINKS = 8


def start_pool(source: Source, asked: int | None) -> Pool | None:
    """Start a suitable number of worker processes, or None; they import modules in parallel with the reader."""
    size = source.size * (1 if source.wrapping == "plain" else _SHRINKS)
    count = max(0, min(cores() - 1, _MAX_WORKERS, size // _WORTH_A_WORKER)) if asked is None else asked
    if not count:
        return None
    try:
        return Pool(count, source.path if source.wrapping == "plain" else None)
    except OSError:
        return None


class WorkerLost(Exception):
    """A worker process ended before its work was done."""


class _Worker:
    def __init__(self, file: int, shared: int) -> None:
        home = str(Path(tuiprof.__file__).parents[1])  # an editable install may not be on the path
        code = (
            f"import sys; sys.path[:] = {[*sys.path, home]!r}\n"
            f"from {__name__} import serve\n"
            f"serve(0, 1, {file}, {shared})"
        )
        # -S -E: nothing of the environment is needed, and reading it costs as much as numpy.
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(file, shared),
            bufsize=0,
            start_new_session=True,  # the reader handles Ctrl-C
            # NumPy's idle threads would spin (see tuiprof.system.own_process), also when a notebook starts the workers.
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.requests, self.answers = self.process.stdin, self.process.stdout
        self.held: deque[int] = deque()
        os.set_blocking(self.answers.fileno(), False)


class Pool:
    """Worker processes that decode stretches of a plain file, or stretches whose text is handed over in memory.

    Raises:
        OSError: No more processes are allowed, or the file cannot be read.
    """

    def __init__(self, count: int, path: Path | None) -> None:
        self._shared = _anonymous_file()
        self._file = self._shared if path is None else path.open("rb", buffering=0)
        self._most = max(_DEPTH, _TOGETHER // count)
        self._slots: deque[int] = deque(range(count * self._most))
        self._slot_of: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []
        try:
            for _ in range(count):
                worker = _Worker(self._file.fileno(), self._shared.fileno())
                self._workers.append(worker)
                self._selector.register(worker.answers, selectors.EVENT_READ, worker)
        except OSError:
            self.close()
            raise

    @property
    def busy(self) -> bool:
        """Whether results are pending."""
        return any(worker.held for worker in self._workers)

    def offer(self, number: int, stretch: Stretch) -> bool:
        """Give a stretch to a worker; False if all queues are full. Raises WorkerLost if the worker is gone."""
        worker = min(self._workers, key=lambda w: len(w.held))
        if len(worker.held) >= self._most:
            return False
        slot = self._slot_of[number] = self._slots.popleft()
        offset = stretch.offset
        if self._file is self._shared:
            assert stretch.data is not None
            offset = text_offset(slot)
            write_at(self._shared.fileno(), stretch.data, offset)
        try:
            worker.requests.write(REQUEST.pack(number, slot, offset, stretch.length))
        except BrokenPipeError as error:
            raise WorkerLost from error
        worker.held.append(number)
        return True

    def answers(self, timeout: float | None) -> Iterator[tuple[int, Chunk]]:
        """Yield the answers that have come, after waiting up to ``timeout`` s for the first; None = for as long as it
        takes.

        Raises:
            WorkerLost: A worker ended early.
        """
        for key, _ in self._selector.select(timeout):
            worker: _Worker = key.data
            while record := worker.answers.read(ANSWER.size):
                number, length = ANSWER.unpack(record)
                slot = self._slot_of.pop(number)
                chunk: Chunk = pickle.loads(read_at(self._shared.fileno(), answer_offset(slot), length))
                self._slots.append(slot)
                worker.held.remove(number)
                yield number, chunk
            if record == b"" and worker.held:
                raise WorkerLost

    def close(self) -> None:
        """End the workers."""
        self._selector.close()
        for one in self._workers:
            one.requests.close()
            one.answers.close()
            one.process.kill()
            one.process.wait()
        self._file.close()
        self._shared.close()


def _anonymous_file() -> BinaryIO:
    """Return a file in memory if the system supports it, else a deleted temporary file."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("tuiprof"), "r+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)
