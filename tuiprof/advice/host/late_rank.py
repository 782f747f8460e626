"""Collectives wait for a rank that arrives late."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.collectives import own_rank, peer_waits
from tuiprof.analyses.shared.kernel_names import short_name
from tuiprof.model import Trace
from tuiprof.model.intervals import total, union
from tuiprof.model.units import format_ns
from tuiprof.whatif import Edit

#: Minimum share of the captured time.
LEAST: Final = 0.1


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for waits in collectives that take a large part of the step."""
    waits = peer_waits(trace)
    inside = trace.steps.step_of[waits.rows] >= 0 if evidence.stepped else True
    held = np.flatnonzero((waits.ns > 0) & inside)
    rows, ns = waits.rows[held], waits.ns[held]
    waited = total(*union(trace.starts[rows], trace.starts[rows] + ns))
    low, high = trace.span
    if not len(held) or waited < LEAST * (high - low):
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
        Edit(waits=rows),
        Edit(),
        event=longest,
    )


RULE = AdviceRule("late-rank", find)
