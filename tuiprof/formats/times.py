"""Which times a trace may hold: 64 bits of nanoseconds, with room for ends and differences.

What lies outside is dropped where the decoding ends, so that nothing behind it needs to look.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

#: Starts and lengths beyond this, in either direction, are no times; nor is a trace longer. 146 years, so that one may
#: mix Unix time with times since 0.
LIMIT_NS: Final = 1 << 62
#: Where a trace would be longer, what lies farther than this from the middle, or lasts longer, is damage. 36 years.
_FAR_NS: Final = 1 << 60


def far_off(starts: Ints, durs: Ints) -> npt.NDArray[np.bool_] | None:
    """Return which events lie so far from the others that their times cannot be true; None = none, as nearly always."""
    if not len(starts) or int((starts + durs).max()) - int(starts.min()) < LIMIT_NS:
        return None
    middle = int(np.median(starts[durs < _FAR_NS])) if (durs < _FAR_NS).any() else 0
    far: npt.NDArray[np.bool_] = (starts < middle - _FAR_NS) | (starts > middle + _FAR_NS) | (durs >= _FAR_NS)
    return far
