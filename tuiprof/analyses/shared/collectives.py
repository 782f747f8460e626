"""Collectives of one rank, and how long each waited for the other ranks.

A collective ends on all ranks at about the same time, because it needs all of them. The rank that arrives last spends
the least time in it; the additional time of the others is waiting. This needs no common clock.

Ranks are compared within their process groups. A rank that waited in one group arrives late at the next without being
the cause: it counts as late only as far as it waited less, in all its groups, than the other members.

Without the other ranks, the transfer is bounded by message sizes: a message takes no longer than a larger one of the
same kind, and per byte no longer than a smaller one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from tuiprof.analyses.shared import kernel_names as _kernel_names
from tuiprof.analyses.shared.calls import Calls, index_of_outer
from tuiprof.analyses.shared.frames import ancestry_of
from tuiprof.analyses.shared.scope import Scope, step_times
from tuiprof.errors import TraceError
from tuiprof.model import Trace, Window
from tuiprof.model.intervals import Floats, Ints, Mask, member, total, union
from tuiprof.model.trace import cached_on_trace
from tuiprof.model.traceset import TraceSet

BROADCAST: Final = r"^c10d::broadcast_$"
#: What the broadcast of many tensors consists of.
_BROADCAST_PARTS: Final = (
    rf"{BROADCAST}|^aten::(flatten_dense_tensors|unflatten_dense_tensors|cat|copy_)$|^record_param_comms$"
)
#: A rank that is late in one of its groups is equally late in its other groups, up to noise.
SAME_LATENESS: Final = 0.7

#: Maximum number of ranks to read, evenly spread, and maximum total size of their files, which are read in full.
MAX_RANKS: Final = 64
MAX_BYTES: Final = 2 << 30
#: Maximum total size of the ranks' files to read them along with a trace whose ranks nobody asked to compare.
MAX_BESIDE_BYTES: Final = 64 << 20
#: Maximum spread of the ends of one collective; beyond it, ranks without known groups may never have met.
MAX_SCATTER_NS: Final = 1_000_000
#: Computation on the same device slows a transfer by up to this factor: only a longer collective waits.
SLOWED: Final = 1.5

#: Ranges in which the host runs a collective (gloo, MPI), or that represent one on a device.
_HOST: Final = re.compile(r"^(gloo|mpi|ucc):")
#: Sends and receives involve two ranks, so they do not wait for the slowest of all.
_POINT_TO_POINT: Final = re.compile(r"send|recv", re.IGNORECASE)
_OF_ALL: Final = re.compile(r"all_?to_?all|gather|scatter", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RankSteps:
    """One rank: its steps, and the collectives in them in order of their start."""

    rank: int  # its number
    numbers: Ints  # step numbers, shape ``(s,)``
    period: Ints  # time of each step, ns
    collective: Ints  # time in collectives in each step, union, ns
    step: Ints  # index of the step of each collective, shape ``(c,)``
    row: Ints  # row of each in the trace
    name: tuple[str, ...]
    groups: tuple[Group, ...]  # process groups of this rank
    group: Ints  # index of the group of each collective
    starts: Ints  # its start, ns since the trace origin
    ends: Ints  # its end
    origin_unix_ns: int | None  # Unix time of the trace origin; None = not recorded
    on_device: bool  # the collectives are work of devices, not of the host's threads


def of_rank(trace: Trace, rank: int, window: Window | None = None) -> RankSteps:
    """Collect the steps and collectives of a rank, without references to the trace."""
    scope = Scope.of(trace, window or Window())
    rows = rows_of(trace)
    step_of = trace.steps.step_of[rows]
    inside = np.isin(step_of, scope.steps)
    rows, step_of = rows[inside], step_of[inside]
    step_index = np.searchsorted(scope.steps, step_of)
    starts, ends = trace.starts[rows], trace.ends[rows]
    groups, group = groups_of(trace, rows)
    busy = np.array(
        [
            total(*union(starts[step_index == index], ends[step_index == index]))
            for index in range(scope.step_count)
        ],
        dtype=np.int64,
    )
    return RankSteps(
        rank,
        trace.steps.numbers[scope.steps],
        step_times(scope).period,
        busy,
        step_index,
        rows,
        tuple(trace.names[code] for code in trace.name_codes[rows].tolist()),
        groups,
        group,
        starts,
        ends,
        trace.info.origin_unix_ns,
        not trace.on_host[rows].any(),
    )


def rows_of(trace: Trace) -> Ints:
    """Return the rows of collectives, in order of start: those of devices, else those of the host."""
    work = trace.device_work
    codes = trace.name_codes[work]
    kinds = _kernel_names.classify(trace.names, codes)
    named = member(codes, [code for code, kind in kinds.items() if kind == "collective"])
    on_device = work[named | trace.is_category("collective", rows=work)]
    if not len(on_device):
        host = trace.named(_HOST.pattern) & trace.on_host
        on_device = np.flatnonzero(host)
        on_device = on_device[~trace.nesting.directly_in(host, on_device)]  # recorded twice
    pairwise = np.flatnonzero(trace.named(f"(?i){_POINT_TO_POINT.pattern}", on_device))
    if len(pairwise):
        # Libraries build an all-to-all from sends and receives: the range around the launch tells which.
        rows = on_device[pairwise]
        launch = np.where(trace.links.launch_of[rows] >= 0, trace.links.launch_of[rows], rows)
        ranges = ancestry_of(trace, launch).annotation.tolist()
        whole = np.array([code >= 0 and bool(_OF_ALL.search(trace.names[code])) for code in ranges])
        on_device = np.delete(on_device, pairwise[~whole])
    return on_device


@dataclass(frozen=True, slots=True)
class GroupWaiting:
    """Waiting in one process group."""

    group: Group  # the group
    members: Ints  # indices of its ranks, ascending, shape ``(m,)``
    steps: Ints  # numbers of the steps that could be matched, shape ``(s,)``
    waits: Ints  # waiting of each member in each of them, ns, shape ``(m, s)``
    gaps: Ints  # time of each member since its last collective in any group before them, ns, shape ``(m, s)``
    which: Ints  # index of each matched collective among those of its rank, shape ``(m, c)``
    ends: Ints  # ends of the matched collectives, ns since each trace's origin, shape ``(m, c)``
    unmatched: int  # collectives in steps in which the members' collectives differ


@dataclass(frozen=True, slots=True)
class Waiting:
    """Waiting of all ranks."""

    groups: tuple[GroupWaiting, ...]  # the process groups in which ranks were matched
    steps: Ints  # steps that could be matched in any: their numbers, shape ``(m,)``
    waits: Ints  # waiting of each rank in each of them, all its groups together, ns, shape ``(ranks, m)``
    matched: int  # collectives that were matched
    unmatched: int  # collectives in steps in which the ranks' collectives differ
    #: Median difference of each rank's clock from the first one's at the ends of collectives, ns, shape ``(ranks,)``;
    #: NaN = they share no group, not even through others; None = the traces do not say when they were recorded, or the
    #: host ran the collectives: its threads end them when they get to it.
    skew: Floats | None
    skew_spread: Floats | None  # median absolute deviation of that difference, ns, same shape

    def straggler(self) -> tuple[GroupWaiting, int, float] | None:
        """Return the latest rank, in the group in which its delay originates.

        Returns:
            The group, the rank's position among the members, and its delay, ns per step; None = no match.
        """
        late = [self.late(one) for one in self.groups]
        if not late:
            return None
        most = max(float(each.max()) for each in late)
        rank = next(
            int(one.members[each.argmax()])
            for one, each in zip(self.groups, late, strict=True)
            if each.max() == most
        )
        own = [
            (one, int(np.searchsorted(one.members, rank)), each)
            for one, each in zip(self.groups, late, strict=True)
            if rank in one.members
        ]
        one, row, each = max(
            (found for found in own if found[2][found[1]] >= SAME_LATENESS * most),
            key=lambda found: less_than_others(-found[0].gaps.mean(axis=1))[found[1]],
        )
        return one, row, float(each[row])

    def late(self, one: GroupWaiting) -> Floats:
        """Return the delay of each member of a group relative to the median of the others, ns per step, shape
        ``(m,)``.

        Delays caused by waiting in other groups are excluded.
        """
        inside, everywhere = one.waits.mean(axis=1), self.waits[one.members].mean(axis=1)
        return own_lateness(less_than_others(inside), less_than_others(everywhere))


def less_than_others(waits: Floats) -> Floats:
    """Return how much less each row waits than the median of the other rows, shape as given."""
    return np.stack([np.median(np.delete(waits, row, axis=0), axis=0) for row in range(len(waits))]) - waits


def own_lateness(late: Floats, late_in_all: Floats) -> Floats:
    """Return the part of a delay in the collectives of a group that does not originate in another group.

    ``late_in_all`` is how much less than the others of the group a rank waits in all its groups.
    """
    return np.where(late > 0, np.clip(late_in_all, 0.0, np.maximum(late, 0.0)), late)


def gaps(starts: Ints, ends: Ints) -> Ints:
    """Return the time before each collective, by ascending start, in which its rank was in none, ns."""
    before = np.maximum.accumulate(np.concatenate((starts[:1], ends[:-1])))
    return np.maximum(starts - before, 0)


def waiting(ranks: list[RankSteps]) -> Waiting:
    """Match the collectives of ranks by group, step and order, and compute how long each rank waited."""
    numbers = ranks[0].numbers
    for rank in ranks[1:]:
        numbers = np.intersect1d(numbers, rank.numbers)
    groups = {group: None for rank in ranks for group in rank.groups}
    found = [one for group in groups if (one := _in_group(group, ranks, numbers)) is not None]
    met = tuple(one for one in found if len(one.steps))
    unmatched = sum(one.unmatched for one in found)
    steps = np.unique(np.concatenate([one.steps for one in met])) if met else np.empty(0, np.int64)
    waits = np.zeros((len(ranks), len(steps)), np.int64)
    for one in met:
        waits[np.ix_(one.members, np.searchsorted(steps, one.steps))] += one.waits
    matched = sum(one.ends.shape[1] for one in met)
    skew, spread = _clocks(ranks, met)
    return Waiting(met, steps, waits, matched, unmatched, skew, spread)


def _in_group(group: Group, ranks: list[RankSteps], numbers: Ints) -> GroupWaiting | None:
    """Match the collectives of one group; None = fewer than two of its ranks are given."""
    own: dict[int, Ints] = {}
    for index, rank in enumerate(ranks):
        if group in rank.groups and len(rows := np.flatnonzero(rank.group == rank.groups.index(group))):
            own[index] = rows
    if len(own) < 2:
        return None
    steps: list[int] = []
    waits: list[Ints] = []
    before: list[Ints] = []
    which: list[Ints] = []
    unmatched = 0
    own_gaps = {index: gaps(ranks[index].starts, ranks[index].ends) for index in own}
    for number in numbers.tolist():
        picked = [
            rows[ranks[index].step[rows] == np.searchsorted(ranks[index].numbers, number)]
            for index, rows in own.items()
        ]
        names = [
            [ranks[index].name[i] for i in rows.tolist()] for index, rows in zip(own, picked, strict=True)
        ]
        if any(other != names[0] for other in names[1:]) or not names[0]:
            unmatched += max(map(len, picked))
            continue
        lengths = np.stack(
            [(ranks[index].ends - ranks[index].starts)[rows] for index, rows in zip(own, picked, strict=True)]
        )
        waits.append((lengths - lengths.min(axis=0)).sum(axis=1))
        before.append(
            np.array([own_gaps[index][rows].sum() for index, rows in zip(own, picked, strict=True)])
        )
        which.append(np.stack(picked))
        steps.append(number)
    nothing = np.empty((len(own), 0), np.int64)
    matched = np.concatenate(which, axis=1) if steps else nothing
    return GroupWaiting(
        group,
        np.array(list(own)),
        np.array(steps, np.int64),
        np.stack(waits, axis=1) if steps else nothing,
        np.stack(before, axis=1) if steps else nothing,
        matched,
        np.stack([ranks[index].ends[rows] for index, rows in zip(own, matched, strict=True)]),
        unmatched,
    )


def _clocks(ranks: list[RankSteps], groups: Sequence[GroupWaiting]) -> tuple[Floats | None, Floats | None]:
    """Return the clock skew and its spread, propagated between groups through shared ranks."""
    origins = [rank.origin_unix_ns for rank in ranks]
    if not groups or None in origins or not all(rank.on_device for rank in ranks):
        return None, None
    offsets = np.array([(origin or 0) - (origins[0] or 0) for origin in origins], dtype=np.int64)
    late = [one.ends + offsets[one.members][:, None] for one in groups]
    apart = [ends - np.median(ends, axis=0) for ends in late]
    skew = chained([one.members for one in groups], [np.median(ends, axis=1) for ends in apart], len(ranks))
    spread = np.zeros(len(ranks))
    for one, ends in zip(groups, apart, strict=True):
        own = np.median(np.abs(ends - np.median(ends, axis=1)[:, None]), axis=1)
        spread[one.members] = np.maximum(spread[one.members], own)
    return skew - skew[0], spread


def chained(members: Sequence[Ints], values: Sequence[Floats], count: int) -> Floats:
    """Join figures of the members of groups, known up to a constant per group, through shared members.

    The result has shape ``(count,)``; NaN = the largest group does not reach it.
    """
    found = np.full(count, np.nan)
    left = sorted(range(len(members)), key=lambda index: -len(members[index]))
    if left:
        found[members[left[0]]] = values[left[0]]
    while left:
        rest = []
        for index in left:
            shared = ~np.isnan(found[members[index]]) & ~np.isnan(values[index])
            if shared.any():
                new = values[index] + np.median(found[members[index]][shared] - values[index][shared])
                found[members[index]] = np.where(np.isnan(found[members[index]]), new, found[members[index]])
            else:
                rest.append(index)
        if len(rest) == len(left):
            break
        left = rest
    return found


# -- transfer and wait ------------------------------------------------------------------------------------


@cached_on_trace
def ranks_of(trace: Trace) -> tuple[list[RankSteps], list[str]]:
    """Read the ranks that a trace belongs to, one after the other, and return why others cannot be read.

    Only their steps and collectives are kept.
    """
    together = trace.siblings
    if together is None:
        return [], []
    read: list[RankSteps] = []
    problems: list[str] = []
    own = own_rank(trace)
    for rank in _chosen(together):
        file = together.file(rank)
        try:
            if rank == own:
                read.append(of_rank(trace, rank))
                continue
            if file not in together.kept:
                together.kept[file] = of_rank(together.open(rank), rank)
            read.append(together.kept[file])
        except TraceError as problem:
            problems.append(f"rank {rank}: {problem.message}")
    return read, problems


def own_rank(trace: Trace) -> int | None:
    """Return the rank of a trace among its siblings, else as the trace says."""
    files = trace.siblings.files if trace.siblings is not None else ()
    return next((file.rank for file in files if file.path == trace.info.path), trace.info.rank)


def _chosen(together: TraceSet) -> list[int]:
    """Return the ranks to read: all of them, or as many as the limits allow, evenly spread."""
    files = together.files
    mean = max(sum(file.size_bytes for file in files) / len(files), 1)
    most = min(len(files), max(2, min(MAX_RANKS, int(MAX_BYTES / mean))))
    return [files[i].rank for i in np.linspace(0, len(files) - 1, most).astype(int).tolist()]


@dataclass(frozen=True, slots=True)
class PeerWaits:
    """How much of each collective is waiting for another rank; arrays of shape ``(c,)``."""

    rows: Ints  # rows of the trace, ascending
    ns: Ints  # the wait in each; the rest is the transfer
    last: Ints  # the rank that arrived last; -1 = unknown, and the wait is at least ``ns``

    def of(self, rows: Ints) -> Ints:
        """Return the wait in each of the given device work, ns."""
        at = np.minimum(np.searchsorted(self.rows, rows), max(len(self.rows) - 1, 0))
        return np.where(self.rows[at] == rows, self.ns[at], 0) if len(self.rows) else np.zeros_like(rows)


@cached_on_trace
def peer_waits(trace: Trace) -> PeerWaits:
    """Separate the collectives of devices into transfers and waits for other ranks."""
    rows = rows_of(trace)
    rows = rows[~trace.on_host[rows]]
    lengths = trace.lengths(rows)
    bound = _transfer_bound(trace, rows)
    return _compared(trace, rows, np.where(lengths > SLOWED * bound, lengths - bound, 0))


@cached_on_trace
def host_peer_waits(trace: Trace) -> PeerWaits:
    """Separate the collectives of the host's threads (gloo, MPI) likewise, if the other ranks are known."""
    rows = rows_of(trace)
    rows = rows[trace.on_host[rows]]
    return _compared(trace, rows, np.zeros(len(rows), dtype=np.int64))


