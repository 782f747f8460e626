"""Keeps the allocator's snapshot when an allocation on a GPU fails, before the exception is raised.

PyTorch calls the observer after it has given up (its cache freed, the driver asked again) and before it raises
``torch.OutOfMemoryError``, so the snapshot shows what held the memory at that moment. The script is not affected:
exception, handlers and exit status stay the same. A script that catches the error and retries with less memory
continues; the first and the last failure are kept.
"""

from __future__ import annotations

import os
import pickle
from time import monotonic_ns
from typing import Any

from ..frameworks import allocations
from ..guest.exceptions import raised_by_signal_handler
from ..guest.own_file import OwnFile

FOLDER = "memory"  # in the session
#: Maximum number of history events, if it is recorded; the oldest are dropped.
MOST_ENTRIES = 200_000
_AGAIN_NS = 1_000_000_000  # minimum interval between snapshots …
_AT_ONCE = 2  # … after this many
_MOST_RECORDS = 100


class OutOfMemoryWatch:
    """Watches for failed allocations once the script initializes CUDA.

    Args:
        runtime: The probe.
        torch: The module.
        history: Record the stack of every allocation; costs some microseconds each.
    """

    def __init__(self, runtime: Any, torch: Any, *, history: bool) -> None:
        self._runtime = runtime
        self._torch = torch
        self._history = history
        self._count = 0
        self._records = 0
        self._kept: list[str] = []
        self._taken_ns = 0
        later = getattr(torch.cuda, "_lazy_call", None)
        if later is not None and torch.backends.cuda.is_built():
            later(self._begin)  # never initializes CUDA itself: the script may fork first

    def _begin(self) -> None:
        """Attach to the allocator (while CUDA is being initialised, or at once)."""
        try:
            # It cannot be taken back: once the probe has left a process it does nothing (see _failed).
            self._torch._C._cuda_attach_out_of_memory_observer(self._failed)
            if self._history and not self._torch._C._cuda_isHistoryEnabled():
                self._torch.cuda.memory._record_memory_history(
                    "all", context="all", stacks="python", max_entries=MOST_ENTRIES
                )
                allocations.kept_for_black_box = True
        except Exception as error:
            if raised_by_signal_handler(error):
                raise
            self._runtime.note("warn", f"no snapshot will be written if memory runs out: {error!r}")

    def _failed(self, device: int, wanted: int, allocated: int, free: int) -> None:
        """Write a snapshot of the memory; called by the allocator, which raises afterwards."""
        try:
            if self._runtime.has_left or self._records >= _MOST_RECORDS:
                return
            self._records += 1
            path, why = self._snapshot()
            fields = {
                "n": self._runtime.steps.n,
                "dev": int(device),
                "wanted": int(wanted),
                "free": int(free),
            }
            self._runtime.black_box.write("oom", **fields, path=path, why=why)
        except Exception as error:
            if raised_by_signal_handler(error):
                raise

    def _snapshot(self) -> tuple[str, str]:
        """Write a snapshot; return its path in the session, or why there is none."""
        now = monotonic_ns()
        if self._count >= _AT_ONCE and now - self._taken_ns < _AGAIN_NS:
            return "", "another snapshot was written less than a second before"
        self._count += 1
        path = f"{FOLDER}/oom-{os.getpid()}-{self._count}.pickle"
        session = self._runtime.session
        try:
            data = pickle.dumps(self._torch.cuda.memory._snapshot(), protocol=4)
            os.makedirs(os.path.join(session, FOLDER), exist_ok=True)
            file = OwnFile(os.path.join(session, path))
            try:
                file.append(data)
            finally:
                file.close()
            self._kept.append(path)
            if len(self._kept) > 2:
                os.unlink(os.path.join(session, self._kept.pop(1)))
        except Exception as error:
            if raised_by_signal_handler(error):
                raise
            return "", f"{type(error).__name__}: {error}"[:300]
        finally:
            self._taken_ns = monotonic_ns()
        return path, ""
