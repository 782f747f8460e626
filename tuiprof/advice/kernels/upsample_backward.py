"""The gradient of an interpolation is added up by atomic operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.model import Trace
from tuiprof.model.units import format_rough_share
from tuiprof.whatif import Edit, EditRange

#: Kernels of channels-first: many pixels of the result add their gradients to the same pixel. Those of channels-last
#: are named otherwise.
_SLOW: Final = r"upsample_bilinear2d_backward_out_frame"
#: Minimum share of device work, and how many times as long as the forward kernels they take at least.
MIN_SHARE: Final = 0.01
MIN_TIMES: Final = 6.0
#: The backward pass of two products with the weights of the interpolation, as a multiple of the forward kernel's time,
#: since both read and write the large images: likely, least and most helpful. Measured on an H100, PyTorch 2.11, for
#: five sizes and factors of 2 to 8: forward and backward take 0.4 to 0.8 ms instead of 1.8 to 4.2 in float32, and 0.3
#: to 0.8 ms instead of 3.1 to 17.2 in bfloat16. In bfloat16, interpolating in float32 is 1.3 to 4.2 times as fast.
#: In a step with an interpolation by 16, they take hardly a quarter of the interpolation itself.
_OF_FORWARD: Final = (1.5, 5.0, 0.3)


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for long backward kernels of interpolations."""
    calls = evidence.calls
    slow = trace.named(_SLOW, trace.device_work)
    nodes = np.flatnonzero((calls.work_count_of(slow) > 0) & (calls.forward >= 0))
    forward_ns, slow_ns = calls.work_ns[calls.forward[nodes]], calls.work_ns_of(slow)[nodes]
    long = (forward_ns > 0) & (slow_ns >= MIN_TIMES * forward_ns)
    nodes, times = nodes[long], slow_ns[long] / forward_ns[long]
    of_nodes = slow & calls.launched_by(np.isin(np.arange(len(calls.rows)), nodes))
    rows = trace.device_work[of_nodes]
    share = evidence.share_of_device_time(rows)
    if share < MIN_SHARE:
        return
    times_of = np.zeros(len(calls.rows))
    times_of[nodes] = times
    times_of_rows = times_of[calls.call_of_work[of_nodes]]
    longest = trace.longest(rows)
    node = nodes[np.argmax(slow_ns[long])]
    yield Finding(
        f"the gradient of an interpolation takes {format_rough_share(share)} of device time, "
        f"{times.max():.0f} times as long as the interpolation itself",
        evidence.function_of(int(calls.rows[calls.forward[node]])),
        "interpolate by two products, outside of autocast: rows @ x @ columns.T, where rows is "
        'F.interpolate(torch.eye(h, device=x.device)[None], size=H, mode="linear")[0].T and columns likewise '
        "(align_corners as before; the same values up to rounding); or interpolate fewer channels, or x.float() "
        "instead of 16 bits",
        "high",
        "in channels-first, every pixel of the result adds to the same few by atomic operations",
        *EditRange(*(Edit.of_work(rows, np.minimum(part / times_of_rows, 1.0)) for part in _OF_FORWARD)),
        event=longest,
    )


RULE = AdviceRule("upsample-backward", find)
