"""A compiled loop of short kernels goes through its iterations one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil, log2
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.compiled.instructions import carried_out, source_of
from tuiprof.analyses.shared.compiled.needs import InstructionNeed, needs_of
from tuiprof.analyses.shared.compiled.recurrences import Form, Recurrence, recurrences
from tuiprof.analyses.shared.compiled.scans import shared_products
from tuiprof.analyses.shared.roofline import shortest_ns
from tuiprof.model import Trace
from tuiprof.model.intervals import Floats, Ints
from tuiprof.model.programs import Program
from tuiprof.model.units import format_count, format_ns, format_rough_share, plural
from tuiprof.whatif import Edit, EditRange, HostTime
from tuiprof.whatif.chips import find_chip

#: A loop has at least this many iterations, of at most so many launches; half of those take at most so long, ns.
_MIN_TRIPS: Final = 16
_MAX_LAUNCHES: Final = 32
_SHORT_NS: Final = 10_000
#: Kernels of a tree of all iterations for each of its levels, and how often they move the states of all iterations:
#: likely, where it helps least and most. They reach a share of the chip's bandwidth, bytes/s.
_LEVEL: Final = (2.0, 6.0, 1.0)
_MOVED: Final = (6.0, 16.0, 4.0)
_OF_BANDWIDTH: Final = 0.6
_UNKNOWN_BANDWIDTH: Final = 1e12
#: Maximum share of the device's memory that the states of all iterations may take.
_OF_MEMORY: Final = 0.1
#: Share of products and other large work that remains if all iterations share it, likewise.
_AT_ONCE: Final = (0.4, 1.0, 0.15)
#: Share of a kernel's time that remains if no iteration needs another, and it is not known what the kernel needs.
_APART: Final = (0.3, 1.0, 0.1)
#: Else those of all iterations together reach this share of the chip's limits.
_OF_LIMITS: Final = (0.5, 0.15, 0.85)
#: Share of the short kernels that remain if an iteration of the loop does the work of eight: if it has no others, and
#: if it has, of those beside the state and of sums (of a GRU with 13 and 7 kernels 0.47 remained,
#: docs/results/predictions.md).
_FUSED: Final = (0.3, 0.8, 0.125)
_BESIDE: Final = (0.4, 1.0, 0.15)
_INSTEAD: Final[Mapping[Form, str]] = {
    "linear": "lax.associative_scan, as each iteration only multiplies the state and adds to it: it computes "
    "state = a * state + b for all iterations in a tree",
    "apart": "jax.vmap over the iterations, or jax.lax.map(f, xs, batch_size=…): none needs the result of another",
    "in turn": "lax.scan(…, unroll=8), so that the compiler can fuse the short kernels of several iterations; what "
    "does not need the state before or after the scan",
}
_BECAUSE: Final[Mapping[Form, str]] = {
    "linear": "the compiled program: the next state is the state, scaled element by element, plus what does not depend "
    "on it",
    "apart": "the compiled program: no iteration takes what another computes",
    "in turn": "the compiled program, and the lengths of its kernels",
}


@dataclass(frozen=True)
class _Scan:
    """A loop and what it launched."""

    loop: Recurrence
    rows_of: Mapping[str, Ints]  # rows of each of its launches, by name
    #: Launches that product-in-scan would take out of the loop.
    shared: frozenset[str]
    needs: Mapping[str, InstructionNeed]  # of its launches, by name

    @cached_property
    def rows(self) -> Ints:
        """All that it launched, in order of rows."""
        return np.sort(np.concatenate(list(self.rows_of.values())))

    @cached_property
    def moved(self) -> Ints:
        """Rows of the launches that product-in-scan would take out."""
        return np.concatenate(
            [self.rows[:0], *(self.rows_of[name] for name in self.shared & self.rows_of.keys())]
        )

    def of(self, *roles: str) -> Ints:
        """Return the rows of launches with some roles, without those that product-in-scan is about."""
        chosen = [
            rows
            for name, rows in self.rows_of.items()
            if self.loop.launched[name] in roles and name not in self.shared
        ]
        return np.sort(np.concatenate([self.rows[:0], *chosen]))

    def edit(self, trace: Trace, form: Form, part: int) -> Edit:
        """Return the change; ``part`` indexes the estimates."""
        if form == "apart":
            return self._kept(trace, self._at_once(trace, part))
        short, whole, many = self.of("state", "beside"), self.of("whole", "sum"), 1.0
        if form == "linear":
            few, many = self._in_a_tree(trace, short, part), _AT_ONCE[part]
        elif {"whole", "sum"} & {*self.loop.launched.values()}:
            short, few = self.of("beside", "sum"), _BESIDE[part]
            whole = whole[:0]
        else:
            few = _FUSED[part]
        return self._kept(trace, [(short, few), (whole, many)])

    def _kept(self, trace: Trace, kept: list[tuple[Ints, float]]) -> Edit:
        """Return the change in which a share of some kernels remains."""
        rows = np.concatenate([some for some, _ in kept])
        keep = np.concatenate([_evenly(len(some), share) for some, share in kept])
        return Edit(host=self._launching(trace, rows, keep), work=rows, keep=keep)

    def _at_once(self, trace: Trace, part: int) -> list[tuple[Ints, float]]:
        """Return what all iterations launch, and the share that remains if they are one."""
        chip = find_chip(trace.info.device_name)
        found = []
        for name, rows in self.rows_of.items():
            if name in self.shared:
                continue
            need, keep = self.needs.get(name), _APART[part]
            took_ns = float(np.median(trace.lengths(rows)))
            kernel = trace.name(int(rows[0]))
            if chip is not None and need is not None:
                least_ns = shortest_ns(chip, need, kernel)
                keep = least_ns / _OF_LIMITS[part] / max(took_ns, 1.0) if least_ns is not None else keep
            found.append((rows, min(max(keep, 1 / self.loop.trips), 1.0)))
        return found

    def _in_a_tree(self, trace: Trace, short: Ints, part: int) -> float:
        """Return the share of short kernels whose time a tree of all iterations takes."""
        loop = self.loop
        chip = find_chip(trace.info.device_name)
        bandwidth = chip.bytes_per_s * _OF_BANDWIDTH if chip is not None else _UNKNOWN_BANDWIDTH
        moved_ns = _MOVED[part] * loop.states * loop.state_bytes * loop.trips / bandwidth * 1e9
        each_ns = max(float(trace.lengths(short).mean()), 1.0) if len(short) else 1.0
        kernels = _LEVEL[part] * ceil(log2(loop.trips)) + moved_ns / each_ns
        runs = len(self.rows) / (loop.trips * len(self.rows_of))
        return min(kernels * runs / max(len(short), 1), 1.0)

    def _launching(self, trace: Trace, rows: Ints, keep: Floats) -> HostTime:
        """Return the host time from the first launch of each run to its last, of which as large a share remains."""
        launch_of, launches = trace.links.launch_of, trace.links.launches
        mine = np.unique(launch_of[self.rows])
        mine = mine[mine >= 0]
        left = 1 - float((1 - keep).sum()) / max(len(self.rows), 1)
        tracks, starts, ends = [], [], []
        for track in np.unique(trace.track_codes[mine]).tolist():
            every = launches[trace.track_codes[launches] == track]
            every = every[np.argsort(trace.starts[every], kind="stable")]
            inside = np.concatenate(([False], np.isin(every, mine), [False]))
            turns = np.flatnonzero(inside[1:] != inside[:-1])
            starts.append(trace.starts[every[turns[::2]]])
            ends.append(trace.ends[every[turns[1::2] - 1]])
            tracks.append(np.full(len(turns) // 2, track, dtype=np.int64))
        if not tracks:
            return HostTime()
        found = np.concatenate(tracks)
        return HostTime(found, np.concatenate(starts), np.concatenate(ends), np.full(len(found), left))


def _evenly(count: int, keep: float) -> Floats:
    """Return which of some kernels remain whole, as often as a share says: the others are not launched."""
    return np.diff(np.floor(np.arange(count + 1) * keep + 1e-9))


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for loops with many iterations of few short kernels."""
    if not trace.device_indices:
        return
    done = carried_out(trace)
    for program in done.programs:
        groups = defaultdict[int, list[_Scan]](list)
        for scan in _scans(program, done.rows_of(program)):
            groups[scan.loop.loop.site or scan.loop.loop.id].append(scan)
        for scans in groups.values():
            rows = np.concatenate([scan.rows for scan in scans])
            if np.median(trace.lengths(rows)) <= _SHORT_NS:
                yield _finding(trace, evidence, scans, rows)


