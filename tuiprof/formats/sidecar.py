"""Reads the source lines of host waits that the probe wrote next to a trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

if TYPE_CHECKING:
    import polars as pl

_ENDINGS = (
    *(".pt.trace.json.gz", ".pt.trace.json", ".trace.json.gz", ".trace.json", ".json.gz", ".json"),
    *(".xplane.pb.gz", ".xplane.pb"),
)


#: Bytes of what the probe writes at most, by far.
_LARGEST = 256 << 20


#: What 64-bit columns hold, with room for sums: the file may be damaged.
_Whole = Annotated[int, msgspec.Meta(ge=-(1 << 60), le=1 << 60)]


class _Site(msgspec.Struct):
    unix_ns: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
    tid: _Whole
    what: str
    frames: list[str]
    dur_ns: _Whole | None = None


def sidecar_name(trace: str) -> str:
    """Return the name of the file next to a trace."""
    stem = next(
        (trace.removesuffix(end) for end in _ENDINGS if trace.endswith(end)), trace.rpartition(".")[0]
    )
    return f"{stem}.syncs.jsonl"


def read_sync_sites(trace: Path) -> pl.DataFrame | None:
    """Return the table of :attr:`tuiprof.model.Trace.sync_sites` from a trace's ``<stem>.syncs.jsonl``; None without
    one.
    """
    try:
        beside = trace.with_name(sidecar_name(trace.name))
        if not beside.is_file() or beside.stat().st_size > _LARGEST:
            return None  # not recorded
        lines = beside.read_bytes().splitlines()
    except OSError:
        return None
    import polars as pl

    decode = msgspec.json.Decoder(_Site).decode
    sites: list[_Site] = []
    for line in lines:
        try:
            sites.append(decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue  # the last line of a probe that was killed
    return pl.DataFrame(
        {
            "unix_ns": [site.unix_ns for site in sites],
            "tid": [site.tid for site in sites],
            "what": [site.what for site in sites],
            "frames": [site.frames for site in sites],
            "dur_ns": [site.dur_ns for site in sites],
        },
        schema={
            "unix_ns": pl.Int64,
            "tid": pl.Int64,
            "what": pl.String,
            "frames": pl.List(pl.String),
            "dur_ns": pl.Int64,
        },
    ).sort("unix_ns")
