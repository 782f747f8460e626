"""The event table: its columns, their units, and the words it uses for categories.

Categories are Kineto's words without a vendor prefix, so that ``cuda_runtime``, ``hip_runtime`` and
``mtia_runtime`` are all ``runtime``. What a format cannot place is ``other`` and keeps its original word in
the raw event.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

import polars as pl

Category = Literal[
    "cpu_op",  # a framework operator on the host, e.g. aten::mm
    "annotation",  # a range the user or the framework named, e.g. record_function, ProfilerStep#3
    "device_annotation",  # the shadow of an annotation on a device track; never counts as work
    "runtime",  # a call of the device runtime API, e.g. cudaLaunchKernel
    "driver",  # a call of the driver API, e.g. cuLaunchKernel
    "kernel",  # a kernel on the device
    "memcpy",  # a copy by the device
    "memset",  # a fill by the device
    "sync",  # a synchronisation activity as the device's profiler reports it (Kineto's cuda_sync)
    "python_function",  # one call of a Python function
    "overhead",  # the profiler's own work
    "collective",  # a collective operation on the device, where the format tells them apart
    "compile",  # compilation seen by the profiler
    "dataloader",  # data loading, where the format tells it apart
    "other",
]

CATEGORIES: Final[tuple[str, ...]] = get_args(Category)

#: What makes a device busy. Annotations and sync activities never do.
DEVICE_WORK: Final[tuple[str, ...]] = ("kernel", "memcpy", "memset", "collective")

#: Host calls into the device's API: what launches work and what waits for it.
HOST_CALLS: Final[tuple[str, ...]] = ("runtime", "driver")

CATEGORY_TYPE: Final = pl.Enum(CATEGORIES)

#: Columns of :attr:`tuiprof.model.Trace.events`. The table is sorted by ``ts``; of events that start together
#: the longer comes first, so that a parent stands before its children.
EVENT_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "ts": pl.Int64,  # start, ns since the trace origin
    "dur": pl.Int64,  # length, ns; 0 for an event without length
    "name": pl.Enum,  # dictionary-encoded over the names of this trace
    "category": CATEGORY_TYPE,
    "track": pl.UInt32,  # index into Trace.tracks
    "device": pl.Int16,  # device index; null = host
    "stream": pl.Int64,  # stream of a device event; null = none
    "correlation": pl.Int64,  # joins a host call with the device work it launched; null = none
    "external_id": pl.Int64,  # joins an operator with runtime calls and kernels; null = none
    "sequence": pl.Int64,  # autograd's number: joins a forward operator with its backward node; null = none
    "bytes": pl.Int64,  # bytes moved or filled; null = unknown
    "ordinal": pl.UInt32,  # position of the event in its file, for Trace.raw_event
}
