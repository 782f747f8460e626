"""Valid times of a trace: 64-bit nanoseconds, with room for ends and differences.

Times outside are dropped after decoding, so that later code need not check.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

#: Limit of starts and lengths, in either direction, and of the length of a trace: 146 years, so that a trace may mix
#: Unix time with times since 0.
LIMIT_NS: Final = 1 << 62
#: In a longer trace, events farther than this from the middle, or longer, are damaged: 36 years.
_FAR_NS: Final = 1 << 60


def far_off(starts: Ints, durs: Ints) -> npt.NDArray[np.bool_] | None:
    """Return which events have implausible times, far from the others; None = none, the usual case."""
    if not len(starts) or int((starts + durs).max()) - int(starts.min()) < LIMIT_NS:
        return None
    middle = int(np.median(starts[durs < _FAR_NS])) if (durs < _FAR_NS).any() else 0
    far: npt.NDArray[np.bool_] = (starts < middle - _FAR_NS) | (starts > middle + _FAR_NS) | (durs >= _FAR_NS)
    return far
