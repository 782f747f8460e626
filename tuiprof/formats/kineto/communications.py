"""Reads the process group of collectives from the arguments that PyTorch writes.

They are attached to collective kernels, which have a correlation, and to the operator ``record_param_comms``, which
has an external id. They are read from the text of a chunk, independent of the decoder of its events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import polars as pl

_KEY: Final = b'"Process Group Name"'
_ARGS: Final = b'"args"'
#: Maximum distance of the arguments of one event, bytes.
_LONGEST: Final = 1 << 16
_Number = int | float | str | None


class Communication(msgspec.Struct, array_like=True):
    """The process group in the arguments of one event.

    Attributes:
        correlation: Links a kernel with its launch; None = an operator.
        external_id: Its operator, or the one that launched it.
        group: Name of the process group, unique among the groups of a rank.
        description: What the framework calls it, as ``mesh_dp``.
        ranks: Its global ranks as written; PyTorch leaves out the middle of a long list.
        size: Number of its ranks; None = not said.
    """

    correlation: int | None
    external_id: int | None
    group: str
    description: str
    ranks: str
    size: int | None


class _Arguments(msgspec.Struct):
    group: int | str = msgspec.field(name="Process Group Name")
    correlation: _Number = None
    external_id: _Number = msgspec.field(name="External id", default=None)
    description: str = msgspec.field(name="Process Group Description", default="")
    ranks: str | list[int] = msgspec.field(name="Process Group Ranks", default="")
    size: _Number = msgspec.field(name="Group size", default=None)


_decode = msgspec.json.Decoder(_Arguments).decode


def find(data: bytes, end: int) -> list[Communication]:
    """Return the process groups of the events in a stretch of text.

    Args:
        data: Events.
        end: Where the last complete event ends.
    """
    found = []
    at = data.find(_KEY, 0, end)
    while at >= 0:
        start = data.find(b"{", max(data.rfind(_ARGS, max(0, at - _LONGEST), at), 0), at)
        stop = data.find(b"}", at, at + _LONGEST) + 1
        try:
            said = _decode(data[start:stop])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass  # not arguments as PyTorch writes them
        else:
            found.append(
                Communication(
                    _whole(said.correlation),
                    _whole(said.external_id),
                    str(said.group),
                    said.description,
                    said.ranks if isinstance(said.ranks, str) else str(said.ranks),
                    _whole(said.size),
                )
            )
        at = data.find(_KEY, at + len(_KEY), end)
    return found


def _whole(value: _Number) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 1 << 63 else None


def table(found: Sequence[Communication]) -> pl.DataFrame | None:
    """Return them as a table; None when there are none."""
    if not found:
        return None
    schema = {
        "correlation": pl.Int64,
        "external_id": pl.Int64,
        "group": pl.String,
        "description": pl.String,
        "ranks": pl.String,
        "size": pl.Int64,
    }
    return pl.DataFrame([msgspec.structs.astuple(one) for one in found], schema=schema, orient="row")
