"""The state of a session, updated by its records; the same for live view, attaching and replay."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tuiprof.probe.assembly import NO_STEPS
from tuiprof.session import log
from tuiprof.session.live.series import Array, Floats, Ints, Overview, Series, column
from tuiprof.session.live.step_series import StepSeries, steps_kept
from tuiprof.session.live.tail import Batch
from tuiprof.session.store.meta import Clock

RECORDER: Final = "recorder"
#: Allocator readings kept in full per device of a rank: half an hour at one per second.
KEEP_MEMORY: Final = 1 << 11
#: Readings kept per device: a quarter of an hour at two per second, more than any alert needs. Each figure takes memory
#: for this many readings, and a machine may have hundreds, one per core.
KEEP_READINGS: Final = 1800
#: Maximum number of figures kept per device.
MAX_FIGURES: Final = 512
#: Maximum number of devices with per-core figures, for runs on many hosts.
MAX_WITH_CORES: Final = 64
CORE: Final = re.compile(r"core\d+_util")
KEEP_NOTES: Final = 1000
#: Maximum number of requests for stacks whose answers are kept, for runs that stall repeatedly.
KEEP_STACKS: Final = 32
#: Id of the stack that an exception left when it ended the script.
END_STACKS: Final = "end"
#: A process whose last step is this much older than another one's of the same rank is not shown.
SILENT_NS: Final = 10_000_000_000
#: Known levels of notes.
_LEVELS: Final = ("info", "warn", "bad")


class DeviceHistory:
    """The readings of one device: the last :data:`KEEP_READINGS` in full, all of them downsampled.

    ``cores``: keep per-core figures, of which a host may have hundreds.
    """

    def __init__(self, key: str, *, cores: bool = True) -> None:
        self.key = key
        self._cores = cores
        #: Columns ``t_ns`` (session time) and one per figure (NaN = not read).
        self.rows = Series(KEEP_READINGS, {"t_ns": (np.int64, 0)})
        self.overview: dict[str, Overview] = {}  # of each figure over the whole run
        self.last: dict[str, float] = {}  # newest value of each figure
        self.text: dict[str, str] = {}  # newest text of each text figure, for example ``throttle``
        self.peak: dict[str, float] = {}  # maximum of each figure

    @property
    def t_ns(self) -> Ints:
        """Times of the kept readings."""
        return self.rows["t_ns"]

    def figure(self, name: str) -> Floats:
        """Return the kept readings of a figure, same shape as :attr:`t_ns`; NaN = not read."""
        if name not in self.rows:
            return np.full(len(self.rows), np.nan)
        return self.rows[name]

    def extend(self, readings: list[log.Telemetry], offset_ns: int) -> None:
        """Append readings."""
        count = len(readings)
        t_ns = np.fromiter((reading.at for reading in readings), np.int64, count) + offset_ns
        columns: dict[str, Array] = {"t_ns": t_ns}
        for name in dict.fromkeys(name for reading in readings for name in reading.m):
            if name not in self.overview:
                if name in self.rows or len(self.overview) >= MAX_FIGURES:  # "t_ns" is the time itself
                    continue
                if not self._cores and CORE.fullmatch(name):
                    continue
                self.rows.add_column(name, np.float64, np.nan)
                self.overview[name] = Overview(1024)
            values = np.fromiter((reading.m.get(name, np.nan) for reading in readings), np.float64, count)
            columns[name] = values
            given = ~np.isnan(values)
            self.overview[name].extend(t_ns[given], values[given])
            if given.any():
                self.last[name] = float(values[given][-1])
                self.peak[name] = max(self.peak.get(name, -np.inf), float(values[given].max()))
        self.rows.extend(count, columns)
        for reading in readings:
            self.text.update(reading.s)
        newest = readings[-1]
        self.text = {name: word for name, word in self.text.items() if name in newest.s}


class MemorySeries:
    """Memory of the framework's allocator on one device of one rank."""

    def __init__(self) -> None:
        kinds = dict.fromkeys(("t_ns", "alloc", "reserved", "peak"), (np.int64, 0))
        #: ``t_ns`` (session time); ``alloc``, ``reserved`` and ``peak`` in bytes
        self.rows = Series(KEEP_MEMORY, kinds)
        self.overview = Overview(1024)  # of ``alloc`` over the whole run
        self.last: log.Memory | None = None  # newest reading

    def extend(self, readings: Sequence[log.Memory], offset_ns: int) -> None:
        """Append readings."""
        columns = {name: column(readings, name, np.int64) for name in ("alloc", "reserved", "peak")}
        t_ns = column(readings, "at", np.int64) + offset_ns
        self.rows.extend(len(readings), {"t_ns": t_ns, **columns})
        self.overview.extend(t_ns, columns["alloc"])
        self.last = readings[-1]


