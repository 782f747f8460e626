"""An end of a step that is put off, as a call of the framework runs that has called back into Python.

A profiler that is started or stopped inside such a call, as a backward pass that runs a hook, is undone when the call
returns, and then takes the process down.
"""

from __future__ import annotations

from typing import Any, Optional

#: What the framework's state is where no such call runs.
NO_CALL = -1

#: The id of the call, the source of the step, when it was put off (monotonic ns), and numbers given by the script.
PutOff = tuple[int, int, int, Optional[dict[str, Any]]]


def no_call() -> int:
    """Replacement for the framework's state if there is no framework."""
    return NO_CALL


def merged(before: PutOff, source: int, t: int, metrics: dict[str, Any] | None) -> PutOff:
    """Return two ends in one call as one: the later, by the higher source, with the numbers of both."""
    call, source_before, _, metrics_before = before
    both = {**metrics_before, **metrics} if metrics_before and metrics else metrics or metrics_before
    return call, max(source, source_before), t, both
