"""Recordings of ``neuron-monitor``: no events, but what the cores did over time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from tuiprof.errors import TraceError
from tuiprof.formats.neuron.assemble import empty
from tuiprof.formats.neuron.report import replay
from tuiprof.formats.source import Damaged, Source
from tuiprof.system.monitors import documents

if TYPE_CHECKING:
    from tuiprof.model import Trace

_GROUPS: Final = frozenset(("neuron_runtime_data", "system_data", "instance_info", "neuron_hardware_info"))
_BLOCK: Final = 1 << 18
#: Maximum length of a report line.
_LONGEST_LINE: Final = 16 << 20


def read(source: Source) -> Trace:
    """Read a recording.

    Raises:
        TraceError: There is no report in it.
    """
    from tuiprof.model import DeviceInfo, ReadStats, Remark, Trace, TraceInfo, Track

    lines = _Lines(source)
    keys: dict[str, int] = {}
    rows: list[tuple[int, str, str, float, int]] = []
    reports, devices = 0, []
    for at_s, state in replay(_reports(documents(lines))):
        reports += 1
        devices = state.devices()
        for sample in state.samples():
            track = keys.setdefault(sample.device, len(keys))
            rows += [
                (round(at_s * 1e9), sample.device, key, value, track) for key, value in sample.values.items()
            ]
    if not reports:
        raise TraceError(
            f"{source.path} contains no readable report of neuron-monitor",
            "record with `neuron-monitor > FILE`: one JSON document per report",
        )
    columns = {
        "ts": pl.Int64,
        "name": pl.String,
        "series": pl.String,
        "value": pl.Float64,
        "track": pl.UInt32,
    }
    tracks = tuple(Track(index, "other", "neuron-monitor", key, key) for key, index in keys.items())
    remark = Remark(
        "telemetry-only",
        f"{reports} report{'s' if reports != 1 else ''} of neuron-monitor: utilisation over time, but no events",
        "`device_idle` shows the utilisation; for events, capture a profile with neuron-explorer",
        "warn",
    )
    cores = [device for device in devices if device.key.startswith("nc")]
    info = TraceInfo(
        source.path,
        "neuron",
        devices=tuple(DeviceInfo(int(device.key[2:]), device.name, device.memory_bytes) for device in cores),
        framework="AWS Neuron",
        properties={"kind": "neuron-monitor", **(devices[0].details if devices else {})},
    )
    stats = ReadStats(
        events=reports,
        phases={"report": reports},
        malformed=max(0, lines.begun - reports),
        truncated=lines.damage is not None,
        remarks=[remark],
    )
    return Trace(empty(), tracks, info, stats, counters=pl.DataFrame(rows, schema=columns, orient="row"))


class _Lines:
    """The lines of a file.

    Attributes:
        begun: How many lines begin a document.
        damage: Why the compressed stream ended early; None = it did not.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.begun = 0
        self.damage: str | None = None

    def __iter__(self) -> Iterator[bytes]:
        """Yield the lines; one that is too long is split into pieces, which are not documents."""
        parts, size = list[bytes](), 0
        with self._source.stream() as stream:
            while block := self._block(stream.read_some):
                head, newline, rest = block.partition(b"\n")
                parts.append(head)
                size += len(head)
                if not newline and size <= _LONGEST_LINE:
                    continue
                yield self._counted(b"".join(parts))
                *lines, last = rest.split(b"\n")
                yield from map(self._counted, lines)
                parts, size = [last], len(last)
        yield self._counted(b"".join(parts))

    def _block(self, read: Any) -> bytes:
        try:
            block: bytes = read(_BLOCK)
        except Damaged as damage:
            self.damage = str(damage)
            return b""
        return block

    def _counted(self, line: bytes) -> bytes:
        self.begun += line.startswith(b"{")
        return line + b"\n"


def _reports(found: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the reports in documents: they themselves, or their contents if the reports are numbered."""
    for document in found:
        if _GROUPS & document.keys():
            yield document
            continue
        yield from (each for each in document.values() if isinstance(each, dict) and _GROUPS & each.keys())
