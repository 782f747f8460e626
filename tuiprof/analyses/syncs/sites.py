"""Joins waits with the source lines that the probe saw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from tuiprof.analyses.shared import frames as _frames
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints

#: The probe stamps a site when the warning reaches Python, which is after the operator returned. Profiler
#: clock and system clock are calibrated against each other to a few microseconds.
CLOCK_SLACK_NS = 5_000
#: A warning that reaches Python later than this after its operator is not believed to belong to it.
MAX_LAG_NS = 100_000_000
#: What PyTorch says when its sync warnings are switched on; no wait is meant.
NO_SITE = "Synchronization debug mode"


@dataclass(frozen=True, slots=True)
class Sites:
    """Source lines of waits.

    Attributes:
        of_wait: For each wait the index into ``stacks``; -1 = none. Shape ``(k,)``.
        stacks: Distinct stacks: frames ``file:line function``, innermost first, one a line.
        seen: Number of sites the probe recorded.
        unjoined: Number of sites that met no wait, those of calls that may return at once left out.
    """

    of_wait: Ints
    stacks: tuple[str, ...]
    seen: int
    unjoined: int


def join(trace: Trace, rows: Ints, outer_rows: Ints) -> Sites:
    """Find the source line of each wait by thread and time.

    A site whose call's length is known has the waits inside that call, or the wait around it. Any other belongs to the
    last wait of its thread that ended before the site was stamped. All waits of the same outermost operator share the
    line, because one Python call made them; so do those of one call of a library's function, such as
    ``torch.cuda.empty_cache``, which frees several blocks.

    Args:
        trace: The trace.
        rows: Rows of the calls that end the waits, shape ``(k,)``.
        outer_rows: Row of the outermost operator around each, -1 = none, shape ``(k,)``.
    """
    of_wait = np.full(len(rows), -1, dtype=np.int64)
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
            joined += len(timed)  # a call that returned at once is no wait: none is missing
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
    """Return for each wait the index of the call it lies in, or else that lies in it; -1 = there is none."""
    begins, ends = trace.starts[rows], trace.ends[rows]
    began = stamped - lengths
    after = np.searchsorted(
        stamped + CLOCK_SLACK_NS, ends
    )  # the first call that ends no sooner than the wait
    around, within = np.minimum(after, len(stamped) - 1), np.maximum(after - 1, 0)
    is_around = (after < len(stamped)) & (began[around] - CLOCK_SLACK_NS <= begins)
    is_within = (after > 0) & (began[within] + CLOCK_SLACK_NS >= begins)
    found: Ints = np.where(is_around, around, np.where(is_within, within, -1))
    return found


def _thread(tid: int | str) -> int:
    """Return a track's thread as a number; -2 (which no site has) where it is not one."""
    try:
        return int(tid)
    except ValueError:
        return -2


def _library_call(trace: Trace, rows: Ints) -> Ints:
    """Return the row of the library's function that made each call directly; the call itself if none did."""
    parent = trace.nesting.parent[rows]
    frame = (parent >= 0) & trace.is_category("python_function")[np.maximum(parent, 0)]
    codes = trace.name_codes[np.maximum(parent, 0)]
    library = {int(code): not _frames.is_user(trace.names[code]) for code in np.unique(codes[frame])}
    of_library = np.array(
        [bool(f) and library[int(c)] for f, c in zip(frame, codes, strict=True)], dtype=bool
    )
    return np.where(of_library, parent, rows)
