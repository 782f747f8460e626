"""Profiles of AWS Neuron: Explorer's Parquet directories, the older JSON exports, neuron-monitor recordings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuiprof.errors import TraceError
from tuiprof.formats.registry import Format, Options, first_bytes
from tuiprof.formats.source import Damaged, Source

if TYPE_CHECKING:
    from tuiprof.formats.neuron.tables import Tables
    from tuiprof.model import Remark, Trace

_FIRST_KEY = re.compile(rb'\s*\{\s*"([^"\\]{1,80})"\s*:\s*(.)')
_SUMMARY_KEY = re.compile(rb"^[ns]_[0-9a-zA-Z]{6,}$")
_MONITOR = re.compile(rb'"(?:neuron_runtime_data|neuron_hardware_info)"\s*:')
#: Schema versions whose columns are known, by their major number.
_KNOWN_SCHEMAS = ("7", "12")


def _sniff(head: bytes, path: Path) -> bool:
    from tuiprof.formats.neuron.captures import is_capture

    return is_capture(head, path) or bool(_kind(head, path))


def _kind(head: bytes, path: Path) -> str:
    """Return the kind of a file by its first bytes: ``parquet``, ``json``, ``summary``, ``monitor``, or empty."""
    if head.startswith(b"PAR1"):
        return "parquet" if _is_profile(path.parent) else ""
    match = _FIRST_KEY.match(head)
    if match is None or b'"traceEvents"' in head:
        return ""
    if _SUMMARY_KEY.match(match[1]):
        return "summary"
    # It loads Polars, which other formats need only at the end.
    from tuiprof.formats.neuron.tables import JSON_KEYS

    if match[2] == b"[" and match[1].decode("utf-8", "replace") in JSON_KEYS:
        return "json"
    return "monitor" if _MONITOR.search(head) else ""


def _is_profile(path: Path) -> bool:
    from tuiprof.formats.neuron.tables import TELLING, ParquetTables

    return bool(TELLING & ParquetTables(path).files.keys())


def _profiles(path: Path) -> list[Path]:
    """Return the profiles that Explorer wrote below a directory."""
    below = ("*@latest", "global/*@latest", "profiles/global/*@latest")
    return sorted(found for pattern in below for found in path.glob(pattern) if _is_profile(found))


def _directory(path: Path) -> bool:
    from tuiprof.formats.neuron.captures import is_capture_directory

    return _is_profile(path) or bool(_profiles(path)) or is_capture_directory(path)


def _open(source: Source, options: Options) -> Trace:
    from tuiprof.formats.neuron import captures, monitor
    from tuiprof.formats.neuron.tables import JsonTables, ParquetTables

    path = source.path
    if path.is_dir():
        if not _is_profile(path):
            path = _choose(path)
        trace = _read(ParquetTables(path), path, None)
    else:
        head = first_bytes(source)
        if captures.is_capture(head, path):
            raise captures.refusal(path)
        kind = _kind(head, path)
        if kind == "parquet":
            trace = _read(ParquetTables(path.parent), path.parent, None)
        elif kind == "monitor":
            trace = monitor.read(source)
        else:
            document = _json(source)
            trace = _read(JsonTables({} if kind == "summary" else document), path, document)
    if options.progress is not None:
        options.progress(source.size, source.size)
    return trace


def _choose(path: Path) -> Path:
    from tuiprof.formats.neuron.captures import refusal

    found = _profiles(path)
    if not found:
        raise refusal(path)
    if len(found) > 1:
        names = ", ".join(str(each.relative_to(path)) for each in found[:5])
        raise TraceError(f"{path} contains {len(found)} Neuron profiles", f"open one of {names}")
    return found[0]


def _json(source: Source) -> dict[str, Any]:
    import msgspec

    try:
        document = msgspec.json.decode(source.whole())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, Damaged) as error:
        raise TraceError(f"{source.path} is damaged: {error}", "export or copy it again") from error
    if not isinstance(document, dict):
        raise TraceError(f"{source.path} is not a Neuron profile: its JSON is not an object")
    return document


def _read(tables: Tables, path: Path, document: dict[str, Any] | None) -> Trace:
    from tuiprof.formats.neuron import profiles
    from tuiprof.formats.neuron.tables import RawRows
    from tuiprof.model import DeviceInfo, ReadStats, Trace, TraceInfo

    of_system = profiles.read_system(tables)
    joined = profiles.join(of_system or profiles.read_device(tables), from_first=bool(of_system))
    properties = _properties(tables, document)
    remarks = _remarks(tables, properties, joined.events.is_empty())
    read = ReadStats(
        events=sum(count for _, _, count in joined.ordinals),
        phases={table: count for table, _, count in joined.ordinals},
        malformed=joined.lost,
        remarks=remarks,
    )
    if of_system:
        tracks = profiles.system_tracks(joined.tracks)
        counters, instants = profiles.system_counters(tables, tracks, joined.origin), None
    else:
        tracks = profiles.device_tracks(joined.tracks)
        counters, instants = (
            profiles.device_counters(tables, tracks),
            profiles.device_instants(tables, tracks),
        )
    cores = sorted({track.device for track in tracks if track.device is not None})
    kind = next(
        filter(None, (_nested(properties, key, "instance_type") for key in ("metadata", "summary"))), ""
    )
    info = TraceInfo(
        path,
        "neuron",
        joined.origin if of_system else None,
        tuple(DeviceInfo(core, f"NeuronCore {core}" + (f" ({kind})" if kind else "")) for core in cores),
        framework="AWS Neuron",
        properties=properties,
    )
    return Trace(
        joined.events,
        tracks,
        info,
        read,
        instants=instants,
        counters=counters,
        raw=RawRows(tables, joined.ordinals),
    )


def _properties(tables: Tables, document: dict[str, Any] | None) -> dict[str, object]:
    properties: dict[str, object] = {}
    for table, key in (
        ("Metadata", "metadata"),
        ("Summary", "summary"),
        ("NeffHeader", "neff_header"),
        ("ProfileInfo", "profile_info"),
        ("SystemProfileMetadata", "system_metadata"),
    ):
        if tables.has(table):
            properties[key] = dict(tables.row(table, 0))
    if document is not None and not properties:
        properties["summary"] = document  # a summary export: one object a program
    return properties


def _nested(properties: dict[str, object], key: str, inner: str) -> object:
    value = properties.get(key)
    return value.get(inner) if isinstance(value, dict) else None


def _remarks(tables: Tables, properties: dict[str, object], no_events: bool) -> list[Remark]:
    from tuiprof.formats.neuron.tables import TEXT
    from tuiprof.model import Remark

    remarks = []
    version = str(_nested(properties, "metadata", "profile_schema_version") or "")
    if version and version.partition(".")[0] not in _KNOWN_SCHEMAS:
        remarks.append(
            Remark(
                "schema", f"profile schema {version}: read with the column names of 7.4 and 12", level="warn"
            )
        )
    if _nested(properties, "metadata", "is_simulation"):
        remarks.append(Remark("simulation", "a simulation by the compiler, not a measurement", level="bad"))
    for table, column in (("Warning", "message"), ("Error", "description")):
        if tables.has(table):
            texts = tables.columns(table, {column: TEXT})
            said = (
                texts[column].drop_nulls().unique(maintain_order=True).to_list()[:20] if texts.width else []
            )
            remarks += [
                Remark(f"neuron-{table.lower()}", f"Neuron says: {text}", level="warn") for text in said
            ]
    if no_events:
        remarks.append(
            Remark(
                "summary-only",
                "a summary without events",
                "export the profile as Parquet: neuron-explorer view … --output-format parquet",
                "bad",
            )
        )
    return remarks


FORMAT = Format(
    "neuron", "AWS Neuron profile (Parquet directory, JSON)", _sniff, _open, order=30, directory=_directory
)
