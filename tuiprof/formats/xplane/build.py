"""Converts the columns of an XSpace to the model, and links host and device: waits, launches and programs, clocks."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tuiprof.formats.event_table import Ints, in_words, optional, order_of, step_markers
from tuiprof.formats.session_files import read_sync_sites
from tuiprof.formats.xla_names import of_stream
from tuiprof.formats.xplane import words
from tuiprof.formats.xplane.hlo import HloPrograms
from tuiprof.formats.xplane.protobuf import Damaged
from tuiprof.formats.xplane.space import Lookup, Named, Space, dense, times
from tuiprof.formats.xplane.words import Row, describe, tracks_of
from tuiprof.model import Trace
from tuiprof.model.intervals import nest, union
from tuiprof.model.trace import CATEGORIES, CATEGORY_TYPE
from tuiprof.model.trust import ReadStats, Remark
from tuiprof.model.units import format_count, format_ns

#: A line of calls belongs to a thread whose runtime events this share of them begin in.
_JOINED: Final = 0.9
_GENERIC: Final = 0  # type of flow that marks a wait's two ends


def pair_waits(rows: Ints, line: Ints, start: Ints, flow: dict[str, Ints]) -> tuple[Ints, Ints]:
    """Pair the marks of host waits: events that begin a wait, and events that end it.

    The runtime writes a wait as two short events of one name on one line: the first produces a generic flow (``_pt`` 0,
    ``_p`` id), the second consumes it (``_ct`` 0, ``_c`` id). The wait lasts from the start of the first to the end of
    the second; summing up their own lengths would say a few µs instead.
    """
    begins, ends = [], []
    open_waits: dict[tuple[int, int], int] = {}
    for row in rows[np.argsort(start[rows], kind="stable")].tolist():
        if (
            flow["_ct"][row] == _GENERIC
            and (begin := open_waits.pop((int(line[row]), int(flow["_c"][row])), None)) is not None
        ):
            begins.append(begin)
            ends.append(row)
        elif flow["_pt"][row] == _GENERIC:
            open_waits[int(line[row]), int(flow["_p"][row])] = row
    return np.array(begins, dtype=np.int64), np.array(ends, dtype=np.int64)


def number_runs(device: Ints, run: Ints, rows: Ints) -> Ints:
    """Number the (device, run id) of some rows from 1 on, which serves as correlation."""
    pairs = np.stack((device[rows], run[rows]), axis=1)
    _, inverse = np.unique(pairs, axis=0, return_inverse=True)
    return inverse.reshape(-1).astype(np.int64) + 1


def inside(starts: Ints, ends: Ints, values: Ints, at: Ints) -> Ints:
    """Return the value of the interval around each instant; -1 = none."""
    if not len(starts):
        return np.full(len(at), -1, dtype=np.int64)
    order = np.argsort(starts, kind="stable")
    index = np.searchsorted(starts[order], at, side="right") - 1
    found = order[np.maximum(index, 0)]
    covered = (index >= 0) & (at < ends[found])
    return np.where(covered, values[found], -1)


@dataclass(frozen=True, slots=True)
class Shift:
    """Offset of a device's clock from the host's."""

    device: int  # device index
    ps: int  # what to add to the device's times
    #: Largest shift with which no program ends after the host heard of its end; below ``ps`` the two contradict.
    high_ps: int
    runs: int  # number of programs the bounds come from


def clock_shift(device: int, enqueued: Ints, started: Ints, ended: Ints, heard: Ints) -> Shift:
    """Estimate the shift of one device.

    The smallest shift is taken that lets every program start after it was handed over; where no shift is
    needed for that, none is made. Completion can be reported too early by some versions of libtpu, so it bounds
    the estimate but does not pull it.
    """
    low = int((enqueued - started).max()) if len(started) else 0
    high = int((heard - ended).min()) if len(ended) else low
    return Shift(device, max(0, low), high, len(started))


Mask = npt.NDArray[np.bool_]

#: A call of a compiled function, which submits the program, unless it is only being traced.
_CALL: Final = re.compile(r"^PjitFunction\((.*)\)$")
_EXECUTE: Final = re.compile(r"Executable::Execute")
_MODULE: Final = "jit_"


def handed_over(
    names: list[str],
    host: Mask,
    name: npt.NDArray[np.integer],
    line: npt.NDArray[np.integer],
    start: Ints,
    end: Ints,
) -> dict[str, Ints]:
    """Return the innermost calls that submitted a program, in order of start, by the program's name."""
    program = {code: plain(match[1]) for code, text in enumerate(names) if (match := _CALL.match(text))}
    executes = np.fromiter((_EXECUTE.search(text) is not None for text in names), bool, len(names))
    either = executes.copy()
    either[list(program)] = True
    rows = np.flatnonzero(host & either[name])
    rows = rows[order_of(start[rows], end[rows] - start[rows])]
    is_execute = executes[name[rows]]
    nesting = nest(start[rows], end[rows], line[rows].astype(np.int64))
    at = nesting.nearest(np.flatnonzero(is_execute), ~is_execute)
    calls = rows[np.unique(at[at >= 0])]
    found: dict[str, list[int]] = {}
    for call, code in zip(calls.tolist(), name[calls].tolist(), strict=True):
        found.setdefault(program[code], []).append(call)
    return {key: np.array(value, dtype=np.int64) for key, value in found.items()}


