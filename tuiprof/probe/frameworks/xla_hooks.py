"""PyTorch/XLA and JAX: what ends a step, and their profilers, which write XPlane files.

- PyTorch/XLA: ``torch_xla.sync()`` (``xm.mark_step()``).
- JAX: the end of a ``StepTraceAnnotation``.
- Flax NNX and Equinox: the jitted call that repeats. Their ``jit`` returns an object of a Python class, unlike
  ``jax.jit``, whose objects call nothing in Python.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import weakref
from time import monotonic_ns
from typing import Any, Callable

from ..capture import (
    NO_CALLS,
    CaptureError,
    Capturer,
    jax_on_gpu,
    profile_function_kept,
    profiles_calls,
)
from ..garbage import GarbageRanges
from ..isolation import leave_out, own_errors_dropped, raised_by_signal_handler
from ..requests import Request
from ..runtime import Runtime
from ..sampler import AROUND, Site, relation, script_sites
from ..steps.sources import ANNOTATION, JITTED, SYNC
from .jax_reads import JaxReads
from .syncs import JaxSyncWatch

#: Classes of the jitted functions of Flax NNX and Equinox.
_CLASSES = ("JitWrapped", "SimpleJitWrapped", "SimpleJitPartialWrapped", "_JitWrapper")
#: The first function with this many calls is the step, or the first that trains; after this many calls of others
#: without it, one of those with more calls than it, which excludes occasional evaluations.
_QUIET, _OF_OTHERS = 3, 32
#: A function called in a loop inside another's loop is part of the other's step, up to this many calls.
_MAX_PARTS = 256
#: Types of which a returned object is not the given one.
_PLAIN = (type(None), bool, int, float, str, bytes, tuple, list)


def step_hook(runtime: Runtime, name: str, source: int, ready: Callable[[], bool]) -> Callable[[], None]:
    """Return the function that a wrapper calls when a step may have ended; it never raises."""
    hook = runtime.hook(name)
    steps = runtime.steps

    def ended() -> None:
        if hook.on:
            try:
                t = monotonic_ns()
                if ready():
                    steps.end(source, t)
            except Exception:
                hook.failed()

    return ended


#: The end of the name of what the profilers write, and of the files that have the same name otherwise.
_PLANE = ".xplane.pb"
_BESIDE = (".trace.json.gz", ".syncs.jsonl")


class XPlaneProfiler:
    """One window under a profiler that writes ``plugins/profile/<time>/<host>.xplane.pb`` into a folder."""

    def __init__(self, profiler: Any, name: str, capturer: Capturer) -> None:
        self._profiler = profiler
        self._name = name
        self._alone = capturer.alone
        self._session = capturer.session
        self._folder = os.path.join(capturer.session, "traces")
        self._before: set[str] = set()
        self._running = False

    def prepare(self) -> None:
        """Nothing to do ahead."""

    def start(self) -> None:
        """Begin to record."""
        self._before = set(newest_profile(self._folder))
        start = self._profiler.start_trace
        getattr(start, "_tuiprof_wraps", start)(self._folder, **self._options())
        self._running = True

    def _options(self) -> dict[str, Any]:
        """Return further arguments of ``start_trace``."""
        return {}

    def step_begins(self, n: int) -> None:
        """Mark nothing."""

    def step_ended(self) -> None:
        """Mark nothing."""

    def stop(self) -> None:
        """Stop and write."""
        self._running = False
        with profile_function_kept():
            self._profiler.stop_trace()

    def start_follow_up(self) -> bool:
        """Nothing follows the window: the arguments of instructions are in their programs."""
        return False

    def finish(self) -> str:
        """Return the path of the trace relative to the session."""
        new = self._written()
        if not new:
            raise CaptureError(f"{self._name} wrote no trace")
        return os.path.relpath(new[0], self._session)

    def _written(self) -> list[str]:
        """Return the paths of the traces that were not there before, the newest first."""
        return [path for path in newest_profile(self._folder) if path not in self._before]

    def forget(self) -> None:
        """Nothing can be done in a forked child, which these frameworks do not support."""

    def abort(self) -> None:
        """Stop when running, and remove what these frameworks write then: it is part of a capture that has failed.

        All ranks write into one folder, and the script may: what may be theirs stays.
        """
        self.step_ended()
        if self._running:
            self._before = set(newest_profile(self._folder))
            self.stop()
            new = self._written()
            if len(new) == 1 and self._alone():
                remove_profile(new[0])


def newest_profile(folder: str) -> list[str]:
    """Return the XPlane files under ``folder/plugins/profile``, the newest run first."""
    found: list[str] = []
    for where, _, names in os.walk(os.path.join(folder, "plugins", "profile")):
        found += [os.path.join(where, name) for name in names if name.endswith(_PLANE)]
    return sorted(found, key=_changed, reverse=True)


def _changed(path: str) -> float:
    """Return when a file was changed; 0 = another process has removed it."""
    try:
        return os.path.getmtime(path)
    except OSError:
        return 0.0


def remove_profile(path: str) -> None:
    """Remove an XPlane file, what is beside it of the same host, and folders that are empty then."""
    for end in (_PLANE, *_BESIDE):
        with contextlib.suppress(OSError):  # there is none
            os.remove(path[: -len(_PLANE)] + end)
    folder = os.path.dirname(path)
    with contextlib.suppress(OSError):  # not empty
        for _ in range(3):  # plugins/profile/<time>
            os.rmdir(folder)
            folder = os.path.dirname(folder)


def install_torch_xla(runtime: Runtime, module: Any) -> None:
    """Wrap the step marker that all versions of ``sync`` and ``mark_step`` call, once."""
    native = module._XLAC
    original = native._xla_step_marker
    if getattr(original, "_tuiprof", False):
        return
    steps = runtime.steps

    def ready() -> bool:
        # Where an optimizer is used, a sync without its step in front ends a micro-batch only.
        stepped, steps.optimizers.stepped = steps.optimizers.stepped, False
        return stepped or not steps.has_optimizer

    ended = step_hook(runtime, "torch_xla.sync", SYNC, ready)

    @functools.wraps(original)
    def step_marker(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        ended()
        return result

    step_marker._tuiprof = True  # type: ignore[attr-defined]
    native._xla_step_marker = step_marker
    runtime.capture.xla = XlaProfiler


class XlaProfiler(XPlaneProfiler):
    """One window under ``torch_xla.debug.profiler``; an open range would make ``torch_xla.sync()`` fail."""

    def __init__(self, request: Request, capturer: Capturer) -> None:
        from torch_xla.debug import profiler

        if not hasattr(profiler, "start_trace"):
            raise CaptureError("this torch_xla has no profiler.start_trace; 2.1 or newer is needed")
        super().__init__(profiler, "torch_xla", capturer)


def install_jax(runtime: Runtime, module: Any) -> None:
    """Wrap ``StepTraceAnnotation``, once."""
    annotation = module.StepTraceAnnotation
    if "_tuiprof" in vars(annotation):
        return
    steps = runtime.steps
    name = "jax.profiler.StepTraceAnnotation"
    ended = step_hook(runtime, name, ANNOTATION, lambda: not steps.own_annotation)
    enter, leave = annotation.__enter__, annotation.__exit__

    def __enter__(self: Any) -> Any:  # noqa: N807
        steps.assembly.touch(monotonic_ns())
        return enter(self)

    def __exit__(self: Any, *exc_info: Any) -> Any:  # noqa: N807
        result = leave(self, *exc_info)
        ended()
        return result

    annotation.__enter__ = __enter__
    annotation.__exit__ = __exit__
    annotation._tuiprof = True
    _watch_profiler(runtime, module)
    runtime.capture.jax = JaxProfiler
    runtime.loops.make_watch = JaxReads


def _watch_profiler(runtime: Runtime, module: Any) -> None:
    """Let the script's own profiler have priority: JAX refuses to start one while ours runs."""
    hook = runtime.hook("jax.profiler.start_trace")
    original = module.start_trace

    @functools.wraps(original)
    def start_trace(*args: Any, **kwargs: Any) -> Any:
        hook.call(runtime.give_way, "the script started its own profiler during the capture")
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            leave_out(error)
            raise

    start_trace._tuiprof_wraps = original  # type: ignore[attr-defined]
    owner: Any
    for owner in (module, sys.modules.get("jax._src.profiler")):  # jax.profiler.trace calls the second one
        if getattr(owner, "start_trace", None) is original:
            owner.start_trace = start_trace


