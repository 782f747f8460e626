"""Operators and kernels run in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.doubles import DOUBLE, MIN_EACH, SLOW, doubles
from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.advice.kernels.cpu_bfloat16 import PRODUCTS
from tuiprof.analyses.shared.arguments import arguments
from tuiprof.analyses.shared.frames import operator_label
from tuiprof.analyses.shared.kernel_names import short_name
from tuiprof.model import Trace
from tuiprof.model.intervals import Mask
from tuiprof.model.units import format_rough_share
from tuiprof.whatif import Edit, EditRange
from tuiprof.whatif.chips import Chip, find_chip

#: Minimum share of float64 operators in the steps; less may be intended (an accumulated loss).
MIN_SHARE: Final = 0.1
#: float32 moves half the bytes and multiplies twice as many numbers at once: likely, least, most. On a core of an AMD
#: EPYC (Zen 5, PyTorch 2.13) products keep 0.3 to 0.65 of their time, adam 0.37, a sum or a relu 0.4 to 0.5, GELU 0.1.
_KEEP: Final = (0.5, 0.8, 0.35)
#: oneDNN has no convolutions and LSTMs in float64 (aten/src/ATen/native/Convolution.cpp, use_mkldnn; RNN.cpp). On the
#: same core, convolutions of 3 × 3 pixels keep 0.06 to 0.22, of one pixel 0.28 to 0.54, over a sequence 0.14 to 0.32,
#: depthwise ones 0.04 to 0.2, an LSTM 0.15 to 0.28.
_KEEP_ONEDNN: Final = (0.2, 0.6, 0.06)
_ONEDNN: Final = r"(?i)convolution|^aten::(conv\dd|lstm)$"
#: What a call takes however small its tensors are, ns.
_CALL_NS: Final = 4_000
#: Random numbers take as long in both types (measured on the same core).
_RANDOM: Final = (
    r"^aten::((feature_)?(alpha_)?dropout_?|native_dropout|bernoulli_?|rand\w*|normal_|uniform_)$"
)
#: Operators on a CPU whose types are read.
_TYPED: Final = rf"{PRODUCTS}|^aten::(mul|add|sub|div|tanh|sigmoid|relu|gelu|sum|mean)$"
#: Others that compute with parameters, where there is no backward pass.
_LAYERS: Final = (
    r"^aten::(\w*norm|lstm|gru|rnn_\w+|_transformer_encoder_layer_fwd|scaled_dot_product_attention)$"
)
#: Products on a chip with slow float64 (1/32 to 1/64 of float32), likely, least and most helpful; and on a chip
#: with float64 as fast as float32, where only TF32 saves more.
_SLOW_CHIP: Final = (1 / 32, 0.1, 1 / 64)
_FAST_CHIP: Final = (0.9, 1.0, 0.15)
#: Kernels that compute functions of each value, how many operations these take, and what float64 reads and writes for
#: each: where its arithmetic is slow, that limits them. The number of operations is an estimate.
_FUNCTIONS: Final = (
    r"(?i)\b_?(sin|cos|tan|exp|log|pow|sqrt|rsqrt|sigmoid|erf|gelu|silu|softplus|softmax)\w*_kernel|softmax"
)
_OPERATIONS: Final = (40, 20, 80)
_VALUE_BYTES: Final = 16
_FIX: Final = (
    "use float32: tensor.float() on arrays from NumPy (float64 by default), and no model.double() or "
    "set_default_dtype(torch.float64)"
)
_JAX_FIX: Final = (
    'use float32: no jax.config.update("jax_enable_x64", True), or jnp.asarray(…, dtype=jnp.float32)'
)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for float64 kernels by name; on a CPU for operators on doubles, by their types or those of parameters."""
    yield from _on_device(trace, evidence) if trace.device_indices else _on_cpu(trace, evidence)


