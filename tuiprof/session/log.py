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


class _Line(msgspec.Struct, tag_field="t", gc=False):
    """A line of a log. Records hold no cycles, and millions of them would keep the garbage collector busy."""


class _Event(_Line):
    """A line about a moment."""

    at: Whole  # monotonic ns


class Head(_Line, tag="head"):
    """First line of every file."""

    v: int
    writer: str  # ``rank0``, ``recorder``, …
    pid: Whole
    unix_ns: UnixNs  # Unix time in ns at ``mono_ns``
    mono_ns: Whole  # monotonic time in ns
    rank: Whole | None = None  # rank of a training process; None for others
    world: Whole | None = None  # number of ranks; None = unknown
    python: str = ""  # Python version of the writer
    versions: dict[str, str] = {}  # framework versions, e.g. ``{"torch": "2.11.0"}``
    #: The kernel's boot identity: writers with the same one share one monotonic clock, others are aligned by their
    #: Unix times. Empty = the clock of the session's own machine
    boot: str = ""
    process: str = ""  # name of the process if ``multiprocessing`` started it, e.g. ``Process-1``
    #: Environment variables of the launcher that are the same in all processes of a distributed run, e.g.
    #: ``MASTER_ADDR``
    job: dict[str, str] = {}
    host: str = ""  # name of the machine the writer runs on; empty = not recorded


class Step(_Line, tag="step"):
    """One training step, written when it ends."""

    n: Whole  # step number, from 0
    at: Whole  # end, monotonic ns
    dur: Whole  # host time from the end of the step before, ns
    #: Host time of each phase in ns; phases that overlap the whole step need not add up to ``dur``
    ph: dict[str, Whole] = {}
    v: dict[str, float] = {}  # metrics given by the script, e.g. loss
    cap: bool = False  # the step ran under the profiler
    #: Number and time (ns) of Python's garbage collections on the thread that makes the steps; None = there were none,
    #: or they were not timed
    gc: tuple[Whole, Whole] | None = None


class StepSource(_Event, tag="source"):
    """The source of steps, from here on."""

    what: str  # in words, e.g. ``"optimizer steps"``; empty = what was counted were no steps, and nothing else is known
    where: str = ""  # the line of the script, ``file:line``; empty = unknown
    withdrawn: Whole = 0  # number of earlier steps of this writer that were not steps; it counts from 0 again
    #: Number of steps before the first one that were not counted, because they were not yet detected
    missed: Whole = 0
    #: Time of the script in the loop before it was found, ns; the number of steps is unknown
    missed_ns: Whole = 0


class LikelyStep(_Event, tag="likely"):
    """The loop whose iterations are probably the steps, if no source is known and they cannot be counted."""

    where: str  # the script's line, ``file:line``


class Lines(_Event, tag="lines"):
    """Sampled lines of the thread that makes the steps, since the first sample; written repeatedly."""

    samples: Whole  # number of samples in which the script ran
    #: File, line and number of samples of the most frequent lines, most frequent first, one entry per line and
    #: activity
    top: list[tuple[str, Whole, Whole]] = []
    #: The activities, in the order of ``top``: "backward", "waits for a batch", …; empty = something else
    doing: list[str] = []
    ns: Whole = 0  # time spent on sampling so far, ns


class WorkersStarted(_Event, tag="workers"):
    """A loader that had workers before has started new ones, which ``persistent_workers=True`` avoids."""

    n: Whole  # number of the running step
    workers: Whole  # number of workers started
    starts: Whole  # number of such restarts in this process
    #: Total time of stopping old workers and starting new ones in the thread that fetches batches, ns
    ns: Whole
    waited_ns: Whole  # total wait for the first batches, ns


class BatchPadding(_Event, tag="padding"):
    """How much of the looked-at batches of texts or other sequences is padding, as sums over all of them so far."""

    n: Whole  # number of the running step
    batches: Whole  # number of looked-at batches with tensors that may be tokens
    width: Whole  # their columns
    longest: Whole  # columns that at least one text of the batch uses
    masked: Whole  # number of batches with a mask or lengths, which tell the length of each text
    full: Whole  # number of batches in which a text uses the whole width
    least: Whole  # fewest columns that a batch uses
    most: Whole  # most columns that a batch uses
    cut: bool = False  # in a capture, models got fewer columns than the batches have
    frames: Whole = 0  # number of batches of other sequences than texts, such as speech


class Weights(_Event, tag="weights"):
    """The parameters that are trained or called in a capture, as far as they were looked at so far."""

    n: Whole  # number of the running step
    types: dict[str, Whole]  # number of elements by type: "float32", …
    #: Number of weights that may be of convolutions over areas and volumes, and of these the depthwise ones
    kernels: Whole
    depthwise: Whole
    first: Whole  # number of kernels in channels-first, where the strides tell the layout
    last: Whole  # number of kernels in channels-last, likewise


class Threads(_Event, tag="threads"):
    """How many threads the operators of the training thread may use on a CPU, as a capture is prepared."""

    n: Whole


class Trainer(_Event, tag="trainer"):
    """The framework whose training loop makes the steps, as a capture is prepared; not written if there is none."""

    name: str  # ``transformers``, ``lightning`` or ``accelerate``


class Usage(_Event, tag="usage"):
    """What the process has used so far."""

    faults: Whole  # number of page faults that read nothing from a disk
    user_ns: Whole  # CPU time of its own
    system_ns: Whole  # CPU time of the operating system on its behalf
    thread_ns: Whole | None = None  # CPU time of the thread that makes the steps; None = not known


