"""Kinds of what the probe records besides the marks of steps: the first element of each item in ``Steps.out``.

:func:`.log.line` has the fields of each.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Any

DEVICE, MEMORY, USES, COST, SLOWER, CAPTURE, NOTE, LINES, RECORD = "d", "m", "u", "c", "s", "p", "n", "l", "r"


def remove(events: deque[tuple[Any, ...]], kind: str) -> None:
    """Remove those of one kind, as far as the log's thread has not taken them."""
    for item in [item for item in list(events) if item[0] == kind]:
        with suppress(ValueError):  # already written
            events.remove(item)
