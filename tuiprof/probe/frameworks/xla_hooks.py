"""PyTorch/XLA, and what it has in common with JAX.

``torch_xla.sync()`` (``xm.mark_step()``) ends a step; both frameworks' profilers write XPlane files.
"""

from __future__ import annotations

import functools
import os
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Callable

from ..capture import CaptureError, Capturer
from ..requests import Request
from ..runtime import Runtime
from ..steps import SYNC

if TYPE_CHECKING:
    from ..runtime import Runtime


def step_hook(runtime: Runtime, name: str, source: int, ready: Callable[[], bool]) -> Callable[[], None]:
    """Return the function that a wrapper calls when a step may have ended; it never raises."""
    hook = runtime.hook(name)
    steps = runtime.steps

    def ended() -> None:
        if hook.on:
            try:
                t = monotonic_ns()
                if ready():
                    steps.end(source, t)
            except Exception:
                hook.failed()

    return ended


class XPlaneProfiler:
    """One window under a profiler that writes ``plugins/profile/<time>/<host>.xplane.pb`` into a folder."""

    def __init__(self, profiler: Any, name: str, capturer: Capturer) -> None:
        self._profiler = profiler
        self._name = name
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
        """Mark nothing."""

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
            raise CaptureError(f"{self._name} wrote no trace")
        return os.path.relpath(new[0], self._session)

    def abort(self) -> None:
        """Stop when running."""
        self.step_ended()
        if self._running:
            self.stop()


def newest_profile(folder: str) -> list[str]:
    """Return the XPlane files under ``folder/plugins/profile``, the newest run first."""
    found: list[str] = []
    for where, _, names in os.walk(os.path.join(folder, "plugins", "profile")):
        found += [os.path.join(where, name) for name in names if name.endswith(".xplane.pb")]
    return sorted(found, key=os.path.getmtime, reverse=True)


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
    """One window under ``torch_xla.debug.profiler``; an open range would make ``torch_xla.sync()`` fail."""

    def __init__(self, request: Request, capturer: Capturer) -> None:
        from torch_xla.debug import profiler

        if not hasattr(profiler, "start_trace"):
            raise CaptureError("this torch_xla has no profiler.start_trace; 2.1 or newer is needed")
        super().__init__(profiler, "torch_xla", capturer)
