"""Collectives of one rank, and how long each waited for the other ranks.

A collective ends on all ranks at about the same time, because it needs all of them. The rank that comes last spends
the least time in it; what the others spend beyond that is waiting. This needs no common clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from tuiprof.analyses.shared import ancestry as _ancestry
from tuiprof.analyses.shared import kernel_names as _kernel_names
from tuiprof.analyses.shared.codes import member
from tuiprof.analyses.shared.scope import Scope
from tuiprof.analyses.shared.step_times import step_times
from tuiprof.model import Trace, Window
from tuiprof.model.intervals import Ints, total, union

#: Ranges in which the host runs a collective itself (gloo, MPI), or that represent one on a device.
_HOST: Final = re.compile(r"^(gloo|mpi|ucc):")
#: Sends and receives need two ranks, not all: nobody can be said to wait in them for the slowest.
_POINT_TO_POINT: Final = re.compile(r"send|recv", re.IGNORECASE)
_OF_ALL: Final = re.compile(r"all_?to_?all|gather|scatter", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RankSteps:
    """One rank: its steps, and the collectives in them in order of their start."""

    rank: int  # its number
    numbers: Ints  # step numbers, shape ``(s,)``
    period: Ints  # what each step takes, ns
    collective: Ints  # time in collectives in each step, union, ns
    step: Ints  # index of the step of each collective, shape ``(c,)``
    name: tuple[str, ...]
    starts: Ints  # its start, ns since the trace origin
    ends: Ints  # its end
    origin_unix_ns: int | None  # Unix time of the trace origin; None = not said
    on_device: bool  # the collectives are work of devices, not of the host's threads


def of_rank(trace: Trace, rank: int, window: Window | None = None) -> RankSteps:
    """Collect the steps and collectives of a rank; nothing of the trace is kept."""
    scope = Scope.of(trace, window or Window())
    rows = rows_of(trace)
    step_of = trace.steps.step_of[rows]
    inside = np.isin(step_of, scope.steps)
    rows, step_of = rows[inside], step_of[inside]
    step_index = np.searchsorted(scope.steps, step_of)
    starts, ends = trace.starts[rows], trace.ends[rows]
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
        tuple(trace.names[code] for code in trace.name_codes[rows].tolist()),
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
        on_device = on_device[~trace.nesting.directly_in(host, on_device)]  # one call recorded twice
    pairwise = np.flatnonzero(trace.named(f"(?i){_POINT_TO_POINT.pattern}", on_device))
    if len(pairwise):
        # Libraries build an all-to-all of sends and receives: the range around the launch says which it is.
        rows = on_device[pairwise]
        launch = np.where(trace.links.launch_of[rows] >= 0, trace.links.launch_of[rows], rows)
        ranges = _ancestry.of(trace, launch).annotation.tolist()
        whole = np.array([code >= 0 and bool(_OF_ALL.search(trace.names[code])) for code in ranges])
        on_device = np.delete(on_device, pairwise[~whole])
    return on_device


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waiting for one another comes to."""

    steps: Ints  # steps that could be matched: their numbers, shape ``(m,)``
    waits: Ints  # waiting of each rank in each of them, ns, shape ``(ranks, m)``
    matched: int  # collectives that were matched
    unmatched: int  # collectives in steps in which the ranks' collectives differ
    #: Median difference of each rank's clock from the first one's at the ends of collectives, ns, shape ``(ranks,)``;
    #: None = the traces do not say when they were recorded, or the host ran the collectives: its threads end them
    #: when they get to it.
    skew: Ints | None
    skew_spread: Ints | None  # median absolute deviation of that difference, ns, same shape


def waiting(ranks: list[RankSteps]) -> Waiting:
    """Match the collectives of two ranks or more, step by step and in order, and tell who waited how long."""
    numbers = ranks[0].numbers
    for rank in ranks[1:]:
        numbers = np.intersect1d(numbers, rank.numbers)
    steps: list[int] = []
    waits: list[Ints] = []
    ends: list[Ints] = []
    matched = unmatched = 0
    for number in numbers.tolist():
        picked = [np.flatnonzero(rank.step == np.searchsorted(rank.numbers, number)) for rank in ranks]
        names = [[rank.name[i] for i in which.tolist()] for rank, which in zip(ranks, picked, strict=True)]
        if any(other != names[0] for other in names[1:]) or not names[0]:
            unmatched += max(len(which) for which in picked)
            continue
        lengths = np.stack(
            [(rank.ends - rank.starts)[which] for rank, which in zip(ranks, picked, strict=True)]
        )
        waits.append((lengths - lengths.min(axis=0)).sum(axis=1))
        ends.append(np.stack([rank.ends[which] for rank, which in zip(ranks, picked, strict=True)]))
        matched += lengths.shape[1]
        steps.append(number)
    if not steps:
        return Waiting(np.empty(0, np.int64), np.empty((len(ranks), 0), np.int64), 0, unmatched, None, None)
    skew = spread = None
    origins = [rank.origin_unix_ns for rank in ranks]
    if None not in origins and all(rank.on_device for rank in ranks):
        offsets = np.array([(origin or 0) - (origins[0] or 0) for origin in origins], dtype=np.int64)
        all_ends = np.concatenate(ends, axis=1) + offsets[:, None]
        late = all_ends - all_ends[0]
        skew = np.median(late, axis=1).astype(np.int64)
        spread = np.median(np.abs(late - skew[:, None]), axis=1).astype(np.int64)
    return Waiting(np.array(steps, np.int64), np.stack(waits, axis=1), matched, unmatched, skew, spread)
