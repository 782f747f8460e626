"""Operators and kernels run in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.kernels.cpu_bfloat16 import PRODUCTS
from tuiprof.analyses.shared.calls import arguments
from tuiprof.analyses.shared.frames import operator_label
from tuiprof.analyses.shared.kernel_names import short_name
from tuiprof.model import Trace
from tuiprof.model.units import format_rough_share
from tuiprof.whatif import Edit, EditRange
from tuiprof.whatif.chips import find_chip

#: Minimum share of float64 operators in the steps; less may be intended (an accumulated loss).
MIN_SHARE: Final = 0.1
#: Only the types of operators with at least this share of the step are read.
_MIN_EACH: Final = 0.002
#: float32 moves half the bytes and multiplies twice as many numbers at once: likely, least, most.
_KEEP: Final = (0.5, 0.8, 0.35)
#: Names of float64 kernels: by their C++ types, if no narrower type is present, or by their library.
_KERNEL: Final = r"\bdouble\b|dgemm|d884|f64f64"
_NARROWER: Final = r"\b(float|Half|BFloat16|half|__nv_bfloat16)\b"
#: Products on a chip with slow float64 (1/32 to 1/64 of float32), likely, least and most helpful; and on a chip
#: with float64 as fast as float32, where only TF32 saves more.
_SLOW_CHIP: Final = (1 / 32, 0.1, 1 / 64)
_FAST_CHIP: Final = (0.9, 1.0, 0.15)
_FIX: Final = (
    "use float32: tensor.float() on arrays from NumPy (float64 by default), and no model.double() or "
    "set_default_dtype(torch.float64)"
)
_JAX_FIX: Final = (
    'use float32: no jax.config.update("jax_enable_x64", True), or jnp.asarray(…, dtype=jnp.float32)'
)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for float64 kernels by name; on a CPU for long operators on doubles, if types were recorded."""
    yield from _on_device(trace, evidence) if trace.device_indices else _on_cpu(trace, evidence)


def _on_device(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    work = trace.device_work
    double = trace.named(_KERNEL, work) & ~trace.named(_NARROWER, work)
    rows = work[double]
    share = evidence.share_of_device_time(rows)
    if share < MIN_SHARE:
        return
    chip = find_chip(trace.info.device_name)
    slow = chip is not None and "float64" not in chip.operations_per_s
    products = evidence.calls.works_of("gemm", "convolution")[double]
    edits = EditRange(
        *(
            Edit.of_work(rows, np.where(products, product, other))
            for product, other in zip(_SLOW_CHIP if slow else _FAST_CHIP, _KEEP, strict=True)
        )
    )
    longest = trace.longest(rows)
    yield Finding(
        f"{format_rough_share(share)} of device time is float64",
        evidence.function_of(longest) or f"longest in {short_name(trace.name(longest))}",
        _JAX_FIX if evidence.is_jax else _FIX,
        "high",
        "kernel names",
        *edits,
        event=longest,
    )


def _on_cpu(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    if evidence.is_jax:
        return
    low, high = trace.span
    rows = trace.operators()
    rows = rows[trace.lengths(rows) >= _MIN_EACH * (high - low) / evidence.step_count]
    asked = rows[trace.named(rf"{PRODUCTS}|^aten::(mul|add|sub|div|tanh|sigmoid|relu|gelu|sum|mean)$", rows)]
    double = [row for row, given in arguments(trace, asked) if given.types and given.types[0] == "double"]
    if not double:
        return
    calls = evidence.calls
    found = calls.rows[calls.with_backward(calls.mask(calls.inside(np.array(double))))]
    share = evidence.share_of_time(found)
    if share < MIN_SHARE:
        return
    longest = trace.longest(found)
    yield Finding(
        f"{format_rough_share(share)} of the time is spent in float64 operators",
        evidence.function_of(longest) or f"longest in {operator_label(trace.name(longest))}",
        _FIX,
        "high",
        "the input types recorded with the shapes",
        *EditRange(*(Edit.of_host(trace, found, keep) for keep in _KEEP)),
        event=longest,
    )


RULE = AdviceRule("float64", find)
