"""Operators that compute in float64 on a device, by the types that a trace records, and what they move in float32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from tuiprof.advice.products.shapes import Shape, arguments_of, product_of, shape_of, shapes_in
from tuiprof.analyses.shared.arguments import Arguments
from tuiprof.analyses.shared.calls import Calls
from tuiprof.analyses.shared.calls import calls as calls_of
from tuiprof.analyses.shared.roofline import ELEMENT_BYTES
from tuiprof.model import Trace
from tuiprof.model.intervals import Floats, Mask
from tuiprof.model.trace import cached_on_trace
from tuiprof.whatif.chips import Chip, find_chip

DOUBLE, _SINGLE = "double", "float"
#: Names of float64 kernels: by their C++ types, if no narrower type is present, or by their library.
_KERNEL: Final = r"\bdouble\b|dgemm|d884|f64f64"
_NARROWER: Final = r"\b(float|Half|BFloat16|half|__nv_bfloat16)\b"
#: Only the types of operators with at least this share of a step are read.
MIN_EACH: Final = 0.002
#: Conversions, with the number of the new type among their values, or with a tensor of that type.
_CASTS: Final = ("aten::to", "aten::_to_copy", "aten::type_as")
_COPIES: Final = ("aten::copy_",)
_NUMBERS: Final = {
    "0": "unsigned char",
    "1": "signed char",
    "2": "short",
    "3": "int",
    "4": "long int",
    "5": "c10::Half",
    "6": _SINGLE,
    "7": DOUBLE,
    "11": "bool",
    "15": "c10::BFloat16",
}
#: What joins a list of tensors, whose types are not recorded: the next calls tell that of the result.
_JOINS: Final = ("aten::cat", "aten::concat", "aten::stack", "aten::hstack", "aten::vstack")
_SOON: Final = 8
#: Where the chip's datasheet has no float64, a 64th of float32.
SLOW: Final = 1 / 64


@dataclass(frozen=True, slots=True)
class Doubles:
    """What computes in float64; masks and shares by call, those of ``trace.device_work`` by work."""

    calls: Mask  # calls that do, forward and backward, by their types
    work: Mask  # device work that does, by name or because such a call launches it
    #: Share of the bytes that a call moves which remains in float32: none of a conversion between both.
    moves: Floats
    by_memory: Mask  # products that memory limits, not arithmetic

    @property
    def by_types(self) -> bool:
        """Whether the types of any were recorded."""
        return bool(self.calls.any())


@cached_on_trace
def doubles(trace: Trace) -> Doubles:
    """Return what computes in float64 on a device; without recorded types by the names of kernels alone."""
    calls, work = calls_of(trace), trace.device_work
    named: Mask = trace.named(_KERNEL, work) & ~trace.named(_NARROWER, work)
    moves, by_memory = np.full(len(calls.rows), 0.5), np.zeros(len(calls.rows), dtype=bool)
    # In a trace without steps, they would be read from all over the file.
    found = dict(_recorded(calls)) if named.any() and len(trace.steps) else {}
    chip = find_chip(trace.info.device_name)
    for call, (given, share) in found.items():
        mine = calls.with_backward(calls.mask([call]))
        moves[mine] = share
        by_memory[mine] = chip is not None and _is_limited_by_memory(calls.names[call], given, chip)
    typed = calls.with_backward(calls.mask(list(found)))
    return Doubles(typed, named | calls.launched_by(typed), moves, by_memory)


def _recorded(calls: Calls) -> Iterator[tuple[int, tuple[Arguments, float]]]:
    """Yield the calls that compute in float64, with their arguments and the share of bytes that remains in float32."""
    least_ns = MIN_EACH * calls.work_ns.sum() / max(len(calls.trace.steps), 1)
    for call, given in arguments_of(
        calls, np.flatnonzero((calls.work_ns >= least_ns) & ~calls.backward)
    ).items():
        name = calls.names[call]
        if name in _CASTS + _COPIES:
            source, target = _types(name, given)
            if DOUBLE in (source, target):
                yield call, (given, _moved(source, target))
        elif name in _JOINS:
            if _joins_doubles(calls, call, given):
                yield call, (given, 0.5)
        elif any(kind == DOUBLE for _, kind in _tensors(given)):
            yield call, (given, 0.5)


def _tensors(given: Arguments) -> Iterator[tuple[Shape, str]]:
    """Yield the shape and the type of each argument that is a tensor, and no single number."""
    for dims, kind in zip(given.dims, given.types, strict=False):
        if shape := shape_of(dims):
            yield shape, kind


def _types(name: str, given: Arguments) -> tuple[str, str]:
    """Return the type that a conversion reads and the one that it writes, as far as they are known."""
    kinds = [*given.types, "", ""]
    if name in _COPIES:
        return kinds[1], kinds[0]
    if kinds[1] in ELEMENT_BYTES:
        return kinds[0], kinds[1]
    # The new type comes first, or after the new device.
    first, second = [*given.values[1:3], "", ""][:2]
    return kinds[0], _NUMBERS.get(first if first in ("", *_NUMBERS) else second, kinds[0])


def _moved(source: str, target: str) -> float:
    """Return the share of the bytes that a conversion moves which remains in float32."""
    if {source, target} == {DOUBLE, _SINGLE}:
        return 0.0
    before = [ELEMENT_BYTES.get(kind, 4) for kind in (source, target)]
    return sum(
        min(size, 4) if kind == DOUBLE else size for size, kind in zip(before, (source, target), strict=True)
    ) / sum(before)


def _joins_doubles(calls: Calls, call: int, given: Arguments) -> bool:
    """Return whether the next calls take a result of joined tensors as float64."""
    size = sum(prod(shape) for shape in shapes_in(given.dims[:1]))
    after = arguments_of(calls, calls.after(call, _SOON)).values()
    kinds = (kind for each in after for shape, kind in _tensors(each) if prod(shape) == size)
    return next(kinds, "") == DOUBLE


def _is_limited_by_memory(name: str, given: Arguments, chip: Chip) -> bool:
    """Return whether a product of two matrices takes the chip longer to read and write than to compute in float64."""
    if name == "aten::linear":
        left, right = (*map(shape_of, given.dims[:2]), (), ())[:2]
        given = Arguments([list(left), list(right[::-1])])
    elif name.startswith("aten::addmm"):
        given = Arguments(given.dims[1:])
    if (product := product_of(given)) is None:
        return False
    rate = chip.operations_per_s
    per_s = rate.get("float64", rate.get("float32", 0.0) * SLOW)
    moved = 8 * (prod(product.left) + prod(product.right) + product.size)
    operations = 2 * product.size * product.inner
    return operations * chip.bytes_per_s < moved * per_s
