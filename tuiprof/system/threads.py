"""How many threads tuiprof's own processes start: few, because a training run on the same machine needs the cores.

NumPy and Polars start one for every core. OpenBLAS, which comes with NumPy, lets each of its own turn for some 0.06 to
0.1 s at the import before it sleeps, which is seconds of processor time on a machine with 64 cores, and nothing here
multiplies matrices. Polars wakes all of its own for queries that keep one of them busy for a fraction of a millisecond.
"""

from __future__ import annotations

import os
from typing import Final

#: Threads of Polars at most: reading and analysing 119 MB takes no less time with more, and no more with two.
_POLARS: Final = 8


def cores() -> int:
    """Return how many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def bound_threads() -> None:
    """Limit the threads of NumPy and Polars, unless the user set a number; before either is imported.

    For processes that are tuiprof's alone: in a notebook both belong to others, too. The libraries read the
    variables from the environment of the C library, and only there are they set: ``os.environ``, which the scripts
    that tuiprof launches are given, stays what the user made it.
    """
    few = {"OPENBLAS_NUM_THREADS": 1, "POLARS_MAX_THREADS": min(_POLARS, cores())}
    for name, count in few.items():
        if name not in os.environ:
            os.putenv(name, str(count))
