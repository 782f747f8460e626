"""Reads what a session recorded around a trace: source lines of host waits, and steps while no profiler ran.

The probe writes the source lines next to the trace, and a step with the arguments of operators. A session keeps its
traces in ``traces/`` and the log of each process in ``log/``. A trace of PyTorch is named after the process that it is
of, ``rank0.1795252887389.pt.trace.json.gz``; one of JAX is named after its host, and the log of the process has its
path.
"""

from __future__ import annotations

import json
import os
import re
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import compress, pairwise
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, TypeVar

import msgspec

from tuiprof.system.described import described
from tuiprof.system.files import UNDECODABLE, read_end, read_small_json

# The name of a sidecar is needed where neither numpy nor Polars is loaded yet.
if TYPE_CHECKING:
    import polars as pl

    from tuiprof.model.intervals import Floats
    from tuiprof.model.steps import (
        BatchPadding,
        Collections,
        PageFaults,
        SampledLine,
        Uncaptured,
        Weights,
        WorkerRestarts,
    )


_ENDINGS = (
    *(".pt.trace.json.gz", ".pt.trace.json", ".trace.json.gz", ".trace.json", ".json.gz", ".json"),
    *(".xplane.pb.gz", ".xplane.pb"),
)


#: Bytes of what the probe writes at most, by far.
_LARGEST = 256 << 20


#: What 64-bit columns hold, with room for sums: the files may be damaged.
_Whole = Annotated[int, msgspec.Meta(ge=-(1 << 60), le=1 << 60)]

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]


class _Site(msgspec.Struct):
    unix_ns: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
    tid: _Whole
    what: str
    frames: list[str]
    dur_ns: _Whole | None = None


#: What the probe writes beside a trace: source lines of host waits, and a step recorded for arguments of operators.
SIDECARS: Final = (".syncs.jsonl", ".shapes.gz")


def sidecar_names(trace: str) -> list[str]:
    """Return the names of the files that may be beside a trace, in the order of :data:`SIDECARS`."""
    stem = next(
        (trace.removesuffix(end) for end in _ENDINGS if trace.endswith(end)), trace.rpartition(".")[0]
    )
    return [stem + ending for ending in SIDECARS]


def shapes_beside(trace: Path) -> Path | None:
    """Return the step beside a trace that was recorded for the arguments of its operators; None = there is none."""
    path = trace.with_name(sidecar_names(trace.name)[1])
    return path if path.is_file() else None


