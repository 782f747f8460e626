"""The table of waits for the sync report: their source lines, and what they cost the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from tuiprof.analyses.shared import frames as _frames
from tuiprof.analyses.shared import waits as _waits
from tuiprof.analyses.shared.scope import Scope
from tuiprof.analyses.shared.waits import KINDS, READ, xla_marks
from tuiprof.model import Trace, Window
from tuiprof.model.intervals import (
    Coverage,
    Ints,
    Mask,
    complement,
    distinct,
    factorize,
    intersection,
    member,
    union,
)
from tuiprof.model.trace import cached_on_trace
from tuiprof.whatif import Edit, HostTime
from tuiprof.whatif.replay import Kinds

#: Maximum number of locations to remove from the replayed step one by one; further ones hardly matter.
MAX_REPLAYED = 12
_APART = {_waits.COUNTED: "", _waits.BY_PROFILER: "made by the profiler", _waits.AT_EDGE: "cut by the window"}


@dataclass(frozen=True, slots=True)
class WaitTable:
    """Waits with their cost and location.

    Words are categorical: a million waits have a few hundred distinct ones, and text takes four times as much memory.
    """

    waits: _waits.Waits
    sites: Sites  # their source lines
    frame: pl.DataFrame  # one row a wait, in order of its end
    counted: pl.DataFrame  # those that count
    ranked: pl.DataFrame  # the same, the most expensive first


def build(trace: Trace, scope: Scope) -> WaitTable:
    """Find the waits of a window and their cost."""
    waits = _waits.find(trace, scope.window)
    whole = _waits.find(trace, Window())
    # The cost of a wait depends on later waits, inside the window or not.
    empty, late = costs(trace)
    inside = np.flatnonzero(member(whole.last, waits.last)) if len(whole) else whole.last
    counts = waits.apart == _waits.COUNTED
    empty_ns, late_ns = (np.where(counts, ns[inside], 0) for ns in (empty.ns, late))
    sites = join(trace, waits.last, waits.ancestry.outer_row)
    step_of = trace.steps.step_of[waits.last]
    numbers = pl.Series([*map(str, trace.steps.numbers.tolist()), ""], dtype=pl.Categorical)
    copied = np.flatnonzero(waits.copy >= 0)
    moved = np.full(len(waits), -1, dtype=np.int64)
    moved[copied] = trace.ints("bytes", waits.copy[copied])
    frame = pl.DataFrame(
        {
            "event": waits.last,
            "begun_by": waits.first,
            "start_ns": waits.starts,
            "end_ns": waits.ends,
            "blocked_ns": waits.waited,
            "empty_ns": empty_ns,
            "refill_ns": late_ns,
            "kind": _words(waits.kinds, waits.kind),
            "apart": _words(tuple(_APART.values()), waits.apart),
            "step": numbers.gather(np.where(step_of >= 0, step_of, len(numbers) - 1)),
            "in_step": scope.in_steps(waits.last),
            "bytes": pl.Series(moved).replace(-1, None),
            "waited_for": _names(trace, empty.waited_for[inside]),
            "delayed": _names(trace, empty.delayed[inside]),
            "calls": _calls(trace, waits),
        }
    )
    frame = frame.hstack(_locations(trace, waits, sites))
    # Each has more than a hundred bytes a wait, so they are made once.
    counted = frame if counts.all() else frame.filter(counts)
    return WaitTable(waits, sites, frame, counted, counted.sort("empty_ns", "blocked_ns", descending=True))


#: Maximum number of rows whose words are written out one by one: a cast of the table is one query.
_FEW_ROWS: Final = 1_000


def written_out(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows of the table of waits with words as text; rows with the same word refer to one text.

    A cast would write the text of each row anew, which matters for many of them only.
    """
    if len(rows) <= _FEW_ROWS:
        return rows.cast({pl.Categorical: pl.String})
    words = rows.select(pl.col(pl.Categorical))
    codes = words.select(pl.all().to_physical().cast(pl.Int64).fill_null(-1))
    return rows.with_columns(_text(column, codes[column.name].to_numpy()) for column in words)


def _text(words: pl.Series, codes: Ints) -> pl.Series:
    found, index = factorize(codes)
    first = np.empty(len(found), dtype=np.int64)
    first[index] = np.arange(len(index))
    return words.gather(first).cast(pl.String).gather(index)


