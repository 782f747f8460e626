"""The meaning of the names in an XSpace: kinds of lines, categories, tracks, devices and the framework.

An XPlane carries no category: what an event is follows from the plane and line it lies on, from its stats and
from its name. C++ names change every few releases (``TfrtCpu…``, ``PjRtCpu…``, ``CommonPjRt…``), so they are
matched by their last part. Line names are those of ``xplane_schema.cc`` in openxla/xla.
"""

from __future__ import annotations

import re
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tuiprof.formats.xla_names import STREAM, framework
from tuiprof.model import DeviceInfo, TraceInfo, Track

if TYPE_CHECKING:
    from tuiprof.formats.xplane.space import Plane, Space


class Row(IntEnum):
    """What a line of a plane holds."""

    HOST = 0  # a host thread
    STREAM = 1  # a GPU stream: kernels and copies
    OPS = 2  # operations of a TPU core, one after another
    ASYNC = 3  # transfers and collectives of a TPU that run in parallel with the operations
    MODULES = 4  # whole XLA programs on a TPU
    SHADOW = 5  # derived from other lines: steps, framework ops, scopes, overlays
    WAITS = 6  # waits and marks inside a TPU program
    COUNTERS = 7  # utilisation samples


_TPU_ROWS: Final = {
    "XLA Ops": Row.OPS,
    "Sparse Core Ops": Row.OPS,
    "Async XLA Ops": Row.ASYNC,
    "Host Offload Ops": Row.ASYNC,
    "XLA Modules": Row.MODULES,
    "Sparse Core Modules": Row.MODULES,
    "XLA TraceMe": Row.WAITS,
    "Tensor Core Sync Flag": Row.WAITS,
    "Sparse Core Syncs": Row.WAITS,
    "_counters_": Row.COUNTERS,
}
#: Name of the allocator of a device's memory; that of pinned memory of the host has no number.
DEVICE_ALLOCATOR: Final = re.compile(rb"^[A-Z]+_(\d+)_")
_DEVICE_PLANE: Final = re.compile(r"^/device:(GPU|TPU):(\d{1,4})(?!\d)")


def device_of(plane: str) -> tuple[str, int] | None:
    """Return kind (``GPU`` or ``TPU``) and index of a plane's device; None for the host."""
    match = _DEVICE_PLANE.match(plane)
    return (match[1], int(match[2])) if match else None


def row_of(plane: str, line: str) -> Row:
    """Return what a line holds."""
    device = device_of(plane)
    if device is None:
        return Row.SHADOW if plane.startswith(("/device:", "/virtualdevice:", "#")) else Row.HOST
    if STREAM.match(line):
        return Row.STREAM
    return _TPU_ROWS.get(line, Row.SHADOW) if device[0] == "TPU" else Row.SHADOW


def stream_of(line: str) -> int | None:
    """Return the number of a GPU stream by the name of its line, ``"Stream #134(Compute)"``; None for other lines."""
    match = STREAM.match(line)
    return int(match[1]) if match else None


#: A host wait that the runtime writes as two short marks of one name; see :mod:`tuiprof.formats.xplane.build`.
AWAIT: Final = re.compile(r"Buffer::(?:Await|AwaitReady|BlockHostUntilReady|ToLiteral(?:Sync)?)$|AwaitReady$")
#: Lines of the calls of a device's API that have no other events, on ROCm; their number is no thread id of the host's.
CALLS: Final = "Host Threads/"
#: The host call that hands a program to a TPU core.
ENQUEUE: Final = "DoEnqueueProgram"
#: The host event that reports the end of a program on a TPU core.
COMPLETE: Final = "CompleteCallbacks"

_PYTHON: Final = re.compile(r"^\$(.+\.py):(\d+) (.+)$")
#: The mark that the probe leaves in a thread, and the stat with the id of the thread.
THREAD_MARK: Final = "tuiprof.thread"
THREAD_ID: Final = "tuiprof_tid"
#: The probe's function in which it waits for the devices, and the program that it has them run for it.
OWN: Final = "tuiprof_waits_for_devices"
_MARK: Final = re.compile(
    rf"^{re.escape(THREAD_MARK)}$"
    r"|^ThreadpoolListener::|^end: |^profiler\.py\(\d+\): (?:start|stop)_trace$"
)
_COMPILE: Final = re.compile(
    r"backend_compile|(?:Client|Compiler)::Compile|XLAGraphExecutor::Compile|lower_sharding_computation"
    r"|^LoadProgram|^(?:Cpu|Gpu|Tpu|TfrtTpu)Compiler::"
)
_DRIVER: Final = re.compile(r"^cu[A-Z]\w+$")
_RUNTIME: Final = re.compile(
    r"^(?:cuda|hip|nccl|rccl)[A-Z]\w+$"
    r"|(?:LoadedExecutable|Executable)::Execute|^PJRT_|^(?:Do|)Enqueue\w*Program$|GpuExecutable::ExecuteThunks$"
    r"|Buffer::(?:Await|ToLiteral)|AwaitReady|BlockHostUntilReady|CopyRawToHost|BufferFromHostBuffer"
    r"|PjRtComputationClient::|^tpu::System::|^[HD]2[HD] (?:Dispatch|Copy)|LinearizeHostBufferInto"
    r"|^Xla(?:De)?[Ll]inearize|^jax\.(?:Array\.)?block_until_ready$"
    r"|^np\.asarray\(jax\.Array\)$|copy_to_host_async|DevicePut|batched_copy_array_to_devices"
    r"|^(?:Acquire|Release) semaphore|^ComputeSemaphoreAcquire|^TransferToInfeed|^TransferFromOutfeed"
    r"|^ReadSyncFlag$|^CompleteCallbacks$|^Wait for |\(wait for completion\)$"
)
_FRAMEWORK_OP: Final = re.compile(
    r"^PjitFunction\(|^shard_args$|^SyncTensorsGraph|^ExecuteReplicated|^StepMarker$|_fallback$"
)
_INTERNAL: Final = re.compile(
    r"::|=>|Memory(?:De)?[Aa]llocation|^Thunk|^Parse|^Handle |^Resolve |^Build |^Allocate|^Record|^Release|^Then"
    r"|^Collect|^Schedule|^SetTensor|^RunPostOrder|^ExtractIR|^MapDma|^Transpose|^(?:Del|L)inearize|^EnqueueContinuation"
)
_MAIN_LINES: Final = re.compile(r"^(?:python\d?|main)(?:/|$)")


