"""A window of steps under ``torch.profiler``, after which CUPTI is shut down.

NVIDIA's tracing library slows every launch while it is loaded, and Kineto, PyTorch's profiler, leaves it attached when
a profile ends: on an H100 launch-bound steps took 1.2 to 1.9 times as long from then on. It shuts CUPTI down if
``TEARDOWN_CUPTI=1`` is in the environment: when a profile ends it starts a thread that waits for the next CUDA call,
and the return of that call runs ``cuptiFinalize``. This has two consequences:

- The variable is read when a profile begins, when it ends, and by that thread after the shutdown. It is set only at
  these times, and only for C code (see :func:`visible_to_c`): the script's ``os.environ`` never holds it.
- A profile that begins before the shutdown crashes or loses its kernels. So the awaited CUDA call is made here, and
  nothing continues until the thread has ended.

It is skipped if it is not known to be safe: see :meth:`Cupti.reason_to_keep`. On ROCm there is nothing to shut down:
Kineto's part for it has no such step. XLA calls ``cuptiFinalize`` itself when a profile ends.

Sources: pytorch/kineto ``CuptiActivityApi.cpp`` and pull requests 686, 740, 748, 823, 1169 and 1554; pytorch/pytorch
pull requests 112507 and 151124 (CUDA graphs: crashes before CUDA 12.6).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import time
import weakref
import zlib
from collections import deque
from collections.abc import Iterator
from typing import Any, Callable

from ..capture import (
    NO_CALLS,
    CaptureError,
    Capturer,
    profile_function_kept,
    profiles_calls,
)
from ..events import RECORD
from ..garbage import GarbageRanges
from ..isolation import OwnFile, own_errors_dropped, pieces
from ..requests import Request
from ..runtime import Runtime
from .module_calls import ModuleCalls
from .syncs import SyncWatch
from .trainer_hooks import trainer_of_thread
from .weights import Weights

_GZIP_LEVEL = 3  # of a Kineto trace: about as small as 6 in a third of the time
_PIECE = 4 << 20

# Another thread may still read a replaced array, so arrays are never freed.
_READ: deque[Any] = deque(maxlen=64)
_IN_USE: list[Any] = []

_NAME = "TEARDOWN_CUPTI"
# The first whose Kineto takes the variable's value and initialises CUPTI again when it is needed.
_TORCH = (2, 2)
_CUDA_WITH_GRAPHS = (12, 6)
_WAIT_S = 2.0
_PAUSE_S = 0.0005


@contextlib.contextmanager
def visible_to_c(name: str, value: str) -> Iterator[None]:
    """Make ``getenv`` find a variable that is not set; raises ValueError if this C library has no ``environ``."""
    library = ctypes.CDLL(None)
    variable = ctypes.c_void_p.in_dll(library, "environ")
    text = ctypes.create_string_buffer(f"{name}={value}".encode())
    before = variable.value
    entries = _entries(before)
    array = (ctypes.c_void_p * (len(entries) + 2))(ctypes.addressof(text), *entries, None)
    _READ.append((text, array))
    variable.value = ours = ctypes.addressof(array)
    try:
        yield
    finally:
        if variable.value == ours and _entries(ours)[1:] == entries == _entries(before):
            variable.value = before
        else:  # the script has set a variable in the meantime: keep its array
            library.unsetenv(name.encode())
            _IN_USE.append((text, array))


def _entries(address: int | None) -> list[int]:
    """Return the pointers of an environment."""
    found: list[int] = []
    if address:
        array = ctypes.cast(address, ctypes.POINTER(ctypes.c_void_p))
        while entry := array[len(found)]:
            found.append(entry)
    return found


class Cupti:
    """CUPTI of this process."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._graphs = _Graphs(torch) if _cuda(torch) < _CUDA_WITH_GRAPHS else None
        self.is_down = False  # it was shut down, and no profile ran since

    def reason_to_keep(self, by_script: bool) -> str:
        """Return why CUPTI stays loaded after a capture; empty = it can be shut down.

        ``by_script``: the script has used ``torch.profiler`` itself.
        """
        if sys.platform != "linux":
            return "detaching it is only known to work on Linux"
        if _numbers(self._torch.__version__) < _TORCH:
            return f"PyTorch {self._torch.__version__} is older than {_TORCH[0]}.{_TORCH[1]}"
        if os.environ.get(_NAME, "1") != "1":
            return f"{_NAME}={os.environ[_NAME]} is set"
        for name in ("DISABLE_CUPTI_LAZY_REINIT", "CUDA_INJECTION64_PATH", "KINETO_USE_DAEMON"):
            if name in os.environ:
                return f"{name} is set"
        if "triton.profiler" in sys.modules:
            return "triton.profiler may be using it"
        if by_script:
            return "the script uses torch.profiler itself"
        if self._graphs is not None and self._graphs.captured:
            return f"the script uses CUDA graphs, which CUDA {self._torch.version.cuda} breaks when it is detached"
        return ""

    @contextlib.contextmanager
    def coming_back(self) -> Iterator[None]:
        """Reset the state for a new profile, as if CUPTI had never been shut down."""
        if not self.is_down:
            yield
            return
        self.is_down = False
        with visible_to_c(_NAME, "1"):
            yield

    def taken_down_after(self, stop: Callable[[], None]) -> bool:
        """Stop a profile, and shut CUPTI down; return whether it finished in time (else a later CUDA call does it)."""
        before = _threads()
        with visible_to_c(_NAME, "1"):
            stop()
            waiting = _threads() - before
            self.is_down = True
            deadline = time.monotonic() + _WAIT_S
            while True:
                self._call_cuda()
                if not waiting or waiting - _threads():
                    return True
                if time.monotonic() > deadline:
                    return False
                time.sleep(_PAUSE_S)

    def _call_cuda(self) -> None:
        """Make a CUDA runtime call without cost or side effects in any stream state."""
        self._torch._C._cuda_getDevice()
        self._torch.cuda.current_stream().query()