class JaxProfiler(XPlaneProfiler):
    """One window under ``jax.profiler``, which records Python calls unless the script does so itself."""

    def __init__(self, request: Request, capturer: Capturer) -> None:
        super().__init__(sys.modules["jax.profiler"], "jax.profiler", capturer)
        self._steps = capturer._steps
        self._range: Any = None
        self._capturer = capturer
        self._syncs = JaxSyncWatch()
        self._garbage = GarbageRanges(self._profiler.TraceAnnotation)
        # A capture by the clock records whatever runs, possibly the whole training, so it does not wait. Except on a
        # GPU: XLA finalizes CUPTI when it stops, which crashes a process that launches work in the meantime.
        self._fence = Fence() if request.seconds is None or jax_on_gpu() else None

    def prepare(self) -> None:
        """Compile the program that detects that the devices are done."""
        if self._fence is not None:
            self._fence.prepare()

    def start(self) -> None:
        """Start recording after the work of earlier steps is done, so that the trace contains only its own steps."""
        if self._fence is not None:
            self._fence.tuiprof_waits_for_devices()
        super().start()
        self._garbage.start()
        self._syncs.start()

    def _options(self) -> dict[str, Any]:
        if not profiles_calls():
            return {}
        self._capturer.note("warn", NO_CALLS)
        if not hasattr(self._profiler, "ProfileOptions"):
            raise CaptureError(
                "this version of JAX cannot leave out Python calls, which the script profiles itself"
            )
        options = self._profiler.ProfileOptions()
        options.python_tracer_level = 0
        return {"profiler_options": options}

    def stop(self) -> None:
        """Stop and write, once the steps' work is done: JAX returns from a step before it, and XLA records no more."""
        self._garbage.stop()
        self._syncs.stop()
        if self._fence is not None:
            self._fence.tuiprof_waits_for_devices()
        super().stop()

    def finish(self) -> str:
        """Write the lines of host waits next to the trace; return the trace's path relative to the session."""
        trace = super().finish()
        self._syncs.write(os.path.join(self._session, trace[: -len(_PLANE)] + ".syncs.jsonl"))
        return trace

    def step_begins(self, n: int) -> None:
        """Mark the step in the trace, where the script does not mark it itself."""
        if self._steps.source != ANNOTATION:
            self._range = self._profiler.StepTraceAnnotation("step", step_num=n)
            self._range.__enter__()

    def step_ended(self) -> None:
        """Close the mark."""
        mark, self._range = self._range, None
        if mark is not None:
            self._steps.own_annotation = True
            try:
                mark.__exit__(None, None, None)
            finally:
                self._steps.own_annotation = False


