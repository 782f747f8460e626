"""Reads damaged files in worker processes, as a user would, and says what became of each.

A worker is limited in memory and each case in time, so that a hang, a crash of the interpreter and a file that
takes all memory are seen as what they are::

    python -m tests.campaigns._reading KIND SEED NUMBER FOLDER    makes one case again, and reads it
"""

from __future__ import annotations

import contextlib
import gc
import gzip
import json
import os
import random
import resource
import select
import shutil
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tests.campaigns.campaign import Outcome

#: What a case may take. The address space holds what libraries reserve and never touch, so it is wider than memory.
LIMIT_S: Final = 60.0
MAX_BYTES: Final = 1 << 30
_ADDRESS_SPACE: Final = 6 << 30
ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Result:
    """What became of one case."""

    kind: str  # kind of file
    number: int  # number of the case
    outcome: str  # ``read`` or ``refused``; else what went wrong
    text: str = ""  # what was refused or went wrong
    peak: int = 0  # peak memory while it was read, bytes
    #: Whether Polars printed that it panicked; what it raised then was told as an error.
    panicked: bool = False

    @property
    def failed(self) -> bool:
        """Whether it broke the promise."""
        return self.outcome not in ("read", "refused")

    def line(self, seed: int) -> str:
        """Return a line for the list of failures."""
        last = self.text.strip().splitlines()[-1:] if self.text else []
        return f"{self.kind} {seed} {self.number}: {self.outcome}: {''.join(last)[:300]}"


def read_all(cases: Mapping[str, int], seed: int, folder: Path) -> Iterator[Result]:
    """Make and read cases, on as many cores as there are.

    Args:
        cases: How many of each kind.
        seed: Of the random choices.
        folder: Where they are written; each is deleted once it was read.
    """
    # Of each kind some at first, so that a run that is cut short has seen all.
    todo = sorted(((number, kind) for kind, count in cases.items() for number in range(count)))
    workers = os.cpu_count() or 1
    with ThreadPoolExecutor(workers) as pool:
        for results in pool.map(
            lambda part: list(_read_some(part, seed, folder)), (todo[i::workers] for i in range(workers))
        ):
            yield from results


def summary(results: Iterable[Result], seed: int) -> Outcome:
    """Return what a campaign found."""
    outcome, seen, read = Outcome(), Counter[str](), Counter[str]()
    peak = panicked = 0
    for result in results:
        outcome.cases += 1
        seen[result.kind] += 1
        read[result.kind] += result.outcome == "read"
        peak = max(peak, result.peak)
        panicked += result.panicked
        if result.failed:
            outcome.failures.append(result.line(seed))
    outcome.figures = {kind: f"{read[kind]} of {seen[kind]} read" for kind in sorted(seen)}
    outcome.figures["peak"] = f"{peak >> 20} MiB"
    if panicked:
        outcome.figures["Polars panicked"] = str(panicked)
    return outcome


def _read_some(cases: list[tuple[int, str]], seed: int, folder: Path) -> Iterator[Result]:
    worker: _Worker | None = None
    try:
        for number, kind in cases:
            worker = worker or _Worker(seed, folder)
            result = worker.read(kind, number)
            if worker.ended:
                worker.close()
                worker = None
            yield result
    finally:
        if worker is not None:
            worker.close()


