"""Opens any trace: a file, a directory, a session, or a URL that is downloaded first."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tuiprof.errors import TraceError
from tuiprof.formats.registry import Options, recognise

# Worker processes import this module at every start, so what they do not need is imported where it is used.
if TYPE_CHECKING:
    from tuiprof.model import Trace
    from tuiprof.model.traceset import TraceSet

#: Bytes of the decompressed step beside a trace, at most, by far.
_LARGEST_BESIDE = 1 << 30


def open_trace(
    target: str | os.PathLike[str],
    *,
    rank: int | None = None,
    run: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    partial: Callable[[Trace], None] | None = None,
    workers: int | None = None,
    limit: int | None = None,
    cache: bool = True,
) -> Trace:
    """Read a profiler trace.

    Args:
        target: A file that a supported profiler wrote; a directory of them (a TensorBoard or xprof log directory,
            the ranks of a job, a tuiprof session); or a URL that fsspec can read.
        rank: Which rank of a directory; None = the lowest.
        run: Which run of a directory, or the beginning of its name; None = the newest.
        progress: Called regularly with (bytes of the file read, size of the file), from the thread that reads.
        cancelled: Called regularly; reading stops with :class:`tuiprof.formats.Cancelled` once it returns True.
        partial: Called with what has been read so far; see :class:`~tuiprof.formats.registry.Options`.
        workers: Number of worker processes; None = as many as are worth it.
        limit: Maximum size of a decompressed file, bytes; None = ``TUIPROF_MAX_INFLATED_BYTES``, else 8 GiB.
        cache: Whether a large trace is kept in the user's cache directory and taken from there the next time.

    Returns:
        The trace; its ``events`` are a Polars DataFrame with times in ns since the trace origin, and its ``trust``
        says what is missing.

    Raises:
        tuiprof.errors.TraceError: It is not a supported trace. The message says what was found and what to do.
        tuiprof.errors.UsageProblem: There is no such rank or run.

    Example:
        >>> from tuiprof.resources import shipped
        >>> trace = open_trace(shipped("traces"), run="attention-native")
        >>> trace.info.devices[0].name
        'NVIDIA H200'
        >>> trace.steps.numbers.tolist()
        [10, 11]
    """
    from tuiprof.formats.remote import fetch

    options = Options(progress, cancelled, partial, workers, limit, cache)
    opener = functools.partial(open_file, options=options)
    fetcher = functools.partial(fetch, progress=progress, cancelled=cancelled)
    return open_set(target, run=run, opener=opener, fetcher=fetcher).open(rank)


def open_file(path: Path, options: Options = Options()) -> Trace:  # noqa: B008 - it is frozen
    """Read one file, or the directory of a format that writes several.

    Raises:
        TraceError: It is not a supported trace.
        Cancelled: Opening was cancelled.
    """
    from tuiprof.formats.directory import siblings
    from tuiprof.formats.session_files import read_uncaptured, shapes_beside
    from tuiprof.system.own_process import keep_freed

    source, found = recognise(path, options.limit)
    keep_freed()
    try:
        trace = found.open(source, options)
    except MemoryError as error:
        raise TraceError(
            f"{source.path} does not fit into memory",
            "open it on a machine with more memory, or record fewer steps",
        ) from error
    trace.find_siblings = functools.partial(siblings, source.path, open_file)
    trace.uncaptured = read_uncaptured(source.path)
    if (beside := shapes_beside(source.path)) is not None:
        trace.open_shapes_step = functools.partial(_open_if_whole, beside)
    return trace


def _open_if_whole(path: Path) -> Trace | None:
    """Read a file that only adds to another one; None = it cannot be read."""
    try:
        source, found = recognise(path, _LARGEST_BESIDE)
        return found.open(source, Options(workers=1, cache=False))
    except TraceError:
        return None


def open_set(
    target: str | os.PathLike[str],
    *,
    run: str | None = None,
    opener: Callable[[Path], Trace] = open_file,
    fetcher: Callable[[str], Path] | None = None,
) -> TraceSet:
    """Find the traces of a target without reading them.

    A URL is downloaded first. ``run`` is a run's name, or the beginning of one; None = the newest.

    Raises:
        TraceError: The path does not exist, or contains no trace.
        UsageProblem: There is no such run.
    """
    from tuiprof.formats.directory import chosen, sets_in
    from tuiprof.formats.remote import fetch, is_url

    text = os.fspath(target)
    path = (fetcher or fetch)(text) if is_url(text) else Path(os.path.expanduser(text))
    return chosen(sets_in(path, opener), run)
