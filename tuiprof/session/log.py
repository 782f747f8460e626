"""The lines of a session log, and how they are appended and read. Every writer appends JSON objects to its own file.

``at`` is the time of a record by the writer's monotonic clock, ns; the ``head`` line pairs it with Unix time, so a wall
clock that jumps cannot disorder a log. CLOCK_MONOTONIC is one clock for all processes of a host. The probe writes the
same lines by hand (it has only the standard library); a test decodes what it writes with these types.
A reader ignores fields and line types that it does not know.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import Annotated, Final

import msgspec

from tuiprof.system.files import UNDECODABLE, explain, open_regular

SCHEMA_VERSION: Final = 1

#: A number that fits 64-bit columns, with room for sums, as a log may be damaged or untrusted. As ns: 36 years.
Whole = Annotated[int, msgspec.Meta(ge=-(1 << 60), le=1 << 60)]
#: Unix time, ns: up to the year 2116.
UnixNs = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]

# gc=False: records hold no cycles, and millions of them would keep the garbage collector busy.


class Head(msgspec.Struct, tag="head", tag_field="t", gc=False):
    """First line of every file.

    Attributes:
        v: Schema version.
        writer: ``rank0``, ``recorder``, …
        pid: Process.
        unix_ns: Unix time in ns at ``mono_ns``.
        mono_ns: Monotonic time in ns.
        rank: Rank of a training process; None for others.
        world: Number of ranks; None = unknown.
        python: Python version of the writer.
        versions: Framework versions, e.g. ``{"torch": "2.11.0"}``.
        process: Name of the process if ``multiprocessing`` started it, e.g. ``Process-1``.
        job: Environment variables of the launcher that are the same in all processes of a distributed run, e.g.
            ``MASTER_ADDR``.
        boot: The kernel's boot identity: writers with the same one share one monotonic clock, others are
            aligned by their Unix times. Empty = the clock of the session's own machine.
    """

    v: int
    writer: str
    pid: Whole
    unix_ns: UnixNs
    mono_ns: Whole
    rank: Whole | None = None
    world: Whole | None = None
    python: str = ""
    versions: dict[str, str] = {}
    boot: str = ""
    process: str = ""
    job: dict[str, str] = {}


class Step(msgspec.Struct, tag="step", tag_field="t", gc=False):
    """One training step, written when it ends.

    Attributes:
        n: Step number, from 0.
        at: End, monotonic ns.
        dur: Host time from the end of the step before, ns.
        ph: Host time of each phase in ns; phases that overlap the whole step need not add up to ``dur``.
        v: Metrics given by the script, e.g. loss.
        cap: The step ran under the profiler.
    """

    n: Whole
    at: Whole
    dur: Whole
    ph: dict[str, Whole] = {}
    v: dict[str, float] = {}
    cap: bool = False


class StepSource(msgspec.Struct, tag="source", tag_field="t", gc=False):
    """The source of steps, from here on.

    Attributes:
        what: In words, e.g. ``"optimizer steps"``.
        where: The line of the script, ``file:line``; empty = unknown.
        withdrawn: Number of earlier steps of this writer that were not steps; it counts from 0 again.
        missed: Number of steps before the first one that were not counted, because they were not yet detected.
        missed_ns: Time of the script in the loop before it was found, ns; the number of steps is unknown.
    """

    at: Whole
    what: str
    where: str = ""
    withdrawn: Whole = 0
    missed: Whole = 0
    missed_ns: Whole = 0


class LikelyStep(msgspec.Struct, tag="likely", tag_field="t", gc=False):
    """The loop whose iterations are probably the steps, if no source is known and they cannot be counted.

    Attributes:
        where: The script's line, ``file:line``.
    """

    at: Whole
    where: str


class Lines(msgspec.Struct, tag="lines", tag_field="t", gc=False):
    """Sampled lines of the thread that makes the steps, since the first sample; written repeatedly.

    Attributes:
        samples: Number of samples in which the script ran.
        top: File, line and number of samples of the most frequent lines, most frequent first, one entry per line and
            activity.
        doing: The activities, in the order of ``top``: "backward", "waits for a batch", …; empty = something else.
        ns: Time spent on sampling so far, ns.
    """

    at: Whole
    samples: Whole
    top: list[tuple[str, Whole, Whole]] = []
    doing: list[str] = []
    ns: Whole = 0


class WorkersStarted(msgspec.Struct, tag="workers", tag_field="t", gc=False):
    """A loader that had workers before has started new ones, which ``persistent_workers=True`` avoids.

    Attributes:
        n: Number of the running step.
        workers: Number of workers started.
        starts: Number of such restarts in this process.
        ns: Total time of stopping old workers and starting new ones in the thread that fetches batches, ns.
        waited_ns: Total wait for the first batches, ns.
    """

    at: Whole
    n: Whole
    workers: Whole
    starts: Whole
    ns: Whole
    waited_ns: Whole


class DeviceStep(msgspec.Struct, tag="dev", tag_field="t", gc=False):
    """Device time of a step by device events, known some steps later.

    Attributes:
        n: Step number.
        dur: Time on the device between the ends of two steps, ns.
        every: Every n-th step is timed at this point, because timing each would cost a short step too much.
    """

    n: Whole
    dur: Whole
    every: Whole = 1


class Memory(msgspec.Struct, tag="mem", tag_field="t", gc=False):
    """The framework allocator's view of one device, bytes.

    Attributes:
        dev: Device index.
        alloc: Allocated now.
        reserved: Reserved from the driver now.
        peak: Highest allocated so far.
    """

    at: Whole
    dev: Whole
    alloc: Whole
    reserved: Whole
    peak: Whole


class Uses(msgspec.Struct, tag="uses", tag_field="t", gc=False):
    """The accelerator of a device index of this process, written once it holds memory there.

    Attributes:
        dev: Device index, as the framework counts.
        uuid: The device's UUID, or MIG instance's, without the vendor's prefix; empty = unknown.
        pci: Its PCI address, ``0000:1b:00``; empty = unknown.
    """

    at: Whole
    dev: Whole
    uuid: str = ""
    pci: str = ""


class Cost(msgspec.Struct, tag="cost", tag_field="t", gc=False):
    """Cost of the probe, measured by itself.

    Attributes:
        steps: Number of steps included in ``ns``: all except captured ones.
        ns: Time spent in the probe's hooks so far, ns. Measured at the end of each step, and taken for its other
            hooks as well.
        flush_ns: CPU time of the probe's writing thread so far, ns; it runs beside the script.
    """

    at: Whole
    steps: Whole
    ns: Whole
    flush_ns: Whole = 0


class Capture(msgspec.Struct, tag="capture", tag_field="t", gc=False):
    """State of a capture request.

    Attributes:
        id: Name of the request.
        state: ``armed``, ``started``, ``written`` or ``failed``.
        first: First step captured; None = not yet known.
        last: Last step captured.
        path: Trace file relative to the session directory, when written.
        why: Reason of a failure.
        ns: Host time spent starting, stopping and writing, ns.
        cause: Why the probe made it automatically (a trigger); empty = requested.
    """

    at: Whole
    id: str
    state: str
    first: Whole | None = None
    last: Whole | None = None
    path: str = ""
    why: str = ""
    ns: Whole = 0
    cause: str = ""


class Slower(msgspec.Struct, tag="slower", tag_field="t", gc=False):
    """Steps take longer since a capture; written repeatedly, for readers of only the end of a log.

    Attributes:
        first: First step captured.
        last: Last step captured.
        before: Median step time before, ns.
        after: Median step time since, ns.
    """

    at: Whole
    first: Whole
    last: Whole
    before: Whole
    after: Whole


class Telemetry(msgspec.Struct, tag="tele", tag_field="t", gc=False):
    """One reading of one device by the recorder (see :class:`tuiprof.telemetry.Sample`)."""

    at: Whole
    dev: str
    m: dict[str, float]
    s: dict[str, str] = {}


class Printed(msgspec.Struct, tag="out", tag_field="t", gc=False):
    """How much the script had printed, by the recorder, which relates its output to time.

    Attributes:
        out: Bytes of ``stdout.log``.
        err: Bytes of ``stderr.log``.
    """

    at: Whole
    out: Whole
    err: Whole


class Note(msgspec.Struct, tag="note", tag_field="t", gc=False):
    """Something worth telling the user: ``info``, ``warn`` or ``bad``."""

    at: Whole
    level: str
    text: str


class Thread(msgspec.Struct, gc=False):
    """One thread of a process at a moment.

    Attributes:
        frames: File, line and function of each frame, innermost first.
        id: The system's number; 0 = unknown.
        name: Python's name for it; may be empty.
        main: It is the main thread.
    """

    frames: list[tuple[str, Whole, str]]
    id: Whole = 0
    name: str = ""
    main: bool = False


class Stacks(msgspec.Struct, tag="stacks", tag_field="t", gc=False):
    """The stacks of all threads of a process at one moment.

    Attributes:
        id: Name of the request that every rank answers; ``end`` = where the exception came from that ended it.
        threads: Its threads, the main one first.
        n: Number of the step that was running.
        cause: Why they were taken automatically; empty = requested.
    """

    at: Whole
    id: str
    threads: list[Thread]
    n: Whole = 0
    cause: str = ""


class Flight(msgspec.Struct, tag="flight", tag_field="t", gc=False):
    """A dump of PyTorch's Flight Recorder, taken with :class:`Stacks` of the same id.

    Attributes:
        id: Name of the request.
        path: The dump, relative to the session directory.
    """

    at: Whole
    id: str
    path: str


class NotFinite(msgspec.Struct, tag="nan", tag_field="t", gc=False):
    """A NaN or infinite value of the training, written the first time.

    Attributes:
        n: The step.
        what: Whose it is, e.g. ``metric loss`` or ``gradient of layer.weight``.
        value: ``nan``, ``inf``, ``-inf``; ``nan or inf`` if it was not distinguished.
    """

    at: Whole
    n: Whole
    what: str
    value: str = "nan"


class OutOfMemory(msgspec.Struct, tag="oom", tag_field="t", gc=False):
    """A failed allocation on a device; the script may have caught the error and continued.

    Attributes:
        n: Number of the step that was running.
        dev: Device index.
        wanted: Requested bytes.
        free: Bytes free on the device then; -1 = unknown.
        path: The allocator's snapshot, relative to the session directory; empty = none.
        why: The reason if there is none.
    """

    at: Whole
    n: Whole
    dev: Whole
    wanted: Whole
    free: Whole = -1
    path: str = ""
    why: str = ""


class End(msgspec.Struct, tag="end", tag_field="t", gc=False):
    """Last line of a writer that ended in order.

    Attributes:
        code: Exit status of the script (recorder) or of this process (probe); None = unknown.
        signal: Signal that ended it; None = none.
        why: ``exit``, ``stopped`` (by the user) or an error.
        ph: Evaluation and checkpoint after the last step, which are in no step, ns.
    """

    at: Whole
    code: Whole | None = None
    signal: Whole | None = None
    why: str = "exit"
    ph: dict[str, Whole] = {}


Record = (
    Head
    | Step
    | StepSource
    | LikelyStep
    | Lines
    | WorkersStarted
    | DeviceStep
    | Memory
    | Uses
    | Cost
    | Capture
    | Slower
    | Telemetry
    | Printed
    | Note
    | Stacks
    | Flight
    | NotFinite
    | OutOfMemory
    | End
)


#: Lines kept in memory while the disk is full: 20 minutes of one device. Beyond that, the oldest are dropped.
MOST_WAITING: Final = 4096
#: Prefixes of lines that are not readings.
_WORDS: Final = tuple(b'{"t":"%s"' % kind for kind in (b"head", b"note", b"end"))
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class LogWriter:
    """One append-only log file; safe for several threads.

    While the disk is full, lines wait in memory and are written, in order, once there is space again, with a note,
    including the number of dropped lines if it took too long. A partially written line is completed first, so no line
    is torn.

    Raises:
        SessionError: It cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._encoder = msgspec.json.Encoder()
        self._waiting: deque[bytes] = deque()
        self._lock = threading.Lock()
        self._lost = 0
        self._stuck_since: int | None = None
        self._why = ""
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise explain(error, path, "write") from error

    @property
    def waiting(self) -> int:
        """Lines not yet on disk."""
        return len(self._waiting)

    def write(self, record: Record) -> bool:
        """Append a record; return whether everything so far is on disk."""
        with self._lock:
            self._waiting.append(self._encoder.encode(record) + b"\n")
            if len(self._waiting) > MOST_WAITING:
                del self._waiting[1]  # the first may be half written
                self._lost += 1
            return self._flush()

    def give_up_readings(self) -> None:
        """Drop waiting readings, so that the last lines fit into little space."""
        with self._lock:
            first, others = list(self._waiting)[:1], list(self._waiting)[1:]  # the first may be half written
            kept = [line for line in others if line.startswith(_WORDS)]
            self._lost += len(others) - len(kept)
            self._waiting = deque((*first, *kept))

    def flush(self) -> bool:
        """Try to write waiting lines; return whether everything is on disk."""
        with self._lock:
            return self._flush()

    def close(self) -> None:
        """Close the file; lines still waiting are lost."""
        os.close(self._file)

    def _flush(self) -> bool:
        while self._waiting:
            line = self._waiting[0]
            try:
                written = os.write(self._file, line)
            except OSError as error:
                if self._stuck_since is None:
                    self._stuck_since = time.monotonic_ns()
                    self._why = "the disk is full" if error.errno in _FULL else str(error.strerror or error)
                return False
            if written < len(line):
                self._waiting[0] = line[written:]
            else:
                self._waiting.popleft()
            if not self._waiting and self._stuck_since is not None:
                self._waiting.append(self._encoder.encode(self._told()) + b"\n")
        return True

    def _told(self) -> Note:
        """Return and clear the note about waiting lines."""
        now = time.monotonic_ns()
        waited_s = math.ceil((now - (self._stuck_since or now)) / 1e9)
        lost = f"; {self._lost} readings were dropped" if self._lost else "; nothing was lost"
        note = Note(now, "warn", f"the recorder could not write for {waited_s} s: {self._why}{lost}")
        self._stuck_since, self._lost = None, 0
        return note


decoder: Final = msgspec.json.Decoder(Record)


def decode(block: bytes) -> list[Record]:
    """Return the records in a piece of a log; lines that cannot be read are left out."""
    try:
        records: list[Record] = decoder.decode_lines(block)
    except UNDECODABLE:
        records = []
        for line in block.split(b"\n"):
            with contextlib.suppress(*UNDECODABLE):  # a partial or foreign line
                records.append(decoder.decode(line))
    return records


def first_head(path: Path) -> Head | None:
    """Return the head record of a log; None = none yet, or the first line is another record."""
    try:
        with open_regular(path) as file:
            record = decoder.decode(file.readline(1 << 16))
    except (OSError, *UNDECODABLE):
        return None
    return record if isinstance(record, Head) else None
