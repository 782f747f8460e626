"""A loop, or each step, appends to a tensor with `torch.cat`, which copies all of it each time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.carried import LONGER, carried, readers
from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.calls import Calls
from tuiprof.analyses.shared.frames import operator_label
from tuiprof.model import Trace
from tuiprof.model.intervals import Floats, Ints, distinct
from tuiprof.model.units import format_ns, format_share
from tuiprof.whatif import Edit, EditRange

_APPENDS: Final = r"^aten::(cat|concat|concatenate|vstack|hstack|dstack|row_stack|column_stack)$"
#: Minimum number of calls in a row, and how much longer the last quarter of them takes than the first.
MIN_TIMES, MIN_GROWTH = 12, 2.5
#: Tensors that one loop may append to: their calls take turns.
MAX_IN_TURN: Final = 4
#: Times are the median of so many calls, as single ones are interrupted.
_SMOOTH: Final = 5
#: A shorter time than this share of the one before is that of another, short tensor.
_RESTART: Final = 0.5
#: Minimum correlation of the ranks of the times with their number. Lists grow by one: the middle half takes as long as
#: first and last quarter on average, within this share. Levels of a network double in size.
MIN_CORRELATION, MAX_OFF = 0.9, 0.3
#: What follows within so many calls and takes longer and longer, too, reads all of the tensor, as a dense network does.
_NEXT: Final = 4
#: What writing one row into a tensor takes, ns: likely and most helpful. Where it helps least, this share of the copy
#: stays, as attention reads rows that are further apart.
_WRITE_NS, _LEAST_KEEP = (2_500, 1_500), 0.3


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for calls in a row that take longer and longer; those of one function are one finding."""
    yield from _each_step(trace, evidence)
    calls = evidence.calls
    times_ns = calls.took_ns
    places: dict[str, list[Ints]] = {}
    for run in _runs(calls, times_ns, evidence.stepped):
        places.setdefault(evidence.function_of(int(calls.rows[run[0]])), []).append(run)
    for where, runs in places.items():
        indices = np.concatenate(runs)
        part = evidence.share_of_time(calls.rows[indices])
        line = evidence.line_taking(part, "")
        typical = runs[len(runs) // 2]
        yield Finding(
            f"a loop appends with torch.cat, {len(typical)} times in a row, and each call copies everything appended "
            "so far",
            where or (line.where if line is not None else ""),
            "append to a list, and torch.stack or torch.cat it once after the loop; or write into a tensor of the "
            "final size",
            "high",
            f"{calls.names[typical[0]].removeprefix('aten::')} takes longer and longer",
            *_copied_once(calls, runs, times_ns),
            event=int(calls.rows[typical[-1]]),
        )


def _each_step(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for tensors that grow from step to step."""
    calls, found = evidence.calls, carried(trace)
    if not len(found):
        return
    work = np.flatnonzero(calls.launched_by(calls.mask(found)))
    rows = trace.device_work[work]
    took = np.maximum(trace.lengths(rows), 1)
    likely, most = (Edit(work=rows, keep=np.minimum(ns / took, 1.0)) for ns in _WRITE_NS)
    reads = operator_label(calls.names[int(readers(calls, found[:1])[0])])
    event = int(calls.rows[found[0]])
    per_step = len(found) / evidence.step_count
    yield Finding(
        f"{per_step:.0f} tensors of earlier steps, as keys and values are, grow by torch.cat, which copies all of each "
        f"in every step: {format_ns(took.sum() / evidence.step_count)} a step, "
        f"{format_share(evidence.share_of_device_time(rows))} of the device's time",
        evidence.function_of(event) or f"cat before {reads}",
        "allocate tensors of the final size once, write what is new into them (keys[:, :, position] = k), and read the "
        'part that is filled; in Transformers: cache_implementation="static"',
        "medium",
        f"the first of these copies takes at least {LONGER:g} times as long as anything before it in the step, so the "
        "step has not made what it copies; attention follows",
        likely,
        Edit(work=rows, keep=np.maximum(likely.keep, _LEAST_KEEP)),
        most,
        event=event,
    )


def _runs(calls: Calls, times_ns: Ints, stepped: bool) -> Iterator[Ints]:
    """Yield calls, as indices, of which each appends to the tensor of the one before."""
    appends = np.flatnonzero(calls.trace.named(_APPENDS, calls.rows) & ~calls.backward & (times_ns > 0))
    if stepped:
        appends = appends[calls.steps[appends] >= 0]
    of_step: dict[int, list[Ints]] = {}
    for track in distinct(calls.tracks[appends]).tolist():
        mine = appends[calls.tracks[appends] == track]
        for step in distinct(calls.steps[mine]).tolist():
            ours = mine[calls.steps[mine] == step]
            of_step.setdefault(len(ours), []).append(ours)
    for same in of_step.values():  # steps that append as often do the same
        every = np.array(same)
        for in_turn in range(1, MAX_IN_TURN + 1):
            turns = [every[:, first::in_turn] for first in range(in_turn)]
            found = [turn[:, start:end] for turn in turns for start, end in _growing(_usual(times_ns, turn))]
            found = [runs for runs in found if not _reads_all(calls, runs, times_ns)]
            if found:
                yield from (run for runs in found for run in runs)
                break


def _usual(times_ns: Ints, runs: Ints) -> Floats:
    """Return the median over the steps of the time of each call; of indices of shape ``(steps, calls)``."""
    usual: Floats = np.median(times_ns[runs], axis=0)
    return usual


def _growing(times_ns: Floats) -> Iterator[tuple[int, int]]:
    """Yield start and end of the parts in which the times grow."""
    if len(times_ns) < MIN_TIMES:
        return
    around = np.pad(times_ns, _SMOOTH // 2, mode="edge")
    smooth: Floats = np.median(np.lib.stride_tricks.sliding_window_view(around, _SMOOTH), axis=1)
    edges = np.flatnonzero(smooth[1:] < _RESTART * smooth[:-1]) + 1
    for start, end in zip([0, *edges.tolist()], [*edges.tolist(), len(smooth)], strict=True):
        part, quarter = smooth[start:end], (end - start) // 4
        if len(part) < MIN_TIMES:
            continue
        first, middle, last = (
            float(np.median(some)) for some in (part[:quarter], part[quarter:-quarter], part[-quarter:])
        )
        ranks = np.argsort(np.argsort(part, kind="stable"))
        if (
            last >= MIN_GROWTH * first > 0
            and abs(2 * middle / (first + last) - 1) <= MAX_OFF
            and np.corrcoef(ranks, np.arange(len(part)))[0, 1] >= MIN_CORRELATION
        ):
            yield start, end


def _reads_all(calls: Calls, runs: Ints, times_ns: Ints) -> bool:
    """Return whether what follows each of the calls takes longer and longer as well."""
    for offset in range(1, _NEXT + 1):
        after = np.minimum(runs + offset, len(calls.rows) - 1)
        appends = calls.trace.named(_APPENDS, calls.rows[after.ravel()]).any()
        if not appends and any(_growing(_usual(times_ns, after))):
            return True
    return False


def _copied_once(calls: Calls, runs: list[Ints], times_ns: Ints) -> EditRange:
    """Return the edit in which one call with all parts, as long as the last of each run, replaces the run.

    Where it helps least, each part is still copied by a call of its own.
    """
    which = calls.mask(*runs)
    one, parts, launches = (np.ones(len(times_ns)) for _ in range(3))
    for run in runs:
        total_ns = times_ns[run].sum()
        one[run] = times_ns[run[-1]] / total_ns
        parts[run] = max(len(run) * times_ns[run].min(), times_ns[run[-1]]) / total_ns
        launches[run] = 1 / len(run)
    on_device = calls.work_count > 0
    host, least = np.where(on_device, launches, one), np.where(on_device, 1.0, parts)
    work, least_work = np.append(one, 1.0)[calls.call_of_work], np.append(parts, 1.0)[calls.call_of_work]
    both = calls.with_backward(which)
    for edited in (host, least):
        edited[both & ~which] = 1 / np.mean([len(run) for run in runs])
    edit = calls.edit(both, host, work)
    return EditRange(edit, calls.edit(which, least, least_work), edit)


RULE = AdviceRule("growing-cat", find)