def _on_device(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    work, found = trace.device_work, doubles(trace)
    rows = work[found.work]
    share = evidence.share_of_device_time(rows)
    if share < MIN_SHARE:
        return
    calls = evidence.calls
    chip = find_chip(trace.info.device_name)
    slow = chip is not None and "float64" not in chip.operations_per_s
    products = (calls.works_of("gemm", "convolution") & ~calls.launched_by(found.by_memory))[found.work]
    functions = trace.named(_FUNCTIONS, rows)
    # Other work keeps the share of its bytes; half of them, if its types are not known.
    moves = np.append(found.moves, 0.5)[calls.call_of_work[found.work]] / 0.5
    edits = []
    for of_product, other, operations in zip(
        _SLOW_CHIP if slow else _FAST_CHIP, _KEEP, _OPERATIONS, strict=True
    ):
        of_function = other if chip is None else min(other, _of_functions(chip, operations))
        keep = np.where(products, of_product, np.where(functions, of_function, other) * moves)
        edits.append(Edit.of_work(rows, np.minimum(keep, 1.0)))
    longest = trace.longest(rows)
    yield Finding(
        f"{format_rough_share(share)} of device time is float64",
        evidence.function_of(longest) or f"longest in {short_name(trace.name(longest))}",
        _JAX_FIX if evidence.is_jax else _FIX,
        "high",
        "kernel names" + (", and the input types recorded with the shapes" if found.by_types else ""),
        *EditRange(*edits),
        event=longest,
    )


def _of_functions(chip: Chip, operations: int) -> float:
    """Return the share of the time that functions of so many operations keep in float32."""
    single = chip.operations_per_s.get("float32", np.inf)
    double = chip.operations_per_s.get("float64", single * SLOW)
    of_single = max(_VALUE_BYTES / 2 / chip.bytes_per_s, operations / single)
    return float(of_single / max(_VALUE_BYTES / chip.bytes_per_s, operations / double))


def _on_cpu(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    if evidence.is_jax:
        return
    calls = evidence.calls
    chosen, because = _double(trace, evidence)
    found = calls.rows[chosen]
    share = evidence.share_of_time(found)
    if share < MIN_SHARE:
        return
    fixed = np.minimum(_CALL_NS / np.maximum(trace.lengths(found), 1), 1.0)
    onednn = calls.with_backward(trace.named(_ONEDNN, calls.rows))[chosen]
    edits = EditRange(
        *(
            Edit.of_host(trace, found, fixed + (1 - fixed) * np.where(onednn, of_onednn, keep))
            for of_onednn, keep in zip(_KEEP_ONEDNN, _KEEP, strict=True)
        )
    )
    longest = trace.longest(found)
    yield Finding(
        f"{format_rough_share(share)} of the time is spent in float64 operators",
        evidence.function_of(longest) or f"longest in {operator_label(trace.name(longest))}",
        _FIX,
        "high",
        because,
        *edits,
        event=longest,
    )


def _double(trace: Trace, evidence: Evidence) -> tuple[Mask, str]:
    """Return the calls that compute in float64, and how that is known."""
    calls = evidence.calls
    low, high = trace.span
    operators = trace.operators()
    operators = operators[trace.lengths(operators) >= MIN_EACH * (high - low) / evidence.step_count]
    given = list(arguments(trace, operators[trace.named(_TYPED, operators)]))
    if given:
        double = [row for row, one in given if one.types and one.types[0] == DOUBLE]
        inside = calls.inside(np.array(double, dtype=np.int64))
        return calls.with_backward(calls.mask(inside)), "the input types recorded with the shapes"
    weights = trace.uncaptured.weights if trace.uncaptured is not None else None
    if weights is None or weights.share_of("float64") <= 0.5:
        return np.zeros(len(calls.rows), dtype=bool), ""
    chosen = trace.named(f"{_TYPED}|{_LAYERS}", calls.rows) | calls.differentiated | calls.backward
    chosen |= evidence.updates.hold(calls.rows)
    return chosen & ~trace.named(_RANDOM, calls.rows), "the types of the parameters in the capture"


RULE = AdviceRule("float64", find)
