"""``tuiprof.step`` and ``tuiprof.phase``: forwarded to the probe of this process, or no-ops.

This file is also imported as ``tuiprof`` in environments without tuiprof, so it imports only the standard library.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = ["phase", "step"]

_UNKNOWN = object()
_runtime: Any = _UNKNOWN
_NOTHING = nullcontext()


def step(**metrics: float) -> None:
    """Mark the end of one training step explicitly; from the first call on, steps are no longer detected automatically.

    Metrics are recorded with the step, for example ``loss=0.3``. A device tensor is not accepted, because reading it
    would make the host wait; pass a Python number.
    """
    runtime = _runtime if _runtime is not _UNKNOWN else _find()
    if runtime is not None:
        runtime.step(metrics)


def phase(name: str) -> AbstractContextManager[None]:
    """Time a named part of a step: ``with tuiprof.phase("load"): ...``; outside a tuiprof run it does nothing.

    The time of a phase inside another one counts for the inner one only, so that phases add up. ``data``, ``forward``,
    ``backward`` and ``optimizer`` replace the automatically detected phase.
    """
    runtime = _runtime if _runtime is not _UNKNOWN else _find()
    return _NOTHING if runtime is None else runtime.phase(name)


def _find() -> Any:
    """Return the probe of this process, loaded on first use; None = not a tuiprof run."""
    global _runtime
    if "_tuiprof_probe" not in sys.modules:
        _runtime = None
    else:
        from importlib import import_module

        try:
            _runtime = import_module("_tuiprof_probe.runtime").RUNTIME
        except Exception as error:
            if import_module("_tuiprof_probe.isolation").raised_by_signal_handler(error):
                raise  # it is the script's, and the next call tries again
            _runtime = None
            sys.stderr.write(f"tuiprof: the probe could not be started: {error!r}\n")
    return _runtime