class Fence:
    """Waits for all work submitted to this process's devices, including unreferenced results.

    JAX has no call for this. A device runs programs in submission order, so a program submitted now finishes last. A
    CPU has no such order: there only arrays that are still referenced are awaited.
    """

    def __init__(self) -> None:
        self._program: Any = None
        self._inputs: list[tuple[Any, Any]] = []

    def prepare(self) -> None:
        """Compile the program for each device; skipped if that fails under the script's settings."""
        jax = sys.modules["jax"]
        with own_errors_dropped():
            self._program = jax.jit(tuiprof_waits_for_devices)
            self._inputs = [(device, jax.device_put(False, device)) for device in self._devices(jax)]
            for output in self._started(jax):  # compiles
                output.block_until_ready()

    def tuiprof_waits_for_devices(self) -> None:
        """Wait; the error of a failed computation is raised when the script reads its result."""
        jax = sys.modules["jax"]
        for array in self._started(jax) + jax.live_arrays():
            # One was deleted meanwhile, or its computation failed: the others count.
            with own_errors_dropped():
                array.block_until_ready()

    def _started(self, jax: Any) -> list[Any]:
        """Submit the program to each device; return its results."""
        outputs: list[Any] = []
        for device, value in self._inputs:
            try:
                outputs.append(self._program(value))
            except Exception as error:
                if raised_by_signal_handler(error):
                    raise
                with own_errors_dropped(), _alone(jax, device):
                    outputs.append(self._program(value))
        return outputs

    @staticmethod
    def _devices(jax: Any) -> list[Any]:
        return [device for device in jax.local_devices() if device.platform != "cpu"]


def tuiprof_waits_for_devices(value: Any) -> Any:
    """Return the negation: little to compute, with a name that identifies it in the trace."""
    return ~value


def _alone(jax: Any, device: Any) -> Any:
    """Return a context for work on one device: under a mesh of several, JAX rejects work on a subset."""
    if not hasattr(jax, "set_mesh"):
        return contextlib.nullcontext()
    return jax.set_mesh(jax.sharding.Mesh([device], ("device",)))


