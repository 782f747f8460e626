"""tuiprof: a terminal dashboard that profiles model training.

Two things may be imported in a training script without cost: :func:`step` and :func:`phase`. They speak to
the probe when the script was launched by ``tuiprof run`` or ``tuiprof record`` and do nothing otherwise.
For notebooks, :func:`open_trace` reads a profiler trace into the model every screen and report uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tuiprof.probe.api import phase, step

if TYPE_CHECKING:
    import os

    from tuiprof.model import Trace

__version__ = "0.1.0"
__all__ = ["__version__", "open_trace", "phase", "step"]


def open_trace(path: str | os.PathLike[str], **options: Any) -> Trace:
    """Read one profiler trace.

    Args:
        path: A file written by a supported profiler.
        **options: Passed to :func:`tuiprof.formats.open_trace`.

    Returns:
        The trace; its ``events`` are a Polars DataFrame.

    Raises:
        tuiprof.errors.TraceError: The file is not a trace, or not one that tuiprof reads. The message
            says what was found and what to do.
    """
    from tuiprof.formats import open_trace as open_

    return open_(path, **options)
