"""Kinds of what the probe records besides the marks of steps: the first element of each item in ``Steps.out``.

:func:`.log.line` has the fields of each.
"""

from __future__ import annotations

DEVICE, MEMORY, USES, COST, SLOWER, CAPTURE, NOTE, LINES, RECORD = "d", "m", "u", "c", "s", "p", "n", "l", "r"
