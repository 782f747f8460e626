"""tuiprof: a terminal dashboard that profiles model training.

Two things may be imported in a training script without cost: :func:`step` and :func:`phase`. They speak to
the probe when the script was launched by ``tuiprof run`` or ``tuiprof record`` and do nothing otherwise.

For notebooks and scripts, :func:`open_trace` reads a profiler trace into the model every screen and report uses,
:mod:`tuiprof.analyses` answers questions about it, and :func:`compare` says what changed between two::

    >>> import tuiprof
    >>> from tuiprof.resources import shipped
    >>> trace = tuiprof.open_trace(shipped("traces") / "metrics-naive.pt.trace.json.gz")
    >>> trace.events.select("ts", "dur", "name", "category").height
    23982
    >>> syncs = tuiprof.analyses.run("sync_events", trace)
    >>> syncs.fact("syncs_per_step")
    2.0
    >>> syncs.table("groups").rows["where"].to_list()
    ['torchmetrics/aggregation.py:93']

An analysis answers with a :class:`~tuiprof.model.Report` or, where the trace cannot tell, with
:class:`~tuiprof.model.Unavailable` and the reason; what goes wrong is a :class:`~tuiprof.errors.TuiprofError`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tuiprof.probe.api import phase, step

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from tuiprof import analyses, errors, model
    from tuiprof.model import Report, Trace

__version__ = "0.1.0"
__all__ = ["__version__", "analyses", "compare", "errors", "model", "open_trace", "phase", "step"]

#: Loaded on first use: a training script that marks its steps pays for none of them.
_LAZY = ("analyses", "errors", "model")


def open_trace(
    target: str | os.PathLike[str],
    *,
    rank: int | None = None,
    run: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    workers: int | None = None,
    limit: int | None = None,
    cache: bool = True,
) -> Trace:
    """Read one profiler trace.

    Args:
        target: A file that a supported profiler wrote; a directory of them (a TensorBoard or xprof log directory,
            the ranks of a job, a tuiprof session); or a URL that fsspec can read.
        rank: Which rank of a directory; None = the lowest.
        run: Which run of a directory, or the beginning of its name; None = the newest.
        progress: Called now and then with (bytes of the file read, size of the file), from the thread that reads.
        cancelled: Asked now and then; reading stops with :class:`tuiprof.formats.Cancelled` once it answers True.
        workers: Processes that decode beside the reader; None = as many as pay.
        limit: Bytes a compressed file may inflate to; None = ``TUIPROF_MAX_INFLATED_BYTES``, else 8 GiB.
        cache: Whether a large trace is kept in the user's cache directory and taken from there the next time.

    Returns:
        The trace; its ``events`` are a Polars DataFrame with times in ns since the trace origin, and its ``trust``
        says what is missing.

    Raises:
        tuiprof.errors.TraceError: It is not a trace, or not one that tuiprof reads. The message says what was found
            and what to do.
        tuiprof.errors.UsageProblem: There is no such rank or run.

    Example:
        >>> from tuiprof.resources import shipped
        >>> trace = open_trace(shipped("traces"), run="attention-native")
        >>> trace.info.devices[0].name
        'NVIDIA H200'
        >>> trace.steps.numbers.tolist()
        [10, 11]
    """
    import os
    from pathlib import Path

    from tuiprof import formats
    from tuiprof.formats.directory import open_set
    from tuiprof.formats.remote import fetch, is_url

    url = str(target)
    path = (
        fetch(url, progress=progress, cancelled=cancelled)
        if is_url(url)
        else Path(os.path.expanduser(target))
    )
    found = open_set(path, run=run) if path.is_dir() or run is not None or rank is not None else None
    trace = formats.open_trace(
        path if found is None else found.file(rank).path,
        progress=progress,
        cancelled=cancelled,
        workers=workers,
        limit=limit,
        cache=cache,
    )
    if found is not None and len(found) > 1:
        trace.siblings = found
    return trace


def compare(before: str | os.PathLike[str] | Trace, after: str | os.PathLike[str] | Trace) -> Report:
    """Say what changed between two runs: step time, kernels, launches, syncs.

    Args:
        before: The baseline: a trace, or what ``tuiprof compare`` takes (a file, directory, URL, session, or
            ``LADDER:VARIANT``).
        after: What to judge.

    Returns:
        The report; differences are after minus before, so negative is faster.

    Raises:
        tuiprof.errors.TuiprofError: One of them cannot be found or read.

    Example:
        >>> from tuiprof.resources import shipped
        >>> traces = shipped("traces")
        >>> report = compare(
        ...     traces / "metrics-naive.pt.trace.json.gz", traces / "metrics-no-nan-check.pt.trace.json.gz"
        ... )
        >>> report.verdict.sentence
        'a step is 10.5 % faster: 28.4 ms before, 25.5 ms after (95 %: −11.7 % to −9.2 %, 4 and 4 steps)'
    """
    import os

    from tuiprof.comparison.sides import Side, compare_sides, open_side
    from tuiprof.model import Trace

    def side(one: str | os.PathLike[str] | Trace, name: str) -> Side:
        if not isinstance(one, Trace):
            return open_side(os.fspath(one))
        path = one.info.path
        return Side(name, path.name if path is not None else name, one)

    return compare_sides(side(before, "before"), side(after, "after"))


def __dir__() -> list[str]:
    """Return what there is, loaded or not: notebooks complete names from it."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Load a part of the library on first use."""
    if name in _LAZY:
        return import_module(f"tuiprof.{name}")
    raise AttributeError(f"module 'tuiprof' has no attribute {name!r}")
