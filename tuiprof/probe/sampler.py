"""Where the script is: its frames, lines and loops, sampled ten times per second.

The main thread is sampled, and once there are steps the thread that makes them.

A sample is taken by the thread that writes the log (before the first step: by one of the same kind), while it holds
the GIL. So the script is interrupted for about 20 µs per sample, and samples are at lines where it releases the GIL:
calls that wait or compute outside Python, and any line after 5 ms.
"""

from __future__ import annotations

import dis
import os
import sys
import threading
import time
from collections import Counter, deque
from functools import lru_cache
from types import CodeType, FrameType

from .isolation import OWN_FILES

#: Number of samples whose loops are kept: two seconds.
RECENT = 20
_STDLIB = os.path.dirname(os.__file__) + os.sep
_MAX_LINES = 2_000
_TOP = 20
_MAX_FRAMES = 200
#: Packages; what they call (a model's layers, a function that is being traced) is part of a step.
_FRAMEWORKS = frozenset(
    (
        *("torch", "torch_xla", "transformers", "accelerate", "lightning", "pytorch_lightning", "deepspeed"),
        *("jax", "flax", "equinox", "haiku", "optax", "numpyro", "keras", "tensorflow"),
    )
)
#: Modules of decorators such as ``torch.no_grad()``: what they call is as if called by the script.
_DECORATORS = ("torch.utils._contextlib", "torch.autograd.grad_mode")
#: Modules that trace or compile, which is not part of a step. Compiled functions run in other modules of them.
_COMPILING = (
    "jax._src.interpreters",
    "jax._src.compiler",
    "torch._dynamo.convert_frame",
    "torch._inductor.graph",
)
#: Modules of code that a compiler has generated.
_GENERATED = ("torch._inductor.",)
#: Activities by the module of a frame below the script's; see :func:`_doing`.
_DOING = (
    ("importlib._bootstrap", "imports"),
    ("torch.utils.data", "waits for a batch"),
    ("copy", "copies"),
    ("torch.autograd", "backward"),
    ("torch.optim", "optimizer"),
    ("torch.nn.modules.module", "forward"),
    ("torch.serialization", "checkpoint"),
    ("safetensors", "checkpoint"),
    ("torch.cuda", "waits for the device"),
    ("torch.distributed", "collectives"),
    ("jax._src.array", "reads an array"),
    *((name, "compiles") for name in ("jax._src.interpreters.mlir", "jax._src.interpreters.partial_eval")),
    *((name, "compiles") for name in _COMPILING[1:]),
)
#: Activities by function, for tensor methods written in Python.
_TENSOR = {"backward": "backward", "__repr__": "prints a tensor", "__format__": "prints a tensor"}
#: Calls the script's data set and collate function.
_LOADER = "torch.utils.data"
#: Modules that wait for another thread or process.
_WAITING = ("subprocess", "multiprocessing.", "selectors", "threading", "concurrent.")
#: Modules that wait for work to do: a loop that calls them may be that of a server.
_QUEUES = ("queue", "multiprocessing.queues", "multiprocessing.connection")

#: Maximum length of code that is searched for loops, bytes: some 3000 lines, which block the script for 0.1 s.
_MAX_CODE = 1 << 17
#: Beginnings of the names of instructions that the next one does not follow, and the jump back of an ``await``.
_LEAVES = (
    "JUMP_FORWARD",
    "JUMP_ABSOLUTE",
    "JUMP_BACKWARD",
    "RETURN_VALUE",
    "RETURN_CONST",
    "RAISE_",
    "RERAISE",
)
_AWAITS = "JUMP_BACKWARD_NO_INTERRUPT"
_MAX_KNOWN = 256
_KNOWN: dict[int, tuple[CodeType, list[Loop]]] = {}  # by id of the code

#: Code of the script, the offset of the running call, and whether the script itself called it.
Site = tuple[CodeType, int, bool]
#: Where a second call is relative to a first one: in the same loop, or unknown; in a loop around the
#: first one's; in an adjacent loop, both inside one that does not iterate over epochs; in an unrelated loop.
TOGETHER, AROUND, BESIDE, ELSEWHERE = range(4)


def is_script(frame: FrameType) -> bool:
    """Whether a frame runs code of the script."""
    if not _is_script(frame.f_code.co_filename):
        return False
    return not str(frame.f_globals.get("__name__", "")).startswith(_GENERATED)


