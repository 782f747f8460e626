"""Dumps of PyTorch: the CUDA caching allocator's snapshot and the Flight Recorder's collectives.

Both are pickles, which can call any function when they are read. These files need dicts, lists, strings and numbers
alone, so every class or function that a pickle names is refused.

An allocator snapshot is what ``torch.cuda.memory._snapshot()`` returns, as ``torch.cuda.memory._dump_snapshot(path)``
writes it. The stack of an allocation is known where its history was recorded
(``torch.cuda.memory._record_memory_history()``, or ``tuiprof run --memory``); without that, sizes and segments alone.

A Flight Recorder dump (``torch._C._distributed_c10d._dump_nccl_trace``, or a file that NCCL's watchdog wrote when it
timed out) holds the last collectives that one rank has entered. In every process group they are numbered alike on all
ranks, so the ranks whose last number is lower than another's are those that the others wait for.
"""

from __future__ import annotations

import io
import json
import pickle
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tuiprof.blackbox.stacks import location
from tuiprof.errors import TraceError
from tuiprof.model import Column, Fact, Report, Rule, Table, Verdict
from tuiprof.model.report import listed
from tuiprof.model.units import format_bytes, format_share

#: Beyond this a file is not read: its objects would take many times that.
_MAX_BYTES: Final = 2 << 30
#: What a pickle of protocol 2 or newer begins with, whatever is in it.
_PROTO: Final = b"\x80"


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it refers to {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to an object outside of it")


def is_pickle(path: Path) -> bool:
    """Return whether a file begins as a pickle does."""
    try:
        with open(path, "rb") as file:
            start = file.read(2)
    except OSError:
        return False
    return start[:1] == _PROTO and 2 <= start[1] <= pickle.HIGHEST_PROTOCOL if len(start) == 2 else False


def load_plain(path: Path) -> Any:
    """Read a pickle of dicts, lists, tuples, strings, bytes, numbers and None.

    Raises:
        TraceError: It cannot be read, is cut off, or holds anything else.
    """
    try:
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise TraceError(
                f"{path} is too large to read: {format_bytes(size)}",
                "record less history: torch.cuda.memory._record_memory_history(max_entries=…)",
            )
        return loads_plain(path.read_bytes())
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror or error}") from error
    except pickle.UnpicklingError as error:
        raise TraceError(
            f"{path} is not a pickle of plain values: {error}",
            "allocator snapshots and Flight Recorder dumps contain only these; other pickles are never loaded, as "
            "loading could execute code",
        ) from error


def loads_plain(data: bytes) -> Any:
    """Read a pickle of plain values from memory.

    Raises:
        pickle.UnpicklingError: It is damaged, or holds anything else.
    """
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except pickle.UnpicklingError:
        raise
    except RecursionError as error:
        raise pickle.UnpicklingError("it is nested too deeply") from error
    except MemoryError as error:
        raise pickle.UnpicklingError("it declares more data than fits into memory") from error
    except Exception as error:
        raise pickle.UnpicklingError(f"it is damaged: {type(error).__name__}: {error}") from error


#: Where a block's stack is not known.
NO_STACK: Final = "(no stack recorded)"
_HELD: Final = ("active_allocated", "active_awaiting_free", "active_pending_free")


@dataclass(frozen=True, slots=True)
class Held:
    """Memory that one line of the script holds."""

    line: str  # the innermost line of the script, ``file:line``
    function: str
    call: str  # what it called
    size: int  # bytes
    blocks: int


@dataclass(frozen=True, slots=True)
class Device:
    """What the snapshot tells of one device, bytes."""

    index: int  # device index
    reserved: int  # taken from the driver
    allocated: int  # in use by tensors
    waiting: int  # given back, but another stream may still read it
    largest_free: int  # the largest piece that is reserved and free
    peak: int | None  # most that was allocated within the history; None = there is no history
    #: What was allocated then by line, the largest first; of a snapshot without history what is now
    at_peak: tuple[Held, ...]
    now: tuple[Held, ...]  # what is allocated now by line
    wanted: int | None  # bytes of the last allocation that failed; None = none has
    events: int  # events of the history
    segments: int


