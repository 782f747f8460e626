"""Summary of each rank: columns of bounded size, which can be joined in any order.

A summary of one file takes at most :data:`MAX_BYTES`, whatever the size of the trace, so that the client of a job of
1 000 ranks holds 100 MB.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import polars as pl

from tuiprof.model import Trace, Window

if TYPE_CHECKING:
    from tuiprof.analyses.shared.collectives import RankSteps

_Schema = dict[str, type[pl.DataType]]

#: Maximum size of the columns of one rank, bytes; :func:`summarise` enforces it with the limits below.
MAX_BYTES: Final = 100_000
MAX_STEPS: Final = 800
MAX_COLLECTIVES: Final = 1_000
MAX_KERNELS: Final = 60
MAX_FINDINGS: Final = 6

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
    """Columns of any number of ranks; the tables are joined by ``file``, kernels and collectives to ``names``."""

    files: pl.DataFrame  # one row per file, including unreadable ones
    steps: pl.DataFrame  # one row per step of a rank
    collectives: pl.DataFrame  # one row per collective
    kernels: pl.DataFrame  # one row per kernel name and rank, without collectives
    findings: pl.DataFrame  # one row per advice finding and rank
    names: pl.DataFrame  # texts of names, each once

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


def unreadable(file: int, path: str, rank: int, size: int, problem: str, remedy: str = "") -> Summary:
    """Return the summary of an unreadable file: one row with the reason."""
    row = {"file": file, "path": path, "rank": rank, "bytes": size, "host": "", "device": ""}
    return Summary(
        **{name: table(name) for name in TABLES if name != "files"},
        files=table("files", [{**row, "steps": 0, "problem": problem, "remedy": remedy}]),
    )


def merge(parts: Iterable[Summary]) -> Summary:
    """Join summaries in any order; the files are sorted by number."""
    summaries = list(parts)
    joined = {
        name: pl.concat([table(name), *(getattr(one, name) for one in summaries)], rechunk=True)
        for name in TABLES
    }
    joined["names"] = joined["names"].unique("name", keep="any")
    joined["files"] = joined["files"].sort("file")
    return Summary(**joined)


def numbered(rows: pl.DataFrame, file: int) -> pl.DataFrame:
    """Give the rows of a table to the file of a number."""
    return rows.with_columns(pl.lit(file, pl.UInt32).alias("file"))


def encode(summary: Summary) -> bytes:
    """Return a summary as bytes, for a cache or another machine."""

    def ipc(frame: pl.DataFrame) -> bytes:
        out = io.BytesIO()
        frame.write_ipc_stream(out, compression="lz4")
        return out.getvalue()

    frames = {name: getattr(summary, name) for name in TABLES}
    return msgspec.msgpack.encode({name: ipc(frame) for name, frame in frames.items() if len(frame)})


def decode(data: bytes) -> Summary:
    """Decode the bytes of :func:`encode`; raises ValueError if the bytes are not a summary, or damaged."""
    try:
        found = msgspec.msgpack.decode(data, type=dict[str, bytes])
        frames = {name: pl.read_ipc_stream(found[name]) if name in found else table(name) for name in TABLES}
    except (msgspec.MsgspecError, pl.exceptions.PolarsError, OSError) as error:
        raise ValueError(f"damaged summary: {error}") from error
    for name, frame in frames.items():
        if frame.schema != pl.Schema(SCHEMAS[name]):
            raise ValueError(f"damaged summary: columns of {name}")
    return Summary(**frames)


# -- summarising a trace ------------------------------------------------------------------------------------

#: Remaining share of a collective without waiting; at 0 it would not be launched.
_AT_ONCE: Final = 1e-3
#: Characters that are kept of a name.
_TEXT: Final = 120
#: Maximum length of an advice sentence, more than any built-in rule writes.
_SENTENCE: Final = 600
#: File names of TensorBoard's handler: host, process, time.
_WORKER: Final = re.compile(r"^(?P<host>.+?)_\d+\.\d{9,}\.pt\.trace\.json")


def summarise(trace: Trace, file: int, rank: int, size: int) -> Summary:
    """Return the columns that are kept of one rank; ``file`` is its number in the list that is gathered."""
    from tuiprof.analyses.shared.collectives import of_rank

    steps = of_rank(trace, rank)
    names: dict[int, str] = {}
    stride = _stride(len(steps.numbers), MAX_STEPS)
    collectives, each, thinned = _collectives(steps, stride, names)
    kernels = _kernels(trace, names)
    facts = _facts(trace)
    path = trace.info.path
    row = {
        "file": file,
        "path": str(path or ""),
        "rank": rank,
        "host": trace.info.host or _host_in_name(path.name if path is not None else ""),
        "device": trace.info.device_name,
        "bytes": size,
        "origin_unix_ns": trace.info.origin_unix_ns,
        "on_device": steps.on_device,
        "step_ns": float(np.median(steps.period)) if len(steps.period) else None,
        "own_share": _own_share(trace) if steps.on_device else None,
        "steps": len(steps.numbers),
        "stride": each,
        "thinned": thinned,
        "problem": "",
        "remedy": "",
        **facts,
    }
    return Summary(
        table("files", [row]),
        numbered(_steps(trace, steps, stride), file),
        numbered(collectives, file),
        numbered(kernels, file),
        numbered(_findings(trace), file),
        table("names", {"name": list(names), "text": [text[:_TEXT] for text in names.values()]}),
    )


def _host_in_name(name: str) -> str:
    match = _WORKER.match(name)
    return match["host"] if match else ""


def _key(name: str, names: dict[int, str]) -> int:
    """Return the key of a name, the same on every rank: 64 bits of a digest, unlikely to collide."""
    key = _digest(name)
    names[key] = name
    return key


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "little")


def _stride(count: int, max_steps: int) -> int:
    """Return the smallest power of two that divides a number to at most a limit.

    The step numbers kept by ranks of different length are then subsets of one another.
    """
    stride = 1
    while -(-count // stride) > max_steps:
        stride *= 2
    return stride


def _steps(trace: Trace, steps: RankSteps, stride: int) -> pl.DataFrame:
    from tuiprof.analyses.shared.scope import Scope
    from tuiprof.analyses.shared.waits import COUNTED, find

    inside = Scope.of(trace, Window()).steps
    waits = find(trace, Window())
    syncs = _count(trace.steps.step_of[waits.last[waits.apart == COUNTED]], len(trace.steps))[inside]
    launches = _count(trace.steps.step_of[trace.links.launches], len(trace.steps))[inside]
    kept = np.flatnonzero(steps.numbers % stride == 0)
    return table(
        "steps",
        {
            "step": steps.numbers[kept],
            "start": trace.steps.starts[inside][kept],
            "period_ns": steps.period[kept],
            "collective_ns": steps.collective[kept],
            "syncs": syncs[kept],
            "launches": launches[kept],
        },
    )


def _count(steps: Any, length: int) -> Any:
    return np.bincount(steps[steps >= 0], minlength=length)


def _collectives(steps: RankSteps, stride: int, names: dict[int, str]) -> tuple[pl.DataFrame, int, int]:
    """Return the collectives of every n-th step, n, and the thinning factor within a step."""
    from tuiprof.analyses.shared.collectives import gaps

    group = steps.group
    order = np.lexsort((group, steps.step))
    step, own_group = steps.step[order], group[order]
    changes = np.flatnonzero(np.diff(step, prepend=-1) | np.diff(own_group, prepend=-1))
    counts = np.diff(changes, append=len(step))
    place = np.arange(len(step)) - np.repeat(changes, counts)
    digests = [
        _digest("\n".join(steps.name[i] for i in order[low : low + count].tolist()))
        for low, count in zip(changes.tolist(), counts.tolist(), strict=True)
    ]
    sequence = np.repeat(np.array(digests, dtype=np.uint64), counts)
    names.update((one.key, one.label) for one in steps.groups)
    keys = np.array([one.key for one in steps.groups], dtype=np.uint64)
    number = steps.numbers[step] if len(step) else step
    while (kept := number % stride == 0).sum() > MAX_COLLECTIVES and len(np.unique(number[kept])) > 2:
        stride *= 2
    if not kept.any() and len(number):
        kept = number == number[0]
    thinned = _stride(int(kept.sum()), MAX_COLLECTIVES)
    kept &= place % thinned == 0
    chosen = order[kept]
    return (
        table(
            "collectives",
            {
                "step": steps.numbers[steps.step[chosen]] if len(chosen) else chosen,
                "group": keys[group[chosen]],
                "place": place[kept],
                "sequence": sequence[kept],
                "name": pl.Series([_key(steps.name[i], names) for i in chosen.tolist()], dtype=pl.UInt64),
                "start": steps.starts[chosen],
                "dur": (steps.ends - steps.starts)[chosen],
                "gap": gaps(steps.starts, steps.ends)[chosen],
            },
        ),
        stride,
        thinned,
    )


def _kernels(trace: Trace, names: dict[int, str]) -> pl.DataFrame:
    """Return the longest kernels by name, without collectives, whose length depends on other ranks."""
    from tuiprof.analyses.shared.kernel_names import category

    rows = trace.device_work[trace.is_category("kernel", rows=trace.device_work)]
    found = (
        pl.DataFrame({"code": trace.name_codes[rows].astype(np.int64), "dur": trace.lengths(rows)})
        .group_by("code")
        .agg(
            pl.len().alias("count"),
            pl.col("dur").sum().alias("total_ns"),
            pl.col("dur").median().alias("median_ns"),
        )
        .sort(["total_ns", "code"], descending=[True, False])
    )
    named = [trace.names[code] for code in found["code"].to_list()]
    own = pl.Series([category(name) != "collective" for name in named], dtype=pl.Boolean)
    found = found.filter(own).head(MAX_KERNELS)
    keys = [_key(trace.names[code], names) for code in found["code"].to_list()]
    return table("kernels", found.with_columns(pl.Series("name", keys, dtype=pl.UInt64)))


def _facts(trace: Trace) -> dict[str, float | None]:
    from tuiprof.analyses import run
    from tuiprof.analyses.shared.changes import figure_of

    return {column: figure_of(run(analysis, trace), fact) for column, (analysis, fact) in FACTS.items()}


def _own_share(trace: Trace) -> float | None:
    """Return the share of its step that a rank would take if no collective waited for others."""
    from tuiprof.analyses.shared.collectives import rows_of
    from tuiprof.analyses.shared.replay import replayed
    from tuiprof.whatif import Edit

    step, rows = replayed(trace), rows_of(trace)
    if isinstance(step, str) or not step.step_ns or not len(rows):
        return None
    no_waits = Edit(waits=rows, work=rows, keep=np.full(len(rows), _AT_ONCE))
    return 1 - step.likely_ns(no_waits) / step.step_ns


def _findings(trace: Trace) -> pl.DataFrame:
    from tuiprof.advice import priorities

    found = priorities(trace)
    rows = [
        {
            "rule": item.rule,
            "what": item.finding.what[:_SENTENCE],
            "where": item.finding.where[-_SENTENCE:],
            "instead": item.finding.instead[:_SENTENCE],
            "wins_ns": item.win.ns if item.win else None,
            "wins_low_ns": item.win.low_ns if item.win else None,
            "wins_high_ns": item.win.high_ns if item.win else None,
            "step_ns": found.step_ns,
        }
        for item in found.findings[:MAX_FINDINGS]
    ]
    return table("findings", rows or None)
