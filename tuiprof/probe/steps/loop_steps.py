"""Steps of scripts without other marks: the iterations of the loop that the main thread is in.

The loop is found by sampling (see :mod:`..sampler`): the innermost one with nearly all samples of the last two seconds.
From Python 3.12 on ``sys.monitoring`` then calls back at each jump to its beginning; all other jumps of that code
object are disabled when they first occur, and no other code is touched. Before 3.12 no such way is open to every loop:
one that reads an array of JAX in each iteration is counted by that, others are only reported, with the option that
makes their iterations steps. So is a loop that waits for a queue most of the time, like that of a server: its
iterations may be anything.

A loop inside another may be over the batches of an epoch, or over the parts of a step: micro-batches, tokens, layers.
They are distinguished by the name of the outer loop's variable (``for epoch in …``) or of the function that holds the
inner one (``def train_epoch``), else by the number of iterations of the inner one per run; see :class:`_Trial`.

The loop that was found may be one of the setup, and end. Another one that takes the run over then takes its place; see
:mod:`.later_loop`.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from time import monotonic_ns
from types import CodeType
from typing import TYPE_CHECKING, Any, Callable

from ..assembly import BEGIN, END
from ..events import RECORD
from ..main_thread import call_on_main_thread
from ..sampler import RECENT, Loop, goes_over_epochs, same_loop
from .later_loop import LaterLoop, needed_ns
from .put_off import NO_CALL
from .sources import LOOP, NONE

if TYPE_CHECKING:
    from ..runtime import Runtime

#: Minimum share of the samples of the surrounding loop (of all, if there is none) for the innermost loop; and for a
#: loop in a function called from the surrounding loop.
_SHARE, _SHARE_OF_CALLED = 0.75, 0.9
#: Time without another source before a loop is used, ns: with a PyTorch optimizer, whose steps are preferred, and
#: without.
_PATIENCE_WITH_OPTIMIZER_NS, _PATIENCE_NS = 60_000_000_000, 2_000_000_000
#: After this many iterations the loop is final, unless it ends and a later one takes over; time without an iteration
#: after which it may have ended, ns.
_SURE, _ENDED_AFTER_NS = 10, 500_000_000
#: A loop with at most this many iterations in each of this many runs iterates over parts of a step.
_MAX_PARTS, _RUNS = 16, 2
_TOOLS = (4, 3)  # ids that no well-known tool uses


class LoopSteps:
    """Finds the loop and counts its iterations as steps."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._hook = runtime.hook("sys.monitoring")
        self._began = monotonic_ns()
        self._armed: Loop | None = None
        self._chain: list[Loop] = []  # the counted loop, after those around it
        self._counted: Any = None  # the callback that counts it
        self._last = 0, 0  # the number of steps, and when that was first seen
        self._since = 0  # when the loop counted before had ended
        self._later: LaterLoop | None = None  # watched where the counted loop may have ended
        self._named: Loop | None = None
        self._watched: set[CodeType] = set()
        self._too_short: list[Loop] = []  # whose iterations are no longer counted
        self._sure = False
        self._monitoring: Any = getattr(sys, "monitoring", None)
        self._tool = -1
        self._done = False
        #: Before Python 3.12: makes what watches a loop, of the loop and of what to call once in each iteration; None =
        #: no framework has a way to.
        self.make_watch: Callable[[Loop, Callable[[], None]], Any] | None = None
        self._watch_of_framework: Any = None

    def look(self) -> None:
        """Check for a loop to count, or a better one (in the log's thread)."""
        steps, sampler = self._runtime.steps, self._runtime.sampler
        if self._armed is not None and steps.loop.is_too_short:
            self._too_short.append(self._armed)
            self.release()
            self._done = self._sure = steps.loop.is_too_short = False
            sampler.wants_loops = True
        if self._done or not self._hook.on:
            return
        if steps.source not in (NONE, LOOP) or steps.floor:
            self._done = True
            sampler.stop_loops()
            if steps.source != LOOP:
                self.release()
            return
        if self._sure or (steps.n >= _SURE and not steps.loop.on_trial):
            self._hook.call(self._look_for_later)
            return
        sampler.wants_loops = True
        patience_ns = _PATIENCE_WITH_OPTIMIZER_NS if steps.optimizer_made else _PATIENCE_NS
        if monotonic_ns() - self._began < patience_ns or len(sampler.recent) < RECENT:
            return
        # During the first few iterations it may be another loop, for example of the setup.
        loops = likely(list(sampler.recent))
        while loops and self._is_too_short(loops[-1]):
            loops.pop()
        if not loops and steps.source == NONE and (waiting := likely(list(sampler.recent_with_queues))):
            self._hook.call(self._name, waiting[-1])
        if not loops or steps.n >= _SURE or (self._armed is not None and same_loop(loops[-1], self._armed)):
            return
        self._hook.call(self._count, loops)

    def _look_for_later(self) -> None:
        """Check whether the loop that is counted has ended, and another one has taken the run over."""
        steps, sampler, t = self._runtime.steps, self._runtime.sampler, monotonic_ns()
        if steps.n != self._last[0]:
            self._last = steps.n, t
        if t - self._last[1] < _ENDED_AFTER_NS or self._armed is None:
            sampler.stop_loops()
            self._forget_later()
            return
        sampler.wants_loops = True
        recent = list(sampler.recent)
        if len(recent) < RECENT or any(
            same_loop(loop, self._armed) for chain in recent for loop in chain or ()
        ):
            return
        loops = likely(recent)
        while loops and self._is_too_short(loops[-1]):
            loops.pop()
        if not loops:
            return
        later = self._later
        if later is None or not same_loop(later.loops[-1], loops[-1]):
            self._watch_later(loops, t)
        elif later.is_too_short:
            self._too_short.append(loops[-1])
            self._forget_later()
        elif later.has_iterated() if self._monitoring is not None else later.was_seen(t):
            self._replace(loops)

    def _watch_later(self, loops: list[Loop], t: int) -> None:
        """Watch a loop that runs after the counted one, beside that."""
        self._forget_later()
        counted, (n, last_ns) = self._chain, self._last
        took_ns = needed_ns(counted, n, last_ns - max(counted[-1].seen_ns, self._since), loops)
        if took_ns is None:
            return
        self._later = later = LaterLoop(loops, took_ns, t)
        if self._monitoring is not None:
            events = self._monitoring.events
            callback = later.callback(self._counted, monotonic_ns)
            self._monitoring.register_callback(self._tool, events.JUMP, callback)
            self._watch_only({counted[-1].code, loops[-1].code})

    def _forget_later(self) -> None:
        """Watch the counted loop only."""
        if self._later is not None and self._armed is not None and self._monitoring is not None:
            self._monitoring.register_callback(self._tool, self._monitoring.events.JUMP, self._counted)
            self._watch_only({self._armed.code})
        self._later = None

    def _replace(self, loops: list[Loop]) -> None:
        """Count another loop, from 0, as the counted one has ended."""
        steps = self._runtime.steps
        ended, n = os.path.basename(steps.loop.at), steps.n
        text = (
            f"the loop at {ended} has ended after {n} counted iterations, and the one at "
            f"{os.path.basename(_where(loops[-1]))} takes longer: these were not the steps"
        )
        self._later = None
        self._since, self._sure = self._last[1], False
        loops[-1].seen_ns = max(loops[-1].seen_ns, self._since)
        self._runtime.note("info", text)
        if self._monitoring is None:
            # The later one may never be counted, so what was counted does not remain until it is.
            self.release()
            call_on_main_thread(lambda: self._drop(n))
        self._count(loops)

    def _drop(self, n: int) -> None:
        """Withdraw the steps counted so far, before Python 3.12 (on the main thread)."""
        steps = self._runtime.steps
        if steps.source == LOOP and steps.n == n and steps.call() == NO_CALL:
            steps.drop(monotonic_ns())

    def _count(self, loops: list[Loop]) -> None:
        """Count the innermost of nested loops."""
        loop = loops[-1]
        steps = self._runtime.steps
        self.release()
        self._chain = loops
        if self._monitoring is None:
            self._armed = loop
            self._name(loop)
            if self.make_watch is not None:
                self._watch_of_framework = self.make_watch(loop, self._once_each(loop))
            return
        monitoring = self._monitoring
        self._tool = free_tool(monitoring)
        self._tell(loop)
        if loop.over_epochs:
            self._runtime.note(
                "warn",
                f"each step is an epoch, judging by the variable name at {os.path.basename(steps.loop.at)}: its "
                "batches run in one call, like lax.scan, or in a loop that takes little of the epoch's time",
            )
        self._watch(loops, begun=False)

    def _tell(self, loop: Loop) -> None:
        """Note that the iterations of a loop are steps."""
        self._runtime.steps.loop.at = _where(loop)
        found_s = (monotonic_ns() - self._began) / 1e9
        self._runtime.note(
            "info",
            f"steps are iterations of the loop at {os.path.basename(_where(loop))}, detected {found_s:.0f} s after "
            "the framework was imported; earlier ones are not counted. To use another line: --step-at FILE:LINE",
        )

    def _once_each(self, loop: Loop) -> Callable[[], None]:
        """Return the function that ends a step of a loop each time it is called, the first time without a length."""
        steps, hook = self._runtime.steps, self._hook
        begun = False

        def ended() -> None:
            nonlocal begun
            if not hook.on or steps.source > LOOP or steps.loop.is_too_short:
                return
            try:
                t = monotonic_ns()
                if begun:
                    steps.end(LOOP, t)
                else:
                    begun = True
                    self._tell(loop)
                    self._begin(loop, t)
            except Exception:
                hook.failed()

        return ended

    def _begin(self, loop: Loop, t: int) -> None:
        """Count from here on: the iteration that ends began before the loop was watched, so its time is unknown."""
        steps = self._runtime.steps
        steps.loop.missed_ns = t - loop.seen_ns
        steps.withdraw(LOOP, t)
        steps.marks.append((BEGIN, t))

    def _is_too_short(self, loop: Loop) -> bool:
        return any(same_loop(loop, short) for short in self._too_short)

    def _name(self, loop: Loop) -> None:
        """Report a loop whose iterations are not counted."""
        if self._named is not None and same_loop(loop, self._named):
            return
        self._named = loop
        self._runtime.steps.out.append((RECORD, {"t": "likely", "at": monotonic_ns(), "where": _where(loop)}))
        if self._runtime.steps.torch_works or self._runtime.capture.uses_jax:
            # Not in torchrun's agent and similar. From here on the log's thread looks for loops as well.
            self._runtime.record()

    def _watch(self, loops: list[Loop], begun: bool) -> None:
        """Monitor the innermost loop, and the one around it until it is known which of them is the step."""
        steps, monitoring = self._runtime.steps, self._monitoring
        loop = self._armed = loops[-1]
        self._chain = loops
        counted = callback = self._counted = self._callback(loop, begun)
        around = loops[-2] if len(loops) > 1 and not goes_over_epochs(loops[-2], loop) else None
        steps.loop.on_trial = around is not None
        if around is not None:
            callback = _Trial(
                loop,
                around,
                counted,
                lambda is_step: self._judge(loops, counted, is_step),
                monitoring.DISABLE,
            ).jumped
        monitoring.register_callback(self._tool, monitoring.events.JUMP, callback)
        steps.due = 0  # the next iteration also withdraws earlier steps
        self._watch_only({loop.code} if around is None else {loop.code, around.code})

    def _watch_only(self, codes: set[CodeType]) -> None:
        """Enable callbacks at each jump of these code objects, including disabled ones."""
        events = self._monitoring.events.JUMP
        for code in self._watched:
            self._monitoring.set_local_events(self._tool, code, 0)
        for code in codes:
            self._monitoring.set_local_events(self._tool, code, events)
        self._watched = codes

    def _judge(self, loops: list[Loop], counted: Any, is_step: bool) -> None:
        """End the trial of the last of the loops (on the thread that steps)."""
        try:
            if is_step:
                self._runtime.steps.loop.on_trial = False
                self._monitoring.register_callback(self._tool, self._monitoring.events.JUMP, counted)
                self._watch_only({loops[-1].code})
            else:
                self._count_around(loops)
        except Exception:
            self._hook.failed()

    def _count_around(self, loops: list[Loop]) -> None:
        """Count the loop around the last one, from 0."""
        *loops, parts = loops
        steps, t = self._runtime.steps, monotonic_ns()
        self._sure = True
        steps.loop.at, steps.loop.missed_ns = _where(loops[-1]), t - loops[-1].seen_ns
        steps.withdraw(LOOP, t)
        steps.marks.append((BEGIN, t))
        inner = os.path.basename(_where(parts))
        self._runtime.note(
            "warn",
            f"each step is one run of the loop at {inner}, which ends after at most {_MAX_PARTS} iterations: these "
            f"are probably parts of a step. If they are steps (an epoch of a few batches), use --step-at {inner}",
        )
        self._watch(loops, begun=True)

    def _callback(self, loop: Loop, begun: bool) -> Any:
        """Return the callback that counts a loop at each jump; ``begun``: an iteration to count has already begun."""
        steps, hook, clock, head = self._runtime.steps, self._hook, monotonic_ns, loop.head
        note, end, source, disable = steps.marks.append, END, LOOP, self._monitoring.DISABLE

        def jumped(_code: CodeType, _at: int, to: int) -> Any:
            if to != head:
                return disable
            n = steps.n
            if n < steps.due and steps.source == source and steps.put_off is None:  # nearly always
                note((end, n, clock(), None, False, clock()))
                steps.n = n + 1
                return None
            if steps.source > LOOP or not hook.on or steps.loop.is_too_short:
                return disable
            nonlocal begun
            try:
                t = clock()
                if begun:
                    steps.end(LOOP, t)
                else:
                    begun = True
                    self._begin(loop, t)
            except Exception:
                hook.failed()
            return None

        return jumped

    def stop(self) -> None:
        """Stop searching for a loop: the user has defined a step."""
        self._done = True
        self._runtime.sampler.stop_loops()
        self.release()

    def release(self) -> None:
        """Count no more iterations."""
        if self._watch_of_framework is not None:
            self._watch_of_framework.stop()
            self._watch_of_framework = None
        if self._tool < 0 or self._armed is None:
            return
        self._watch_only(set())
        monitoring, tool, self._tool = self._monitoring, self._tool, -1
        monitoring.register_callback(tool, monitoring.events.JUMP, None)
        monitoring.free_tool_id(tool)
        self._armed = None
        self._runtime.steps.loop.on_trial = False


