"""A trace of one rank: one table of events, and what is derived from it once and lazily.

Categories are Kineto's words without a vendor prefix, so that ``cuda_runtime``, ``hip_runtime`` and
``mtia_runtime`` are all ``runtime``. What a format cannot place is ``other`` and keeps its original word in
the raw event.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property, update_wrapper
from pathlib import Path
from threading import Lock, RLock
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    get_args,
)

import numpy as np
import numpy.typing as npt
import polars as pl

from tuiprof.model import steps
from tuiprof.model.intervals import Ints, Mask, Nesting, Window, nest, row_type, union
from tuiprof.model.trust import ReadStats

if TYPE_CHECKING:
    from tuiprof.model.programs import Programs
    from tuiprof.model.steps import Uncaptured
    from tuiprof.model.traceset import TraceSet
    from tuiprof.model.trust import Trust


Category = Literal[
    "cpu_op",  # a framework operator on the host, e.g. aten::mm
    "annotation",  # a range the user or the framework named, e.g. record_function, ProfilerStep#3
    "device_annotation",  # the shadow of an annotation on a device track; never counts as work
    "runtime",  # a call of the device runtime API, e.g. cudaLaunchKernel
    "driver",  # a call of the driver API, e.g. cuLaunchKernel
    "kernel",  # a kernel on the device
    "memcpy",  # a copy by the device
    "memset",  # a fill by the device
    "sync",  # a synchronisation activity as the device's profiler reports it (Kineto's cuda_sync)
    "python_function",  # one call of a Python function
    "overhead",  # the profiler's own work
    "collective",  # a collective operation on the device, where the format tells them apart
    "compile",  # compilation seen by the profiler
    "dataloader",  # data loading, where the format tells it apart
    "other",
]

CATEGORIES: Final[tuple[str, ...]] = get_args(Category)

#: What makes a device busy. Annotations and sync activities never do.
DEVICE_WORK: Final[tuple[str, ...]] = ("kernel", "memcpy", "memset", "collective")

#: Host calls into the device's API: what launches work and what waits for it.
HOST_CALLS: Final[tuple[str, ...]] = ("runtime", "driver")

CATEGORY_TYPE: Final = pl.Enum(CATEGORIES)

#: Columns of :attr:`tuiprof.model.Trace.events`. The table is sorted by ``ts``; of events that start together
#: the longer comes first, so that a parent stands before its children.
EVENT_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "ts": pl.Int64,  # start, ns since the trace origin
    "dur": pl.Int64,  # length, ns; 0 for an event without length
    "name": pl.Enum,  # dictionary-encoded over the names of this trace
    "category": CATEGORY_TYPE,
    "track": pl.UInt32,  # index into Trace.tracks
    "device": pl.Int16,  # device index; null = host
    "stream": pl.Int64,  # stream of a device event; null = none
    "correlation": pl.Int64,  # joins a host call with the device work it launched; null = none
    "external_id": pl.Int64,  # joins an operator with runtime calls and kernels; null = none
    "sequence": pl.Int64,  # autograd's number: joins a forward operator with its backward node; null = none
    "bytes": pl.Int64,  # bytes moved or filled; null = unknown
    "ordinal": pl.UInt32,  # position of the event in its file, for Trace.raw_event
}


P = ParamSpec("P")
T = TypeVar("T")

if TYPE_CHECKING:
    derived = cached_property  # type checkers know this one by name
else:

    class derived(cached_property):  # noqa: N801 - a decorator, as the one it extends
        """A cached property that one thread computes while all others that ask wait for it.

        Python up to 3.11 did this for every cached property; what takes as long as the links of a million events should
        not be computed twice at the same time in later versions either.
        """

        def __init__(self, make) -> None:
            super().__init__(make)
            self._guard = RLock()

        def __get__(self, instance, owner=None):
            """Return it, computed if need be."""
            with self._guard:
                return super().__get__(instance, owner)


_MISSING: Final = object()
_guard = Lock()


@dataclass(slots=True)
class Derivation:
    """One cached result, and the lock that makes one thread compute it while the others wait."""

    value: Any = _MISSING
    lock: RLock = field(default_factory=RLock)


class cached_on_trace(Generic[P, T]):  # noqa: N801 - a decorator, as functools.cache
    """Decorator for a pure function of a trace: each trace keeps what the function returned, by its arguments.

    The arguments after the trace are positional and hashable. The result may refer to the trace. It is held by the
    trace alone, so both are freed together; a global cache, even one with weak keys, would keep them alive. A trace
    never changes, so a result never expires. An error is not kept.
    """

    def __init__(self, make: Callable[Concatenate[Trace, P], T]) -> None:
        self._make = make
        update_wrapper(self, make)

    def __call__(self, trace: Trace, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result for these arguments, computed the first time."""
        if kwargs:
            raise TypeError("pass the arguments of a function that is cached on a trace by position")
        with _guard:
            kept = trace.derivations.setdefault((self, args), Derivation())
        if kept.value is _MISSING:
            with kept.lock:
                if kept.value is _MISSING:
                    kept.value = self._make(trace, *args, **kwargs)
        value: T = kept.value
        return value

    def is_cached(self, trace: Trace, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Return whether the result for these arguments is known, so that calling returns at once."""
        kept = trace.derivations.get((self, args))
        return kept is not None and kept.value is not _MISSING


@dataclass(frozen=True, slots=True)
class Links:
    """Links between host calls and device work, by correlation.

    A *launch* is any runtime or driver call whose correlation meets device work; no list of names. One CUDA
    graph launch meets many kernels.
    """

    #: For every event, the row of the host call that launched it; -1 for host events and for device work whose launch
    #: is not in the trace. Shape ``(len(trace),)``.
    launch_of: Ints
    launches: Ints  # rows of the host calls that launched anything, in order of start
    work_count: Ints  # number of device events each of ``launches`` launched, same shape
    unmatched_work: int  # number of device work events without a launch in the trace

    def count_of(self, row: int) -> int:
        """Return the number of device events that an event launched."""
        index = int(np.searchsorted(self.launches, row))
        found = index < len(self.launches) and self.launches[index] == row
        return int(self.work_count[index]) if found else 0


def link(trace: Trace) -> Links:
    """Join device work with the host calls of the same correlation.

    Where a runtime call and the driver call inside it carry the same correlation, the outer one (which starts
    first) is the launch.
    """
    launch_of: Ints = np.full(len(trace), -1, dtype=row_type(len(trace)))
    work, calls = trace.device_work, trace.host_calls
    keys, wanted = trace.ints("correlation", calls), trace.ints("correlation", work)
    # Stable by correlation, so that of equal ones the earliest call comes first and is the one found.
    order = np.argsort(keys, kind="stable")
    # CUPTI writes 0 for "no correlation".
    order = order[np.searchsorted(keys, 0, side="right", sorter=order) :]
    calls, keys = calls[order], keys[order]
    if not len(calls):
        return Links(launch_of, calls, calls, len(work))
    position = np.minimum(np.searchsorted(keys, wanted, side="left"), len(keys) - 1)
    found = keys[position] == wanted
    launch_of[work[found]] = calls[position[found]]
    counts = np.bincount(position[found], minlength=len(calls))
    launching = np.flatnonzero(counts)
    launching = launching[np.argsort(calls[launching], kind="stable")]
    return Links(launch_of, calls[launching], counts[launching], int((~found).sum()))


_CATEGORY_CODE = {name: code for code, name in enumerate(CATEGORIES)}


@dataclass(frozen=True, slots=True)
class Track:
    """One lane of events: a host thread, or a stream or engine of a device."""

    index: int  # its index in ``Trace.tracks`` and in the ``track`` column
    #: ``thread`` on the host, ``stream`` on a device, ``other`` for the profiler's own lanes.
    kind: Literal["thread", "stream", "other"]
    pid: int | str  # process as the trace gives it (may be text, for example ``"Spans"``)
    tid: int | str  # thread or stream as the trace gives it
    name: str  # a name for the screen, for example ``"thread 851 (python)"`` or ``"stream 7"``
    device: int | None = None  # device index of a stream; None on the host


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device as the trace describes it."""

    index: int  # device index as used in the ``device`` column
    name: str  # product name, for example ``"NVIDIA H200"``
    memory_bytes: int | None = None  # total memory; None = not said
    #: Whatever else the format says (``numSms``, ``computeMajor``, …).
    properties: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TraceInfo:
    """Where a trace comes from."""

    path: Path | None  # the file; None for a trace made in memory
    format: str  # name of the format that read it, for example ``"kineto"``
    origin_unix_ns: int | None = None  # Unix time of the trace origin in ns; None = the format does not say
    devices: tuple[DeviceInfo, ...] = ()  # devices in index order
    rank: int | None = None  # rank in a distributed job; None = not said
    world_size: int | None = None  # number of ranks; None = not said
    framework: str = ""  # for example ``"PyTorch 2.11"``; empty = not said
    host: str = ""  # host name; empty = not said
    #: Other top-level properties of the file, untouched.
    properties: Mapping[str, object] = field(default_factory=dict)

    @property
    def device_name(self) -> str:
        """Name of the first device; empty = not said."""
        return self.devices[0].name if self.devices else ""


#: Events whose values are unpacked together.
_BLOCK: Final = 1 << 15


class RawSource(Protocol):
    """Gives back the untouched text of an event."""

    def text(self, ordinal: int) -> str:
        """Return the raw text of the event at this position of the file."""


class Trace:
    """A trace of one rank.

    Args:
        events: Table with the columns of :data:`tuiprof.model.trace.EVENT_SCHEMA`, sorted by ``ts``, of
            events that start together the longer first.
        tracks: Tracks by index.
        info: Where it comes from.
        stats: What the decoder met.
        instants: Events without length: ``ts``, ``name``, ``category_text``, ``track``, ``ordinal`` and
            format-specific columns such as ``bytes``, ``address``, ``total_allocated`` for memory events.
        counters: Counter samples: ``ts``, ``name``, ``series``, ``value``, ``track``.
        communications: Process groups of collectives as the framework wrote them: ``correlation`` (null on an
            operator), ``external_id``, ``group``, ``description``, ``ranks``, ``size``, ``bytes`` (of the message;
            null = not recorded).
        event_waits: Waits for device events where the profiler recorded which: ``correlation`` of the call that waits,
            ``record`` (that of the call that recorded the event), ``recorded_on`` (its stream), ``stream`` that waits
            (null = the host).
        sync_sites: Source lines of host waits as the probe saw them: ``unix_ns`` (just after the call),
            ``tid``, ``what``, ``frames`` (innermost first, ``file:line function``), ``dur_ns`` (how long the call
            took; null = not known); None = not recorded.
        dispatched: Operators that the CPU ran behind the call that handed them over, as rows of ``events``: ``work``
            and ``call``; None = operators run where they are called.
        step_markers: ``step``, ``start``, ``end`` (ns) where the format knows better than the names do.
        raw: Source of raw event text.
    """

    def __init__(
        self,
        events: pl.DataFrame,
        tracks: tuple[Track, ...],
        info: TraceInfo,
        stats: ReadStats | None = None,
        *,
        instants: pl.DataFrame | None = None,
        counters: pl.DataFrame | None = None,
        communications: pl.DataFrame | None = None,
        event_waits: pl.DataFrame | None = None,
        sync_sites: pl.DataFrame | None = None,
        dispatched: pl.DataFrame | None = None,
        step_markers: pl.DataFrame | None = None,
        raw: RawSource | None = None,
    ) -> None:
        self.events = events
        self.tracks = tracks
        self.info = info
        self.stats = stats or ReadStats(events=len(events))
        self.instants = instants
        self.counters = counters
        self.communications = communications
        self.event_waits = event_waits
        self.sync_sites = sync_sites
        self.dispatched = dispatched
        self.given_step_markers = step_markers
        self._raw = raw
        #: The compiled programs that its events carry out; None = the format has none.
        self.programs: Programs | None = None
        #: What its session recorded of the same steps while no profiler ran; None = it is of no session, or too short.
        self.uncaptured: Uncaptured | None = None
        #: Whether figures are of its steps as they were captured, with what the profiler added to them.
        self.as_captured = False
        #: Finds the ranks of its job; None = nobody looks, or it was done.
        self.find_siblings: Callable[[], TraceSet | None] | None = None
        self._siblings: TraceSet | None = None
        #: Opens one more step of the same run, recorded for the arguments of its operators; None = there is none.
        self.open_shapes_step: Callable[[], Trace | None] | None = None
        self._work: dict[int, Ints] = {}
        self._unpacked: dict[str, Ints] = {}
        #: Results of functions that are ``cached_on_trace``, by function and arguments.
        self.derivations: dict[tuple[object, tuple[object, ...]], Derivation] = {}
        self._busy: dict[int, tuple[Ints, Ints]] = {}

    def captured(self) -> Trace:
        """Return the same trace, whose figures are those of its steps as captured instead of without the profiler."""
        other = copy(self)
        other.as_captured, other.derivations = True, {}
        return other

    def __len__(self) -> int:
        """Return the number of events in the table."""
        return len(self.events)

    @property
    def siblings(self) -> TraceSet | None:
        """The ranks of its job, including itself; None = it is the only one, or unknown."""
        if self.find_siblings is not None:
            self._siblings, self.find_siblings = self.find_siblings(), None
        return self._siblings

    @siblings.setter
    def siblings(self, found: TraceSet | None) -> None:
        self._siblings, self.find_siblings = found, None

    @derived
    def shapes_step(self) -> Trace | None:
        """One more step of the same run, with the arguments of operators that the trace lacks; None = there is none."""
        return self.open_shapes_step() if self.open_shapes_step is not None else None

    # -- columns as arrays ---------------------------------------------------------------------------------

    def ints(self, column: str, rows: Ints | None = None) -> Ints:
        """Return an integer column as int64, -1 for null, shape ``(len(self),)`` or that of ``rows``.

        Most columns mean something for a few events only: ask for those, and the rest is never unpacked. Of a trace
        with few events a column is unpacked once, which takes less than to gather some of its values.
        """
        if rows is not None and len(self) <= _BLOCK:
            if column not in self._unpacked:
                self._unpacked[column] = self.ints(column)
            return self._unpacked[column][rows]
        series = self.events[column]
        if rows is None and not series.null_count():
            return series.to_numpy().astype(np.int64, copy=False)
        result = np.empty(len(self) if rows is None else len(rows), dtype=np.int64)
        for low in range(0, len(result), _BLOCK):  # at once it would be copied three times
            part = slice(low, low + _BLOCK)
            some = series[part] if rows is None else series.gather(rows[part])
            result[part] = some.cast(pl.Int64).fill_null(-1).to_numpy()
        return result

    @derived
    def starts(self) -> Ints:
        """Start of every event, ns."""
        return self.ints("ts")

    @derived
    def ends(self) -> Ints:
        """End of every event, ns."""
        ends: Ints = self.starts.copy()
        for part, lengths in _chunks(self.events["dur"]):
            ends[part] += lengths
        return ends

    def lengths(self, rows: Ints) -> Ints:
        """Return the length of some events, ns."""
        lengths: Ints = self.ends[rows] - self.starts[rows]
        return lengths

    def length(self, row: int) -> int:
        """Return the length of one event, ns."""
        return int(self.ends[row] - self.starts[row])

    def longest(self, rows: Ints) -> int:
        """Return the row of the longest of some events."""
        return int(rows[np.argmax(self.lengths(rows))])

    def union(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return when at least one of some events runs, as a disjoint set in ns."""
        return union(self.starts[rows], self.ends[rows])

    # Codes are as narrow as can be, but signed: -1 may stand for none.

    @derived
    def category_codes(self) -> npt.NDArray[np.uint8]:
        """Category of every event as an index into ``CATEGORIES``."""
        return _narrowed(self.events["category"].to_physical(), np.dtype(np.uint8))

    @derived
    def name_codes(self) -> Ints:
        """Name of every event as an index into :attr:`names`."""
        return _narrowed(self.events["name"].to_physical(), np.min_scalar_type(-len(self.names) - 1))

    @derived
    def track_codes(self) -> Ints:
        """Track of every event as an index into :attr:`tracks`."""
        return _narrowed(self.events["track"], np.min_scalar_type(-len(self.tracks) - 1))

    @derived
    def on_host(self) -> Mask:
        """Which events belong to no device."""
        return (self.events["device"].fill_null(-1) < 0).to_numpy()

    @derived
    def names(self) -> list[str]:
        """The distinct names of this trace."""
        dtype = self.events["name"].dtype
        assert isinstance(dtype, pl.Enum), f"name must be an Enum, not {dtype}"
        return dtype.categories.to_list()

    def name(self, row: int) -> str:
        """Return the name of one event."""
        return self.names[int(self.name_codes[row])]

    def is_category(self, *categories: str, rows: Ints | None = None) -> Mask:
        """Return which events, or which of ``rows``, belong to any of these of ``CATEGORIES``."""
        codes = self.category_codes if rows is None else self.category_codes[rows]
        mask: Mask = np.zeros(len(codes), dtype=bool)
        for name in categories:
            mask |= codes == _CATEGORY_CODE[name]
        return mask

    def named(self, predicate: str, rows: Ints | None = None) -> Mask:
        """Return which events, or which of ``rows``, have a name in which a regular expression is found."""
        hits = self.names_like(predicate)
        if not hits.any():
            return np.zeros(len(self) if rows is None else len(rows), dtype=bool)
        return hits[self.name_codes if rows is None else self.name_codes[rows]]

    def names_like(self, predicate: str) -> Mask:
        """Return which of :attr:`names` match a regular expression (searched anywhere); the array is read-only."""
        return (_kept_names_like if len(self.names) <= _KEPT_NAMES else _names_like)(self, predicate)

    def host_events(self, predicate: str) -> Ints:
        """Return the rows of the host events in whose name a regular expression is found."""
        return np.flatnonzero(self.named(predicate) & self.on_host)

    def operators(self, predicate: str = "") -> Ints:
        """Return the rows of the operators, or of those in whose name a regular expression is found."""
        rows = self._rows_of("cpu_op")
        return rows[self.named(predicate, rows)] if predicate else rows

    # -- extent --------------------------------------------------------------------------------------------

    @derived
    def span(self) -> tuple[int, int]:
        """First start and last end of all events, ns; without events those of the counters, else ``(0, 0)``."""
        if not len(self) and self.counters is not None and len(self.counters):
            at = self.counters["ts"].to_numpy()
            return int(at.min()), int(at.max())
        if not len(self):
            return 0, 0
        return int(self.starts[0]), int(self.ends.max())

    def bounds(self, window: Window) -> tuple[int, int]:
        """Return the limits of a window in ns, the open ends filled in."""
        low, high = self.span
        return (
            low if window.start_ns is None else window.start_ns,
            high if window.end_ns is None else window.end_ns,
        )

    def in_window(self, window: Window) -> Mask:
        """Return which events overlap a window (an event without length: starts in it)."""
        if window.whole:
            return np.ones(len(self), dtype=bool)
        low, high = self.bounds(window)
        mask: Mask = (self.starts < high) & ((self.ends > low) | (self.starts >= low))
        return mask

    # -- derived once --------------------------------------------------------------------------------------

    @derived
    def device_work(self) -> Ints:
        """Rows of device work (kernels, copies, fills, collectives), in order of start."""
        return self._rows_of(*DEVICE_WORK)

    @derived
    def host_calls(self) -> Ints:
        """Rows of runtime and driver calls, in order of start."""
        return self._rows_of(*HOST_CALLS)

    def _rows_of(self, *categories: str) -> Ints:
        return np.flatnonzero(self.is_category(*categories)).astype(row_type(len(self)))

    @derived
    def device_indices(self) -> tuple[int, ...]:
        """Devices that did any work, ascending."""
        return tuple(int(d) for d in np.unique(self.ints("device", self.device_work)) if d >= 0)

    def work_of(self, device: int) -> Ints:
        """Return the rows of the work of one device, in order of start."""
        if device not in self._work:
            self._work[device] = self.device_work[self.ints("device", self.device_work) == device]
        return self._work[device]

    def between(self, low: int, high: int) -> Ints:
        """Return the rows of events that begin before an instant and end after another, in order of start."""
        count = int(np.searchsorted(self.starts, high, side="left"))
        return np.flatnonzero(self.ends[:count] > low)

    @derived
    def links(self) -> Links:
        """Which host call launched which device work."""
        return link(self)

    @derived
    def nesting(self) -> Nesting:
        """Parent and depth of every event within its track."""
        return nest(self.starts, self.ends, self.track_codes)

    @derived
    def steps(self) -> steps.Steps:
        """Training steps and the step of every event; without markers ``steps.numbers`` is empty."""
        return steps.assign(self, self.given_step_markers)

    def busy(self, device: int) -> tuple[Ints, Ints]:
        """Return when a device works: the union over all its streams, as a disjoint set in ns."""
        if device not in self._busy:
            self._busy[device] = self.union(self.work_of(device))
        return self._busy[device]

    @derived
    def trust(self) -> Trust:
        """What this trace cannot tell."""
        from tuiprof.model.trust import examine

        return examine(self)

    # -- one event -----------------------------------------------------------------------------------------

    def ancestors(self, row: int) -> list[int]:
        """Return the rows that enclose an event on its track, innermost first."""
        return [int(level[0]) for level in self.nesting.outward(np.array([row], dtype=np.int64))]

    def launched_by(self, row: int) -> Ints:
        """Return the device work that an event launched, in order of start."""
        work, count = self.device_work, self.links.count_of(row)
        after = int(np.searchsorted(work, row))
        for part in (work[after : after + 100_000], work):  # it nearly always starts soon after its launch
            found: Ints = part[self.links.launch_of[part] == row]
            if len(found) == count:
                break
        return found

    def raw_event(self, row: int) -> str:
        """Return the untouched, untrusted text of an event in the file; empty if the format keeps none."""
        if self._raw is None:
            return ""
        return self._raw.text(int(self.events["ordinal"][row]))


def _chunks(column: pl.Series) -> Iterator[tuple[slice, npt.NDArray[Any]]]:
    """Yield the parts in which a column lies, each with where it begins and ends, so that none is put together."""
    at = 0
    for chunk in column.get_chunks() if len(column) else ():  # an array of nothing may be of any type
        yield slice(at, at + len(chunk)), chunk.to_numpy()
        at += len(chunk)


def _narrowed(column: pl.Series, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a column as an array of a narrower type."""
    result = np.empty(len(column), dtype=dtype)
    for part, values in _chunks(column):
        result[part] = values
    return result


def _names_like(trace: Trace, predicate: str) -> Mask:
    search = re.compile(predicate).search
    hits = np.fromiter((search(name) is not None for name in trace.names), bool, len(trace.names))
    hits.flags.writeable = False
    return hits


#: Maximum number of names for which it is kept which of them match: about a hundred expressions, a byte for each name.
_KEPT_NAMES: Final = 100_000
#: Several analyses ask for the same: half of the calls.
_kept_names_like = cached_on_trace(_names_like)
