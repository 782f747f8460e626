"""Figures of a trace worked out one event at a time, straight from their definitions: slow, and plain to see."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise

from tuiprof.model import Trace

WORK = ("kernel", "memcpy", "memset", "collective")
CALLS = ("runtime", "driver")
Span = tuple[int, int]


@dataclass(eq=False)
class Event:
    row: int
    start: int
    end: int
    name: str
    category: str
    track: int
    device: int | None
    correlation: int | None
    launch: Event | None = None
    parent: Event | None = None
    step: int = -1
    launched: list[Event] = field(default_factory=list)

    @property
    def submitted(self) -> int:
        return self.launch.start if self.launch else self.start

    def encloses(self, other: Event) -> bool:
        return self.track == other.track and self.start <= other.start and self.end >= other.end


def union(spans: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def length(spans: list[Span]) -> int:
    return sum(end - start for start, end in spans)


class ByDefinition:
    """The events of a trace, linked, nested and put into steps."""

    def __init__(self, trace: Trace) -> None:
        columns = ("ts", "dur", "name", "category", "track", "device", "correlation")
        self.events = [
            Event(row, ts, ts + dur, *rest)
            for row, (ts, dur, *rest) in enumerate(trace.events.select(columns).iter_rows())
        ]
        self.work = [event for event in self.events if event.category in WORK]
        self.devices = sorted({event.device for event in self.work if event.device is not None})
        self._link()
        self._nest()
        self._put_into_steps()

    def _link(self) -> None:
        calls = [event for event in self.events if event.category in CALLS and (event.correlation or 0) > 0]
        for work in self.work:
            work.launch = next((call for call in calls if call.correlation == work.correlation), None)
            if work.launch:
                work.launch.launched.append(work)
        self.launches = [call for call in calls if call.launched]

    def _nest(self) -> None:
        for row, event in enumerate(self.events):
            around = (other for other in reversed(self.events[:row]) if other.encloses(event))
            event.parent = next(around, None)

    def _put_into_steps(self) -> None:
        marks: dict[int, Span] = {}
        for event in self.events:
            match = re.fullmatch(r"ProfilerStep#(\d+)", event.name)
            if match and event.device is None:
                known = marks.get(int(match[1]), (0, -1))
                if event.end - event.start > known[1] - known[0]:
                    marks[int(match[1])] = (event.start, event.end)
        self.steps = sorted(marks.values(), key=lambda mark: (mark[0], -mark[1]))
        for event in self.events:
            if event.device is None:
                around = [i for i, (start, end) in enumerate(self.steps) if start <= event.start < end]
                event.step = around[-1] if around else -1
        for work in self.work:
            work.step = work.launch.step if work.launch else -1

    def on(self, device: int) -> list[Event]:
        return [work for work in self.work if work.device == device]

    def busy(self, device: int) -> list[Span]:
        return union([(work.start, work.end) for work in self.on(device)])

    def gaps(self, device: int) -> list[Span]:
        busy = self.busy(device)
        return [(before[1], after[0]) for before, after in pairwise(busy)]

    def latencies(self) -> list[int]:
        return [min(work.start for work in call.launched) - call.end for call in self.launches]

    def queue_depth(self, device: int) -> float:
        busy = self.busy(device)
        low, high = busy[0][0], busy[-1][1]
        queued = (
            min(max(work.end, work.submitted), high) - max(work.submitted, low) for work in self.on(device)
        )
        return sum(max(time, 0) for time in queued) / (high - low)

    def own_times(self) -> dict[int, int]:
        """Time of each operator without the operators directly inside it."""
        own = {event.row: event.end - event.start for event in self.events if event.category == "cpu_op"}
        for event in self.events:
            above = event.parent
            while above and above.category != "cpu_op":
                above = above.parent
            if event.category == "cpu_op" and above:
                own[above.row] -= event.end - event.start
        return {row: max(time, 0) for row, time in own.items()}

    def empty(self, waits: list[Span], device: int) -> list[Span]:
        """When each wait would leave empty the device by itself; empty where it does not."""
        spans = []
        for start, end in waits:
            before = [work.end for work in self.on(device) if work.submitted < end]
            after = [work.start for work in self.on(device) if work.submitted >= end]
            since = max(start, *before) if before else 0
            until = min(after) if before and after else 0
            spans.append((since, max(since, until)))
        return spans


def charge(spans: list[Span]) -> list[int]:
    """Charge every instant to the span that began last, of equal ones to the last."""
    charged = [0] * len(spans)
    edges = sorted({edge for span in spans for edge in span})
    for low, high in pairwise(edges):
        inside = [i for i, (start, end) in enumerate(spans) if start <= low and high <= end]
        if inside:
            charged[max(inside, key=lambda i: (spans[i][0], i))] += high - low
    return charged
