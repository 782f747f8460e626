"""Python runs for a long time between two operators without a launch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import sqrt
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.large_copies import freed
from tuiprof.analyses.data_loading import fetches
from tuiprof.analyses.shared import frames as _frames
from tuiprof.analyses.shared import idle as _idle
from tuiprof.analyses.shared import waits as _waits
from tuiprof.analyses.shared.calls import BACKWARD
from tuiprof.analyses.shared.calls import calls as calls_of
from tuiprof.analyses.shared.collectives import rows_of
from tuiprof.analyses.shared.optimizers import updates
from tuiprof.analyses.shared.replay import probe_intervals, replayed
from tuiprof.analyses.shared.threads import main_thread
from tuiprof.model import Trace, Window
from tuiprof.model.intervals import Coverage, Floats, Ints, Mask, complement, union
from tuiprof.model.trace import cached_on_trace
from tuiprof.model.units import format_rough_share, plural
from tuiprof.whatif import Edit, HostTime

#: Minimum length of a stretch without operators and calls, ns, and minimum share of the step. Shorter ones are
#: framework overhead between two operators, such as calling backward() or starting the optimizer.
MIN_NS: Final = 500_000
MIN_SHARE: Final = 0.02
#: The same for a CPU without Python frames, where that takes less, if each captured step has the stretch.
MIN_NS_ON_CPU: Final = 200_000
MIN_SHARE_ON_CPU: Final = 0.04
#: What freeing a node of autograd's graph takes at most: with PyTorch 2.13 from 0.06 µs (of 500 nodes) to 0.6 µs (of
#: 10 000). A graph is freed after the update, when the function of the step returns, or before the backward pass, when
#: the loss gets its next value.
_FREE_NODE_NS: Final = 600
#: Minimum number of captured steps, as a single one may be an exception.
MIN_STEPS: Final = 2
#: On a CPU, such a stretch may contain short operators without a gradient (reading, copying, printing) if they take
#: at most this share of it.
SHORT_NS: Final = 50_000
MAX_INSIDE: Final = 0.25
#: The share of a stretch that counts as most of it.
_MAX_SHARE_OF_ONE: Final = 0.6
#: The text of the finding, by the activity that the sampler saw.
_WHAT: Final = {
    "": "Python runs between operators",
    "checkpoint": "a checkpoint is written",
    "prints a tensor": "tensors are formatted as text",
    "copies": "objects are deep-copied",
}
_WAITS: Final = "the training thread waits between operators"
_INSTEAD_OF_WAITING: Final = (
    "find what it waits for there (a sleep, a lock, the network, a file, another process); take it out of the step, "
    "or into another thread that is ahead"
)
_INSTEAD: Final = {
    "checkpoint": "write it every N steps, or from a copy of the weights in a thread",
    "prints a tensor": "print every N steps, and numbers rather than tensors",
    "copies": "copy only what you keep, when you keep it; copy weights into existing tensors "
    "(torch._foreach_copy_)",
}
#: Stretches in which the thread is on a core for at most this share of the time are waits: a sleep, a lock, the network
#: or a file. It is on a core there for no longer than in all of the step.
_MAX_ON_CORE: Final = 0.5
#: If this share of the stretches at a location contain garbage collections, their code makes the garbage: without it,
#: nothing is collected.
_MOSTLY: Final = 0.5
#: But not if collections take this share of the median stretch: then gc.collect() is called, which visits all objects.
_MAX_COLLECTING: Final = 0.5
#: Added to the evidence.
IN_MEAN: Final = "; the long collections of rare steps are averaged over all steps"
#: Maximum time from a wait to the Python that works on its result: an estimate of what converting it to a list or to
#: NumPy, and a few short operators, take while captured.
_NEAR_NS: Final = 300_000
#: The share that stays in the step if moving it helps least.
_MIN_KEPT: Final = 0.25


@dataclass(frozen=True)
class _Stretches:
    """Recurring stretches of the main thread outside operators, calls and data loading; arrays of shape ``(k,)``."""

    main: int
    recorded: Ints  # the outermost operators and calls of that thread
    starts: Ints
    ends: Ints
    collected: Ints  # how long each collects garbage that other code has made, ns
    places: dict[str, list[int]]  # the stretches at each location, as indices


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for long stretches of the main thread outside operators, calls and data loading."""
    found = _stretches(trace)
    if found is None or not found.places:
        return
    steps, places = trace.steps, found.places
    starts, ends, collected = found.starts, found.ends, found.collected
    low, high = int(steps.starts.min()), int(steps.ends.max())
    recurring = sorted(itertools.chain(*places.values()))
    part = float((ends - starts - collected)[recurring].sum()) / (high - low)
    line = evidence.line_taking(part, "", *_INSTEAD)
    if line is not None and not any(".py" in place for place in places):
        places = {line.where: recurring}
    else:
        line = None
    waits = _waited(trace, part) if line is None or not line.doing else ""
    collections = trace.host_events(_idle.GARBAGE)
    own = collections[own_collections(trace, collections)]
    for place, indices in places.items():
        at = np.array(indices)
        rare_ns = rare_collections_ns(trace, own[_begin_in(trace.starts[own], starts[at], ends[at])])
        count = len(at)
        host = HostTime(np.full(count, found.main), starts[at], ends[at], collected[at] / (ends - starts)[at])
        before = "" if ".py" in place else evidence.line_before(starts[at], _NEAR_NS)
        yield Finding(
            f"{_WAITS if waits else _WHAT.get(line.doing, _WHAT['']) if line else _WHAT['']} every step"
            + (", and nothing is launched meanwhile" if trace.device_indices else ""),
            f"after {before}, {place}" if before else place,
            (_INSTEAD_OF_WAITING if waits else _instead(trace, evidence, line.doing if line else ""))
            + ("" if ".py" in place else "; record with --stack to name it"),
            "high" if ".py" in place and line is None else "medium",
            f"{plural(count / len(steps), 'stretch')} a step without an operator or runtime call on "
            "the training thread"
            + (f"; {format_rough_share(line.share)} of the thread's samples hit this line" if line else "")
            + waits
            + (IN_MEAN if any(rare_ns) else ""),
            Edit(host=host),
            Edit(host=replace(host, keep=np.maximum(host.keep, _MIN_KEPT))),
            rare_ns=rare_ns,
            event=_next(trace, found.recorded, int(ends[at[0]])),
        )


