"""Shuts CUPTI down after a capture, because NVIDIA's tracing library slows every launch while it is loaded.

Kineto, PyTorch's profiler, leaves CUPTI attached when a profile ends: on an H100 launch-bound steps took 1.2 to 1.9
times as long from then on. It shuts CUPTI down if ``TEARDOWN_CUPTI=1`` is in the environment: when a profile ends it
starts a thread that waits for the next CUDA call, and the return of that call runs ``cuptiFinalize``. This has two
consequences:

- The variable is read when a profile begins, when it ends, and by that thread after the shutdown. It is set only at
  these times, and only for C code (see :mod:`.c_environ`): the script's ``os.environ`` never holds it.
- A profile that begins before the shutdown crashes or loses its kernels. So the awaited CUDA call is made here, and
  nothing continues until the thread has ended.

It is skipped if it is not known to be safe: see :func:`reason_to_keep`. On ROCm there is nothing to shut down:
Kineto's part for it has no such step. XLA calls ``cuptiFinalize`` itself when a profile ends.

Sources: pytorch/kineto ``CuptiActivityApi.cpp`` and pull requests 686, 740, 748, 823, 1169 and 1554; pytorch/pytorch
pull requests 112507 and 151124 (CUDA graphs: crashes before CUDA 12.6).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

from ..guest.c_environ import visible_to_c

_NAME = "TEARDOWN_CUPTI"
_TORCH = (
    2,
    2,
)  # the first whose Kineto takes the variable's value and initialises CUPTI again when it is needed
_CUDA_WITH_GRAPHS = (12, 6)
_WAIT_S = 2.0
_PAUSE_S = 0.0005


class Cupti:
    """CUPTI of this process.

    Attributes:
        is_down: It was shut down, and no profile ran since.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._graphs = _Graphs(torch) if _cuda(torch) < _CUDA_WITH_GRAPHS else None
        self.is_down = False

    def reason_to_keep(self, by_script: bool) -> str:
        """Return why CUPTI stays loaded after a capture; empty = it can be shut down.

        Args:
            by_script: The script has used ``torch.profiler`` itself.
        """
        if sys.platform != "linux":
            return "detaching it is only known to work on Linux"
        if _numbers(self._torch.__version__) < _TORCH:
            return f"PyTorch {self._torch.__version__} is older than {_TORCH[0]}.{_TORCH[1]}"
        if os.environ.get(_NAME, "1") != "1":
            return f"{_NAME}={os.environ[_NAME]} is set"
        for name in ("DISABLE_CUPTI_LAZY_REINIT", "CUDA_INJECTION64_PATH", "KINETO_USE_DAEMON"):
            if name in os.environ:
                return f"{name} is set"
        if "triton.profiler" in sys.modules:
            return "triton.profiler may be using it"
        if by_script:
            return "the script uses torch.profiler itself"
        if self._graphs is not None and self._graphs.captured:
            return f"the script uses CUDA graphs, which CUDA {self._torch.version.cuda} breaks when it is detached"
        return ""

    @contextmanager
    def coming_back(self) -> Iterator[None]:
        """Reset the state for a new profile, as if CUPTI had never been shut down."""
        if not self.is_down:
            yield
            return
        self.is_down = False
        with visible_to_c(_NAME, "1"):
            yield

    def taken_down_after(self, stop: Callable[[], None]) -> bool:
        """Stop a profile, and shut CUPTI down.

        Returns:
            Whether it finished in time; otherwise it happens at a later CUDA call.
        """
        before = _threads()
        with visible_to_c(_NAME, "1"):
            stop()
            waiting = _threads() - before
            self.is_down = True
            deadline = time.monotonic() + _WAIT_S
            while True:
                self._call_cuda()
                if not waiting or waiting - _threads():
                    return True
                if time.monotonic() > deadline:
                    return False
                time.sleep(_PAUSE_S)

    def _call_cuda(self) -> None:
        """Make a CUDA runtime call without cost or side effects in any stream state."""
        self._torch._C._cuda_getDevice()
        self._torch.cuda.current_stream().query()


class _Graphs:
    """Whether the script has captured CUDA graphs."""

    def __init__(self, torch: Any) -> None:
        self.captured = False
        graph = getattr(torch.cuda, "CUDAGraph", None)
        begin = getattr(graph, "capture_begin", None)
        if graph is None or begin is None:
            return

        def capture_begin(*args: Any, **kwargs: Any) -> Any:
            self.captured = True
            return begin(*args, **kwargs)

        graph.capture_begin = capture_begin


def _threads() -> set[str]:
    """Return the threads of this process."""
    return set(os.listdir("/proc/self/task"))


def _cuda(torch: Any) -> tuple[int, ...]:
    """Return the version of CUDA that PyTorch was built with; empty = none."""
    return _numbers(getattr(torch.version, "cuda", None) or "")


def _numbers(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    parts = version.split("+")[0].split(".")[:2]
    return tuple(int(part) for part in parts if part.isdecimal())