class WriterState:
    """One writer of a session: a rank of the script, or the recorder."""

    def __init__(self, name: str) -> None:
        self.name = name  # ``rank0``, ``recorder``, …
        self.host = ""  # empty = the run has only one
        #: Name of its machine if a launcher (``srun``) started it on another machine than the recorder's; else empty.
        self.elsewhere = ""
        self.head: log.Head | None = None  # None = not read
        self.offset_ns = 0  # from its ``at`` to session time
        self.seen_ns = 0  # session time of its newest record
        self.steps = StepSeries()
        self.step_source: log.StepSource | None = None  # what ends its steps; None = unknown
        #: ``file:line`` of the loop whose iterations are probably its steps; empty = unknown.
        self.likely_step = ""
        self.lines: log.Lines | None = None  # sampled lines of its main thread
        self.workers: log.WorkersStarted | None = None  # restarts of loader workers
        self.memory: dict[int, MemorySeries] = {}  # by device index
        self.uses: dict[int, log.Uses] = {}  # accelerator of each device index
        self.cost: log.Cost | None = None  # of its hooks so far or, for the recorder, CPU time of sampling
        self.end: log.End | None = None  # None = running, or died
        self.restarts = 0  # number of restarts

    @property
    def rank(self) -> int | None:
        """Its rank; None = it has none, for example the recorder."""
        return self.head.rank if self.head else None

    @property
    def label(self) -> str:
        """Its name, the script's name of the process, and its host: ``rank0-4711 (Process-2) on node1``."""
        process = self.head.process if self.head else ""
        name = self.name.partition("@")[0]
        host = self.elsewhere or self.host
        return " ".join((name, *([f"({process})"] if process else []), *([f"on {host}"] if host else [])))

    @property
    def records_devices(self) -> bool:
        """Whether it is a recorder, not a process of the script."""
        return self.name.partition("@")[0] == RECORDER

    @property
    def last_step_ns(self) -> int:
        """Session time of its last step; -1 = no steps."""
        return int(self.steps.rows["t_ns"][-1]) if len(self.steps) else -1

    @property
    def can_run_ahead(self) -> bool:
        """Whether calls of its framework return before their work has ended: on an accelerator, and with XLA."""
        versions = self.head.versions if self.head is not None else {}
        return bool(self.uses) or "jax" in versions or "torch_xla" in versions

    @property
    def cost_per_step_ns(self) -> float | None:
        """Cost of the probe's hooks per step, ns; None = unknown."""
        return self.cost.ns / self.cost.steps if self.cost and self.cost.steps else None

    @property
    def cost_share(self) -> float | None:
        """Share of time that tuiprof itself takes, 0 to 1; None = unknown.

        For a rank, the cost per step relative to the mean time of uncaptured steps; for the recorder, the CPU time of
        sampling relative to the time since its start.
        """
        if self.cost is None:
            return None
        if len(self.steps):
            mean_ns = self.steps.mean_wall_ns
            return (
                self.cost_per_step_ns / mean_ns if self.cost_per_step_ns is not None and mean_ns > 0 else None
            )
        if self.head is None or self.cost.at <= self.head.mono_ns:
            return None
        return self.cost.ns / (self.cost.at - self.head.mono_ns)


