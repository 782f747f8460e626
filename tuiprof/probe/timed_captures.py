"""Serves requests to profile some seconds: starts and stops a profiler by the clock.

With ``--capture 3s@20s``, and automatically in scripts without detected steps, it is started and stopped on the main
thread, between two instructions. If the main thread does not return to Python for a second, because the whole
training is one call, another thread does this if the profiler allows it: JAX's does on CPUs and TPUs, PyTorch's records
the thread that starts it. On a GPU JAX's profiler unloads CUPTI when it stops, which crashes a process that is
launching work at that moment (SIGSEGV, seen on an H200 with JAX 0.11.2): there it stops only on the main thread, once
the devices are done.
"""

from __future__ import annotations

import sys
import threading
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Callable

from .capture import CaptureError, abort, reason, record_state
from .isolation import ProbeThread, raised_by_signal_handler
from .main_thread import call_on_main_thread
from .requests import Request
from .sampler import imports_framework
from .steps.put_off import NO_CALL
from .steps.sources import NONE

if TYPE_CHECKING:
    from .runtime import Runtime

#: Length of an automatic capture by the clock, s, time without a step after which it is made, and its id.
_SECONDS, _AFTER_S, _OWN = 3.0, 20.0, "timed"
_PATIENCE_NS = 1_000_000_000
_END_S = 30.0
_IDLE = (
    "the script was not seen to call a model, to run a backward pass or to end a step, and without that nothing is "
    "captured; mark steps with --step-at FILE:LINE or tuiprof.step()"
)
_SHARE = 0.75  # minimum share of the last samples in the script


