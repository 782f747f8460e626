"""Finds the calls in which the host waits for the device.

A *wait* is one stop of the host, regardless of the number of calls: ``aten::item`` copies a value to the host and then
synchronizes the stream, which is one wait with two calls.

XLA (JAX, torch_xla) writes an await of a buffer as two marks of about a microsecond. Where the format keeps their
numbers, its reader has made one event of them; in JSON the numbers are gone, and two marks of one name with nothing
between them on their thread are a wait: a blocked thread records nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tuiprof.analyses.shared.frames import Ancestry, ancestry_of
from tuiprof.model import Trace, Window
from tuiprof.model.intervals import Ints, Mask, distinct, member, picked, union
from tuiprof.model.trace import cached_on_trace

#: Kinds by the name of the call alone. CUDA, HIP, MUSA, Level Zero, SYCL/UR (XPU), MTIA and Ascend (ACL).
CALLS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (
            "device sync",
            r"^(cuda|hip|musa)DeviceSynchronize|^(cu|hip)CtxSynchronize|^aclrtSynchronizeDevice"
            r"|^synchronize(Device)?$|^zeCommandQueueSynchronize|^nrt_.*wait$",
        ),
        (
            "stream sync",
            r"^(cuda|hip|musa|cu)StreamSynchronize|^aclrtSynchronizeStream|^synchronizeStream$"
            r"|^zeCommandListHostSynchronize|^(ur|pi)QueueFinish",
        ),
        (
            "event sync",
            r"^(cuda|hip|musa|cu)EventSynchronize|^aclrtSynchronizeEvent|^synchronizeEvent$"
            r"|^ze(Event|Fence)HostSynchronize|^(ur|pi)Events?Wait$",
        ),
        (
            "blocking copy",
            r"^(cuda|hip|musa)Memcpy(2D|3D|Peer|ToSymbol|FromSymbol|ToArray|FromArray|HtoD|DtoH|DtoD)?(_v\d+)?$"
            r"|^hipMemcpyWithStream$|^cuMemcpy(2D|3D|HtoD|DtoH|DtoD)?(_v\d+)?(_ptds)?$|^aclrtMemcpy$",
        ),
        (
            "allocator",
            r"^(cuda|hip|musa)(Malloc(Host|Managed|Pitch|3D)?|Free(Host)?|HostAlloc|HostMalloc|HostFree"
            r"|HostRegister|HostUnregister|ExtMallocWithFlags)$"
            r"|^cuMem(Alloc|AllocPitch|AllocHost|AllocManaged|HostAlloc|Free|FreeHost)(_v\d+)?$"
            r"|^aclrt(Malloc|MallocHost|Free|FreeHost)$",
        ),
    )
)

#: Kinds by the operators around a call; the outermost counts, because that is what the script called: ``unique`` and
#: not the ``item`` inside it.
OPERATORS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("item", r"^aten::(_local_scalar_dense|item)$"),
        ("bool", r"^aten::is_nonzero$"),
        ("equal", r"^aten::(equal|allclose)$"),
        ("nonzero", r"^aten::(nonzero|nonzero_numpy|argwhere)$"),
        ("masked_select", r"^aten::masked_select$"),
        ("unique", r"^aten::(unique|_unique|_unique2|unique_dim|unique_consecutive)$"),
        ("repeat_interleave", r"^aten::repeat_interleave$"),
        ("bincount", r"^aten::(bincount|histc)$"),
        ("one_hot", r"^aten::one_hot$"),
        ("multinomial", r"^aten::multinomial$"),
        ("error check", r"^aten::_linalg_check_errors$"),
        ("pin memory", r"^aten::(_pin_memory|pin_memory)$"),
        ("collective wait", r"^(c10d|nccl|rccl|gloo|mpi|hccl|xccl)[:_]|^record_param_comms$"),
    )
)
#: Indexing reads a size only if the index is a mask, indicated by the ``nonzero`` inside it.
MASKED: Final = re.compile(r"^aten::(index|index_put|index_put_|_index_put_impl_)$")
MASK, NONZERO = "boolean mask", "nonzero"
#: Results whose size is computed on the device.
SIZE_KINDS: Final = frozenset(
    {"nonzero", MASK, "masked_select", "unique", "repeat_interleave", "bincount", "one_hot"}
)
#: Reads of one value.
READ_KINDS: Final = frozenset({"item", "bool", "equal"})
#: Copies by direction; then non-blocking copies that blocked because the host memory is pageable.
TO_HOST, TO_DEVICE = "copy to host", "copy to device"
PAGEABLE_TO_HOST, PAGEABLE_TO_DEVICE = "pageable copy to host", "pageable copy to device"
COPY_KINDS: Final = (TO_HOST, TO_DEVICE, PAGEABLE_TO_HOST, PAGEABLE_TO_DEVICE)

#: XLA: the host waits for a buffer, or reads one; Neuron: it reads one, or its call runs a program to the end.
AWAIT, READ, EXECUTE = "await", "device read", "blocking execute"

KINDS: Final[tuple[str, ...]] = (
    *dict.fromkeys(kind for kind, _ in (*OPERATORS, *CALLS)),
    MASK,
    AWAIT,
    READ,
    EXECUTE,
    *COPY_KINDS,
)

_HOST_COPY = re.compile(r"HtoD|DtoH|HostToDevice|DeviceToHost|Host -> Device|Device -> Host")
_TO_HOST = re.compile(r"DtoH|DeviceToHost|Device -> (Host|Pageable|Pinned)")

COUNTED, BY_PROFILER, AT_EDGE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Waits:
    """Waits in order of their end; arrays of shape ``(k,)``."""

    first: Ints  # row of the first call of each
    last: Ints  # row of the call whose return ends it
    copy: Ints  # row of the device copy it made; -1 = none
    starts: Ints  # when the host began to wait, ns
    ends: Ints  # when it continued, ns
    waited: Ints  # time inside the blocking calls, ns; at most ``ends - starts``
    kind: Ints  # index into ``kinds``
    kinds: tuple[str, ...]  # names of the kinds
    apart: Ints  # ``COUNTED``, or why it is excluded: ``BY_PROFILER``, ``AT_EDGE``
    ancestry: Ancestry  # ancestors of ``last``

    def __len__(self) -> int:
        """Return the number of waits, including excluded ones."""
        return len(self.first)


@cached_on_trace
def calls_by_kind(trace: Trace) -> tuple[Ints, Ints]:
    """Find the calls that wait by their name alone: rows in order of start, and kinds as in :class:`Waits`."""
    kind_of_name = np.full(len(trace.names), -1, dtype=np.int64)
    for code, name in enumerate(trace.names):
        word = next((word for word, pattern in CALLS if pattern.search(name.removeprefix("AscendCL@"))), None)
        if word is not None:
            kind_of_name[code] = KINDS.index(word)
    kind = kind_of_name[trace.name_codes[trace.host_calls]]
    rows, kind = trace.host_calls[kind >= 0], kind[kind >= 0]
    xla, words = _xla_calls(trace)
    kinds = np.concatenate((kind, np.array([KINDS.index(word) for word in words], dtype=np.int64)))
    rows = np.concatenate((rows, xla))
    order = np.argsort(rows, kind="stable")
    return rows[order], kinds[order]


def find(trace: Trace, window: Window) -> Waits:
    """Find every wait that overlaps a window."""
    waits = _of_whole(trace)
    if window.whole:
        return waits
    low, high = trace.bounds(window)
    inside = (waits.starts < high) & (waits.ends > low)
    cut = (waits.starts < low) | (waits.ends > high)
    apart = np.where((waits.apart == COUNTED) & cut, AT_EDGE, waits.apart)
    return picked(replace(waits, apart=apart, ancestry=picked(waits.ancestry, inside)), inside)


def inside_calls(trace: Trace, waits: Waits, which: Mask) -> tuple[Ints, Ints]:
    """Return when at least one thread is inside a blocking call, as a disjoint set in ns.

    The host runs between the copy and the synchronize of one wait, so this is at most the sum of ``waited``.
    """
    starts, ends, last = waits.starts[which], waits.ends[which], waits.last[which]
    last_starts = trace.starts[last]
    # If the wait begins with its last call, the first interval is empty.
    first_ends = np.where(starts < last_starts, trace.ends[waits.first[which]], starts)
    # A contiguous wait (two marks of one await) does not end with its first event.
    first_ends = np.where(waits.waited[which] == ends - starts, ends, first_ends)
    return union(np.concatenate((starts, last_starts)), np.concatenate((first_ends, ends)))


@cached_on_trace
def _of_whole(trace: Trace) -> Waits:
    """Find every wait of a trace."""
    rows, kinds = calls_by_kind(trace)
    copies, copy_work = _host_copies(trace)
    blocked = copies[~member(copies, rows) & _copy_blocked(trace, copies, copy_work)]
    kinds = np.concatenate((kinds, np.full(len(blocked), KINDS.index("blocking copy"), dtype=np.int64)))
    rows = np.concatenate((rows, blocked))
    order = np.argsort(rows)
    rows, kinds = rows[order], kinds[order]
    keep = member(rows, outermost(trace, rows)) & _first_of_correlation(trace, rows)
    rows, kinds = rows[keep], kinds[keep]

    absorbed, first = _absorb_copies(trace, rows, kinds, copies)
    waits_on = ~member(rows, absorbed)
    last, kinds, first = rows[waits_on], kinds[waits_on], first[waits_on]
    copy = np.full(len(last), -1, dtype=np.int64)
    if len(copies):
        at = np.minimum(np.searchsorted(copies, first), len(copies) - 1)
        copy = np.where(copies[at] == first, copy_work[at], -1)
    # A pinned copy before a synchronize does not block the host: the wait begins with the synchronize.
    blocks = member(first, rows)
    starts = np.where(blocks, trace.starts[first], trace.starts[last])
    ends = trace.ends[last]
    in_copy = np.where((first != last) & blocks, trace.lengths(first), 0)
    waited = ends - trace.starts[last] + in_copy
    # An await recorded as two marks lasts from the first to the second.
    seconds, firsts = xla_marks(trace)
    marked = member(last, seconds)
    first[marked] = firsts[np.searchsorted(seconds, last[marked])]
    starts[marked] = trace.starts[first[marked]]
    waited[marked] = ends[marked] - starts[marked]

    order = np.argsort(ends, kind="stable")
    first, last, copy, kinds = first[order], last[order], copy[order], kinds[order]
    starts, ends, waited = starts[order], ends[order], waited[order]
    ancestry = ancestry_of(trace, last)
    asked_not_to_block = (first == last) & trace.named("MemcpyAsync", last)
    kinds = _refine(trace, kinds, copy, asked_not_to_block, ancestry)
    apart = _apart(trace, last, kinds, ancestry)
    return Waits(first, last, copy, starts, ends, waited, kinds, KINDS, apart, ancestry)


def _host_copies(trace: Trace) -> tuple[Ints, Ints]:
    """Return calls that launched one copy between host and device, and that copy, both as rows."""
    work = trace.device_work[trace.is_category("memcpy", rows=trace.device_work)]
    work = work[trace.named(_HOST_COPY.pattern, work) & (trace.links.launch_of[work] >= 0)]
    calls, position = np.unique(trace.links.launch_of[work], return_index=True)
    alone = member(calls, trace.links.launches[trace.links.work_count == 1])
    return calls[alone], work[position[alone]]


def _copy_blocked(trace: Trace, calls: Ints, copies: Ints) -> Mask:
    """Return which asynchronous copies blocked the host.

    A copy from or to pageable memory did if it started on the device before the call returned: the host was blocked
    until the stream reached it. If the trace does not have the kind of memory (ROCm), it did if it also ended by then.
    A copy of pinned memory never does.
    """
    pageable = trace.named("Pageable", copies)
    pinned = trace.named("Pinned", copies)
    reached = np.where(pageable, trace.starts[copies], trace.ends[copies])
    result: Mask = ~pinned & (reached <= trace.ends[calls])
    return result


def outermost(trace: Trace, rows: Ints) -> Ints:
    """Return those of the given events that are outermost on their track."""
    track = trace.track_codes[rows]
    keep = np.ones(len(rows), dtype=bool)
    for one in distinct(track):
        mine = np.flatnonzero(track == one)
        ends = trace.ends[rows[mine]]
        reach = np.maximum.accumulate(ends)
        keep[mine[1:]] = ends[1:] > reach[:-1]
    return rows[keep]


def _first_of_correlation(trace: Trace, rows: Ints) -> Mask:
    """Return which calls are the first with their correlation.

    MTIA records one synchronize twice: as the caller's call and, on a lane of the device, as the driver's.
    """
    correlation = trace.ints("correlation", rows)
    order = np.argsort(correlation, kind="stable")
    repeated = np.zeros(len(rows), dtype=bool)
    repeated[1:] = correlation[order[1:]] == correlation[order[:-1]]
    keep = np.ones(len(rows), dtype=bool)
    keep[order[repeated]] = False
    return keep | (correlation <= 0)


def _absorb_copies(trace: Trace, rows: Ints, kinds: Ints, copies: Ints) -> tuple[Ints, Ints]:
    """Join a copy with the synchronize that the same operator calls right after it.

    Returns:
        Rows of waiting calls that are part of a later one, and for each of ``rows`` the first call of its wait.
    """
    first = rows.copy()
    if not len(copies) or not len(rows):
        return np.empty(0, dtype=np.int64), first
    parent, track = trace.nesting.parent, trace.track_codes
    syncs = member(kinds, [KINDS.index(f"{what} sync") for what in ("stream", "event", "device")])
    launches = trace.links.launches
    for one in distinct(track[rows[syncs]]):
        on_track = launches[track[launches] == one]
        mine = np.flatnonzero(syncs & (track[rows] == one))
        position = np.searchsorted(on_track, rows[mine]) - 1
        mine, position = mine[position >= 0], position[position >= 0]
        before = on_track[position]
        same_operator = (parent[before] == parent[rows[mine]]) & (parent[before] >= 0)
        # Only the first synchronize after a copy belongs to it.
        earliest = np.append(True, before[1:] != before[:-1])
        joined = member(before, copies) & same_operator & earliest
        first[mine[joined]] = before[joined]
    return first[first != rows], first


def _refine(trace: Trace, kinds: Ints, copy: Ints, asked_not_to_block: Mask, ancestry: Ancestry) -> Ints:
    """Name a wait after its operator, if there is one, else after the direction of the copy."""
    kinds = kinds.copy()
    to_host, to_device, pageable_to_host, pageable_to_device = (KINDS.index(kind) for kind in COPY_KINDS)
    made = copy >= 0
    works = np.maximum(copy, 0)
    pageable = asked_not_to_block & trace.named("Pageable", works)
    direction = np.where(
        trace.named(_TO_HOST.pattern, works),
        np.where(pageable, pageable_to_host, to_host),
        np.where(pageable, pageable_to_device, to_device),
    )
    kinds[made] = direction[made]
    names = trace.names
    of_name = np.full(len(names) + 1, -1, dtype=np.int64)  # the last entry means "no operator"
    masked = np.zeros(len(names) + 1, dtype=bool)
    for code in distinct(ancestry.operators).tolist():
        name = names[code] if code >= 0 else ""
        of_name[code] = next((KINDS.index(kind) for kind, pattern in OPERATORS if pattern.search(name)), -1)
        masked[code] = MASKED.search(name) is not None
    allocator, pin = kinds == KINDS.index("allocator"), KINDS.index("pin memory")
    by_mask = np.zeros(len(kinds), dtype=bool)  # a size was asked for further in
    # Innermost first, so that the outermost operator overrides.
    for level in range(ancestry.operators.shape[1]):
        codes = ancestry.operators[:, level]
        named = np.where(masked[codes] & by_mask, KINDS.index(MASK), of_name[codes])
        better = (named >= 0) & (~allocator | (named == pin))
        kinds[better] = named[better]
        by_mask |= of_name[codes] == KINDS.index(NONZERO)
    return kinds


def _apart(trace: Trace, last: Ints, kinds: Ints, ancestry: Ancestry) -> Ints:
    """Separate waits made by the profiler from those that count."""
    apart = np.zeros(len(last), dtype=np.int64)
    apart[ancestry.by_profiler] = BY_PROFILER
    bare = (
        (kinds == KINDS.index("device sync"))
        & (ancestry.outer_row < 0)
        & (ancestry.annotation < 0)
        & (ancestry.frames[:, 0] < 0 if len(last) else True)
    )
    launches = trace.links.launches
    if len(launches):
        nothing_after = trace.ends[last] > trace.starts[launches[-1]]
        nothing_before = trace.ends[last] <= trace.starts[launches[0]]
        step = trace.steps.step_of[last]
        in_step = step >= 0
        # The profiler synchronizes once when it stops, possibly in the last step. A synchronize in every step is the
        # user's.
        habit = len(np.unique(step[bare & in_step])) > 1
        apart[bare & (nothing_after | nothing_before) & ~(in_step & habit)] = BY_PROFILER
    return apart


# -- XLA ----------------------------------------------------------------------------------------------------

_AWAIT: Final = re.compile(r"Buffer::(Await|AwaitReady|BlockHostUntilReady|BlockUntilReady)$|AwaitReady$")
#: ``jax.block_until_ready`` as the Python tracer has it: ``$api.py:3105 block_until_ready``, ``api.py(3105): …``.
_PYTHON_AWAIT: Final = re.compile(r"^\$?(\S*/)?(api|array)\.py(\(\d+\)|:\d+):? block_until_ready$")
#: What the probe leaves around such a call, for which not every runtime leaves a mark (XLA's of GPUs does not).
_MARKED_AWAIT: Final = re.compile(r"^jax\.(?:Array\.)?block_until_ready$")
#: ``jax.device_get``, which starts the copies of all its arrays and then reads them: one wait, as one line made it.
_DEVICE_GET: Final = re.compile(r"^\$?(\S*/)?api\.py(\(\d+\)|:\d+):? device_get$")
_ASARRAY: Final = re.compile(r"^np\.asarray\(jax\.Array\)$")
#: What a read is where the host's own thread makes it. ``tpu::System::TransferFromDevice`` runs in threads of the
#: runtime while the host does something else.
_READ: Final = re.compile(
    r"(?<!tpu::System::)TransferFromDevice$|TransferLiteralFromDevice$|^nrt_tensor_read$"
)
_EXECUTE: Final = "nrt_execute"
_LITERAL: Final = re.compile(r"(Buffer::ToLiteral|ToLiteralSync)$")
#: A mark is shorter than this.
MARK_NS: Final = 10_000


@cached_on_trace
def _xla_calls(trace: Trace) -> tuple[Ints, list[str]]:
    """Return the rows of awaits and reads, in order of start, and the kind of each.

    Of an await recorded as two marks, the row is that of the second.
    """
    # JAX's own read encloses the call that only starts the transfer; torch_xla has but that call.
    reads = (_ASARRAY, _DEVICE_GET, _READ) if "np.asarray(jax.Array)" in trace.names else (_READ, _LITERAL)
    kind_of: dict[int, str] = {}
    for code, name in enumerate(trace.names):
        if any(pattern.search(name) for pattern in (_AWAIT, _PYTHON_AWAIT, _MARKED_AWAIT)):
            kind_of[code] = AWAIT
        elif name == _EXECUTE:
            kind_of[code] = EXECUTE
        elif any(pattern.search(name) for pattern in reads):
            kind_of[code] = READ
    if not kind_of:
        return np.empty(0, dtype=np.int64), []
    host = ("runtime", "driver", "other", "cpu_op", "annotation", "python_function")
    rows = np.flatnonzero(member(trace.name_codes, kind_of) & trace.on_host)
    rows = rows[trace.is_category(*host, rows=rows) & ~np.isin(rows, xla_marks(trace)[1])]
    rows = rows[~_empty_gets(trace, rows)]
    return rows, [kind_of[code] for code in trace.name_codes[rows].tolist()]


@cached_on_trace
def xla_marks(trace: Trace) -> tuple[Ints, Ints]:
    """Return the awaits recorded as two marks: rows of the second ones, ascending, and of the first ones."""
    nothing = np.empty(0, dtype=np.int64)
    codes = [code for code, name in enumerate(trace.names) if _AWAIT.search(name) or _LITERAL.search(name)]
    if trace.info.format == "xplane" or not codes:
        return nothing, nothing
    rows = np.flatnonzero(member(trace.name_codes, codes))
    rows = rows[trace.lengths(rows) < MARK_NS]
    before = trace.nesting.before
    firsts: list[int] = []
    seconds: list[int] = []
    taken: set[int] = set()
    for row in rows.tolist():
        previous = int(before[row])
        if previous in taken or previous < 0 or trace.name_codes[previous] != trace.name_codes[row]:
            continue
        if trace.length(previous) < MARK_NS:
            firsts.append(previous)
            seconds.append(row)
            taken |= {previous, row}
    order = np.argsort(seconds)
    return np.array(seconds, dtype=np.int64)[order], np.array(firsts, dtype=np.int64)[order]


def _empty_gets(trace: Trace, rows: Ints) -> Mask:
    """Return which of some calls are of ``device_get`` and read no array: its arguments were on the host already."""
    gets = trace.named(_DEVICE_GET.pattern, rows)
    empty: Mask = np.zeros(len(rows), dtype=bool)
    track = trace.track_codes[rows]
    for one in distinct(track[gets]):
        mine, reads = np.flatnonzero(gets & (track == one)), rows[~gets & (track == one)]
        following = np.searchsorted(trace.starts[reads], trace.starts[rows[mine]], side="left")
        # The earliest end of all reads that begin no sooner than a call; rows ascend with start.
        ends = np.append(np.minimum.accumulate(trace.ends[reads][::-1])[::-1], np.iinfo(np.int64).max)
        empty[mine] = ends[following] > trace.ends[rows[mine]]
    return empty
