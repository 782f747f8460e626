"""Begin and end of steps: the only code that runs in every step.

Times are ``time.monotonic_ns``. Events are appended as small tuples to :attr:`Steps.marks`, from which
:mod:`..assembly` builds steps in the log's thread; everything else goes to :attr:`Steps.out`.

What ends a step is one of :mod:`.sources`.

Parts of a step are recorded by hooks that touch as few objects as possible (see :mod:`..assembly`): a clock, the deque,
and as little of this class as possible.
"""

from __future__ import annotations

import dis
import os
import sys
import threading
import weakref
from collections import deque
from contextlib import suppress
from functools import lru_cache
from time import monotonic_ns
from types import CodeType
from typing import Any, Callable

from ..assembly import BEGIN, END, SOURCE, Assembly, Mark
from ..assembly import DATA as DATA_PART
from ..assembly import OPTIMIZER as OPTIMIZER_PART
from ..events import DEVICE, NOTE
from ..isolation import is_of_python
from ..sampler import (
    AROUND,
    BESIDE,
    ELSEWHERE,
    TOGETHER,
    Site,
    in_one_loop,
    is_above,
    relation,
    script_line,
    script_sites,
)
from .periods import PeriodicCount
from .put_off import NO_CALL, no_call
from .sources import BACKWARDS, BATCH, CLOSED, GIVEN, JITTED, LOOP, NONE, OPTIMIZER, SOURCES

_QUIET_BATCHES = 2
_QUIET_BACKWARDS = 2
_QUIET_BACKWARDS_WITH_OPTIMIZER = 256
_SETTLED_AFTER = 3
_SETTLED_AFTER_WITH_OPTIMIZER = 256
_STEPS_OF_OTHERS = 32
_MAX_PARTS = 256  # steps of an optimizer that may turn out to be parts of a step
#: Steps of an optimizer in a loop adjacent to that of another one that may be parts of a step
_MAX_IN_TURN = 16
_MAX_MARKS = 1 << 18  # a minute of 1 ms steps: how long the log's thread may be delayed
#: Mean time of a batch or an iteration of a loop below which it is no step, and counting it would slow the script down,
#: ns. It is taken over this time, ns, or this many of them: a host that runs ahead of a device goes around faster at
#: first, for as long as its launches are queued.
_MIN_NS, _MEAN_OF_NS, _MEAN_OF = 100_000, 100_000_000, 4096
_SEEM_AFTER = 16  # if half of so many are that long, they may be captured before the mean is known
_CHECKED = 256  # steps from one check of that to the next
_NEVER = 1 << 62
_get_ident = threading.get_ident


def _nobody() -> None:
    """Replacement for the weak reference to an optimizer if there is none."""


