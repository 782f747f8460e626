"""Changes the definition of a step while the script runs: ``tuiprof steps SESSION --at FILE:LINE`` etc.

A request names a line, a function, or a source known to the hooks. Steps are numbered from 0 again, and those before
are withdrawn. A line is counted by ``sys.monitoring`` (Python 3.12 and newer) each time it is reached: all other lines
of its code object are disabled when they first run, and no other code is touched. A function is counted each time it
returns; before Python 3.12 it is replaced in its module by a wrapper.
"""

from __future__ import annotations

import gc
import os
import sys
from dataclasses import dataclass
from inspect import getattr_static
from time import monotonic_ns
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Callable

from ..assembly import BACKWARD, DATA
from ..events import NOTE
from .given_steps import counted
from .loop_steps import free_tool
from .sources import BACKWARDS, BATCH, GIVEN, JITTED, OPTIMIZER

if TYPE_CHECKING:
    from ..runtime import Runtime

#: Sources that can be requested by name.
BY = {"optimizer": OPTIMIZER, "backward": BACKWARDS, "loader": BATCH, "jit": JITTED}
_UNSEEN = {
    "optimizer": "no optimizer has stepped",
    "backward": "no backward pass has run",
    "loader": "no DataLoader has returned a batch",
    "jit": "no jitted function of Flax NNX or Equinox is in use",
}
#: Prefix of a refusal; the command that requested the change matches it.
REFUSED = "what a step is cannot be changed: "
#: Timeout for the end of the running step, ns; then no source is counting.
_PATIENCE_NS = 3_000_000_000


@dataclass(frozen=True)
class Change:
    """The requested definition of a step; one of the first three is given."""

    at: str = ""  # ``FILE:LINE``, an absolute path
    function: str = ""  # ``MODULE:NAME``
    by: str = ""  # a key of :data:`BY`
    problem: str = ""  # why the request cannot be read


