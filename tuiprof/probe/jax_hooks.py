"""JAX: the end of a ``StepTraceAnnotation`` ends a step; ``jax.profiler`` writes XPlane files."""

from __future__ import annotations

import os
import sys
from time import monotonic_ns
from typing import Any

from .capture import Capturer
from .jax_syncs import JaxSyncWatch
from .requests import Request
from .runtime import Runtime
from .steps import ANNOTATION
from .xplane_capture import XPlaneProfiler, step_hook


def install(runtime: Runtime, module: Any) -> None:
    """Wrap ``StepTraceAnnotation``, once.

    Args:
        runtime: The probe.
        module: ``jax.profiler``, just imported.
    """
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

    def start(self) -> None:
        """Begin to record, once what earlier steps launched is done: the trace then holds the work of its own steps."""
        tuiprof_waits_for_devices()
        super().start()
        self._syncs.start()

    def stop(self) -> None:
        """Stop and write, once the steps' work is done: JAX returns from a step before it, and XLA records no more."""
        self._syncs.stop()
        tuiprof_waits_for_devices()
        super().stop()

    def finish(self) -> str:
        """Write the lines of host waits beside the trace; return the trace's path relative to the session."""
        trace = super().finish()
        self._syncs.write(os.path.join(self._session, trace.removesuffix(".xplane.pb") + ".syncs.jsonl"))
        return trace

    def step_begins(self, n: int) -> None:
        """Mark the step in the trace, where the script does not mark it itself.

        Args:
            n: Its number.
        """
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


def tuiprof_waits_for_devices() -> None:
    """Wait until every array that is still referred to has been computed; whose computation failed tells the script."""
    for array in sys.modules["jax"].live_arrays():
        try:
            array.block_until_ready()
        except Exception:  # deleted meanwhile, or its computation failed: the others count
            continue