class _Worker:
    """A process that reads one case after the other."""

    def __init__(self, seed: int, folder: Path) -> None:
        self._folder = Path(folder, f"worker{id(self)}")
        self._folder.mkdir()
        self._errors = open(self._folder / "stderr", "w+b")  # noqa: SIM115 - for as long as the worker
        environment = {
            **os.environ,
            "TUIPROF_TRACE_CACHE": "off",
            "OPENBLAS_NUM_THREADS": "1",
            "POLARS_MAX_THREADS": "2",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.campaigns._reading", "--serve", str(seed), str(self._folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, cwd=ROOT, env=environment,
        )  # fmt: skip
        self.ended = False

    def read(self, kind: str, number: int) -> Result:
        """Have a case read."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        self._errors.truncate(0)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(f"{kind} {number}\n".encode())
            process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], LIMIT_S)
        answer = process.stdout.readline() if ready else b""
        said = self._said()
        if not answer:
            self.ended = True
            if ready:
                return Result(kind, number, f"the interpreter ended with status {process.wait()}", said)
            process.kill()
            return Result(kind, number, f"not done after {LIMIT_S:.0f} s", said)
        result = Result(kind, number, **json.loads(answer))
        if result.failed:
            return result
        if result.peak > MAX_BYTES:
            return Result(kind, number, f"took {result.peak >> 20} MiB", result.text, result.peak)
        if "Traceback" in said:
            return Result(kind, number, "something was printed", said, result.peak)
        if "panicked" in said:  # a line of Polars' own, which it prints before it raises
            return replace(result, panicked=True)
        return result

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read(100_000).decode("utf-8", "replace").strip("\0")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()
        shutil.rmtree(self._folder, ignore_errors=True)


# -- in the worker --------------------------------------------------------------------------------------------


def make(kind: str, number: int, seed: int, folder: Path) -> Path:
    """Make the file, or the folder, of a case."""
    from tests.campaigns import _samples as samples
    from tests.campaigns._mutate import damage, mutated_frame, mutated_json, mutated_space

    rng = random.Random(f"{seed}:{kind}:{number}")
    if kind == "session":
        from tests.campaigns._sessions import make_root

        return make_root(rng, folder)
    if kind == "odd":
        from tests.campaigns._odd import odd_files

        return list(odd_files().values())[number](folder)
    by_value = rng.random() < 0.7
    match kind:
        case "kineto" | "kineto-gzip":
            if rng.random() < 0.4:
                data = damage(samples.odd_kineto(rng), rng)
            else:
                document = rng.choice(samples.kineto_documents())
                dump = rng.choice((json.dumps, samples.as_kineto))
                data = mutated_json(document, rng, dump) if by_value else damage(dump(document).encode(), rng)
            if kind == "kineto":
                return _written(folder / "rank0.pt.trace.json", data)
            packed = gzip.compress(data, 1)
            if rng.random() < 0.3:
                packed = gzip.compress(packed, 1)
            return _written(folder / "t.json.gz", damage(packed, rng) if rng.random() < 0.7 else packed)
        case "perfetto":
            document = rng.choice(samples.perfetto_documents())
            data = mutated_json(document, rng) if by_value else damage(json.dumps(document).encode(), rng)
            return _written(folder / "perfetto_trace.json", data)
        case "xplane":
            space = rng.choice(samples.spaces())
            data = mutated_space(space, rng) if by_value else damage(space, rng)
            if rng.random() < 0.1:
                return _written(folder / "vm.xplane.pb.gz", damage(gzip.compress(data, 1), rng))
            return _written(folder / "vm.xplane.pb", data)
        case "neuron-json":
            document = rng.choice(samples.neuron_documents())
            data = mutated_json(document, rng) if by_value else damage(json.dumps(document).encode(), rng)
            if rng.random() < 0.1:
                return _written(folder / "profile.json.gz", damage(gzip.compress(data, 1), rng))
            return _written(folder / "profile.json", data)
        case "neuron-parquet":
            import polars as pl

            profile = folder / "dev@latest"
            samples.write_neuron_tables(profile, rng)
            path = rng.choice(sorted(profile.glob("*.parquet")))
            if by_value:
                mutated_frame(pl.read_parquet(path), rng).write_parquet(
                    path, compression=rng.choice(("zstd", "snappy"))
                )
            else:
                path.write_bytes(damage(path.read_bytes(), rng))
            return profile
        case "neuron-monitor":
            documents = rng.choice(samples.monitor_documents())
            lines = [json.dumps(document).encode() for document in documents]
            at = rng.randrange(len(lines))
            lines[at] = mutated_json(documents[at], rng) if by_value else lines[at]
            text = b"\n".join(lines)
            return _written(folder / "monitor.ndjson", text if by_value else damage(text, rng))
    raise ValueError(kind)


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def read_trace(path: Path) -> None:
    """Read a trace as ``tuiprof report`` and the screens do, and ask all there is to ask.

    Raises:
        TraceError: It is refused.
        AssertionError: Something is not as promised.
    """
    from tuiprof import analyses
    from tuiprof.comparison import headline as trace_headline
    from tuiprof.formats import open_set, open_trace
    from tuiprof.model import Unavailable
    from tuiprof.report import formats, render_all

    trace = open_set(path, opener=lambda file: open_trace(file, workers=0, cache=False)).open(None)
    check(trace)
    answers = analyses.run_all(list(analyses.available()), trace)
    if len(trace.steps):
        answers += analyses.run_all(list(analyses.available()), trace, trace.steps.window(0))
    for answer in answers:
        assert not (isinstance(answer, Unavailable) and getattr(answer, "failed", False)), answer
    for name in formats():
        assert render_all(answers, name, trust=trace.trust.text)
    assert trace_headline.headline(trace)


def check(trace: Any) -> None:
    """Raise unless a trace keeps its promises."""
    import numpy as np

    starts, durs = trace.starts, trace.ints("dur")
    assert (np.diff(starts) >= 0).all(), "sorted by start"
    assert (durs >= 0).all(), "no negative lengths"
    assert (trace.ends >= starts).all(), "ends fit 64 bits"
    assert not len(trace) or int(starts[0]) >= 0 or trace.info.format != "kineto", "nothing before the origin"
    assert not len(trace) or int(trace.ints("track").max()) < len(trace.tracks), "every track is described"
    assert trace.stats.events >= len(trace), "no event is invented"
    assert trace.trust.line, "there is a trust line"
    assert trace.trust.text, "and all remarks"
    for row in range(0, len(trace), max(1, len(trace) // 50)):
        # A table can be damaged where nothing is read from but the text of an event.
        assert trace.raw_event(row) or trace.info.format == "neuron", "every event has its text"
        assert trace.name(row) is not None
    assert len(trace.steps.step_of) == len(trace)
    assert len(trace.nesting.parent) == len(trace)


def use(kind: str) -> Callable[[Path], None]:
    """Return what reads files of a kind."""
    if kind.startswith("session"):
        from tests.campaigns._sessions import read_session

        return read_session
    return read_trace


def _one(kind: str, number: int, seed: int, folder: Path) -> dict[str, Any]:
    """Make and read a case."""
    from tuiprof.errors import TuiprofError

    case = folder / f"{kind}-{number}"
    case.mkdir()
    try:
        path = make(kind, number, seed, case)
        gc.collect()
        _reset_peak()
        try:
            use(kind)(path)
        except TuiprofError as error:
            assert error.message, "an error says what is wrong"  # noqa: PT017 - the message is what is checked
            return {"outcome": "refused", "text": str(error), "peak": _peak()}
        return {"outcome": "read", "peak": _peak()}
    except BaseException as error:  # noqa: BLE001 - a panic of Polars is no Exception
        text = "".join(traceback.format_exception(error)[-12:])
        return {"outcome": _summary(error), "text": text[-6000:], "peak": _peak()}
    finally:
        shutil.rmtree(case, ignore_errors=True)


def _summary(error: BaseException) -> str:
    where = traceback.extract_tb(error.__traceback__)
    ours = next((frame for frame in reversed(where) if "/tuiprof/" in frame.filename), where[-1])
    return f"{type(error).__name__} in {Path(ours.filename).parent.name}/{Path(ours.filename).name}:{ours.lineno}"


def _reset_peak() -> None:
    with contextlib.suppress(OSError):  # not Linux: the peak is that of all cases so far
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    try:
        text = Path("/proc/self/status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(text.partition("VmHWM:")[2].split()[0]) * 1024


def _serve(seed: int, folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed is no answer
    for line in sys.stdin:
        kind, number = line.split()
        out.write(json.dumps(_one(kind, int(number), seed, folder)).encode() + b"\n")
        out.flush()


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        _serve(int(sys.argv[2]), Path(sys.argv[3]))
    else:
        kind, seed, number, folder = sys.argv[1:]
        made = make(kind, int(number), int(seed), Path(folder))
        print(made, flush=True)
        use(kind)(made)