def runs_python(line: str) -> bool:
    """Return whether a host thread runs Python, by the name of its line; a TPU host's main thread is ``main/<tid>``."""
    return bool(_MAIN_LINES.match(line))


def show_name(name: str) -> str:
    """Return an event's name as the model keeps it.

    Python frames get the form that other profilers give them (``api.py(120): jit``); the text of an HLO
    instruction is cut to the instruction's name. The raw event keeps the whole.
    """
    if match := _PYTHON.match(name):
        return f"{match[1]}({match[2]}): {match[3]}"
    if name.startswith("%"):
        return name[1:].partition(" = ")[0]
    return name


def of_host(name: str, *, runs_python: bool) -> str:
    """Return the category of an event on a host thread.

    What a user names with ``jax.profiler.TraceAnnotation`` cannot be distinguished from what the runtime names, except
    by knowing the runtime's names: on a thread that runs Python, what is not known is an annotation — unless it
    lies inside a runtime call or a compilation, which :mod:`tuiprof.formats.xplane.build` sees.
    """
    for pattern, category in (
        (_MARK, "overhead"),
        (_COMPILE, "compile"),
        (_DRIVER, "driver"),
        (_RUNTIME, "runtime"),
        (_FRAMEWORK_OP, "cpu_op"),
    ):
        if pattern.search(name):
            return category
    if name.startswith("$") or re.search(r"\.py\(\d+\): ", name):
        return "python_function"
    if not runs_python or _INTERNAL.search(name):
        return "other"
    return "annotation"


_COLLECTIVE: Final = re.compile(
    r"^(?:async-)?(?:all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast"
    r"|ragged-all-to-all|send|recv)(?:-start|-done|-update)?$"
)
_COPY: Final = re.compile(
    r"^(?:copy|async-copy|infeed|outfeed|dynamic-slice-start|dynamic-slice-done)(?:-start|-done)?$|^data formatting$"
)
_SUFFIX: Final = re.compile(r"[.\d]+$")


def of_tpu_op(name: str, hlo_category: str) -> str:
    """Return the category of a TPU operation by its HLO instruction (``"all-reduce.3"``) and XLA's category, if any."""
    for word in (hlo_category, _SUFFIX.sub("", name)):
        if _COLLECTIVE.match(word):
            return "collective"
        if _COPY.match(word):
            return "memcpy"
    return "kernel"


def of_wait(name: str) -> str:
    """Return the category of a mark inside a TPU program."""
    return "sync" if re.search(r"wait|barrier|sync", name) else "device_annotation"


def tracks_of(space: Space, threads: dict[int, int]) -> tuple[Track, ...]:
    """Return a track for every line, in file order."""
    tracks = []
    for index, line in enumerate(space.lines):
        plane = space.planes[line.plane]
        device, row = device_of(plane.name), row_of(plane.name, line.name)
        name = line.display_name or line.name or f"line {line.id}"
        if row is Row.HOST:
            tracks.append(Track(index, "thread", plane.name, threads.get(index, line.id), name))
        elif row in (Row.SHADOW, Row.WAITS, Row.COUNTERS) or device is None:
            tracks.append(Track(index, "other", plane.name, line.id, name, device[1] if device else None))
        else:
            stream = stream_of(line.name)
            tracks.append(
                Track(
                    index,
                    "stream",
                    plane.name,
                    line.id if stream is None else stream,
                    name if stream is None else f"stream {stream}",
                    device[1],
                )
            )
    return tuple(tracks)


def describe(space: Space, path: Path | None, origin_unix_ns: int | None) -> TraceInfo:
    """Return the origin of the trace."""
    devices: dict[int, DeviceInfo] = {}
    for plane in space.planes:
        found = device_of(plane.name)
        if found is not None and found[1] not in devices:
            devices[found[1]] = _device(plane, *found)
    properties: dict[str, object] = {}
    for plane in space.planes:
        if device_of(plane.name) is None:
            properties.update((k, v) for k, v in plane.values.items() if not isinstance(v, bytes))
    return TraceInfo(
        path,
        "xplane",
        origin_unix_ns,
        tuple(devices[index] for index in sorted(devices)),
        framework=_framework(space, properties),
        host=space.hostnames[0] if space.hostnames else "",
        properties=properties,
    )


def _device(plane: Plane, kind: str, index: int) -> DeviceInfo:
    values = plane.values
    vendor = str(values.get("device_vendor") or "")
    name = str(
        values.get("device_type_string")
        or values.get("gpu_device_name")
        or " ".join(word for word in (vendor, kind, str(index)) if word)
    )
    memory = values.get("memory_size")
    properties = {key: value for key, value in values.items() if not isinstance(value, bytes)}
    return DeviceInfo(index, name, memory if isinstance(memory, int) else None, properties)


def _framework(space: Space, properties: dict[str, object]) -> str:
    if version := properties.get("jax_version"):
        return f"JAX {version}"
    return framework(
        (metadata.name for plane in space.planes for metadata in plane.events.values()),
        (line.name for line in space.lines),
    )