@dataclass(slots=True)
class CaptureState:
    """One capture request and its result on each rank."""

    id: str
    by_writer: dict[str, log.Capture] = field(default_factory=dict)  # newest record of each writer
    t_ns: int = 0  # session time of the newest record
    withdrawn: bool = False  # whether what was captured turned out not to be steps

    @property
    def state(self) -> str:
        """``failed`` if it failed on a rank, else the least advanced state of all ranks."""
        order = ("failed", "armed", "started", "written")
        states = {record.state for record in self.by_writer.values()}
        return next((state for state in order if state in states), "armed")

    @property
    def paths(self) -> list[str]:
        """Paths of the traces, relative to the session directory, by rank."""
        return [record.path for _, record in sorted(self.by_writer.items()) if record.path]

    @property
    def why(self) -> str:
        """Reason of a failure, with the rank unless all failed; empty = none."""
        for writer, record in self.by_writer.items():
            if record.why:
                alone = any(not other.why for other in self.by_writer.values())
                return f"{writer}: {record.why}" if alone else record.why
        return ""

    def shortfall(self, over: bool) -> str:
        """Return why the capture failed or is incomplete; empty = it is complete, or in progress in a running run."""
        if self.state == "failed":
            return f"capture {self.id!r} failed: {self.why or 'no reason given'}"
        if self.state == "written":
            return f"capture {self.id!r} is incomplete: {self.why}" if self.why else ""
        if not over or (self.state == "armed" and self.cause):  # nobody waits for a trigger's
            return ""
        first, last = self.first, self.last
        steps = f" of steps {first} to {last}" if first is not None and last is not None else ""
        how = "was being recorded" if self.state == "started" else "had not begun"
        return f"capture {self.id!r}{steps} {how} when the run ended, so it has no trace"

    @property
    def cause(self) -> str:
        """Why a trigger started it, for example which step was slow; empty = a user requested it."""
        return next((record.cause for record in self.by_writer.values() if record.cause), "")

    @property
    def first(self) -> int | None:
        """First step captured; None = not yet known."""
        return min((r.first for r in self.by_writer.values() if r.first is not None), default=None)

    @property
    def last(self) -> int | None:
        """Last step captured; None = not yet known."""
        return max((r.last for r in self.by_writer.values() if r.last is not None), default=None)


@dataclass(slots=True)
class StacksState:
    """The answers of all ranks to one request for stacks."""

    id: str  # of the request
    by_writer: dict[str, log.Stacks] = field(default_factory=dict)
    #: Flight Recorder dumps by writer, relative to the session
    flights: dict[str, str] = field(default_factory=dict)
    t_ns: int = 0  # session time of the last answer

    @property
    def cause(self) -> str:
        """Why the stacks were recorded automatically; empty = a user requested them."""
        return next((record.cause for record in self.by_writer.values() if record.cause), "")


@dataclass(frozen=True, slots=True)
class Trouble:
    """A NaN or infinite value, or a failed allocation."""

    t_ns: int  # session time
    writer: str
    record: log.NotFinite | log.OutOfMemory


@dataclass(frozen=True, slots=True)
class NoteLine:
    """A note of the probe or the recorder."""

    t_ns: int  # session time
    writer: str
    level: str  # ``info``, ``warn`` or ``bad``
    text: str  # untrusted


def _path_in(folder: str, path: str) -> str:
    """Return a path in a host's log relative to the session's directory; empty = none, or not inside the folder."""
    inside = not path.startswith("/") and ".." not in path.split("/") and "\0" not in path
    return folder + path if path and inside else ""


def _trains(state: WriterState) -> bool:
    """Return whether the steps of a process are training steps, as far as known."""
    return state.step_source is None or state.step_source.what != "batches of a DataLoader"