def _compared(trace: Trace, rows: Ints, ns: Ints) -> PeerWaits:
    """Return the waits in collectives, from the other ranks where they can be read, else as given."""
    last = np.full(len(rows), -1)
    together = trace.siblings if len(rows) else None
    if together is None or sum(file.size_bytes for file in together.files) > MAX_BESIDE_BYTES:
        return PeerWaits(rows, ns, last)
    read, _ = ranks_of(trace)
    mine = next((index for index, rank in enumerate(read) if rank.rank == own_rank(trace)), -1)
    waits = waiting(read) if len(read) > 1 else None
    for one in waits.groups if waits is not None and mine >= 0 else ():
        spread = waits.skew_spread if waits is not None else None
        met = one.group.name or (spread is not None and spread[one.members].max() <= MAX_SCATTER_NS)
        # Threads of the host leave a collective when they get to run, so the ends say nothing about whether they met.
        if not (met or trace.on_host[rows].all()) or mine not in one.members:
            continue
        each = np.stack(
            [(read[i].ends - read[i].starts)[which] for i, which in zip(one.members, one.which, strict=True)]
        )
        own = int(np.searchsorted(one.members, mine))
        at = np.searchsorted(rows, read[mine].row[one.which[own]])
        ns[at] = each[own] - each.min(axis=0)
        last[at] = np.array([rank.rank for rank in read])[one.members[each.argmin(axis=0)]]
    return PeerWaits(rows, ns, last)