def _waited(trace: Trace, part: float) -> str:
    """Return the evidence that the thread mostly waits in stretches that take a part of the step; empty = none."""
    share = trace.uncaptured.thread_share if trace.uncaptured is not None else None
    if share is None or share > _MAX_ON_CORE * part:
        return ""
    return f"; before the capture it was on a core for {format_rough_share(share)} of the time only"


def _instead(trace: Trace, evidence: Evidence, doing: str) -> str:
    """Return what to write instead of a stretch, in which the sampler saw an activity."""
    if doing:
        return _INSTEAD[doing]
    if evidence.is_jax:
        return (
            "move it out of the step: into a thread that prepares the next batch, or into the jitted function"
        )
    loads = evidence.calls.backward.any() or len(fetches(trace))
    return (
        "do once what is the same in every step; move the rest "
        f"{'to a loader worker' if loads else 'to another thread'}, or replace it with tensor operators"
    )


def own_collections(trace: Trace, rows: Ints) -> Mask:
    """Return which of some events begin in stretches of Python that make what is collected in them."""
    found = _stretches(trace)
    if found is None:
        return np.zeros(len(rows), dtype=bool)
    recurring = np.array(sorted(itertools.chain(*found.places.values())), dtype=np.int64)
    own = recurring[found.collected[recurring] == 0]
    result: Mask = trace.track_codes[rows] == found.main
    return result & _begin_in(trace.starts[rows], found.starts[own], found.ends[own])


def _begin_in(instants: Ints, starts: Ints, ends: Ints) -> Mask:
    """Return which instants lie in one of some disjoint intervals, which are in order."""
    result: Mask = instants < np.append(np.int64(-1), ends)[np.searchsorted(starts, instants, side="right")]
    return result


