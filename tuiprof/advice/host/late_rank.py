"""Collectives wait for a rank that arrives late."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.collectives import host_peer_waits, own_rank, peer_waits
from tuiprof.analyses.shared.kernel_names import short_name
from tuiprof.analyses.shared.threads import main_thread
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints, complement, total, union
from tuiprof.model.units import format_ns
from tuiprof.whatif import Edit, HostTime

#: Minimum share of the captured time.
MIN_SHARE: Final = 0.1


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for waits in collectives that take a large part of the step."""
    by_host = host_peer_waits(trace)
    waits = by_host if len(by_host.rows) else peer_waits(trace)
    held = np.flatnonzero((waits.ns > 0) & trace.steps.have(waits.rows))
    rows, ns = waits.rows[held], waits.ns[held]
    low, high = trace.span
    starts, ends = union(trace.starts[rows], trace.starts[rows] + ns)
    edit = Edit(waits=rows)
    if waits is by_host:
        main = main_thread(trace)
        if main is None:
            return
        starts, ends = _idle(trace, main, starts, ends)
        edit = Edit(host=HostTime(np.full(len(starts), main), starts, ends, np.zeros(len(starts))))
    waited = total(starts, ends)
    if not len(held) or waited < MIN_SHARE * (high - low):
        return
    known = waits.last[held] >= 0
    ranks, of = np.unique(waits.last[held][known], return_inverse=True)
    rank = int(ranks[np.bincount(of, ns[known]).argmax()]) if len(ranks) else None
    longest = int(rows[ns.argmax()])
    late, own = "another rank" if rank is None else f"rank {rank}", own_rank(trace)
    each = f"{format_ns(waited / evidence.step_count)}{' a step' if evidence.stepped else ''}"
    yield Finding(
        f"{'this rank' if own is None else f'rank {own}'} waits for {late} in collectives, "
        f"{'at least ' if rank is None else ''}{each} while captured",
        evidence.function_of(longest) or short_name(trace.name(longest)),
        f"give all ranks equal work and equal input; {'the trace of the late rank' if rank is None else 'its trace'} "
        "shows what it does meanwhile (tuiprof report DIRECTORY ranks compares them)",
        "medium" if rank is None else "high",
        ("a message of that size is" if rank is None else "the same collectives are")
        + f" faster {'elsewhere in the trace' if rank is None else 'on the rank that arrives last'}; a profiler may "
        "delay one rank more than another",
        edit,
        Edit(),
        event=longest,
    )


def _idle(trace: Trace, thread: int, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return the parts of some stretches in which a thread runs no operator."""
    low, high = trace.span
    operators = np.flatnonzero(trace.is_category("cpu_op") & (trace.track_codes == thread))
    outside = complement(starts, ends, low, high)
    busy = union(
        np.concatenate((trace.starts[operators], outside[0])),
        np.concatenate((trace.ends[operators], outside[1])),
    )
    return complement(*busy, low, high)


RULE = AdviceRule("late-rank", find)