def _transfer_bound(trace: Trace, rows: Ints) -> Floats:
    """Return the longest that the transfer of each collective can take, ns, by comparison within the trace."""
    bound = trace.lengths(rows).astype(np.float64)
    _, group = groups_of(trace, rows)
    _, kinds = np.unique(group * len(trace.names) + trace.name_codes[rows], return_inverse=True)
    sizes = sizes_of(trace, rows)
    for kind in range(int(kinds.max(initial=-1)) + 1):
        sized = np.flatnonzero((kinds == kind) & (sizes > 0))
        if len(sized):
            bound[sized] = _by_size(sizes[sized], bound[sized])
        elif (same := _by_position(trace, rows, np.flatnonzero(kinds == kind))) is not None:
            bound[same] = bound[same].min(axis=0)
    return bound


def _by_size(sizes: Ints, lengths: Floats) -> Floats:
    order = np.argsort(sizes, kind="stable")
    ascending, each = sizes[order], lengths[order]
    no_smaller = np.minimum.accumulate(each[::-1])[::-1]
    per_byte = np.minimum.accumulate(each / ascending)
    first, last = (np.searchsorted(ascending, sizes, side=side) for side in ("left", "right"))
    return np.minimum(no_smaller[first], per_byte[last - 1] * sizes)


