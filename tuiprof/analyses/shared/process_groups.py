"""Which process group each collective of a rank belongs to, and which ranks are in it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from tuiprof.model import Trace
from tuiprof.model.intervals import Ints

#: The PyTorch operator with the group of a collective, if its kernel does not have it.
_SAYS: Final = "record_param_comms"
#: A list of ranks in full; PyTorch writes ``...`` in the middle of a long one.
_RANKS: Final = re.compile(r"\[\s*\d+(?:\s*,\s*\d+)*\s*\]")
#: Maximum number of ranks kept per group.
_MOST_RANKS: Final = 100_000
#: What Megatron, DeepSpeed and PyTorch's device meshes call groups, by a word in the name.
_KINDS: Final = {
    "data-parallel": ("data", "dp", "ddp", "fsdp", "replicate", "shard"),
    "tensor-parallel": ("tensor", "tp"),
    "pipeline-parallel": ("pipeline", "pipe", "pp"),
    "context-parallel": ("context", "cp"),
    "expert-parallel": ("expert", "ep"),
    "sequence-parallel": ("sequence", "sp"),
}
#: Ranks of a group that are listed.
_LISTED: Final = 8


@dataclass(frozen=True, slots=True)
class Group:
    """A process group.

    Attributes:
        name: Its name, unique among the groups of a rank; empty = not in the trace, which counts as one group.
        description: The framework's description; empty = none.
        ranks: Its ranks, ascending; empty = not known.
        said: Its ranks as written, if the list was truncated.
    """

    name: str
    description: str = ""
    ranks: tuple[int, ...] = ()
    said: str = ""

    @property
    def key(self) -> int:
        """Digest that is the same on every rank of the group, 64 bits; 0 = :data:`UNKNOWN`."""
        if not self.name:
            return 0
        said = f"{self.name} {self.description} {self.ranks or self.said}".encode("utf-8", "replace")
        return int.from_bytes(hashlib.blake2b(said, digest_size=8).digest(), "little") | 1

    @property
    def label(self) -> str:
        """``data-parallel group (ranks 1, 3, 5, 7)``, for a sentence; empty if unknown or the default group."""
        if not self.name or self.description == "default_pg":
            return ""
        words = re.split(r"[^a-z]+", self.description.lower().partition("_with_")[0])
        kinds = [kind for kind, known in _KINDS.items() if not set(known).isdisjoint(words)]
        if len(kinds) == 1:
            said = f"{kinds[0]} group"
        elif self.description and self.description != "undefined":
            said = f"group {self.description}"
        else:
            said = f"group {self.name}"
        if not self.ranks:
            return said
        return f"{said} (ranks {_listed(self.ranks)})"


def _listed(ranks: tuple[int, ...]) -> str:
    """Return ranks in short: ``0–7``, ``1, 3, 5``, ``0, 8, 16, … 1016``."""
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]}–{ranks[-1]}"
    if len(ranks) <= _LISTED:
        return ", ".join(map(str, ranks))
    return f"{', '.join(map(str, ranks[:3]))}, … {ranks[-1]}"


#: The group of all ranks, for traces without groups.
UNKNOWN: Final = Group("")


def of_rows(trace: Trace, rows: Ints) -> tuple[tuple[Group, ...], Ints]:
    """Return the groups of collectives, and the index of each collective's group, shape ``(len(rows),)``.

    Collectives without a recorded group are in :data:`UNKNOWN`.

    Args:
        trace: The trace.
        rows: Rows of collectives.
    """
    said = trace.communications
    if said is None or not len(rows):
        return (UNKNOWN,), np.zeros(len(rows), dtype=np.int64)
    configured = _configured(trace)
    groups = {UNKNOWN: 0}
    columns = said.select("group", "description", "ranks").iter_rows()
    number = [
        groups.setdefault(_group(name, description, ranks, configured), len(groups))
        for name, description, ranks in columns
    ]
    by_kernel = _numbers(said, number, "correlation")
    found = [by_kernel.get(key, 0) for key in trace.ints("correlation", rows).tolist()]
    if not all(found):
        by_operator = _numbers(said, number, "external_id")
        operators = _operators(trace, rows)
        found = [one or by_operator.get(key, 0) for one, key in zip(found, operators.tolist(), strict=True)]
    return tuple(groups), np.array(found, dtype=np.int64)


def _numbers(said: pl.DataFrame, number: list[int], key: str) -> dict[int, int]:
    known = said.with_columns(pl.Series("number", number)).filter(
        pl.col(key).is_not_null(), pl.col("correlation").is_null() == (key == "external_id")
    )
    return dict(known.select(key, "number").iter_rows())


def _operators(trace: Trace, rows: Ints) -> Ints:
    """Return the external id of the operator around the launch that has the group; -1 = none."""
    found = np.full(len(rows), -1, dtype=np.int64)
    launch = trace.links.launch_of[rows].astype(np.int64)
    launched = np.flatnonzero(launch >= 0)
    saying = trace.names_like(f"^{_SAYS}$")
    for level in trace.nesting.outward(launch[launched]):
        there = level >= 0
        there[there] = saying[trace.name_codes[level[there]]]
        there &= found[launched] < 0
        found[launched[there]] = trace.ints("external_id", level[there])
    return found


def _configured(trace: Trace) -> dict[str, tuple[int, ...]]:
    """Return the ranks of groups by name, from the header of the trace."""
    job = trace.info.properties.get("distributedInfo")
    listed = job.get("pg_config") if isinstance(job, Mapping) else None
    found = {}
    for group in listed if isinstance(listed, list) else ():
        ranks = group.get("ranks") if isinstance(group, Mapping) else None
        if isinstance(ranks, list) and len(ranks) <= _MOST_RANKS and all(type(rank) is int for rank in ranks):
            found[str(group.get("pg_name", ""))] = tuple(sorted(ranks))
    return found


def _group(name: str, description: str, said: str, configured: Mapping[str, tuple[int, ...]]) -> Group:
    ranks = configured.get(name, ())
    if _RANKS.fullmatch(said):
        ranks = tuple(sorted(int(rank) for rank in said.strip("[]").split(",")))
    return Group(name, description, ranks, "" if ranks else said)
