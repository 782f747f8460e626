"""The loader workers are restarted for each epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.model import Trace
from tuiprof.model.units import format_ns, plural
from tuiprof.whatif import Edit
from tuiprof.whatif.replay import NOISE_OF_WIN

#: An epoch also waits for its first batch. Persistent workers deliver it sooner than new ones, whose processes have
#: to start first; this share of the wait disappears: likely, least and most.
_OF_WAIT: Final = (0.5, 0.0, 1.0)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for workers that one loader started more than once in a session."""
    seen = trace.uncaptured.restarts if trace.uncaptured is not None else None
    if seen is None or not evidence.stepped:
        return
    every = max(round(seen.steps / seen.starts), 1)
    likely, least, most = ((seen.ns + part * seen.waited_ns) / seen.steps for part in _OF_WAIT)
    yield Finding(
        f"the loader starts its {seen.workers} workers again about every {every} steps, "
        f"which takes {format_ns(seen.ns / seen.starts)} each time",
        "",
        f"{evidence.write('persistent-workers', 'DataLoader(persistent_workers=True)')}, which keeps them from one "
        "epoch to the next",
        "high",
        f"{plural(seen.starts, 'restart')} of loader workers in {seen.steps} steps, timed "
        "by the session; the saving is averaged over all steps",
        Edit(),
        rare_ns=(likely, (1 - NOISE_OF_WIN) * least, (1 + NOISE_OF_WIN) * most),
    )


RULE = AdviceRule("loader-restarts", find, shown_by="data_loading")
