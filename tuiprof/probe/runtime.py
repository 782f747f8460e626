"""The probe of this process: its parts, and the handling of first step, fork and exit."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from importlib import import_module
from threading import get_ident
from time import monotonic_ns
from typing import Any, Callable

from . import events
from .black_box import BlackBox
from .capture import Capturer
from .garbage import GarbageWatch
from .isolation import ProbeThread, own_errors_reported, raised_by_signal_handler, signals_blocked
from .log import FLUSH_S, Log, plain_numbers
from .requests import Requests, Triggers
from .sampler import Sampler
from .steps.changed_steps import ChangedSteps
from .steps.counting import Steps
from .steps.given_steps import AT, FUNCTION
from .steps.loop_steps import LoopSteps
from .steps.phases import Phases
from .steps.sources import EXPLICIT
from .timed_captures import TimedCaptures

#: Set by torchrun, Open MPI, launchers with PMI (MPICH, Intel MPI), and Slurm, which comes last: in a job of Slurm the
#: processes of mpirun inherit the number of the task that started them, the same one on a node.
_RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
#: Variables that launchers set in every process of a distributed run, equal on all hosts.
_JOB_VARIABLES = ("SLURM_JOB_ID", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
_FRAMEWORKS = ("torch", "torch_xla", "jax", "lightning", "transformers", "torchmetrics", "triton")


def rank_and_world() -> tuple[int | None, int | None]:
    """Return the rank and the number of ranks, as far as known.

    An initialized ``torch.distributed`` takes precedence (spawned workers have no RANK in their environment), then
    the variables of launchers.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    for rank_name, world_name in _RANK_VARIABLES:
        rank, world = os.environ.get(rank_name, ""), os.environ.get(world_name, "")
        if rank.isdecimal():
            return int(rank), int(world) if world.isdecimal() else None
    return None, None


def job() -> dict[str, str]:
    """Return the environment variables that describe the distributed run of this process; may be empty."""
    found = {name: os.environ.get(name, "")[:256] for name in _JOB_VARIABLES}
    return {name: value for name, value in found.items() if value}


def machine() -> dict[str, str]:
    """Return which machine this process runs on, for the head of its log; a launcher may have started it on another.

    ``boot`` is left out where the kernel gives no such identity.
    """
    found = {"host": os.uname().nodename} if hasattr(os, "uname") else {}
    with suppress(OSError, ValueError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        found["boot"] = file.read().strip()
    return found


def versions() -> dict[str, str]:
    """Return the versions of the frameworks that the script has imported."""
    found: dict[str, str] = {}
    for name in _FRAMEWORKS:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name] = str(version)
    about: Any = getattr(sys.modules.get("torch"), "version", None)
    for name in ("cuda", "hip"):
        version = getattr(about, name, None)
        if version:
            found[name] = str(version)
    return found


def is_helper() -> bool:
    """Whether ``multiprocessing`` started this process."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def process_name() -> str:
    """Return the name of this process if ``multiprocessing`` started it, else empty."""
    return str(sys.modules["multiprocessing.process"].current_process().name) if is_helper() else ""


class Hook:
    """A function of the probe that the framework or the script calls; its first exception disables it permanently."""

    __slots__ = ("_runtime", "name", "on")

    def __init__(self, name: str, runtime: Runtime) -> None:
        self.name = name
        self.on = True
        self._runtime = runtime

    def call(self, function: Callable[..., None], *args: Any) -> None:
        """Call a function of the probe, unless the hook is disabled."""
        if self.on:
            try:
                function(*args)
            except Exception:
                self.failed()

    def failed(self) -> None:
        """Disable the hook and record the current exception, unless it is the script's own, which propagates."""
        error = sys.exc_info()[1]
        if error is not None and raised_by_signal_handler(error):
            raise error
        if self.on:
            self.on = False
            self._runtime.note("bad", f"the probe's hook for {self.name} failed and is off: {error!r}")


