"""Training steps: marked, or read from what repeats; the step of every event; the steps that were not captured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, sqrt
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tuiprof.model.intervals import Floats, Ints, Mask, Window

if TYPE_CHECKING:
    from tuiprof.model.trace import Trace

#: A number that 64 bits hold.
_MARKER = re.compile(r"^ProfilerStep#([0-9]{1,18})$")


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of a trace."""

    numbers: Ints  # step numbers in order of start, shape ``(k,)``; empty when the trace has no steps
    starts: Ints  # start of each on the host, ns
    ends: Ints  # end of each on the host, ns
    #: For every event the index into ``numbers`` of its step; -1 = none. The step of a device event is the step of the
    #: host call that launched it, not the marker it happens to fall under; so is that of an operator that the CPU runs
    #: behind the call that handed it over.
    step_of: Ints
    #: The trace marks no steps, and this is what they were read from; empty = it marks them.
    read_from: str = ""

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.numbers)

    @property
    def lengths(self) -> Ints:
        """Length of each on the host, ns."""
        return self.ends - self.starts

    def have(self, rows: Ints) -> Mask:
        """Return which events belong to a step; all of them if there are no steps."""
        belong: Mask = self.step_of[rows] >= 0
        return belong if len(self) else np.ones(len(rows), dtype=bool)

    def inside(self, low: int, high: int) -> Ints:
        """Return indices of the steps that lie wholly in ``[low, high]``, ns."""
        return np.flatnonzero((self.starts >= low) & (self.ends <= high)).astype(np.int64)

    def window(self, index: int) -> Window:
        """Return the window of one step, by its index in ``numbers``."""
        return Window(int(self.starts[index]), int(self.ends[index]), f"step {self.numbers[index]}")


def assign(trace: Trace, markers: pl.DataFrame | None = None) -> Steps:
    """Find the steps and assign every event to one.

    Without ``markers`` of the format, ``ProfilerStep#N`` outside the device tracks is looked for; where there are none,
    steps are read from what repeats (:func:`repeated`).
    """
    if markers is None:
        markers = _markers_by_name(trace)
    read_from = ""
    if not len(markers) and len(trace):
        markers, read_from = repeated(trace)
    # Of several that begin together the longest first, so that one inside another comes after it.
    numbers, starts, ends = (markers[key].cast(pl.Int64).to_numpy() for key in _MARKERS)
    order = np.lexsort((-ends, starts))
    numbers, starts, ends = numbers[order], starts[order], ends[order]
    if not len(numbers) or not len(trace):
        # One value stands for all events, of which such a trace may have millions.
        none = np.broadcast_to(np.int32(-1), len(trace))
        return Steps(numbers, starts, ends, none, read_from)
    step_of = np.full(len(trace), -1, dtype=np.int32)
    # Events are sorted by start, so those that start within a step are a slice; where steps overlap, the one that
    # began last has them.
    first = np.searchsorted(trace.starts, starts, side="left")
    after = np.searchsorted(trace.starts, ends, side="left")
    for index, (low, high) in enumerate(zip(first.tolist(), after.tolist(), strict=True)):
        step_of[low:high] = index
    on_device = np.flatnonzero(~trace.on_host)
    launch = trace.links.launch_of[on_device]
    step_of[on_device] = np.where(launch >= 0, step_of[np.maximum(launch, 0)], -1)
    if (dispatched := trace.dispatched) is not None:
        step_of[dispatched["work"].to_numpy()] = step_of[dispatched["call"].to_numpy()]
    return Steps(numbers, starts, ends, step_of, read_from)


def _markers_by_name(trace: Trace) -> pl.DataFrame:
    """Find ``ProfilerStep#N`` ranges; of several with one number (one a thread) the longest counts."""
    found = {code: int(match[1]) for code, name in enumerate(trace.names) if (match := _MARKER.match(name))}
    rows = np.flatnonzero(trace.named(_MARKER.pattern))
    rows = rows[~trace.is_category("device_annotation", "kernel", rows=rows)]
    rows = rows[np.argsort(-trace.lengths(rows), kind="stable")]
    numbers = np.array([found[int(code)] for code in trace.name_codes[rows]], dtype=np.int64)
    numbers, first = np.unique(numbers, return_index=True)
    rows = rows[first]
    return pl.DataFrame({"step": numbers, "start": trace.starts[rows], "end": trace.ends[rows]})