def match_programs(
    space: Space, stats: Named, ops: Ints, start: Ints, calls: dict[str, Ints]
) -> tuple[Ints, Ints]:
    """Return operators that XLA ran on the CPU, after the call and on other threads, and the call of each, if known.

    An operator carries its program and the number of the run, but no call carries either. The runs of a program are
    numbered in the order of the calls (``PjitFunction(step)`` runs ``jit_step``); where there are as many calls as
    runs, and none runs before its call, the n-th run is that of the n-th call.
    """
    program, run = stats.ints("program_id")[ops], stats.ints("run_id")[ops]
    ids, of_program = dense(program + 1)
    any_op = np.zeros(len(ids), dtype=np.int64)
    any_op[of_program] = ops
    modules = [plain(str(space.event_values(op).get("hlo_module"))) for op in any_op.tolist()]
    works, made_by = [ops[:0]], [ops[:0]]
    for identity, module in enumerate(modules):
        if modules.count(module) > 1 or module not in calls:
            continue  # calls cannot be matched to two programs of one name
        mine = np.flatnonzero(of_program == identity)
        rows = ops[mine]
        of_call = match_runs(run[mine], start[rows], start[calls[module]])
        if len(of_call):
            works.append(rows)
            made_by.append(calls[module][of_call])
    return np.concatenate(works), np.concatenate(made_by)


def match_runs(run: Ints, start: Ints, call_starts: Ints) -> Ints:
    """Return for each operator of a program which of the program's calls made it run; empty = unknown."""
    numbers, of_run = dense(run - run.min())
    first = np.full(len(numbers), np.iinfo(np.int64).max)
    np.minimum.at(first, of_run, start)
    if len(numbers) != len(call_starts) or (first < call_starts).any():
        return np.empty(0, dtype=np.int64)
    return of_run


def plain(name: str) -> str:
    """Return a function's name as XLA writes it into a program's, without ``jit_`` and underscores at its ends."""
    return re.sub(r"\W+", "_", name.removeprefix(_MODULE)).strip("_")


_CODE = {name: code for code, name in enumerate(CATEGORIES)}
_MEMORY = ("MemoryAllocation", "MemoryDeallocation")


