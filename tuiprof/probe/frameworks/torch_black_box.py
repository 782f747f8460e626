"""PyTorch's part of the black box: failed allocations on a GPU, and NaN and infinite loss and gradients.

*Out of memory.* The allocator calls the observer after it has given up (its cache freed, the driver asked again) and
before it raises ``torch.OutOfMemoryError``, so the snapshot shows what held the memory at that moment. The script is
not affected: exception, handlers and exit status stay the same. A script that catches the error and retries with less
memory continues; the first and the last failure are kept.

*NaN* (``--watch-nan``), without waiting for the device. Before an optimizer step, the norms of all gradients are stored
in one small tensor on the device, after the loss of the last backward pass. On a GPU it is copied asynchronously to
pinned memory, followed by an event; once the event has completed, at one of the next steps, the host reads it. So the
host learns about a step one or more steps later. Gradients are read, never written. On the CPU there is nothing to wait
for.
"""

from __future__ import annotations

import functools
import gc
import os
import pickle
import sys
from collections import deque
from time import monotonic_ns
from typing import Any

from ..isolation import (
    leave_out,
    own_errors_dropped,
    own_errors_reported,
    raised_by_signal_handler,
    write_file,
)
from . import syncs

FOLDER = "memory"  # in the session
_AGAIN_NS = 1_000_000_000  # minimum interval between snapshots …
_AT_ONCE = 2  # … after this many
_MAX_RECORDS = 100
_MAX_PENDING = 64  # maximum number of pending checks; beyond it steps are not checked
_MAX_NAMED = 3  # maximum number of gradients named per step


class OutOfMemoryWatch:
    """Watches for failed allocations once the script initializes CUDA.

    With ``history`` the stack of every allocation is recorded, which costs some microseconds each.
    """

    def __init__(self, runtime: Any, torch: Any, *, history: bool) -> None:
        self._runtime = runtime
        self._torch = torch
        self._history = history
        self._count = 0
        self._records = 0
        self._kept: list[str] = []
        self._taken_ns = 0
        later = getattr(torch.cuda, "_lazy_call", None)
        if later is not None and torch.backends.cuda.is_built():
            later(self._begin)  # never initializes CUDA itself: the script may fork first

    def _begin(self) -> None:
        """Attach to the allocator (while CUDA is being initialised, or at once)."""
        text = "no snapshot will be written if memory runs out"
        with own_errors_reported(lambda error: self._runtime.note("warn", f"{text}: {error!r}")):
            # It cannot be taken back: once the probe has left a process it does nothing (see _failed).
            self._torch._C._cuda_attach_out_of_memory_observer(self._failed)
            if self._history and not self._torch._C._cuda_isHistoryEnabled():
                self._torch.cuda.memory._record_memory_history(
                    "all", context="all", stacks="python", max_entries=syncs.MAX_ENTRIES
                )
                syncs.kept_for_black_box = True

    def _failed(self, device: int, wanted: int, allocated: int, free: int) -> None:
        """Write a snapshot of the memory; called by the allocator, which raises afterwards."""
        with own_errors_dropped():
            if self._runtime.has_left or self._records >= _MAX_RECORDS:
                return
            self._records += 1
            path, why = self._snapshot()
            fields = {
                "n": self._runtime.steps.n,
                "dev": int(device),
                "wanted": int(wanted),
                "free": int(free),
            }
            self._runtime.black_box.write("oom", **fields, path=path, why=why)

    def _snapshot(self) -> tuple[str, str]:
        """Write a snapshot; return its path in the session, or why there is none."""
        now = monotonic_ns()
        if self._count >= _AT_ONCE and now - self._taken_ns < _AGAIN_NS:
            return "", "another snapshot was written less than a second before"
        self._count += 1
        path = f"{FOLDER}/oom-{os.getpid()}-{self._count}.pickle"
        session = self._runtime.session
        try:
            data = pickle.dumps(self._torch.cuda.memory._snapshot(), protocol=4)
            os.makedirs(os.path.join(session, FOLDER), exist_ok=True)
            write_file(os.path.join(session, path), data)
            self._kept.append(path)
            if len(self._kept) > 2:
                os.unlink(os.path.join(session, self._kept.pop(1)))
        except Exception as error:
            if raised_by_signal_handler(error):
                raise
            return "", f"{type(error).__name__}: {error}"[:300]
        finally:
            self._taken_ns = monotonic_ns()
        return path, ""


class _Check:
    def __init__(self, n: int, values: Any, event: Any, has_loss: bool, parameters: list[int]) -> None:
        self.n = n
        self.values = values  # the loss first, if there is one, then the norm of each gradient
        self.event = event
        self.has_loss = has_loss
        #: Their ids: a check waits until the next one, and the model may be gone by then.
        self.parameters = parameters