#: What comes less often does not repeat.
FEWEST: Final = 3
#: Names of what ends or begins a step, by preference: PyTorch's optimizers; calls of jitted JAX functions; batches.
_OPTIMIZER: Final = re.compile(r"^Optimizer\.step#")
_NODE: Final = re.compile(r"^autograd::engine::evaluate_function: ")
_JITTED: Final = re.compile(r"^PjitFunction\((?P<name>.+)\)$")
_BATCH: Final = re.compile(r"^enumerate\(DataLoader\)#")
#: Jitted functions that are no step: what operators of jax.numpy become.
_MIN_SHARE: Final = 0.2
#: A sequence that repeats is a step if it is so much of what is launched: else a part of one, as a model's layers are.
_MIN_REPEATED: Final = 0.75
#: Launches repeat if the distances between the anchors are alike: this share of them within so much of the median.
_ALIKE, _NEAR = 0.8, 0.1
#: A longer period must be better than a shorter one by more than this share of the launches.
_NO_BETTER: Final = 0.02
#: Number of optimizer steps among which those that take turns are looked for.
_MOST_COMPARED: Final = 200
_MARKERS: Final = {"step": pl.Int64, "start": pl.Int64, "end": pl.Int64}


def repeated(trace: Trace) -> tuple[pl.DataFrame, str]:
    """Return ``step`` (from 0), ``start`` and ``end`` (ns) of steps read from a trace, and by what; empty = nothing
    repeats.

    In this order: the ends of the ranges of PyTorch's optimizer; calls of the jitted JAX function that takes most of
    the time; batches of a DataLoader; kernels, of which as many different ones as possible come equally often.
    """
    for find in (_by_optimizer, _by_jitted, _by_batches, _by_launches):
        starts, ends, by = find(trace)
        keep = ends > starts  # works of one graph are launched at once
        count = int(keep.sum())
        if count >= FEWEST:
            frame = {"step": np.arange(count), "start": starts[keep], "end": ends[keep]}
            return pl.DataFrame(frame, schema=_MARKERS), by
    return pl.DataFrame(schema=_MARKERS), ""


def _named(trace: Trace, pattern: re.Pattern[str]) -> tuple[Ints, Ints]:
    """Return the host rows whose name matches, and the code of each name."""
    rows = trace.host_events(pattern.pattern)
    return rows, trace.name_codes[rows].astype(np.int64)


#: A function that is called this many times for each call of another is an operation of a step; and how far apart the
#: quartiles of the times between the calls of the other may be, as a share of their median.
_OFTEN: Final = 8
_REGULAR: Final = 0.5

#: Start and end of each step, ns, and what they are read from.
_Found = tuple[Ints, Ints, str]
_NOTHING: Final[_Found] = (np.empty(0, np.int64), np.empty(0, np.int64), "")


def _between(edges: Ints, by: str) -> _Found:
    """Return the steps from each edge to the next."""
    return edges[:-1], edges[1:], by


def _by_optimizer(trace: Trace) -> _Found:
    rows, codes = _named(trace, _OPTIMIZER)
    if not len(rows):
        return _NOTHING
    kind = int(np.bincount(codes).argmax())
    ends = np.sort(trace.ends[rows[codes == kind]])
    nodes = trace.operators(_NODE.pattern)
    at = trace.starts[nodes]
    if len(nodes):  # several optimizers may step after one backward pass
        ends = ends[np.diff(np.searchsorted(at, ends), append=len(at) + 1) > 0]
    period = _turns(np.searchsorted(ends, at), trace.name_codes[nodes], len(ends))
    of_step = f", {period} of which are a step" if period > 1 else ""
    return _between(ends[period - 1 :: period], f"{trace.names[kind]} in PyTorch's own marks{of_step}")


