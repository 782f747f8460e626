"""The tables of a Neuron profile, from Parquet or from the older JSON, under the column names of Parquet.

Names, types and units: the profile schema reference of Neuron Explorer (7.4.0). Later schemas remove and rename:
every table and every column is optional here and looked up by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from tuiprof.errors import TraceError
from tuiprof.formats.event_table import LIMIT_NS, Ints
from tuiprof.system.own_process import available_bytes

Codes = npt.NDArray[np.uint32]

#: What a column is read as, whatever type it has in the file.
NUMBER: Final = pl.Int64
REAL: Final = pl.Float64
TEXT: Final = pl.String
Kind = type[pl.Int64] | type[pl.Float64] | type[pl.String]
Columns = Mapping[str, Kind]

TIMES: Final[Columns] = {"start_ts": NUMBER, "end_ts": NUMBER, "duration_ns": NUMBER}

_PART: Final = re.compile(r"^([A-Z][A-Za-z]+?)(?:_(\d+))?\.parquet$")

#: Sentinel for a missing time.
_NEVER: Final = -(1 << 63)

#: Tables that make a directory a Neuron profile.
TELLING: Final = frozenset(
    {"Instruction", "SystemProfileEvents", "DmaPacket", "DmaPacketAggregated", "SchemaFields"}
)

#: Array of the older JSON → table, and its keys → columns. Keys that are not named keep their name.
_JSON: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "instruction": (
        "Instruction",
        {
            "timestamp": "start_ts",
            "duration": "duration_ns",
            "evt_wait_time": "evt_wait_time_ns",
            "subgroup": "engine",
            "label": "timeline_track",
            "subgraph": "pcore_idx",
        },
    ),
    "dma": (
        "DmaPacket",
        {
            "timestamp": "start_ts",
            "duration": "duration_ns",
            "transfer_size": "transfer_bytes",
            "read_size": "read_bytes",
            "write_size": "write_bytes",
            "subgroup": "timeline_track",
            "dma_engine": "engine_idx",
        },
    ),
    "semaphore_update": ("SemaphoreUpdate", {}),
    "active_time": ("ActiveTime", {}),
    "pending_dma": ("PendingDma", {}),
    "dma_throughput": ("DmaUsage", {"transfer_rate": "current_throughput"}),
    "ham": ("Throttle", {}),
    "summary": ("Summary", {}),
    "metadata": ("Metadata", {}),
    "profile_info": ("ProfileInfo", {}),
    "neff_header": ("NeffHeader", {}),
    "warnings": ("Warning", {}),
    "cc_op": ("CcOp", {"timestamp": "start_ts", "duration": "duration_ns"}),
    **dict.fromkeys(
        ("trace_event", "trace_events"),
        ("SystemProfileEvents", {"timestamp": "start_ts", "duration": "duration_ns", "lnc_idx": "nc_idx"}),
    ),
    "cpu_util": ("CpuUsage", {"util": "util_percent"}),
    "mem_usage": ("HostMemUsage", {"usage": "used_bytes", "percent_usage": "used_percent"}),
    "device_mem_usage": ("SystemProfileHbmUsage", {}),
}
#: First key of a file of the older JSON; any table can come first.
JSON_KEYS: Final = frozenset(_JSON) | {
    "layer_summary", "nc_mem_usage", "summary_group_order", "summary_groups", "instruction_usage", "terminology",
    "neff_node", "model_info", "dma_queues_info",
}  # fmt: skip


class Tables(Protocol):
    """Gives tables by name."""

    def has(self, table: str) -> bool:
        """Tell whether a table has rows."""

    def columns(self, table: str, wanted: Columns) -> pl.DataFrame:
        """Return the requested columns that the table has; values of the wrong type are null."""

    def row(self, table: str, index: int) -> Mapping[str, Any]:
        """Return one raw row."""


class ParquetTables:
    """A directory that Neuron Explorer wrote; big tables are split over several files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files: dict[str, list[Path]] = {}
        parts = [(match, path) for path in directory.glob("*.parquet") if (match := _PART.match(path.name))]
        for match, path in sorted(parts, key=lambda part: int(part[0][2] or 0)):
            self.files.setdefault(match[1], []).append(path)

    def has(self, table: str) -> bool:
        """Tell whether a table has rows (the writer leaves out empty ones)."""
        return table in self.files

    def columns(self, table: str, wanted: Columns) -> pl.DataFrame:
        """Return the requested columns that the table has; values of the wrong type are null.

        Raises:
            TraceError: A file of the table is damaged.
        """
        frames = []
        for path in self.files.get(table, []):
            with _explained(path):
                scan = _scan(path)
                there = [name for name in scan.collect_schema().names() if name in wanted]
                _must_fit(path, _rows(scan), len(there))
                found = scan.select(there).collect()
                frames.append(pl.DataFrame([_as_kind(found[name], wanted[name]) for name in there]))
        return pl.concat(frames, how="diagonal") if frames else pl.DataFrame()

    def row(self, table: str, index: int) -> Mapping[str, Any]:
        """Return one row, untouched; raises TraceError if a file of the table is damaged."""
        for path in self.files.get(table, []):
            with _explained(path):
                scan = _scan(path)
                count = _rows(scan)
                if index < count:
                    return scan.slice(index, 1).collect().row(0, named=True)
            index -= count
        return {}