def _by_position(trace: Trace, rows: Ints, mine: Ints) -> Ints | None:
    """Return collectives of unknown size as a matrix, one row per step and device; None = steps differ."""
    step, device = trace.steps.step_of[rows[mine]], trace.ints("device", rows[mine])
    mine, step, device = mine[step >= 0], step[step >= 0], device[step >= 0]
    order = np.lexsort((rows[mine], device, step))
    _, counts = np.unique(np.stack((step, device)), axis=1, return_counts=True)
    if len(counts) < 2 or (counts != counts[0]).any():
        return None
    return mine[order].reshape(len(counts), -1)


# -- process groups --------------------------------------------------------------------------------------

#: The PyTorch operator with the group of a collective, if its kernel does not have it.
_SAYS: Final = "record_param_comms"
#: A list of ranks in full; PyTorch writes ``...`` in the middle of a long one.
_RANKS: Final = re.compile(r"\[\s*\d+(?:\s*,\s*\d+)*\s*\]")
#: Maximum number of ranks kept per group.
_MAX_RANKS: Final = 100_000
#: What Megatron, DeepSpeed and PyTorch's device meshes call groups, by a word in the name.
_KINDS: Final = {
    "data-parallel": ("data", "dp", "ddp", "fsdp", "replicate", "shard"),
    "tensor-parallel": ("tensor", "tp"),
    "pipeline-parallel": ("pipeline", "pipe", "pp"),
    "context-parallel": ("context", "cp"),
    "expert-parallel": ("expert", "ep"),
    "sequence-parallel": ("sequence", "sp"),
}
#: Ranks of a group that are listed.
_LISTED: Final = 8


