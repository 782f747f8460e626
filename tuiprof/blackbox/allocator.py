"""The CUDA caching allocator's snapshot: what held the memory, by line, now and at the peak of its history.

Reads what ``torch.cuda.memory._snapshot()`` returns, as ``torch.cuda.memory._dump_snapshot(path)`` writes it. The
stack of an allocation is known where its history was recorded (``torch.cuda.memory._record_memory_history()``, or
``tuiprof run --memory``); without that, sizes and segments alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl

from tuiprof.blackbox.stacks import location
from tuiprof.blackbox.unpickle import load_plain
from tuiprof.errors import TraceError
from tuiprof.model import Column, Fact, Report, Rule, Table, Verdict
from tuiprof.model.units import format_bytes, format_share

#: Where a block's stack is not known.
NO_STACK: Final = "(no stack recorded)"
_HELD: Final = ("active_allocated", "active_awaiting_free", "active_pending_free")


@dataclass(frozen=True, slots=True)
class Held:
    """Memory that one line of the script holds.

    Attributes:
        line: The innermost line of the script, ``file:line``.
        function: Its function.
        call: What it called.
        size: Bytes.
        blocks: Number of blocks.
    """

    line: str
    function: str
    call: str
    size: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Device:
    """What the snapshot tells of one device, bytes.

    Attributes:
        index: Device index.
        reserved: Taken from the driver.
        allocated: In use by tensors.
        waiting: Given back, but another stream may still read it.
        largest_free: The largest piece that is reserved and free.
        peak: Most that was allocated within the history; None = there is no history.
        at_peak: What was allocated then by line, the largest first; of a snapshot without history what is now.
        now: What is allocated now by line.
        wanted: Bytes of the last allocation that failed; None = none has.
        events: Events of the history.
        segments: Number of segments.
    """

    index: int
    reserved: int
    allocated: int
    waiting: int
    largest_free: int
    peak: int | None
    at_peak: tuple[Held, ...]
    now: tuple[Held, ...]
    wanted: int | None
    events: int
    segments: int


def read_snapshot(path: Path) -> list[Device]:
    """Read a snapshot.

    Returns:
        The devices that hold memory or have a history, by index.

    Raises:
        TraceError: It cannot be read, or is no snapshot.
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
    """Walk the history back from what is held now to the moment when most was.

    Returns:
        Bytes at that moment and what held them; None where there is no history.
    """
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


def snapshot_report(path: Path, *, title: str = "", notes: Sequence[str] = ()) -> Report:
    """Return what held the memory.

    Raises:
        TraceError: It cannot be read, or is no snapshot.
    """
    devices = read_snapshot(path)
    facts: list[Fact] = []
    tables: list[Table] = []
    said: list[str] = []
    more = list(notes)
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
    rows = [
        {
            "bytes": one.size,
            "share": one.size / total if total else 0.0,
            "blocks": one.blocks,
            "line": one.line,
            "function": one.function,
            "call": one.call,
        }
        for one in held
    ]
    columns = (
        Column("bytes", "memory", "bytes"),
        Column("share", "share", "share"),
        Column("blocks", "blocks", "count"),
        Column("line", "from", elide="start"),
        Column("function", "function"),
        Column("call", "in"),
    )
    schema = {
        "bytes": pl.Int64,
        "share": pl.Float64,
        "blocks": pl.Int64,
        "line": pl.String,
        "function": pl.String,
        "call": pl.String,
    }
    return Table(key, title, columns, pl.DataFrame(rows, schema=schema), empty="nothing")