def located(trace: Trace) -> pl.DataFrame:
    """Return the location of every wait of a trace, in order of its end, in the columns of :class:`WaitTable`."""
    waits = _waits.find(trace, Window())
    sites = join(trace, waits.last, waits.ancestry.outer_row)
    frame = pl.DataFrame({"event": waits.last, "begun_by": waits.first, "end_ns": waits.ends})
    words = {"kind": _words(waits.kinds, waits.kind), "apart": _words(tuple(_APART.values()), waits.apart)}
    return frame.with_columns(**words).hstack(_locations(trace, waits, sites))


@cached_on_trace
def costs(trace: Trace) -> tuple[Emptied, Ints]:
    """Return empty and refill time of all waits of a trace, in the order of the waits; excluded ones have none."""
    waits = _waits.find(trace, Window())
    counts = waits.apart == _waits.COUNTED
    tracks = trace.track_codes[waits.last]
    starts, ends = waits.starts[counts], waits.ends[counts]
    found = emptied(trace, tracks[counts], waits.copy[counts], starts, ends)
    late = np.zeros(len(waits), dtype=np.int64)
    reads = waits.kind[counts] == KINDS.index(READ)
    late[counts] = refill(trace, found, starts, ends, reads)
    nowhere = np.full(len(waits), -1, dtype=np.int64)
    result = Emptied(nowhere, waits.starts.copy(), waits.starts.copy(), nowhere.copy(), nowhere.copy())
    for field in ("device", "starts", "ends", "waited_for", "delayed"):
        getattr(result, field)[counts] = getattr(found, field)
    return result, late


def _words(words: tuple[str, ...], codes: Ints) -> pl.Series:
    return pl.Series(words, dtype=pl.Categorical).gather(codes)


def _names(trace: Trace, rows: Ints) -> pl.Series:
    """Return names of events; null where the row is -1."""
    if not len(rows):
        return pl.Series([], dtype=pl.Categorical)
    codes = np.where(rows >= 0, trace.name_codes[np.maximum(rows, 0)], -1) if len(trace) else rows
    found, inverse = factorize(codes)
    words = pl.Series([trace.names[c] if c >= 0 else None for c in found.tolist()], dtype=pl.Categorical)
    return words.gather(inverse)


def _calls(trace: Trace, waits: _waits.Waits) -> pl.Series:
    """Return the calls of each wait: ``cudaMemcpyAsync + cudaStreamSynchronize``."""
    if not len(waits):
        return pl.Series([], dtype=pl.Categorical)
    first, last = trace.name_codes[waits.first], trace.name_codes[waits.last]
    pairs, inverse = _distinct_rows(np.column_stack((np.where(waits.first != waits.last, first, -1), last)))
    words = [f"{trace.names[a]} + {trace.names[b]}" if a >= 0 else trace.names[b] for a, b in pairs.tolist()]
    return pl.Series(words, dtype=pl.Categorical).gather(inverse)


def _locations(trace: Trace, waits: _waits.Waits, sites: Sites) -> pl.DataFrame:
    """Return ``where``, ``in``, ``called_from``, ``found``, ``through``, ``range`` and ``stack`` of each wait."""
    schema = {
        "location": pl.Int64,
        **dict.fromkeys(("where", "in", "called_from", "found", "through", "range", "stack"), pl.Categorical),
    }
    if not len(waits):
        return pl.DataFrame(schema=schema)
    ancestry, names = waits.ancestry, trace.names
    keys = np.column_stack(
        (
            sites.of_wait,
            ancestry.annotation,
            ancestry.operators,
            ancestry.frames,
            trace.name_codes[waits.last],
        ),
    )
    # A million waits come from a few hundred distinct locations.
    distinct, inverse = _distinct_rows(keys)
    operators = ancestry.operators.shape[1]
    rows = []
    locations: dict[tuple[str, str, str, str], int] = {}
    running = _frames.running_at_start(trace)
    for key in distinct.tolist():
        site, annotation = key[0], key[1]
        chain = [_frames.operator_label(names[c]) for c in key[2 : 2 + operators] if c >= 0]
        frames = [names[c] for c in key[2 + operators : -1] if c >= 0]
        through = " → ".join(reversed(chain))
        range_ = names[annotation] if annotation >= 0 else ""
        exact = sites.stacks[site].splitlines() if site >= 0 else []
        stack = exact or frames
        spot = _frames.spot(stack, running)
        if spot is not None:
            where, function, caller = spot
            found = "line" if exact else "function"
        else:
            where, found = (range_, "range") if range_ else (through or names[key[-1]], "operator")
            function = caller = ""
        # Locations with the same text are one, even if outer frames differ.
        location = locations.setdefault((where, function, through, range_), len(locations))
        rows.append((location, where, function, caller, found, through, range_, "\n".join(stack)))
    return pl.DataFrame(rows, schema=schema, orient="row")[inverse]


