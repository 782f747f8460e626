"""The kind of each lane of the file: a host thread, a device stream, or the profiler's own."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from tuiprof.formats.kineto.reading.decode import Rare

Identity = int | str | None
Kind = Literal["thread", "stream", "other"]

_DEVICE_PROCESS = (
    re.compile(r"^/device:(?:TPU|GPU|CUSTOM|XLA_\w+):(\d+)"),
    re.compile(r"^(?:GPU|NPU|XPU|HPU|MTIA|AIU|TPU)\s*(\d+)$", re.IGNORECASE),
    re.compile(r"^Ascend Hardware()", re.IGNORECASE),
)
_PLANE = re.compile(r"^/(?:host:CPU$|device:)")
_DEVICE_LABEL = re.compile(r"^(?:GPU|NPU|XPU|HPU|MTIA|AIU|TPU)\s*(\d*)$", re.IGNORECASE)
#: Lanes of a device process that repeat the work in another grouping, or have no work.
_SHADOWS = re.compile(
    r"^(?:XLA Modules|Steps|Framework (?:Ops|Name Scope)|Source code|XLA TraceMe|TC Overlay|Overlay|_counters_|"
    r"TensorFlow (?:Ops|Name Scope)|SparseCore Steps|Host Offload Ops|Launch Stats|.* Submission Queue)",
)
_SUMMARIES = re.compile(
    r"^(?:Overlap Analysis|Communication|AI Core Freq|HBM|LLC|NPU MEM|Acc PMU|GPU Barriers\d*)$"
)
_PROFILER = re.compile(r"^(?:Spans|Traces|)$")


#: Threads of this name hold the asynchronous ranges of a process; they overlap each other.
ASYNC = "async "


@dataclass(slots=True)
class Labels:
    """Names of processes and threads, from the metadata events."""

    processes: dict[Identity, str] = field(default_factory=dict)  # ``process_name`` by process
    marks: dict[Identity, str] = field(default_factory=dict)  # ``process_labels`` by process
    #: ``thread_name`` by (process, thread).
    threads: dict[tuple[Identity, Identity], str] = field(default_factory=dict)

    @property
    def of_xla(self) -> bool:
        """Whether process names are those of XLA profiler planes."""
        return any(_PLANE.match(name) for name in self.processes.values())

    def read(self, events: Iterable[Rare]) -> None:
        """Process the metadata events (phase M) among these."""
        for event in events:
            if event.phase != "M" or not isinstance(event.args, dict):
                continue
            if event.name == "process_name" and event.args.get("name") is not None:
                self.processes[event.pid] = str(event.args["name"])
            elif event.name == "process_labels" and event.args.get("labels") is not None:
                self.marks[event.pid] = str(event.args["labels"])
            elif event.name == "thread_name" and event.args.get("name") is not None:
                self.threads[event.pid, event.tid] = str(event.args["name"])


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane."""

    kind: Kind  # what it is
    name: str  # a name for the screen
    device: int | None  # device index, where its process says so; None = it does not
    shadow: bool = False  # whether a device lane shows work again that another lane holds


def describe(pid: Identity, tid: Identity, labels: Labels) -> Lane:
    """Return a lane from its ids and the metadata."""
    process = labels.processes.get(pid, "")
    thread = labels.threads.get((pid, tid), "")
    if isinstance(pid, str) and _PROFILER.match(pid):
        return Lane("other", thread or str(tid) or "profiler", None)
    if isinstance(tid, str) and tid.startswith(ASYNC):
        return Lane("other", tid, None)
    if _SUMMARIES.match(process):
        return Lane("other", f"{process}: {thread}" if thread else process, None)
    device = _device(process, labels.marks.get(pid, ""), pid)
    if device is not None:
        name = thread or ("stream" if tid is None else f"stream {tid}".replace("stream stream", "stream"))
        return Lane("stream", name, device, bool(_SHADOWS.match(thread)))
    if isinstance(pid, int) and pid < 0:
        return Lane("other", thread or process or "profiler", None)
    return Lane("thread", thread or ("thread" if tid is None else f"thread {tid}"), None)


def _device(process: str, mark: str, pid: Identity) -> int | None:
    for pattern in _DEVICE_PROCESS:
        if match := pattern.match(process):
            return int(match[1] or 0)
    if match := _DEVICE_LABEL.match(mark):
        if match[1]:
            return int(match[1])
        return pid if isinstance(pid, int) and 0 <= pid < 1024 else 0
    return None
