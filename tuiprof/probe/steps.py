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

Phases found by themselves, on the thread that steps: ``data`` is the time inside the DataLoader's ``next``;
``backward`` inside ``torch.autograd.backward``; ``optimizer`` inside ``optimizer.step`` (after the last
backward, when a closure runs in it); ``forward`` is what lies between the end of the data (or of the
optimizer or backward before it, or the start of the step) and the start of backward, without the phases that
the script timed itself in between. Inside a phase of the script nothing is found by itself.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from time import monotonic_ns
from typing import Any, Callable

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
_FOUND = {"data", "forward", "backward", "optimizer"}
_get_ident = threading.get_ident


class Steps:
    """The steps of this process.

    Args:
        on_first: Called once, on the stepping thread, before the first step is recorded.

    Attributes:
        out: What happened, oldest first.
        n: Number of the step that is running, from 0.
        thread: The thread that steps.
        cost_ns: Time spent here so far, ns. Not in it: the calls themselves (about 0.1 µs each), the opening
            of the log at the end of the first step, and captures (their cost is in their own record).
        device: Records device events at step boundaries; None = no device.
        capture: Serves capture requests at step boundaries; None = nothing to do.
    """

    def __init__(self, on_first: Callable[[], None]) -> None:
        self.out: deque[tuple[Any, ...]] = deque()
        self.n = 0
        self.thread = threading.main_thread().ident
        self.cost_ns = 0
        self.device: Any = None
        self.capture: Any = None
        self.source = NONE
        self.on_first = on_first
        self.born = monotonic_ns()
        self._began = 0  # start of the running step; 0 = nothing seen yet
        self._mark = 0  # end of the last phase found by itself, or of the step before
        self._ph: dict[str, int] = {}
        self._open = 0  # phases of the script that are open
        self._user_ns = 0  # time in phases of the script since the mark
        self._backward_end = 0
        self._batches = 0  # since the last step, or the last loader that ended without a backward pass
        self._between_loaders = False
        self.times_forward = False  # the script times its forward pass itself
        self._optimizer: Any = None  # weak reference to the one whose steps count
        self._in_optimizer = False
        self.own_annotation = False  # an annotation that ends now was made by the probe itself
        self.stepped = False  # an optimizer has stepped since the last step ended
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
                self.cost_ns += monotonic_ns() - t
                return
        n = self.n
        capture = self.capture
        if capture is not None:
            # Starting, stopping and writing a profile belongs to no step: the next one begins after it.
            self.out.append((STEP, n, t, t - self._began, self._ph, metrics, capture.disturbing))
            self._ph = {}
            self.n = n + 1
            if self.device is not None:
                self.device.boundary(n)
            capture.boundary(n + 1)
            self._user_ns = 0
            self._began = self._mark = monotonic_ns()
            return
        self.out.append((STEP, n, t, t - self._began, self._ph, metrics, False))
        self._ph = {}
        self.n = n + 1
        self._user_ns = 0
        if self.device is not None:
            self.device.boundary(n)
        if first:  # the log was opened, once: that is neither in the second step nor a cost of each step
            self._began = self._mark = monotonic_ns()
            return
        self._began = self._mark = t
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
                self._began = self.born
            self.on_first()
            return False
        text = (
            f"steps are counted by {SOURCES[source]} from step {self.n} on, until then by {SOURCES[before]}"
        )
        self.out.append((NOTE, t, "info", text))
        if source < SYNC or before != OPTIMIZER or not _FOUND.isdisjoint(self._ph) or not self.n:
            return False
        held: list[tuple[Any, ...]] = []
        while self.out and len(held) < 3:
            try:
                held.append(self.out.pop())
            except IndexError:  # the log was faster
                break
        for index, item in enumerate(held):
            if item[0] == STEP and item[1] == self.n - 1:
                phases = {**item[4], **self._ph}
                held[index] = (STEP, item[1], t, item[3] + t - self._began, phases, metrics, item[6])
        self.out.extend(reversed(held))
        self._ph = {}
        self._began = self._mark = t
        return True

    @property
    def has_optimizer(self) -> bool:
        """Whether an optimizer has been seen."""
        return self._optimizer is not None

    def touch(self, t: int) -> None:
        """Note the earliest thing seen: the first step starts there."""
        if not self._began:
            self._began = self._mark = t

    # -- phases found by themselves --------------------------------------------------------------------------

    def data_begins(self) -> int:
        """A batch is asked for.

        Returns:
            Now, to be given to :meth:`data_ended`; 0 = not ours to time.
        """
        if _get_ident() != self.thread:
            return 0
        t = monotonic_ns()
        if not self._began:
            self._began = self._mark = t
        if self.source == BATCH:
            if self._between_loaders:
                self._between_loaders = False
                self._began = self._mark = t
                self._ph = {}
            else:
                self.end(BATCH, t)
        now = monotonic_ns()
        self.cost_ns += now - t
        return now

    def data_ended(self, began: int, more: bool) -> None:
        """The batch has come.

        Args:
            began: What :meth:`data_begins` returned.
            more: False = there was none any more.
        """
        t = monotonic_ns()
        if self.source <= BATCH:
            if not more:
                self._between_loaders = True
                if not self._backward_end:
                    self._batches = 0
            elif self.source == NONE:
                self._batches += 1
                quiet = _QUIET_BATCHES_WITH_BACKWARD if self._backward_end else _QUIET_BATCHES
                if self._batches > quiet:
                    # This batch began step 0; the quiet ones before it are in no step.
                    self._switch(BATCH, t, None)
                    self._between_loaders = False
                    self._began = began
                    self._ph = {}
        self._mark = t
        self._user_ns = 0
        if not self._open:
            ph = self._ph
            ph["data"] = ph.get("data", 0) + t - began
        self.cost_ns += monotonic_ns() - t

    def backward_begins(self) -> int:
        """Backward begins, so forward has ended.

        Returns:
            Now, to be given to :meth:`backward_ended`; 0 = not ours to time.
        """
        if _get_ident() != self.thread:
            return 0
        t = monotonic_ns()
        if not self._began:
            self._began = self._mark = t
        if not self._open and not self.times_forward:
            ph = self._ph
            ph["forward"] = ph.get("forward", 0) + t - self._mark - self._user_ns
        now = monotonic_ns()
        self.cost_ns += now - t
        return now

    def backward_ended(self, began: int) -> None:
        """Backward has returned; on a device it has been launched."""
        t = monotonic_ns()
        self._mark = self._backward_end = t
        self._user_ns = 0
        if not self._open:
            ph = self._ph
            ph["backward"] = ph.get("backward", 0) + t - began
        self.cost_ns += monotonic_ns() - t

    def optimizer_begins(self, optimizer: Any) -> int:
        """An optimizer's step begins.

        Returns:
            Now, to be given to :meth:`optimizer_ended`; 0 = not ours to time (another thread, or an
            optimizer that another one calls).
        """
        t = monotonic_ns()
        if self._optimizer is None:
            self._optimizer = weakref.ref(optimizer)
        elif self._in_optimizer or _get_ident() != self.thread:
            return 0
        self._in_optimizer = True
        if not self._began:
            self._began = self._mark = t
        now = monotonic_ns()
        self.cost_ns += now - t
        return now

    def optimizer_failed(self) -> None:
        """An optimizer's step has raised: it ended no step."""
        self._in_optimizer = False

    def optimizer_ended(self, optimizer: Any, began: int) -> None:
        """An optimizer's step has returned; the one whose steps count ends the step."""
        t = monotonic_ns()
        self._in_optimizer = False
        self.stepped = True
        if not self._open:
            ph = self._ph
            ph["optimizer"] = ph.get("optimizer", 0) + t - max(began, self._backward_end)
        chosen = self._optimizer()
        if chosen is not optimizer:
            self._others += 1
            if chosen is not None and self._others <= _STEPS_OF_OTHERS:
                self._mark = t
                self._user_ns = 0
                self.cost_ns += monotonic_ns() - t
                return
            self._optimizer = weakref.ref(optimizer)
        self._others = 0
        self._mark = t
        self._user_ns = 0
        if self.source <= OPTIMIZER:
            self.end(OPTIMIZER, t)
        else:
            self.cost_ns += monotonic_ns() - t


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
            return
        steps._open += 1
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
        took = t - began
        name = self._name
        ph = steps._ph
        ph[name] = ph[name] + took if name in ph else took
        if steps._open > 1:
            steps._open -= 1
        else:
            steps._open = 0
            steps._user_ns += took
        # Entering does less than leaving; to read the clock there once more would double its cost.
        steps.cost_ns += 2 * (monotonic_ns() - t)

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
        if name == "forward":
            self._steps.times_forward = True
        if len(self) < _MOST_PHASES:
            self[name] = phase
        return phase
