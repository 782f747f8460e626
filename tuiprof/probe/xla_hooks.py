"""PyTorch/XLA: ``torch_xla.sync()`` (``xm.mark_step()``) ends a step; its profiler writes XPlane files."""

from __future__ import annotations

import functools
import os
from time import monotonic_ns
from typing import Any

from .capture import CaptureError, Capturer
from .jax_hooks import newest_profile
from .requests import Request
from .runtime import Runtime
from .steps import SYNC


def install(runtime: Runtime, module: Any) -> None:
    """Wrap the step marker that all versions of ``sync`` and ``mark_step`` call, once.

    Args:
        runtime: The probe.
        module: ``torch_xla``, just imported.
    """
    native = module._XLAC
    original = native._xla_step_marker
    if getattr(original, "_tuiprof", False):
        return
    hook = runtime.hook("torch_xla.sync")
    steps = runtime.steps

    @functools.wraps(original)
    def step_marker(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if hook.on:
            try:
                t = monotonic_ns()
                # Where an optimizer is used, a sync without its step in front ends a micro-batch only.
                if steps.stepped or not steps.has_optimizer:
                    steps.stepped = False
                    steps.end(SYNC, t)
            except Exception:
                hook.failed()
        return result

    step_marker._tuiprof = True  # type: ignore[attr-defined]
    native._xla_step_marker = step_marker
    runtime.capture.xla = XlaProfiler


class XlaProfiler:
    """One window under ``torch_xla.debug.profiler``.

    Args:
        request: What to record; PyTorch/XLA always records host and device.
        capturer: Names the session.
    """

    def __init__(self, request: Request, capturer: Capturer) -> None:
        from torch_xla.debug import profiler

        if not hasattr(profiler, "start_trace"):
            raise CaptureError("this torch_xla has no profiler.start_trace; 2.1 or newer is needed")
        self._profiler = profiler
        self._session = capturer.session
        self._folder = os.path.join(capturer.session, "traces")
        self._before: set[str] = set()
        self._running = False

    def prepare(self) -> None:
        """Nothing to do ahead."""

    def start(self) -> None:
        """Begin to record."""
        self._before = set(newest_profile(self._folder))
        self._profiler.start_trace(self._folder)
        self._running = True

    def step_begins(self, n: int) -> None:
        """Mark nothing: an open range would make ``torch_xla.sync()`` fail.

        Args:
            n: Number of the step.
        """

    def step_ended(self) -> None:
        """Mark nothing."""

    def stop(self) -> None:
        """Stop and write."""
        self._running = False
        self._profiler.stop_trace()

    def finish(self) -> str:
        """Return the path of the trace relative to the session."""
        new = [path for path in newest_profile(self._folder) if path not in self._before]
        if not new:
            raise CaptureError("torch_xla wrote no trace")
        return os.path.relpath(new[0], self._session)

    def abort(self) -> None:
        """Stop when running."""
        if self._running:
            self.stop()