def read_snapshot(path: Path) -> list[Device]:
    """Read a snapshot.

    Returns:
        The devices that hold memory or have a history, by index.

    Raises:
        TraceError: It cannot be read, or is not a snapshot.
    """
    found = load_plain(path)
    if not is_snapshot(found):
        raise TraceError(
            f"{path} is a pickle, but not an allocator snapshot: it has no 'segments'",
            "torch.cuda.memory._dump_snapshot(path) writes one",
        )
    try:
        return _devices(found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TraceError(
            f"{path} is a damaged allocator snapshot: {type(error).__name__}: {error}",
            "write it again: torch.cuda.memory._dump_snapshot(path)",
        ) from error


def is_snapshot(found: object) -> bool:
    """Return whether what was read is an allocator's snapshot."""
    return isinstance(found, dict) and isinstance(found.get("segments"), list)


def _devices(found: Mapping[str, Any]) -> list[Device]:
    by_device: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for segment in found["segments"]:
        by_device[int(segment.get("device", 0))].append(segment)
    traces = found.get("device_traces") or []
    for index, trace in enumerate(traces):
        if trace:
            by_device.setdefault(index, [])
    return [
        _device(index, segments, traces[index] if index < len(traces) else [])
        for index, segments in sorted(by_device.items())
    ]


def _device(index: int, segments: Sequence[Mapping[str, Any]], trace: Sequence[Mapping[str, Any]]) -> Device:
    blocks = [block for segment in segments for block in _with_addresses(segment)]
    held = {address: (size, frames) for address, size, state, frames in blocks if state in _HELD}
    allocated = sum(size for _, size, state, _ in blocks if state == _HELD[0])
    free = [size for _, size, state, _ in blocks if state == "inactive"]
    now = _by_line(held.values())
    peak, at_peak = _at_peak(held, trace)
    failed = [int(entry["size"]) for entry in trace if entry.get("action") == "oom"]
    return Device(
        index=index,
        reserved=sum(int(segment["total_size"]) for segment in segments),
        allocated=allocated,
        waiting=sum(size for size, _ in held.values()) - allocated,
        largest_free=max(free, default=0),
        peak=peak,
        at_peak=at_peak if peak is not None else now,
        now=now,
        wanted=failed[-1] if failed else None,
        events=len(trace),
        segments=len(segments),
    )


def _with_addresses(segment: Mapping[str, Any]) -> Iterable[tuple[int, int, str, Any]]:
    """Return address, size, state and frames of each block; older snapshots leave addresses out."""
    address = int(segment["address"])
    for block in segment.get("blocks") or []:
        size = int(block["size"])
        frames = block.get("frames")
        if frames is None and block.get("history"):  # PyTorch 2.0
            frames = block["history"][0].get("frames")
        yield int(block.get("address", address)), size, str(block.get("state", "")), frames
        address += size


def _at_peak(
    held: Mapping[int, tuple[int, Any]], trace: Sequence[Mapping[str, Any]]
) -> tuple[int | None, tuple[Held, ...]]:
    """Walk the history back to when most was held; return the bytes and what held them, None without a history."""
    live = dict(held)
    total = peak = sum(size for size, _ in live.values())
    at = 0  # events to undo to reach the peak
    events = [entry for entry in trace if entry.get("action") in ("alloc", "free_completed")]
    if not events:
        return None, ()
    for undone, entry in enumerate(reversed(events), 1):
        total += _undo(live, entry)
        if total > peak:
            peak, at = total, undone
    live = dict(held)
    for entry in events[len(events) - at :][::-1]:
        _undo(live, entry)
    return peak, _by_line(live.values())


def _undo(live: dict[int, tuple[int, Any]], entry: Mapping[str, Any]) -> int:
    """Take back one event; return by how much what is held grows."""
    address, size = int(entry["addr"]), int(entry["size"])
    if entry["action"] == "free_completed":
        known = address in live
        live[address] = size, entry.get("frames")
        return 0 if known else size
    gone = live.pop(address, None)
    return -gone[0] if gone is not None else 0


def _by_line(blocks: Iterable[tuple[int, Any]]) -> tuple[Held, ...]:
    """Add up blocks by the line of the script that asked for them, the largest first."""
    sums: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for size, frames in blocks:
        stack = [(str(f["filename"]), int(f["line"]), str(f["name"])) for f in frames or []]
        call, line, function = location(stack) if stack else ("", NO_STACK, "")
        entry = sums[line, function, call]
        entry[0] += size
        entry[1] += 1
    rows = [Held(line, function, call, size, n) for (line, function, call), (size, n) in sums.items()]
    return tuple(sorted(rows, key=lambda row: -row.size))


def snapshot_report(path: Path, *, title: str = "") -> Report:
    """Return what held the memory; raises TraceError if it cannot be read, or is not a snapshot."""
    devices = read_snapshot(path)
    facts: list[Fact] = []
    tables: list[Table] = []
    said: list[str] = []
    more: list[str] = []
    for device in devices:
        name = f"device {device.index}"
        said.append(f"{name}: {_sentence(device)}")
        facts += _facts(device, name if len(devices) > 1 else "")
        tables += _tables(device, name if len(devices) > 1 else "")
        if not any(held.line != NO_STACK for held in device.at_peak):
            more.append(
                f"{name}: no line is known, as the allocator's history was not recorded: tuiprof run --memory, or "
                "torch.cuda.memory._record_memory_history() in the script"
            )
        free = device.reserved - device.allocated - device.waiting
        if device.wanted and free > device.wanted > device.largest_free:
            largest = format_bytes(device.largest_free)
            more.append(
                f"{name}: {format_bytes(free)} is reserved and free, but in blocks of at most {largest}: "
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True avoids that"
            )
    failed = any(device.wanted for device in devices)
    return Report(
        analysis="allocator",
        title=title or f"Allocator snapshot {path.name}",
        verdict=Verdict("; ".join(said) or "the allocator held no memory", "bad" if failed else "info"),
        facts=tuple(facts),
        tables=tuple(tables),
        rules=(
            Rule(
                "by line",
                "the innermost line outside the framework in the stack that requested a block; sizes are those of "
                "blocks, which the allocator rounds up",
            ),
            Rule(
                "at the peak",
                "the moment with the most memory in use within the recorded history, found by replaying it backwards "
                "from the snapshot; without a history the moment of the snapshot",
            ),
        ),
        notes=tuple(more),
    )


def _sentence(device: Device) -> str:
    whole = device.peak if device.peak is not None else device.allocated + device.waiting
    when = "at the peak" if device.peak is not None else "in use"
    words = f"{format_bytes(whole)} {when}"
    if device.wanted is not None:
        words = f"{format_bytes(device.wanted)} could not be allocated; {words}"
    first = next((held for held in device.at_peak if held.line != NO_STACK), None)
    if first is not None and whole:
        words += f", {format_share(first.size / whole)} of it from {first.line} ({first.function})"
    return words


def _facts(device: Device, name: str) -> list[Fact]:
    prefix = f"{name} " if name else ""
    key = f"device{device.index}_" if name else ""
    free = device.reserved - device.allocated - device.waiting
    return [
        Fact(
            f"{key}reserved_bytes",
            f"{prefix}reserved",
            device.reserved,
            "bytes",
            "Allocated from the driver.",
        ),
        Fact(f"{key}allocated_bytes", "in use", device.allocated, "bytes", "Blocks used by tensors."),
        Fact(
            f"{key}waiting_bytes",
            "waiting",
            device.waiting or None,
            "bytes",
            "Freed, but possibly still in use by another stream.",
        ),
        Fact(f"{key}free_bytes", "reserved and free", free, "bytes", "Available for new tensors."),
        Fact(f"{key}largest_free_bytes", "largest free block", device.largest_free, "bytes"),
        Fact(f"{key}peak_bytes", "peak", device.peak, "bytes", "Within the recorded history."),
        Fact(f"{key}wanted_bytes", "failed request", device.wanted, "bytes"),
        Fact(f"{key}segments", "segments", device.segments, "count", "Segments allocated from the driver."),
        Fact(f"{key}events", "events of history", device.events, "count"),
    ]


def _tables(device: Device, name: str) -> list[Table]:
    suffix = f", {name}" if name else ""
    key = f"_{device.index}" if name else ""
    title = "What held the memory at the peak" if device.peak is not None else "What holds the memory"
    tables = [_held_table(f"at_peak{key}", title + suffix, device.at_peak)]
    if device.peak is not None:
        tables.append(_held_table(f"now{key}", f"What holds the memory at the snapshot{suffix}", device.now))
    return tables


def _held_table(key: str, title: str, held: Sequence[Held]) -> Table:
    total = sum(one.size for one in held)
    rows = (
        (one.size, one.size / total if total else 0.0, one.blocks, one.line, one.function, one.call)
        for one in held
    )
    columns = (
        Column("bytes", "memory", "bytes"),
        Column("share", "share", "share"),
        Column("blocks", "blocks", "count"),
        Column("line", "from", elide="start"),
        Column("function", "function"),
        Column("call", "in"),
    )
    return Table(key, title, columns, listed(columns, rows), empty="nothing")


_MAX_FLIGHT_BYTES: Final = 256 << 20
OFF: Final = (
    "the Flight Recorder contains no collectives: start the script with TORCH_FR_BUFFER_SIZE=2000 "
    "(TORCH_NCCL_TRACE_BUFFER_SIZE before PyTorch 2.9)"
)


@dataclass(frozen=True, slots=True)
class Entered:
    """One collective that a rank has entered."""

    number: int  # its number in the process group
    name: str  # ``nccl:all_reduce``
    sizes: str  # input sizes, as written
    completed: bool  # whether it has ended, as far as the recorder knows
    line: str = ""  # the innermost line of the script, ``file:line``; empty = the dump has no stacks


@dataclass(frozen=True, slots=True)
class Dump:
    """What one rank has entered."""

    rank: int
    #: Its collectives by the name of the process group, in order of their numbers
    groups: Mapping[str, Sequence[Entered]]
    members: Mapping[str, frozenset[int]]  # ranks of each process group


def read_dump(path: Path, rank: int) -> Dump:
    """Read a dump, JSON or pickle; raises TraceError if it cannot be read, or is neither."""
    try:
        if path.stat().st_size > _MAX_FLIGHT_BYTES:
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
    """Return which ranks never entered which collective, a sentence a process group; unrecorded = :data:`OFF`."""
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
    words = _rank_list(sorted(behind))
    missed = min(entered.number if entered else 0 for entered in behind.values()) + 1
    first = next((e for dump in dumps for e in dump.groups.get(name, ()) if e.number == missed), one)
    what = f"{_plain(first.name)} {missed} of {name}"
    line = f", called at {first.line}" if first.line else ""
    return f"{words} never entered {what}{line}; {_rank_list(sorted(ahead))} did"


def _plain(name: str) -> str:
    return name.rpartition(":")[2] or "a collective"


def _rank_list(ranks: Sequence[int]) -> str:
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