class Builder:
    """Computes the model's columns of one file.

    Times become nanoseconds by rounding both edges of an event down. So an event that encloses another, or touches it,
    still does; a length can be 1 ns off the rounded picoseconds, which :class:`Space` keeps exact.
    """

    def __init__(self, space: Space, path: Path | None) -> None:
        self.space, self.path = space, path
        self.line_rows = [words.row_of(space.planes[line.plane].name, line.name) for line in space.lines]
        self.plane = self._spread([line.plane for line in space.lines], np.int32)
        self.stats = Named(space, self.plane)
        self.start, self.end, self.origin = times(space)
        self.row = self._spread(self.line_rows, np.int8)
        devices = [words.device_of(space.planes[line.plane].name) for line in space.lines]
        self.device = self._spread([-1 if found is None else found[1] for found in devices], np.int32)
        self.host = self.row == Row.HOST
        self.names: list[str] = []
        self.name = np.zeros(len(space), dtype=np.int32)
        self.category = np.zeros(len(space), dtype=np.uint8)
        self.correlation = self.stats.ints("correlation_id")
        #: The thread of each event, once lines of calls are part of theirs
        self.track: npt.NDArray[np.uint32] = space.line
        self.shifts: list[Shift] = []
        self.waits = 0

    def _spread(self, of_line: list[int] | list[Row], kind: type[np.signedinteger[Any]]) -> npt.NDArray[Any]:
        """Give every event the number of its line."""
        return (
            np.array(of_line, dtype=kind)[self.space.line]
            if of_line
            else np.zeros(len(self.space), dtype=kind)
        )

    def build(self) -> Trace:
        """Return the trace."""
        space, stats = self.space, self.stats
        self._name()
        self._categorise()
        self._join_calls()
        self._link_programs()
        self._set_own_work_apart()
        self._pair_waits()
        ts, end = self.start // 1000, self.end // 1000
        dur = end - ts
        memory = self._named(*_MEMORY)
        counted = self.row == Row.COUNTERS
        untimed = np.zeros(len(space), dtype=bool)
        untimed[list(space.occurrences)] = True
        keep = ~(memory | counted | untimed | space.bad)
        order = order_of(ts[keep], dur[keep])
        ordinal = np.flatnonzero(keep)[order]
        events = self._events(ordinal, ts, dur)
        read = ReadStats(
            events=len(space),
            phases={"event": int(keep.sum()), "memory": int(memory.sum()), "counter": int(counted.sum())},
            malformed=int(space.bad.sum()),
            source_bytes=space.buffer.size,
        )
        read.phases = {kind: count for kind, count in read.phases.items() if count}
        if untimed.any():
            read.phases["aggregated"] = int(untimed.sum())
        steps = self._steps(ts, end, stats)
        read.remarks = _remarks(space, self.shifts, self.waits, steps)
        trace = Trace(
            events,
            tracks_of(space, self._threads()),
            describe(space, self.path, self.origin),
            read,
            instants=self._instants(np.flatnonzero((memory | untimed) & ~space.bad), ts),
            counters=self._counters(ts),
            sync_sites=read_sync_sites(self.path) if self.path is not None else None,
            step_markers=steps,
            dispatched=None if steps is None else self._dispatched(ordinal),
            raw=RawEvents(space),
        )
        trace.programs = HloPrograms(space)
        return trace

    def _threads(self) -> dict[int, int]:
        """Return the thread of each line that the probe marked."""
        marks = self.stats.events(words.THREAD_ID)
        marks = marks[self.host[marks]]
        threads = self.stats.ints(words.THREAD_ID)[marks].tolist() if len(marks) else []
        return dict(zip(self.space.line[marks].tolist(), threads, strict=True))

    # -- names and categories ------------------------------------------------------------------------------

    def _name(self) -> None:
        planes = self.space.planes
        shown = {
            (index, key): words.show_name(metadata.name)
            for index, plane in enumerate(planes)
            for key, metadata in plane.events.items()
        }
        self.names = list(dict.fromkeys([*shown.values(), ""]))
        numbers = {name: code for code, name in enumerate(self.names)}
        entries = {pair: numbers[name] for pair, name in shown.items()}
        lookup = Lookup(entries, max(1, len(planes)), numbers[""])
        self.name = lookup(self.plane, self.space.metadata)

    def _named(self, *names: str) -> Mask:
        """Return which events have one of these names."""
        codes = [code for code, name in enumerate(self.names) if name in names]
        return np.isin(self.name, codes)

    def _categorise(self) -> None:
        space, stats = self.space, self.stats
        details = np.zeros(len(space), dtype=np.int8)
        kinds = ("", "kernel_details", "memcpy_details", "memset_details")
        for code, kind in enumerate(kinds[1:], 1):
            details[stats.events(kind)] = code
        # Lines of the same kind form a group, and there are few distinct (group, name, details): each is processed
        # once.
        groups: dict[tuple[Row, int, str], int] = {}
        of_line = [groups.setdefault(self._alike(index), len(groups)) for index in range(len(space.lines))]
        alike = list(groups)
        key = self._spread(of_line, np.int32).astype(np.int64)
        key = (key * len(self.names) + self.name) * len(kinds) + details
        found, inverse = dense(key)
        codes = np.zeros(len(found), dtype=np.uint8)
        hlo = self._hlo_categories()
        for at, value in enumerate(found.tolist()):
            rest, kind = divmod(value, len(kinds))
            group, name_code = divmod(rest, len(self.names))
            (row, plane, line), name = alike[group], self.names[name_code]
            if row is Row.HOST:
                category = words.of_host(name, runs_python=bool(line))
            elif row is Row.STREAM:
                category = of_stream(name, line, kinds[kind])
            elif row in (Row.OPS, Row.ASYNC):
                category = words.of_tpu_op(name, hlo.get((plane, name), ""))
            else:
                category = words.of_wait(name) if row is Row.WAITS else "device_annotation"
            codes[at] = _CODE[category]
        self.category = codes[inverse]
        launched = self.host & (self.correlation > 0) & (self.category != _CODE["driver"])
        self.category[launched] = _CODE["runtime"]
        self.category[self.host & stats.has("step_num")] = _CODE["annotation"]
        self.category[self.host & stats.has("hlo_op") & ~launched] = _CODE["cpu_op"]
        self._look_inside()
        # A TPU traced without operations: its programs are the work.
        with_ops = np.unique(self.device[np.isin(self.row, (Row.OPS, Row.ASYNC))])
        alone = (self.row == Row.MODULES) & ~np.isin(self.device, with_ops)
        self.category[alone] = _CODE["kernel"]

    def _join_calls(self) -> None:
        """Move the device's API calls to the thread that makes them.

        On ROCm they are on a line of their own, with another id. Their thread is the only one whose runtime events
        are open when they begin.
        """
        calls = self.host & (self.correlation > 0)
        apart = [index for index, line in enumerate(self.space.lines) if line.name.startswith(words.CALLS)]
        around = self.host & ~calls & (self.category == _CODE["runtime"])
        threads = np.unique(self.space.line[around]).tolist()
        for index in apart:
            mine = np.flatnonzero(self.space.line == index)
            if not len(mine) or not calls[mine].all():
                continue
            shares = {
                thread: self._begun_in(mine, np.flatnonzero(around & (self.space.line == thread)))
                for thread in threads
            }
            likely = [thread for thread, share in shares.items() if share > 0.5]
            if len(likely) == 1 and shares[likely[0]] >= _JOINED:
                self.track = np.where(self.space.line == index, np.uint32(likely[0]), self.track)

    def _begun_in(self, rows: Ints, around: Ints) -> float:
        """Return the share of events that begin inside one of others."""
        starts, ends = union(self.start[around], self.end[around])
        at = np.searchsorted(starts, self.start[rows], side="right") - 1
        return float(((at >= 0) & (self.start[rows] < ends[np.maximum(at, 0)])).mean())

    def _set_own_work_apart(self) -> None:
        """Programs that the probe runs on the devices, to detect when they are done, do not belong to any operator."""
        own = [code for code, name in enumerate(self.names) if words.OWN in name]
        if not own:
            return
        named = np.isin(self.name, own)
        launched = self.correlation[named & (self.row == Row.MODULES) & (self.correlation > 0)]
        for fence in np.flatnonzero(named & self.host).tolist():
            within = (self.space.line == self.space.line[fence]) & (self.start >= self.start[fence])
            within &= (self.end <= self.end[fence]) & (self.category != _CODE["python_function"])
            self.category[within] = _CODE["overhead"]
            launched = np.append(launched, self.correlation[within & (self.correlation > 0)])
        self.category[~self.host & np.isin(self.correlation, launched)] = _CODE["overhead"]

    def _alike(self, index: int) -> tuple[Row, int, str]:
        """Return what the category of an event depends on besides its name: kind of line, plane, line."""
        line, row = self.space.lines[index], self.line_rows[index]
        if row is Row.HOST:
            return row, -1, line.name if words.runs_python(line.name) else ""
        return row, line.plane if row in (Row.OPS, Row.ASYNC) else -1, line.name if row is Row.STREAM else ""

    def _look_inside(self) -> None:
        """Remove the annotation category from events inside a runtime call or a compilation of their thread."""
        rows = np.flatnonzero(self.category == _CODE["annotation"])
        rows = rows[~self.stats.has("step_num")[rows]]
        # One axis for all threads: each thread gets an interval as long as the trace.
        start, end = self.start // 1000, self.end // 1000
        low = int(start.min()) if len(start) else 0
        axis = self.space.line.astype(np.int64) * (int(end.max()) - low + 1 if len(end) else 0) - low
        for container, category in (("runtime", "other"), ("compile", "compile")):
            mine = np.flatnonzero(self.host & (self.category == _CODE[container]))
            starts, ends = union((start + axis)[mine], (end + axis)[mine])
            if len(starts):
                index = np.maximum(np.searchsorted(starts, (start + axis)[rows], side="left") - 1, 0)
                within = (starts[index] < (start + axis)[rows]) & ((end + axis)[rows] <= ends[index])
                self.category[rows[within]] = _CODE[category]

    def _hlo_categories(self) -> dict[tuple[int, str], str]:
        """Return what XLA calls the category of each TPU operation, by plane and name."""
        found = {}
        for index, plane in enumerate(self.space.planes):
            if (words.device_of(plane.name) or ("", 0))[0] == "TPU":
                for metadata in plane.events.values():
                    category = self.space.metadata_values(plane, metadata).get("hlo_category")
                    found[index, words.show_name(metadata.name)] = str(category or "")
        return found

    # -- what belongs together -----------------------------------------------------------------------------

    def _link_programs(self) -> None:
        """Link the operations of each TPU program with the host call that submitted it; align the clocks."""
        run, named_device = self.stats.ints("run_id", missing=0), self.stats.ints("device_ordinal")
        module = (self.row == Row.MODULES) & self.stats.has("run_id")
        enqueue = self._named(words.ENQUEUE) & self.host & (named_device >= 0)
        complete = self._named(words.COMPLETE) & self.host & (named_device >= 0)
        rows = np.flatnonzero(module | enqueue | complete)
        if not module.any():
            return
        number = np.full(len(run), -1, dtype=np.int64)
        number[rows] = number_runs(np.where(self.host, named_device, self.device), run, rows)
        self.correlation[module | enqueue] = number[module | enqueue]
        self.category[enqueue] = _CODE["runtime"]
        for device in np.unique(self.device[module]).tolist():
            mine = np.flatnonzero(module & (self.device == device))
            shift = clock_shift(device, *self._bounds(mine, enqueue, complete, number))
            self.shifts.append(shift)
            here = self.device == device
            if shift.ps:
                self.start[here] += shift.ps
                self.end[here] += shift.ps
            ops = np.flatnonzero(here & np.isin(self.row, (Row.OPS, Row.ASYNC)))
            self.correlation[ops] = inside(self.start[mine], self.end[mine], number[mine], self.start[ops])

    def _bounds(
        self, modules: Ints, enqueue: Mask, complete: Mask, number: Ints
    ) -> tuple[Ints, Ints, Ints, Ints]:
        """Return the times that bound a device's clock: submitted, started, ended, completion seen."""
        first = {int(number[row]): row for row in np.flatnonzero(enqueue)[::-1].tolist()}
        last = {int(number[row]): row for row in np.flatnonzero(complete).tolist()}
        begun = [(first[int(number[row])], row) for row in modules.tolist() if int(number[row]) in first]
        ended = [(row, last[int(number[row])]) for row in modules.tolist() if int(number[row]) in last]
        a = np.array(begun, dtype=np.int64).reshape(-1, 2)
        b = np.array(ended, dtype=np.int64).reshape(-1, 2)
        return self.start[a[:, 0]], self.start[a[:, 1]], self.end[b[:, 0]], self.start[b[:, 1]]

    def _dispatched(self, ordinal: Ints) -> pl.DataFrame | None:
        """Return which operators ran on the CPU for which call, as rows of the table of events."""
        ops = np.flatnonzero(self.host & self.stats.has("hlo_op") & self.stats.has("run_id"))
        if not len(ops):
            return None
        calls = handed_over(self.names, self.host, self.name, self.space.line, self.start, self.end)
        work, call = match_programs(self.space, self.stats, ops, self.start, calls)
        row_of = np.full(len(self.space), -1, dtype=np.int64)
        row_of[ordinal] = np.arange(len(ordinal))
        pairs = pl.DataFrame({"work": row_of[work], "call": row_of[call]})
        pairs = pairs.filter((pl.col("work") >= 0) & (pl.col("call") >= 0))
        return pairs if len(pairs) else None

    def _pair_waits(self) -> None:
        codes = [code for code, name in enumerate(self.names) if words.AWAIT.search(name)]
        rows = np.flatnonzero(self.host & np.isin(self.name, codes))
        if not len(rows):
            return
        flow = {key: self.stats.ints(key) for key in ("_pt", "_p", "_ct", "_c")}
        begins, ends = pair_waits(rows, self.space.line.astype(np.int64), self.start, flow)
        self.waits = len(begins)
        if len(begins):
            self.end[begins] = self.end[ends]
            self.category[ends] = _CODE["overhead"]

    # -- tables --------------------------------------------------------------------------------------------

    def _events(self, ordinal: Ints, ts: Ints, dur: Ints) -> pl.DataFrame:
        space = self.space
        streams = np.array(
            [
                -1 if words.device_of(space.planes[line.plane].name) is None else _stream(line.name, line.id)
                for line in space.lines
            ],
            dtype=np.int64,
        )
        size = self.stats.sizes("memcpy_details")
        said = self.stats.ints("size")
        size = np.where((size < 0) & self.host & (self.category == _CODE["runtime"]), said, size)

        stream = streams[space.line] if len(streams) else streams
        return pl.DataFrame(
            {
                "ts": ts[ordinal],
                "dur": dur[ordinal],
                "name": in_words(self.name[ordinal], pl.Enum(self.names)),
                "category": in_words(self.category[ordinal], CATEGORY_TYPE),
                "track": self.track[ordinal],
                "device": optional(self.device[ordinal], pl.Int16),
                "stream": optional(np.where(self.device < 0, -1, stream)[ordinal]),
                "correlation": optional(np.where(self.correlation > 0, self.correlation, -1)[ordinal]),
                "external_id": pl.Series([None], dtype=pl.Int64).new_from_index(0, len(ordinal)),
                "sequence": pl.Series([None], dtype=pl.Int64).new_from_index(0, len(ordinal)),
                "bytes": optional(size[ordinal]),
                "ordinal": ordinal.astype(np.uint32),
            }
        )

    def _instants(self, rows: Ints, ts: Ints) -> pl.DataFrame | None:
        if not len(rows):
            return None
        rows = rows[np.argsort(ts[rows], kind="stable")]
        freed = self._named(_MEMORY[1])
        size = self.stats.ints("allocation_bytes", missing=0)
        memory = self._named(*_MEMORY)[rows]
        return pl.DataFrame(
            {
                "ts": ts[rows],
                "name": [self.names[code] for code in self.name[rows].tolist()],
                "category_text": np.where(memory, "memory", "aggregated").tolist(),
                "track": self.space.line[rows],
                "ordinal": rows.astype(np.uint32),
                "bytes": np.where(freed, -size, size)[rows],
                "address": self.stats.ints("addr")[rows],
                "device": optional(self._allocators()[rows]),
                "total_allocated": optional(self.stats.ints("bytes_allocated")[rows]),
            }
        )

    def _allocators(self) -> Ints:
        """Return the device of each memory event; -1 = host.

        The allocators of GPUs are recognised by their names (``GPU_0_bfc``, ``xla_gpu_host_bfc``), those of TPUs by
        the index of the device. ``bytes_reserved`` is what programs hold besides buffers, not a pool that
        buffers are taken from.
        """
        named = self.stats.has("allocator_name")
        by_name = self.stats.numbers_in("allocator_name", words.DEVICE_ALLOCATOR)
        return np.where(named, by_name, self.stats.ints("index_on_host"))

    def _counters(self, ts: Ints) -> pl.DataFrame | None:
        events, values = self.stats.doubles("% util")
        if not len(events):
            return None
        return pl.DataFrame(
            {
                "ts": ts[events],
                "name": [self.names[code] for code in self.name[events].tolist()],
                "series": ["% util"] * len(events),
                "value": values,
                "track": self.space.line[events],
            }
        ).sort("ts")

    def _steps(self, ts: Ints, end: Ints, stats: Named) -> pl.DataFrame | None:
        rows = stats.events("step_num")
        rows = rows[self.host[rows]]
        return step_markers(self.name[rows], stats.ints("step_num")[rows], ts[rows], end[rows])


