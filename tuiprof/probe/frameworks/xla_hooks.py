"""PyTorch/XLA: ``torch_xla.sync()`` (``xm.mark_step()``) ends a step; its profiler writes XPlane files."""

from __future__ import annotations

import functools
from typing import Any

from ..capture import CaptureError, Capturer
from ..requests import Request
from ..runtime import Runtime
from ..steps import SYNC
from .xplane_capture import XPlaneProfiler, step_hook


def install(runtime: Runtime, module: Any) -> None:
    """Wrap the step marker that all versions of ``sync`` and ``mark_step`` call, once."""
    native = module._XLAC
    original = native._xla_step_marker
    if getattr(original, "_tuiprof", False):
        return
    steps = runtime.steps

    def ready() -> bool:
        # Where an optimizer is used, a sync without its step in front ends a micro-batch only.
        stepped, steps.stepped = steps.stepped, False
        return stepped or not steps.has_optimizer

    ended = step_hook(runtime, "torch_xla.sync", SYNC, ready)

    @functools.wraps(original)
    def step_marker(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        ended()
        return result

    step_marker._tuiprof = True  # type: ignore[attr-defined]
    native._xla_step_marker = step_marker
    runtime.capture.xla = XlaProfiler


class XlaProfiler(XPlaneProfiler):
    """One window under ``torch_xla.debug.profiler``; an open range would make ``torch_xla.sync()`` fail.

    Args:
        request: What to record; PyTorch/XLA always records host and device.
        capturer: Names the session.
    """

    def __init__(self, request: Request, capturer: Capturer) -> None:
        from torch_xla.debug import profiler

        if not hasattr(profiler, "start_trace"):
            raise CaptureError("this torch_xla has no profiler.start_trace; 2.1 or newer is needed")
        super().__init__(profiler, "torch_xla", capturer)
