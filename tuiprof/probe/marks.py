"""What hooks note in the midst of a step: small tuples, whose first element says what they are.

==========================================  ==========================================================================
``kind, began, ended, thread``              A part of a step: ``DATA``, ``BACKWARD``, ``OPTIMIZER`` or the name the
                                            script gave, and the thread that it ran in; only parts in the thread that
                                            steps count
``STEPPED, began, ended, n, done``          The part ``OPTIMIZER``, with which step ``n`` ended; ``done`` = end of our
                                            own work
``END, n, at, metrics, captured, done``     Step ``n`` ended; numbers given by the script; it ran under a profiler
``BEGIN, at``                               The running step begins here; what was noted before is in no step
==========================================  ==========================================================================

All times are monotonic ns. A hook compares nothing and looks nothing up: between two operators of a model its
caches are cold, and each object it touches costs a tenth of a microsecond or more.
"""

from __future__ import annotations

from typing import Any, Optional, Union

DATA, BACKWARD, OPTIMIZER, STEPPED, END, BEGIN = range(6)

Mark = tuple[Any, ...]
Part = tuple[Union[int, str], int, int, Optional[int]]
