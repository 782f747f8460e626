"""Compares kernels with the limits of their chip, for traces with operator shapes or compiled programs.

An operator has a number of operations and a minimum of bytes to move, its inputs and outputs once (the roofline model,
Williams et al., CACM 2009). Operations are counted as ``torch.utils.flop_counter`` does, a multiply-add as two.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final

import numpy as np

from tuiprof.analyses.shared import kernel_names as _kernel_names
from tuiprof.analyses.shared.arguments import arguments
from tuiprof.analyses.shared.compiled.instructions import CarriedOut, carried_out, kinds_of
from tuiprof.analyses.shared.compiled.needs import InstructionNeed, needs_of
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints
from tuiprof.model.trace import cached_on_trace
from tuiprof.whatif.chips import Chip, find_chip

#: Maximum number of operators to read: those of one step, else from the middle.
MAX_OPERATORS: Final = 5_000
#: Bytes of an element, as Kineto names types.
ELEMENT_BYTES: Final = {
    "double": 8,
    "long": 8,
    "long int": 8,
    "float": 4,
    "int": 4,
    "c10::BFloat16": 2,
    "c10::Half": 2,
    "short": 2,
    "bool": 1,
    "unsigned char": 1,
    "signed char": 1,
}
_HALF: Final = ("c10::BFloat16", "c10::Half")
#: PyTorch allows 64 dimensions; more than this is not a shape.
_MAX_DIMS: Final = 12
_NUMBER: Final = re.compile(r"-?[0-9]{1,9}")
#: Operators with a kind independent of their kernel names.
_BY_OPERATOR: Final = {
    "convolution": ("convolution",),
    "attention": ("attention",),
    "gemm": ("::mm", "::addmm", "::bmm", "::baddbmm", "::_addmm_activation"),
}
#: Kinds of kernels that read and write the largest input once more.
_SAME_SIZE: Final = ("elementwise", "copy", "norm", "softmax or loss")
#: Operators with a result much smaller than their inputs, or that read only a part of them.
_SMALL_RESULT: Final = (
    "nll",
    "index",
    "embedding",
    "gather",
    "select",
    "where",
    "masked",
    "cat",
    "stack",
    "arange",
)
#: Operators that write their first input without reading it.
_OVERWRITES: Final = ("aten::copy_", "aten::fill_", "aten::zero_")


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor argument of an operator."""

    dims: tuple[int, ...]  # its shape
    type: str  # its type as Kineto writes it

    @property
    def bytes(self) -> int:
        """Its size."""
        return prod(self.dims) * ELEMENT_BYTES[self.type]


@dataclass(frozen=True, slots=True)
class Need:
    """The minimum work of an operator."""

    operations: float  # arithmetic operations
    bytes: float  # bytes read and written


@dataclass(slots=True)
class Kind:
    """Kernels of a kind, for operators with known shapes."""

    count: int = 0  # number of operators
    ns: float = 0.0  # device time
    unknown_ns: float = 0.0  # device time of kernels of the kind with unknown work
    at_peak_ns: float = 0.0  # time of their arithmetic at the chip's peak
    at_bandwidth_ns: float = 0.0  # time of their bytes at the chip's bandwidth
    least_ns: float = 0.0  # sum over operators of the larger of both


@dataclass(frozen=True, slots=True)
class Roofline:
    """Kernels compared with the limits of their chip."""

    chip: Chip
    kinds: Mapping[str, Kind]  # results by kind of kernel
    steps: int  # number of analyzed steps; 0 = the trace marks none

    @property
    def ns(self) -> float:
        """Total device time."""
        return sum(kind.ns + kind.unknown_ns for kind in self.kinds.values())

    @property
    def least_ns(self) -> float:
        """Time at the chip's limits; kernels with unknown work keep their time."""
        return sum(kind.least_ns + kind.unknown_ns for kind in self.kinds.values())


@dataclass(frozen=True, slots=True)
class Call:
    """An operator's arguments."""

    name: str
    tensors: tuple[Tensor, ...]  # tensors among its arguments, in order
    #: All other arguments, as the trace writes them, by position.
    values: Mapping[int, str] = field(default_factory=dict)


