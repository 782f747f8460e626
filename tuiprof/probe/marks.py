"""Marks that hooks record during a step: small tuples, whose first element is their kind.

==========================================  ==========================================================================
``kind, began, ended, thread``              A part of a step: ``DATA``, ``BACKWARD``, ``OPTIMIZER``, ``FORWARD``,
                                            ``EVALUATION``, ``CHECKPOINT`` or the name the script gave, and the thread
                                            that it ran in; only parts in the thread that steps count
``STEPPED, began, ended, n, done``          The part ``OPTIMIZER``, with which step ``n`` ended; ``done`` = end of our
                                            own work
``END, n, at, metrics, captured, done``     Step ``n`` ended; numbers given by the script; it ran under a profiler
``BEGIN, at``                               The running step begins here; what was noted before is in no step
``SOURCE, at, what, where, withdrawn,       What ends a step from here on, and the script's line that does;
missed, missed_ns``                         ``withdrawn`` steps that ended before were none; ``missed`` that ended
                                            before were not known as such, nor how many did in ``missed_ns``
==========================================  ==========================================================================

All times are monotonic ns. A hook compares nothing and looks nothing up: between two operators of a model its
caches are cold, and each object it touches costs a tenth of a microsecond or more.
"""

from __future__ import annotations

from typing import Any, Optional, Union

DATA, BACKWARD, OPTIMIZER, FORWARD, EVALUATION, CHECKPOINT, STEPPED, END, BEGIN, SOURCE = range(10)
#: Parts that only a step which has begun can have.
OF_NEXT_STEP = (DATA, BACKWARD, OPTIMIZER, FORWARD)
#: Parts that a script has between steps, now and then.
APART = (EVALUATION, CHECKPOINT)

Mark = tuple[Any, ...]
Part = tuple[Union[int, str], int, int, Optional[int]]
