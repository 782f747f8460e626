"""What JAX and PyTorch/XLA have in common: the call that ends a step, and a profiler that writes XPlane files."""

from __future__ import annotations

import os
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Callable

from ..capture import CaptureError, Capturer

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
    """One window under a profiler that writes ``plugins/profile/<time>/<host>.xplane.pb`` into a folder.

    Args:
        profiler: Has ``start_trace`` and ``stop_trace``.
        name: The framework, for messages.
        capturer: Names the session.
    """

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