@cached_on_trace
def roofline(trace: Trace) -> Roofline | str:
    """Compare kernels with the limits of their chip; else return why that is impossible, with a remedy."""
    device = next((device.name for device in trace.info.devices if device.name), "")
    chip = find_chip(device)
    if chip is None:
        return f"the limits of {device or 'its chip, which the trace does not name,'} are not known"
    done = carried_out(trace)
    if done.places:
        return _of_programs(trace, chip, done)
    work, operators, steps = _chosen(trace)
    calls = _calls(trace, np.unique(operators[operators >= 0]))
    if not calls:
        return "the trace has no operator shapes: record with --shapes (record_shapes=True)"
    lengths = trace.lengths(work)
    kinds = _kernel_names.classify(trace.names, trace.name_codes[work])
    copies = trace.is_category("memcpy", "memset", rows=work)
    found: dict[str, Kind] = defaultdict(Kind)
    order = np.argsort(operators, kind="stable")
    changes = np.flatnonzero(np.diff(operators[order])) + 1
    for mine in np.split(order, changes) if len(order) else []:
        if (operator := int(operators[mine[0]])) < 0:  # launched by no operator, one by one
            for one in mine.tolist():
                word = "copy" if copies[one] else kinds[int(trace.name_codes[work[one]])]
                found[word].unknown_ns += float(lengths[one])
            continue
        longest = mine[np.argmax(lengths[mine])]
        word = "copy" if copies[longest] else kinds[int(trace.name_codes[work[longest]])]
        call = calls.get(operator)
        kernels = [trace.names[code] for code in np.unique(trace.name_codes[work[mine]]).tolist()]
        _add(found, chip, word, call, float(lengths[mine].sum()), kernels)
    return Roofline(chip, _largest_first(found), steps)


def _of_programs(trace: Trace, chip: Chip, done: CarriedOut) -> Roofline:
    """Compare the instructions of compiled programs with the chip."""
    work, _, steps = _chosen(trace)
    kinds = kinds_of(trace, work)
    copies = trace.is_category("memcpy", "memset", rows=work)
    needs = {id(program): needs_of(program) for program in done.programs}
    lengths, codes, places = trace.lengths(work), trace.name_codes[work], done.of(work)
    found: dict[str, Kind] = defaultdict(Kind)
    for code in np.unique(places).tolist():
        mine = np.flatnonzero(places == code)
        if code < 0:  # a copy from the host, or a kernel of a library beside its others
            for one in mine.tolist():
                found["copy" if copies[one] else kinds[int(codes[one])]].unknown_ns += float(lengths[one])
            continue
        place, longest = done.places[code], mine[np.argmax(lengths[mine])]
        need = needs[id(place.program)].get(place.instruction.name)
        _, counts = np.unique(codes[mine], return_counts=True)
        times = int(counts.max())  # it may launch several kernels each time
        kernel = trace.names[int(codes[longest])]
        _count(
            found["copy" if copies[longest] else kinds[int(codes[longest])]],
            chip,
            Need(need.operations * times, need.bytes * times) if need is not None else None,
            _peak_of(chip, need.dtype, kernel) if need is not None else None,
            float(lengths[mine].sum()),
            times,
        )
    return Roofline(chip, _largest_first(found), steps)


def shortest_ns(chip: Chip, need: InstructionNeed, kernel: str) -> float | None:
    """Return how long an instruction of a compiled program takes at the chip's limits, ns; None = unknown."""
    peak = _peak_of(chip, need.dtype, kernel)
    if need.operations and peak is None:
        return None
    return max(need.operations / peak if peak else 0.0, need.bytes / chip.bytes_per_s) * 1e9


def _peak_of(chip: Chip, dtype: str, kernel: str) -> float | None:
    """Return the chip's operations per second in a type of XLA's; None = unknown."""
    rates = chip.operations_per_s
    if dtype == "f32":  # XLA's own kernels compute in TF32 unless asked for more
        slow = _kernel_names.is_fp32_gemm(kernel)
        return rates.get("float32" if slow else "tfloat32", rates.get("float32"))
    if dtype in ("bf16", "f16"):
        return rates.get("bfloat16", rates.get("float16"))
    return None


