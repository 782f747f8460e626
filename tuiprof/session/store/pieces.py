"""Pieces of logs, read without following them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from tuiprof.session.log.records import Head, Record
from tuiprof.system.files import UNDECODABLE, open_regular

_decoder: Final = msgspec.json.Decoder(Record)


def decode(block: bytes) -> list[Record]:
    """Return the records in a piece of a log; lines that cannot be read are left out."""
    try:
        records: list[Record] = _decoder.decode_lines(block)
        return records
    except UNDECODABLE:
        pass
    records = []
    for line in block.split(b"\n"):
        try:
            records.append(_decoder.decode(line))
        except UNDECODABLE:  # a partial or foreign line: a summary does without it
            continue
    return records


def first_head(path: Path) -> Head | None:
    """Return the head record of a log; None = none yet, or the first line is another record."""
    try:
        with open_regular(path) as file:
            record = _decoder.decode(file.readline(1 << 16))
    except (OSError, *UNDECODABLE):
        return None
    return record if isinstance(record, Head) else None