def install_jitted(runtime: Runtime, module: Any) -> None:
    """Wrap the calls of jitted functions."""
    runtime.steps.has_jitted = True
    calls = _Calls(runtime)
    for name in _CLASSES:
        kind = getattr(module, name, None)
        if kind is not None and "__call__" in vars(kind) and not getattr(kind.__call__, "_tuiprof", False):
            _wrap(kind, calls)


class _Calls:
    """Counts the calls of each jitted function."""

    def __init__(self, runtime: Runtime) -> None:
        self._hook = runtime.hook("jitted functions")
        self._steps = runtime.steps
        #: Number of calls, a weak reference to the function, and when it returned last, by its id
        self._counts: dict[int, tuple[int, weakref.ref[Any], int]] = {}
        self._chosen = 0
        self._training: set[int] = set()  # functions that train, by what they take and return
        self._sites: list[Site] = []  # where that was called first
        self._looked_at: set[int] = set()  # others known not to contain it
        self._others = self._row = self._longest_row = 0
        self.inside = threading.local()

    def returned(self, function: Any, args: tuple[Any, ...], result: Any, t: int) -> None:
        """See whether a call was a step."""
        if not self._hook.on or self._steps.source > JITTED:
            return
        try:
            key = id(function)
            if key != self._chosen:
                if key not in self._counts and updates(args, result):
                    self._training.add(key)
                if not self._choose(key, function, t):
                    return
            self._others = 0
            self._row += 1
            self._longest_row = max(self._longest_row, self._row)
            self._steps.end(JITTED, t)
        except Exception:
            self._hook.failed()

    def _choose(self, key: int, function: Any, t: int) -> bool:
        """Return whether a function becomes the step."""
        count, known, before = self._counts.get(key, (0, None, 0))
        count += 1
        if len(self._counts) < 256 or key in self._counts:
            known = known or weakref.ref(function, lambda _: self._forget(key))
            self._counts[key] = count, known, t
        self._others += bool(self._chosen)
        self._row = 0
        better = (key in self._training) - (self._chosen in self._training)
        around = self._chosen and key not in self._looked_at and self._is_around(key)
        if (not around and count < _QUIET) or (self._chosen and better < 0):
            return False
        oftener = self._others > _OF_OTHERS and count > self._steps.n
        if self._chosen and not (around or better or oftener):
            return False
        self._steps.missed_until(count - 1, before)
        if self._chosen:
            self._steps.withdraw(JITTED, t)
        self._chosen, self._sites = key, script_sites(sys._getframe(2))
        self._looked_at.clear()
        self._row = self._longest_row = 0
        return True

    def _forget(self, key: int) -> None:
        """A function is gone, and another one may get its id."""
        self._counts.pop(key, None)
        for keys in (self._training, self._looked_at):
            keys.discard(key)
        if self._chosen == key:
            self._chosen = 0

    def _is_around(self, key: int) -> bool:
        """Whether the step is called in a loop inside the loop in which another function is called now."""
        if self._longest_row < 2 and self._steps.n <= _OF_OTHERS:
            return False  # as often as the other, as far as known
        self._looked_at.add(key)
        few = self._longest_row >= 2 and self._steps.n <= _MAX_PARTS
        return few and relation(self._sites, script_sites(sys._getframe(3))) == AROUND


def updates(args: tuple[Any, ...], result: Any) -> bool:
    """Whether a call trains: it returns something that it was given in a new version, or was given an optimizer."""
    given = [one for one in args if not isinstance(one, _PLAIN) and not hasattr(one, "dtype")]
    returned = result if isinstance(result, (tuple, list)) else (result,)
    return any("optimizer" in type(one).__name__.lower() for one in given) or any(
        type(one) is type(new) and (not isinstance(one, dict) or list(one) == list(new))
        for one in given
        for new in returned
    )


def _wrap(kind: Any, calls: _Calls) -> None:
    original = kind.__call__
    inside = calls.inside

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if getattr(inside, "on", False):  # called while another one is traced
            return original(self, *args, **kwargs)
        inside.on = True
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            leave_out(error)
            raise
        finally:
            inside.on = False
        calls.returned(self, args, result, monotonic_ns())
        return result

    __call__._tuiprof = True  # type: ignore[attr-defined]
    kind.__call__ = __call__
