"""Categories of events, and kinds of lanes (host thread, device stream, the profiler's own).

Kineto's category words are those of its ``ActivityType`` names since PyTorch 1.8; vendors put their own prefix in
front (``cuda_``, ``xpu_``, ``mtia_``, ``privateuse1_``). Tools that write no category get it from the lane
an event lies on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from tuiprof.formats.kineto.columns import Identity
from tuiprof.formats.kineto.decode import Rare
from tuiprof.formats.xla_names import of_stream
from tuiprof.model.trace import CATEGORIES

CODE: Final[dict[str, int]] = {name: code for code, name in enumerate(CATEGORIES)}

_WORDS: Final[dict[str, str]] = {
    "cpu_op": "cpu_op",
    "operator": "cpu_op",  # PyTorch 1.8 to 1.11
    "user_annotation": "annotation",
    "annotation": "annotation",
    "gpu_user_annotation": "device_annotation",
    "kernel": "kernel",
    "concurrent_kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
    "cuda_runtime": "runtime",  # also what ROCm writes
    "runtime": "runtime",
    "external_runtime": "runtime",
    "glow_runtime": "runtime",
    "cuda_profiler_range": "device_annotation",
    "cuda_driver": "driver",
    "driver": "driver",
    "cuda_sync": "sync",
    "sync": "sync",
    "python_function": "python_function",
    "overhead": "overhead",
    "collective_comm": "collective",
    "mtia_insight": "other",
    "hpu_op": "kernel",
    "dataloader": "dataloader",
    "compile": "compile",
    "dynamo_timed": "compile",  # torch.compile's own chrome trace
    "inductor_compile": "compile",
}
_VENDOR = re.compile(
    r"^(?:cuda|hip|rocm|xpu|sycl|mtia|hpu|npu|aiu|privateuse1|musa|maca)_(?=runtime|driver|sync$)"
)

#: Categories of events on the lane of a device, also if the event does not name the device.
ON_DEVICE: Final = frozenset(
    CODE[name] for name in ("kernel", "memcpy", "memset", "collective", "device_annotation", "sync")
)

#: Words that need the event's name: MTIA writes all that its command processor does under one.
BY_NAME: Final = frozenset({"mtia_ccp_events"})
#: Words that do not imply where the work ran: the lane decides.
BY_LANE: Final = frozenset({"", "none", "fee"})


def category(word: str) -> str | None:
    """Return the category for a tool's ``cat``; None when the event's name or lane must decide."""
    word = word.lower()
    if word in BY_NAME or word in BY_LANE:
        return None
    known = _WORDS.get(word)
    if known is None and (match := _VENDOR.match(word)):
        known = _WORDS.get(word[match.end() :])
    return known or "other"


_COPY = re.compile(r"copy|memcpy|dma|h2d|d2h|d2d", re.IGNORECASE)
_FILL = re.compile(r"memset|\bfill\b", re.IGNORECASE)
#: A whole word at the beginning: kernels may take a semaphore as an argument.
_WAIT = re.compile(r"^(?:event_(?:wait|record)|barrier|(?:\w+ )?semaphore)\b", re.IGNORECASE)
_COLLECTIVE = re.compile(
    r"^(?:hcom_|%?(?:all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast))",
    re.IGNORECASE,
)
_HOST_CALL = re.compile(
    r"^(?:cuda[A-Z]|hip[A-Z]|ze[A-Z][a-z]+[A-Z]|ur[A-Z][a-z]+[A-Z]|acl(?:rt|op|nn|mdl)[A-Z]|AscendCL@|Runtime@|Node@)"
)
_DRIVER_CALL = re.compile(r"^cu[A-Z][a-z]+[A-Z]")
_PYTHON = re.compile(r"^\$.*\.py:\d+ |^\$<|^<frozen |\.py(?:\(\d+\)|:\d+\))")
_COMPILE = re.compile(r"backend_compile|(?:Client|Compiler)::Compile|XLAGraphExecutor::Compile")


def of_device_work(name: str, lane: str = "") -> str:
    """Return the category of an event on a device lane, by its name."""
    if lane.startswith("Stream #"):
        return of_stream(name, lane, "")
    if _WAIT.search(name):
        return "sync"
    if _COLLECTIVE.search(name):
        return "collective"
    if _COPY.search(name):
        return "memcpy"
    return "memset" if _FILL.search(name) else "kernel"


def of_host_event(name: str) -> str:
    """Return the category of an event on a host lane that carries no word, by its name."""
    if _HOST_CALL.match(name):
        return "runtime"
    if _DRIVER_CALL.match(name):
        return "driver"
    if _PYTHON.search(name):
        return "python_function"
    return "compile" if _COMPILE.search(name) else "other"


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
    r"TensorFlow (?:Ops|Name Scope)|SparseCore Steps|Host Offload Ops|Launch Stats|.* Submission Queue)"
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
    device: int | None  # device index, if its process names one; None = it does not
    shadow: bool = False  # whether a device lane shows work again that another lane holds


def describe_lane(pid: Identity, tid: Identity, labels: Labels) -> Lane:
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