def _distinct_rows(keys: Ints) -> tuple[Ints, Ints]:
    """Return the distinct rows of a table and the location of each row among them."""
    # One hash a row instead of a lexical sort of wide rows.
    weights = np.random.default_rng(1).integers(1, 2**62, keys.shape[1:], dtype=np.int64) * 2 + 1
    hashed = np.zeros(len(keys), dtype=np.int64)
    for index in range(keys.shape[1]):  # one at a time, as all products take much memory
        hashed += keys[:, index] * weights[index]
    _, first, inverse = np.unique(hashed, return_index=True, return_inverse=True)
    if any((column[first][inverse] != column).any() for column in keys.T):  # a collision: compare full rows
        first_rows, inverse = np.unique(keys, axis=0, return_inverse=True)
        return first_rows, inverse.reshape(-1)
    return keys[first], inverse.reshape(-1)


def group(table: WaitTable, scope: Scope, step: Kinds | None) -> pl.DataFrame:
    """Group the counted waits by location and kind, largest saving first."""
    steps = scope.step_count or None
    in_step = pl.col("in_step")
    location, costs = ("location", "kind"), ("empty_ns", "refill_ns", "blocked_ns")
    return (
        table.ranked.group_by(location, maintain_order=True)
        .agg(
            *(pl.col(key).first() for key in ("where", "in", "called_from", "through", "range")),
            pl.len().cast(pl.Int64).alias("count"),
            *(pl.col(key).sum() for key in costs),
            *((pl.col(key).filter(in_step).sum() / steps).alias(f"{key}_per_step") for key in costs),
            (in_step.sum() / steps).alias("per_step"),
            pl.when(pl.col("bytes").is_not_null().any()).then(pl.col("bytes").sum()).alias("bytes"),
            # The most expensive one represents the group.
            *(pl.col(key).first() for key in ("calls", "found", "stack", "waited_for", "delayed", "event")),
        )
        .join(
            bound(table.counted, location, steps)
            if step is None
            else saved(scope.trace, table.counted, location, step),
            on=location,
            how="left",
            maintain_order="left",
        )
        .sort(
            "saves_ns_per_step",
            "saves_ns",
            "empty_ns",
            "blocked_ns",
            descending=True,
            nulls_last=True,
            maintain_order=True,
        )
        .cast({pl.Categorical: pl.String})
    )


def bound(waits: pl.DataFrame, by: Sequence[str], steps: int | None) -> pl.DataFrame:
    """Return the upper bound of the saving of removing waits, in order of their end: ``saves_ns`` and
    ``saves_ns_per_step``.

    Waits that are equal in the columns ``by`` are removed together. Without a wait the host gets ahead by the time it
    was blocked, which can only reduce later idle time of the device. So in order of time each wait adds to a credit,
    and saves as much of the following idle time as the credit covers; the rest is carried over. A wait without a later
    launch saves nothing.
    """
    waits = waits.select(*by, "empty_ns", "refill_ns", "blocked_ns", "in_step")
    groups = waits.partition_by(by, maintain_order=True) if by else [waits]
    rows = []
    for group in groups:
        idle = (group["empty_ns"] + group["refill_ns"]).to_numpy()
        gained = np.cumsum(group["blocked_ns"].to_numpy() - idle)
        left = gained - np.minimum(np.minimum.accumulate(gained), 0) if len(gained) else gained
        won = np.append(0, left[:-1])[: len(left)] + group["blocked_ns"].to_numpy() - left
        in_steps = won[group["in_step"].to_numpy()]
        keys = {key: group[key][0] for key in by}
        rows.append(
            {**keys, "saves_ns": won.sum(), "saves_ns_per_step": in_steps.sum() / steps if steps else None}
        )
    schema: dict[str, Any] = {key: waits.schema[key] for key in by}
    return pl.DataFrame(rows, schema={**schema, "saves_ns": pl.Float64, "saves_ns_per_step": pl.Float64})