def _remarks(space: Space, shifts: list[Shift], waits: int, steps: pl.DataFrame | None) -> list[Remark]:
    found = [
        Remark("profiler-error", f"the profiler reports: {text[:300]}", level="bad") for text in space.errors
    ]
    found += [
        Remark("profiler-warning", f"the profiler warns: {text[:300]}", level="warn")
        for text in space.warnings
    ]
    moved = [shift for shift in shifts if shift.ps]
    if moved:
        least, most = min(s.ps for s in moved), max(s.ps for s in moved)
        by = (
            format_ns(most / 1000)
            if least == most
            else f"{format_ns(least / 1000)} to {format_ns(most / 1000)}"
        )
        found.append(
            Remark(
                "clock-shift",
                f"the clocks of {len(moved)} devices were shifted by {by}, so that no program starts before the host "
                "launched it: launch latencies are approximate",
                level="warn",
            )
        )
    torn = [shift for shift in shifts if shift.high_ps < shift.ps]
    if torn:
        worst = max(shift.ps - shift.high_ps for shift in torn)
        found.append(
            Remark(
                "clock-contradiction",
                f"the host records the end of programs up to {format_ns(worst / 1000)} before their end on devices "
                f"{', '.join(str(shift.device) for shift in torn)}; host and device times are not exactly comparable",
                level="warn",
            )
        )
    dropped = sum(
        int(v) for plane in space.planes if isinstance(v := plane.values.get("dropped_traces"), int)
    )
    if dropped:
        found.append(Remark("dropped", f"the profiler dropped {format_count(dropped)} events", level="bad"))
    if waits:
        found.append(
            Remark(
                "paired-waits",
                f"{format_count(waits)} host {'wait was' if waits == 1 else 'waits were'} assembled from pairs of "
                "begin and end marks",
            )
        )
    if steps is not None and (again := len(steps) - steps["step"].n_unique()):
        text = f"{format_count(again)} of {format_count(len(steps))} steps repeat an earlier number"
        found.append(Remark("steps-anew", f"steps are renumbered: {text}"))
    return found


