"""The tables of a Neuron profile, from Parquet or from the older JSON, under the column names of Parquet.

Names, types and units: the profile schema reference of Neuron Explorer (7.4.0). Later schemas remove and rename:
every table and every column is optional here and looked up by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from tuiprof.errors import TraceError

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint32]

_PART: Final = re.compile(r"^([A-Z][A-Za-z]+?)(?:_(\d+))?\.parquet$")

#: Stands for a time that is not said.
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
    "trace_event": (
        "SystemProfileEvents",
        {"timestamp": "start_ts", "duration": "duration_ns", "lnc_idx": "nc_idx"},
    ),
    "trace_events": (
        "SystemProfileEvents",
        {"timestamp": "start_ts", "duration": "duration_ns", "lnc_idx": "nc_idx"},
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

    def columns(self, table: str, wanted: Iterable[str]) -> pl.DataFrame:
        """Return those of the wanted columns that the table has."""

    def row(self, table: str, index: int) -> Mapping[str, Any]:
        """Return one row, untouched."""


class ParquetTables:
    """A directory that Neuron Explorer wrote; big tables are split over several files.

    Args:
        directory: The directory.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files: dict[str, list[Path]] = {}
        parts = [(match, path) for path in directory.glob("*.parquet") if (match := _PART.match(path.name))]
        for match, path in sorted(parts, key=lambda part: int(part[0][2] or 0)):
            self.files.setdefault(match[1], []).append(path)

    def has(self, table: str) -> bool:
        """Tell whether a table has rows (the writer leaves out empty ones)."""
        return table in self.files

    def columns(self, table: str, wanted: Iterable[str]) -> pl.DataFrame:
        """Return those of the wanted columns that the table has.

        Args:
            table: Its name.
            wanted: Column names.

        Raises:
            TraceError: A file of the table is damaged.
        """
        wanted, frames = list(wanted), []
        for path in self.files.get(table, []):
            try:
                scan = pl.scan_parquet(path)
                there = scan.collect_schema().names()
                frames.append(scan.select([name for name in wanted if name in there]).collect())
            except (pl.exceptions.PolarsError, OSError) as error:
                reason = str(error).splitlines()[0][:200]
                raise TraceError(
                    f"{path} is a damaged Parquet file: {reason}", "write or copy it again"
                ) from error
        return pl.concat(frames, how="diagonal_relaxed") if frames else pl.DataFrame()

    def row(self, table: str, index: int) -> Mapping[str, Any]:
        """Return one row, untouched.

        Args:
            table: Its name.
            index: Row over all of its files.
        """
        for path in self.files.get(table, []):
            scan = pl.scan_parquet(path)
            count = int(scan.select(pl.len()).collect().item())
            if index < count:
                return scan.slice(index, 1).collect().row(0, named=True)
            index -= count
        return {}


class JsonTables:
    """What ``neuron-profile view --output-format json`` wrote.

    Args:
        document: The decoded file.
    """

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

    def columns(self, table: str, wanted: Iterable[str]) -> pl.DataFrame:
        """Return those of the wanted columns that the table has.

        Args:
            table: Its name.
            wanted: Column names.
        """
        rows, names = self.rows.get(table, []), self._names.get(table, {})
        columns = {}
        for name in wanted:
            key = names.get(name, name)
            if any(key in row for row in rows):
                values = [row.get(key) for row in rows]
                columns[name] = pl.Series(name, values, strict=False)
        return pl.DataFrame(columns)

    def row(self, table: str, index: int) -> Mapping[str, Any]:
        """Return one row, untouched.

        Args:
            table: Its name.
            index: Its index.
        """
        return self.rows[table][index]


class RawRows:
    """Shows an event's row as JSON.

    Args:
        tables: The tables.
        stretches: Table of each stretch of ordinals, in order, with the first ordinal of each and its rows.
    """

    def __init__(self, tables: Tables, stretches: list[tuple[str, int, int]]) -> None:
        self._tables = tables
        self._stretches = stretches

    def text(self, ordinal: int) -> str:
        """Return the row of an event with its table.

        Args:
            ordinal: Its ordinal.
        """
        for table, first, count in self._stretches:
            if first <= ordinal < first + count:
                row = self._tables.row(table, ordinal - first)
                return json.dumps({"table": table, **row}, default=str, ensure_ascii=False, indent=1)
        return ""