def _turns(interval: Ints, codes: Ints, count: int) -> int:
    """Return how many optimizers of one class take turns, as those of a GAN: 1 = one, or it can't be told.

    Each comes after a backward pass of its own. ``interval`` is that of each node, ``codes`` its name; ``count`` is the
    number of intervals.
    """
    known = interval < min(count, _MOST_COMPARED)
    names, kinds = np.unique(codes[known], return_inverse=True)
    nodes = np.zeros((min(count, _MOST_COMPARED), len(names)))
    np.add.at(nodes, (interval[known], kinds), 1)
    alike = [_same_nodes(nodes[lag:], nodes[:-lag]) for lag in range(1, len(nodes) // 2 + 1)]
    best = max(alike, default=0.0)
    # A multiple of a period is as good as it is.
    return next(lag for lag, share in enumerate(alike, 1) if share >= best - _NEAR) if best >= _ALIKE else 1


def _same_nodes(some: Floats, others: Floats) -> float:
    """Return the share of backward passes that have about the same nodes as the others, all as counts."""
    least, most = (choose(some, others).sum(axis=1) for choose in (np.minimum, np.maximum))
    return float((least >= (1 - _NEAR) * most).mean())


def _by_jitted(trace: Trace) -> _Found:
    rows, codes = _named(trace, _JITTED)
    if not len(rows):
        return _NOTHING
    # A function that is called again and again, not the operators that come many times within each of its calls.
    took = np.bincount(codes, weights=trace.lengths(rows))
    often = np.bincount(codes)
    took[often <= FEWEST] = 0
    launching = [kind for kind in np.flatnonzero(took).tolist() if _launches_most(trace, rows[codes == kind])]
    kind = max(launching, key=lambda kind: float(took[kind])) if launching else int(took.argmax())
    if not launching and (took[kind] < _MIN_SHARE * took.sum() or not took[kind]):
        return _NOTHING
    if not launching:
        kind = _rarer(trace, rows, codes, took, kind)
    mine = _outermost(trace, rows[codes == kind])
    match = _JITTED.match(trace.names[kind])
    name = match["name"] if match else trace.names[kind]
    return _between(np.sort(trace.starts[mine]), f"calls of {name}, jitted")


def _rarer(trace: Trace, rows: Ints, codes: Ints, took: Ints | Floats, kind: int) -> int:
    """Return the function that is called once where another is called many times, as single operations outside a jit.

    Such calls come at regular times. The function that takes the most time of these is the step; else the given one.
    """
    often = np.bincount(codes)
    rare = np.flatnonzero((took > 0) & (often * _OFTEN <= often[kind]))
    for one in map(int, rare[np.argsort(-took[rare], kind="stable")]):
        gaps = np.diff(trace.starts[_outermost(trace, rows[codes == one])])
        low, middle, high = np.percentile(gaps, (25, 50, 75)) if len(gaps) >= FEWEST else (0, 0, 1)
        if high - low <= _REGULAR * middle:
            return one
    return kind


def _launches_most(trace: Trace, rows: Ints) -> bool:
    """Return whether most of the device work is launched inside some host events: of operators of jax.numpy beside the
    step, the first compile and so take long.
    """
    launch = trace.links.launch_of[trace.device_work]
    lengths = trace.lengths(trace.device_work)
    around = _outermost(trace, rows)
    at = np.searchsorted(trace.starts[around], trace.starts[launch], side="right") - 1
    inside = (launch >= 0) & (at >= 0) & (trace.starts[launch] < trace.ends[around[np.maximum(at, 0)]])
    return bool(2 * lengths[inside].sum() > lengths.sum())


def _outermost(trace: Trace, rows: Ints) -> Ints:
    """Return the rows that lie in no other of them: on a CPU, JAX marks one call twice, one mark inside the other."""
    order = rows[np.lexsort((-trace.ends[rows], trace.starts[rows]))]
    before = np.maximum.accumulate(np.concatenate(([np.iinfo(np.int64).min], trace.ends[order][:-1])))
    return np.sort(order[trace.starts[order] >= before])


def _by_batches(trace: Trace) -> _Found:
    rows, _ = _named(trace, _BATCH)
    return _between(np.sort(trace.starts[rows]), "batches of a DataLoader")


def _by_launches(trace: Trace) -> _Found:
    """Anchor steps at the kernel that comes first of those that come as often as the whole sequence does."""
    kernels = np.flatnonzero(trace.is_category("kernel"))
    launch = trace.links.launch_of[kernels]
    kernels, launch = kernels[launch >= 0], launch[launch >= 0]
    order = np.argsort(trace.starts[launch], kind="stable")
    firsts = anchors(trace.name_codes[kernels][order].astype(np.int64))
    if not len(firsts):
        return _NOTHING
    between = np.diff(firsts)
    alike = _alike(between)
    starts, ends, by = _between(
        trace.starts[launch[order][firsts]].astype(np.int64),
        f"a sequence of {int(np.median(between))} launches that repeats {len(firsts)} times",
    )
    return starts[alike], ends[alike], by


def anchors(codes: Ints) -> Ints:
    """Return where each repetition of a sequence begins; empty = nothing repeats.

    What comes once in each repetition has equal distances. So have a model's layers in each pass over them: the
    distance counts at which most of the sequence is the same again.
    """
    by_name = np.argsort(codes, kind="stable")
    times = np.bincount(codes)
    ends = np.cumsum(times)
    first = np.full(len(times), len(codes))
    first[times > 0] = by_name[(ends - times)[times > 0]]
    candidates = []
    for count in np.unique(times[times > FEWEST]).tolist():
        name = int(np.where(times == count, first, len(codes)).argmin())
        rows: Ints = by_name[ends[name] - count : ends[name]].astype(np.int64)
        between = np.diff(rows)
        period = int(np.median(between))
        alike = _alike(between)
        repeated = between[alike].sum() + period
        if alike.mean() >= _ALIKE and period >= 2 and repeated >= _MIN_REPEATED * len(codes):
            candidates.append((period, rows))
    best = -_NO_BETTER
    found: Ints = np.empty(0, np.int64)
    for period, rows in sorted(candidates, key=lambda candidate: candidate[0]):
        same = float((codes[period:] == codes[:-period]).mean())
        if same > best + _NO_BETTER:  # multiples of a period are as good as it is
            best, found = same, rows
    return found


def _alike(between: Ints) -> Mask:
    """Return which distances between anchors are those of the sequence: with other work in between it is no step."""
    period = int(np.median(between))
    result: Mask = np.abs(between - period) <= _NEAR * period
    return result


@dataclass(frozen=True, slots=True)
class SampledLine:
    """A line of the script at which its main thread was sampled."""

    where: str  # ``file.py:24``
    share: float  # its share of all samples
    doing: str  # the phase, for example ``"backward"``; empty = none


@dataclass(frozen=True, slots=True)
class WorkerRestarts:
    """How often the data loaders of a process restarted their workers."""

    workers: int  # current number of workers
    starts: int  # number of restarts
    steps: int  # number of steps in which they happened
    ns: int  # total time of the consuming thread spent in stopping and starting workers
    waited_ns: int  # total time it waited for the first batch of new workers


@dataclass(frozen=True, slots=True)
class BatchPadding:
    """How much of some batches of texts or other sequences is padding, as sums over these batches."""

    batches: int  # number of batches with tensors that may be tokens
    width: int  # their columns
    longest: int  # columns that at least one text of the batch uses
    masked: int  # number of batches with a mask or lengths, which tell the length of each text
    full: int  # number of batches in which a text uses the whole width
    least: int  # fewest columns that a batch uses
    most: int  # most columns that a batch uses
    cut: bool = False  # in the capture, models got fewer columns than the batches have
    frames: int = 0  # number of batches of other sequences than texts, such as speech


@dataclass(frozen=True, slots=True)
class Weights:
    """The parameters that are trained or called in a capture."""

    types: Mapping[str, int]  # number of elements by type: ``"float32"``, …
    kernels: int = 0  # number of weights that may be of convolutions over areas and volumes
    depthwise: int = 0  # number of depthwise ones
    first: int = 0  # number of kernels in channels-first, where the strides tell the layout
    last: int = 0  # number of kernels in channels-last, likewise

    def share_of(self, kind: str) -> float:
        """Return the share of the elements that have a type."""
        return self.types.get(kind, 0) / max(sum(self.types.values()), 1)


@dataclass(frozen=True, slots=True)
class PageFaults:
    """First uses of memory that the process got from the operating system, outside of captures."""

    per_step: float  # number of page faults
    system_share: (
        float  # share of the process's CPU time that it spends in the operating system, for any reason
    )


@dataclass(frozen=True, slots=True)
class Collections:
    """Python's garbage collections on the thread that makes the steps, in the steps of a run outside its captures."""

    steps: int  # number of steps in which they were timed, at least 1
    count: int  # number of collections
    ns: float  # their time
    squares: float  # sum of the squares of their time in a step, ns²
    usual_ns: float = 0.0  # their time in the median step
    #: The part of long collections by which the steps that have one are longer, 0 to 1; less than 1 where a device
    #: works on meanwhile. None = no step with a long one is known.
    shown: float | None = None

    @property
    def long_ns(self) -> float:
        """How long the collections of a step take, averaged over the time that they take: that of long ones."""
        return self.squares / self.ns if self.ns else 0.0

    @property
    def every(self) -> float:
        """Number of steps from one with so long collections to the next."""
        return self.steps * self.long_ns / self.ns if self.ns else inf

    def rare_ns(self) -> tuple[float, float, float]:
        """Return what rare collections take of a step, averaged over all steps: likely, at least and at most, ns.

        Those of most steps are left out. They come now and then, so their sum varies by the root of the squares.
        """
        rare_ns = max(self.ns / self.steps - self.usual_ns, 0.0)
        varies_ns = sqrt(self.squares) / self.steps
        shown = 1.0 if self.shown is None else self.shown
        least = 0.0 if self.shown is None else self.shown
        return shown * rare_ns, least * max(rare_ns - varies_ns, 0.0), rare_ns + varies_ns


#: What some steps take longer stands out if it is this multiple of the difference between the median step and the 10th
#: percentile: five standard deviations, if steps vary normally.
STANDS_OUT: Final = 4.0


@dataclass(frozen=True, slots=True)
class Uncaptured:
    """Steps of a run outside its captures, of the process that a trace is of.

    A profiler slows the host down, during a capture and, on CUDA, for the rest of the run. So these are steps before
    the first capture where there are enough of them.
    """

    steps: int  # number of steps
    step_ns: float  # their median time, ns
    low_ns: float  # their 10th percentile, ns
    high_ns: float  # their 90th percentile, ns
    #: Host time of a step while the host runs ahead of the device, ns: if the run is bound by the device, the first
    #: steps take only this long, until the launch queue is full. None = no such steps were seen.
    host_ns: float | None = None
    after_capture: bool = False  # the steps come after a capture, because too few came before it
    usable_cores: int | None = None  # processor cores that the run may use; None = not recorded
    #: How many of them its processes kept busy in the median, workers included; None = not recorded.
    busy_cores: float | None = None
    idle_cores: float | None = None  # how many cores of the host were idle in the median; None = not recorded
    #: The processor's instructions for bfloat16, ``"amx_bf16"``, ``"avx512_bf16"`` or ``"bf16"`` (Arm); empty = it
    #: has none; None = not recorded.
    bf16: str | None = None
    #: Where the main thread was, by samples over the run, the most frequent first; empty = too few samples.
    lines: tuple[SampledLine, ...] = ()
    restarts: WorkerRestarts | None = None  # how loaders started their workers again; None = they did not
    padding: BatchPadding | None = (
        None  # how much of the batches is padding; None = no batches of text were seen
    )
    weights: Weights | None = None  # the parameters in the capture; None = not recorded
    page_faults: PageFaults | None = None  # None = not recorded
    collections: Collections | None = None  # None = not recorded
    times_ns: tuple[int, ...] = ()  # what each step took; empty = not known
    #: What steps after the capture took, if these are before it: they may be slower, but show how often a kind of step
    #: comes; empty = not known
    later_ns: tuple[int, ...] = ()
    #: What the last steps of the run took, if they come after those of ``later_ns``; empty = not known
    last_ns: tuple[int, ...] = ()
    #: What the profiler added to each phase of a step, ns; ``""`` is the rest of it; empty = not known.
    slowed_ns: Mapping[str, float] = field(default_factory=dict)
    #: How long a step waits for its batch, ns, averaged over steps, as several workers deliver several batches at once;
    #: None = not known.
    fetch_ns: float | None = None
    #: What the phases of a step that a trace shows as well take at most in nine of ten steps, ns; empty = not known.
    phases_ns: Mapping[str, float] = field(default_factory=dict)
    #: How many threads an operator may use on a CPU, in the capture; None = not recorded.
    threads: int | None = None
    #: Share of the time that the thread which makes the steps was on a core; None = not recorded.
    thread_share: float | None = None
    #: The framework whose training loop makes the steps: ``transformers``, ``lightning`` or ``accelerate``; empty =
    #: none, or not recorded.
    trainer: str = ""
    #: The step time is the mean: a device sets it, and the host waits for several steps at once.
    is_mean: bool = False

    def outliers_ns(self, at_most_ns: float) -> float:
        """Return what steps that stand out take longer than the median, averaged over all; 0 if it is only one.

        Steps that take longer by more than ``at_most_ns`` do not count.
        """
        least_ns = STANDS_OUT * (self.step_ns - self.low_ns)
        longer = [by for ns in self.times_ns if least_ns < (by := ns - self.step_ns) <= at_most_ns]
        return sum(longer) / len(self.times_ns) if len(longer) > 1 else 0.0

    def longer_ns(self, by_ns: float) -> tuple[float, int]:
        """Return what steps take longer than the median because of something that takes about ``by_ns``.

        The first figure is averaged over all steps, the second is the number of such steps. Both are 0 if it does not
        stand out from the variation of steps.
        """
        if by_ns < STANDS_OUT * (self.step_ns - self.low_ns):
            return 0.0, 0
        longer = [ns - self.step_ns for ns in self.times_ns if 0.5 * by_ns <= ns - self.step_ns <= 2 * by_ns]
        return sum(longer) / max(len(self.times_ns), 1), len(longer)