def saved(trace: Trace, waits: pl.DataFrame, by: Sequence[str], step: Kinds) -> pl.DataFrame:
    """Return the saving per step without the given waits, in the columns of :func:`bound`, from the replayed step.

    Beyond the :data:`MAX_REPLAYED` with the largest bound, the bound is used.
    """
    count = step.usual.graph.step_count
    found = bound(waits, by, count or None)
    key = "saves_ns_per_step" if count else "saves_ns"
    found = found.sort(key, descending=True, maintain_order=True)
    values = found[key].to_list()
    calls_of = waits.select(*by, "event", "begun_by")
    for index, row in enumerate(found.head(MAX_REPLAYED).iter_rows(named=True)):
        mine = calls_of.filter(pl.all_horizontal(pl.col(name) == row[name] for name in by))
        values[index] = step.likely_ns(without(trace, mine))
    return found.with_columns(pl.Series(key, values, dtype=pl.Float64))


def without(trace: Trace, waits: pl.DataFrame) -> Edit:
    """Return the edit in which the host does not wait, and the calls take no time."""
    rows = np.unique(np.concatenate((waits["begun_by"].to_numpy(), waits["event"].to_numpy())))
    tracks = trace.track_codes[rows].astype(np.int64)
    host = HostTime(tracks, trace.starts[rows], trace.ends[rows], np.zeros(len(rows)))
    return Edit(waits=rows, host=host)


def calls(trace: Trace, scope: Scope) -> pl.DataFrame:
    """Count the waiting calls by name, as in the trace."""
    rows, _ = _waits.calls_by_kind(trace)
    rows = rows[trace.in_window(scope.window)[rows]]
    begins = trace.starts[rows]
    seconds, firsts = xla_marks(trace)
    marked = member(rows, seconds)
    begins[marked] = trace.starts[firsts[np.searchsorted(seconds, rows[marked])]]
    each = (
        pl.DataFrame({"code": trace.name_codes[rows], "ns": trace.ends[rows] - begins})
        .group_by("code", maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            pl.col("ns").sum().alias("total_ns"),
            pl.col("ns").max().alias("longest_ns"),
        )
    )
    words = pl.Series([trace.names[code] for code in each["code"].to_list()], dtype=pl.String)
    return each.select(words.alias("call"), pl.exclude("code")).sort(
        "total_ns", "call", descending=[True, False]
    )


# -- source lines ----------------------------------------------------------------------------------------

#: The probe stamps a site when the warning reaches Python, which is after the operator returned. Profiler
#: clock and system clock are calibrated against each other to a few microseconds.
CLOCK_SLACK_NS = 5_000
#: Maximum delay of a warning in Python after its operator.
MAX_LAG_NS = 100_000_000
#: PyTorch's message when its sync warnings are enabled, which is not a wait.
NO_SITE = "Synchronization debug mode"


@dataclass(frozen=True, slots=True)
class Sites:
    """Source lines of waits."""

    of_wait: Ints  # For each wait the index into ``stacks``; -1 = none. Shape ``(k,)``.
    stacks: tuple[str, ...]  # distinct stacks: frames ``file:line function``, innermost first, one a line
    seen: int  # number of sites the probe recorded
    unjoined: int  # number of sites without a wait, excluding those of calls that may return immediately