class _Graphs:
    def __init__(self, torch: Any) -> None:
        self.captured = False
        graph = getattr(torch.cuda, "CUDAGraph", None)
        begin = getattr(graph, "capture_begin", None)
        if graph is None or begin is None:
            return

        def capture_begin(*args: Any, **kwargs: Any) -> Any:
            self.captured = True
            return begin(*args, **kwargs)

        graph.capture_begin = capture_begin


def _threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def _cuda(torch: Any) -> tuple[int, ...]:
    """Return the version of CUDA that PyTorch was built with; empty = none."""
    return _numbers(getattr(torch.version, "cuda", None) or "")


def _numbers(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    parts = version.split("+")[0].split(".")[:2]
    return tuple(int(part) for part in parts if part.isdecimal())


class Profilers:
    """The script's own profilers that are prepared or running, and whether a call is ours."""

    def __init__(self, cupti: Cupti | None) -> None:
        self.own = False  # the call that is going on was made by the probe
        #: Instances of ``torch.autograd.profiler.profile`` of the script.
        self.others: weakref.WeakSet[Any] = weakref.WeakSet()
        self.used_by_script = False  # there has been one
        self.holds_tensors = False  # ours has weak references to the inputs of operators
        self.cupti = cupti  # what traces an NVIDIA GPU; None = PyTorch was not built for one
        #: Ends a profiler that was prepared and could not be started; None = there is none.
        self.leave_prepared: Callable[[], None] | None = None

    @contextlib.contextmanager
    def coming_back(self) -> Iterator[None]:
        """Prepare a profiler as if none had been prepared before, and CUPTI had never been shut down."""
        leave, self.leave_prepared = self.leave_prepared, None
        if leave is not None:
            with own_errors_dropped():
                leave()
        with contextlib.nullcontext() if self.cupti is None else self.cupti.coming_back():
            yield


def watch_profilers(runtime: Runtime, torch: Any) -> Profilers:
    """Detect when the script profiles itself: only one profiler can run, and the script's has priority."""
    state = Profilers(Cupti(torch) if getattr(torch.version, "cuda", None) else None)
    profile = torch.autograd.profiler.profile
    begin = "_prepare_trace" if hasattr(profile, "_prepare_trace") else "__enter__"
    original_begin, original_end = getattr(profile, begin), profile.__exit__
    hook = runtime.hook("torch.profiler")

    def begins(profiler: Any, *args: Any, **kwargs: Any) -> Any:
        if hook.on and not state.own:
            try:
                state.others.add(profiler)
                state.used_by_script = True
                runtime.give_way("the script started its own profiler during the capture")
            except Exception:
                hook.failed()
            with state.coming_back():
                return original_begin(profiler, *args, **kwargs)
        return original_begin(profiler, *args, **kwargs)

    def ends(profiler: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original_end(profiler, *args, **kwargs)
        finally:
            state.others.discard(profiler)

    setattr(profile, begin, begins)
    profile.__exit__ = ends
    if hasattr(torch.utils, "swap_tensors"):  # since 2.3
        swap = torch.utils.swap_tensors

        @functools.wraps(swap)
        def swap_tensors(*args: Any, **kwargs: Any) -> Any:
            if state.holds_tensors:
                hook.call(runtime.give_way, "the script swaps tensors, which a capture of shapes prevents")
            return swap(*args, **kwargs)

        torch.utils.swap_tensors = swap_tensors
    return state


class _Range:
    """A range of the trace.

    Unlike ``record_function`` it is no operator, which the script's dispatch modes, and what traces it for
    ``torch.export`` or TorchScript, would see.
    """

    def __init__(self, autograd: Any, name: str) -> None:
        self._autograd, self._name = autograd, name

    def __enter__(self) -> None:
        self._handle = self._autograd._record_function_with_args_enter(self._name)

    def __exit__(self, *_: object) -> None:
        self._autograd._record_function_with_args_exit(self._handle)


class TorchProfiler:
    """One window. Writes ``traces/<writer>.<unix_ms>.pt.trace.json.gz``, the layout TensorBoard reads.

    On a GPU, the arguments of operators would slow the host down in the steps whose times count. They are recorded in
    one more step, under a profiler of its own, and written beside the trace as ``<writer>.<unix_ms>.shapes.gz``.

    Raises:
        CaptureError: The script is profiling itself.
    """

    def __init__(
        self,
        torch: Any,
        profilers: Profilers,
        modules: ModuleCalls,
        weights: Weights,
        request: Request,
        capturer: Capturer,
    ) -> None:
        self._torch = torch
        self._profilers = profilers
        self._modules = modules
        self._weights = weights
        self._capturer = capturer
        self._steps = capturer._steps
        self._refuse_if_taken()
        folder = os.path.join(capturer.session, "traces")
        os.makedirs(folder, exist_ok=True)
        self._session = capturer.session
        name = f"{capturer.writer}.{time.time_ns() // 1_000_000}"
        self._stem = os.path.join(folder, name)
        self._raw = os.path.join(folder, f".{name}.json")  # the one before may still be being compressed
        self._raw_follow_up = os.path.join(folder, f".{name}.shapes")
        profiler = torch.profiler
        self._activities = [profiler.ProfilerActivity.CPU]
        self._on_device = torch.cuda.is_available() and torch.cuda.is_initialized()
        if self._on_device:
            self._activities.append(profiler.ProfilerActivity.CUDA)
        options: dict[str, Any] = {}
        stack = request.stack and not profiles_calls()
        if stack:
            # Without it Kineto leaves the Python frames out of the operators' stacks.
            options["experimental_config"] = torch._C._profiler._ExperimentalConfig(verbose=True)
        elif request.stack:
            capturer.note("warn", NO_CALLS)
        self._profiler = profiler._KinetoProfile(
            activities=self._activities,
            # On a CPU the time of operators depends on them, and they cost little beside what runs there.
            record_shapes=request.shapes or not self._on_device,
            profile_memory=request.memory,
            with_stack=stack,
            **options,
        )
        self._shapes_apart = self._on_device and not (request.shapes or request.cause)
        self._in_follow_up = self._detached = False
        self._syncs = SyncWatch(torch, request.memory) if torch.cuda.is_initialized() else None
        self._range_of = functools.partial(_Range, torch.autograd)
        self._garbage = GarbageRanges(self._range_of)
        self._range: Any = None
        self._prepared = self._started = False

    def _refuse_if_taken(self) -> None:
        """Raise when the script is using the profiler itself."""
        if self._profilers.others or self._torch.autograd._profiler_enabled():
            raise CaptureError(
                "the script is using torch.profiler itself, and only one can run; "
                "switch it off, or capture steps that it does not record"
            )

    def prepare(self) -> None:
        """Start up, one step ahead."""
        self._refuse_if_taken()
        self._weights.look()
        threads = {"t": "threads", "at": time.monotonic_ns(), "n": self._torch.get_num_threads()}
        self._steps.out.append((RECORD, threads))
        if trainer := trainer_of_thread():
            self._steps.out.append((RECORD, {"t": "trainer", "at": time.monotonic_ns(), "name": trainer}))
        with self._profilers.coming_back():
            self._call("prepare_trace")
        self._prepared = True
        self._modules.watch()

    def start(self) -> None:
        """Begin to record."""
        try:
            self._refuse_if_taken()
        except CaptureError:
            # The profiler that runs is the script's, which :meth:`abort` must not stop. PyTorch 2.11 prepares no other
            # one after that before ours has run.
            self._prepared = False
            self._profilers.leave_prepared = self._run_for_nothing
            raise
        self._call("start_trace")
        self._started = True
        self._profilers.holds_tensors = self._profiler.record_shapes
        self._steps.range = self._range_of
        self._modules.start()
        self._garbage.start()
        if self._syncs is not None:
            self._syncs.start()

    def step_begins(self, n: int) -> None:
        """Open the range that marks a step in the trace."""
        self._break_device_chain()
        self._range = self._range_of(f"ProfilerStep#{n}")
        self._range.__enter__()

    def step_ended(self) -> None:
        """Close the range."""
        opened, self._range = self._range, None
        if opened is not None:
            opened.__exit__()

    def start_follow_up(self) -> bool:
        """Begin to record the arguments of operators, after the window; return whether that is possible.

        It is not while CUPTI is attached: in scripts that replay CUDA graphs, a second profile, of the host alone, then
        ended in launch failures (PyTorch 2.11, CUDA 13).
        """
        if not self._shapes_apart or not self._detached:
            return False
        self._in_follow_up = True
        self._profiler = self._torch.profiler._KinetoProfile(activities=self._activities, record_shapes=True)
        with self._profilers.coming_back():
            self._call("prepare_trace")
        self._prepared = True
        self._call("start_trace")
        self._started = self._profilers.holds_tensors = True
        return True

    def stop(self) -> None:
        """Stop recording, take CUPTI down and write the raw trace.

        It is written here and not in a thread, because Kineto holds the interpreter while it writes: the
        pause would fall into some later step.
        """
        self._stop_marking()
        self._started = self._prepared = False
        if not self._torch.autograd._profiler_enabled():
            # There is no result then, and to export it would crash.
            raise CaptureError(
                "PyTorch lost its profiler state: steps run inside calls from C++, or in several threads"
            )
        self._stop_and_detach()
        self._call("export_chrome_trace", self._raw_follow_up if self._in_follow_up else self._raw)
        self._profiler.profiler = None  # the events, which hold memory, and weak references to tensors
        self._break_device_chain()

    def _stop_and_detach(self) -> None:
        """Stop the profile and, where that is safe, take CUPTI down."""
        cupti = self._profilers.cupti
        if cupti is None or not self._on_device or self._capturer.ending:
            self._call("stop_trace")
            self._detached = cupti is None
        elif reason := cupti.reason_to_keep(self._profilers.used_by_script):
            self._call("stop_trace")
            self._capturer.note("info", f"CUPTI stays attached after the capture: {reason}")
        else:
            self._detached = cupti.taken_down_after(lambda: self._call("stop_trace"))
            if not self._detached:
                self._capturer.note("warn", "CUPTI could not be detached after the capture within 2 s")

    def finish(self) -> str:
        """Write what lies beside the trace, then compress and move it; return its path relative to the session."""
        trace = self._stem + ".pt.trace.json.gz"
        if os.path.exists(self._raw_follow_up):
            with contextlib.suppress(OSError):  # it only adds to the trace
                _pack(self._raw_follow_up, self._stem + ".shapes.gz")
        if self._syncs is not None:
            self._syncs.write(self._stem + ".syncs.jsonl")
        _pack(self._raw, trace)
        return os.path.relpath(trace, self._session)

    def _stop_marking(self) -> None:
        """Stop what adds to the trace."""
        self._profilers.holds_tensors = False
        self._steps.range = None
        self._modules.stop()
        self._garbage.stop()
        if self._syncs is not None:
            self._syncs.stop()

    def abort(self) -> None:
        """Restore the profiler to its previous state; the recorded data is dropped."""
        self._stop_marking()
        self.step_ended()
        started, prepared = self._started, self._prepared
        self._started = self._prepared = False
        if prepared and not started and not self._torch.autograd._profiler_enabled():
            self._run_for_nothing()
        elif self._in_follow_up and started:
            self._stop_and_detach()
        elif prepared or started:
            self._call("stop_trace")
        with contextlib.suppress(OSError):
            os.unlink(self._raw_follow_up)

    def _run_for_nothing(self) -> None:
        """End what was prepared, which is possible only through a run."""
        self._call("start_trace")
        if self._in_follow_up:
            self._stop_and_detach()
        else:
            self._call("stop_trace")

    def forget(self) -> None:
        """Record nothing in a child that was forked meanwhile, such as a worker of a DataLoader."""
        self._modules.stop()
        self._garbage.stop()
        if self._torch.autograd._profiler_enabled():
            # Not stopped, as CUPTI does not survive a fork: with ``--memory``, 0.1 kB remain of each allocation.
            self._torch._C._autograd._clear_callbacks()
            if self._profiler.with_stack:
                sys.setprofile(None)

    def _call(self, method: str, *args: Any) -> None:
        """Call the profiler, marked as ours and without its warnings, which are for those who call it."""
        module = vars(self._torch.profiler.profiler)
        warning = {name: module[name] for name in ("warn", "_warn_once") if name in module}
        # Replaced all at once: a handler of the script may raise between two statements.
        try:
            self._profilers.own = True
            module.update(dict.fromkeys(warning, _dropped))
            with profile_function_kept():
                getattr(self._profiler, method)(*args)
        finally:
            try:
                module.update(warning)
            finally:
                self._profilers.own = False

    def _break_device_chain(self) -> None:
        """Exclude starting and stopping from the device time of a step."""
        if self._steps.device is not None:
            self._steps.device.break_chain()


def _dropped(*_args: Any, **_kwargs: Any) -> None:
    """Warn of nothing."""


def _pack(raw: str, path: str) -> None:
    """Compress a file under another name, which it gets when it is whole, while the script may close all files."""
    part, packer = raw + ".gz", zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    packed = OwnFile(part)
    try:
        for piece in pieces(raw, _PIECE):
            packed.append(packer.compress(piece))
        packed.append(packer.flush())
    finally:
        packed.close()
    os.unlink(raw)
    os.replace(part, path)