def _largest_first(found: dict[str, Kind]) -> dict[str, Kind]:
    return dict(sorted(found.items(), key=lambda item: -item[1].ns - item[1].unknown_ns))


def _add(
    found: dict[str, Kind], chip: Chip, word: str, call: Call | None, took: float, kernels: list[str]
) -> None:
    """Add an operator and the time of its kernels, ns."""
    need = None
    if call is not None:
        word = next(
            (kind for kind, names in _BY_OPERATOR.items() if any(n in call.name for n in names)), word
        )
        need = _need(call, word)
    peak = _peak(chip, call, kernels) if call is not None else None
    _count(found[word], chip, need, peak, took)


def _count(
    kind: Kind, chip: Chip, need: Need | None, peak: float | None, took: float, count: int = 1
) -> None:
    """Add what operators need and took, ns."""
    if need is None or (need.operations and peak is None):
        kind.unknown_ns += took
        return
    at_peak = need.operations / peak * 1e9 if peak else 0.0
    at_bandwidth = need.bytes / chip.bytes_per_s * 1e9
    kind.count += count
    kind.ns += took
    kind.at_peak_ns += at_peak
    kind.at_bandwidth_ns += at_bandwidth
    kind.least_ns += min(max(at_peak, at_bandwidth), took)


def _chosen(trace: Trace) -> tuple[Ints, Ints, int]:
    """Return device work, the innermost operator that launched each (-1 = none), and the number of steps."""
    work = trace.device_work
    if len(trace.steps):
        work = work[trace.steps.step_of[work] == len(trace.steps) // 2]
    elif len(work) > MAX_OPERATORS:
        first = (len(work) - MAX_OPERATORS) // 2
        work = work[first : first + MAX_OPERATORS]
    launch = trace.links.launch_of[work]
    operators = np.full(len(work), -1, dtype=np.int64)
    asked = np.flatnonzero(launch >= 0)
    for level in trace.nesting.outward(launch[asked].astype(np.int64)):
        at = np.maximum(level, 0)
        first_seen = (operators[asked] < 0) & (level >= 0) & trace.is_category("cpu_op", rows=at)
        operators[asked[first_seen]] = level[first_seen]
    return work, operators, int(bool(len(trace.steps)))


def _calls(trace: Trace, rows: Ints) -> dict[int, Call]:
    """Return the calls of operators with tensor arguments, by row."""
    found: dict[int, Call] = {}
    for row, given in arguments(trace, rows):
        tensors, values = [], {}
        for at, (dims, type_) in enumerate(zip(given.dims, given.types, strict=False)):
            if type_ in ELEMENT_BYTES and _is_shape(dims):
                tensors.append(Tensor(tuple(dims), type_))
            elif at < len(given.values):
                values[at] = str(given.values[at])
        if tensors:
            found[row] = Call(trace.name(row), tuple(tensors), values)
    return found


def _is_shape(dims: object) -> bool:
    """Return whether a value is a plausible tensor shape."""
    return (
        isinstance(dims, list)
        and len(dims) <= _MAX_DIMS
        and all(type(n) is int and 0 <= n < 1 << 40 for n in dims)
    )


def _peak(chip: Chip, call: Call, kernels: list[str]) -> float | None:
    """Return the chip's operations per second in the type of an operator; None = unknown."""
    rates, kind = chip.operations_per_s, call.tensors[0].type
    if kind in _HALF:
        return rates.get("bfloat16", rates.get("float16"))
    if kind == "float":
        reduced = any("tf32" in kernel.lower() for kernel in kernels)
        return rates.get("tfloat32" if reduced else "float32", rates.get("float32"))
    return None


def _need(call: Call, kind: str) -> Need | None:
    """Return the minimum work of an operator, from its name and the kind of its longest kernel; None = no rule."""
    name, tensors = call.name, call.tensors
    base = name.rsplit("::", 1)[-1]
    read = float(sum(tensor.bytes for tensor in tensors))
    dims = [tensor.dims for tensor in tensors]
    size = ELEMENT_BYTES[tensors[0].type]
    if base in ("mm", "addmm", "bmm", "baddbmm", "_addmm_activation"):
        operands = dims[:2] if base in ("mm", "bmm") else dims[1:3]
        a, b = operands if len(operands) == 2 else ((), ())
        if len(a) < 2 or len(a) != len(b) or a[-1] != b[-2]:
            return None
        result = prod(a[:-1]) * b[-1]
        return Need(2.0 * result * a[-1], read + result * size)
    if "attention" in base:
        return _attention(base, call, read)
    if "convolution" in base:
        return _convolution(base, call, read)
    if any(word in base for word in _SMALL_RESULT):
        return None
    largest = max(tensor.bytes for tensor in tensors)
    if name in _OVERWRITES:
        return Need(0.0, read)
    if kind in _SAME_SIZE:
        return Need(0.0, read + (tensors[0].bytes if base.endswith("_") else largest))
    return Need(0.0, read) if kind == "reduction" else None


def _attention(base: str, call: Call, read: float) -> Need | None:
    """Count the two products of an attention, and the five of its backward, each over all of the scores.

    A causal mask halves them; PyTorch kernels have heads before or after the sequence.
    """
    backward = "backward" in base
    tensors = call.tensors[1:] if backward else call.tensors  # the gradient comes first
    dims = [tensor.dims for tensor in tensors[:3]]
    if len(dims) < 3 or any(len(one) != 4 for one in dims) or dims[0][0] != dims[1][0]:
        return None
    heads_last = base.startswith(("_flash_attention", "_efficient_attention"))
    batch, length, heads = dims[0][0], dims[0][1 if heads_last else 2], dims[0][2 if heads_last else 1]
    keys = dims[1][1 if heads_last else 2]
    causal = "True" in call.values.values()
    products = (5 if backward else 2) * 2.0 * batch * heads * length * keys * dims[0][3]
    written = sum(tensor.bytes for tensor in tensors[: 3 if backward else 1])
    return Need(products / 2 if causal else products, read + written)


def _convolution(base: str, call: Call, read: float) -> Need | None:
    """Count a convolution, or one or two of its gradients."""
    tensors = call.tensors
    if "backward" in base:
        if len(tensors) < 2:
            return None
        if base == "convolution_backward" and len(tensors) >= 3:  # of the input, and of the weight
            gradient, given, weight = (tensor.dims for tensor in tensors[:3])
            mask = call.values.get(10, "").count("True") or 2
            operations = 2.0 * prod(gradient) * prod(weight[1:]) * min(mask, 2)
            return Need(operations, read + prod(given) * ELEMENT_BYTES[tensors[1].type])
        if "input" in base:  # (sizes, gradient, weight)
            return Need(2.0 * prod(tensors[0].dims) * prod(tensors[1].dims[1:]), 2.0 * read)
        return None
    if len(tensors) < 2 or len(tensors[0].dims) < 3 or len(tensors[1].dims) != len(tensors[0].dims):
        return None
    given, weight = tensors[0].dims, tensors[1].dims
    lists = [_numbers(text) for _, text in sorted(call.values.items()) if text.startswith("[")]
    spatial = len(given) - 2
    if len(lists) < 3 or any(len(one) != spatial for one in lists[:3]) or "transpose" in base:
        return None
    # PyTorch's own order is stride, padding, dilation; its wrappers of libraries have padding first.
    padding, stride, dilation = (
        lists[:3] if base.startswith(("cudnn", "miopen")) else (lists[1], lists[0], lists[2])
    )
    sides = [
        (n + 2 * p - d * (k - 1) - 1) // max(s, 1) + 1
        for n, p, d, k, s in zip(given[2:], padding, dilation, weight[2:], stride, strict=True)
    ]
    result = given[0] * weight[0] * prod(sides)
    if result <= 0:
        return None
    return Need(2.0 * result * prod(weight[1:]), read + result * ELEMENT_BYTES[tensors[0].type])


def _numbers(text: str) -> Sequence[int]:
    """Return the numbers of a list as the trace writes it: ``[1, 1]``."""
    parts = [part.strip() for part in text.strip("[] ").split(",")]
    return [int(part) for part in parts] if all(_NUMBER.fullmatch(part) for part in parts) else []