def numbers(frame: pl.DataFrame, column: str, missing: int = -1) -> pl.Series:
    """Return a column as int64; what is missing, or no number, is ``missing``. Numbers may be written as text.

    Args:
        frame: The table.
        column: Its name.
        missing: What stands for null.
    """
    if column not in frame.columns:
        return pl.Series(column, [missing], dtype=pl.Int64).new_from_index(0, len(frame))
    return frame[column].cast(pl.Int64, strict=False).fill_null(missing)


def times(frame: pl.DataFrame) -> tuple[Ints, Ints]:
    """Return starts and lengths, ns.

    A row without a length lasts until its ``end_ts``, where it has one. One without a start lies nowhere: its length is
    -1.

    Args:
        frame: The table, with ``start_ts``, ``duration_ns`` and ``end_ts``, each as far as it is there.
    """
    start, length = (numbers(frame, column, _NEVER).to_numpy() for column in ("start_ts", "duration_ns"))
    unsaid, lost = length == _NEVER, start == _NEVER
    if unsaid.any():
        end = numbers(frame, "end_ts", _NEVER).to_numpy()
        length = np.where(unsaid, np.where(end == _NEVER, 0, end - start), length)
    if lost.any():
        length = np.where(lost, -1, length)
        start = np.where(lost, 0 if lost.all() else start[~lost].min(), start)
    return start, length


@dataclass(frozen=True, slots=True)
class Coded:
    """A column of text as numbers: few distinct texts stand for millions of rows.

    Attributes:
        codes: Index into ``words`` of each row.
        words: The distinct texts.
    """

    codes: Codes
    words: list[str]

    def map(self, change: Callable[[str], str]) -> Coded:
        """Return the column with every text changed.

        Args:
            change: From a text to the new one.
        """
        return Coded.of([change(word) for word in self.words], self.codes)

    @staticmethod
    def of(texts: list[str], codes: Codes) -> Coded:
        """Make a column of texts that may repeat.

        Args:
            texts: Texts by code.
            codes: Code of each row.
        """
        numbered: dict[str, int] = {}
        places = np.array([numbered.setdefault(text, len(numbered)) for text in texts], dtype=np.uint32)
        if len(numbered) < len(texts):  # else each text keeps its code
            codes = places[codes]
        return Coded(codes, list(numbered))

    @staticmethod
    def same(text: str, count: int) -> Coded:
        """Make a column of one text.

        Args:
            text: The text.
            count: Number of rows.
        """
        return Coded(np.zeros(count, dtype=np.uint32), [text])

    def beside(self, other: Coded, join: Callable[[str, str], str]) -> Coded:
        """Put two columns together.

        Args:
            other: The other column.
            join: From both texts of a row to one.
        """
        if len(other.words) == 1:
            return self.map(lambda word: join(word, other.words[0]))
        width = max(1, len(other.words))
        narrow = len(self.words) * width < 1 << 32
        pairs = self.codes * (np.uint32(width) if narrow else np.uint64(width)) + other.codes
        seen = np.zeros(max(1, len(self.words)) * width, dtype=bool)
        seen[pairs] = True
        found = np.flatnonzero(seen)
        place = (np.cumsum(seen) - 1).astype(np.uint32)
        texts = [join(self.words[pair // width], other.words[pair % width]) for pair in found.tolist()]
        return Coded.of(texts, place[pairs])


def coded(frame: pl.DataFrame, column: str) -> Coded:
    """Return a column of text as numbers; what is missing is empty.

    Args:
        frame: The table.
        column: Its name.
    """
    if column not in frame.columns:
        return Coded.same("", len(frame))
    category = frame[column].cast(pl.String, strict=False).fill_null("").cast(pl.Categorical)
    distinct = category.unique()
    # Categories number the words of the whole process; renumber the ones that are here.
    numbers_here = distinct.to_physical().cast(pl.Int64).to_numpy()
    place = np.zeros(int(numbers_here.max()) + 1 if len(numbers_here) else 1, dtype=np.uint32)
    place[numbers_here] = np.arange(len(numbers_here), dtype=np.uint32)
    return Coded(place[category.to_physical().to_numpy()], distinct.cast(pl.String).to_list())


def words(frame: pl.DataFrame, column: str) -> pl.Series:
    """Return a column as text; what is missing is empty.

    Args:
        frame: The table.
        column: Its name.
    """
    if column not in frame.columns:
        return pl.Series(column, [""], dtype=pl.String).new_from_index(0, len(frame))
    return frame[column].cast(pl.String, strict=False).fill_null("")