def _scans(program: Program, rows_of: Mapping[str, Ints]) -> Iterator[_Scan]:
    """Yield the loops of a program that ran."""
    found = list(recurrences(program))
    if not found:
        return
    moving = [one for same in shared_products(program) for one in same]
    shared = {name for one in moving for name in (one.carrier.name, *one.slices, *one.sums, *one.joins)}
    needs = needs_of(program)
    for loop in found:
        mine = {name: rows_of[name] for name in loop.launched if name in rows_of}
        if loop.trips >= _MIN_TRIPS and 0 < len(mine) <= _MAX_LAUNCHES:
            yield _Scan(loop, mine, frozenset(shared), needs)


def _finding(trace: Trace, evidence: Evidence, scans: list[_Scan], rows: Ints) -> Finding:
    """Return the finding about the loops of one line, with those of its gradient."""
    form = _form(scans, trace.info.devices[0].memory_bytes if trace.info.devices else None)
    first = next((scan for scan in scans if not scan.loop.backward), scans[0])
    gradients = ", gradients included" if any(scan.loop.backward for scan in scans) else ""
    share = evidence.share_of_device_time(rows)
    usual_ns = float(np.median(trace.lengths(first.rows)))
    edits = (Edit.all_of(scan.edit(trace, form, part) for scan in scans) for part in range(3))
    moved = Edit.all_of(Edit.of_work(scan.moved) for scan in scans) if form == "in turn" else Edit()
    return Finding(
        f"in each of {format_count(first.loop.trips)} iterations, a scan launches "
        f"{plural(len(first.rows_of), 'kernel')} of {format_ns(usual_ns)} in the median: "
        f"{format_rough_share(share)} of device time{gradients}",
        source_of(first.loop.loop),
        _INSTEAD[form],
        "low" if form == "in turn" else "high",
        _BECAUSE[form],
        *EditRange(*edits),
        # What needs no state leaves a loop before its iterations become larger.
        after=moved if len(moved.work) else None,
        event=int(first.rows[0]),
    )


def _form(scans: list[_Scan], memory: int | None) -> Form:
    """Return what the loops of one line have in common."""
    forms = {scan.loop.form for scan in scans}
    if "in turn" in forms:
        return "in turn"
    if "linear" not in forms:
        return "apart"
    stacked = max(scan.loop.state_bytes * scan.loop.trips for scan in scans)
    return "linear" if memory is None or stacked <= _OF_MEMORY * memory else "in turn"


RULE = AdviceRule("sequential-scan", find)
