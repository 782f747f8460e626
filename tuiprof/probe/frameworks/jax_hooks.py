"""JAX: the end of a ``StepTraceAnnotation`` ends a step; ``jax.profiler`` writes XPlane files."""

from __future__ import annotations

import contextlib
import os
import sys
from time import monotonic_ns
from typing import Any

from ..capture import Capturer, jax_on_gpu
from ..guest.exceptions import own_errors_dropped, raised_by_signal_handler
from ..requests import Request
from ..runtime import Runtime
from ..steps import ANNOTATION
from .garbage import GarbageRanges
from .jax_syncs import JaxSyncWatch
from .xplane_capture import XPlaneProfiler, step_hook


def install(runtime: Runtime, module: Any) -> None:
    """Wrap ``StepTraceAnnotation``, once."""
    annotation = module.StepTraceAnnotation
    if "_tuiprof" in vars(annotation):
        return
    steps = runtime.steps
    name = "jax.profiler.StepTraceAnnotation"
    ended = step_hook(runtime, name, ANNOTATION, lambda: not steps.own_annotation)
    enter, leave = annotation.__enter__, annotation.__exit__

    def __enter__(self: Any) -> Any:  # noqa: N807
        steps.assembly.touch(monotonic_ns())
        return enter(self)

    def __exit__(self: Any, *exc_info: Any) -> Any:  # noqa: N807
        result = leave(self, *exc_info)
        ended()
        return result

    annotation.__enter__ = __enter__
    annotation.__exit__ = __exit__
    annotation._tuiprof = True
    runtime.capture.jax = JaxProfiler


class JaxProfiler(XPlaneProfiler):
    """One window under ``jax.profiler``.

    Args:
        request: What to record; JAX always records Python calls.
        capturer: Names the session.
    """

    def __init__(self, request: Request, capturer: Capturer) -> None:
        super().__init__(sys.modules["jax.profiler"], "jax.profiler", capturer)
        self._steps = capturer._steps
        self._range: Any = None
        self._syncs = JaxSyncWatch()
        self._garbage = GarbageRanges(self._profiler.TraceAnnotation)
        # A capture by the clock records whatever runs, possibly the whole training, so it does not wait. Except on a
        # GPU: XLA finalizes CUPTI when it stops, which crashes a process that launches work in the meantime.
        self._fence = Fence() if request.seconds is None or jax_on_gpu() else None

    def prepare(self) -> None:
        """Compile the program that detects that the devices are done."""
        if self._fence is not None:
            self._fence.prepare()

    def start(self) -> None:
        """Start recording after the work of earlier steps is done, so that the trace contains only its own steps."""
        if self._fence is not None:
            self._fence.tuiprof_waits_for_devices()
        super().start()
        self._garbage.start()
        self._syncs.start()

    def stop(self) -> None:
        """Stop and write, once the steps' work is done: JAX returns from a step before it, and XLA records no more."""
        self._garbage.stop()
        self._syncs.stop()
        if self._fence is not None:
            self._fence.tuiprof_waits_for_devices()
        super().stop()

    def finish(self) -> str:
        """Write the lines of host waits next to the trace; return the trace's path relative to the session."""
        trace = super().finish()
        self._syncs.write(os.path.join(self._session, trace.removesuffix(".xplane.pb") + ".syncs.jsonl"))
        return trace

    def step_begins(self, n: int) -> None:
        """Mark the step in the trace, where the script does not mark it itself."""
        if self._steps.source != ANNOTATION:
            self._range = self._profiler.StepTraceAnnotation("step", step_num=n)
            self._range.__enter__()

    def step_ended(self) -> None:
        """Close the mark."""
        mark, self._range = self._range, None
        if mark is not None:
            self._steps.own_annotation = True
            try:
                mark.__exit__(None, None, None)
            finally:
                self._steps.own_annotation = False


class Fence:
    """Waits for all work submitted to this process's devices, including unreferenced results.

    JAX has no call for this. A device runs programs in submission order, so a program submitted now finishes last. A
    CPU has no such order: there only arrays that are still referenced are awaited.
    """

    def __init__(self) -> None:
        self._program: Any = None
        self._inputs: list[tuple[Any, Any]] = []

    def prepare(self) -> None:
        """Compile the program for each device; skipped if that fails under the script's settings."""
        jax = sys.modules["jax"]
        with own_errors_dropped():
            self._program = jax.jit(tuiprof_waits_for_devices)
            self._inputs = [(device, jax.device_put(False, device)) for device in self._devices(jax)]
            for output in self._started(jax):  # compiles
                output.block_until_ready()

    def tuiprof_waits_for_devices(self) -> None:
        """Wait; the error of a failed computation is raised when the script reads its result."""
        jax = sys.modules["jax"]
        for array in self._started(jax) + jax.live_arrays():
            # One was deleted meanwhile, or its computation failed: the others count.
            with own_errors_dropped():
                array.block_until_ready()

    def _started(self, jax: Any) -> list[Any]:
        """Submit the program to each device; return its results."""
        outputs: list[Any] = []
        for device, value in self._inputs:
            try:
                outputs.append(self._program(value))
            except Exception as error:
                if raised_by_signal_handler(error):
                    raise
                with own_errors_dropped(), _alone(jax, device):
                    outputs.append(self._program(value))
        return outputs

    @staticmethod
    def _devices(jax: Any) -> list[Any]:
        return [device for device in jax.local_devices() if device.platform != "cpu"]


def tuiprof_waits_for_devices(value: Any) -> Any:
    """Return the negation: little to compute, with a name that identifies it in the trace."""
    return ~value


def _alone(jax: Any, device: Any) -> Any:
    """Return a context for work on one device: under a mesh of several, JAX rejects work on a subset."""
    if not hasattr(jax, "set_mesh"):
        return contextlib.nullcontext()
    return jax.set_mesh(jax.sharding.Mesh([device], ("device",)))
