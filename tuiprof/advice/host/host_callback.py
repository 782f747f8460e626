"""A compiled function of JAX calls back into Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding, times
from tuiprof.analyses.shared import frames as _frames
from tuiprof.analyses.shared.calls import index_of_outer
from tuiprof.analyses.shared.waits import outermost
from tuiprof.model import Trace
from tuiprof.model.intervals import Ints, distinct
from tuiprof.whatif import Edit

#: Python frames that run a callback (jax/_src/callback.py and debugging.py).
_RUNS_CALLBACK: Final = (
    r"\bcallback\.py\(\d+\): (pure|io)_callback_impl$|\bdebugging\.py\(\d+\): debug_(callback|print)_impl$"
)
#: Frames that call the user's function in them.
_CALLS: Final = r"\bcallback\.py\(\d+\): __call__$|\bdebugging\.py\(\d+\): _flat_callback$"
#: The operator of the compiled function that runs it.
_OPERATOR: Final = r"^(debug_callback|pure_callback|io_callback)\b"
#: Events in a smaller share of the steps are occasional work of the script.
MIN_SHARE: Final = 0.75


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for callbacks, grouped by function."""
    if not evidence.is_jax:
        return
    operators = outermost(trace, trace.host_events(_OPERATOR))
    places: dict[str, list[int]] = {}
    for row in outermost(trace, trace.host_events(_RUNS_CALLBACK)).tolist():
        places.setdefault(_called(trace, row), []).append(row)
    for place, found in places.items():
        mine = np.array(found)
        if len(mine) < MIN_SHARE * evidence.step_count:
            continue
        inside = index_of_outer(trace, operators, mine)
        per_step = len(mine) / evidence.step_count if evidence.stepped else None
        yield Finding(
            f"a compiled function calls back into Python {times(per_step, len(mine))}, and the device "
            "waits meanwhile",
            place,
            "compute it with jnp in the compiled function; if it is only printed or logged, return it "
            "and read it every N steps (jax.debug.print is for debugging)",
            "high",
            "jax.pure_callback, io_callback or jax.debug frames around a Python function",
            # Its arguments are copied to the host first, so the host waits for the device.
            evidence.without_operators(np.union1d(mine, operators[distinct(inside)])),
            Edit.of_host(trace, mine),
            event=trace.longest(mine),
        )


def _called(trace: Trace, row: int) -> str:
    """Return the function that a callback calls; else the frame that runs it."""
    inside: Ints = trace.between(int(trace.starts[row]), int(trace.ends[row]))
    inside = inside[(inside > row) & (trace.track_codes[inside] == trace.track_codes[row])]
    callers = np.flatnonzero(trace.named(_CALLS, inside))
    called = inside[callers[0] + 1 :] if len(callers) else inside[:0]
    called = called[trace.named(r"\.py\(\d+\): ", called)]
    user = next((one for one in called.tolist() if _frames.is_user(trace.name(one))), row)
    return _frames.function_label(trace.name(user), _frames.running_at_start(trace))


RULE = AdviceRule("host-callback", find, shown_by="device_idle")
