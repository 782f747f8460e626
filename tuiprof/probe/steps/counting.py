"""Begin and end of steps: the only code that runs in every step.

Times are ``time.monotonic_ns``. Events are appended as small tuples to :attr:`Steps.marks`, from which
:mod:`..assembly` builds steps in the log's thread; everything else goes to :attr:`Steps.out`.

What ends a step is one of :mod:`.sources`. Each part of :class:`Steps` answers questions about one subject, and knows
nothing of :class:`Steps`.

Parts of a step are recorded by hooks that touch as few objects as possible (see :mod:`..assembly`): a clock, the deque,
and as little of this class as possible.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from time import monotonic_ns
from typing import Any, Callable

from ..assembly import BEGIN, END, SOURCE, Assembly, Mark
from ..assembly import DATA as DATA_PART
from ..assembly import OPTIMIZER as OPTIMIZER_PART
from ..events import DEVICE, NOTE, remove
from ..isolation import is_of_python
from ..sampler import script_line
from .followers import Followers
from .length import Length
from .optimizers import ENCLOSING, FOLLOWER, NEWLY_COUNTED, PART, Optimizers, nobody
from .put_off import NO_CALL, PutOff, merged, no_call
from .repeated import BackwardPasses, Batches, CountedLoop
from .sources import BACKWARDS, BATCH, CLOSED, GIVEN, JITTED, LOOP, NONE, OPTIMIZER, SOURCES

_SETTLED_AFTER = 3
_SETTLED_AFTER_WITH_OPTIMIZER = 256
_MAX_MARKS = 1 << 18  # a minute of 1 ms steps: how long the log's thread may be delayed
_CHECKED = 256  # batches or iterations from one check of their length to the next
_NEVER = 1 << 62
_get_ident = threading.get_ident


class Steps:
    """The steps of this process; ``marks`` is a deque to use again, as hooks hold its ``append``."""

    __slots__ = {
        "_backward_passes": "those on the thread that steps",
        "_batches": "those of DataLoaders, before they are the steps",
        "_device_due": "the next step whose end the device has to record",
        "_followers": "optimizer steps of the iteration after the counted one",
        "_length": "whether batches or iterations take long enough to be steps",
        "_missed": "steps that ended before they were detected, if ``source`` is found by repetition",
        "_on_first": "called on the stepping thread, before its first step is recorded",
        "_warned": "warnings that were recorded",
        "assembly": "builds steps from the marks",
        "at_next_end": "called once, at the end of the running step; None = no callback",
        "call": (
            "returns the id of the framework call that has called back into Python on this thread; :data:`NO_CALL` = "
            "none. While one runs, no step ends, see :mod:`.put_off`"
        ),
        "called": "the script has called a model since the last batch was requested",
        "capture": "serves capture requests at step boundaries; None = nothing to do",
        "ceiling": "higher sources do not end steps, because the user requested a lower one",
        "device": "records device events at step boundaries; None = no device",
        "due": "the next step whose end needs additional work",
        "floor": "lower sources do not end steps, because the user named a source",
        "has_jitted": "the script uses a framework whose jitted functions are counted",
        "has_modules": "the script uses ``torch.nn.Module``, whose calls set ``called``",
        "loop": "the loop whose iterations may be the steps",
        "marks": "timed parts, oldest first",
        "n": "number of the running step, from 0",
        "on_withdrawn": "called when the steps so far turn out to be none, on the thread that steps",
        "optimizer_due": "as ``due`` if there is one optimizer, whose step ends the step; 0 = it has to be checked",
        "optimizer_made": "the script has made an optimizer that calls torch's hooks",
        "optimizers": "which optimizer's step ends a step",
        "out": "other events, oldest first",
        "own_annotation": "an annotation that ends now was made by the probe itself",
        "put_off": "an end that is put off until a framework call returns; None = none",
        "range": "marks a phase in the trace being recorded; None = no recording",
        "source": "what ends a step, one of :mod:`.sources`",
        "thread": "the thread that makes the steps",
        "watch_backward": "backward passes may end steps",
    }

    def __init__(
        self, on_first: Callable[[], None], marks: deque[Mark] | None = None, several: bool = False
    ) -> None:
        self.marks: deque[Mark] = deque(maxlen=_MAX_MARKS) if marks is None else marks
        self.marks.clear()
        self.assembly = Assembly(monotonic_ns())
        self.out: deque[tuple[Any, ...]] = deque()
        self.n = 0
        self.due = self.optimizer_due = 0
        self.thread = threading.main_thread().ident
        self.device: Any = None
        self.capture: Any = None
        self.on_withdrawn: Callable[[], None] = lambda: None
        self.source = NONE
        self.call: Callable[[], int] = no_call
        self.at_next_end: Callable[[], None] | None = None
        self.put_off: PutOff | None = None
        self.own_annotation = False
        self.range: Any = None
        self._device_due = 0
        self._on_first = on_first
        self.watch_backward = True
        given = os.environ.get("TUIPROF_STEP_AT") or os.environ.get("TUIPROF_STEP_FUNCTION")
        self.floor = GIVEN if given else NONE
        self.ceiling = GIVEN
        self.has_jitted = self.has_modules = self.called = self.optimizer_made = False
        self.loop = CountedLoop()
        self._length = Length()
        self._missed = 0
        self._backward_passes = BackwardPasses()
        self._batches = Batches()
        self.optimizers = Optimizers(several, self._warn)
        self._followers = Followers()
        self._warned: set[str] = set()

    # -- the end of a step ----------------------------------------------------------------------------------

    def end(self, source: int, t: int, metrics: dict[str, Any] | None = None) -> None:
        """End the running step, unless a higher source than ``source`` is active."""
        if source < self.source:
            return
        call = self.call()
        if call != NO_CALL:
            self._put_off(call, source, t, metrics)
            return
        if self.put_off is not None:
            self._end_what_was_put_off()
        n = self.n
        if n < self.due and source == self.source:
            self.n = n + 1
            self.marks.append((END, n, t, metrics, False, monotonic_ns()))
        else:
            self._end(source, t, metrics)

    def _put_off(self, call: int, source: int, t: int, metrics: dict[str, Any] | None) -> None:
        """End the step when the call has returned; several ends in one call count once."""
        before = self.put_off
        if before is not None and before[0] == call:
            self.put_off = merged(before, source, t, metrics)
            return
        if before is not None:
            self._end_what_was_put_off()
        self.put_off = call, source, t, metrics

    def call_returned(self, t: int) -> None:
        """End the postponed step, if the returned call is the outermost one."""
        put_off = self.put_off  # read once: another thread may change what a step is
        if put_off is None or self.call() != NO_CALL:
            return
        if self.source and _get_ident() != self.thread:
            return
        _, source, _, metrics = put_off
        self.put_off = None
        self._end(source, t, metrics)

    def _end_what_was_put_off(self) -> None:
        """End a postponed step whose call was never seen to return, at the time when it was postponed."""
        waiting, self.put_off = self.put_off, None
        if waiting is not None:
            _, source, t, metrics = waiting
            self._end(source, t, metrics, noting_only=True)

    def _end(self, source: int, t: int, metrics: dict[str, Any] | None, noting_only: bool = False) -> None:
        """End the running step."""
        first = False
        if source != self.source:
            if source < self.source or not self.floor <= source <= self.ceiling:
                return  # another source has taken over in the meantime, or is pending
            first = not self.source
            if self._switch(source, t, metrics):
                return
        elif source <= LOOP and self._dropped(t):
            return
        n = self.n
        self.n = n + 1
        capture = self.capture
        captured = capture is not None and capture.disturbing
        self.marks.append((END, n, t, metrics, captured, monotonic_ns()))
        if noting_only:
            return
        if self.at_next_end is not None:
            call, self.at_next_end = self.at_next_end, None
            call()
            if self.n != n + 1:  # renumbered
                self._set_due(0)
                return
        if self.device is not None and n >= self._device_due:
            self._device_due = self.device.boundary(n)
        if capture is not None:
            capture.boundary(n + 1)
        if first or capture is not None:
            # Opening the log, and starting, stopping and writing a profile, belong to no step: the next one
            # begins after them. They are not a cost of each step either.
            self.marks.append((BEGIN, monotonic_ns()))
        self._set_due(self._device_due if self.device is not None else _NEVER)
        if self.capture is not None:  # including one just offered by another thread
            self._set_due(0)

    def _set_due(self, n: int) -> None:
        """Set the next steps to the fast path."""
        self.due = n if self.source > LOOP else min(n, self.n + _CHECKED)
        self.optimizer_due = n if self.source == OPTIMIZER and not self.optimizers.several else 0

    def attend(self, capture: Any) -> None:
        """Let the next step boundary serve a capture (from the log's thread)."""
        self.capture = capture
        self._set_due(0)

    def call_at_next_end(self, function: Callable[[], None]) -> None:
        """Call a function at the end of the running step."""
        self.at_next_end = function
        self._set_due(0)

    def time_on(self, device: Any) -> None:
        """Time the steps on a device as well, from the next boundary on."""
        self.device = device
        self._device_due = 0
        self._set_due(0)

    def silence(self) -> None:
        """Stop recording, as the log is closed."""
        self.source = CLOSED
        self.thread = None
        self._set_due(0)
        self.out = deque(maxlen=0)
        self.marks.clear()

    def _switch(self, source: int, t: int, metrics: dict[str, Any] | None) -> bool:
        """Switch to another source.

        Returns:
            True when what ended is the tail of the only step before (its optimizer ended it too early), which is
            now complete; False when a step has ended.
        """
        before = self.source
        # The script may train in another thread than that of an evaluation before.
        if before == NONE or (source == OPTIMIZER and self.thread != _get_ident()):
            self.thread = self.assembly.thread = _get_ident()
            self._on_first()  # may raise an exception of the script: then the next step is the first
        if self.source < source:  # not without a log
            self.source = source
            self._length.restart(self.n, t)
        self.watch_backward = self.source < OPTIMIZER
        self._set_due(0)
        withdrawn = 0
        if before != NONE:
            if before == OPTIMIZER and self.n == 1 and self.assembly.completes_last(self.marks, t, metrics):
                self._say_source(t, 0)
                return True
            withdrawn = self.n
            text = f"steps are now counted by {SOURCES[source]}"
            if withdrawn:
                text += f"; {withdrawn} counted by {SOURCES[before]} before are withdrawn"
                self._withdraw()
            self.out.append((NOTE, t, "info", text))
        self._say_source(t, withdrawn)
        return False

    def withdraw(self, source: int, t: int) -> None:
        """Count another loop or function from now on, from 0, if this source is still active."""
        if self.source == source:
            withdrawn = self.n
            self._withdraw()
            self._say_source(t, withdrawn)

    def _dropped(self, t: int) -> bool:
        """Count nothing until another source is found, if what was counted is too short for steps."""
        mean_ns, source = self._length.too_short_ns(self.n, t), self.source
        if mean_ns is None:
            return False
        where = f" at {os.path.basename(self.loop.at)}" if source == LOOP else ""
        text = (
            f"{SOURCES[source]}{where} take {mean_ns / 1e3:.2g} µs, too short for steps: they are not counted"
        )
        self.out.append((NOTE, t, "info", text))
        self.loop.is_too_short = source == LOOP
        self._batches.leave_out()
        self.drop(t)
        return True

    def drop(self, t: int) -> None:
        """Withdraw all steps, and count nothing until another source is found (on the thread that makes the steps)."""
        withdrawn = self.n
        self._withdraw()
        self.source = NONE
        self._set_due(0)
        self.marks.append((SOURCE, t, "", "", withdrawn, 0, 0))
        if self.capture is not None:
            self.capture.boundary(0)

    def change(self, source: int, t: int) -> None:
        """Count only this source, from 0 (on the thread that makes the steps, or while there is none)."""
        before, withdrawn = self.source, self.n
        if before == CLOSED:
            return
        self.floor = self.ceiling = source
        self.put_off = None
        self._withdraw()
        self.source = NONE
        self.watch_backward = source < OPTIMIZER
        self._set_due(0)
        self.marks.append((SOURCE, t, SOURCES[source], "", withdrawn, 0, 0))
        self.marks.append((BEGIN, t))
        text = f"as requested, steps are now counted by {SOURCES[source]}"
        text += f"; {withdrawn} counted by {SOURCES[before]} before are withdrawn" if withdrawn else ""
        self.out.append((NOTE, t, "info", text))

    def _say_source(self, t: int, withdrawn: int) -> None:
        """Record the source of steps from now on."""
        if self.source < CLOSED:
            by_loop = self.source == LOOP
            where = self.loop.at if by_loop else script_line(sys._getframe(1))
            missed = self._missed if BATCH <= self.source <= JITTED and not (by_loop or self.floor) else 0
            missed_ns = self.loop.missed_ns if by_loop else 0
            self.marks.append((SOURCE, t, SOURCES[self.source], where, withdrawn, missed, missed_ns))

    def _withdraw(self) -> None:
        """Count from 0 again: the counted events were not steps."""
        self.n = 0
        self._length.restart(0, monotonic_ns())
        self.on_withdrawn()
        if self.device is not None:
            self.device.drop_pending()
        remove(self.out, DEVICE)

    def settled(self, t: int) -> bool:
        """Whether the source of steps is settled, so that a capture can begin; asked at the end of each step."""
        if self.source >= OPTIMIZER:
            return True
        if self.loop.on_trial or (self.source <= LOOP and not self._length.seems_enough(self.n, t)):
            return False
        return self.n >= (_SETTLED_AFTER_WITH_OPTIMIZER if self.optimizer_made else _SETTLED_AFTER)

    @property
    def has_optimizer(self) -> bool:
        """Whether an optimizer has been seen."""
        return self.optimizers.counted is not nobody

    @property
    def optimizer(self) -> Any:
        """The optimizer whose steps count; None = there is none, or no longer."""
        return self.optimizers.counted()

    @property
    def torch_works(self) -> bool:
        """Whether the script computes with PyTorch, as opposed to only loading data with it."""
        return self.optimizer_made or self.has_modules or self._backward_passes.count > 0

    # -- parts found by hooks -------------------------------------------------------------------------------

    def data_begins(self) -> None:
        """A batch is requested, which ends a step if batches are the steps."""
        if not self.source or _get_ident() != self.thread:
            return
        t = monotonic_ns()
        if self._batches.ended:
            self._batches.ended = False
            self.marks.append((BEGIN, t))
        elif self.called or not self.has_modules:
            self.end(BATCH, t)

    def missed_until(self, count: int, t: int) -> None:
        """Note how many steps ended before they were detected, and when the last of them did."""
        self._missed = count
        if count and not self.floor:
            self.marks.append((BEGIN, t))

    def data_ended(self, began: int, t: int, more: bool) -> None:
        """Check whether the batches are the steps; ``more`` False = there is no further one."""
        if _get_ident() != self.thread:
            return
        in_a_row = self.has_modules and not self.called
        self.called = False
        batches = self._batches
        if not more:
            batches.loader_ended()
        elif (
            not self.source
            and self._batches_may_be_steps
            and not (in_a_row and batches.count)
            and batches.add()
        ):
            # This batch began step 0; the quiet ones before it are in no step.
            self._missed = batches.count - 1
            self._switch(BATCH, t, None)
            batches.ended = False
            self.marks.append((BEGIN, began))
            self.marks.append((DATA_PART, began, t, self.thread))

    @property
    def _batches_may_be_steps(self) -> bool:
        """Whether batches of a DataLoader can be steps without another source: on request, or in an inference loop."""
        return self.floor == BATCH or (not self.floor and not self._backward_passes.count)

    def backward_ended(self, t: int) -> None:
        """Check whether the backward passes are the steps."""
        if _get_ident() != self.thread or self.call() != NO_CALL:
            return
        passes = self._backward_passes
        if passes.add(self.optimizer_made) or BACKWARDS in (self.source, self.floor):
            if self.source < BACKWARDS:
                self.missed_until(passes.count - 1, passes.last_at)
            self.end(BACKWARDS, t)
        passes.last_at = t

    def optimizer_ended(self, optimizer: Any, began: int, t: int) -> None:
        """An optimizer's step, not called by another optimizer, has returned: it may end the step."""
        optimizers = self.optimizers
        counted = optimizers.counted
        thread: int | None = _get_ident()
        if thread != self.thread and self.call() != NO_CALL and not is_of_python(_get_ident()):
            thread = self.thread  # backward for a GPU runs its hooks on a thread of its own
        if counted is nobody:
            what = optimizers.first_stepped(optimizer)
        elif thread != self.thread:
            return
        elif self.source > OPTIMIZER:
            optimizers.stepped = True
            what = PART
        elif (put_off := self.put_off) is not None and put_off[0] == self.call():
            # Each parameter may have an optimizer, stepped by a hook of one backward pass, where the step ends.
            what = optimizers.part_stepped()
        elif counted() is optimizer:
            what = optimizers.counted_stepped(self.n, self._followers.count)
        else:
            capturing = self.capture is not None and self.capture.disturbing
            what = optimizers.other_stepped(
                optimizer, self.n, self.source == OPTIMIZER, capturing, self._followers.waiting_since
            )
            if what == ENCLOSING:
                self._count_from(t)
                return
        self.marks.append((OPTIMIZER_PART, began, t, thread))
        if what == FOLLOWER:
            if self._followers.add(t, self.call):
                self.end(OPTIMIZER, t)
        elif what != PART:
            if what == NEWLY_COUNTED:
                self._followers.forget_counts()
            if not optimizers.counting_anew:
                self._end_with_followers(t)
            elif ended := self._followers.last_at:  # the iteration before, in which this was detected
                self._count_from(ended, waiting_since=t)
            else:
                self._count_from(t)

    def _end_with_followers(self, t: int) -> None:
        """End a step now, or with the last optimizer step of this iteration, as far as it can be predicted."""
        followers = self._followers
        if followers.waiting_since:  # fewer have followed than were expected
            self.end_waiting()
        elif self.n == 1 and followers.last_at and self.source == OPTIMIZER:
            self.assembly.extend_last(self.marks, followers.last_at)
            if self.device is not None:
                self.device.drop_pending()
        if followers.begin(t, self.call(), self.source == OPTIMIZER):
            self.end(OPTIMIZER, t)

    def end_waiting(self) -> None:
        """End a step that waits for more optimizer steps, with the last one that it has had."""
        t = self._followers.stop_waiting()
        if t:
            self._end(OPTIMIZER, t, None, noting_only=True)

    def _count_from(self, t: int, waiting_since: int = 0) -> None:
        """Count optimizer steps from 0 from now on; the step that ends now began before it was detected."""
        withdrawn = self.n
        self.optimizers.counts_anew(withdrawn)
        self._withdraw()
        where = script_line(sys._getframe(1))
        self._followers.restart(waiting_since)
        self.marks.append((SOURCE, t, SOURCES[OPTIMIZER], where, withdrawn, 1, 0))
        self.marks.append((BEGIN, t))
        self._set_due(0)

    def several_optimizers(self) -> None:
        """Check from now on which optimizer has stepped."""
        self.optimizers.several = True
        self.optimizer_due = 0

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self.out.append((NOTE, monotonic_ns(), "warn", text))