def rare_collections_ns(trace: Trace, rows: Ints) -> tuple[float, float, float]:
    """Return what collections take in rare steps, averaged over all steps: likely, at least and at most, ns.

    A collection that few captured steps have is no part of the replayed step. How often there is one, the long steps of
    the session show.
    """
    seen, step = trace.uncaptured, replayed(trace)
    if seen is None or isinstance(step, str) or not len(rows):
        return 0.0, 0.0, 0.0
    longest = 0.0
    for track, clock in zip(step.graph.tracks, step.graph.clocks, strict=True):
        mine = rows[trace.track_codes[rows] == track]
        longest = max(longest, float(clock.hiccups_in(trace.starts[mine], trace.ends[mine]).max(initial=0)))
    ns, count = seen.longer_ns(longest)
    uncertain = ns / sqrt(max(count, 1))
    return ns, ns - uncertain, ns + uncertain


@cached_on_trace
def _stretches(trace: Trace) -> _Stretches | None:
    """Return the recurring stretches that are long enough; None = there are none."""
    main = main_thread(trace)
    if main is None or len(trace.steps) < MIN_STEPS:
        return None
    steps = trace.steps
    low, high = int(steps.starts.min()), int(steps.ends.max())
    outer = trace.is_category("cpu_op", "runtime", "driver", "compile")
    recorded = np.flatnonzero(outer).astype(trace.nesting.parent.dtype)
    recorded = recorded[~trace.nesting.directly_in(outer, recorded)]  # covered by their parents
    mine = recorded[trace.track_codes[recorded] == main]
    loading, updating = fetches(trace), updates(trace)
    others = np.concatenate((loading, updating.rows))
    taken = np.concatenate((_dense(trace, mine, others, low, high), loading))
    (probe_starts, probe_ends), (_, free_starts, free_ends) = probe_intervals(trace), freed(trace)
    starts = np.concatenate((trace.starts[taken], updating.starts, probe_starts, free_starts))
    ends = np.concatenate((trace.ends[taken], updating.ends, probe_ends, free_ends))
    starts, ends = complement(*union(starts, ends), low, high)
    collected = Coverage(*trace.union(trace.host_events(_idle.GARBAGE))).between(starts, ends)
    frames = np.flatnonzero((trace.track_codes == main) & trace.is_category("python_function"))
    least_ns, usual_ns = _least_ns(trace, (high - low) / len(steps), frames)
    long = ends - starts - collected - _graph_ns(trace, mine, starts, ends) >= least_ns
    starts, ends, collected = starts[long], ends[long], collected[long]
    if not len(starts):
        return None
    alone = _elsewhere_ns(trace, main, recorded, starts, ends) < 0.2 * (ends - starts)
    starts, ends, collected = starts[alone], ends[alone], collected[alone]
    places: dict[str, list[int]] = {}
    for index, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        places.setdefault(_place(trace, frames, mine, start, end), []).append(index)
    places = {
        place: indices
        for place, indices in places.items()
        if len(indices) >= (0.75 if np.median((ends - starts)[indices]) >= usual_ns else 1) * len(steps)
    }
    for indices in places.values():
        often = np.mean(collected[indices] > 0) >= _MOSTLY
        if often and np.median(collected[indices] / (ends - starts)[indices]) < _MAX_COLLECTING:
            collected[indices] = 0
    return _Stretches(main, mine, starts, ends, collected, places)


def _least_ns(trace: Trace, step_ns: float, frames: Ints) -> tuple[float, float]:
    """Return the minimum length of a stretch that each captured step has, and of one that most have, ns."""
    usual = max(MIN_NS, MIN_SHARE * step_ns)
    if trace.device_indices or len(frames):
        return usual, usual
    median_ns = float(np.median(trace.steps.lengths))
    return min(usual, max(MIN_NS_ON_CPU, MIN_SHARE_ON_CPU * median_ns)), usual


def _graph_ns(trace: Trace, mine: Ints, starts: Ints, ends: Ints) -> Floats:
    """Return how long freeing the graph takes at most in each stretch between the main thread's operators (`mine`)."""
    calls = calls_of(trace)
    node = np.isin(mine, calls.rows[calls.backward])
    passed = np.append(node | updates(trace).hold(mine), False)
    begins = np.append(node, False)
    frees = passed[np.searchsorted(trace.ends[mine], starts, side="right") - 1]
    frees |= begins[np.searchsorted(trace.starts[mine], ends)]
    return np.where(frees, _FREE_NODE_NS * calls.backward.sum() / len(trace.steps), 0.0)


