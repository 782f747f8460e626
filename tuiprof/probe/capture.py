"""Serves requests to profile some steps: prepares, starts and stops a profiler.

One window at a time. At step boundaries, the profiler is prepared one step before its window, so that its own start-up
is not in the first step it records. All profiler calls are made on the thread that steps; compressing is not.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import get_ident
from time import monotonic_ns
from typing import Any, Callable

from .assembly import NO_STEPS
from .events import CAPTURE
from .isolation import ProbeThread, is_of_python, raised_by_signal_handler
from .log import usage
from .requests import Request
from .steps.counting import Steps
from .steps.sources import ANNOTATION, SYNC

_SECOND = 1_000_000_000
#: Added to the id of a capture of what were no steps, as it is repeated, and how often that is done at most.
_AGAIN, _MAX_AGAIN = "-again", 3
_MIN_STEPS_BEFORE = 5  # steps after the first one, before a capture that does not wait for its step
#: Noted where Python calls are left out of a capture.
NO_CALLS = "captures have no Python calls: to record them would end the script's own profile (cProfile, sys.setprofile)"


class CaptureError(Exception):
    """A capture cannot be made; the text gives the reason and the remedy."""


class _Window:
    def __init__(self, request: Request, first: int, profiler: Any) -> None:
        self.request = request
        self.first = first
        self.last = first + request.steps - 1
        self.profiler = profiler
        self.running = False
        self.recorded = False  # its steps are; what the profiler still records only adds to them
        self.ns = 0


def profiles_calls() -> bool:
    """Whether the script itself profiles calls of Python, which a profiler that records them would end.

    That is ``sys.setprofile``, and ``cProfile`` up to Python 3.11.
    """
    return bool(sys.getprofile() or getattr(threading, "_profile_hook", None))


@contextmanager
def profile_function_kept() -> Iterator[None]:
    """Keep the profile function that the script has set during a capture, as the profiler removes any when it stops."""
    theirs: Any = sys.getprofile()
    try:
        yield
    finally:
        if sys.getprofile() is None:
            if callable(theirs):
                sys.setprofile(theirs)
            elif hasattr(theirs, "enable"):  # of cProfile, which has to forget the calls whose ends it missed
                theirs.disable()
                theirs.enable()


def jax_platforms() -> tuple[str, ...]:
    """Return the platforms that JAX computes on in this process; none are opened by asking."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    return tuple(getattr(bridge, "_backends", None) or ())


def jax_on_gpu() -> bool:
    """Return whether JAX computes on GPUs, where CUPTI or its like records."""
    return any(platform not in ("cpu", "tpu") for platform in jax_platforms())


