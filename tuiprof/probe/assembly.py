"""Builds steps from the marks of hooks, in the log's thread."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from .marks import APART, BACKWARD, BEGIN, END, OF_NEXT_STEP, OPTIMIZER, SOURCE, STEPPED, Mark, Part

#: Maximum time of the probe's own work; longer means an interruption by another thread or process.
INTERRUPTED_NS = 20_000
_TAILS = 3
_NOTING_NS = 400  # maximum time of only recording a part
_MOST_PARTS = 20_000

# n, at, dur, began, parts, metrics, captured: number, end, length and begin (ns), …
Step = tuple[int, int, int, int, list[Part], Any, bool]


class Assembly:
    """Builds steps from marks.

    Args:
        born: Begin of the first step if only its end is seen, monotonic ns.

    Attributes:
        thread: The thread that makes the steps; parts of others are ignored. None = not known yet.
        steps: Complete steps not yet written.
        sources: Changes of the step source not yet written: the fields of the mark ``SOURCE``.
        ended: Number of steps that ended so far.
        cost_ns: What the hooks cost the stepping thread so far, ns. Measured is the tail of the hook that ends a
            step: from its last look at the clock for the script to the end of our own work. That is taken for
            each hook of the step, :data:`_TAILS` times, because a hook is also called and begins: the benchmark of
            the probe measures that from outside, and this figure is within a quarter of it. Not in it: looking
            at the metrics that the script gives, the opening of the log at the end of the first step, and captures
            (their cost is in their own record).
        cost_steps: Number of steps that this is the cost of: all but captured ones.
    """

    def __init__(self, born: int) -> None:
        self.thread: int | None = None
        self.steps: list[Step] = []
        self.sources: list[Mark] = []
        self.ended = 0
        self.cost_ns = self.cost_steps = 0
        self._lock = threading.Lock()
        self._born = born
        self._touched = 0
        self._began = 0  # 0 = no step ended or began yet
        self._parts: list[Part] = []
        self._by_optimizer = False  # the last end was that of an optimizer's step

    def touch(self, t: int) -> None:
        """Note an event before the first step, which starts here at the latest.

        Args:
            t: Now, monotonic ns.
        """
        if not self._touched:
            self._touched = t

    def take(self, marks: deque[Mark]) -> None:
        """Process only the marks present now: the script may be faster than this loop."""
        with self._lock:
            self._take(marks)

    def _take(self, marks: deque[Mark]) -> None:
        next_mark = marks.popleft
        for _ in range(len(marks)):
            mark = next_mark()
            kind = mark[0]
            if kind == STEPPED:
                _, began, t, n, done = mark
                self._parts.append((OPTIMIZER, began, t, self.thread))
                self._by_optimizer = True
                self._end(n, t, None, False, done)
            elif kind == END:
                _, n, t, metrics, captured, done = mark
                self._by_optimizer = bool(self._parts) and self._parts[-1][2] == t
                self._end(n, t, metrics, captured, done)
            elif kind == BEGIN:
                self._began = mark[1]
                self._parts = []
            elif kind == SOURCE:
                self.sources.append(mark[1:])
                if mark[4]:
                    self.steps = []
                    self.ended = self.cost_ns = self.cost_steps = 0
                    self._by_optimizer = False
            elif mark[3] != self.thread:
                continue
            elif self._by_optimizer and mark[1] < self._began and isinstance(kind, str):
                self._stretch(mark)
            else:
                self._parts.append(mark)

    def _end(self, n: int, t: int, metrics: Any, captured: bool, done: int) -> None:
        """Complete a step."""
        began = self._began
        if not began:
            self._parts = _of_training(self._parts)
            seen = [part[1] for part in self._parts]
            began = min([*seen, self._touched] if self._touched else seen or [self._born])
        self.steps.append((n, t, t - began, began, self._parts, metrics, captured))
        if not captured:
            others = len(self._parts) - self._by_optimizer
            tail_ns = min(done - t, INTERRUPTED_NS)
            # Additional work at the end of a step is not part of the cost of the other hooks.
            self.cost_ns += _TAILS * (tail_ns + others * min(tail_ns, _NOTING_NS))
            self.cost_steps += 1
        self._began = t
        self._parts = []
        self.ended = n + 1

    def _stretch(self, part: Part) -> None:
        """Extend the last step to the end of the script's phase in which its optimizer stepped.

        Not if the phase began in an earlier step: then it surrounds the whole loop.
        """
        if not self.steps or part[1] < self.steps[-1][3]:
            self._parts.append(part)
            return
        n, at, dur, began, parts, metrics, captured = self.steps[-1]
        name, entered, ended, thread = part
        longer = dur + ended - self._began
        ours = (
            self._began - at
        )  # opening the log, or a capture: in the phase, but neither its time nor the step's
        parts = [*parts, *self._parts, (name, entered, ended - ours, thread)]
        self.steps[-1] = n, ended, longer, began, parts, metrics, captured
        self._began = ended
        self._parts = []

    def completes_last(self, marks: deque[Mark], t: int, metrics: Any) -> bool:
        """Let the last step end now, unless a whole step has gone by since it ended (on the stepping thread).

        Returns:
            Whether the last step ends now; False = it was complete, and what ends now is another step.
        """
        with self._lock:
            self._take(marks)
            if any(part[0] in OF_NEXT_STEP for part in self._parts):
                return False
            if self.steps:
                n, _, dur, began, parts, _, captured = self.steps[-1]
                longer = dur + t - self._began
                self.steps[-1] = n, t, longer, began, parts + self._parts, metrics, captured
            self._parts = []
            self._began = t
            return True

    def complete(self, keep_last: bool) -> list[Step]:
        """Return the steps that are complete, each once.

        Args:
            keep_last: Keep the newest one back: what comes next may belong to it.
        """
        with self._lock:
            del self._parts[: -_MOST_PARTS // 2 if len(self._parts) > _MOST_PARTS else 0]
            count = len(self.steps) - keep_last
            found, self.steps = self.steps[:count], self.steps[count:]
            return found

    def after_last_step(self) -> tuple[int, list[Part]]:
        """Return when the last step ended, and the parts since then; none where no step has ended."""
        with self._lock:
            return self._began, list(self._parts) if self.ended else []


def _of_training(parts: list[Part]) -> list[Part]:
    """Return the parts of the first step, without evaluations or checkpoints before it."""
    first = ended = 0
    for index, (kind, began, t, _) in enumerate(parts):
        if began < ended:
            continue  # inside the evaluation or checkpoint
        if kind in (BACKWARD, OPTIMIZER):
            break
        if kind in APART:
            first, ended = index + 1, t
    return [part for part in parts[first:] if part[1] >= ended]
