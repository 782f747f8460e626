"""Python objects are exchanged between ranks in the step."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import numpy as np

from tuiprof.advice.finding import AdviceRule, Evidence, Finding
from tuiprof.analyses.sync_events import WaitLocation
from tuiprof.model import Trace

#: PyTorch's functions for objects, as frames of a wait: they pickle, send sizes, and read them back.
_FUNCTION: Final = re.compile(
    r"torch/distributed/distributed_c10d\.py:\d+ (\w+_object(?:_list)?)$", re.MULTILINE
)
_INNER: Final = ("_object_to_tensor", "_tensor_to_object")


def find(_trace: Trace, evidence: Evidence) -> Iterator[Finding]:
    """Look for waits inside collectives of objects; those that one line causes are one finding."""
    of_line: dict[tuple[str, str], list[WaitLocation]] = defaultdict(list)
    for row in evidence.waits():
        names = [name for name in _FUNCTION.findall(row.stack) if name not in _INNER]
        if names:
            of_line[row.called_from or row.where, names[0]].append(row)
    for (_, name), rows in of_line.items():
        operators = np.unique(np.concatenate([evidence.operators_of(row) for row in rows]))
        least = evidence.without_operators(operators)
        yield Finding(
            f"{name}() sends Python objects every step, which waits for the device "
            f"{evidence.how_often(sum(row.count for row in rows))}",
            evidence.location(rows[0]),
            "keep the figures in a tensor on the device and reduce it every N steps; objects are pickled on the host",
            "high",
            "it reads the sizes of the objects, and then the objects, back from the device",
            least | evidence.shortened(operators, 0.0),
            least,
            event=rows[0].event,
        )


RULE = AdviceRule("object-collective", find, needs=("sync_events",))
