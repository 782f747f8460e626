"""Products and convolutions run in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.kernels.cpu_bfloat16 import PRODUCTS
from tuiprof.advice.shared.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.shared.arguments import arguments
from tuiprof.analyses.shared.frames import operator_label
from tuiprof.model import Trace
from tuiprof.model.units import format_rough_share
from tuiprof.whatif.edit import Edit

#: Less of the steps than this in operators of float64 may be meant (a loss that is summed up).
LEAST_SHARE: Final = 0.1
#: Only operators that take this part of the step or more are asked for their types.
_LEAST_EACH: Final = 0.002
#: In float32 half as many bytes are moved and twice as many numbers are multiplied at once: likely, least, most.
_KEEP: Final = (0.5, 0.8, 0.35)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for long operators on a CPU whose tensors are of double, where types were recorded."""
    if trace.device_indices or evidence.is_jax:
        return
    low, high = trace.span
    rows = np.flatnonzero(trace.is_category("cpu_op"))
    rows = rows[trace.lengths(rows) >= _LEAST_EACH * (high - low) / evidence.step_count]
    asked = rows[trace.named(rf"{PRODUCTS}|^aten::(mul|add|sub|div|tanh|sigmoid|relu|gelu|sum|mean)$", rows)]
    double = [row for row, given in arguments(trace, asked) if given.types and given.types[0] == "double"]
    if not double:
        return
    inside = np.unique(evidence.calls.inside(np.array(double)))
    found = evidence.calls.rows[evidence.calls.with_backward(_mask(inside, len(evidence.calls.rows)))]
    lengths = trace.lengths(found)
    share = float(lengths.sum()) / (high - low)
    if share < LEAST_SHARE:
        return
    longest = int(found[np.argmax(lengths)])
    likely, least, most = (Edit(host=evidence.host_time(found, keep)) for keep in _KEEP)
    yield Finding(
        f"{format_rough_share(share)} of the time is spent in operators on float64",
        evidence.function_of(longest) or f"longest in {operator_label(trace.name(longest))}",
        "float32: tensor.float() where arrays come from NumPy (which makes float64), and no model.double() or "
        "set_default_dtype(torch.float64)",
        "high",
        "types of the operators' inputs, as recorded with the shapes",
        likely,
        least,
        most,
        event=longest,
    )


def _mask(chosen: np.typing.NDArray[np.integer], count: int) -> np.typing.NDArray[np.bool_]:
    result = np.zeros(count, dtype=bool)
    result[chosen[chosen >= 0]] = True
    return result


RULE = AdviceRule("float64", find)
