"""The part of a Trace Event that is decoded into memory.

Field names are those of the Trace Event Format document; Kineto adds the keys inside ``args``. Other fields stay in
the file and are read on demand for the raw event.
"""

from __future__ import annotations

from typing import Any

import msgspec

#: Sentinel for a missing time or allocator number, until the table is built.
MISSING = -(1 << 63)
#: Sentinel for missing ids and sizes, which are never negative; a small number is faster to convert and to count.
NONE = -1

#: Accepted types of a number. Tools write ids as text; non-numeric text is MISSING.
Loose = int | float | str | None


class Args(msgspec.Struct, gc=False, frozen=True):
    """The arguments that become columns."""

    correlation: Loose = NONE
    external_id: Loose = msgspec.field(default=NONE, name="External id")
    # PyTorch 1.8 to 1.10 wrote it in lower case on runtime calls and device work.
    external_id_lower: Loose = msgspec.field(default=NONE, name="external id")
    sequence: Loose = msgspec.field(default=NONE, name="Sequence number")
    # Ascend's msprof: joins a CANN call with the task it launched.
    connection_id: Loose = NONE
    # XLA's profilers (JAX) write both as text.
    correlation_id: Loose = NONE
    step_num: Loose = NONE
    stream: Loose = NONE
    device: Loose = NONE
    bytes: Loose = NONE


class MemoryArgs(msgspec.Struct, gc=False, frozen=True):
    """The arguments of Kineto's ``[memory]`` instants."""

    bytes: Loose = msgspec.field(default=MISSING, name="Bytes")
    address: Loose = msgspec.field(default=MISSING, name="Addr")
    total_allocated: Loose = msgspec.field(default=MISSING, name="Total Allocated")
    total_reserved: Loose = msgspec.field(default=MISSING, name="Total Reserved")
    device_type: Loose = msgspec.field(default=MISSING, name="Device Type")
    device: Loose = msgspec.field(default=MISSING, name="Device Id")


NO_ARGS = Args()
NO_MEMORY_ARGS = MemoryArgs()


class Event(msgspec.Struct, gc=False):
    """One event with its times as numbers: exact for nearly every trace, and checked per value."""

    ph: str = ""
    cat: str | None = None
    name: str | int | float | None = None
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: Loose = None
    dur: Loose = None
    args: Args | None = NO_ARGS


class ExactEvent(msgspec.Struct, gc=False):
    """One event with its times as text, for timestamps that a double cannot represent."""

    ph: str = ""
    cat: str | None = None
    name: str | int | float | None = None
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: msgspec.Raw = msgspec.Raw()
    dur: msgspec.Raw = msgspec.Raw()
    args: Args | None = NO_ARGS


class Instant(msgspec.Struct, gc=False):
    """Fields of events without a duration."""

    args: MemoryArgs | None = NO_MEMORY_ARGS


class Loosely(msgspec.Struct, gc=False):
    """An event of a rare kind (metadata, counters, asynchronous ranges) with all its arguments."""

    ts: msgspec.Raw = msgspec.Raw()
    id: int | str | float | None = None
    args: Any = None


AnyEvent = Event | ExactEvent

decode_events = msgspec.json.Decoder(list[Event]).decode
decode_exact_events = msgspec.json.Decoder(list[ExactEvent]).decode
decode_pieces = msgspec.json.Decoder(list[msgspec.Raw]).decode
decode_event = msgspec.json.Decoder(Event).decode
decode_exact_event = msgspec.json.Decoder(ExactEvent).decode
decode_instant = msgspec.json.Decoder(Instant).decode
decode_loosely = msgspec.json.Decoder(Loosely).decode
