"""Matches begin and end events (B, E, and the asynchronous b, e) to spans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tuiprof.formats.kineto.reading.decode import Rare

Ints = npt.NDArray[np.int64]
_BEGIN = ord("B")


@dataclass(frozen=True, slots=True)
class Matched:
    """Spans made of pairs."""

    begins: Ints  # row of the begin event of each span, among all that were given
    ends_ns: Ints  # end of each span, ns
    unended: int  # how many begins had no end; they last to the end of the trace
    unbegun: int  # how many ends had no begin; they are dropped


def match(
    ts: Ints, phases: npt.NDArray[np.uint8], lanes: Sequence[int], names: Sequence[str], last_ns: int
) -> Matched:
    """Match begin and end events of each lane, like brackets; unclosed ones end at ``last_ns``.

    An end closes the innermost open begin of its lane, or an outer one with its name. File order decides between equal
    timestamps, except that an end waits for a begin of its name at the same instant (an empty range may be written end
    first).
    """
    order = np.argsort(ts, kind="stable").tolist()
    times, kinds = ts.tolist(), (phases == _BEGIN).tolist()
    open_: dict[int, list[int]] = defaultdict(list)
    waiting: dict[tuple[int, str, int], int] = defaultdict(int)
    begins: list[int] = []
    ends: list[int] = []
    unbegun = unended = 0
    soon = {(lanes[row], names[row], times[row]) for row in order if kinds[row]}
    for row in order:
        stack, name, at = open_[lanes[row]], names[row], times[row]
        if kinds[row]:
            key = (lanes[row], name, at)
            if waiting.get(key):
                waiting[key] -= 1
                begins.append(row)
                ends.append(at)
            else:
                stack.append(row)
            continue
        position = _position(stack, names, name)
        if position is None and (lanes[row], name, at) in soon:
            waiting[lanes[row], name, at] += 1
        elif stack:
            begins.append(stack.pop(-1 if position is None else position))
            ends.append(at)
        else:
            unbegun += 1
    unbegun += sum(waiting.values())
    for stack in open_.values():
        unended += len(stack)
        begins.extend(stack)
        ends.extend(max(last_ns, times[row]) for row in stack)
    return Matched(np.asarray(begins, dtype=np.int64), np.asarray(ends, dtype=np.int64), unended, unbegun)


@dataclass(frozen=True, slots=True)
class Async:
    """A span made of asynchronous begin and end events."""

    begin: Rare  # its begin event
    dur_ns: int  # its length, ns


def match_async(events: Sequence[Rare], last_ns: int) -> tuple[list[Async], int, int]:
    """Match asynchronous begin and end events (b, e) of the same process, category and id.

    Returns:
        The spans; how many begins had no end; how many ends had no begin, or events had no time.
    """
    both = [event for event in events if event.phase in ("b", "e")]
    timed = [(event, event.ts) for event in both if event.ts is not None]
    lanes: dict[tuple[object, str, str], int] = {}
    found = match(
        np.array([ts for _, ts in timed], dtype=np.int64),
        np.frombuffer("".join(e.phase for e, _ in timed).upper().encode(), dtype=np.uint8),
        [lanes.setdefault((e.pid, e.cat, e.id), len(lanes)) for e, _ in timed],
        [event.name for event, _ in timed],
        max([last_ns, *(ts for _, ts in timed)]),
    )
    spans = [
        Async(timed[row][0], end - timed[row][1])
        for row, end in zip(found.begins.tolist(), found.ends_ns.tolist(), strict=True)
    ]
    return spans, found.unended, found.unbegun + len(both) - len(timed)


def _position(stack: list[int], names: Sequence[str], name: str) -> int | None:
    """Return the position of the innermost open begin of a name; the last if the end has no name."""
    if not stack:
        return None
    if not name:
        return len(stack) - 1
    return next((i for i in range(len(stack) - 1, -1, -1) if names[stack[i]] == name), None)
