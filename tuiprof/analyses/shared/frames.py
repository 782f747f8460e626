"""What surrounds a host call: Python frames as profilers write them, operators and named ranges."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from tuiprof.model import Trace
from tuiprof.model.intervals import Ints, Mask, distinct, row_type
from tuiprof.model.trace import cached_on_trace

# "torchmetrics/aggregation.py(85): update" in Kineto, "aggregation.py:91 update" in a probe's sync site.
_KINETO = re.compile(r"^(?P<file>.+?\.pyx?)\((?P<line>\d+)\): (?P<function>.*)$")
_SITE = re.compile(r"^(?P<file>.+?):(?P<line>\d+) (?P<function>.*)$")

#: Paths of framework and interpreter frames. Model and metric libraries (``torchmetrics/``, ``transformers/``,
#: ``timm/``) are not skipped: the user can change or configure them.
FRAMEWORK = re.compile(
    r"(^|/)(torch|torch_xla|torchgen|functorch|triton|jax|jaxlib|flax|tensorflow|numpy|apex)/"
    r"|(^|/)(contextlib|functools|threading|runpy|queue|selectors|weakref|typing|abc|enum|copy)\.py\b"
    r"|(^|/)(importlib|multiprocessing|concurrent|asyncio|collections|logging|unittest)/"
    r"|(^|/)tuiprof/probe/|^<"
)

#: Frames that only the profiler itself runs. The probe's wrappers are not: they contain what the script requested. They
#: lie in the hooks and some other files, in earlier recordings also in ``sites.py``. JAX's tracer omits folders, so
#: functions are recognized by name there.
PROFILER = re.compile(
    r"(^|/)torch/(profiler/|autograd/profiler\.py|_C/_profiler)"
    r"|(^|/)tuiprof/probe/(?!(?:frameworks/|steps/|importlib\._bootstrap/)?(?:\w+_hooks|given_steps|jax_reads|module_calls"
    r"|(?:jax_)?syncs|sites)\.py|frameworks/torch_black_box\.py\(\d+\): backward$)"
    r"|\btuiprof_waits_for_devices\b"
)

#: JAX's own frames around waits. Its tracer omits folders, so files with common names are recognized by the function.
_JAX_FRAME = re.compile(
    r"^(?:(?:array_constructors|array_methods|jax_syncs|pjit|pxla|sharding_impls|traceback_util|tree_util|ufunc_api"
    r"|xla_bridge)\.py\(\d+\): "
    r"|(?:core|dispatch|stages)\.py\(\d+\): (?:__call__|_?true_bind|apply_primitive|bind(?:_with_trace)?|call"
    r"|process_primitive)$"
    r"|syncs\.py\(\d+\): call$|jax_reads\.py\(\d+\): read$"
    r"|array\.py\(\d+\): (?:__\w+__|_value|_check_if_deleted|block_until_ready|item|tolist)$"
    r"|api\.py\(\d+\): (?:block_until_ready|_?device_get|_?device_put)$"
    r"|profiler\.py\(\d+\): wrapper$)"
)

#: Files of JAX that run, trace and differentiate operations, as its tracer names them. User files may have the same
#: names, so these are skipped only in JAX traces.
_JAX_FILE = re.compile(
    r"(ad|ad_util|api|api_util|array|array_(constructors|methods)|batching|conditionals|config|convolution|core"
    r"|custom_derivatives|dispatch|einsum|fft|functions|indexing|initializers|lax|lax_numpy|linalg|linear_util|loops"
    r"|partial_eval|pjit|prng|random|reductions|scatter|setops|slicing|sorting|special|tensor_contractions"
    r"|traceback_util|tree_util|ufunc_api|ufuncs|util|windowed_reductions)\.py\("
)

#: The start of the module path in a file path; folders above it, as in ``/opt/torch/venv/…``, are irrelevant.
_LIBRARY = re.compile(r"^.*(?:(?:site|dist)-packages|lib/python\d[\d.]*)/")

#: Libraries in Kineto frames, which omit the installation folder.
_KNOWN_LIBRARY = re.compile(
    r"(torchmetrics|torchvision|torchaudio|torchtune|transformers|accelerate|datasets|peft|trl|diffusers|timm"
    r"|lightning|pytorch_lightning|lightning_fabric|ignite|fastai|deepspeed|megatron|xformers|flash_attn|bitsandbytes"
    r"|monai|kornia|detectron2|mmengine|mmcv|mmdet|segment_anything|einops|optax|haiku|keras)/"
)

#: Prefix of Inductor's graph calls, followed by a hash.
COMPILED_GRAPH = "## Call CompiledFxGraph "


def is_framework(path: str) -> bool:
    """Return whether a source file belongs to the framework or the interpreter.

    An absolute path outside library folders belongs to the user, regardless of folder names, except tuiprof's own
    probe.
    """
    inside = _LIBRARY.sub("", path)
    if inside == path and path.startswith("/"):
        return "/tuiprof/probe/" in path
    return FRAMEWORK.search(inside) is not None


def is_user(name: str, jax: bool = False) -> bool:
    """Return whether a Python frame is neither the framework's nor the interpreter's.

    JAX's own tracer omits folders: ``jax`` = it wrote the frame.
    """
    match = _KINETO.match(name)
    if match is None or is_framework(match["file"]) or _JAX_FRAME.match(name) is not None:
        return False
    return not (jax and _JAX_FILE.match(name))


def is_profiler(name: str) -> bool:
    """Return whether a Python frame belongs to the profiler."""
    return PROFILER.search(name) is not None


@cached_on_trace
def running_at_start(trace: Trace) -> frozenset[str]:
    """Return the Python frames that were on the stack when the profiler started.

    Kineto records the line that they had reached then, and of all other frames the function's first line.
    """
    frames, found = np.flatnonzero(trace.is_category("python_function")), set[str]()
    operators = trace.operators()
    tracks, profilers = trace.track_codes[frames], frames[trace.named(PROFILER.pattern, frames)]
    for track in distinct(trace.track_codes[profilers]).tolist():
        started = int(profilers[trace.track_codes[profilers] == track][0])
        start, end = trace.starts[started], trace.ends[started]
        if (trace.starts[operators[trace.track_codes[operators] == track]] < start).any():
            continue  # it is no longer the start
        mine = frames[tracks == track]
        found.update(
            map(trace.name, mine[(trace.starts[mine] <= start) & (trace.ends[mine] >= end)].tolist())
        )
    return frozenset(found)


def function_label(name: str, running: Set[str] = frozenset()) -> str:
    """Return a Kineto frame as ``file function() from line N``, with the first line of the function.

    Kineto records the first line of the function, not the executing line; this format avoids confusing the two.
    For those of :func:`running_at_start` the first line is not known.
    """
    match = _KINETO.match(name)
    if match is None:
        return name
    from_line = "" if name in running else f" from line {match['line']}"
    return f"{shorten(match['file'])} {match['function']}(){from_line}"


def spot(
    frames: Sequence[str], running: Set[str] = frozenset(), jax: bool = False
) -> tuple[str, str, str] | None:
    """Return the location of a stack (innermost frame first) in user or library code.

    ``running`` are the frames of :func:`running_at_start`; ``jax`` = JAX's own tracer wrote them, without folders.

    Returns:
        The innermost frame outside the framework (if there is none, the innermost frame) as ``file:line`` or ``file
        function() from line N``; its function; and, if that is in a library, the innermost frame outside all
        libraries, else an empty string. None if no frame can be parsed.
    """
    read = [match for frame in frames if (match := _KINETO.match(frame) or _SITE.match(frame)) is not None]
    if not read:
        return None
    outside = [
        match
        for match in read
        if not is_framework(match["file"]) and not (jax and _JAX_FILE.match(match.string))
    ]
    here = outside[0] if outside else read[0]
    caller = next((match for match in outside if not _is_library(match["file"])), None)
    other = _label(caller, running) if caller is not None and caller is not here else ""
    return _label(here, running), here["function"], other


def inside_script(frames: Sequence[str]) -> list[str]:
    """Return the frames of libraries that the innermost frame of the script called, innermost first."""
    return list(takewhile(_in_library, frames))


def _in_library(frame: str) -> bool:
    match = _KINETO.match(frame) or _SITE.match(frame)
    return match is None or is_framework(match["file"]) or _is_library(match["file"])


def _label(match: re.Match[str], running: Set[str]) -> str:
    if match.re is _KINETO:
        return function_label(match[0], running)
    return f"{shorten(match['file'])}:{match['line']}"


def _is_library(path: str) -> bool:
    return _LIBRARY.match(path) is not None or _KNOWN_LIBRARY.match(path) is not None


def shorten(path: str) -> str:
    """Return a source path relative to its import root, or its last three parts."""
    _, marker, inside = path.rpartition("site-packages/")
    if marker:
        return inside
    parts = path.split("/")
    return path if len(parts) <= 3 else "…/" + "/".join(parts[-3:])


def operator_label(name: str) -> str:
    """Return an operator's name without the default namespace: ``item`` for ``aten::item``.

    A call of a compiled function of JAX, ``PjitFunction(step)``, is ``jit(step)``, as JAX writes it elsewhere. The hash
    of an Inductor graph is removed, as it differs between runs of the same script.
    """
    if name.startswith(COMPILED_GRAPH):
        return "CompiledFxGraph"
    if name.startswith("PjitFunction("):
        return name.replace("PjitFunction", "jit", 1)
    return name.removeprefix("aten::").removeprefix("autograd::engine::evaluate_function: ")


def functions_holding(trace: Trace, firsts: Ints, lasts: Ints, jax: bool = False) -> Ints:
    """Return the innermost frame of the user around both of two events of a thread, the first before the last.

    Returns:
        Rows of the trace, one for each pair; -1 = no Python frame holds both.
    """
    found, users = np.full(len(firsts), -1, dtype=np.int64), dict[int, bool]()
    for level in trace.nesting.outward(firsts):
        inside = (found < 0) & (level >= 0)
        inside[inside] = (trace.ends[level[inside]] >= trace.ends[lasts[inside]]) & trace.is_category(
            "python_function", rows=level[inside]
        )
        for index in np.flatnonzero(inside).tolist():
            code = int(trace.name_codes[level[index]])
            if code not in users:
                users[code] = is_user(trace.names[code], jax)
            if users[code]:
                found[index] = level[index]
    return found


# -- ancestors of a call ---------------------------------------------------------------------------------

_OPERATORS, _FRAMES = 5, 6
_STEP = r"^ProfilerStep#\d+$"
#: Owner of a Python frame, computed lazily per name.
_UNKNOWN, _OTHER, _USER, _PROFILER = range(4)


@dataclass(frozen=True, slots=True)
class Ancestry:
    """Ancestors of each of ``k`` host events; all values are name codes of the trace, -1 = none."""

    annotation: Ints  # innermost named range that is not a step marker, shape ``(k,)``
    operators: Ints  # innermost operators, innermost first, shape ``(k, 5)``
    outer_operator: Ints  # outermost operator, shape ``(k,)``; its row in ``outer_row``
    outer_row: Ints  # row of the outermost operator, shape ``(k,)``
    frames: Ints  # innermost Python frames of the user, innermost first, shape ``(k, 6)``
    #: Whether a frame of the profiler lies between the event and the user's code.
    by_profiler: Mask


def ancestry_of(trace: Trace, rows: Ints) -> Ancestry:
    """Look up the ancestors of host events."""
    k = len(rows)
    names, codes = trace.names, trace.name_codes
    marker = trace.names_like(_STEP)  # PyTorch 1.9 writes step markers as operators
    kinds = np.full(len(names), _UNKNOWN, dtype=np.int8)
    narrow = row_type(len(trace))  # of a million waits these are a dozen columns
    found = Ancestry(
        np.full(k, -1, dtype=narrow),
        np.full((k, _OPERATORS), -1, dtype=narrow),
        np.full(k, -1, dtype=narrow),
        np.full(k, -1, dtype=narrow),
        np.full((k, _FRAMES), -1, dtype=narrow),
        np.zeros(k, dtype=bool),
    )
    operators_seen, frames_seen = np.zeros((2, k), dtype=np.int32)
    if not k or not names:
        return found
    for level in trace.nesting.outward(rows):
        inside = np.flatnonzero(level >= 0)
        at = level[inside]
        name = codes[at]

        hit = trace.is_category("annotation", rows=at) & ~marker[name] & (found.annotation[inside] < 0)
        found.annotation[inside[hit]] = name[hit]

        hit = trace.is_category("cpu_op", rows=at) & ~marker[name]
        who = inside[hit]
        found.outer_operator[who], found.outer_row[who] = name[hit], at[hit]
        room = operators_seen[who] < _OPERATORS
        found.operators[who[room], operators_seen[who[room]]] = name[hit][room]
        operators_seen[who] += 1

        python = trace.is_category("python_function", rows=at)
        if not python.any():
            continue
        _tell_apart(names, name[python], kinds)
        who = inside[python & (kinds[name] == _PROFILER)]
        found.by_profiler[who] |= frames_seen[who] == 0
        hit = python & (kinds[name] == _USER)
        who = inside[hit]
        room = frames_seen[who] < _FRAMES
        found.frames[who[room], frames_seen[who[room]]] = name[hit][room]
        frames_seen[who] += 1
    return found


def _tell_apart(names: list[str], frames: Ints, kinds: npt.NDArray[np.int8]) -> None:
    """Write the owners of frames into ``kinds``, which has an entry for every distinct name."""
    met = distinct(frames)
    for code in met[kinds[met] == _UNKNOWN].tolist():
        name = names[code]
        kinds[code] = _PROFILER if is_profiler(name) else _USER if is_user(name) else _OTHER
