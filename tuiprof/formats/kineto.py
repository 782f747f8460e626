"""Kineto and every other Trace Event JSON: PyTorch, JAX, msprof, rocprof, viztracer, perfetto's JSON."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuiprof.errors import TraceError
from tuiprof.formats import Cancelled, Format, Options
from tuiprof.formats.chrome import layout
from tuiprof.formats.chrome.about import base_unix_ns, describe_file
from tuiprof.formats.chrome.decode import Chunk, ChunkDecoder
from tuiprof.formats.chrome.raw import ChunkPlace, RawChunks
from tuiprof.formats.chrome.stretches import Stretches
from tuiprof.formats.sidecar import read_sync_sites
from tuiprof.formats.source import Damaged, Source
from tuiprof.model.trust import ReadStats, Remark

if TYPE_CHECKING:
    from tuiprof.model import Trace

_JSON = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*[\[{]")


def _sniff(head: bytes, path: Path) -> bool:
    return bool(_JSON.match(head))


class Reader:
    """Reads one file."""

    def __init__(self, source: Source, options: Options) -> None:
        self.source = source
        self.options = options
        self.stats = ReadStats()
        self.chunks: list[Chunk] = []
        self.places: list[ChunkPlace] = []
        self.properties: dict[str, Any] = {}

    def read(self) -> Trace:
        """Read the file to its end."""
        from tuiprof.formats.chrome.assemble import assemble

        with self.source.stream() as stream:
            stretches = Stretches(stream)
            try:
                head = stretches.open()
            except layout.NotATrace as reason:
                raise TraceError(
                    f"{self.source.path} {reason}",
                    "a trace is a list of events, or an object with traceEvents",
                ) from None
            self.properties.update(head.properties)
            self._read_events(stretches)
            self.stats.source_bytes = stream.at
            if stretches.damage is not None:
                self.stats.truncated = True
                self.stats.remarks.append(
                    Remark(
                        "damaged",
                        f"the {self.source.wrapping} stream is broken after {stream.at:,} bytes: {stretches.damage}",
                        "copy or record the file again",
                        "bad",
                    )
                )
        if (
            head.is_list
            and not any(chunk.phases.keys() - {"?"} for chunk in self.chunks)
            and self._any_events()
        ):
            raise TraceError(f"{self.source.path} is a JSON list, but not of events")
        return assemble(
            self.chunks,
            describe_file(self.source.path, self.properties),
            self.stats,
            base_unix_ns=base_unix_ns(self.properties),
            sync_sites=read_sync_sites(self.source.path),
            raw=RawChunks(self.source, self.places),
        )

    def _any_events(self) -> bool:
        return any(chunk.events or chunk.malformed for chunk in self.chunks)

    def _read_events(self, stretches: Stretches) -> None:
        decoder = ChunkDecoder()
        for offset, data in stretches:
            self._report(stretches.consumed)
            chunk = decoder.decode(data)
            self._keep(chunk, offset, len(data))
            if chunk.closed_at is not None:
                tail = layout.tail_properties(data[chunk.closed_at :] + stretches.remainder())
                if tail is None:
                    self.stats.truncated = True
                else:
                    self.properties.update(tail)
                return
            stretches.give_back(data[chunk.rest :])
        self.stats.truncated = True

    def _keep(self, chunk: Chunk, offset: int, length: int) -> None:
        self.places.append(ChunkPlace(chunk.events, offset, length, chunk.strict))
        self.chunks.append(chunk)

    def _report(self, consumed: int) -> None:
        if self.options.cancelled is not None and self.options.cancelled():
            raise Cancelled(f"stopped reading {self.source.path}")
        if self.options.progress is not None:
            self.options.progress(min(consumed, self.source.size), self.source.size)


def _open(source: Source, options: Options) -> Trace:
    try:
        return Reader(source, options).read()
    except Damaged as damage:  # before the first event
        raise TraceError(
            f"{source.path} is a damaged {source.wrapping} file: {damage}", "copy or record it again"
        ) from damage


FORMAT = Format("kineto", "Trace Event JSON (PyTorch, JAX, …)", _sniff, _open)