class Capturer:
    """Serves requests, one after the other."""

    def __init__(self, session: str, steps: Steps) -> None:
        self.session = session
        self.writer = ""  # name of this process's log, for the names of its traces
        self.disturbing = False  # the running step does so under a profiler, or while one is being prepared
        self.ending = False  # the script is ending: slower later steps no longer matter
        self.wanted = False  # captures were asked for
        #: A profiler by the clock (see :class:`.timed_captures.TimedCaptures`), which gets the steps marked.
        self.timed: Any = None
        #: Whether this process is the only one that makes steps: several have to capture the same ones.
        self.alone: Callable[[], bool] = lambda: False
        #: Whether a profiler cannot be started or stopped at the moment.
        self.must_wait: Callable[[], bool] = lambda: False
        #: Reports a message to the user once: level and text.
        self.note: Callable[[str, str], None] = lambda level, text: None
        #: Each creates a profiler of its framework from (request, capturer); None = that is not available.
        self.torch: Callable[..., Any] | None = None
        self.xla: Callable[..., Any] | None = None
        self.jax: Callable[..., Any] | None = None
        #: Is given the id of each finished capture, and whether there is a trace.
        self.ended: Callable[[str, bool], None] = lambda identity, written: None
        self._steps = steps
        self._queue: list[Request] = []
        self._window: _Window | None = None
        self._served: list[Request] = []  # for steps that still count; without those of triggers
        self._anew = False  # steps are counted from 0 again: the captured ones were none
        self._held = -1  # the last step before the source of steps was settled
        self._first_seen = (0, 0)  # first step boundary since steps were last counted from 0: step, time
        self._last_seen = 0
        self._threads: list[ProbeThread] = []

    # -- from the log's thread ------------------------------------------------------------------------------

    def offer(self, request: Request) -> None:
        """Accept a request; it starts at one of the next step boundaries."""
        self.wanted = True
        if request.problem:
            self._tell(request, "failed", why=request.problem)
            return
        # A process alone may begin before its step.
        first = None if request.or_after_s is not None and self.alone() else request.at
        last = None if first is None else first + request.steps - 1
        self._tell(request, "armed", first=first, last=last)
        self._queue.append(request)
        self._steps.attend(self)

    # -- at a step boundary, on the thread that steps -------------------------------------------------------

    def withdrawn(self) -> None:
        """Let the next boundary repeat captures: the steps so far were none."""
        if self._served or self._window is not None:
            self._anew = True
            self._steps.attend(self)

    def boundary(self, n: int) -> None:
        """Run the actions that are due between two steps."""
        if not is_of_python(get_ident()) or self.must_wait():
            # In a C++ thread that has called Python, which may hold a lock that a profiler waits for; or during a
            # graph capture.
            return
        began = monotonic_ns()
        timed = self.timed  # read once: it may end at any time, in another thread
        if timed is not None:
            self._held = n  # postponed
            timed.step_ended()
            timed.step_begins(n)
            return
        if self._anew:
            self._repeat()
        if n <= self._last_seen or not self._last_seen:
            self._first_seen = n, began
            self._held = min(self._held, n)
        self._last_seen = n
        if self._window is None:
            self._window = self._choose(n, began)
        window = self._window
        if window is not None:
            try:
                self._advance(window, n, began)
            except BaseException as error:
                if self._window is window:
                    self._fail(window, error)
                if not isinstance(error, Exception) or raised_by_signal_handler(error):
                    raise  # the script's own exception, raised in the meantime
        if self._window is None and not self._queue:
            self._steps.capture = None
            if self._queue:  # offered between the two lines above
                self._steps.attend(self)

    def _repeat(self) -> None:
        """Request again what was captured of steps that were none."""
        self._anew = False
        if (window := self._window) is not None:
            self._fail(window, CaptureError("what was being captured turned out not to be training steps"))
            if not window.request.cause and not window.recorded:  # a trigger fires again by itself
                self._served.append(window.request)
        again, self._served = self._served, []
        for request in again:
            if not request.id.endswith(_AGAIN * _MAX_AGAIN):
                self.offer(replace(request, id=request.id + _AGAIN))

    def _choose(self, n: int, t: int) -> _Window | None:
        """Return the window for the next request that is due, or None."""
        if not self._steps.settled(t):
            self._held = n
            return None
        due: tuple[int, Request] | None = None
        for request in list(self._queue):
            first = n + 1 if request.at is None or self._waits_too_long(request, n, t) else request.at
            if first <= self._held:
                first = n + 1
            if first < n:
                self._queue.remove(request)
                self._tell(request, "failed", why=_too_late(first, n))
            elif due is None or first < due[0]:
                due = first, request
        if due is None or due[0] > n + 1:
            return None
        first, request = due
        self._queue.remove(request)
        try:
            return _Window(request, first, self.make_profiler(request))
        except Exception as error:
            self._tell(request, "failed", first=first, why=reason(error))
            if raised_by_signal_handler(error):
                raise
            return None

    def _waits_too_long(self, request: Request, n: int, t: int) -> bool:
        """Whether a request need not wait for its step any longer, as steps take long."""
        if request.or_after_s is None or (request.at or 0) <= n + 1:
            return False
        first, at = self._first_seen
        long = n - first >= _MIN_STEPS_BEFORE and t - at >= request.or_after_s * _SECOND
        return long and self.alone()

    @property
    def uses_jax(self) -> bool:
        """Whether the script has JAX work on a device."""
        return self.jax is not None and bool(jax_platforms())

    @property
    def starts_on_any_thread(self) -> bool:
        """Whether the profiler may be started and stopped in another thread while the main thread computes."""
        return self.uses_jax and not jax_on_gpu()

    def make_profiler(self, request: Request) -> Any:
        """Return the profiler of the framework that makes the steps, or else of the one that computes.

        Raises:
            CaptureError: There is no profiler, or it cannot be used.
        """
        source = self._steps.source
        jax_alone = self.uses_jax and not self._steps.torch_works
        for wanted, make in ((source == SYNC, self.xla), (source == ANNOTATION or jax_alone, self.jax)):
            if wanted and make is not None:
                return make(request, self)
        make = self.torch or self.xla or self.jax
        if make is None:
            raise CaptureError(
                "the script has imported neither torch nor jax, so there is nothing to profile"
            )
        return make(request, self)

    def _advance(self, window: _Window, n: int, began: int) -> None:
        """Prepare, start, mark or stop."""
        profiler = window.profiler
        if window.running:
            profiler.step_ended()
            if n > window.last:
                profiler.stop()
                was_recorded, window.recorded = window.recorded, True
                if was_recorded or not profiler.start_follow_up():
                    self._finish(window, window.last, began)
                    return
                window.ns += monotonic_ns() - began
            profiler.step_begins(n)
            return
        if not self.disturbing:
            self.disturbing = True
            self._steps.out.extend(usage(self._steps.thread))  # the last without a profiler
            profiler.prepare()
        if n >= window.first:
            if n > window.first:  # the step before it was found to have ended when this one had begun
                window.first, window.last = n, n + window.last - window.first
            profiler.start()
            window.running = True
            self._tell(window.request, "started", first=window.first, last=window.last)
            profiler.step_begins(n)
        window.ns += monotonic_ns() - began

    def _finish(self, window: _Window, last: int, began: int, why: str = "") -> None:
        """Finish the files of a stopped profiler in a thread."""
        self._window = None
        self.disturbing = False
        window.ns += monotonic_ns() - began
        if not window.request.cause:
            self._served.append(window.request)
        thread = ProbeThread(lambda: self._write(window, last, why))
        self._threads = [old for old in self._threads if old.is_alive] + [thread]
        thread.start_or_run()

    def _write(self, window: _Window, last: int, why: str) -> None:
        """Move the trace to its final path (in a thread)."""
        request = window.request
        try:
            path = window.profiler.finish()
        except Exception as error:
            self._tell(request, "failed", first=window.first, last=last, why=reason(error), ns=window.ns)
            return
        self._tell(request, "written", first=window.first, last=last, path=path, why=why, ns=window.ns)

    def _fail(self, window: _Window, error: BaseException) -> None:
        self._window = None
        self.disturbing = False
        try:
            abort(window.profiler, error)
        finally:
            if window.recorded:
                self._finish(window, window.last, monotonic_ns())
            else:
                self._tell(window.request, "failed", first=window.first, why=reason(error), ns=window.ns)

    def interrupt(self, why: str) -> None:
        """Cancel the open window, as the script needs the profiler."""
        if self._window is not None:
            self._fail(self._window, CaptureError(why))

    # -- fork and exit --------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Wait for files that are being finished."""
        for thread in self._threads:
            if not thread.is_current:
                thread.join(seconds)
        self._threads = []

    def after_fork(self) -> None:
        """Reset the parent's state after a fork."""
        profiler = self.timed if self._window is None else self._window.profiler
        if profiler is not None:
            profiler.forget()
        self._queue = []
        self._window = self.timed = None
        self._served, self._anew = [], False
        self._held = -1
        self._last_seen = 0
        self._threads = []
        self.disturbing = self.ending = False

    def finish(self) -> None:
        """Complete or reject all remaining requests, as the script ends."""
        self.ending = True
        n = self._steps.n
        window = self._window
        if window is not None:
            last, why = window.last, ""
            if not window.recorded:
                last = n - 1
                why = f"the script ended after {max(n - window.first, 0)} of {window.request.steps} steps"
            if window.running and n > window.first:
                try:
                    began = monotonic_ns()
                    window.profiler.stop()
                    self._finish(window, last, began, why)
                except Exception as error:
                    self._fail(window, error)
            else:
                self._fail(window, CaptureError(why))
        for request in self._queue:
            if request.cause:
                continue  # of a trigger: nobody waits for it
            if not n:
                why = NO_STEPS
            elif request.at is None or request.at < n:  # it waited for what might have been no steps
                why = f"the script ended at step {n - 1} before a capture could begin"
            else:
                why = f"the script ended at step {n - 1}, before step {request.at}"
                first = n // 2
                if first:
                    few = min(request.steps, n - first)
                    why += f"; capture earlier steps: tuiprof record --capture {few}@{first}"
            self._tell(request, "failed", first=request.at, why=why)
        self._queue = []
        self.wait(120.0)

    def _tell(self, request: Request, state: str, **fields: Any) -> None:
        if state in ("written", "failed"):
            self.ended(request.id, state == "written")
        record_state(self._steps, request, state, fields)


def record_state(steps: Steps, request: Request, state: str, fields: dict[str, Any]) -> None:
    """Write the state of a capture to the log; a field that is None or empty is left out."""
    known = {"at": monotonic_ns(), "id": request.id, "state": state, **fields, "cause": request.cause}
    steps.out.append((CAPTURE, {name: value for name, value in known.items() if value not in (None, "")}))


def _too_late(first: int, n: int) -> str:
    """Return why a requested step can no longer be captured."""
    if first == 0:
        return "step 0 cannot be captured, as steps are detected when the first one ends"
    return f"step {first} has already run (step {n} begins now)"


def abort(profiler: Any, error: BaseException) -> None:
    """Abort a profiler after an error."""
    try:
        profiler.abort()
    except Exception as second:
        if raised_by_signal_handler(second):
            raise
        error.__context__ = second  # the first error is the one that matters


def reason(error: BaseException) -> str:
    """Return an error as one sentence."""
    if isinstance(error, CaptureError):
        return str(error)
    return f"{type(error).__name__}: {error}".splitlines()[0][:500]