class ChangedSteps:
    """Serves requests, one after the other (in the log's thread)."""

    def __init__(self, runtime: Runtime) -> None:
        self.made = False  # the definition of a step was changed after the start
        self._runtime = runtime
        self._hook = runtime.hook("changed steps")
        self._undo: list[Callable[[], None]] = []
        #: Of what counts until what was asked for last is reached
        self._undo_before: list[Callable[[], None]] = []
        self._generation = 0
        self._waiting: tuple[int, Callable[[], None]] | None = None

    def change(self, wanted: Change) -> None:
        """Change the definition of a step, or report why not."""
        runtime = self._runtime
        if runtime.steps.torch_works or runtime.capture.uses_jax:
            runtime.record()  # not in torchrun's agent and similar
        try:
            if wanted.problem:
                raise ValueError(wanted.problem)
            if wanted.by:
                self._count_by(wanted.by)
            elif wanted.function:
                self._count_returns(wanted.function)
            else:
                self._count_line(wanted.at)
        except ValueError as error:
            # Not noted once only: each request is answered.
            runtime.steps.out.append((NOTE, monotonic_ns(), "warn", f"{REFUSED}{error}"))

    def look(self) -> None:
        """Apply a change without waiting for the end of a step."""
        if self._waiting is not None and monotonic_ns() - self._waiting[0] > _PATIENCE_NS:
            self._now()

    def release(self) -> None:
        """Stop counting the requested line or function."""
        for undo in (self._undo_before, self._undo):
            while undo:
                undo.pop()()

    def _set_aside(self) -> None:
        """Keep the present source until the requested one is reached; an earlier pending request is dropped."""
        self._generation += 1
        while self._undo_before and self._undo:
            self._undo.pop()()
        self._undo_before, self._undo = self._undo_before or self._undo, []

    def _now(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting[1]()

    def _replace(self) -> None:
        """Stop all sources that were named or found before."""
        while self._undo_before:
            self._undo_before.pop()()
        self._runtime.loops.stop()
        self.made = True

    def _count_by(self, name: str) -> None:
        if name not in BY:
            raise ValueError(f"{name!r} is not one of {', '.join(BY)}")
        steps, source = self._runtime.steps, BY[name]
        if name not in (seen := self._seen()):
            lines = ["a line (FILE:LINE)"] if hasattr(sys, "monitoring") else []
            available = ", ".join([*seen, *lines, "a function (MODULE:NAME)"])
            raise ValueError(f"{_UNSEEN[name]}; available: {available}")
        self._set_aside()

        def change() -> None:
            self._replace()
            steps.change(source, monotonic_ns())

        self._waiting = monotonic_ns(), change
        if steps.source and steps.at_next_end is None:
            steps.call_at_next_end(self._now)

    def _seen(self) -> list[str]:
        """Return the keys of :data:`BY` that this script can be counted by."""
        steps = self._runtime.steps
        kinds = {mark[0] for mark in list(steps.marks)} | steps.assembly.kinds
        found = (steps.has_optimizer, BACKWARD in kinds, DATA in kinds, steps.has_jitted)
        return [name for name, there in zip(("optimizer", "backward", "loader", "jit"), found) if there]

    def _count_line(self, at: str) -> None:
        monitoring = getattr(sys, "monitoring", None)
        file, _, text = at.rpartition(":")
        name = f"{os.path.basename(file)}:{text}"
        if monitoring is None:
            version = ".".join(map(str, sys.version_info[:2]))
            raise ValueError(
                f"counting a line of a running script requires Python 3.12, and this is {version}; use --function "
                f"MODULE:NAME, or start the script with --step-at {name}"
            )
        line = int(text)
        codes = _codes_at(file, line)
        if not codes:
            raise ValueError(f"no code loaded by the script starts a line at {name}")
        self._set_aside()
        ended = self._ended()

        def reached(_code: CodeType, number: int) -> Any:
            if number != line:
                return monitoring.DISABLE
            ended()
            return None

        self._monitor(monitoring, monitoring.events.LINE, codes, reached)

    def _count_returns(self, name: str) -> None:
        module, _, path = name.partition(":")
        owner: Any = sys.modules.get(module)
        *parents, last = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent, None)
        function = getattr(owner, last, None)
        if not callable(function):
            raise ValueError(f"{module} has no function {path}")
        self._set_aside()
        ended = self._ended()
        monitoring = getattr(sys, "monitoring", None)
        if monitoring is not None and isinstance(function, FunctionType):
            self._monitor(monitoring, monitoring.events.PY_RETURN, [function.__code__], lambda *_: ended())
            return
        own = vars(owner).get(last)
        if isinstance(owner, type):  # a static method stays one; a method of an object is bound already
            function = getattr_static(owner, last, function)
        setattr(owner, last, counted(function, ended))
        self._undo.append(lambda: delattr(owner, last) if own is None else setattr(owner, last, own))

    def _monitor(self, monitoring: Any, event: int, codes: list[CodeType], callback: Any) -> None:
        """Enable callbacks for an event of the given code objects."""
        try:
            tool = free_tool(monitoring)
        except ValueError:  # the present source holds the last one
            self._replace()
            tool = free_tool(monitoring)

        def undo() -> None:
            for code in codes:
                monitoring.set_local_events(tool, code, 0)
            monitoring.register_callback(tool, event, None)
            monitoring.free_tool_id(tool)

        self._undo.append(undo)
        monitoring.register_callback(tool, event, callback)
        for code in codes:
            monitoring.set_local_events(tool, code, event)

    def _ended(self) -> Callable[[], None]:
        """Return the function to call at the end of a step: its first call begins step 0."""
        steps, hook, clock = self._runtime.steps, self._hook, monotonic_ns
        begun, generation = False, self._generation

        def ended() -> None:
            nonlocal begun
            t = clock()
            if not hook.on or not (begun or generation == self._generation):
                return
            try:
                if begun:
                    steps.end(GIVEN, t)
                else:
                    begun = True
                    self._replace()
                    steps.change(GIVEN, t)
            except Exception:
                hook.failed()

        return ended


def _codes_at(file: str, line: int) -> list[CodeType]:
    """Return the code objects with the line: of running frames, of functions, and nested ones."""
    found: dict[int, CodeType] = {}
    names: dict[str, bool] = {}

    def look(code: CodeType) -> None:
        name = code.co_filename
        if name not in names:
            names[name] = os.path.basename(name) == os.path.basename(file) and os.path.realpath(name) == file
        if names[name] and id(code) not in found:
            found[id(code)] = code
            for constant in code.co_consts:
                if isinstance(constant, CodeType):
                    look(constant)

    for frame in sys._current_frames().values():
        at: Any = frame
        while at is not None:
            look(at.f_code)
            at = at.f_back
    for thing in gc.get_objects():
        if type(thing) is FunctionType:
            look(thing.__code__)
    return [code for code in found.values() if any(number == line for _, _, number in code.co_lines())]