@dataclass(frozen=True, slots=True)
class Group:
    """A process group."""

    #: Its name, unique among the groups of a rank; empty = not in the trace, which counts as one group.
    name: str
    description: str = ""  # the framework's description; empty = none
    ranks: tuple[int, ...] = ()  # its ranks, ascending; empty = not known
    said: str = ""  # its ranks as written, if the list was truncated

    @property
    def key(self) -> int:
        """Digest that is the same on every rank of the group, 64 bits; 0 = :data:`UNKNOWN`."""
        if not self.name:
            return 0
        said = f"{self.name} {self.description} {self.ranks or self.said}".encode("utf-8", "replace")
        return int.from_bytes(hashlib.blake2b(said, digest_size=8).digest(), "little") | 1

    @property
    def label(self) -> str:
        """``data-parallel group (ranks 1, 3, 5, 7)``, for a sentence; empty if unknown or the default group."""
        if not self.name or self.description == "default_pg":
            return ""
        words = re.split(r"[^a-z]+", self.description.lower().partition("_with_")[0])
        kinds = [kind for kind, known in _KINDS.items() if not set(known).isdisjoint(words)]
        if len(kinds) == 1:
            said = f"{kinds[0]} group"
        elif self.description and self.description != "undefined":
            said = f"group {self.description}"
        else:
            said = f"group {self.name}"
        if not self.ranks:
            return said
        return f"{said} (ranks {_listed(self.ranks)})"


