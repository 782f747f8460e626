"""What hooks note in the midst of a step: small tuples, whose first element says what they are.

==========================================  ==========================================================================
``kind, began, ended, done``                A part of a step: ``DATA``, ``BACKWARD``, ``OPTIMIZER`` or the name the
                                            script gave; ``done`` = end of our own work
``STEPPED, began, ended, n, done``          The part ``OPTIMIZER``, with which step ``n`` ended
``END, n, at, metrics, captured, done``     Step ``n`` ended; numbers given by the script; it ran under a profiler
``BEGIN, at``                               The running step begins here; what was noted before is in no step
==========================================  ==========================================================================

All times are monotonic ns.
"""

from __future__ import annotations

from typing import Any, Union

DATA, BACKWARD, OPTIMIZER, STEPPED, END, BEGIN = range(6)

Mark = tuple[Any, ...]
Part = tuple[Union[int, str], int, int, int]
