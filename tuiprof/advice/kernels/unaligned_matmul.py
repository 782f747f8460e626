"""A matrix product with sizes that are not a multiple of 16 bytes cannot use the fast kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.model import Trace
from tuiprof.model.units import format_rough_share
from tuiprof.whatif import Edit, EditRange

#: Names of CUTLASS kernels end in the number of elements per load: 16 bytes are 8 16-bit elements, or 4 in TF32.
_HALF: Final = re.compile(r"tensorop_.*(f16|h884|h1688|h16816).*_align[124]\b")
_TF32: Final = re.compile(r"tensorop_(?!.*f16).*s1688.*_align[12]\b")
#: Minimum share of device work.
MIN_SHARE: Final = 0.01
#: Share of such a product that remains when aligned: likely, least and most helpful. Hopper's tensor core
#: instructions need 16 bytes; other sizes fall back to Ampere's, at half the rate; a product of 9477 x 588 by 1152
#: in bf16 took 131 us, and 37 us with 592 (https://github.com/m87-labs/kestrel/pull/143). Forward and backward of
#: 393 216 rows by 256 columns in bf16 keep 34 % with 288 instead of 283 inputs, 33 % with 320 instead of 319, and 60 %
#: with 64 instead of 63, which is limited by memory (H100, PyTorch 2.11).
_KEEP_NEWER: Final = (0.4, 0.8, 0.2)
_KEEP_AMPERE: Final = (0.65, 0.95, 0.4)
#: Kernels that load one element at a time exist only for Turing, whose instructions have half the rate of Ampere's.
_TURING: Final = re.compile(r"cutlass_75_")
_TURING_PART: Final = 0.7
_NEWER: Final = re.compile(r"\b(GH?[12]00|H[12]0?0|H20|GB?[23]00|B[23]00)\b")


def find(trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for product kernels that load less than 16 bytes at once."""
    work = trace.device_work
    slow = np.array([bool(_HALF.search(name) or _TF32.search(name)) for name in trace.names], dtype=bool)
    rows = work[slow[trace.name_codes[work]]]
    share = evidence.share_of_device_time(rows)
    if share < MIN_SHARE:
        return
    newer = _NEWER.search(trace.info.device_name) is not None
    turing = np.array([bool(_TURING.search(name)) for name in trace.names], dtype=bool)
    part = np.where(turing[trace.name_codes[rows]], _TURING_PART, 1.0)
    longest = trace.longest(rows)
    yield Finding(
        f"{format_rough_share(share)} of device time is matrix products whose sizes are not a multiple of 16 bytes",
        evidence.place_of(longest),
        "pad the sizes to multiples of 8 (16-bit types), better 64, such as a vocabulary of 50 257 to 50 304",
        "high",
        "names of the kernels say that they load fewer than 16 bytes at once (align1, align2, align4)",
        *EditRange(*(Edit.of_work(rows, keep * part) for keep in (_KEEP_NEWER if newer else _KEEP_AMPERE))),
        event=longest,
    )


RULE = AdviceRule("unaligned-matmul", find)
