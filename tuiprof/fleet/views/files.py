"""The gathered files, unreadable ones first."""

from __future__ import annotations

import polars as pl

from tuiprof.analyses.shared.scope import plural
from tuiprof.fleet.fleet import Fleet
from tuiprof.model import Column, Fact, Report, Table, Unavailable, Verdict
from tuiprof.model.units import format_bytes

NAME, TITLE = "files", "Files"


def report(fleet: Fleet) -> Report | Unavailable:
    """List the files."""
    files = fleet.summary.files.with_columns((pl.col("problem") != "").alias("unread"))
    size = int(files["bytes"].fill_null(0).sum())
    unread = len(fleet.unread)
    said = f"{plural(len(files), 'file')} ({format_bytes(size)})"
    verdict = (
        Verdict(f"{said}: {unread} cannot be read", "warn")
        if unread
        else Verdict(f"{said}: all were read", "good")
    )
    return Report(
        NAME,
        TITLE,
        verdict,
        (
            Fact("files", "files", len(files), "count"),
            Fact("unread", "cannot be read", unread, "count"),
            Fact("bytes", "on disk", size, "bytes"),
        ),
        (
            Table(
                "files",
                "Files",
                (
                    Column("rank", "rank", "count"),
                    Column("problem", "problem"),
                    Column("remedy", "what to do"),
                    Column("steps", "steps", "count"),
                    Column("bytes", "size", "bytes"),
                    Column("path", "file", elide="start"),
                    Column("host", "host", hidden=True),
                    Column("device", "device", hidden=True),
                ),
                files.sort(["unread", "file"], descending=[True, False]),
            ),
        ),
    )