class Fold:
    """The state of a session after the records fed so far.

    Not thread-safe: feed and read it in one thread, or under one lock.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.version = 0  # incremented by every change, so that a screen knows when to redraw
        self.writers: dict[str, WriterState] = {}  # by name
        self.devices: dict[str, DeviceHistory] = {}  # by key, in order of appearance
        self.captures: dict[str, CaptureState] = {}  # by id
        self.notes: deque[NoteLine] = deque(maxlen=KEEP_NOTES)  # the last ones, in order of session time
        self.stacks: dict[str, StacksState] = {}  # by id of the request; the last :data:`KEEP_STACKS`
        self.troubles: list[Trouble] = []  # the first :data:`KEEP_NOTES`, in the order read
        self.now_ns = 0  # session time of the newest record
        self.records = 0  # number of records so far
        #: Bytes of standard output and error so far; None = unknown
        self.printed: tuple[int, int] | None = None
        self.problems: list[str] = []  # log lines that could not be read, one sentence per file

    @property
    def ranks(self) -> list[WriterState]:
        """The script's processes, by rank (then by name)."""
        found = [state for state in self.writers.values() if not state.records_devices]
        return sorted(found, key=lambda state: (state.rank is None, state.rank or 0, state.name))

    @property
    def lead(self) -> WriterState | None:
        """The process whose steps a single chart shows: the lowest rank that has steps, else the first process.

        Several processes may have the same rank, one after another (torchrun restarts failed ones) or in parallel. Then
        it is the first one that trains rather than evaluates, unless its last step is :data:`SILENT_NS` older than
        another one's.
        """
        ranks = self.ranks
        stepping = [state for state in ranks if len(state.steps)]
        if not stepping:
            return ranks[0] if ranks else None
        same = [state for state in stepping if state.rank == stepping[0].rank]
        same = [state for state in same if _trains(state)] or same
        newest_ns = max(state.last_step_ns for state in same)
        return next(state for state in same if newest_ns - state.last_step_ns <= SILENT_NS)

    @property
    def end(self) -> log.End | None:
        """How the run ended, from the recorder; None = it is running, or the recorder died."""
        recorder = self.writers.get(RECORDER)
        return recorder.end if recorder else None

    def shortfall(self, capture: CaptureState, over: bool) -> str:
        """Return why a capture failed or is incomplete; empty = it is complete, or failed for lack of any step."""
        stepless = not any(len(rank.steps) for rank in self.ranks)
        return "" if stepless and capture.why == NO_STEPS else capture.shortfall(over)

    def shortfalls(self, over: bool) -> list[str]:
        """Return why captures failed or are incomplete."""
        return [short for one in self.captures.values() if (short := self.shortfall(one, over))]

    @property
    def newest_stacks(self) -> StacksState | None:
        """The stacks that were written last, those that an exception left aside; None = none were."""
        held = [found for name, found in self.stacks.items() if name != END_STACKS and found.by_writer]
        return max(held, key=lambda found: found.t_ns, default=None)

    @property
    def recorder_share(self) -> float | None:
        """CPU utilisation of the recorder (1 = one core); None = unknown yet."""
        recorder = self.writers.get(RECORDER)
        return recorder.cost_share if recorder else None

    def feed(self, batches: Iterable[Batch]) -> bool:
        """Update the state with records (of ``LogReader.poll_batches()``); return whether anything changed."""
        before = self.version
        for batch in batches:
            if batch.records:
                self.version += 1
                self.records += len(batch.records)
                self._feed(batch)
        return self.version != before

    def _feed(self, batch: Batch) -> None:
        writer, records = batch.writer, batch.records
        clock = batch.log.clock if batch.log is not None else self.clock
        folder = batch.log.folder if batch.log is not None else ""
        on_host = "".join(writer.partition("@")[1:])  # ``@node2``; empty for the first host
        state = self.writers.get(writer)
        if state is None:
            state = self.writers[writer] = WriterState(writer)
            state.host = batch.log.host if batch.log is not None else ""
            state.offset_ns = clock.offset_ns(None)
        steps: list[log.Step] = []
        device_times: list[log.DeviceStep] = []
        memory: dict[int, list[log.Memory]] = {}
        readings: dict[str, list[log.Telemetry]] = {}

        def put() -> None:
            """Append the collected records at once, because an array operation per record is slow."""
            state.steps.extend(steps, state.offset_ns)
            state.steps.add_device_times(device_times)
            for device, items in memory.items():
                state.memory.setdefault(device, MemorySeries()).extend(items, state.offset_ns)
            for key, found in readings.items():
                if key not in self.devices:
                    self.devices[key] = DeviceHistory(key, cores=len(self.devices) < MAX_WITH_CORES)
                self.devices[key].extend(found, state.offset_ns)
            for group in (steps, device_times, memory, readings):
                group.clear()

        newest_at: int | None = None
        for record in records:
            if type(record) is log.Step:  # by far the most frequent, and the fastest check
                steps.append(record)
            elif isinstance(record, log.DeviceStep):
                device_times.append(record)
                continue
            elif isinstance(record, log.Telemetry):
                readings.setdefault(record.dev + on_host, []).append(record)
            elif isinstance(record, log.Printed):
                if not on_host:  # only the first host's output is shown
                    self.printed = record.out, record.err
            elif isinstance(record, log.Memory):
                memory.setdefault(record.dev, []).append(record)
            elif isinstance(record, log.Head):
                put()
                self._seen(state, newest_at)
                newest_at = None
                if state.head is not None:  # restarted, as torchrun does after a failure
                    state.restarts += 1
                    state.steps.restart()
                    state.end = None
                elif record.world is not None and not len(state.steps):
                    state.steps = StepSeries(steps_kept(record.world))
                state.head = record
                state.offset_ns = clock.offset_ns(record)
                state.elsewhere = clock.elsewhere(record)
                continue
            elif isinstance(record, log.Lines):
                state.lines = record
            elif isinstance(record, log.WorkersStarted):
                state.workers = record
            elif isinstance(record, log.LikelyStep):
                state.likely_step = record.where
            elif isinstance(record, log.StepSource):
                put()
                state.step_source = record if record.what else None
                if record.withdrawn:
                    self._withdraw(state)
            else:
                if isinstance(record, log.Capture) and record.state == "written":
                    put()
                    state.steps.watch.written()
                self._rare(state, record, record.at + state.offset_ns, folder)
            if newest_at is None or record.at > newest_at:
                newest_at = record.at
        put()
        self._seen(state, newest_at)

    def _withdraw(self, state: WriterState) -> None:
        """Discard the steps of a writer that turned out not to be steps, and mark captures of them."""
        state.steps = StepSeries()
        for capture in self.captures.values():
            record = capture.by_writer.get(state.name)
            if record is not None and record.state in ("started", "written"):
                capture.withdrawn = True

    def _seen(self, state: WriterState, at: int | None) -> None:
        if at is not None:
            state.seen_ns = at + state.offset_ns
            self.now_ns = max(self.now_ns, state.seen_ns)

    def _rare(self, state: WriterState, record: log.Record, t_ns: int, folder: str) -> None:
        match record:
            case log.Cost():
                state.cost = record
            case log.Uses():
                state.uses[record.dev] = record
            case log.Capture():
                record.path = _path_in(folder, record.path)
                capture = self.captures.setdefault(record.id, CaptureState(record.id))
                capture.by_writer[state.name] = record
                capture.t_ns = max(capture.t_ns, t_ns)
            case log.Note():
                level = record.level if record.level in _LEVELS else "info"
                self._note(NoteLine(t_ns, state.name, level, record.text))
            case log.Stacks() | log.Flight():
                self._stacks(state.name, record, t_ns, folder)
            case log.NotFinite() | log.OutOfMemory():
                if isinstance(record, log.OutOfMemory):
                    record.path = _path_in(folder, record.path)
                if len(self.troubles) < KEEP_NOTES:
                    self.troubles.append(Trouble(t_ns, state.name, record))
            case log.End():
                state.end = record

    def _stacks(self, writer: str, record: log.Stacks | log.Flight, t_ns: int, folder: str) -> None:
        """Store an answer to a request for stacks; the oldest request is dropped if there are too many."""
        found = self.stacks.setdefault(record.id, StacksState(record.id))
        found.t_ns = max(found.t_ns, t_ns)
        if isinstance(record, log.Stacks):
            found.by_writer[writer] = record
        elif path := _path_in(folder, record.path):
            found.flights[writer] = path
        if len(self.stacks) > KEEP_STACKS:
            del self.stacks[next(iter(self.stacks))]

    def _note(self, note: NoteLine) -> None:
        """Insert a note by time, because writers are read one after another."""
        if not self.notes or self.notes[-1].t_ns <= note.t_ns:
            self.notes.append(note)
            return
        ordered = sorted((*self.notes, note), key=lambda line: (line.t_ns, line.writer))
        self.notes = deque(ordered, maxlen=KEEP_NOTES)