class _Trial:
    """Counts a loop until it is known whether its iterations are steps, or parts of one of the loop around it.

    ``counted`` is called at each jump in the code object of ``loop``; ``judge`` once, with whether its iterations are
    steps. ``disable`` is returned for jumps of which nothing more is to be known.
    """

    def __init__(
        self,
        loop: Loop,
        around: Loop,
        counted: Callable[[CodeType, int, int], Any],
        judge: Callable[[bool], None],
        disable: Any,
    ) -> None:
        self._loop, self._around, self._counted, self._judge = loop, around, counted, judge
        self._disable = disable
        self._iterations = 0
        self._runs = -1  # the one in which the loop was found was not seen from its beginning

    def jumped(self, code: CodeType, at: int, to: int) -> Any:
        """Determine which loop is iterating."""
        loop, around = self._loop, self._around
        if code is around.code and to == around.head:
            if self._iterations:  # else the loop was not entered
                self._iterations = 0
                self._runs += 1
                if self._runs == _RUNS:
                    self._judge(False)
            return None
        if code is not loop.code:
            return self._disable
        if to == loop.head:
            self._iterations += 1
            if self._iterations > _MAX_PARTS:
                self._judge(True)
        return self._counted(code, at, to)


def free_tool(monitoring: Any) -> int:
    """Reserve a tool id of ``sys.monitoring`` and return it.

    Raises:
        ValueError: All that tuiprof may use are taken.
    """
    for tool in _TOOLS:
        if monitoring.get_tool(tool) is None:
            monitoring.use_tool_id(tool, "tuiprof")
            return tool
    raise ValueError("other tools use sys.monitoring")


def likely(recent: list[tuple[Loop, ...] | None]) -> list[Loop]:
    """Return the loop whose iterations are most likely the steps, after those around it, outermost first."""
    if sum(chain is None for chain in recent) > len(recent) * (1 - _SHARE):
        return []
    counts: Counter[tuple[CodeType, int]] = Counter()
    longest: dict[tuple[CodeType, int], tuple[int, Loop]] = {}
    for chain in recent:
        for depth, loop in enumerate(chain or ()):
            key = loop.code, loop.head
            counts[key] += 1
            longest[key] = max((depth, loop), longest.get(key, (0, loop)), key=lambda item: item[0])
    found: list[Loop] = []
    for key, (_, loop) in sorted(longest.items(), key=lambda item: item[1][0]):
        called = bool(found) and loop.code is not found[-1].code
        around = counts[found[-1].code, found[-1].head] if found else len(recent)
        if counts[key] >= around * (_SHARE_OF_CALLED if called else _SHARE):
            found.append(loop)
    return found


def _where(loop: Loop) -> str:
    return f"{loop.code.co_filename}:{loop.line}"