class Runtime:
    """The probe of this process."""

    def __init__(self) -> None:
        # Set if the probe was attached to a running process (see :mod:`.attached`).
        self.session = getattr(sys.modules.get(__package__ or ""), "attached_to", "") or os.environ.get(
            "TUIPROF_SESSION", ""
        )
        self._world: int | None = None
        self.steps = Steps(self._first_step)
        self._phases = Phases(self.steps)
        self.phase = self._phases.__getitem__  # returns what times the part of a step with this name
        self.log = Log(os.path.join(self.session, "log"), self.steps, self._phases.any_open, self._poll)
        self._watch: ProbeThread | None = None  # see _watch_script
        self._watch_stop = threading.Event()
        self.capture = Capturer(self.session, self.steps)
        self.capture.note = self.note
        self.capture.alone = self._alone
        self._explicit = self.hook("tuiprof.step")
        self.models: Any = None  # see torch_hooks; None = PyTorch is not there
        self.batches: Any = None  # what it knows of the batches of loaders, likewise
        self._told: set[str] = set()
        self.has_left = False  # the process was attached to, and has been left again
        self.garbage = GarbageWatch(self.steps.marks, lambda: self.steps.assembly.collected)
        self._begin()
        atexit.register(self._exit)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._before_fork,
                after_in_parent=self._after_fork_in_parent,
                after_in_child=self._after_fork_in_child,
            )

    def _begin(self) -> None:
        """Create what a forked child needs anew."""
        self.sampler = Sampler()
        self.loops = LoopSteps(self)
        self.changed = ChangedSteps(self)
        self.timed = TimedCaptures(self)
        self._polling = threading.RLock()
        self.requests = Requests(os.path.join(self.session, "control"))
        self.black_box = BlackBox(self.session, lambda: self.steps.out, self.note)
        self.triggers = Triggers(self.session, self.note, self._alone)
        self.capture.ended = self.triggers.ended
        self.steps.on_withdrawn = self.capture.withdrawn
        self.log.on_steps = self._steps_ended
        self.log.garbage, self.log.on_close = self.garbage.record, self.garbage.stop
        self.log.sampled = lambda: (self.sampler.samples, self.sampler.top(), self.sampler.cost_ns)
        self._paused = self._ended = False

    def _alone(self) -> bool:
        """Return whether this process is the only rank, as far as known."""
        distributed = sys.modules.get("jax._src.distributed")
        of_jax = getattr(getattr(distributed, "global_state", None), "num_processes", None)
        return (rank_and_world()[1] or self._world or of_jax or 1) == 1

    def _steps_ended(self, steps: list[Any]) -> None:
        """Pass steps to the watchers."""
        self.triggers.look(steps)
        self.black_box.saw(steps)

    def hook(self, name: str) -> Hook:
        """Return a new hook."""
        return Hook(name, self)

    def note(self, level: str, text: str) -> None:
        """Record a note, once."""
        if text not in self._told:
            self._told.add(text)
            self.steps.out.append((events.NOTE, monotonic_ns(), level, text))

    def install(self, hooks: str, module: Any) -> None:
        """Install the hooks for a framework the script has just imported: ``module:function`` in ``frameworks/``."""
        with own_errors_reported(
            lambda error: self.note("bad", f"steps cannot be detected with {module.__name__}: {error!r}")
        ):
            name, _, function = hooks.partition(":")
            getattr(import_module(f".frameworks.{name}", __package__), function)(self, module)
            self._watch_script()
        if hooks == "torch_hooks:install":
            self.black_box.watch_torch(self, module)

    # -- before the first step ------------------------------------------------------------------------------

    def _watch_script(self) -> None:
        """Sample the script before its first step, in a thread; helper processes of the script are ignored."""
        if self._watch is not None or self.log.is_open or self._ended or is_helper():
            return
        self._watch_stop.clear()
        self._watch = ProbeThread(self._watch_until_first_step)
        with suppress(RuntimeError):  # no more threads available
            self._watch.start()

    def _watch_until_first_step(self) -> None:
        while not self._watch_stop.wait(FLUSH_S) and not self.log.is_open and not self._ended:
            try:
                self._poll()
                self.steps.assembly.keep_newest(self.steps.marks)
            except Exception as error:
                self.note("bad", f"the script cannot be sampled before its first step: {error!r}")
                return

    def give_way(self, why: str) -> None:
        """Give up the capture that runs, as the script does what is impossible beside it."""
        self.capture.interrupt(why)
        self.timed.interrupt(why)

    def record(self) -> None:
        """Open the log, even without a completed step."""
        if not self.log.is_open:
            self._first_step()

    def _look(self) -> None:
        """Sample the script, and check whether the samples identify its steps."""
        self.sampler.sample()
        self.loops.look()
        self.timed.look()

    # -- the script's own marks -----------------------------------------------------------------------------

    def step(self, metrics: dict[str, Any]) -> None:
        """End a step, called by the script."""
        hook = self._explicit
        if hook.on:
            try:
                values = None
                if metrics:
                    values, bad = plain_numbers(metrics)
                    for name, why in bad:
                        self.note("warn", f"metric {name} is not recorded: {why}")
                        if why.startswith("it is "):
                            self.black_box.not_finite(f"metric {name}", self.steps.n, why[6:])
                self.steps.end(EXPLICIT, monotonic_ns(), values)
            except Exception:
                hook.failed()

    # -- life -----------------------------------------------------------------------------------------------

    def _first_step(self) -> None:
        """Open the log and start its thread; on failure nothing is recorded."""
        self.sampler.restart(self.steps.thread)
        # A capture by the clock opens the log in another thread. A handler of the script may raise an OSError.
        with self._polling, signals_blocked():
            if not self.log.is_open and not self._open_log():
                return
            self.capture.writer = self.log.writer
            self._poll()  # a capture requested at launch may begin at step 1
            self.log.start()
            self.garbage.start()
        util = sys.modules.get("multiprocessing.util")
        if util is not None and is_helper():
            # A worker forked by multiprocessing leaves without atexit.
            util.Finalize(None, self._exit, exitpriority=100)

    def _open_log(self) -> bool:
        rank, world = rank_and_world()
        self._world = world
        launched = job()
        where = machine() if launched else {}
        name = f"rank{rank or 0}"
        try:
            self.log.open(name, rank or 0, world, versions(), process_name(), launched, where)
        except OSError as error:
            self.log.close()
            sys.stderr.write(f"tuiprof: this process is not recorded: {error}\n")
            return False
        return True

    def _poll(self) -> None:
        """Pass new requests to the capturer, and sample the script."""
        with self._polling:  # at the first step two threads do this
            requests, triggers = self.requests.new()
            if triggers is not None:
                self.triggers.arm(triggers)
            for request in requests:
                if request.seconds is None or request.problem:
                    self.capture.offer(request)
                else:
                    self.timed.offer(request)
            while self.requests.changes:
                self.changed.change(self.requests.changes.pop(0))
            self.changed.look()
            self.black_box.poll(self.requests, self.log.writer, self.steps.n, self.capture.disturbing)
        if get_ident() != self.steps.thread:
            self._look()

    def detach(self) -> None:
        """Write the last line and do nothing from now on; fork handlers cannot be taken back, but stay idle."""
        self._ended = self.has_left = True
        self._watch_stop.set()
        self.loops.release()
        self.changed.release()
        if self.log.is_open:
            self.steps.end_waiting()
            self.log.end(None, "detached")
        self.steps.silence()
        self.steps.device = self.steps.capture = None

    def _before_fork(self) -> None:
        """Stop our threads before a fork: they would cause a warning, and could hold a lock."""
        if self.has_left:
            return
        self.capture.wait(5.0)
        watch, self._watch = self._watch, None
        if watch is not None and not watch.is_current:
            self._watch_stop.set()
            watch.join(2.0)
        self._paused = self.log.pause()
        if self._paused:
            self.log.flush()

    def _after_fork_in_parent(self) -> None:
        """Continue at the next step: Python 3.13 counts the threads after this, and warns if there is another one."""
        if self._paused:
            self._paused = False
            self.steps.call_at_next_end(self.log.start)

    def _after_fork_in_child(self) -> None:
        """Reset after a fork: a child that trains gets its own log, a data-loading child records nothing."""
        if self.has_left:
            return
        self.log.forget()
        device, call, jitted = self.steps.device, self.steps.call, self.steps.has_jitted
        self.steps.__init__(self._first_step, self.steps.marks, self.steps.optimizers.several)  # type: ignore[misc]
        self.steps.call, self.steps.has_jitted = call, jitted
        self.log.__init__(os.path.join(self.session, "log"), self.steps, self._phases.any_open, self._poll)  # type: ignore[misc]
        self.capture.after_fork()
        self.garbage.stop()  # after the ranges of a capture, whose entry comes later
        self._begin()
        for phase in self._phases.values():
            phase.forget()
        if device is not None:
            device.forget()
            self.steps.time_on(device)

    def _exit(self) -> None:
        """Finish open captures and write the last line."""
        if self._ended:
            return
        self._ended = True
        try:
            self._watch_stop.set()
            error = getattr(sys, "last_value", None)  # set when an exception reached the top
            if self.log.is_open:
                self._poll()
                self.steps.end_waiting()
                self.timed.finish()
                self.capture.finish()
                self.black_box.ending(self.steps.n)
                self._note_what_did_not_run()
                if self.steps.device is not None:
                    self.steps.device.read()
                why = "exit" if error is None else _in_words(error)
                self.log.end(None if error is None else 1, why)
            else:
                self._exit_without_steps()
        except Exception as problem:
            sys.stderr.write(f"tuiprof: the end of the log is missing: {problem!r}\n")

    def _note_what_did_not_run(self) -> None:
        """Note that the line or function that ends a step has not run, unless the reason has been noted."""
        for option, given in zip(("--step-at", "--step-function"), map(os.environ.get, (AT, FUNCTION))):
            if given and not self.steps.source and not any(text.startswith(option) for text in self._told):
                self.note("warn", f"{option}: {given} has not run")

    def _exit_without_steps(self) -> None:
        """Explain why nothing was recorded, in a process that looks like the script itself.

        Helpers (data loader workers, torchrun's agent, compile workers) must leave no file, so this writes only if
        there is something to report and no process of the run has recorded a step.
        """
        if is_helper():
            return
        folder = os.path.join(self.session, "log")
        if not os.path.isdir(folder) or any(name.startswith("rank") for name in os.listdir(folder)):
            return
        self._poll()
        self.timed.finish()
        self.capture.finish()
        self.black_box.ending(self.steps.n)
        self._note_what_did_not_run()
        if any(item[0] in (events.NOTE, events.CAPTURE, events.RECORD) for item in self.steps.out):
            self.log.open(f"probe-{os.getpid()}", None, None, versions())
            self.log.end(None, "exit")


def _in_words(error: BaseException) -> str:
    """Return an exception as Python's last line of a traceback says it."""
    try:
        said = str(error)
    except Exception:  # of the script's own making
        said = "<exception str() failed>"
    return f"{type(error).__name__}: {said}".removesuffix(": ")[:500]


RUNTIME = Runtime()