class Steps:
    """The steps of this process; ``marks`` is a deque to use again, as hooks hold its ``append``."""

    __slots__ = {
        "_at_first_line": "only the steps of the optimizer at :attr:`_sites` count, not those further down in its loop",
        "_backward_at": "when the last backward pass ended",
        "_backwards": "number of backward passes",
        "_batches": "number before the first step, and since the last loader that ended without backward",
        "_between_loaders": "a loader has ended, and no batch was requested since",
        "_counted_in": "the framework call in which the counted optimizer stepped last",
        "_counting_anew": "count from 0 from the next step of the optimizer on",
        "_device_due": "the next step whose end the device has to record",
        "_followed": "optimizer steps since the counted one that belong to its iteration; -1 = there was none",
        "_followed_at": "when the last of them ended; 0 = there was none",
        "_followers": "how many of them there were in each iteration",
        "_in_turns": "only the first step of the optimizer after one of another optimizer counts",
        "_long_enough": "batches or iterations that are counted are known to be long enough for steps",
        "_longest_row": "the largest :attr:`_row` so far",
        "_looked": "the last step at whose end a capture was due, its time, how many in a row, and how many are long",
        "_most_of_others": "steps of other optimizers after which one of them takes over",
        "_new": "ids of the optimizers made since the counted one was chosen",
        "_on_first": "called on the stepping thread, before its first step is recorded",
        "_optimizer": "weak reference to the optimizer whose steps count",
        "_others": "steps of other optimizers since its last one",
        "_parts": "by id, other optimizers whose steps are parts of its steps: whether they step after it, and where",
        "_row": "consecutive steps of the counted optimizer",
        "_said": "warnings that were recorded",
        "_since": "the step, and the time, from which on their mean time is taken",
        "_sites": "where the counted optimizer stepped first",
        "_waiting_since": "when the counted optimizer stepped, if a later one ends the step; 0 = it has ended",
        "assembly": "builds steps from the marks",
        "at_next_end": "called once, at the end of the running step; None = no callback",
        "call": (
            "returns the id of the framework call that has called back into Python on this thread, such as a backward "
            "pass that runs a hook; :data:`NO_CALL` = none. While one runs, no step ends: a profiler that is started "
            "or stopped inside is undone when the call returns, and then takes the process down"
        ),
        "called": "the script has called a model since the last batch was requested",
        "capture": "serves capture requests at step boundaries; None = nothing to do",
        "ceiling": "higher sources do not end steps, because the user requested a lower one",
        "device": "records device events at step boundaries; None = no device",
        "due": "the next step whose end needs additional work",
        "floor": "lower sources do not end steps, because the user named a source",
        "has_jitted": "the script uses a framework whose jitted functions are counted",
        "has_modules": "the script uses ``torch.nn.Module``, whose calls set ``called``",
        "knows_several": "there are several optimizers",
        "loop_at": "the loop whose iterations may be the steps, ``file:line``",
        "loop_is_too_short": "the iterations of that loop turned out to be no steps; reset by the reader",
        "loop_missed_ns": "time of the script in that loop before its iterations were counted",
        "loop_on_trial": "the iterations of that loop may turn out to be parts of a step",
        "marks": "timed parts, oldest first",
        "missed": "steps that ended before they were detected, if ``source`` is found by repetition",
        "n": "number of the running step, from 0",
        "on_withdrawn": "called when the steps so far turn out to be none, on the thread that steps",
        "optimizer_due": "as ``due`` if there is one optimizer, whose step ends the step; 0 = it has to be checked",
        "optimizer_made": "the script has made an optimizer that calls torch's hooks",
        "out": "other events, oldest first",
        "own_annotation": "an annotation that ends now was made by the probe itself",
        "put_off": "a postponed end inside a framework call: that, and the arguments of :meth:`end`; None = none",
        "range": "marks a phase in the trace being recorded; None = no recording",
        "source": "what ends a step, one of the constants above",
        "stepped": "an optimizer has stepped; reset by the reader",
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
        self.stepped = False
        self.call: Callable[[], int] = no_call
        self.at_next_end: Callable[[], None] | None = None
        self.put_off: tuple[int, int, int, dict[str, Any] | None] | None = None
        self.own_annotation = False
        self.range: Any = None
        self._device_due = 0
        self._on_first = on_first
        self.watch_backward = True
        given = os.environ.get("TUIPROF_STEP_AT") or os.environ.get("TUIPROF_STEP_FUNCTION")
        self.floor = GIVEN if given else NONE
        self.ceiling = GIVEN
        self.has_jitted = self.has_modules = self.called = self.optimizer_made = False
        self.loop_at = ""
        self.loop_missed_ns = 0
        self.loop_on_trial = self.loop_is_too_short = False
        self._since, self._long_enough = (0, 0), False
        self._looked = 0, 0, 0, 0
        self.missed = 0
        self._backwards = self._backward_at = 0
        self._batches = 0
        self._between_loaders = False
        self._optimizer: Callable[[], Any] = _nobody
        self._others = 0
        self._most_of_others = _STEPS_OF_OTHERS
        self._row = self._longest_row = 0
        self._sites: list[Site] = []
        self._parts: dict[int, tuple[bool, list[Site]]] = {}
        self._new: set[int] = set()
        self._in_turns = self._at_first_line = False
        self._followers = PeriodicCount()
        self._followed = -1
        self._followed_at = self._waiting_since = 0
        self._counted_in = NO_CALL
        self._counting_anew = False
        self._said: set[str] = set()
        self.knows_several = several

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
            metrics = {**before[3], **metrics} if before[3] and metrics else metrics or before[3]
            source = max(source, before[1])
        elif before is not None:
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
        self.optimizer_due = n if self.source == OPTIMIZER and not self.knows_several else 0

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
            self._since, self._long_enough = (self.n, t), False
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
        (began, began_at), source = self._since, self.source
        count, ns = self.n - began, t - began_at
        if 0 <= count < _MEAN_OF and ns < _MEAN_OF_NS:
            return False
        self._since = self.n, t
        if count <= 0 or ns >= count * _MIN_NS:
            self._long_enough = count > 0
            return False
        where = f" at {os.path.basename(self.loop_at)}" if source == LOOP else ""
        text = f"{SOURCES[source]}{where} take {ns / count / 1e3:.2g} µs, too short for steps: they are not counted"
        self.out.append((NOTE, t, "info", text))
        self.loop_is_too_short = source == LOOP
        self._batches = -_NEVER  # until the loader ends
        withdrawn = self.n
        self._withdraw()
        self.source = NONE
        self._set_due(0)
        self.marks.append((SOURCE, t, "", "", withdrawn, 0, 0))
        if self.capture is not None:
            self.capture.boundary(0)
        return True

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
            where = self.loop_at if by_loop else script_line(sys._getframe(1))
            missed = self.missed if BATCH <= self.source <= JITTED and not (by_loop or self.floor) else 0
            missed_ns = self.loop_missed_ns if by_loop else 0
            self.marks.append((SOURCE, t, SOURCES[self.source], where, withdrawn, missed, missed_ns))

    def _withdraw(self) -> None:
        """Count from 0 again: the counted events were not steps."""
        self.n = 0
        self._since, self._long_enough = (0, monotonic_ns()), False
        self.on_withdrawn()
        if self.device is not None:
            self.device.drop_pending()
        for item in [item for item in list(self.out) if item[0] == DEVICE]:
            with suppress(ValueError):  # already written
                self.out.remove(item)

    def settled(self, t: int) -> bool:
        """Whether the source of steps is settled, so that a capture can begin; asked at the end of each step."""
        if self.source >= OPTIMIZER:
            return True
        if self.loop_on_trial or (self.source <= LOOP and not self._seem_long_enough(t)):
            return False
        return self.n >= (_SETTLED_AFTER_WITH_OPTIMIZER if self.optimizer_made else _SETTLED_AFTER)

    def _seem_long_enough(self, t: int) -> bool:
        """Whether half of the batches or iterations so far take as long as steps; interruptions lengthen some."""
        last, at, count, long = self._looked
        if self.n == last + 1:
            count, long = count + 1, long + (t - at >= _MIN_NS)
        else:
            count = long = 0
        self._looked = self.n, t, count, long
        return self._long_enough or (count >= _SEEM_AFTER and 2 * long >= count)

    @property
    def has_optimizer(self) -> bool:
        """Whether an optimizer has been seen."""
        return self._optimizer is not _nobody

    @property
    def optimizer(self) -> Any:
        """The optimizer whose steps count; None = there is none, or no longer."""
        return self._optimizer()

    @property
    def torch_works(self) -> bool:
        """Whether the script computes with PyTorch, as opposed to only loading data with it."""
        return self.optimizer_made or self.has_modules or self._backwards > 0

    # -- parts found by hooks -------------------------------------------------------------------------------

    def data_begins(self) -> None:
        """A batch is requested, which ends a step if batches are the steps."""
        if not self.source or _get_ident() != self.thread:
            return
        t = monotonic_ns()
        if self._between_loaders:
            self._between_loaders = False
            self.marks.append((BEGIN, t))
        elif self.called or not self.has_modules:
            self.end(BATCH, t)

    def missed_until(self, count: int, t: int) -> None:
        """Note how many steps ended before they were detected, and when the last of them did."""
        self.missed = count
        if count and not self.floor:
            self.marks.append((BEGIN, t))

    def data_ended(self, began: int, t: int, more: bool) -> None:
        """Check whether the batches are the steps; ``more`` False = there is no further one."""
        if _get_ident() != self.thread:
            return
        in_a_row = self.has_modules and not self.called
        self.called = False
        if not more:
            self._between_loaders = True
            self._batches = 0
        elif not self.source and self._batches_may_be_steps and not (in_a_row and self._batches):
            self._batches += 1
            if self._batches > _QUIET_BATCHES:
                # This batch began step 0; the quiet ones before it are in no step.
                self.missed = self._batches - 1
                self._switch(BATCH, t, None)
                self._between_loaders = False
                self.marks.append((BEGIN, began))
                self.marks.append((DATA_PART, began, t, self.thread))

    @property
    def _batches_may_be_steps(self) -> bool:
        """Whether batches of a DataLoader can be steps without another source: on request, or in an inference loop."""
        return self.floor == BATCH or (not self.floor and not self._backwards)

    def backward_ended(self, t: int) -> None:
        """Check whether the backward passes are the steps."""
        if _get_ident() != self.thread or self.call() != NO_CALL:
            return
        self._backwards += 1
        quiet = _QUIET_BACKWARDS_WITH_OPTIMIZER if self.optimizer_made else _QUIET_BACKWARDS
        if BACKWARDS in (self.source, self.floor) or self._backwards > quiet:
            if self.source < BACKWARDS:
                self.missed_until(self._backwards - 1, self._backward_at)
            self.end(BACKWARDS, t)
        self._backward_at = t

    def optimizer_ended(self, optimizer: Any, began: int, t: int) -> None:
        """An optimizer's step, not called by another optimizer, has returned: it may end the step."""
        chosen = self._optimizer
        thread: int | None = _get_ident()
        if thread != self.thread and self.call() != NO_CALL and not is_of_python(_get_ident()):
            thread = self.thread  # backward for a GPU runs its hooks on a thread of its own
        if chosen is _nobody:
            self._choose(optimizer, script_sites(sys._getframe(1)))
        elif thread != self.thread:
            return
        elif self.source > OPTIMIZER:
            self.stepped = True
            self.marks.append((OPTIMIZER_PART, began, t, thread))
            return
        elif (put_off := self.put_off) is not None and put_off[0] == self.call():
            # Each parameter may have an optimizer, stepped by a hook of one backward pass, where the step ends.
            self._others += 1
            self._row = 0
            self.marks.append((OPTIMIZER_PART, began, t, thread))
            return
        elif chosen() is not optimizer:
            sites: list[Site] = []
            part = self._parts.get(id(optimizer))
            if part is None:
                sites = script_sites(sys._getframe(1))
                if self._replaces(optimizer, sites):
                    self._optimizer = weakref.ref(optimizer)
                    self._new.clear()
                elif self._takes_over(optimizer, sites):
                    self._choose(optimizer, sites)
                    if self._counting_anew:
                        self._count_from(t)
                        return
                part = self._parts.get(id(optimizer))
            elif self.n == 1 and self._goes_around_alone(*part):
                self._choose(optimizer, part[1])
            if chosen is self._optimizer:
                self._others += 1
                self._row = 0
                most = max(self._most_of_others, 2 * len(self._parts))
                if chosen() is not None and self._others <= most:
                    self.marks.append((OPTIMIZER_PART, began, t, thread))
                    follows = not is_above(sites, self._sites) if part is None else part[0]
                    if follows:
                        self._follows(t)
                    return
                self._choose(optimizer, sites or script_sites(sys._getframe(1)))
        elif (self._in_turns or self._at_first_line or self.n == 1) and self._steps_again():
            self.marks.append((OPTIMIZER_PART, began, t, thread))
            self._follows(t)
            return
        self._others = 0
        self._row += 1
        self._longest_row = max(self._longest_row, self._row)
        self.stepped = True
        self.marks.append((OPTIMIZER_PART, began, t, thread))
        if self._counting_anew:
            ended = self._followed_at  # the iteration before, in which this was detected
            self._count_from(ended or t)
            self._waiting_since = t if ended else 0
            return
        self._end_with_followers(t)

    def _follows(self, t: int) -> None:
        """An optimizer step after the counted one of an iteration has returned: the last one ends the step."""
        if self._counted_in != NO_CALL and self._counted_in == self.call():
            return  # hooks of one backward pass are a single part of the iteration
        self._followed += 1
        self._followed_at = t
        if self._waiting_since and self._followed == self._followers.next:
            self._waiting_since = 0
            self.end(OPTIMIZER, t)

    def _end_with_followers(self, t: int) -> None:
        """End a step now, or with the last optimizer step of this iteration, as far as it can be predicted."""
        if self._waiting_since:  # fewer have followed than were expected
            self.end_waiting()
        elif self.n == 1 and self._followed_at and self.source == OPTIMIZER:
            self.assembly.extend_last(self.marks, self._followed_at)
            if self.device is not None:
                self.device.drop_pending()
        followers = self._followers
        if self._followed >= 0:
            followers.add(self._followed)
        self._followed = self._followed_at = 0
        self._counted_in = self.call()
        self._waiting_since = t if followers.next and self.source == OPTIMIZER else 0
        if not self._waiting_since:
            self.end(OPTIMIZER, t)

    def end_waiting(self) -> None:
        """End a step that waits for more optimizer steps, with the last one that it has had."""
        t, self._waiting_since = self._waiting_since, 0
        if t:
            self._end(OPTIMIZER, max(t, self._followed_at), None, noting_only=True)

    def _goes_around_alone(self, follows: bool, sites: list[Site]) -> bool:
        """Whether this part steps again before the counted optimizer does, which thus steps less often."""
        if not follows or self._waiting_since:
            return False
        return in_one_loop(self._sites, sites) and sites == script_sites(sys._getframe(2))

    def _steps_again(self) -> bool:
        """Whether the counted optimizer steps for another time in the same iteration."""
        if self._in_turns and not self._others:
            self._in_turns = self._followed < self._most_of_others  # else it goes on alone
            return self._in_turns
        if not self._at_first_line and (self._others or not self.knows_several):
            return False
        sites = script_sites(sys._getframe(2))
        if sites == self._sites:
            return False
        if in_one_loop(self._sites, sites) and is_above(self._sites, sites):
            self._at_first_line = True
            return True
        if self._at_first_line:
            self._sites = sites
        return False

    def _replaces(self, optimizer: Any, sites: list[Site]) -> bool:
        """Whether this optimizer steps in place of the counted one, which was made before it, or for another model.

        One that was there before may be part of the same step, as one for each parameter is, unless the counted one
        stepped alone.
        """
        new = id(optimizer) in self._new
        if (new or self._row > 1) and sites == self._sites:
            self._row *= new
            return True
        return False

    def _takes_over(self, optimizer: Any, sites: list[Site]) -> bool:
        """Whether steps of this other optimizer, at these sites, count from now on; if not, remember it as a part."""
        how = relation(self._sites, sites)
        if how == BESIDE and self.n > _MAX_IN_TURN:
            how = ELSEWHERE
        part = not is_above(sites, self._sites), sites
        if self.source != OPTIMIZER or how == TOGETHER:
            self._parts[id(optimizer)] = part
            return False
        at, counted = _line_of(sites), _line_of(self._sites)
        if how == ELSEWHERE:
            self._warn(
                f"the optimizer at {at} steps in a separate loop from the one at {counted}; its steps are counted too"
            )
            return True
        if self._longest_row < 2:  # as many steps of one as of the other, as far as known
            if self.n > _MAX_IN_TURN:
                self._parts[id(optimizer)] = part
            return False
        if self.capture is not None and self.capture.disturbing:
            return False
        self._parts[id(optimizer)] = part
        if how == AROUND and self.n <= _MAX_PARTS:
            self._counting_anew = True
            return True
        if how == AROUND:
            self._warn(
                f"another optimizer steps in the enclosing loop, at {at}: if the counted steps are parts of its steps, "
                f"use --step-at {at}"
            )
        else:
            self._in_turns = self._counting_anew = True
            self._warn(
                f"two optimizers step in adjacent loops, at {counted} and {at}: a step is one run of both loops. "
                "To count another line: --step-at FILE:LINE"
            )
        return False

    def _warn(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.out.append((NOTE, monotonic_ns(), "warn", text))

    def _count_from(self, t: int) -> None:
        """Count from 0 from now on; the step that ends now began before it was detected."""
        self._counting_anew = False
        withdrawn = self.n
        self._most_of_others = max(_STEPS_OF_OTHERS, 4 * withdrawn)  # it has as many parts again, or more
        self._withdraw()
        where = script_line(sys._getframe(1))
        self._followers = PeriodicCount()
        self._followed = self._followed_at = self._waiting_since = 0
        self.marks.append((SOURCE, t, SOURCES[OPTIMIZER], where, withdrawn, 1, 0))
        self.marks.append((BEGIN, t))
        self._set_due(0)

    def _choose(self, optimizer: Any, sites: list[Site]) -> None:
        """Count the steps of this optimizer."""
        self._optimizer = weakref.ref(optimizer)
        self._sites = sites
        self._parts.clear()
        self._new.clear()
        self._others = 0
        self._in_turns = self._at_first_line = False
        self._followers = PeriodicCount()
        self._followed = -1

    def made(self, optimizer: Any) -> None:
        """An optimizer was made: it is none of those before, one of which may have left its id to it."""
        self._new.add(id(optimizer))
        self._parts.pop(id(optimizer), None)

    def several_optimizers(self) -> None:
        """Check from now on which optimizer has stepped."""
        self.knows_several = True
        self.optimizer_due = 0


def _line_of(sites: list[Site]) -> str:
    """Return ``file:line`` of the innermost call, for a sentence."""
    if not sites:
        return "a line outside the script"
    code, at, _ = sites[-1]
    return _line_at(code, at, code.co_filename)


@lru_cache(64)
def _line_at(code: CodeType, at: int, file: str) -> str:
    # The file is a part of the key, as equal functions in two files have equal code objects.
    line = code.co_firstlineno
    for offset, number in dis.findlinestarts(code):
        if offset <= at and number is not None:
            line = number
    return f"{os.path.basename(file)}:{line}"