def _listed(ranks: tuple[int, ...]) -> str:
    """Return ranks in short: ``0–7``, ``1, 3, 5``, ``0, 8, 16, … 1016``."""
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]}–{ranks[-1]}"
    if len(ranks) <= _LISTED:
        return ", ".join(map(str, ranks))
    return f"{', '.join(map(str, ranks[:3]))}, … {ranks[-1]}"


#: The group of all ranks, for traces without groups.
UNKNOWN: Final = Group("")


def groups_of(trace: Trace, rows: Ints) -> tuple[tuple[Group, ...], Ints]:
    """Return the groups of collectives, and the index of each collective's group, shape ``(len(rows),)``.

    Collectives without a recorded group are in :data:`UNKNOWN`.
    """
    said = trace.communications
    if said is None or not len(rows):
        return (UNKNOWN,), np.zeros(len(rows), dtype=np.int64)
    configured = _configured(trace)
    groups = {UNKNOWN: 0}
    columns = said.select("group", "description", "ranks").iter_rows()
    number = [
        groups.setdefault(_group(name, description, ranks, configured), len(groups))
        for name, description, ranks in columns
    ]
    return tuple(groups), _of_each(trace, rows, said, number)


def sizes_of(trace: Trace, rows: Ints) -> Ints:
    """Return the message size of each collective, bytes; 0 = not recorded."""
    said = trace.communications
    if said is None or not len(rows):
        return np.zeros(len(rows), dtype=np.int64)
    return _of_each(trace, rows, said, said["bytes"].fill_null(0).to_list())


