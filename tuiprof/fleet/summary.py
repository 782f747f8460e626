"""Summary of each rank: columns of bounded size, which can be joined in any order.

A summary of one file takes at most :data:`MOST_BYTES`, whatever the size of the trace, so that the client of a job of
1 000 ranks holds 100 MB.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Final

import msgspec
import polars as pl

_Schema = dict[str, type[pl.DataType]]

#: Maximum size of the columns of one rank, bytes; :mod:`tuiprof.fleet.summarise` enforces it with the three limits
#: below.
MOST_BYTES: Final = 100_000
MOST_STEPS: Final = 800
MOST_COLLECTIVES: Final = 1_000
MOST_KERNELS: Final = 60
MOST_FINDINGS: Final = 6

#: Facts of the reports that are compared between ranks: column of ``files`` -> (analysis, fact).
FACTS: Final = {
    "syncs_per_step": ("sync_events", "syncs_per_step"),
    "host_blocked_ns_per_step": ("sync_events", "host_blocked_ns_per_step"),
    "launches_per_step": ("kernel_launches", "launches_per_step"),
    "launch_bound_share": ("kernel_launches", "launch_bound_share"),
    "idle_share": ("device_idle", "idle_share"),
    "peak_bytes": ("memory", "peak_bytes"),
}

_FILES: Final[_Schema] = {
    "file": pl.UInt32,  # its number in the list that was gathered
    "path": pl.String,
    "rank": pl.Int64,
    "host": pl.String,  # empty = unknown
    "device": pl.String,
    "bytes": pl.Int64,
    "origin_unix_ns": pl.Int64,  # null = unknown
    "on_device": pl.Boolean,  # whether devices run the collectives
    "step_ns": pl.Float64,  # median step; null = no steps
    "own_share": pl.Float64,  # share of its step without waiting for others; null = unknown
    "steps": pl.Int64,
    "stride": pl.Int64,  # collectives are kept of every stride-th step
    "thinned": pl.Int64,  # and of them every thinned-th
    **dict.fromkeys(FACTS, pl.Float64),
    "problem": pl.String,  # why the file cannot be read; empty = readable
    "remedy": pl.String,
}
_STEPS: Final[_Schema] = {
    "file": pl.UInt32,
    "step": pl.Int64,
    "start": pl.Int64,  # ns since the trace origin
    "period_ns": pl.Int64,
    "collective_ns": pl.Int64,  # union
    "syncs": pl.UInt32,
    "launches": pl.UInt32,
}
_COLLECTIVES: Final[_Schema] = {
    "file": pl.UInt32,
    "step": pl.Int64,
    "group": pl.UInt64,  # key of its process group, whose label is in ``names``; 0 = unknown
    "place": pl.UInt32,  # position among the collectives of its group in its step
    "sequence": pl.UInt64,  # digest of the names of those, in order
    "name": pl.UInt64,  # key in ``names``
    "start": pl.Int64,
    "dur": pl.Int64,
    "gap": pl.Int64,  # ns before it in which the rank was in no collective
}
_KERNELS: Final[_Schema] = {
    "file": pl.UInt32,
    "name": pl.UInt64,
    "count": pl.UInt32,
    "total_ns": pl.Int64,
    "median_ns": pl.Int64,
}
_FINDINGS: Final[_Schema] = {
    "file": pl.UInt32,
    **dict.fromkeys(("rule", "what", "where", "instead"), pl.String),
    **dict.fromkeys(("wins_ns", "wins_low_ns", "wins_high_ns", "step_ns"), pl.Float64),
}
_NAMES: Final[_Schema] = {"name": pl.UInt64, "text": pl.String}


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """Columns of any number of ranks; the tables are joined by ``file``, kernels and collectives to ``names``.

    Attributes:
        files: One row per file, including unreadable ones.
        steps: One row per step of a rank.
        collectives: One row per collective.
        kernels: One row per kernel name and rank, without collectives.
        findings: One row per advice finding and rank.
        names: Texts of names, each once.
    """

    files: pl.DataFrame
    steps: pl.DataFrame
    collectives: pl.DataFrame
    kernels: pl.DataFrame
    findings: pl.DataFrame
    names: pl.DataFrame

    @property
    def nbytes(self) -> int:
        """Bytes of its columns in memory."""
        return sum(int(getattr(self, name).estimated_size()) for name in TABLES)


SCHEMAS: Final[dict[str, _Schema]] = {
    "files": _FILES,
    "steps": _STEPS,
    "collectives": _COLLECTIVES,
    "kernels": _KERNELS,
    "findings": _FINDINGS,
    "names": _NAMES,
}
TABLES: Final = tuple(field.name for field in fields(Summary))


def table(name: str, columns: Any = None) -> pl.DataFrame:
    """Create one of the tables of a summary; missing columns are null."""
    schema = SCHEMAS[name]
    if columns is None:
        return pl.DataFrame(schema=schema)
    made = pl.DataFrame(columns)
    missing = [pl.lit(None).alias(column) for column in schema if column not in made.columns]
    return made.with_columns(missing).select(pl.col(column).cast(kind) for column, kind in schema.items())


def empty() -> Summary:
    """Return a summary of no files."""
    return Summary(**{name: table(name) for name in TABLES})


def unreadable(file: int, path: str, rank: int, size: int, problem: str, remedy: str = "") -> Summary:
    """Return the summary of an unreadable file: one row with the reason."""
    row = {"file": file, "path": path, "rank": rank, "bytes": size, "host": "", "device": ""}
    return Summary(
        **{name: table(name) for name in TABLES if name != "files"},
        files=table("files", [{**row, "steps": 0, "problem": problem, "remedy": remedy}]),
    )


def merge(parts: Iterable[Summary]) -> Summary:
    """Join summaries; the operation is commutative and associative."""
    summaries = list(parts)
    if not summaries:
        return empty()
    if len(summaries) == 1:
        return summaries[0]
    joined = {
        name: pl.concat([getattr(one, name) for one in summaries], rechunk=True)
        for name in TABLES
        if name != "names"
    }
    names = pl.concat([one.names for one in summaries]).unique("name", keep="any")
    return Summary(**joined, names=names)


class Reduction:
    """Merges summaries as they arrive, in a binary tree: each row is copied as often as the tree is deep.

    Args:
        fan_in: Number of summaries to merge at once.
    """

    def __init__(self, fan_in: int = 16) -> None:
        self._fan_in = fan_in
        self._levels: list[list[Summary]] = [[]]

    def add(self, part: Summary) -> None:
        """Add a summary."""
        self._levels[0].append(part)
        level = 0
        while len(self._levels[level]) == self._fan_in:
            merged = merge(self._levels[level])
            self._levels[level] = []
            level += 1
            if level == len(self._levels):
                self._levels.append([])
            self._levels[level].append(merged)

    def result(self) -> Summary:
        """Return the joint summary, files ordered by number."""
        whole = merge(part for level in self._levels for part in level)
        self._levels = [[]]
        return Summary(
            **{
                name: getattr(whole, name).sort("file") if name == "files" else getattr(whole, name)
                for name in TABLES
            }
        )


class _Encoded(msgspec.Struct, array_like=True):
    tables: dict[str, bytes]


def encode(summary: Summary) -> bytes:
    """Return a summary as bytes, for a cache or another machine."""
    import io

    def ipc(frame: pl.DataFrame) -> bytes:
        out = io.BytesIO()
        frame.write_ipc_stream(out, compression="lz4")
        return out.getvalue()

    frames = {name: getattr(summary, name) for name in TABLES}
    return msgspec.msgpack.encode(
        _Encoded({name: ipc(frame) for name, frame in frames.items() if len(frame)})
    )


def decode(data: bytes) -> Summary:
    """Decode the bytes of :func:`encode`.

    Raises:
        ValueError: The bytes are not a summary, or damaged.
    """
    try:
        found = msgspec.msgpack.decode(data, type=_Encoded).tables
        frames = {name: pl.read_ipc_stream(found[name]) if name in found else table(name) for name in TABLES}
    except (msgspec.MsgspecError, pl.exceptions.PolarsError, OSError) as error:
        raise ValueError(f"damaged summary: {error}") from error
    for name, frame in frames.items():
        if frame.schema != pl.Schema(SCHEMAS[name]):
            raise ValueError(f"damaged summary: columns of {name}")
    return Summary(**frames)
