"""Which thread of a trace makes the steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tuiprof.analyses.shared.calls import calls
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.model.trace import cached_on_trace


@cached_on_trace
def main_thread(trace: Trace) -> int | None:
    """Return the track of the main thread: with the step markers, else with most launches or calls."""
    threads = np.array([track.kind == "thread" for track in trace.tracks] + [False])
    for rows in _of_main_thread(trace):
        tracks = trace.track_codes[rows]
        tracks = tracks[threads[tracks]]
        if len(tracks):
            return int(np.bincount(tracks).argmax())
    return None


def _of_main_thread(trace: Trace) -> Iterator[Ints]:
    """Yield rows most of which are probably the main thread's, the best sign first."""
    yield np.flatnonzero(trace.named(r"^ProfilerStep#\d+$") & trace.is_category("annotation", "cpu_op"))
    yield _forward_launches(trace)
    yield trace.links.launches
    # JAX step marks have arbitrary names. Waiting threads may have more calls than the main thread.
    yield np.flatnonzero(np.isin(trace.starts, trace.steps.starts) & trace.on_host)
    yield np.flatnonzero(trace.is_category("cpu_op", "python_function", "runtime", "driver"))


def _forward_launches(trace: Trace) -> Ints:
    """Return the launches that are probably the main thread's: of more than copies, and outside autograd nodes.

    The threads of those may launch as much as the main thread; JAX copies batches to the device in a thread of its own.
    """
    made, work = calls(trace), trace.device_work
    more = trace.links.launch_of[work[~trace.is_category("memcpy", "memset", rows=work)]]
    launches: Ints = trace.links.launches[np.isin(trace.links.launches, more)]
    inside = made.call_of_host_call[np.searchsorted(trace.host_calls, launches)]
    backward = np.append(made.backward, False)[inside]  # -1 (no call) reads the last entry
    forward: Ints = launches[~backward]
    return forward