class TimedCaptures:
    """Serves requests that name times, one after the other (in the log's thread)."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._born = monotonic_ns()
        self._queue: list[Request] = []
        self._request: Request | None = None  # the one that is served
        self._profiler: Any = None
        self._call: _Call | None = None  # on its way to the main thread
        self._started_at = 0
        self._first = 0
        self._own_asked = False
        self._writing: ProbeThread | None = None

    def offer(self, request: Request) -> None:
        """Take a request."""
        self._tell(request, "armed")
        self._queue.append(request)

    def look(self) -> None:
        """Run the actions that are due."""
        now = monotonic_ns()
        if not self._own_asked:
            self._ask_by_itself(now)
        if self._call is not None:
            if self._call.done:
                self._call = None
            elif now - self._call.asked_at > _PATIENCE_NS and self._runtime.capture.starts_on_any_thread:
                self._call.run()
            return
        if self._request is None:
            due = [one for one in self._queue if now - self._born >= (one.after_s or 0.0) * 1e9]
            if due and self._works:
                self._queue.remove(due[0])
                self._request = due[0]
                self._runtime.record()
                self._do(self._start)
        elif self._profiler is not None and now - self._started_at >= (self._request.seconds or 0.0) * 1e9:
            self._do(self._stop)

    def _ask_by_itself(self, now: int) -> None:
        """Request a capture if no step was detected for a long time."""
        runtime = self._runtime
        if runtime.steps.source != NONE or runtime.steps.floor:
            return
        if now - self._born < _AFTER_S * 1e9 or not self._works or not runtime.sampler.in_script(_SHARE):
            return
        self._own_asked = True
        runtime.note("info", f"no step has been detected for {_AFTER_S:g} s")
        if not self._queue and runtime.capture.wanted:
            cause = f"no step was detected for {_AFTER_S:g} s"
            self.offer(Request(_OWN, seconds=_SECONDS, after_s=0.0, cause=cause))

    @property
    def _works(self) -> bool:
        """Whether the script computes in this process, as opposed to torchrun's agent and similar."""
        runtime = self._runtime
        works = runtime.steps.torch_works or runtime.capture.uses_jax
        return works or runtime.steps.source != NONE or runtime.sampler.saw_model

    # -- on the main thread ---------------------------------------------------------------------------------

    def _do(self, what: Callable[[], None]) -> None:
        self._call = _Call(what)
        if not call_on_main_thread(self._call.run):
            self._call = None

    def _busy(self) -> bool:
        """Whether no profiler can be started or stopped at the moment; retried later."""
        runtime = self._runtime
        running = runtime.capture.must_wait() or runtime.capture.disturbing
        return runtime.steps.call() != NO_CALL or running or imports_framework()

    def _start(self) -> None:
        request, capture, steps = self._request, self._runtime.capture, self._runtime.steps
        if request is None or self._busy():
            self._again(request)
            return
        profiler = None
        try:
            profiler = capture.make_profiler(request)
            profiler.prepare()
            profiler.start()
        except BaseException as error:
            self._request = None
            self._failed(request, profiler, error)
            return
        self._profiler, self._started_at, self._first = profiler, monotonic_ns(), steps.n
        capture.timed, capture.disturbing = profiler, True
        steps.attend(capture)
        self._tell(request, "started")

    def _again(self, request: Request | None) -> None:
        """Put a request back, as it is not possible at the moment."""
        if request is not None and self._profiler is None:
            self._queue.insert(0, request)
            self._request = None

    def _stop(self) -> None:
        request, profiler, capture = self._request, self._profiler, self._runtime.capture
        if (
            request is None
            or self._runtime.steps.call() != NO_CALL
            or capture.must_wait()
            or imports_framework()
        ):
            return
        self._request = self._profiler = capture.timed = None
        try:
            profiler.step_ended()
            profiler.stop()
        except BaseException as error:
            self._failed(request, profiler, error)
            return
        finally:
            capture.disturbing = False
        self._writing = ProbeThread(lambda: self._write(request, profiler))
        self._writing.start_or_run()

    def interrupt(self, why: str) -> None:
        """Give up the capture that runs, as the script needs the profiler."""
        request, profiler, capture = self._request, self._profiler, self._runtime.capture
        if request is not None and profiler is not None:
            self._request = self._profiler = capture.timed = None
            capture.disturbing = False
            self._failed(request, profiler, CaptureError(why))

    def _failed(self, request: Request, profiler: Any, error: BaseException) -> None:
        """Give up a capture because of an exception, which continues if it is the script's own."""
        try:
            if profiler is not None:
                abort(profiler, error)
        finally:
            self._tell(request, "failed", why=reason(error))
        if not isinstance(error, Exception) or raised_by_signal_handler(error):
            raise error

    def _write(self, request: Request, profiler: Any) -> None:
        """Move the trace to its final path (in a thread)."""
        n = self._runtime.steps.n
        steps = {"first": self._first, "last": n - 1} if n > self._first else {}
        try:
            path = profiler.finish()
        except Exception as error:
            self._tell(request, "failed", why=reason(error))
            return
        self._tell(request, "written", path=path, ns=0, **steps)

    def finish(self) -> None:
        """Complete or refuse the remaining requests, as the script ends (on the main thread)."""
        call = self._call
        if call is not None:
            call.run()  # unless another thread does just now
            call.wait(_END_S)
        request = self._request
        if self._profiler is not None:
            self._stop()
        if self._writing is not None:
            self._writing.join(120.0)
        if request is not None and self._request is request:
            self._tell(request, "failed", why="the script ended")
        for request in self._queue:
            after_s = request.after_s or 0.0
            early = monotonic_ns() - self._born < after_s * 1e9
            self._tell(request, "failed", why=f"the script ended within {after_s:g} s" if early else _IDLE)
        self._queue = []

    def _tell(self, request: Request, state: str, **fields: Any) -> None:
        record_state(self._runtime.steps, request, state, fields)


class _Call:
    """A function that is called only once, by the first caller."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self._taken = threading.Lock()
        self._over = threading.Event()
        self.asked_at = monotonic_ns()

    @property
    def done(self) -> bool:
        """Whether it has returned."""
        return self._over.is_set()

    def wait(self, seconds: float) -> None:
        """Wait until it has returned."""
        self._over.wait(seconds)

    def run(self) -> None:
        """Call it, unless another thread is calling it."""
        if self._taken.acquire(blocking=False):
            try:
                self._function()
            except CaptureError as error:
                sys.stderr.write(f"tuiprof: {error}\n")
            finally:
                self._over.set()
