"""Feeds damaged traces to the reader of Trace Event JSON until the time is up.

    python -m tests.fuzz_kineto --seconds 30 [--seed 1] [SEED_FILE…]

Whatever the bytes are, the reader must answer with a trace that keeps its promises or with a TraceError. A
finding is written to ``fuzz-finding.json`` and raised.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tuiprof.errors import TraceError
from tuiprof.formats import open_trace
from tuiprof.model import Trace

_SPICE = [
    b"NaN", b"-Infinity", b"1e999", b"-0", b"99999999999999999999", b'"', b"\\", b"\\u", b"\\ud800", b"\xff", b"\0",
    b"{", b"}", b"[", b"]", b"},{", b"}]", b",", b":", b"null", b'"ph":"B"', b'"ph":"E"', b'"ph":"C"', b'"ts":"1.5"',
    b'"dur":-1', b"{}", b"[[[[", b'"traceEvents":[', b"\x1f\x8b", b"1.7e15", b"0.0005", b'"args":[]', b'"tid":""',
]  # fmt: skip


def in_lines(event: dict[str, object]) -> str:
    """Lay an event out as libkineto does, which has a reader of its own."""

    def pairs(values: dict[str, object]) -> str:
        return ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())

    head = pairs({key: event[key] for key in ("ph", "cat", "name", "pid", "tid")})
    times = pairs({key: event[key] for key in ("ts", "dur") if key in event})
    args = pairs(dict(event["args"]))  # type: ignore[call-overload]
    return f'\n  {{\n    {head},\n    {times},\n    "args": {{\n      {args}\n    }}\n  }}'


def sample(rng: random.Random) -> bytes:
    """Return a small sound trace of many kinds of events."""
    base = rng.choice([0, 5_590_677_567_805, 1_700_000_000_000_000])
    events: list[dict[str, object]] = []
    for i in range(rng.randrange(12)):
        phase = rng.choice("XXXXXXBEiCMsf")
        event: dict[str, object] = {
            "ph": phase,
            "cat": rng.choice(["cpu_op", "kernel", "cuda_runtime", "gpu_memcpy", "user_annotation", "odd"]),
            "name": rng.choice(["a", "ProfilerStep#3", "ü \u2028", "cudaLaunchKernel", "[memory]", '"},{"']),
            "pid": rng.choice([0, 1, "Spans", -1, 1 << 63]),
            "tid": rng.choice([7, "7", "x", 1 << 64]),
            "ts": base + rng.choice([i, i + 0.5, i + 0.125, i * 1e-6]),
            "args": rng.choice(
                [{"correlation": i, "stream": 7}, {"bytes": 3, "Bytes": 4, "Addr": 1 << 60}, {}, {"v": 1.5}]
            ),
        }
        if phase == "X":
            event["dur"] = rng.choice([0, 1, 2.5, 1e-6, 1e6])
        events.append(event)
    if rng.random() < 0.5:
        text = "[" + ",".join(in_lines(event) for event in events) + "\n]"
    else:
        text = json.dumps(events, indent=rng.choice([None, 2]), ensure_ascii=rng.random() < 0.5)
    if rng.random() < 0.3:
        return text.encode()
    return (
        f'{{"schemaVersion": 1, "traceEvents": {text}, "traceName": "x", "baseTimeNanoseconds": 17}}'.encode()
    )


def damage(data: bytes, rng: random.Random) -> bytes:
    """Return the bytes with a few random faults."""
    changed = bytearray(data)
    for _ in range(rng.choice([0, 1, 1, 1, 2, 5])):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(6):
            case 0:
                changed[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del changed[at : at + rng.choice([1, 3, 40])]
            case 2:
                changed[at:at] = rng.choice(_SPICE)
            case 3:
                del changed[at:]
            case 4:
                other = rng.randrange(len(changed) + 1)
                changed[at:at] = changed[other : other + rng.choice([1, 30, 200])]
            case 5:
                spice = rng.choice(_SPICE)
                changed[at : at + len(spice)] = spice
    return bytes(changed)


def check(trace: Trace) -> None:
    """Raise unless a trace keeps its promises."""
    starts, durs = trace.starts, trace.ints("dur")
    assert (np.diff(starts) >= 0).all(), "sorted by start"
    assert (durs >= 0).all(), "no negative lengths"
    assert not len(trace) or int(starts[0]) >= 0, "nothing before the origin"
    assert not len(trace) or int(trace.ints("track").max()) < len(trace.tracks), "every track is described"
    assert trace.stats.events >= len(trace), "no event is invented"
    assert trace.trust.line, "there is a trust line"
    for row in range(len(trace)):
        assert trace.raw_event(row), "every event has its text"
        assert trace.name(row) is not None
    assert len(trace.steps.step_of) == len(trace)
    assert len(trace.nesting.parent) == len(trace)


def fuzz(seconds: float, seed: int, seeds: Sequence[bytes] = ()) -> tuple[int, int]:
    """Try damaged traces until the time is up.

    Args:
        seconds: How long.
        seed: Of the random numbers.
        seeds: Real files to damage; without, small ones are made.

    Returns:
        How many were tried, and how many gave a trace.
    """
    rng = random.Random(seed)
    tried = read = 0
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.json"
        while time.monotonic() < end:
            data = damage(rng.choice(seeds) if seeds else sample(rng), rng)
            if rng.random() < 0.1:
                data = damage(gzip.compress(data), rng)
            path.write_bytes(data)
            tried += 1
            try:
                check(open_trace(path, workers=0))
                read += 1
            except TraceError as error:
                assert error.message  # noqa: PT017 - the message is what is checked
            except BaseException:
                Path("fuzz-finding.json").write_bytes(data)
                raise
    return tried, read


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Fuzz the reader of Trace Event JSON.")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=time.time_ns())
    parser.add_argument("files", nargs="*", type=Path)
    arguments = parser.parse_args()
    seeds = [
        gzip.decompress(f.read_bytes()) if f.suffix == ".gz" else f.read_bytes() for f in arguments.files
    ]
    print(f"seed {arguments.seed}")
    tried, read = fuzz(arguments.seconds, arguments.seed, seeds)
    print(f"{tried} files tried, {read} read, {tried - read} refused, no finding")


if __name__ == "__main__":
    main()
