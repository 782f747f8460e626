"""Steps of a script that tells nothing of them: the iterations of the loop that its main thread is in.

The loop is found by sampling (see :mod:`.sampler`): the innermost one that holds nearly all samples of the last two
seconds. From Python 3.12 on ``sys.monitoring`` then calls back at each jump to its beginning; all other jumps of that
code object are switched off one by one when they first happen, and no other code is touched. Below 3.12 there is
nothing that costs so little, so the loop is only named, with the option that makes its iterations steps.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from time import monotonic_ns
from types import CodeType
from typing import TYPE_CHECKING, Any

from ..lines import RECORD
from ..marks import END
from ..steps import LOOP, NONE
from .sampler import RECENT, Loop

if TYPE_CHECKING:
    from ..runtime import Runtime

#: A loop is the innermost one if it holds this share of the samples; one in a function that is called from the loop
#: around it, this share.
_SHARE, _SHARE_OF_CALLED = 0.75, 0.9
#: How long nothing else must have been found, ns: with a PyTorch optimizer, whose steps would be better, and without.
_PATIENCE_WITH_OPTIMIZER_NS, _PATIENCE_NS = 60_000_000_000, 2_000_000_000
#: After so many iterations the loop stays the one.
_SURE = 10
_TOOLS = (4, 3)  # numbers that no well-known tool uses


class LoopSteps:
    """Finds the loop and lets its iterations be steps."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._hook = runtime.hook("sys.monitoring")
        self._began = monotonic_ns()
        self._armed: Loop | None = None
        self._monitoring: Any = getattr(sys, "monitoring", None)
        self._tool = -1
        self._done = False

    def look(self) -> None:
        """See whether there is a loop to count, or a better one (in the log's thread)."""
        steps, sampler = self._runtime.steps, self._runtime.sampler
        if self._done or not self._hook.on:
            return
        if steps.source not in (NONE, LOOP) or steps.floor or steps.n >= _SURE:
            self._done = True
            sampler.stop_loops()
            if steps.source != LOOP:
                self.release()
            return
        patience_ns = _PATIENCE_WITH_OPTIMIZER_NS if steps.optimizer_made else _PATIENCE_NS
        if monotonic_ns() - self._began < patience_ns or len(sampler.recent) < RECENT:
            return
        # Before there are a few iterations it may be another loop: of the preparations, say.
        loop = likely(list(sampler.recent))
        if loop is None or (self._armed is not None and _same(loop, self._armed)):
            return
        try:
            self._count(loop)
        except Exception:
            self._hook.failed()

    def _count(self, loop: Loop) -> None:
        name = f"{os.path.basename(loop.code.co_filename)}:{loop.line}"
        if self._monitoring is None:
            self._armed = loop
            if self._runtime.steps.torch_works or self._runtime.capture.uses_jax:
                self._runtime.record()  # not in torchrun's agent and its like
            where = f"{loop.code.co_filename}:{loop.line}"
            self._runtime.steps.out.append((RECORD, {"t": "likely", "at": monotonic_ns(), "where": where}))
            return
        steps = self._runtime.steps
        again = steps.n > 0
        self.release()
        monitoring = self._monitoring
        self._tool = free_tool(monitoring)
        self._armed = loop
        steps.loop_at = f"{loop.code.co_filename}:{loop.line}"
        found_s = (monotonic_ns() - self._began) / 1e9
        self._runtime.note(
            "info",
            f"steps are iterations of the loop at {name}, found {found_s:.0f} s after the import of the framework; "
            "those before are not counted. --step-at FILE:LINE names another line",
        )
        monitoring.register_callback(self._tool, monitoring.events.JUMP, self._callback(loop, again))
        steps.due = 0  # the next iteration does more than to be noted: what was counted before is withdrawn
        monitoring.set_local_events(self._tool, loop.code, monitoring.events.JUMP)

    def _callback(self, loop: Loop, again: bool) -> Any:
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
            if steps.source > LOOP or not hook.on:
                return disable
            nonlocal again
            try:
                if again:
                    again = False
                    steps.withdraw(LOOP, clock())
                steps.end(LOOP, clock())
            except Exception:
                hook.failed()
            return None

        return jumped

    def stop(self) -> None:
        """Look for no loop any more: the user has said what a step is."""
        self._done = True
        self._runtime.sampler.stop_loops()
        self.release()

    def release(self) -> None:
        """Count no more iterations."""
        if self._tool < 0 or self._armed is None:
            return
        monitoring, tool, self._tool = self._monitoring, self._tool, -1
        monitoring.set_local_events(tool, self._armed.code, 0)
        monitoring.register_callback(tool, monitoring.events.JUMP, None)
        monitoring.free_tool_id(tool)
        self._armed = None


def free_tool(monitoring: Any) -> int:
    """Return a number of ``sys.monitoring`` that is ours from now on.

    Raises:
        ValueError: All that tuiprof may use are taken.
    """
    for tool in _TOOLS:
        if monitoring.get_tool(tool) is None:
            monitoring.use_tool_id(tool, "tuiprof")
            return tool
    raise ValueError("other tools use sys.monitoring")


def likely(recent: list[tuple[Loop, ...] | None]) -> Loop | None:
    """Return the loop whose iterations are most likely the steps; None = there is none.

    Args:
        recent: For each sample the loops that the thread was in, outermost first.
    """
    if sum(chain is None for chain in recent) > len(recent) * (1 - _SHARE):
        return None
    counts: Counter[tuple[CodeType, int]] = Counter()
    longest: dict[tuple[CodeType, int], tuple[int, Loop]] = {}
    for chain in recent:
        for depth, loop in enumerate(chain or ()):
            key = loop.code, loop.head
            counts[key] += 1
            longest[key] = max((depth, loop), longest.get(key, (0, loop)), key=lambda item: item[0])
    best: Loop | None = None
    for key, (_, loop) in sorted(longest.items(), key=lambda item: item[1][0]):
        called = best is not None and loop.code is not best.code
        if counts[key] >= len(recent) * (_SHARE_OF_CALLED if called else _SHARE):
            best = loop
    return best


def _same(one: Loop, other: Loop) -> bool:
    return one.code is other.code and one.head == other.head