def join(trace: Trace, rows: Ints, outer_rows: Ints) -> Sites:
    """Find the source line of each wait by thread and time.

    A site whose call's length is known has the waits inside that call, or the wait around it. Any other belongs to the
    last wait of its thread that ended before the site was stamped. All waits of the same outermost operator share the
    line, because one Python call made them; so do those of one call of a library's function, such as
    ``torch.cuda.empty_cache``, which frees several blocks.
    """
    of_wait = np.full(len(rows), -1, dtype=np.int32)
    sites, origin = trace.sync_sites, trace.info.origin_unix_ns
    if sites is not None:
        sites = sites.filter(~pl.col("what").str.starts_with(NO_SITE))
    if sites is None or not len(sites) or origin is None:
        seen = 0 if sites is None else len(sites)
        return Sites(of_wait, (), seen, seen)
    stamped = sites["unix_ns"].to_numpy().astype(np.int64) - origin
    lengths = sites["dur_ns"].fill_null(-1).to_numpy().astype(np.int64)
    threads = sites["tid"].to_numpy().astype(np.int64)
    frames = sites["frames"].to_list()
    thread_of_track = {track.index: _thread(track.tid) for track in trace.tracks if track.kind == "thread"}
    wait_thread = np.array(
        [thread_of_track.get(track, -1) for track in trace.track_codes[rows].tolist()], dtype=np.int64
    )
    call = np.where(outer_rows >= 0, outer_rows, _library_call(trace, rows))
    joined = 0
    site_of_wait = np.full(len(rows), -1, dtype=np.int64)
    for thread in np.unique(threads):
        mine = np.flatnonzero(wait_thread == thread)
        here = np.flatnonzero(threads == thread)
        here = here[np.argsort(stamped[here], kind="stable")]
        if not len(mine):
            continue
        timed = here[lengths[here] >= 0]
        if len(timed):
            inside = _call_of(trace, rows[mine], stamped[timed], lengths[timed])
            site_of_wait[mine[inside >= 0]] = timed[inside[inside >= 0]]
            joined += len(timed)  # a call that returned immediately is not a wait: none is missing
            here = here[lengths[here] < 0]
        mine = mine[np.argsort(trace.ends[rows[mine]], kind="stable")]
        at = np.searchsorted(trace.ends[rows[mine]], stamped[here] + CLOCK_SLACK_NS, side="right") - 1
        near = at >= 0
        near[near] = stamped[here[near]] - trace.ends[call[mine[at[near]]]] <= MAX_LAG_NS
        joined += int(near.sum())
        # The first site of an operator wins: later ones of the same call repeat it.
        for site, wait in zip(here[near][::-1].tolist(), mine[at[near]][::-1].tolist(), strict=True):
            site_of_wait[wait] = site
    # Share the line among the waits of one call.
    site_of_call = {int(call[wait]): int(site_of_wait[wait]) for wait in np.flatnonzero(site_of_wait >= 0)}
    stacks: dict[str, int] = {}
    for wait, row in enumerate(call.tolist()):
        site = site_of_call.get(row)
        if site is not None:
            stack = "\n".join(str(frame) for frame in frames[site] or ())
            of_wait[wait] = stacks.setdefault(stack, len(stacks))
    return Sites(of_wait, tuple(stacks), len(sites), len(sites) - joined)


def _call_of(trace: Trace, rows: Ints, stamped: Ints, lengths: Ints) -> Ints:
    """Return for each wait the index of the call around it, or else inside it; -1 = none."""
    begins, ends = trace.starts[rows], trace.ends[rows]
    began = stamped - lengths
    # The first call that does not end before the wait.
    after = np.searchsorted(stamped + CLOCK_SLACK_NS, ends)
    around, within = np.minimum(after, len(stamped) - 1), np.maximum(after - 1, 0)
    is_around = (after < len(stamped)) & (began[around] - CLOCK_SLACK_NS <= begins)
    is_within = (after > 0) & (began[within] + CLOCK_SLACK_NS >= begins)
    found: Ints = np.where(is_around, around, np.where(is_within, within, -1))
    return found


def _thread(tid: int | str) -> int:
    """Return a track's thread as a number; -2 (which no site has) if it is not one."""
    try:
        return int(tid)
    except ValueError:
        return -2


def _library_call(trace: Trace, rows: Ints) -> Ints:
    """Return the row of the library function that made each call directly; the call itself if none did."""
    parent = trace.nesting.parent[rows]
    frame = (parent >= 0) & trace.is_category("python_function")[np.maximum(parent, 0)]
    codes = trace.name_codes[np.maximum(parent, 0)]
    library = {int(code): not _frames.is_user(trace.names[code]) for code in np.unique(codes[frame])}
    of_library = np.array(
        [bool(f) and library[int(c)] for f, c in zip(frame, codes, strict=True)], dtype=bool
    )
    return np.where(of_library, parent, rows)