def _scan(path: Path) -> pl.LazyFrame:
    return pl.scan_parquet(path, glob=False, hive_partitioning=False)


def _rows(scan: pl.LazyFrame) -> int:
    return int(scan.select(pl.len()).collect().item())


def _must_fit(path: Path, rows: int, columns: int) -> None:
    """Reject a file that claims more rows than fit into memory: a few bytes can encode any number of rows."""
    if rows * columns * 8 > available_bytes():
        raise TraceError(
            f"{path} declares {rows:,} rows, which do not fit into memory",
            "open it on a machine with more memory",
        )


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Convert Polars exceptions for a damaged file to a TraceError."""
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, UnicodeDecodeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise TraceError(f"{path} is a damaged Parquet file: {reason}", "write or copy it again") from error


def _as_kind(column: pl.Series, kind: Kind) -> pl.Series:
    """Return a column as another kind; of lists the first item is used, and other values become null."""
    dtype = column.dtype
    if isinstance(dtype, pl.List):
        return _as_kind(column.list.first(), kind)
    if isinstance(dtype, (pl.Categorical, pl.Enum)):
        return _as_kind(column.cast(pl.String), kind)
    if dtype != kind and not dtype.is_numeric() and dtype not in (pl.String, pl.Boolean):
        return pl.Series(column.name, [None], dtype=kind).new_from_index(0, len(column))
    column = column if dtype == kind else column.cast(kind, strict=False)
    return column.set(~column.is_finite(), None) if kind is REAL else column


def _of_kind(value: Any, kind: Kind) -> Any:
    """Return a value of JSON as another kind; None if it cannot be converted."""
    if isinstance(value, list):
        return _of_kind(value[0], kind) if value and not isinstance(value[0], list) else None
    if not isinstance(value, (int, float, str)):
        return None
    if kind is TEXT:
        return value if isinstance(value, str) else str(value)
    try:
        number = float(value) if kind is REAL or isinstance(value, float) else int(value)
    except (ValueError, OverflowError):
        return None
    if not -(1 << 63) <= number < 1 << 63:
        return None
    return number if kind is REAL else int(number)


class JsonTables:
    """What ``neuron-profile view --output-format json`` wrote."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.rows: dict[str, list[Mapping[str, Any]]] = {}
        self._names: dict[str, dict[str, str]] = {}
        for key, value in document.items():
            table, names = _JSON.get(key, (key, {}))
            if isinstance(value, list):
                self.rows[table] = [row for row in value if isinstance(row, dict)]
                self._names[table] = {new: old for old, new in names.items()}

    def has(self, table: str) -> bool:
        """Tell whether a table has rows."""
        return bool(self.rows.get(table))

    def columns(self, table: str, wanted: Columns) -> pl.DataFrame:
        """Return the requested columns that the table has; values of the wrong type are null."""
        rows, names = self.rows.get(table, []), self._names.get(table, {})
        columns = []
        for name, kind in wanted.items():
            key = names.get(name, name)
            if any(key in row for row in rows):
                values = [row.get(key) for row in rows]
                try:
                    columns.append(pl.Series(name, values, dtype=kind))
                except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):  # they are mixed
                    columns.append(pl.Series(name, [_of_kind(value, kind) for value in values], dtype=kind))
        return pl.DataFrame(columns)

    def row(self, table: str, index: int) -> Mapping[str, Any]:
        """Return one raw row."""
        return self.rows[table][index]


class RawRows:
    """Shows an event's row as JSON."""

    def __init__(self, tables: Tables, stretches: list[tuple[str, int, int]]) -> None:
        self._tables = tables
        self._stretches = stretches

    def text(self, ordinal: int) -> str:
        """Return the row of an event with its table."""
        for table, first, count in self._stretches:
            if first <= ordinal < first + count:
                try:
                    row = self._tables.row(table, ordinal - first)
                except TraceError:  # overwritten: the raw text is lost
                    return ""
                return json.dumps({"table": table, **row}, default=str, ensure_ascii=False, indent=1)
        return ""