@lru_cache(4096)  # a script may generate code without end
def _is_script(filename: str) -> bool:
    if filename.startswith("<"):
        return False
    if filename == getattr(sys.modules.get("__main__"), "__file__", None):
        return True  # also one that runs as ``python -m package.train``
    try:
        path = os.path.abspath(filename)
    except OSError:  # relative to a folder that is gone
        path = filename
    parts = path.split(os.sep)
    if "site-packages" in parts or "dist-packages" in parts:
        return False
    return not path.startswith((_STDLIB, OWN_FILES)) and not any(
        isinstance(folder, str)
        and folder
        and path.startswith(os.path.join(folder, ""))
        and _holds_packages(folder)
        for folder in sys.path
    )


@lru_cache(None)
def _holds_packages(folder: str) -> bool:
    """Whether pip installs into a folder: ``pip install --target FOLDER``, as on clusters."""
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    except OSError:
        return False


def script_line(frame: FrameType | None) -> str:
    """Return ``file:line`` of the innermost frame of the script, from this one on; empty = there is none."""
    while frame is not None:
        if is_script(frame):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def imports_framework() -> bool:
    """Whether the main thread is importing a framework, so that parts of it cannot be used yet."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if frame.f_code.co_name == "<module>" and module.partition(".")[0] in _FRAMEWORKS:
            return True
        frame = frame.f_back
    return False


class Loop:
    """A loop of the script."""

    __slots__ = {
        "code": "the code object that it is in",
        "end": "offset of the last instruction that jumps to its head, bytes",
        "head": "offset of the instruction that each iteration begins with, bytes",
        "line": "its first line",
        "over_epochs": "a ``for`` loop whose variable is named like an epoch",
        "seen_ns": "when the main thread was first seen in it, monotonic ns; 0 = not yet",
    }

    def __init__(self, code: CodeType, head: int, end: int, line: int, over_epochs: bool = False) -> None:
        self.code, self.head, self.end, self.line, self.over_epochs = code, head, end, line, over_epochs
        self.seen_ns = 0


class Sampler:
    """Samples of the main thread."""

    def __init__(self) -> None:
        self.samples = 0  # number of samples in which the script ran
        self.cost_ns = 0  # time of the sampling thread, ns
        #: The loops that the thread was in, outermost first, of the last :data:`RECENT` samples; None = it was in no
        #: code of the script, or waited for somebody else. In the second, waiting for a queue counts as well.
        self.recent: deque[tuple[Loop, ...] | None] = deque(maxlen=RECENT)
        self.recent_with_queues: deque[tuple[Loop, ...] | None] = deque(maxlen=RECENT)
        self.saw_model = False  # whether the script was in a call of a ``torch.nn.Module`` in a sample
        self.wants_loops = True  # whether to keep loops
        self._compiling: deque[bool] = deque(maxlen=RECENT)
        self._lines: Counter[tuple[str, int, str]] = Counter()
        self._ident = threading.main_thread().ident
        _KNOWN.clear()  # of the process that this one was forked from

    def sample(self) -> None:
        """Take a sample."""
        began = time.thread_time_ns()
        self._sample()
        self.cost_ns += time.thread_time_ns() - began

    def _sample(self) -> None:
        frame = sys._current_frames().get(self._ident or 0)
        innermost: FrameType | None = None
        script: list[FrameType] = []
        name = "" if frame is None else str(frame.f_globals.get("__name__", ""))
        compiles = loads = False
        below: list[FrameType] = []  # what the script's innermost one has called, innermost first
        for _ in range(_MAX_FRAMES):
            if frame is None:
                break
            if is_script(frame):
                innermost = innermost or frame
                script.append(frame)
            else:
                module = str(frame.f_globals.get("__name__", ""))
                loads = loads or (innermost is not None and module.startswith(_LOADER))
                compiles = compiles or module.startswith(_COMPILING)
                if module.partition(".")[0] in _FRAMEWORKS and module not in _DECORATORS:
                    script.clear()
            if innermost is None and not frame.f_code.co_filename.startswith(OWN_FILES):
                below.append(frame)
            frame = frame.f_back
        if innermost is not None:
            self.samples += 1
            doing = "makes a batch" if loads else _doing(below)
            self.saw_model = self.saw_model or doing == "forward"
            key = (innermost.f_code.co_filename, innermost.f_lineno or 0, doing)
            if key in self._lines or len(self._lines) < _MAX_LINES:
                self._lines[key] += 1
        if self.wants_loops:
            self._compiling.append(compiles)
            waits = innermost is None or name.startswith(_WAITING)
            loops = tuple(loop for one in reversed(script) for loop in self._around(one))
            self.recent.append(None if waits else loops)
            for_queue = innermost is not None and any(
                one.f_globals.get("__name__") in _QUEUES for one in below
            )
            self.recent_with_queues.append(loops if for_queue or not waits else None)

    def restart(self, thread: int | None = None) -> None:
        """Discard the lines of the script's setup, and follow the thread that makes the steps; None = as before."""
        if thread in sys._current_frames():  # a C++ thread has no lines
            self._ident = thread
        self.samples = 0
        self._lines.clear()

    def in_script(self, share: float) -> bool:
        """Whether the thread ran the script, without waiting or compiling, in this share (0 to 1) of the samples."""
        samples = list(zip(list(self.recent), list(self._compiling)))
        works = sum(chain is not None and not compiles for chain, compiles in samples)
        return len(samples) == RECENT and works >= share * RECENT

    def top(self) -> list[tuple[str, int, int, str]]:
        """Return file, line, number of samples and activity of the most frequent lines."""
        return [(file, line, count, doing) for (file, line, doing), count in self._lines.most_common(_TOP)]

    def stop_loops(self) -> None:
        """Stop keeping loops."""
        self.wants_loops = False
        self.recent.clear()
        self.recent_with_queues.clear()

    def _around(self, frame: FrameType) -> list[Loop]:
        """Return the loops of its code that a frame is in, outermost first."""
        inside = _loops_around(frame.f_code, frame.f_lasti)
        for loop in inside:
            loop.seen_ns = loop.seen_ns or time.monotonic_ns()
        return inside


