"""PyTorch's Flight Recorder: which rank never entered which collective.

A dump (``torch._C._distributed_c10d._dump_nccl_trace``, or a file that NCCL's watchdog wrote when it timed out) holds
the last collectives that one rank has entered. In every process group they are numbered alike on all ranks, so the
ranks whose last number is lower than another's are those that the others wait for.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tuiprof.blackbox.unpickle import loads_plain
from tuiprof.errors import TraceError

_MOST_BYTES: Final = 256 << 20
OFF: Final = (
    "the Flight Recorder contains no collectives: start the script with TORCH_FR_BUFFER_SIZE=2000 "
    "(TORCH_NCCL_TRACE_BUFFER_SIZE before PyTorch 2.9)"
)


@dataclass(frozen=True, slots=True)
class Entered:
    """One collective that a rank has entered.

    Attributes:
        number: Its number in the process group.
        name: ``nccl:all_reduce``.
        sizes: Input sizes, as written.
        completed: Whether it has ended, as far as the recorder knows.
        line: The innermost line of the script, ``file:line``; empty = the dump has no stacks.
    """

    number: int
    name: str
    sizes: str
    completed: bool
    line: str = ""


@dataclass(frozen=True, slots=True)
class Dump:
    """What one rank has entered.

    Attributes:
        rank: The rank.
        groups: Its collectives by the name of the process group, in order of their numbers.
        members: Ranks of each process group.
    """

    rank: int
    groups: Mapping[str, Sequence[Entered]]
    members: Mapping[str, frozenset[int]]


def read_dump(path: Path, rank: int) -> Dump:
    """Read a dump, JSON or pickle.

    Raises:
        TraceError: It is neither.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise TraceError(f"{path} is too large for a Flight Recorder dump")
        data = path.read_bytes()
        found = json.loads(data) if data[:1] == b"{" else loads_plain(data)
        return _dump(found, rank)
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror or error}") from error
    except (pickle.UnpicklingError, ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise TraceError(f"{path} is not a dump of the Flight Recorder: {error}") from error


def _dump(found: Any, rank: int) -> Dump:
    if not isinstance(found, dict) or "version" not in found:
        raise ValueError("it has no version")
    groups: dict[str, dict[int, Entered]] = {}
    for entry in found.get("entries") or []:
        if entry.get("is_p2p"):
            continue  # numbered by pairs of ranks, not by the group
        number = int(entry["collective_seq_id"])
        frames = [(str(f["filename"]), int(f["line"])) for f in entry.get("frames") or []]
        where = next((f"{file}:{line}" for file, line in frames if "/torch/" not in file), "")
        groups.setdefault(_group_name(entry), {})[number] = Entered(
            number,
            str(entry.get("profiling_name", "")),
            str(entry.get("input_sizes", "")),
            bool(entry.get("retired")) or entry.get("state") == "completed",
            where,
        )
    members = {
        str(config.get("desc") or config.get("name") or "default_pg"): frozenset(_ranks(config.get("ranks")))
        for config in _configs(found.get("pg_config"))
    }
    ordered = {name: [by[number] for number in sorted(by)] for name, by in groups.items()}
    return Dump(rank, ordered, members)


def _group_name(entry: Mapping[str, Any]) -> str:
    named = entry.get("process_group")
    if isinstance(named, (list, tuple)) and named:
        return str(named[-1] or named[0])
    return str(entry.get("pg_id", "default_pg"))


def _configs(found: Any) -> list[Mapping[str, Any]]:
    values = found.values() if isinstance(found, dict) else found or []
    return [config for config in values if isinstance(config, dict)]


def _ranks(found: Any) -> list[int]:
    listed = json.loads(found) if isinstance(found, str) else found or []
    return [int(rank) for rank in listed]


def collectives(dumps: Sequence[Dump]) -> list[str]:
    """Return which ranks never entered which collective, one sentence a process group.

    Returns:
        Sentences; where all ranks are equally far that is said, where nothing was recorded :data:`OFF`.
    """
    names = sorted({name for dump in dumps for name in dump.groups})
    if not names:
        return [OFF] if dumps else []
    said = []
    for name in names:
        inside = [dump for dump in dumps if _belongs(dump, name, dumps)]
        said.append(_one_group(name, inside))
    return said


def _belongs(dump: Dump, name: str, dumps: Sequence[Dump]) -> bool:
    """Whether a rank is a member of a group, also if it has entered nothing in it."""
    members = next((one.members[name] for one in dumps if one.members.get(name)), None)
    return (
        name in dump.groups
        if members is None and name != "default_pg"
        else members is None or dump.rank in members
    )


def _one_group(name: str, dumps: Sequence[Dump]) -> str:
    last = {dump.rank: dump.groups[name][-1] for dump in dumps if dump.groups.get(name)}
    furthest = max(entered.number for entered in last.values())
    ahead = {rank: entered for rank, entered in last.items() if entered.number == furthest}
    behind = {dump.rank: last.get(dump.rank) for dump in dumps if dump.rank not in ahead}
    one = next(iter(ahead.values()))
    what = f"{_plain(one.name)} {furthest} of {name}"
    if not behind:
        kinds = {(entered.name, entered.sizes) for entered in ahead.values()}
        if len(kinds) > 1:
            each = "; ".join(f"rank {rank} {_plain(e.name)} {e.sizes}" for rank, e in sorted(ahead.items()))
            return f"collective {furthest} of {name} is not the same on all ranks: {each}"
        if all(entered.completed for entered in ahead.values()):
            return f"every rank has completed {what}"
        if len(dumps) == 1:
            return f"rank {dumps[0].rank} is in {what}; the other ranks wrote no dump"
        return f"every rank has entered {what}, so none waits for another to arrive"
    words = _list(sorted(behind))
    missed = min(entered.number if entered else 0 for entered in behind.values()) + 1
    first = next((e for dump in dumps for e in dump.groups.get(name, ()) if e.number == missed), one)
    what = f"{_plain(first.name)} {missed} of {name}"
    line = f", called at {first.line}" if first.line else ""
    return f"{words} never entered {what}{line}; {_list(sorted(ahead))} did"


def _plain(name: str) -> str:
    return name.rpartition(":")[2] or "a collective"


def _list(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def of_session(root: Path, flights: Mapping[int, str]) -> list[str]:
    """Return what the dumps of a session say, and what could not be read of them."""
    dumps, problems = [], []
    for rank, path in sorted(flights.items()):
        try:
            dumps.append(read_dump(root / path, rank))
        except TraceError as error:
            problems.append(str(error))
    return [*collectives(dumps), *problems]
