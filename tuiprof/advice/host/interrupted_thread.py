"""The thread that launches is interrupted: others run on its core, or the container's CPU limit is reached."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.frames import operator_label
from tuiprof.analyses.shared.stretches import MIN_NS, Stretches, long_stretches, recorded_ns
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.model.units import format_ns, plural
from tuiprof.whatif import Edit, HostTime

#: A stretch is an interruption if its kind comes this often, and usually takes at most this share of it.
MIN_TIMES, USUAL = 5, 0.05
#: Minimum number of interruptions, of different calls that are interrupted, and minimum share of the steps. What a
#: call itself does would show in this call alone.
MIN_COUNT, MIN_PLACES, MIN_SHARE = 8, 5, 0.03
#: Share of the interruptions that remains, where it helps least: without cores of its own, a thread shares them still.
_LEAST: Final = 0.5


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for calls of many kinds that sometimes take a hundred times as long as usual."""
    found = long_stretches(trace)
    lengths = found.ends - found.starts
    interrupted = (found.times >= MIN_TIMES) & ~found.first & (found.usual_ns <= USUAL * lengths)
    which = np.flatnonzero(interrupted & trace.steps.have(found.inside))
    rows, total = found.inside[which], float(lengths[which].sum())
    places = len(np.unique(trace.name_codes[rows]))
    too_few = len(rows) < MIN_COUNT or places < MIN_PLACES or total < MIN_SHARE * recorded_ns(trace)
    if too_few or evidence.is_jax:
        return
    longest = int(rows[np.argmax(lengths[which])])
    steps = f" in {plural(evidence.step_count, 'step')}" if evidence.stepped else ""
    yield Finding(
        f"the thread that launches is interrupted {len(rows)} times{steps}, for {format_ns(total)} in all: probably "
        "too few CPU cores for the processes and threads of this host",
        f"longest, {format_ns(float(lengths[which].max()))}, in {operator_label(trace.name(longest))}",
        "give each rank cores of its own: a higher CPU limit of the container, fewer loader workers and threads "
        "(OMP_NUM_THREADS), no other processes; taskset or numactl bind them",
        "medium",
        f"{places} different calls and operators that usually take microseconds sometimes take {format_ns(MIN_NS)} "
        "and more",
        _without(found, which, 0.0),
        _without(found, which, _LEAST),
        event=longest,
    )


def _without(found: Stretches, which: Ints, part: float) -> Edit:
    """Return the edit in which a share of the interruptions remains."""
    lengths = (found.ends - found.starts)[which]
    usual = found.usual_ns[which] / lengths
    keep = usual + part * (1 - usual)
    return Edit(host=HostTime(found.tracks[which], found.starts[which], found.ends[which], keep))


RULE = AdviceRule("interrupted-thread", find, shown_by="device_idle")