def _doing(below: list[FrameType]) -> str:
    """Return the activity of what the script has called, innermost frame first; empty = none of the known ones.

    The outermost known activity decides, as a backward pass may run a model again; but an optimizer may run the
    backward pass in a closure, and anything may compile or import.
    """
    found = ""
    for frame in reversed(below):
        doing = _activity(frame)
        if doing in ("compiles", "imports"):
            return doing
        if not found or (found == "optimizer" and doing == "backward"):
            found = doing
    return found


def _activity(frame: FrameType) -> str:
    module = str(frame.f_globals.get("__name__", ""))
    if module == "torch._tensor":
        return _TENSOR.get(frame.f_code.co_name, "")
    return _activity_of(module)


@lru_cache(None)
def _activity_of(module: str) -> str:
    return next((doing for name, doing in _DOING if module.startswith(name)), "")


def loops_of(code: CodeType) -> list[Loop]:
    """Return the loops of a code object, outer ones before those inside them; none of a very long one.

    Those that only repeat after an exception, to try again, do not count.
    """
    if len(code.co_code) > _MAX_CODE:
        return []
    ends: dict[int, int] = {}
    lines: dict[int, int] = {}
    line = code.co_firstlineno
    starts = dict(dis.findlinestarts(code))
    instructions = list(dis.get_instructions(code))
    ordinary = _ordinary(instructions)
    for instruction in instructions:
        line = starts.get(instruction.offset) or line
        lines[instruction.offset] = line
        target = target_of(instruction)
        if target is None or target > instruction.offset or instruction.opname == _AWAITS:
            continue
        # Handlers of exceptions stand at the end of the code, and jump back to what follows their ``try`` or ``with``.
        if instruction.offset in ordinary or target not in ordinary:
            ends[target] = max(ends.get(target, 0), instruction.offset)
    # A ``while`` jumps back to its body, from the test that is compiled again below it.
    epochs = _over_epochs(instructions)
    found = [
        Loop(code, head, end, min(lines.get(head, line), lines[end]), head in epochs)
        for head, end in ends.items()
    ]
    return sorted(found, key=lambda loop: (loop.head, -loop.end))


def _ordinary(instructions: list[dis.Instruction]) -> set[int]:
    """Return the offsets of the instructions that are reached without an exception."""
    index_of = {instruction.offset: index for index, instruction in enumerate(instructions)}
    found: set[int] = set()
    waiting = [0]
    while waiting:
        instruction = instructions[waiting.pop()]
        while instruction.offset not in found:
            found.add(instruction.offset)
            target = target_of(instruction)
            if target is not None:
                waiting.append(index_of[target])
            if instruction.opname.startswith(_LEAVES):
                break
            instruction = instructions[index_of[instruction.offset] + 1]
    return found


def target_of(instruction: dis.Instruction) -> int | None:
    """Return the offset that an instruction may jump to; None = it does not jump."""
    jumps = instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs
    return instruction.argval if jumps and isinstance(instruction.argval, int) else None


def goes_over_epochs(around: Loop, inside: Loop) -> bool:
    """Whether a loop goes over epochs, and one inside it over their batches, by the names that the script gives."""
    called = inside.code is not around.code
    return around.over_epochs or (called and "epoch" in inside.code.co_name.lower())


