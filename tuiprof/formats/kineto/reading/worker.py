"""The main function of a worker process: decode stretches for a reader.

Requests arrive on standard input as fixed records; results are written to a file in memory, each into the slot named
in its request, and announced on standard output, so that a worker never waits for a busy reader. Both ends are of the
same version and machine, so answers are pickled.
"""

from __future__ import annotations

import os
import pickle
import struct

from tuiprof.system.memory import keep_freed

#: Number of the stretch; slot of its answer; where its text lies in the file handed down; its length.
REQUEST = struct.Struct("<qqqq")
#: Number of the stretch; length of the pickled chunk.
ANSWER = struct.Struct("<qq")


#: Slots lie far apart in a sparse file, so that a text or an answer of any length fits its own.
_APART = 1 << 33


def text_offset(slot: int) -> int:
    """Return where the text of a slot lies in the shared file."""
    return 2 * slot * _APART


def answer_offset(slot: int) -> int:
    """Return where the answer of a slot lies in the shared file."""
    return (2 * slot + 1) * _APART


def serve(requests: int, answers: int, file: int, shared: int) -> None:
    """Decode stretches until the requests end."""
    from tuiprof.formats.kineto.reading.decode import ChunkDecoder  # who starts workers has no numpy yet

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