# -- cost to the device ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Emptied:
    """Effect of each of ``k`` waits on the device; arrays of shape ``(k,)``."""

    device: Ints  # device index; -1 = no device worked
    starts: Ints  # when the device became empty, ns
    ends: Ints  # end of that, ns; ``starts`` if it always had work
    waited_for: Ints  # row of the last device work that ended before the wait did; -1 = none
    delayed: Ints  # row of the first device work launched after the wait; -1 = none in this trace

    @property
    def ns(self) -> Ints:
        """Device-empty time of each wait, ns, shape ``(k,)``."""
        return self.ends - self.starts


def emptied(trace: Trace, tracks: Ints, copies: Ints, starts: Ints, ends: Ints) -> Emptied:
    """Compute the device-empty time of waits.

    For a wait of the host in ``[b, e)`` let *dry* be the end of all device work launched before ``e``, and ``f`` the
    start of the first device work launched after ``e``, by any thread. The device is empty from ``max(dry, b)`` to
    ``f``: it had nothing queued because the host was blocked, until the next launch arrived. By construction the
    device is idle on all streams between these two instants, so empty time is a part of device idle time. Two waits
    without a launch between them share it: every instant is charged once, to the wait that began last, so the figures
    of several waits can be added. Time before the first work of a device does not count, nor does a wait without a
    later launch.
    """
    k = len(starts)
    result = Emptied(*(np.full(k, -1, dtype=np.int64) for _ in range(5)))
    result.starts[:], result.ends[:] = starts, starts
    if not k or not len(trace.device_work):
        return result
    result.device[:] = _device_of(trace, tracks, copies, starts, ends)
    for one in distinct(result.device):
        mine = np.flatnonzero(result.device == one)
        _on_one_device(trace, result, mine, trace.work_of(int(one)), starts[mine], ends[mine])
    return result


def _on_one_device(trace: Trace, result: Emptied, mine: Ints, work: Ints, starts: Ints, ends: Ints) -> None:
    """Fill in the waits for one device; ``ends`` ascend."""
    launch = trace.links.launch_of[work]
    # Work without a launch in the trace counts as launched when it started, which can only shorten empty time.
    launched = np.where(launch >= 0, trace.starts[np.maximum(launch, 0)], trace.starts[work])
    order = np.argsort(launched, kind="stable")
    work, launched = work[order], launched[order]
    work_starts, work_ends = trace.starts[work], trace.ends[work]
    dry = np.maximum.accumulate(work_ends)
    # Position of the first start among everything launched from here on.
    reverse = work_starts[::-1]
    is_new_first = reverse <= np.minimum.accumulate(reverse)
    last_new = np.maximum.accumulate(np.where(is_new_first, np.arange(len(work)), 0))
    first_position = (len(work) - 1 - last_new)[::-1]

    split = np.searchsorted(launched, ends, side="left")
    has_before, has_after = split > 0, split < len(work)
    first = first_position[np.minimum(split, len(work) - 1)]
    result.delayed[mine] = np.where(has_after, work[first], -1)

    by_end = np.argsort(work_ends, kind="stable")
    ended = np.searchsorted(work_ends[by_end], ends, side="right")
    result.waited_for[mine] = np.where(ended > 0, work[by_end[np.maximum(ended - 1, 0)]], -1)

    begin = np.maximum(dry[np.maximum(split - 1, 0)], starts)
    until = np.where(has_before & has_after, work_starts[first], begin)
    until = np.maximum(until, begin)
    # Charge every instant once, to the wait that began last: a wait's time ends where the next one's begins. Waits of
    # other threads may have begun earlier.
    empty = np.flatnonzero(until > begin)
    empty = empty[np.argsort(begin[empty], kind="stable")]
    until[empty[:-1]] = np.minimum(until[empty[:-1]], begin[empty[1:]])
    result.starts[mine], result.ends[mine] = begin, until