def _elsewhere_ns(trace: Trace, main: int, recorded: Ints, starts: Ints, ends: Ints) -> Ints:
    """Return for how long other threads work or wait for the device in each stretch: the main thread waits for them."""
    threads = np.concatenate((recorded, rows_of(trace)))
    threads = threads[(trace.track_codes[threads] != main) & trace.on_host[threads]]
    waits = _waits.find(trace, Window())
    others = trace.track_codes[waits.last] != main
    elsewhere = Coverage(
        *union(
            np.concatenate((trace.starts[threads], waits.starts[others])),
            np.concatenate((trace.ends[threads], waits.ends[others])),
        )
    ).between(starts, ends)
    return np.maximum(elsewhere, _backward_ns(trace, main, starts, ends))


def _backward_ns(trace: Trace, main: int, starts: Ints, ends: Ints) -> Ints:
    """Return for how long a backward pass goes on in each stretch on another thread, with the pauses between nodes."""
    nodes = np.flatnonzero(trace.named(f"^{BACKWARD}"))
    nodes = nodes[trace.track_codes[nodes] != main]
    first, after = (np.searchsorted(trace.starts[nodes], instants) for instants in (starts, ends))
    result = np.zeros(len(starts), dtype=np.int64)
    some = after > first
    result[some] = trace.ends[nodes[after[some] - 1]] - trace.starts[nodes[first[some]]]
    return result


def _dense(trace: Trace, mine: Ints, others: Ints, low: int, high: int) -> Ints:
    """Return the main thread's operators (`mine`), on a CPU without those far shorter than the Python between them."""
    if trace.device_indices:
        return mine
    calls = calls_of(trace)
    phases = np.flatnonzero(trace.named(r"^(forward$|Optimizer\.)") & trace.is_category("annotation"))
    covered = np.concatenate((phases, others))
    with_gradient = calls.rows[np.unique(np.append(calls.forward[calls.backward], -1))[1:]]
    short = trace.lengths(mine) < SHORT_NS
    short &= ~np.isin(mine, calls.rows[calls.backward]) & ~np.isin(mine, with_gradient)
    short &= Coverage(*trace.union(covered)).between(trace.starts[mine], trace.ends[mine]) == 0
    starts, ends = complement(*trace.union(np.concatenate((mine[~short], covered))), low, high)
    if not len(starts):
        return mine
    inside = Coverage(*trace.union(mine)).between(starts, ends)
    sparse = inside <= MAX_INSIDE * (ends - starts)
    at = np.searchsorted(starts, trace.starts[mine], side="right") - 1
    in_sparse = (at >= 0) & (trace.starts[mine] < ends[np.maximum(at, 0)]) & sparse[np.maximum(at, 0)]
    return mine[~(short & in_sparse)]


def _place(trace: Trace, frames: Ints, recorded: Ints, start: int, end: int) -> str:
    """Return the location of a stretch: the innermost user function with most of it, else the operator after it."""
    inside = np.minimum(trace.ends[frames], end) - np.maximum(trace.starts[frames], start)
    around = frames[inside > _MAX_SHARE_OF_ONE * (end - start)]
    jax = trace.info.framework.startswith("JAX")
    users = [row for row in around.tolist() if _frames.is_user(trace.name(row), jax)]
    if users:
        return _frames.function_label(trace.name(users[-1]), _frames.running_at_start(trace))
    # The operator after its longest part without operators.
    inside = recorded[(trace.ends[recorded] > start) & (trace.starts[recorded] < end)]
    until = np.append(trace.starts[inside], end)
    since = np.append(start, trace.ends[inside])
    following = _next(trace, recorded, int(until[np.argmax(until - since)]))
    return (
        f"before {_frames.operator_label(trace.name(following))}"
        if following is not None
        else "at the end of the step"
    )


def _next(trace: Trace, recorded: Ints, instant: int) -> int | None:
    at = int(np.searchsorted(trace.starts[recorded], instant, side="left"))
    return int(recorded[at]) if at < len(recorded) else None


RULE = AdviceRule("python-time", find, shown_by="steps")