def _stream(name: str, identity: int) -> int:
    number = words.stream_of(name)
    return identity if number is None else number


class RawEvents:
    """Returns an event with all its stats, decoded again from its bytes."""

    def __init__(self, space: Space) -> None:
        self._space = space

    def text(self, ordinal: int) -> str:
        """Return the event and what it shares with others of its name, as JSON."""
        try:
            return json.dumps(self._event(ordinal), default=_unprintable, ensure_ascii=False, indent=1)
        except Damaged as damage:
            return f"this event cannot be shown: {damage}"

    def _event(self, ordinal: int) -> dict[str, Any]:
        space = self._space
        line = space.lines[int(space.line[ordinal])]
        plane = space.planes[line.plane]
        metadata = plane.events.get(int(space.metadata[ordinal]))
        event: dict[str, Any] = {
            "plane": plane.name,
            "line": line.name,
            "line_timestamp_ns": line.timestamp_ns,
            "name": metadata.name if metadata else None,
            "offset_ps": int(space.offset_ps[ordinal]),
            "duration_ps": int(space.duration_ps[ordinal]),
            "stats": space.event_values(ordinal),
        }
        if ordinal in space.occurrences:
            event["num_occurrences"] = space.occurrences[ordinal]
        if metadata is not None:
            event["display_name"] = metadata.display_name
            event["metadata_stats"] = space.metadata_values(plane, metadata)
        return event


def _unprintable(value: Any) -> str:
    return f"<{len(value)} bytes>"