def read_sync_sites(trace: Path) -> pl.DataFrame | None:
    """Return :attr:`tuiprof.model.Trace.sync_sites` from a trace's ``<stem>.syncs.jsonl``; None without one."""
    try:
        beside = trace.with_name(sidecar_names(trace.name)[0])
        if not beside.is_file() or beside.stat().st_size > _LARGEST:
            return None  # not recorded
        lines = beside.read_bytes().splitlines()
    except OSError:
        return None
    import polars as pl

    decode = msgspec.json.Decoder(described(_Site)).decode
    sites: list[_Site] = []
    for line in lines:
        try:
            sites.append(decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue  # the last line of a probe that was killed
    kinds = (pl.Int64, pl.Int64, pl.String, pl.List(pl.String), pl.Int64)
    schema: dict[str, Any] = dict(zip(_Site.__struct_fields__, kinds, strict=True))
    columns = {name: [getattr(site, name) for site in sites] for name in schema}
    return pl.DataFrame(columns, schema=schema).sort("unix_ns")


#: Minimum number of steps for an estimate.
MIN_STEPS: Final = 5
#: Maximum number of steps kept: the newest before the capture resemble the captured ones most.
_MAX_STEPS: Final = 1000
#: Number of steps from the start of a run or the end of a capture in which the host may run ahead, and how many of them
#: may be cold. Steps below this share of a steady one count, if there are at least this many.
_FIRST_STEPS: Final = 50
_COLD: Final = 3
_AHEAD: Final = 0.9
_MIN_AHEAD: Final = 2
#: The percentile of such steps that is what the host takes, an estimate: from the 10th to the 50th, sets 12 to 19 of
#: docs/results/predictions.md have the same scores.
_FAST_ONES: Final = 15
#: The host runs ahead where a step takes it less than this part of what it takes the device.
_HOST_AHEAD: Final = 0.95
#: Steps after a capture that its end may still disturb.
_DISTURBED: Final = 3
#: The device time of a step is logged later, within this many lines.
_LATER: Final = 200
_LONGEST_LINE: Final = 1 << 20
#: Steps are withdrawn early in a run, within this many bytes.
_EARLY: Final = 64 << 20
#: Repeatedly written records are within this many bytes of the end. Minimum number of line samples.
_TAIL: Final = 1 << 18
_MIN_SAMPLES: Final = 20
_CORE: Final = re.compile(r"core\d+_util$")
#: Measurements of the host that are read at most: the first minutes of a run.
_MAX_SAMPLES: Final = 500
_SOURCE: Final = b'{"t": "source"'
_LineT = TypeVar("_LineT", bound=msgspec.Struct)


class _Line(msgspec.Struct):
    """The fields of a log line that matter here; other lines have other fields."""

    t: str
    n: _Whole
    dur: _Whole
    at: _Whole = 0  # its end, by the clock of the log
    ph: dict[str, _Whole] = {}
    cap: bool = False
    gc: tuple[_Count, _Count] = (0, 0)  # number and time of garbage collections


class _Source(msgspec.Struct):
    """What ends a step from here on."""

    withdrawn: _Whole = 0


class _Lines(msgspec.Struct):
    """Where the main thread was seen."""

    samples: _Whole
    top: list[tuple[str, _Whole, _Whole]]
    doing: list[str]


class _Workers(msgspec.Struct):
    """What a loader that starts its workers again took so far."""

    n: _Whole
    workers: _Whole
    starts: _Whole
    ns: _Whole
    waited_ns: _Whole


class _Padding(msgspec.Struct):
    """How much of the batches looked at so far is padding."""

    batches: _Whole
    width: _Whole
    longest: _Whole
    masked: _Whole
    full: _Whole
    least: _Whole
    most: _Whole
    cut: bool = False
    frames: _Whole = 0


class _Weights(msgspec.Struct):
    """The parameters that a capture has seen so far."""

    types: dict[str, Annotated[int, msgspec.Meta(gt=0, le=1 << 60)]]
    kernels: _Count
    depthwise: _Count
    first: _Count
    last: _Count


class _Capture(msgspec.Struct):
    """A state of a capture."""

    state: str
    last: _Whole | None = None


class _Threads(msgspec.Struct):
    """The threads that an operator may use on a CPU."""

    n: _Whole


class _Trainer(msgspec.Struct):
    """The framework whose training loop makes the steps."""

    name: str


class _Usage(msgspec.Struct):
    """What the process has used so far."""

    at: _Whole
    faults: _Whole
    user_ns: _Whole
    system_ns: _Whole
    thread_ns: _Whole | None = None


class _Garbage(msgspec.Struct):
    """What garbage collections took so far."""

    steps: _Count
    count: _Count
    ns: _Count
    squares: Annotated[float, msgspec.Meta(ge=0.0)]


class _Host(msgspec.Struct):
    """What the recorder measured of the host."""

    m: dict[str, float]
    at: _Whole = 0
    dev: str = ""


class _Head(msgspec.Struct):
    """The first line of a log: the same moment by the system's clock and by the log's."""

    unix_ns: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
    mono_ns: _Whole


class _Details(msgspec.Struct):
    usable_cores: int | None = None
    bf16: str | None = None


class _Device(msgspec.Struct):
    kind: str = ""
    details: _Details = msgspec.field(default_factory=_Details)


class _Meta(msgspec.Struct):
    devices: list[_Device] = []
    cwd: str = ""


def read_uncaptured(trace: Path) -> Uncaptured | None:
    """Return the steps of a session that no profiler disturbed; None without a session, or with too few of them."""
    import numpy as np

    from tuiprof.model.steps import Uncaptured

    log = _log_of(trace.resolve())
    if log is None:
        return None
    try:
        steps = _read_steps(log)
    except OSError:
        return None
    # The first steps of a run compile, tune and fill caches.
    before = list(steps.before)
    steady = before[len(before) // 2 :]
    chosen, is_after = (steady, False) if len(steady) >= MIN_STEPS else (list(steps.after), True)
    if len(chosen) < MIN_STEPS:  # of long steps the capture comes early, and the run may be short
        chosen, is_after = before[1:][-MIN_STEPS:], False
    if not steps.captured or len(chosen) < MIN_STEPS:
        return None
    numbers = {step.n for step in chosen}
    host_ns = _ahead((steps.first, steps.resumed), chosen)
    waits = _data_waits(chosen)
    times = [step.dur + round(wait) for step, wait in zip(chosen, _averaged(waits) - waits, strict=True)]
    fetch_ns = float(np.mean(waits)) if any(_DATA in step.ph for step in chosen) else None
    later = () if is_after else tuple(step.dur for step in steps.after)
    last_steps = _last_steps(log, steps)
    last = tuple(step.dur for step in last_steps)
    collections = _collections(log, steps, ([*chosen], [*(() if is_after else steps.after)], last_steps))
    device = [step.dur for step in steps.device if step.n in numbers]
    device_ns = np.array(device, dtype=np.float64)
    if device and waits.any():
        device_ns = _averaged(device_ns)
    on_device_ns = float(np.median(device_ns)) if device else 0.0
    if len(device) >= MIN_STEPS and np.median(times) < _HOST_AHEAD * on_device_ns:
        # The launch queue was not full yet: they give the time of the host, and the device's log gives the step time.
        times, host_ns, later, last, fetch_ns = device, float(np.median(times)), (), (), None
        took = {step.n: step.dur for step in steps.device}
        on_device = [msgspec.structs.replace(step, dur=took[step.n]) for step in chosen if step.n in took]
        collections = _collections(log, steps, (on_device,))
    low, median, high = (float(ns) for ns in np.percentile(times, (10, 50, 90)))
    session = log.parent.parent
    every = [step.at for step in (*before, *steps.after)]
    meta = read_small_json(session / "session.json", _Meta) or _Meta()
    host = next((device.details for device in meta.devices if device.kind == "host"), _Details())
    return Uncaptured(
        len(chosen),
        median,
        low,
        high,
        host_ns,
        is_after,
        host.usable_cores,
        *_cores(log.parent / "recorder.jsonl", _shifted((min(every), max(every)), log)),
        host.bf16,
        _lines(log, meta.cwd),
        _restarts(log),
        _padding(steps.padding),
        _weights(steps.weights),
        _page_faults(steps, median),
        collections,
        tuple(times),
        later,
        last,
        _slowed(chosen, steps.in_capture),
        fetch_ns,
        _phases_ns(chosen),
        steps.threads,
        _thread_share(steps),
        steps.trainer,
    )


#: Waits for a batch count up to this percentile of them: rare longer ones are those for new workers.
_LONGEST_WAIT: Final = 95
#: Number of steps over which they are averaged.
_IN_TURNS: Final = 8


def _data_waits(steps: Sequence[_Line]) -> Floats:
    """Return how long each step waits for its batch, ns, without rare long waits."""
    import numpy as np

    waits = np.array([step.ph.get(_DATA, 0) for step in steps], dtype=np.float64)
    return np.minimum(waits, np.percentile(waits, _LONGEST_WAIT, method="lower"))


def _averaged(times: Floats) -> Floats:
    """Return times averaged over neighbouring steps: several workers deliver several batches at once."""
    import numpy as np

    window = np.ones(min(_IN_TURNS, len(times)))
    summed, count = (np.convolve(values, window, "same") for values in (times, np.ones(len(times))))
    averaged: Floats = summed / count
    return averaged


_DATA: Final = "data"
#: Phases that a trace shows as well.
_PHASES: Final = ("backward", "optimizer")


def _phases_ns(steps: Sequence[_Line]) -> dict[str, float]:
    """Return what each phase takes at most in nine of ten steps, ns."""
    import numpy as np

    found = {name: [step.ph[name] for step in steps if name in step.ph] for name in _PHASES}
    return {
        name: float(np.percentile(times, 90)) for name, times in found.items() if 2 * len(times) > len(steps)
    }


def _slowed(uncaptured: Sequence[_Line], captured: Sequence[_Line]) -> dict[str, float]:
    """Return what the profiler added to each phase of a step, and to the rest of it (``""``), ns; empty = not known."""
    import numpy as np

    if len(captured) < 2:  # the profiler begins in the first one
        return {}
    before, then = (
        np.array(
            [
                (step.ph.get(_DATA, 0), *(step.ph.get(name, 0) for name in _PHASES), step.dur)
                for step in steps
            ],
            dtype=np.float64,
        )
        for steps in (uncaptured, captured[1:])
    )
    # A profiler makes no batch come earlier, but a loader gets ahead while it starts.
    early = then[:, 0].mean() < before[:, 0].mean()
    for steps in (before, then):
        steps[:, -1] -= steps[:, 0 if early else 1 : -1].sum(axis=1)
    added: list[float] = (np.median(then, axis=0) - np.median(before, axis=0))[1:].tolist()
    return dict(zip((*_PHASES, ""), added, strict=True))


def _log_of(trace: Path) -> Path | None:
    """Return the log of the process that a trace is of."""
    traces = next((folder for folder in trace.parents if folder.name == "traces"), None)
    logs = traces.parent / "log" if traces is not None else None
    if logs is None or not logs.is_dir():
        return None
    if trace.parent == traces:
        log = logs / f"{trace.name.partition('.')[0]}.jsonl"
        return log if log.is_file() else None
    written = f'"path": {json.dumps(str(trace.relative_to(logs.parent)))}'.encode()
    return next((log for log in sorted(logs.glob("*.jsonl")) if _has_capture(log, written)), None)


def _has_capture(log: Path, written: bytes) -> bool:
    """Return whether a log records a capture that was written to a path."""
    with suppress(OSError), log.open("rb") as lines:
        while line := lines.readline(_LONGEST_LINE):
            if line.startswith(b'{"t": "capture"') and written in line:
                return True
    return False


_NEWEST: Final[Callable[[], deque[_Line]]] = partial(deque, maxlen=_MAX_STEPS)


@dataclass(slots=True)
class _Steps:
    """The steps of a log that matter here."""

    captured: bool = False
    in_capture: list[_Line] = field(default_factory=list)  # those of the first one
    last_of_window: int | None = None  # its last step; what is captured later is recorded otherwise
    first: list[_Line] = field(default_factory=list)  # the first ones of the run
    before: deque[_Line] = field(default_factory=_NEWEST)  # before the first capture
    after: deque[_Line] = field(default_factory=_NEWEST)  # after the last one
    resumed: list[_Line] = field(default_factory=list)  # right after the last capture
    device: deque[_Line] = field(default_factory=_NEWEST)  # what the device took
    padding: _Padding | None = None  # the last of the first steps, as it is not written later
    weights: _Weights | None = None  # of the first capture
    threads: int | None = None  # likewise
    trainer: str = ""  # likewise
    garbage: _Garbage | None = None  # early in the run, after its warm-up
    usage: deque[_Usage] = field(default_factory=partial(deque, maxlen=_MAX_STEPS))  # newest last


def _read_steps(log: Path) -> _Steps:
    found = _Steps()
    captured_at, later = -1, 0
    decode = msgspec.json.Decoder(described(_Line)).decode
    with log.open("rb") as lines:
        lines.seek(_counted_from(lines))
        while later < _LATER and (line := lines.readline(_LONGEST_LINE)):
            later += found.captured and len(found.before) >= 2 * MIN_STEPS
            if line.startswith(b'{"t": "padding"'):
                with suppress(*UNDECODABLE):  # a damaged line, or the one being written
                    found.padding = msgspec.json.decode(line, type=described(_Padding))
                continue
            if line.startswith(b'{"t": "weights"'):
                with suppress(*UNDECODABLE):
                    found.weights = msgspec.json.decode(line, type=described(_Weights))
                continue
            if line.startswith(b'{"t": "capture"'):
                with suppress(*UNDECODABLE):
                    capture = msgspec.json.decode(line, type=described(_Capture))
                    if capture.state == "started" and found.last_of_window is None:
                        found.last_of_window = capture.last
                continue
            if line.startswith(b'{"t": "threads"'):
                with suppress(*UNDECODABLE):
                    found.threads = msgspec.json.decode(line, type=described(_Threads)).n or None
                continue
            if line.startswith(b'{"t": "trainer"'):
                with suppress(*UNDECODABLE):
                    found.trainer = msgspec.json.decode(line, type=described(_Trainer)).name
                continue
            if line.startswith(b'{"t": "usage"'):
                with suppress(*UNDECODABLE):
                    found.usage.append(msgspec.json.decode(line, type=described(_Usage)))
                continue
            if line.startswith(b'{"t": "garbage"'):
                with suppress(*UNDECODABLE):
                    found.garbage = found.garbage or msgspec.json.decode(line, type=described(_Garbage))
                continue
            is_step = line.startswith((b'{"t":"step"', b'{"t": "step"'))
            if not is_step and not line.startswith((b'{"t":"dev"', b'{"t": "dev"')):
                continue
            try:
                step = decode(line)
            except UNDECODABLE:  # a damaged line, or the one being written
                continue
            if not is_step:
                found.device.append(step)
            elif step.cap:
                if not found.after and (found.last_of_window is None or step.n <= found.last_of_window):
                    found.in_capture.append(step)
                found.captured, captured_at = True, step.n
                found.resumed.clear()
            elif not found.captured:
                found.before.append(step)
                if 0 < step.n <= _FIRST_STEPS:
                    found.first.append(step)
            else:
                if step.n <= captured_at + _FIRST_STEPS:
                    found.resumed.append(step)
                if step.n > captured_at + _DISTURBED:
                    found.after.append(step)
    return found


def _counted_from(log: BinaryIO) -> int:
    """Return where the steps of a log begin that were not withdrawn later."""
    if not log.seek(0, os.SEEK_END):
        return 0
    with mmap(log.fileno(), 0, access=ACCESS_READ) as text:
        at = min(len(text), _EARLY)
        while (at := text.rfind(_SOURCE, 0, at)) >= 0:
            end = text.find(b"\n", at) + 1
            with suppress(*UNDECODABLE):  # a damaged line, or the one being written
                if msgspec.json.decode(text[at:end], type=described(_Source)).withdrawn:
                    return end
    return 0


def _ahead(begun: Sequence[list[_Line]], steady: Sequence[_Line]) -> float | None:
    """Return what steps take while the host runs ahead, ns; None = it does not, as far as is known.

    It does so where nothing is queued yet: at the start of a run and after a capture. Such steps have the phases of a
    steady step, and take clearly less. Once they take as long, the queue is full: a shorter step later only makes up
    for a longer one before it.
    """
    import numpy as np

    limit = _AHEAD * float(np.median([step.dur for step in steady]))
    phases = {frozenset(step.ph) for step in steady}
    ahead: list[int] = []
    for steps in begun:
        counts = [0 < step.dur < limit and frozenset(step.ph) in phases for step in steps]
        if True in counts[:_COLD]:
            start = counts.index(True)
            end = counts.index(False, start) if False in counts[start:] else len(counts)
            ahead += (step.dur for step in steps[start:end])
    # Some of them are still cold, the last of them wait for the queue already, and those after a capture may be slower.
    return float(np.percentile(ahead, _FAST_ONES)) if len(ahead) >= _MIN_AHEAD else None


def _lines(log: Path, cwd: str) -> tuple[SampledLine, ...]:
    """Return the lines at which the main thread was sampled, as the log has them last."""
    from tuiprof.model.steps import SampledLine

    found = _last(log, b'{"t": "lines"', _Lines)
    if found is None or found.samples < _MIN_SAMPLES:
        return ()
    inside = cwd.rstrip("/") + "/"
    return tuple(
        SampledLine(f"{file.removeprefix(inside)}:{line}", count / found.samples, doing)
        for (file, line, count), doing in zip(found.top, found.doing, strict=False)
    )


def _restarts(log: Path) -> WorkerRestarts | None:
    """Return how loaders started their workers again, as the log has it last."""
    from tuiprof.model.steps import WorkerRestarts

    found = _last(log, b'{"t": "workers"', _Workers)
    if found is None or min(found.n, found.starts, found.ns) <= 0:
        return None
    return WorkerRestarts(found.workers, found.starts, found.n, found.ns, max(found.waited_ns, 0))


def _padding(found: _Padding | None) -> BatchPadding | None:
    """Return how much of the batches is padding, if the sums make sense."""
    from tuiprof.model.steps import BatchPadding

    if found is None or not 0 < found.longest <= found.width or found.batches <= 0:
        return None
    return BatchPadding(**msgspec.structs.asdict(found))


def _weights(found: _Weights | None) -> Weights | None:
    """Return the parameters of a capture, if there are any."""
    from tuiprof.model.steps import Weights

    return Weights(**msgspec.structs.asdict(found)) if found is not None and found.types else None


def _steady_usage(steps: _Steps) -> list[_Usage]:
    """Return what was used when, before the first capture; in short runs, of all of it."""
    usage = list(steps.usage)
    begun_at = min((step.at - step.dur for step in steps.in_capture), default=0)
    before = [used for used in usage if used.at <= begun_at]
    # The first second is warm-up.
    return before[1:] if len(before) > 2 else before if len(before) > 1 else usage


def _thread_share(steps: _Steps) -> float | None:
    """Return the share of the time that the thread which makes the steps was on a core."""
    known = [(used.at, used.thread_ns) for used in _steady_usage(steps) if used.thread_ns is not None]
    if len(known) < 2:
        return None
    passed_ns, cpu_ns = (last - first for first, last in zip(known[0], known[-1], strict=True))
    return min(cpu_ns / passed_ns, 1.0) if passed_ns > 0 <= cpu_ns else None


def _page_faults(steps: _Steps, step_ns: float) -> PageFaults | None:
    """Return the page faults of a step."""
    from tuiprof.model.steps import PageFaults

    chosen = _steady_usage(steps)
    if len(chosen) < 2:
        return None
    first, last = chosen[0], chosen[-1]
    system_ns, faults = last.system_ns - first.system_ns, last.faults - first.faults
    passed_ns, cpu_ns = last.at - first.at, system_ns + last.user_ns - first.user_ns
    if min(passed_ns, cpu_ns) <= 0 or min(system_ns, faults) < 0:
        return None
    return PageFaults(faults * step_ns / passed_ns, min(system_ns / cpu_ns, 1.0))


def _collections(log: Path, read: _Steps, groups: Sequence[Sequence[_Line]]) -> Collections | None:
    """Return Python's garbage collections, with steps in groups that may differ in speed; None = not recorded."""
    import numpy as np

    from tuiprof.model.steps import STANDS_OUT, Collections

    last, first = _last(log, b'{"t": "garbage"', _Garbage), read.garbage
    if last is None or not last.steps:
        return None
    sums = np.array(msgspec.structs.astuple(last), dtype=np.float64)
    if first is not None and first.steps < last.steps:  # without the warm-up
        sums -= np.array(msgspec.structs.astuple(first), dtype=np.float64)
    if sums.min() < 0:  # it counts from 0 again
        return None
    usual_ns = float(np.median([step.gc[1] for group in groups for step in group] or [0]))
    longer = collected = 0.0
    for group in groups:
        if not group:
            continue
        took, in_it = np.array([(step.dur, step.gc[1]) for step in group], dtype=np.float64).T
        low, median = np.percentile(took, (10, 50))
        in_it = np.maximum(in_it - usual_ns, 0.0)
        # Where shorter ones are, steps are as much longer by chance.
        long = in_it > STANDS_OUT * (median - low)
        longer += float(np.clip(took - median, 0.0, in_it)[long].sum())
        collected += float(in_it[long].sum())
    steps, count, ns, squares = sums.tolist()
    shown = longer / collected if collected else None
    return Collections(int(steps), int(count), ns, squares, usual_ns, shown)


def _last_steps(log: Path, read: _Steps) -> list[_Line]:
    """Return the last steps of a run; empty = all of them were read before."""
    known = max((step.n for step in (*read.before, *read.in_capture, *read.after)), default=0)
    decode, found = msgspec.json.Decoder(described(_Line)).decode, list[_Line]()
    for line in read_end(log, _TAIL).splitlines():
        if line.startswith((b'{"t":"step"', b'{"t": "step"')):
            with suppress(*UNDECODABLE):  # cut off, damaged, or the one being written
                step = decode(line)
                if step.n > known and not step.cap:
                    found.append(step)
    return found[-_MAX_STEPS:]


def _last(log: Path, beginning: bytes, kind: type[_LineT]) -> _LineT | None:
    """Return the last line near the end of a log that begins so and is whole; None = there is none."""
    written = [line for line in read_end(log, _TAIL).splitlines() if line.startswith(beginning)]
    for line in reversed(written):
        try:
            return msgspec.json.decode(line, type=described(kind))
        except UNDECODABLE:  # damaged, or the one being written
            continue
    return None


def _shifted(instants: tuple[int, ...], log: Path) -> tuple[int, ...]:
    """Return instants of a log in Unix time, ns; none if it does not say how they relate."""
    with log.open("rb") as lines, suppress(*UNDECODABLE):
        head = msgspec.json.decode(lines.readline(_LONGEST_LINE), type=described(_Head))
        return tuple(at + head.unix_ns - head.mono_ns for at in instants)
    return ()


def _cores(log: Path, steps: tuple[int, ...]) -> tuple[float | None, float | None]:
    """Return how many cores a run keeps busy, and how many are idle, in the median; None = not recorded.

    ``steps`` has the first and last instant of the steps, Unix time in ns; empty = not known.
    """
    import numpy as np

    if not log.is_file():
        return None, None
    measured: list[int] = []
    found: list[tuple[float, float]] = []
    decode = msgspec.json.Decoder(described(_Host)).decode
    with log.open("rb") as lines:
        while len(found) < _MAX_SAMPLES and (line := lines.readline(_LONGEST_LINE)):
            if b'"dev":"host"' not in line[:100]:
                continue
            try:
                host = decode(line)
            except UNDECODABLE:
                continue
            idle = [1 - value for name, value in host.m.items() if _CORE.match(name)]
            if idle and "tree_cpu" in host.m:
                measured.append(host.at)
                found.append((host.m["tree_cpu"], sum(idle)))
    # Each covers the time since the one before. Before the first step, a run imports and builds a model on one core; if
    # none lies within the steps, the first half is left out.
    at = _shifted(tuple(measured), log)
    inside = [begin >= steps[0] and end <= steps[1] for begin, end in pairwise(at)] if at and steps else []
    steady = np.array(list(compress(found[1:], inside)) or found[len(found) // 2 :])
    if not len(steady) or not np.isfinite(steady).all():
        return None, None
    busy, idle_cores = np.maximum(np.median(steady, axis=0), 0.0).tolist()
    return busy, idle_cores