def _over_epochs(instructions: list[dis.Instruction]) -> set[int]:
    """Return where the loops begin that have a variable named like an epoch."""
    found: set[int] = set()
    for index, instruction in enumerate(instructions):
        if instruction.opname != "FOR_ITER":
            continue
        for stored in instructions[index + 1 : index + 4]:
            if stored.opname != "UNPACK_SEQUENCE" and not stored.opname.startswith("STORE_"):
                break
            if "epoch" in str(stored.argval).lower():  # one name, or two of one instruction
                found.add(instruction.offset)
    return found


def script_sites(frame: FrameType | None) -> list[Site]:
    """Return where each frame of the script is, outermost first."""
    found: list[Site] = []
    called: FrameType | None = None  # the frame of the script that this one called
    while frame is not None:
        script = is_script(frame)
        if called is not None:
            found.append((called.f_code, called.f_lasti, script))
        called = frame if script else None
        frame = frame.f_back
    if called is not None:
        found.append((called.f_code, called.f_lasti, False))
    return found[::-1]


def relation(first: list[Site], second: list[Site]) -> int:
    """Return where the second call is relative to the first one.

    A call made once per epoch, around the loop over batches, counts as together with calls in that loop, as does a
    call made once by a module.
    """
    inner, outer = _loops(first), _loops(second)
    if not outer and second and second[-1][0].co_name == "<module>":
        return TOGETHER  # a single call
    if _left(first, second):
        return ELSEWHERE
    shared = 0
    while shared < min(len(inner), len(outer)) and same_loop(inner[shared], outer[shared]):
        shared += 1
    if shared == len(outer):
        around = 0 < shared < len(inner) and not goes_over_epochs(outer[-1], inner[shared])
        return AROUND if around else TOGETHER
    if shared == len(inner) > 0:
        return TOGETHER
    return BESIDE if shared and not goes_over_epochs(inner[shared - 1], inner[shared]) else ELSEWHERE


def _left(first: list[Site], second: list[Site]) -> bool:
    """Whether the script, in code that it runs once, has gone on to the second call."""
    once = False  # from the code of a module on, which runs once
    for one, other in zip(first, second):
        (code, at, by_script), (_, other_at, _) = one, other
        once = code is other[0] and (code.co_name == "<module>" or (once and by_script))
        once = once and not _loops([one]) and not _loops([other])
        if once and at != other_at:
            return True
    return False


def in_one_loop(first: list[Site], second: list[Site]) -> bool:
    """Whether the innermost loop around both calls is the same one."""
    of_first, of_second = _loops(first), _loops(second)
    return bool(of_first and of_second) and same_loop(of_first[-1], of_second[-1])


def is_above(first: list[Site], second: list[Site]) -> bool:
    """Whether the first call stands above the second one, in code of the script that has made both."""
    for (code, at, _), (other_code, other_at, _) in zip(first, second):
        if code is not other_code or at != other_at:
            return code is other_code and at < other_at
    return False


def same_loop(one: Loop, other: Loop) -> bool:
    """Whether two are one loop of the script."""
    return one.code is other.code and one.head == other.head


def in_each_iteration(sites: list[Site]) -> bool:
    """Whether each iteration of the innermost loop around a call makes it, by the code that has the loop."""
    for code, at, _ in reversed(sites):
        if around := _loops_around(code, at):
            return is_always_run(around[-1], at)
    return True


def is_always_run(loop: Loop, at: int) -> bool:
    """Whether each iteration of a loop that ends or goes on runs the instruction at an offset once."""
    if not loop.head <= at <= loop.end:
        return False
    if any(loop.head < inner.head <= at <= inner.end for inner in loops_of(loop.code)):
        return False
    for instruction in dis.get_instructions(loop.code):
        to = target_of(instruction)
        if (
            to is not None
            and loop.head <= instruction.offset < at
            and (at < to <= loop.end or to == loop.head)
        ):
            return False
    return True


def _loops(sites: list[Site]) -> list[Loop]:
    """Return the loops around a call, outermost first."""
    return [loop for code, at, _ in sites for loop in _loops_around(code, at)]


def _loops_around(code: CodeType, at: int) -> list[Loop]:
    """Return the loops of a code object around an offset, outermost first; at once where it was asked before.

    By identity, because a code object computes its hash each time, from all of its constants.
    """
    known = _KNOWN.get(id(code))
    if known is None or known[0] is not code:
        if len(_KNOWN) >= _MAX_KNOWN:
            _KNOWN.clear()
        known = _KNOWN[id(code)] = code, loops_of(code)
    return [loop for loop in known[1] if loop.head <= at <= loop.end]