def _device_of(trace: Trace, tracks: Ints, copies: Ints, starts: Ints, ends: Ints) -> Ints:
    """Return the device of each wait: that of its copy, else of its thread's last launch before it."""
    indices = trace.device_indices
    if len(indices) < 2:
        return np.full(len(starts), indices[0] if indices else -1, dtype=np.int64)
    links = trace.links
    work = trace.device_work[links.launch_of[trace.device_work] >= 0]
    calls, position = np.unique(links.launch_of[work], return_index=True)
    device_of_call = trace.ints("device", work[position])
    call_track, call_start = trace.track_codes[calls], trace.starts[calls]
    result = np.full(len(starts), indices[0], dtype=np.int64)
    for track in distinct(tracks):
        mine = np.flatnonzero(tracks == track)
        on_track = np.flatnonzero(call_track == track)
        if len(on_track):
            at = np.searchsorted(call_start[on_track], ends[mine], side="left") - 1
            result[mine] = device_of_call[on_track[np.maximum(at, 0)]]
    with_copy = copies >= 0
    result[with_copy] = trace.ints("device", copies[with_copy])
    return result


#: The host is ahead of the device again once a launch has returned this long before the device was free for its work.
LEAD_NS = 100_000


def refill(trace: Trace, empty: Emptied, starts: Ints, ends: Ints, reads: Mask) -> Ints:
    """Compute how long the device is idle after each wait, beyond empty time, until the host is ahead again.

    Before a wait the host runs ahead: launches are queued, and the device never runs dry between two kernels. After it
    the queue is empty, and every launch may be late until the host is ahead again. Refill is the device's idle time in
    gaps that a late launch ended (the call began after the device had run dry; a gap whose work had been submitted
    before is a hand-over and does not count), outside of all empty time, from the later of the wait's end and its
    emptied's end to the earliest of

    - the instant at which the device became free for the first work that had by then been launched for
      ``LEAD_NS``: the host is ahead again. Only the first work of each call counts;
    - the start of the next wait for that device.

    An XLA read launches its own copy, late if it has to allocate memory first: such gaps inside a read are its refill.

    These spans are disjoint, so every instant is charged to one wait at most, and empty time and refill together are a
    part of device idle time.
    """
    result = np.zeros(len(starts), dtype=np.int64)
    for device in trace.device_indices:
        mine = np.flatnonzero(empty.device == device)
        busy_starts, busy_ends = trace.busy(device)
        if not len(mine) or len(busy_starts) < 2:
            continue
        work = trace.work_of(device)
        late = _late_gaps(trace, work, busy_ends[:-1], busy_starts[1:])
        charged = union(empty.starts[mine], empty.ends[mine])
        late = intersection(*late, *complement(*charged, int(busy_starts[0]), int(busy_ends[-1])))
        begins = starts[mine]
        following = np.append(np.minimum.accumulate(begins[::-1])[::-1][1:], busy_ends[-1])
        recovered = _ahead_again(trace, work, ends[mine], int(busy_ends[-1]))
        since = np.maximum(ends[mine], empty.ends[mine])
        covered = Coverage(*late)
        result[mine] = covered.between(since, np.minimum(following, recovered))
        if reads[mine].any():
            before = np.append(begins[0], ends[mine][:-1])
            inside = covered.between(np.maximum(begins, before), ends[mine])
            result[mine] += np.where(reads[mine], inside, 0)
    return result


def _late_gaps(trace: Trace, work: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return those gaps whose first work was launched after the device had run dry."""
    launch = trace.links.launch_of[work[np.searchsorted(trace.starts[work], ends, side="left")]]
    late = (launch >= 0) & (trace.starts[np.maximum(launch, 0)] > starts)
    return starts[late], ends[late]


def _ahead_again(trace: Trace, work: Ints, instants: Ints, never: int) -> Ints:
    """Return when the host is ahead of the device again after each instant; ``never`` if it is not."""
    dry = np.maximum.accumulate(trace.ends[work])
    free = np.minimum(trace.starts[work], np.append(never, dry[:-1]))
    launch, first = np.unique(trace.links.launch_of[work], return_index=True)
    known = launch >= 0
    launch, free = launch[known], free[first[known]]
    ahead = np.flatnonzero(free - trace.ends[launch] >= LEAD_NS)
    # Rows ascend with start, so launches are in the order in which they were made.
    following = np.searchsorted(trace.starts[launch[ahead]], instants, side="left")
    return np.append(free[ahead], never)[following]
