"""JAX: the end of a ``StepTraceAnnotation`` ends a step; ``jax.profiler`` writes XPlane files."""

from __future__ import annotations

import os
import sys
from time import monotonic_ns
from typing import Any

from .capture import CaptureError, Capturer
from .requests import Request
from .runtime import Runtime
from .steps import ANNOTATION


def install(runtime: Runtime, module: Any) -> None:
    """Wrap ``StepTraceAnnotation``, once.

    Args:
        runtime: The probe.
        module: ``jax.profiler``, just imported.
    """
    annotation = module.StepTraceAnnotation
    if "_tuiprof" in vars(annotation):
        return
    hook = runtime.hook("jax.profiler.StepTraceAnnotation")
    steps = runtime.steps
    enter, leave = annotation.__enter__, annotation.__exit__

    def __enter__(self: Any) -> Any:  # noqa: N807
        if hook.on:
            try:
                steps.assembly.touch(monotonic_ns())
            except Exception:
                hook.failed()
        return enter(self)

    def __exit__(self: Any, *exc_info: Any) -> Any:  # noqa: N807
        result = leave(self, *exc_info)
        if hook.on and not steps.own_annotation:
            try:
                steps.end(ANNOTATION, monotonic_ns())
            except Exception:
                hook.failed()
        return result

    annotation.__enter__ = __enter__
    annotation.__exit__ = __exit__
    annotation._tuiprof = True
    runtime.capture.jax = JaxProfiler


class JaxProfiler:
    """One window under ``jax.profiler``.

    Args:
        request: What to record; JAX always records Python calls.
        capturer: Names the session.
    """

    def __init__(self, request: Request, capturer: Capturer) -> None:
        self._profiler = sys.modules["jax.profiler"]
        self._session = capturer.session
        self._folder = os.path.join(capturer.session, "traces")
        self._steps = capturer._steps
        self._before: set[str] = set()
        self._running = False
        self._range: Any = None

    def prepare(self) -> None:
        """Nothing to do ahead."""

    def start(self) -> None:
        """Begin to record."""
        self._before = set(newest_profile(self._folder))
        self._profiler.start_trace(self._folder)
        self._running = True

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

    def stop(self) -> None:
        """Stop and write."""
        self._running = False
        self._profiler.stop_trace()

    def finish(self) -> str:
        """Return the path of the trace relative to the session."""
        new = [path for path in newest_profile(self._folder) if path not in self._before]
        if not new:
            raise CaptureError("jax.profiler wrote no trace")
        return os.path.relpath(new[0], self._session)

    def abort(self) -> None:
        """Stop when running."""
        self.step_ended()
        if self._running:
            self.stop()


def newest_profile(folder: str) -> list[str]:
    """Return the XPlane files under ``folder/plugins/profile``, the newest run first.

    Args:
        folder: A log directory as TensorBoard and xprof read it.
    """
    found: list[str] = []
    for where, _, names in os.walk(os.path.join(folder, "plugins", "profile")):
        found += [os.path.join(where, name) for name in names if name.endswith(".xplane.pb")]
    return sorted(found, key=os.path.getmtime, reverse=True)
