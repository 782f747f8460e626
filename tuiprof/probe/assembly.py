"""Marks of the hooks, and how steps and their phases are built from them, in the log's thread.

Marks are small tuples, whose first element is their kind:

==========================================  ==========================================================================
``kind, began, ended, thread``              A part of a step: ``DATA``, ``BACKWARD``, ``OPTIMIZER``, ``FORWARD``,
                                            ``EVALUATION``, ``CHECKPOINT`` or the name the script gave, and the thread
                                            that it ran in; only parts in the thread that steps count
``STEPPED, began, ended, n, done``          The part ``OPTIMIZER``, with which step ``n`` ended; ``done`` = end of our
                                            own work
``END, n, at, metrics, captured, done``     Step ``n`` ended; numbers given by the script; it ran under a profiler
``COLLECTS, at, 0, thread``                 Python's garbage collector begins
``COLLECTED, at, 0, thread``                It ends
``BEGIN, at``                               The running step begins here; what began before is in no step
``SOURCE, at, what, where, withdrawn,       What ends a step from here on, and the script's line that does;
missed, missed_ns``                         ``withdrawn`` steps that ended before were none; ``missed`` that ended
                                            before were not known as such, nor how many did in ``missed_ns``
==========================================  ==========================================================================

All times are monotonic ns. A hook compares nothing and looks nothing up: between two operators of a model its
caches are cold, and each object it touches costs a tenth of a microsecond or more.

Phases: ``data`` is the time inside the DataLoader's ``next``, and while its workers are started; ``backward`` inside
``torch.autograd.backward``; ``optimizer`` inside ``optimizer.step``, after the last backward where a closure runs in it
once, and without the models and backward passes of closures where it runs again and again. ``forward`` is the time
inside the outermost call of a model, or, with Lightning, inside ``training_step``. A step in
which no model is seen, as its functions are the script's own, has as ``forward`` what lies between the end of the data
(or of the optimizer or backward before it, or the start of the step) and the start of backward, without the phases
that the script timed itself in between. Where the script times a phase ``forward`` itself, only that counts.
``evaluation`` is a model's call in evaluation mode without gradients; it is ``forward`` where batches are the steps,
as in inference, and all that a framework calls evaluation. ``checkpoint`` is ``torch.save``, and what a framework does
to write one. What is found inside these two is part of them. What is found inside a phase of the script belongs to that
phase alone; a phase of the script inside another one is not part of that one. Where hooks of backward let optimizers
step, that time is ``optimizer``, and ``backward`` the rest.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Optional, Union

from .garbage import COLLECTED, COLLECTS, Collected

DATA, BACKWARD, OPTIMIZER, FORWARD, EVALUATION, CHECKPOINT, STEPPED, END, BEGIN, SOURCE = range(10)
#: Parts that only a step which has begun can have.
OF_NEXT_STEP = (DATA, BACKWARD, OPTIMIZER, FORWARD)
#: Parts that a script has between steps, now and then.
APART = (EVALUATION, CHECKPOINT)

Mark = tuple[Any, ...]
Part = tuple[Union[int, str], int, int, Optional[int]]
# n, at, dur, began, parts, metrics, captured: number, end, length and begin (ns), …
Step = tuple[int, int, int, int, list[Part], Any, bool]

_OF_COLLECTIONS = (COLLECTS, COLLECTED)
#: Why a capture has failed if there was no step at all.
NO_STEPS = "no steps were detected in the script"

#: Maximum time of the probe's own work; longer means an interruption by another thread or process.
INTERRUPTED_NS = 20_000
_TAILS = 3
_NOTING_NS = 400  # maximum time of only recording a part
_MAX_PARTS = 20_000

_NAMES = ("data", "backward", "optimizer", "forward", "evaluation", "checkpoint")
_OF_CLOSURE = (FORWARD, BACKWARD)
_USUAL = (DATA, FORWARD, BACKWARD, OPTIMIZER)
_ORDER = ("data", "forward", "backward", "optimizer", "evaluation", "checkpoint")


class Assembly:
    """Builds steps from marks."""

    def __init__(self, born: int) -> None:
        self.thread: int | None = None  # makes the steps; parts of others are ignored. None = not known yet
        self.steps: list[Step] = []  # complete steps not yet written
        self.sources: list[Mark] = []  # changes of the step source not yet written: marks ``SOURCE``
        self.ended = 0  # number of steps that ended so far
        #: What the hooks cost the stepping thread so far, ns. Measured is the tail of the hook that ends a step: from
        #: its last look at the clock for the script to the end of our own work. That is taken for each hook of the
        #: step, :data:`_TAILS` times, because a hook is also called and begins: the benchmark of the probe measures
        #: that from outside, and this figure is within a quarter of it. Not in it: looking at the metrics that the
        #: script gives, the opening of the log at the end of the first step, and captures (they record their own).
        self.cost_ns = 0
        self.cost_steps = 0  # number of steps that this is the cost of: all but captured ones
        self.kinds: set[int] = set()  # parts found by hooks, on the thread that steps once that is known
        self.collected = Collected()
        #: Number and time of the collections of the steps in :attr:`steps`, by number of the step.
        self.collections: dict[int, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._born = born  # start of the first step if only its end is seen, monotonic ns
        self._touched = 0
        self._began = 0  # 0 = no step ended or began yet
        self._parts: list[Part] = []
        self._by_optimizer = False  # the last end was that of an optimizer's step

    def touch(self, t: int) -> None:
        """Note an event before the first step, which starts here at the latest."""
        if not self._touched:
            self._touched = t

    def take(self, marks: deque[Mark]) -> None:
        """Process only the marks present now: the script may be faster than this loop."""
        with self._lock:
            self._take(marks)
            del self._parts[: -_MAX_PARTS // 2 if len(self._parts) > _MAX_PARTS else 0]

    def keep_newest(self, marks: deque[Mark]) -> None:
        """Drop all but the newest marks: there may never be a step."""
        with self._lock:
            for _ in range(len(marks) - _MAX_PARTS):
                marks.popleft()

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
            elif kind in _OF_COLLECTIONS:
                self.collected.take(kind, mark[1], mark[3] == self.thread)
            elif kind == BEGIN:
                self._began = mark[1]
                self.collected.drop()
                self._parts = [part for part in self._parts if part[1] >= mark[1]]
            elif kind == SOURCE:
                self.sources.append(mark[1:])
                if mark[4]:
                    self.steps = []
                    self.collections = {}
                    self.collected.forget()
                    self.ended = self.cost_ns = self.cost_steps = 0
                    self._by_optimizer = False
            elif mark[3] != self.thread:
                if self.thread is None and isinstance(kind, int):
                    self.kinds.add(kind)
            elif self._by_optimizer and mark[1] < self._began and isinstance(kind, str):
                self._stretch(mark)
            else:
                self._parts.append(mark)
                if isinstance(kind, int):
                    self.kinds.add(kind)

    def _end(self, n: int, t: int, metrics: Any, captured: bool, done: int) -> None:
        began = self._began
        if not began:
            self._parts = _of_training(self._parts)
            seen = [part[1] for part in self._parts]
            began = min([*seen, self._touched] if self._touched else seen or [self._born])
        t, parts, later = self._until(t)
        self.steps.append((n, t, t - began, began, parts, metrics, captured))
        collections = self.collected.end_step(captured)
        if collections is not None:
            self.collections[n] = collections
        if not captured:
            others = len(parts) - self._by_optimizer
            tail_ns = min(done - t, INTERRUPTED_NS)
            # Additional work at the end of a step is not part of the cost of the other hooks.
            self.cost_ns += _TAILS * (tail_ns + others * min(tail_ns, _NOTING_NS))
            self.cost_steps += 1
        self._began = t
        self._parts = later
        self.ended = n + 1

    def _until(self, t: int) -> tuple[int, list[Part], list[Part]]:
        """Return when a step ended, its parts, and those after it.

        It ended at ``t``, which may be long past, or if that is inside a part, with that part.
        """
        parts = self._parts
        if not parts or parts[-1][2] <= t:  # nearly always
            return t, parts, []
        own = [part for part in parts if part[1] < t]
        at = max([t, *(part[2] for part in own if part[1] >= self._began)])
        return at, own, [part for part in parts if part[1] >= t]

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
        # Opening the log, or a capture: in the phase, but neither its time nor the step's.
        ours = self._began - at
        parts = [*parts, *self._parts, (name, entered, ended - ours, thread)]
        self.steps[-1] = n, ended, longer, began, parts, metrics, captured
        self._began = ended
        self._parts = []

    def completes_last(self, marks: deque[Mark], t: int, metrics: Any) -> bool:
        """Let the last step end now, unless a whole step has gone by since it ended (on the stepping thread).

        Returns False where it was complete, and what ends now is another step.
        """
        with self._lock:
            self._take(marks)
            if any(part[0] in OF_NEXT_STEP for part in self._parts):
                return False
            self._extend_last(t, metrics)
            return True

    def extend_last(self, marks: deque[Mark], t: int) -> None:
        """Let the last step end at this time, with what was done until then (on the stepping thread)."""
        with self._lock:
            self._take(marks)
            self._extend_last(t, None)

    def _extend_last(self, t: int, metrics: Any) -> None:
        t, more, self._parts = self._until(t)
        if self.steps:  # else it is written
            n, at, dur, began, parts, _, captured = self.steps[-1]
            ours = self._began - at  # opening the log, or a capture
            parts = [*parts, *((kind, low - ours, high - ours, thread) for kind, low, high, thread in more)]
            self.steps[-1] = n, t, dur + t - self._began, began, parts, metrics, captured
        self._began = t

    def complete(self, keep_last: bool) -> list[Step]:
        """Return the steps that are complete, each once; the newest may be kept back if what comes next may be its."""
        with self._lock:
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


def phases_of(start: int, parts: Sequence[Part]) -> dict[str, int]:
    """Return the time of each phase, ns."""
    if len(parts) == 4:
        first, second, third, fourth = parts
        usual = (first[0], second[0], third[0], fourth[0]) == _USUAL
        if usual and third[1] >= second[2] and fourth[1] >= third[2]:
            # Nearly every step of most scripts, in a fifth of the time.
            return {
                "data": first[2] - first[1],
                "forward": second[2] - second[1],
                "backward": third[2] - third[1],
                "optimizer": fourth[2] - fourth[1],
            }
    phases: dict[str, int] = {}
    found: list[tuple[int, int, int]] = []
    spans: list[tuple[int, int]] = []  # phases of the script, outermost only, in order of time
    for name, began, ended, _ in parts:
        if isinstance(name, int):
            while name in APART and found and found[-1][1] >= began:
                found.pop()  # its batches, and the files it consists of
            inside: list[tuple[int, int]] = []
            while name == BACKWARD and found and found[-1][0] != DATA and found[-1][1] >= began:
                # A backward pass inside is one that recomputes activations; an optimizer inside was called by a hook.
                inner, *span = found.pop()
                if inner == OPTIMIZER:
                    inside.append((span[0], span[1]))
            if inside:
                stepping = _covered(inside)
                phases["optimizer"] = phases.get("optimizer", 0) + stepping
                phases["backward"] = phases.get("backward", 0) - stepping
            found.append((name, began, ended))
            continue
        own = ended - began
        while spans and spans[-1][0] >= began:
            low, high = spans.pop()  # a phase inside, which has ended before
            own -= high - low
        phases[name] = phases.get(name, 0) + own
        spans.append((began, ended))
    if found:
        _add_found(phases, start, found, spans)
    ours = [name for name in _ORDER if name in phases]
    if len(ours) > 1:  # in the order in which they run, whatever was seen first
        return {name: phases[name] for name in (*ours, *(name for name in phases if name not in _ORDER))}
    return phases


def _covered(spans: list[tuple[int, int]]) -> int:
    """Return the time that at least one span covers: hooks may run on several threads at once."""
    covered = reached = 0
    for began, ended in sorted(spans):
        covered += max(0, ended - max(began, reached))
        reached = max(reached, ended)
    return covered


def _add_found(
    phases: dict[str, int], start: int, found: list[tuple[int, int, int]], spans: Sequence[tuple[int, int]]
) -> None:
    """Add the phases found by hooks, and ``forward``."""
    timed = "forward" in phases  # by the script itself
    # Neither begins nor ends of the spans decrease, and a step may have thousands of them.
    lows, highs = [low for low, _ in spans], [high for _, high in spans]
    sums = [0, *accumulate(high - low for low, high in spans)]

    def of_script(after: int, before: int) -> int:
        """Return the time of the script's phases that lie in here."""
        return max(0, sums[bisect_right(highs, before)] - sums[bisect_left(lows, after)])

    with_forward = not timed and all(kind != FORWARD for kind, _, _ in found)
    mark = start
    last_backward = 0
    for index, (kind, began, ended) in enumerate(found):
        around = bisect_right(lows, began) - 1
        if around >= 0 and ended <= highs[around]:
            continue
        if kind == BACKWARD:
            last_backward = ended
            if with_forward:
                phases["forward"] = phases.get("forward", 0) + began - mark - of_script(mark, began)
        elif kind == OPTIMIZER and last_backward > began:
            first = index
            while first and found[first - 1][2] >= began:  # they are in order of their ends
                first -= 1
            inside = [
                part
                for part in found[first:index]
                if part[1] >= began and part[2] < ended and part[0] in _OF_CLOSURE
            ]
            if not with_forward and sum(part[0] == BACKWARD for part in inside) > 1:
                began += sum(part[2] - part[1] for part in inside)  # evaluates its closure again and again
            else:
                began = last_backward
        elif kind == FORWARD:
            if timed:
                continue
            began += of_script(began, ended)
        name = _NAMES[kind]
        phases[name] = phases.get(name, 0) + ended - began
        mark = ended
