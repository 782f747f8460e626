"""Kineto and every other Trace Event JSON: PyTorch, JAX, msprof, rocprof, viztracer, perfetto's JSON."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tuiprof.errors import TraceError
from tuiprof.formats.registry import Format, Options

if TYPE_CHECKING:
    from tuiprof.formats.kineto.reader import EventReader, RawChunks
    from tuiprof.formats.source import Source
    from tuiprof.model import Trace
    from tuiprof.model.trust import ReadStats

_JSON = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*[\[{]")
#: Seconds of reading after which a partial trace is shown.
_FIRST_PARTIAL_S = 0.4
_REMEDY = "a trace is a list of events, or an object with traceEvents"


def _sniff(head: bytes, path: Path) -> bool:
    return bool(_JSON.match(head))


def _open(source: Source, options: Options) -> Trace:
    from tuiprof.formats import cache
    from tuiprof.formats.kineto.layout import LONGEST, NotATrace
    from tuiprof.formats.kineto.pool import start_pool

    if options.cache and source.size >= cache.WORTH_KEEPING:
        from tuiprof.formats.session_files import read_sync_sites

        kept = cache.find(source, _restored, read_sync_sites(source.path))
        if kept is not None:
            return kept
    pool = start_pool(source, options.workers)
    try:
        # Here, so that numpy is imported while the workers start.
        from tuiprof.formats.kineto.reader import EventReader, RawChunks

        reader = EventReader(source, options, pool)
        size = reader.read(_Partial(reader, options))
    except NotATrace as reason:
        raise TraceError(f"{source.path} {reason}", _REMEDY) from None
    finally:
        if pool is not None:
            pool.close()
    stats = _stats(reader, size)
    if reader.overlong_at is not None and not stats.events:
        raise TraceError(
            f"{source.path} is damaged: no event ends within {LONGEST >> 20} MiB after byte {reader.overlong_at:,}",
            "record the trace again",
        )
    if reader.is_list and stats.malformed and not stats.events:
        raise TraceError(f"{source.path} is a JSON list, but not a list of events", _REMEDY)
    trace = _trace(reader, stats)
    if options.cache:
        cache.keep(source, trace, RawChunks(source, reader.chunks).saved())
    return trace


def _restored(source: Source, saved: bytes) -> RawChunks:
    from tuiprof.formats.kineto.reader import RawChunks

    return RawChunks.restored(source, saved)


class _Partial:
    """Publishes partial traces while reading takes long, at increasing intervals."""

    def __init__(self, reader: EventReader, options: Options) -> None:
        self._reader, self._options = reader, options
        self._began = time.monotonic()
        self._due = _FIRST_PARTIAL_S

    def __call__(self) -> None:
        """Publish a partial trace if it is due."""
        if self._options.partial is None or time.monotonic() - self._began < self._due:
            return
        if not self._reader.gathered.events:
            return  # the first stretch is still being decoded
        from tuiprof.model.trust import Remark

        stats = _stats(self._reader, 0)
        stats.remarks.append(Remark("partial", "still reading: later events are missing", level="bad"))
        self._options.partial(_trace(self._reader, stats, complete=False))
        self._due = 2 * (time.monotonic() - self._began)


def _stats(reader: EventReader, size: int) -> ReadStats:
    from tuiprof.formats.kineto.layout import LONGEST
    from tuiprof.model.trust import ReadStats, Remark

    stats = ReadStats(source_bytes=size, truncated=reader.truncated)
    if reader.damage is not None:
        stats.truncated = True
        stats.remarks.append(
            Remark(
                "damaged",
                f"the {reader.source.wrapping} stream is broken after {size:,} bytes: {reader.damage}",
                "copy or record the file again",
                "bad",
            )
        )
    if reader.overlong_at is not None:
        much = f"more than {LONGEST >> 20} MiB"
        stats.remarks.append(
            Remark(
                "overlong",
                f"no event ends within {LONGEST >> 20} MiB after byte {reader.overlong_at:,}: the rest is not read",
                "record the trace again",
                "bad",
            )
            if reader.truncated
            else Remark("long-tail", f"the properties after the events take {much} and are not read")
        )
    reader.gathered.count_into(stats)
    return stats


def _trace(reader: EventReader, stats: ReadStats, *, complete: bool = True) -> Trace:
    from tuiprof.formats.kineto.assemble import assemble, base_unix_ns, describe_file
    from tuiprof.formats.kineto.reader import RawChunks
    from tuiprof.formats.session_files import read_sync_sites

    return assemble(
        reader.gathered,
        describe_file(reader.source.path, reader.properties),
        stats,
        base_unix_ns=base_unix_ns(reader.properties),
        sync_sites=read_sync_sites(reader.source.path),
        raw=RawChunks(reader.source, reader.chunks),
        complete=complete,
    )


FORMAT = Format("kineto", "Trace Event JSON (PyTorch, JAX, …)", _sniff, _open)
