"""Where steps begin and end, and the phases inside them: the only code that runs in every step.

Times are ``time.monotonic_ns``. What is found is appended as tuples to :attr:`Steps.out`; :mod:`.log` turns
them into lines in another thread. The first element of a tuple is its kind, one of the letters below.

What ends a step (the highest one seen so far decides; a switch is noted once):

======================  =================================================================================
``EXPLICIT``            ``tuiprof.step()``
``ANNOTATION``          the end of a ``jax.profiler.StepTraceAnnotation``
``SYNC``                ``torch_xla.sync()``; where an optimizer is used, the first one after its step
``OPTIMIZER``           the return of ``step()`` of the first optimizer seen (of several, e.g. in a GAN, the others
                        are phases; one that has not stepped for 32 steps of others hands over to them)
``BATCH``               asking a DataLoader for the next batch: inference loops. Counts from the third batch on
                        when there was no backward pass (so two sanity-check batches are not steps), from the
                        65th when there was one but no optimizer that calls torch's hooks
======================  =================================================================================

Parts of a step (see :mod:`.phases`) are taken on the thread that steps. Code that runs between two steps of a
model finds the caches cold and costs ten times what it does in a loop of its own, so as little as possible is
done here and the rest in the log's thread.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from time import monotonic_ns
from typing import Any, Callable

from .phases import BACKWARD as BACKWARD_PART
from .phases import DATA as DATA_PART
from .phases import OPTIMIZER as OPTIMIZER_PART
from .phases import Part

NONE, BATCH, OPTIMIZER, SYNC, ANNOTATION, EXPLICIT = range(6)
SOURCES = (
    "nothing",
    "batches of a DataLoader",
    "optimizer steps",
    "XLA steps",
    "JAX step annotations",
    "tuiprof.step()",
)

STEP, DEVICE, MEMORY, COST, CAPTURE, NOTE = "s", "d", "m", "c", "p", "n"

_QUIET_BATCHES = 2
_QUIET_BATCHES_WITH_BACKWARD = 64
_STEPS_OF_OTHERS = 32
_MOST_PHASES = 1000
_MOST_PARTS = 20_000
_get_ident = threading.get_ident


class Steps:
    """The steps of this process.

    Args:
        on_first: Called once, on the stepping thread, before the first step is recorded.

    Attributes:
        out: What happened, oldest first.
        parts: What has been timed in the running step, in order of the ends.
        n: Number of the step that is running, from 0.
        thread: The thread that steps.
        cost_ns: Time spent in ending steps so far, ns. Not in it: the parts (they carry their own cost), the
            calls themselves (about 0.1 µs each), the opening of the log at the end of the first step, and
            captures (their cost is in their own record).
        device: Records device events at step boundaries; None = no device.
        capture: Serves capture requests at step boundaries; None = nothing to do.
        source: What ends a step, one of the constants above.
        in_optimizer: An optimizer's step is running; what it calls belongs to it.
        stepped: An optimizer has stepped; the one who uses this sets it back.
        own_annotation: An annotation that ends now was made by the probe itself.
    """

    def __init__(self, on_first: Callable[[], None]) -> None:
        self.out: deque[tuple[Any, ...]] = deque()
        self.parts: list[Part] = []
        self.n = 0
        self.thread = threading.main_thread().ident
        self.cost_ns = 0
        self.device: Any = None
        self.capture: Any = None
        self.source = NONE
        self.stepped = False
        self.own_annotation = False
        self._on_first = on_first
        self._born = monotonic_ns()
        self._began = 0  # start of the running step; 0 = nothing seen yet
        self._backward_seen = False
        self._batches = 0  # before the first step, and since the last loader that ended without backward
        self._between_loaders = False
        self._optimizer: Any = None  # weak reference to the one whose steps count
        self.in_optimizer = False
        self._others = 0

    # -- the end of a step ----------------------------------------------------------------------------------

    def end(self, source: int, t: int, metrics: dict[str, Any] | None = None) -> None:
        """End the running step, unless something better than ``source`` tells where steps end.

        Args:
            source: What says so, one of the constants above.
            t: Now, monotonic ns.
            metrics: Numbers given by the script.
        """
        first = False
        if source != self.source:
            if source < self.source:
                return
            first = not self.source
            if self._switch(source, t, metrics):
                return
        n = self.n
        began = self._began
        capture = self.capture
        captured = capture is not None and capture.disturbing
        self.out.append((STEP, n, t, t - began, began, self.parts, metrics, captured))
        self.parts = []
        self.n = n + 1
        if self.device is not None:
            self.device.boundary(n)
        if capture is not None:
            capture.boundary(n + 1)
        if first or capture is not None:
            # Opening the log, and starting, stopping and writing a profile, belong to no step: the next one
            # begins after them. They are not a cost of each step either.
            self._began = monotonic_ns()
        else:
            self._began = t
            self.cost_ns += monotonic_ns() - t

    def _switch(self, source: int, t: int, metrics: dict[str, Any] | None) -> bool:
        """Let another source decide from now on.

        Returns:
            True when what ended is the tail of the step before (its optimizer ended it too early), which is
            now complete; False when a step has ended.
        """
        before, self.source = self.source, source
        if before == NONE:
            self.thread = _get_ident()
            if not self._began:
                self._began = self._born
            self._on_first()
            return False
        text = (
            f"steps are counted by {SOURCES[source]} from step {self.n} on, until then by {SOURCES[before]}"
        )
        self.out.append((NOTE, t, "info", text))
        if source < SYNC or before != OPTIMIZER or not self.n:
            return False
        if any(isinstance(part[0], int) for part in self.parts):  # a whole step has gone by
            return False
        held: list[tuple[Any, ...]] = []
        while self.out and len(held) < 3:
            try:
                held.append(self.out.pop())
            except IndexError:  # the log was faster
                break
        for index, item in enumerate(held):
            if item[0] == STEP and item[1] == self.n - 1:
                _, n, _, dur, began, parts, _, captured = item
                held[index] = (
                    STEP,
                    n,
                    t,
                    dur + t - self._began,
                    began,
                    parts + self.parts,
                    metrics,
                    captured,
                )
        self.out.extend(reversed(held))
        self.parts = []
        self._began = t
        return True

    @property
    def has_optimizer(self) -> bool:
        """Whether an optimizer has been seen."""
        return self._optimizer is not None

    def touch(self, t: int) -> None:
        """Note that something is seen before the first step, which starts at the earliest.

        Args:
            t: Now, monotonic ns.
        """
        if not self._began:
            self._began = t
        self.bound()

    def bound(self) -> None:
        """Forget the oldest parts of a step that does not end."""
        if len(self.parts) > _MOST_PARTS:
            del self.parts[: _MOST_PARTS // 2]

    # -- parts found by hooks -------------------------------------------------------------------------------

    def data_begins(self) -> None:
        """A batch is asked for, which ends a step where batches are the steps."""
        if _get_ident() != self.thread:
            return
        t = monotonic_ns()
        if not self.source:
            self.touch(t)
        elif self._between_loaders:
            self._between_loaders = False
            self._began = t
            self.parts = []
        else:
            self.end(BATCH, t)

    def data_ended(self, began: int, more: bool) -> None:
        """The batch has come.

        Args:
            began: When it was asked for, monotonic ns.
            more: False = there was none any more.
        """
        t = monotonic_ns()
        if _get_ident() != self.thread:
            return
        if self.source <= BATCH:
            self._count_batch(began, t, more)
        self.parts.append((DATA_PART, began, t, monotonic_ns()))

    def _count_batch(self, began: int, t: int, more: bool) -> None:
        """See whether the batches are the steps."""
        if not more:
            self._between_loaders = True
            if not self._backward_seen:
                self._batches = 0
        elif not self.source:
            self._batches += 1
            if self._batches > (_QUIET_BATCHES_WITH_BACKWARD if self._backward_seen else _QUIET_BATCHES):
                # This batch began step 0; the quiet ones before it are in no step.
                self._switch(BATCH, t, None)
                self._between_loaders = False
                self._began = began
                self.parts = []

    def backward_ended(self, began: int) -> None:
        """Backward has returned; on a device it has been launched.

        Args:
            began: When it was called, monotonic ns.
        """
        t = monotonic_ns()
        if _get_ident() != self.thread:
            return
        if not self.source:
            self._backward_seen = True
            self.touch(began)
        self.parts.append((BACKWARD_PART, began, t, monotonic_ns()))

    def optimizer_ended(self, optimizer: Any, began: int) -> None:
        """An optimizer's step has returned; the one whose steps count ends the step.

        Args:
            optimizer: The optimizer; not one that another one called.
            began: When it was called, monotonic ns.
        """
        t = monotonic_ns()
        self.in_optimizer = False
        chosen = self._optimizer
        if chosen is None:
            self._optimizer = weakref.ref(optimizer)
            self.touch(began)
        elif _get_ident() != self.thread:
            return
        elif chosen() is not optimizer:
            self._others += 1
            if chosen() is not None and self._others <= _STEPS_OF_OTHERS:
                self.parts.append((OPTIMIZER_PART, began, t, monotonic_ns()))
                return
            self._optimizer = weakref.ref(optimizer)
        self._others = 0
        self.stepped = True
        self.parts.append((OPTIMIZER_PART, began, t, t))
        if self.source <= OPTIMIZER:
            self.end(OPTIMIZER, t)


class Phase:
    """A part of a step that the script times itself; one object a name, used again and again.

    Args:
        steps: The steps of this process.
        name: The part's name.
    """

    __slots__ = ("_again", "_began", "_name", "_steps")

    def __init__(self, steps: Steps, name: str) -> None:
        self._steps = steps
        self._name = name
        self._began = 0
        self._again = 0  # times it was entered inside itself; the outermost is timed

    def __enter__(self) -> None:
        """Start the clock."""
        steps = self._steps
        if not steps.source:  # before the first step any thread may be the one that steps
            steps.touch(monotonic_ns())
        elif _get_ident() != steps.thread:
            return
        if self._began:
            self._again += 1
        else:
            self._began = monotonic_ns()

    def __exit__(self, kind: object = None, error: object = None, trace: object = None) -> None:
        """Stop it; an exception passes."""
        t = monotonic_ns()
        began = self._began
        steps = self._steps
        if not began or (_get_ident() != steps.thread and steps.source):
            return
        if self._again:
            self._again -= 1
            return
        self._began = 0
        steps.parts.append((self._name, began, t, monotonic_ns()))

    def forget(self) -> None:
        """Be outside again (in a child process that was forked inside)."""
        self._began = self._again = 0


class Phases(dict[str, Phase]):
    """The phases by name; asking for one makes it.

    Args:
        steps: The steps of this process.
    """

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self._steps = steps

    def __missing__(self, name: str) -> Phase:
        """Make a phase, and keep it unless the script seems to number its phases."""
        phase = Phase(self._steps, str(name))
        if len(self) < _MOST_PHASES:
            self[name] = phase
        return phase
