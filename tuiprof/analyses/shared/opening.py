"""What the page on a trace opens with: known before any rule or analysis is asked."""

from __future__ import annotations

from tuiprof.analyses.shared.replay import replayed, trust
from tuiprof.model import Trace
from tuiprof.model.answer import Answer


def opening(trace: Trace, title: str) -> Answer:
    """Return the page of a trace without findings and without the lines of analyses."""
    step, trusted = replayed(trace), trust(trace)
    found = None if isinstance(step, str) else step
    return Answer(
        title,
        next((device.name for device in trace.info.devices if device.name), ""),
        len(trace.steps),
        found.step_ns if found else None,
        found.captured_ns if found else None,
        (found.graph.device_busy_ns or None) if found else None,
        None,
        trusted.text,
        all(remark.code == "slowed" for remark in trusted.remarks),
        (),
        (),
        (),
    )