def numbers(frame: pl.DataFrame, column: str, missing: int = -1) -> pl.Series:
    """Return a column of numbers; what is missing is ``missing``."""
    if column not in frame.columns:
        return pl.Series(column, [missing], dtype=pl.Int64).new_from_index(0, len(frame))
    return frame[column].fill_null(missing)


def times(frame: pl.DataFrame) -> tuple[Ints, Ints]:
    """Return starts and lengths, ns.

    A row without a length lasts until its ``end_ts``, if it has one. A row without a start, or with implausible times,
    has length -1.
    """
    start, length, end = (
        numbers(frame, column, _NEVER).to_numpy() for column in ("start_ts", "duration_ns", "end_ts")
    )
    lost, unsaid = _no_time(start), length == _NEVER
    if unsaid.any():
        ended = ~_no_time(end) & ~lost
        length = np.where(unsaid, np.where(ended, end - np.where(ended, start, 0), 0), length)
    lost |= length >= LIMIT_NS
    if lost.any():
        length = np.where(lost, -1, length)
        start = np.where(lost, 0 if lost.all() else start[~lost].min(), start)
    return start, length


def moments(frame: pl.DataFrame) -> pl.Series:
    """Return when the rows of a table without lengths were taken, ns; null if missing."""
    at = numbers(frame, "timestamp", _NEVER)
    return at.set(pl.Series(_no_time(at.to_numpy())), None)


def _no_time(ns: Ints) -> npt.NDArray[np.bool_]:
    return (ns <= -LIMIT_NS) | (ns >= LIMIT_NS)


@dataclass(frozen=True, slots=True)
class Coded:
    """A column of text as numbers: few distinct texts stand for millions of rows."""

    codes: Codes  # index into ``words`` of each row
    words: list[str]  # the distinct texts

    def map(self, change: Callable[[str], str]) -> Coded:
        """Return the column with every text changed."""
        return Coded.of([change(word) for word in self.words], self.codes)

    @staticmethod
    def of(texts: list[str], codes: Codes) -> Coded:
        """Make a column of texts that may repeat."""
        numbered: dict[str, int] = {}
        places = np.array([numbered.setdefault(text, len(numbered)) for text in texts], dtype=np.uint32)
        if len(numbered) < len(texts):  # else each text keeps its code
            codes = places[codes]
        return Coded(codes, list(numbered))

    @staticmethod
    def same(text: str, count: int) -> Coded:
        """Make a column of one text."""
        return Coded(np.zeros(count, dtype=np.uint32), [text])

    def beside(self, other: Coded, join: Callable[[str, str], str]) -> Coded:
        """Combine two columns, row by row."""
        if len(other.words) == 1:
            return self.map(lambda word: join(word, other.words[0]))
        width = max(1, len(other.words))
        narrow = len(self.words) * width < 1 << 32
        pairs = self.codes * (np.uint32(width) if narrow else np.uint64(width)) + other.codes
        if len(self.words) * width <= 8 * len(pairs) + 1024:
            seen = np.zeros(max(1, len(self.words)) * width, dtype=bool)
            seen[pairs] = True
            found, codes = np.flatnonzero(seen), (np.cumsum(seen) - 1).astype(np.uint32)[pairs]
        else:  # a table of all possible pairs would not fit into memory
            found, codes = np.unique(pairs, return_inverse=True)
        texts = [join(self.words[pair // width], other.words[pair % width]) for pair in found.tolist()]
        return Coded.of(texts, codes.astype(np.uint32, copy=False))


def coded(frame: pl.DataFrame, column: str) -> Coded:
    """Return a column of text as numbers; what is missing is empty."""
    if column not in frame.columns:
        return Coded.same("", len(frame))
    category = frame[column].cast(pl.String).fill_null("").cast(pl.Categorical)
    distinct = category.unique()
    # Categories number the words of the whole process; renumber the ones that are here.
    numbers_here = distinct.to_physical().cast(pl.Int64).to_numpy()
    place = np.zeros(int(numbers_here.max()) + 1 if len(numbers_here) else 1, dtype=np.uint32)
    place[numbers_here] = np.arange(len(numbers_here), dtype=np.uint32)
    return Coded(place[category.to_physical().to_numpy()], distinct.cast(pl.String).to_list())


def words(frame: pl.DataFrame, column: str) -> pl.Series:
    """Return a column as text; what is missing is empty."""
    if column not in frame.columns:
        return pl.Series(column, [""], dtype=pl.String).new_from_index(0, len(frame))
    return frame[column].cast(pl.String).fill_null("")
