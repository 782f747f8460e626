"""Maps the category words of tools to the categories of the model.

Kineto's words are those of its ``ActivityType`` names since PyTorch 1.8; vendors put their own prefix in
front (``cuda_``, ``xpu_``, ``mtia_``, ``privateuse1_``). Tools that write no category get it from the lane
an event lies on.
"""

from __future__ import annotations

import re
from typing import Final

from tuiprof.formats.xplane.words import of_stream
from tuiprof.model.schema import CATEGORIES

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

#: Categories whose events lie on a device's lane even where the event does not say which device.
ON_DEVICE: Final = frozenset(
    CODE[name] for name in ("kernel", "memcpy", "memset", "collective", "device_annotation", "sync")
)

#: Words that need the event's name: MTIA writes all that its command processor does under one.
BY_NAME: Final = frozenset({"mtia_ccp_events"})
#: Words that do not tell where the work ran, so the lane decides.
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