def _of_each(trace: Trace, rows: Ints, said: pl.DataFrame, values: list[int]) -> Ints:
    """Return what was recorded for each collective, by its kernel, else by its operator; 0 = nothing."""
    by_kernel = _values(said, values, "correlation")
    found = [by_kernel.get(key, 0) for key in trace.ints("correlation", rows).tolist()]
    if not all(found):
        by_operator = _values(said, values, "external_id")
        operators = _operators(trace, rows)
        found = [one or by_operator.get(key, 0) for one, key in zip(found, operators.tolist(), strict=True)]
    return np.array(found, dtype=np.int64)


def _values(said: pl.DataFrame, values: list[int], key: str) -> dict[int, int]:
    known = said.with_columns(pl.Series("value", values)).filter(
        pl.col(key).is_not_null(), pl.col("correlation").is_null() == (key == "external_id")
    )
    return dict(known.select(key, "value").iter_rows())


def _operators(trace: Trace, rows: Ints) -> Ints:
    """Return the external id of the operator around the launch that has the group; -1 = none."""
    found = np.full(len(rows), -1, dtype=np.int64)
    launch = trace.links.launch_of[rows].astype(np.int64)
    launched = np.flatnonzero(launch >= 0)
    saying = trace.names_like(f"^{_SAYS}$")
    for level in trace.nesting.outward(launch[launched]):
        there = level >= 0
        there[there] = saying[trace.name_codes[level[there]]]
        there &= found[launched] < 0
        found[launched[there]] = trace.ints("external_id", level[there])
    return found


def _configured(trace: Trace) -> dict[str, tuple[int, ...]]:
    """Return the ranks of groups by name, from the header of the trace."""
    job = trace.info.properties.get("distributedInfo")
    listed = job.get("pg_config") if isinstance(job, Mapping) else None
    found = {}
    for group in listed if isinstance(listed, list) else ():
        ranks = group.get("ranks") if isinstance(group, Mapping) else None
        if isinstance(ranks, list) and len(ranks) <= _MAX_RANKS and all(type(rank) is int for rank in ranks):
            found[str(group.get("pg_name", ""))] = tuple(sorted(ranks))
    return found


def _group(name: str, description: str, said: str, configured: Mapping[str, tuple[int, ...]]) -> Group:
    ranks = configured.get(name, ())
    if _RANKS.fullmatch(said):
        ranks = tuple(sorted(int(rank) for rank in said.strip("[]").split(",")))
    return Group(name, description, ranks, "" if ranks else said)


def buffer_broadcasts(calls: Calls) -> Mask:
    """Return which calls send a model's buffers at the start of DistributedDataParallel's forward pass.

    These are runs of such calls around a broadcast: tensors are joined, sent, and copied back one by one.
    """
    trace = calls.trace
    forward = trace.host_events(r"^DistributedDataParallel\.forward$")
    of_pass = np.where(calls.backward, -1, index_of_outer(trace, forward, calls.rows))
    part = (of_pass >= 0) & trace.named(_BROADCAST_PARTS, calls.rows)
    sent = part & trace.named(BROADCAST, calls.rows)
    chosen = np.zeros(len(calls.rows), dtype=bool)
    for number in np.unique(of_pass[sent]):
        mine = np.flatnonzero(of_pass == number)
        run = np.cumsum(np.diff(part[mine].astype(np.int8), prepend=0) != 0)
        chosen[mine[part[mine] & np.isin(run, run[sent[mine]])]] = True
    return chosen
