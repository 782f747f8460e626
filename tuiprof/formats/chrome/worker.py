"""What a worker process does: decode stretches for a reader.

Requests come on standard input as fixed records; answers go to standard output, length first. Both ends
are of the same version and machine, so answers are pickled.
"""

from __future__ import annotations

import os
import pickle
import struct

from tuiprof.formats._memory import keep_freed

#: Number of the stretch; where its text lies in the file handed down; its length.
REQUEST = struct.Struct("<qqq")
#: Number of the stretch; length of the pickled chunk.
ANSWER = struct.Struct("<qq")


def serve(requests: int, answers: int, file: int) -> None:
    """Decode stretches until the requests end.

    Args:
        requests: Descriptor to read requests from.
        answers: Descriptor to write answers to.
        file: Descriptor of the file that holds the text.
    """
    from tuiprof.formats.chrome.decode import ChunkDecoder  # who starts workers has no numpy yet

    keep_freed()
    decoder = ChunkDecoder()
    while len(record := _exactly(requests, REQUEST.size)) == REQUEST.size:
        number, offset, length = REQUEST.unpack(record)
        text = read_at(file, offset, length)
        answer = pickle.dumps(decoder.decode(text), protocol=5)
        try:
            _write(answers, ANSWER.pack(number, len(answer)) + answer)
        except BrokenPipeError:
            return  # the reader is gone: so is the reason to work


def read_at(file: int, offset: int, length: int) -> bytes:
    """Read a stretch of a file; shorter at its end.

    Args:
        file: Descriptor.
        offset: Where it begins.
        length: How long it is.
    """
    text = os.pread(file, length, offset)
    while 0 < len(text) < length and (more := os.pread(file, length - len(text), offset + len(text))):
        text += more
    return text


def _exactly(descriptor: int, size: int) -> bytes:
    parts = b""
    while len(parts) < size and (part := os.read(descriptor, size - len(parts))):
        parts += part
    return parts


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