class Garbage(_Event, tag="garbage"):
    """Python's garbage collections on the thread that makes the steps, as sums over the steps timed so far."""

    n: Whole  # number of the running step
    steps: Whole  # number of steps in which they were timed, without captured ones
    count: Whole  # number of collections
    ns: Whole  # their time
    squares: float  # sum of the squares of their time in a step, ns²


class DeviceStep(_Line, tag="dev"):
    """Device time of a step by device events, known some steps later."""

    n: Whole
    dur: Whole  # time on the device between the ends of two steps, ns
    #: On average, every n-th step is timed at this point, because timing each would cost a short step too much
    every: Whole = 1


class Memory(_Event, tag="mem"):
    """The framework allocator's view of one device, bytes."""

    dev: Whole  # device index
    alloc: Whole  # allocated now
    reserved: Whole  # reserved from the driver now
    peak: Whole  # highest allocated so far


class Uses(_Event, tag="uses"):
    """The accelerator of a device index of this process, written once it holds memory there."""

    dev: Whole  # device index, as the framework counts
    uuid: str = ""  # the device's UUID, or MIG instance's, without the vendor's prefix; empty = unknown
    pci: str = ""  # its PCI address, ``0000:1b:00``; empty = unknown


class Cost(_Event, tag="cost"):
    """Cost of the probe, measured by itself."""

    steps: Whole  # number of steps included in ``ns``: all except captured ones
    #: Time spent in the probe's hooks so far, ns. Measured at the end of each step, and taken for its other hooks as
    #: well
    ns: Whole
    flush_ns: Whole = 0  # CPU time of the probe's writing thread so far, ns; it runs beside the script


class Capture(_Event, tag="capture"):
    """State of a capture request."""

    id: str  # name of the request
    state: str  # ``armed``, ``started``, ``written`` or ``failed``
    first: Whole | None = None  # first step captured; None = not yet known
    last: Whole | None = None  # last step captured
    path: str = ""  # trace file relative to the session directory, when written
    why: str = ""  # reason of a failure
    ns: Whole = 0  # host time spent starting, stopping and writing, ns
    cause: str = ""  # why the probe made it automatically (a trigger); empty = requested


class Slower(_Event, tag="slower"):
    """Steps take longer since a capture; written repeatedly, for readers of only the end of a log."""

    first: Whole  # first step captured
    last: Whole  # last step captured
    before: Whole  # median step time before, ns
    after: Whole  # median step time since, ns


class Telemetry(_Event, tag="tele"):
    """One reading of one device by the recorder (see :class:`tuiprof.telemetry.Sample`)."""

    dev: str
    m: dict[str, float]
    s: dict[str, str] = {}


class Printed(_Event, tag="out"):
    """How much the script had printed, by the recorder, which relates its output to time."""

    out: Whole  # bytes of ``stdout.log``
    err: Whole  # bytes of ``stderr.log``


class Note(_Event, tag="note"):
    """Something worth telling the user: ``info``, ``warn`` or ``bad``."""

    level: str
    text: str


class Thread(msgspec.Struct, gc=False):
    """One thread of a process at a moment."""

    frames: list[tuple[str, Whole, str]]  # file, line and function of each frame, innermost first
    id: Whole = 0  # the system's number; 0 = unknown
    name: str = ""  # Python's name for it; may be empty
    main: bool = False  # it is the main thread


class Stacks(_Event, tag="stacks"):
    """The stacks of all threads of a process at one moment."""

    #: Name of the request that every rank answers; ``end`` = where the exception came from that ended it
    id: str
    threads: list[Thread]  # its threads, the main one first
    n: Whole = 0  # number of the step that was running
    cause: str = ""  # why they were taken automatically; empty = requested


class Flight(_Event, tag="flight"):
    """A dump of PyTorch's Flight Recorder, taken with :class:`Stacks` of the same id."""

    id: str  # name of the request
    path: str  # the dump, relative to the session directory


class NotFinite(_Event, tag="nan"):
    """A NaN or infinite value of the training, written the first time."""

    n: Whole
    what: str  # whose it is, e.g. ``metric loss`` or ``gradient of layer.weight``
    value: str = "nan"  # ``nan``, ``inf``, ``-inf``; ``nan or inf`` if it was not distinguished


class OutOfMemory(_Event, tag="oom"):
    """A failed allocation on a device; the script may have caught the error and continued."""

    n: Whole  # number of the step that was running
    dev: Whole  # device index
    wanted: Whole  # requested bytes
    free: Whole = -1  # bytes free on the device then; -1 = unknown
    path: str = ""  # the allocator's snapshot, relative to the session directory; empty = none
    why: str = ""  # the reason if there is none


class End(_Event, tag="end"):
    """Last line of a writer that ended in order."""

    #: Exit status of the script (recorder) or of this process (probe); None = unknown
    code: Whole | None = None
    signal: Whole | None = None  # signal that ended it; None = none
    why: str = "exit"  # ``exit``, ``stopped`` (by the user) or an error
    ph: dict[str, Whole] = {}  # evaluation and checkpoint after the last step, which are in no step, ns


Record = (
    Head
    | Step
    | StepSource
    | LikelyStep
    | Lines
    | WorkersStarted
    | BatchPadding
    | Weights
    | Threads
    | Trainer
    | Usage
    | Garbage
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
MAX_WAITING: Final = 4096
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
            if len(self._waiting) > MAX_WAITING:
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
                self._waiting.append(self._encoder.encode(self._waited_note()) + b"\n")
        return True

    def _waited_note(self) -> Note:
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
