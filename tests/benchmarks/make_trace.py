"""Makes a large Kineto trace out of a real one, by repeating its events with shifted times and ids.

    python -m tests.benchmarks.make_trace REAL.json.gz BIG.json --megabytes 1024

The text of every event stays as the profiler wrote it, down to the white space; only times, correlations,
external ids, flow ids and step numbers move, so that each repetition is a later part of the same run.
"""

from __future__ import annotations

import argparse
import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

#: What moves: the key and its whole number (a fraction behind it stays), or the number of a step.
_SLOT = re.compile(
    rb'"(?P<key>ts|correlation|External id|external id|id|Ev Idx|Sequence number|Python id|Python parent id)"'
    rb": (?P<value>\d+)"
    rb"|ProfilerStep#(?P<step>\d+)"
)
_SHIFT_OF = {
    b"ts": "ts",
    b"correlation": "correlation",
    b"External id": "external",
    b"external id": "external",
    b"id": "flow",
    b"Sequence number": "sequence",
    b"Ev Idx": "index",
    b"Python id": "python",
    b"Python parent id": "python",
}


class _Event(msgspec.Struct):
    ph: str = ""
    cat: str = ""
    ts: float | str = 0.0
    dur: float = 0.0


class Template:
    """The events of a real trace, taken apart at everything that moves.

    Args:
        source: The real trace, plain or gzipped.
        stacks: Keep Python frames; without, they are left out.
    """

    def __init__(self, source: Path, *, stacks: bool = True) -> None:
        data = gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()
        document = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        events = bytes(document.pop("traceEvents"))
        self.head = b"{\n" + b"".join(
            b'  "%b": %b,\n' % (key.encode(), bytes(value)) for key, value in document.items()
        )
        texts = [bytes(piece) for piece in msgspec.json.decode(events, type=list[msgspec.Raw])]
        read = [msgspec.json.decode(text, type=_Event, strict=False) for text in texts]
        #: Written once, at the end: names of processes and threads, and the profiler's own marks.
        self.once = [t for t, e in zip(texts, read, strict=True) if e.ph == "M" or e.cat == "Trace"]
        kept = [
            (text, event)
            for text, event in zip(texts, read, strict=True)
            if event.ph != "M" and event.cat != "Trace" and (stacks or event.cat != "python_function")
        ]
        self.events = len(kept)
        times = [float(event.ts) for _, event in kept]
        ends = [float(event.ts) + event.dur for _, event in kept]
        self._period = int(max(ends) - min(times)) + 1000
        self._pieces: list[bytes] = []
        self._slots: list[tuple[str, int]] = []
        body = b",\n  ".join(text for text, _ in kept)
        at = 0
        for match in _SLOT.finditer(body):
            kind = "step" if match["step"] else _SHIFT_OF[match["key"]]
            start, end = match.span("step" if match["step"] else "value")
            self._pieces.append(body[at:start])
            self._slots.append((kind, int(body[start:end])))
            at = end
        self._pieces.append(body[at:])
        self._shift = {"ts": self._period}
        for kind in set(_SHIFT_OF.values()) - {"ts"} | {"step"}:
            values = [value for slot, value in self._slots if slot == kind]
            self._shift[kind] = max(values) - min(values) + 1 if values else 0

    def copy(self, number: int) -> bytes:
        """Return the text of one repetition.

        Args:
            number: Which, from 0.
        """
        shift = {kind: number * step for kind, step in self._shift.items()}
        parts: list[bytes] = []
        for piece, (kind, value) in zip(self._pieces, self._slots, strict=False):
            parts.append(piece)
            parts.append(b"%d" % (value + shift[kind] if value else 0))
        parts.append(self._pieces[-1])
        return b"".join(parts)


def pieces(template: Template, size: int) -> Iterator[bytes]:
    """Yield the text of a trace of at least this size.

    Args:
        template: What to repeat.
        size: Bytes.
    """
    yield template.head + b'  "traceEvents": [\n  '
    written = number = 0
    while written < size:
        text = template.copy(number)
        number += 1
        if written + len(text) > size:  # the last repetition ends where the size is reached
            cut = text.find(b"\n  },\n  {", max(0, size - written))
            text = text[: cut + 4] if cut >= 0 else text
        written += len(text)
        yield text + b",\n  "
    yield b",\n  ".join(template.once) + b"\n  ]\n}\n"


def make(source: Path, target: Path, megabytes: float, *, stacks: bool = True) -> Path:
    """Write a large trace.

    Args:
        source: The real trace.
        target: Where to; gzipped when it ends in ``.gz``.
        megabytes: How large at least, before compression.
        stacks: Keep Python frames.
    """
    template = Template(source, stacks=stacks)
    with gzip.open(target, "wb", compresslevel=6) if target.suffix == ".gz" else target.open("wb") as file:
        for piece in pieces(template, int(megabytes * 1e6)):
            file.write(piece)
    return target


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Make a large Kineto trace out of a real one.")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--megabytes", type=float, default=119.0)
    parser.add_argument("--no-stacks", action="store_true", help="leave Python frames out")
    arguments = parser.parse_args()
    make(arguments.source, arguments.target, arguments.megabytes, stacks=not arguments.no_stacks)


if __name__ == "__main__":
    main()