class NanWatch:
    """Checks gradients once a step."""

    def __init__(self, runtime: Any, torch: Any) -> None:
        self._runtime = runtime
        self._torch = torch
        self._hook = runtime.hook("--watch-nan")
        self._pending: deque[_Check] = deque()
        self._loss: Any = None
        self._named = False

    def backward_begins(self, tensors: Any) -> None:
        """Keep the loss of a backward pass if it is a single number."""
        tensor = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
        if isinstance(tensor, self._torch.Tensor) and tensor.numel() == 1:
            self._loss = _local(tensor.detach())

    def optimizer_begins(self, optimizer: Any, *_: Any) -> None:
        """Check the gradients that an optimizer is about to use, and read earlier results."""
        self._hook.call(self._look, optimizer)

    def _look(self, optimizer: Any) -> None:
        if not self._busy():
            self._read()
            if len(self._pending) < _MAX_PENDING:
                self._ask(optimizer)

    def _busy(self) -> bool:
        """Whether checks are not possible: a graph is being captured or compiled."""
        compiler = getattr(self._torch, "compiler", None)
        compiling = getattr(compiler, "is_compiling", None)
        return bool(self._runtime.capture.must_wait() or (compiling is not None and compiling()))

    def _ask(self, optimizer: Any) -> None:
        torch = self._torch
        loss, self._loss = self._loss, None
        by_device: dict[Any, dict[int, Any]] = {}  # gradients by the ids of their parameters
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            gradient = _local(parameter.grad)
            if gradient is not None and gradient.layout == torch.strided and gradient.numel():
                by_device.setdefault(gradient.device, {})[id(parameter)] = gradient
        with torch.no_grad():
            for device, gradients in by_device.items():
                # One kernel or a few for all of them; the largest absolute value cannot overflow as a sum does.
                norms = torch._foreach_norm(list(gradients.values()), float("inf"))
                values = [norm.float().reshape(1) for norm in norms]
                has_loss = loss is not None and loss.device == device
                if has_loss:
                    values.insert(0, loss.float().reshape(1))
                self._keep(torch.cat(values), device, has_loss, list(gradients))

    def _keep(self, values: Any, device: Any, has_loss: bool, parameters: list[int]) -> None:
        torch = self._torch
        event = None
        if device.type == "cuda":
            host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            host.copy_(values, non_blocking=True)
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(device))
            values = host
        self._pending.append(_Check(self._runtime.steps.n, values, event, has_loss, parameters))
        if event is None:
            self._read()

    def _read(self) -> None:
        """Read the values that have arrived on the host."""
        while self._pending and (self._pending[0].event is None or self._pending[0].event.query()):
            check = self._pending.popleft()
            if not bool(self._torch.isfinite(check.values).all()):
                self._tell(check)

    def _tell(self, check: _Check) -> None:
        values = check.values.tolist()
        write = self._runtime.black_box.not_finite
        if check.has_loss:
            loss = values.pop(0)
            if not _is_finite(loss):
                write("loss", check.n, _in_words(loss))
        bad = [(p, v) for p, v in zip(check.parameters, values) if not _is_finite(v)]
        if not bad or self._named:  # after the first one, all are affected
            return
        self._named = True
        names = self._names()
        for parameter, value in bad[:_MAX_NAMED]:
            name = names.get(parameter, "a parameter outside of modules")
            write(f"gradient of {name}", check.n, _in_words(value))
        if len(bad) > _MAX_NAMED:
            write(f"gradients of {len(bad)} of {len(values)} parameters", check.n, "nan or inf")

    def _names(self) -> dict[int, str]:
        """Return the names of parameters in the script's modules, by identity; called only for NaN and infinity."""
        module_class = self._torch.nn.Module
        modules = [it for it in gc.get_objects() if issubclass(type(it), module_class)]
        inner = {id(child) for module in modules for child in module._modules.values()}
        names: dict[int, str] = {}
        for module in modules:
            if id(module) not in inner:
                for name, parameter in module.named_parameters():
                    names.setdefault(id(parameter), name)
        return names


def _local(tensor: Any) -> Any:
    """Return the part of a sharded tensor that this process holds: operators on all of it would communicate."""
    return getattr(tensor, "_local_tensor", tensor)


def watch_for_nan(runtime: Any, torch: Any) -> None:
    """Begin to check."""
    module = sys.modules.get("torch.optim.optimizer")  # torch.optim hides it
    register = getattr(module, "register_optimizer_step_pre_hook", None)
    if register is None:
        runtime.note("warn", "--watch-nan needs PyTorch 2.0 or newer")
        return
    state = NanWatch(runtime, torch)
    handle = register(state.optimizer_begins)
    original = torch.autograd.backward
    hook = runtime.hook("--watch-nan, backward")

    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        hook.call(state.backward_begins, tensors)
        try:
            return original(tensors, *args, **kwargs)
        except BaseException as error:
            leave_out(error)
            raise

    torch.autograd.backward = backward
    runtime.black_box.undo.append(handle.remove)


def _is_finite(value: float) -> bool:
    return value - value == 0.0


def _in_words(value: float) -> str:
    return "nan" if value != value else "inf" if value > 0 else "-inf"
